"""The system under test: broker, Azurite behind a proxy, host processes with clocks of their own,
and remote services in this process, whose ledgers outlive every kill.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import struct
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orders
from devstack.children import Child
from devstack.inputs import ChildFailedError
from devstack.stack import Stack
from lab.chaos.faults import Fault, Kind
from lab.chaos.proxy import StoreProxy, Weather
from samples.demo import scenario
from samples.services.faults import Faults
from samples.services.remote import RemoteServices
from sas.adapters.tables.store import TableStore
from sas.domain.queues import Queues
from sas.saga import business_of, sagas_of

PROJECT = Path(__file__).parents[2]
INSIDE = Path(__file__).parent / "inside"
LOCK = "PT5S"
"""The shortest lock that Azure allows, so that messages of a killed host come again soon."""
TIME_ALLOWED_S = 20
ATTEMPTS_MAX = 10
LEDGER_MAX = 1_000_000

_BOTH = ("", "_urgent")
CORE = (
    *(f"{name}{lane}" for name in ("submission", "scheduler") for lane in _BOTH),
    "deadletters",
    "deadletters_end",
    "supervisor",
)
AGENT_NAMES = tuple(business_of(sagas_of(orders)).agents)
AGENTS = tuple(f"agent_{agent}{lane}" for agent in AGENT_NAMES for lane in _BOTH)
GROUPS: Mapping[str, Sequence[str]] = {
    "core-1": CORE,
    "core-2": CORE,
    "agents-1": AGENTS,
    "agents-2": AGENTS,
}
ONE_WORKER: Mapping[str, Sequence[str]] = {"worker": (*CORE, *AGENTS)}
WORKED = (*Queues().on_the_way(AGENT_NAMES), "dead-letters")

STATUSES = {
    Kind.QUEUE_DISABLED: "Disabled",
    Kind.QUEUE_SEND_DISABLED: "SendDisabled",
    Kind.QUEUE_RECEIVE_DISABLED: "ReceiveDisabled",
}
WEATHERS = {
    Kind.STORE_REFUSED: Weather.REFUSED,
    Kind.STORE_BUSY: Weather.BUSY,
    Kind.STORE_ANSWERS_LOST: Weather.ANSWERS_LOST,
    Kind.STORE_SILENT: Weather.SILENT,
}
ARMED = {
    Kind.CONNECTIONS_CUT: "drop-connections",
    Kind.LOCKS_EXPIRED: "expire-locks",
    Kind.ACKNOWLEDGEMENTS_LOST: "lose-acknowledgement",
    Kind.BROKER_BUSY: "server-busy",
    Kind.DELIVERED_TWICE: "duplicate-delivery",
}
"""Faults that the broker is armed with. It then fails in this way once, or a few times."""
SERVICES = Faults(transient=0.08, permanent=0.02, latency=0.05, delivery=6.0, retry_after_seconds=1)


def settings(urls: Mapping[str, str]) -> dict[str, str]:
    """Return the app settings of the host processes."""
    return scenario.settings(urls) | {
        "ORDERS_TIME_ALLOWED_SECONDS": str(TIME_ALLOWED_S),
        "SAS_PURGE_SCHEDULE": "0 0 0 1 1 *",
        "PYTHONPATH": f"{INSIDE}:{PROJECT}",
    }


def config() -> dict[str, Any]:
    """Return the emulator's queues with the shortest lock."""
    content: dict[str, Any] = json.loads((PROJECT / "infra/emulator/Config.json").read_text())
    for queue in content["UserConfig"]["Namespaces"][0]["Queues"]:
        queue["Properties"]["LockDuration"] = LOCK
    return content


@dataclass(kw_only=True)
class System:
    """A running system, and the faults that can be inflicted on it."""

    stack: Stack
    proxy: StoreProxy
    remote: RemoteServices
    store: TableStore
    folder: Path
    groups: Mapping[str, Sequence[str]]
    clocks: dict[str, float] = field(default_factory=dict)

    async def inflict(self, fault: Fault) -> None:
        """Inflict a fault, and return when it is over."""
        if fault.kind in STATUSES:
            await self._close_queue(fault)
        elif fault.kind in WEATHERS:
            await self._spoil_store(fault)
        elif fault.kind in ARMED:
            await self._arm_broker(fault)
        else:
            acts: Mapping[Kind, Callable[[Fault], Awaitable[None]]] = {
                Kind.KILL_HOST: self._kill_host,
                Kind.KILL_HOSTS: self._kill_hosts,
                Kind.KILL_BROKER: self._kill_broker,
                Kind.KILL_AZURITE: self._kill_azurite,
                Kind.KILL_ALL: self._kill_all,
                Kind.PAUSE_HOST: self._pause_host,
                Kind.CLOCK: self._jump,
            }
            await acts[fault.kind](fault)

    def set_clock(self, group: str, shift_s: float) -> None:
        """Shift the wall clock of a group's process, now and after each of its starts."""
        self.clocks[group] = shift_s
        path = self._clock(group)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(struct.pack("d", shift_s))

    def _clock(self, group: str) -> Path:
        return self.folder / f"clock-{group}"

    def memory_file(self, group: str) -> Path:
        """Return where the process of a group writes how much memory it uses."""
        return self.folder / f"memory-{group}"

    async def start_host(self, group: str) -> None:
        """Start the process of a group."""
        self.stack.settings["CHAOS_CLOCK"] = str(self._clock(group))
        self.stack.settings["CHAOS_MEMORY"] = str(self.memory_file(group))
        self.stack.settings["SAS_INSTANCE"] = group
        await self.stack.start_group(self.groups[group], name=group)

    async def start_hosts(self) -> None:
        """Start the processes of all groups."""
        await asyncio.gather(*map(self.start_host, self.groups))

    async def _kill_host(self, fault: Fault) -> None:
        """``kill -9`` a host; start it again."""
        self.stack.kill(fault.target)
        await asyncio.sleep(fault.seconds)
        await self.start_host(fault.target)

    async def _kill_hosts(self, fault: Fault) -> None:
        """``kill -9`` all hosts; start them again."""
        for group in self.groups:
            self.stack.kill(group)
        await asyncio.sleep(fault.seconds)
        await self.start_hosts()

    async def _kill_broker(self, fault: Fault) -> None:
        """``kill -9`` the broker; start it again on its ports, with its data."""
        broker = self.stack.broker
        assert broker is not None
        broker.kill()
        await asyncio.sleep(fault.seconds)
        await _persist(broker)

    async def _kill_azurite(self, fault: Fault) -> None:
        """``kill -9`` Azurite; start it again on its port with its tables."""
        azurite = self.stack.azurite
        assert azurite is not None
        assert azurite.child is not None
        azurite.child.kill()
        await asyncio.sleep(fault.seconds)
        await _persist(azurite.child)

    async def _kill_all(self, fault: Fault) -> None:
        """``kill -9`` everything, and start it again."""
        for group in self.groups:
            self.stack.kill(group)
        await asyncio.gather(self._kill_broker(fault), self._kill_azurite(fault))
        await self.start_hosts()

    async def _pause_host(self, fault: Fault) -> None:
        """SIGSTOP a host for longer than its locks and leases, then SIGCONT."""
        [host] = self.stack.group(fault.target)
        host.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            host.send_signal(signal.SIGCONT)

    async def _jump(self, fault: Fault) -> None:
        """Let a host's clock jump."""
        self.set_clock(fault.target, fault.shift_s)

    async def _close_queue(self, fault: Fault) -> None:
        """Disable a queue for a while."""
        await asyncio.to_thread(self._set_status, fault.target, STATUSES[fault.kind])
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(self._set_status, fault.target, "Active")

    def _set_status(self, queue: str, status: str) -> None:
        text = self._ask("GET", queue)
        changed, times = re.subn(r"<Status>\w+<", f"<Status>{status}<", text)
        if times != 1:
            raise ChildFailedError(f"the broker did not describe queue {queue!r}: {text[:200]}")
        self._ask("PUT", queue, changed.encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.stack.management_port}/{path}", body, method=method
        )
        if method == "PUT":
            request.add_header("If-Match", "*")
        if method == "POST":
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return str(answer.read().decode())

    async def _spoil_store(self, fault: Fault) -> None:
        """Let requests to the table fail for a while."""
        await self.proxy.change(WEATHERS[fault.kind])
        await asyncio.sleep(fault.seconds)
        await self.proxy.change(Weather.FINE)

    async def _arm_broker(self, fault: Fault) -> None:
        """Let the broker fail at once, or the next few times."""
        body = {"kind": ARMED[fault.kind]} | ({"count": fault.count} if fault.count else {})
        await asyncio.to_thread(self._ask, "POST", "$faults", json.dumps(body).encode())

    async def calm(self) -> None:
        """Disarm the faults that the broker was armed with and that have not happened yet."""
        await asyncio.to_thread(self._ask, "DELETE", "$faults")

    async def counts(self) -> dict[tuple[str, str], int]:
        """Return how many messages are Active, DeadLetter and so on, by queue and kind."""
        counts = {}
        feed = await asyncio.to_thread(self._ask, "GET", "$Resources/queues")
        for entry in feed.split("<entry")[1:]:
            [name] = re.findall(r"<title[^>]*>([^<]+)<", entry)
            for kind, count in re.findall(r"<[\w:]*?(\w+)MessageCount>(\d+)<", entry):
                counts[name, kind] = int(count)
        return counts

    async def at_rest(self) -> bool:
        """Return whether no message waits and nothing is due."""
        counts = await self.counts()
        if any(counts[queue, kind] for queue in WORKED for kind in ("Active", "Scheduled")):
            return False
        dues = [await self.store.oldest_due(shard) for shard in self.store.shards]
        return not any(dues) and await self.store.held_queue("") is None


async def _persist(child: Child) -> None:
    """Start a process on its old port. Try again, because another may hold it for a moment."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            await child.start_async(timeout_s=60)
        except ChildFailedError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return
        await asyncio.sleep(1.0)


@asynccontextmanager
async def running(
    folder: Path, groups: Mapping[str, Sequence[str]], faults: Faults, *, on_disk: bool = True
) -> AsyncIterator[System]:
    """Start everything; stop it all at the end. ``folder`` gets the data and the logs."""
    remote = RemoteServices(faults, ledger_max=LEDGER_MAX)
    async with remote:
        stack = Stack(
            PROJECT,
            config=config(),
            settings=settings(remote.urls),
            groups={},
            data=folder / "data" if on_disk else None,
            logs=folder / "logs",
        )
        async with stack:
            assert stack.azurite is not None
            store = TableStore.connect(stack.storage_connection)
            try:
                async with StoreProxy(stack.azurite.port) as proxy:
                    direct, behind = f":{stack.azurite.port}/", f":{proxy.port}/"
                    through = stack.storage_connection.replace(direct, behind)
                    stack.settings["AzureWebJobsStorage"] = through
                    system = System(
                        stack=stack,
                        proxy=proxy,
                        remote=remote,
                        store=store,
                        folder=folder,
                        groups=groups,
                    )
                    for group in groups:
                        system.set_clock(group, 0.0)
                    await system.start_hosts()
                    yield system
            finally:
                await store.close()
