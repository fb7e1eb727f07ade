"""Orders under way, recorded as one version stores them and played to their end by this one.

A recording (``tests/integration/recorded/VERSION.json``) holds every row of the table and every
message of the queues, with the orders stopped at many points. A release records one:

    python -m tests.integration.upgrade_kit

The workflows and agents are here, so that a recording of long ago still finds them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from azure.data.tables import EdmType, EntityProperty
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from sas.adapters.table_store import TableStore
from sas.bootstrap import Application, assemble
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.config import read_config
from sas.distribution import version
from sas.domain.messages import Verb
from sas.domain.queues import Queues
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import AwaitCallback, Business, Call, Message, RefusedError, StillRunning
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from tests.unit.actors_kit import delivery

RECORDED = Path(__file__).with_name("recorded")
QUEUES = Queues()
SHOP = "responses-shop"
AGENTS = ("stock", "payment", "courier")
TIME = timedelta(minutes=5)
TABLE = "orders"
SETTINGS = {
    "ServiceBus": "Endpoint=sb://upgrade",
    "SAS_TABLES": "AccountName=upgrade",
    "SAS_CALLBACK_KEY": "kR4vQ9-wLz71xTfB0mNcYhUeP3sGdJ5a",
    "SAS_CALLBACK_URL": "https://app.example/api/callbacks",
}
_STEPS = (
    Step("reserve", "stock", TIME, undo=Undo(TIME)),
    Step("pay", "payment", TIME, undo=Undo(TIME)),
    Step("ship", "courier", TIME, undo=Undo(TIME)),
)
WORKFLOWS = Workflows(
    [
        Workflow("order", 1, _STEPS, OnFailure.UNDO),
        Workflow("order-with-care", 1, _STEPS, OnFailure.HOLD),
    ]
)


@dataclass
class Remote:
    """What the remote services keep: which keys are done or undone, calls, and callback tokens."""

    effects: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)


class Service:
    """A remote service that does what the order's member ``way`` says."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def do(self, call: Call) -> Any:
        """Have the effect once for each key, or refuse."""
        key, way = call.key, f"{call.order['way']} at {call.step}"
        count = self._remote.calls[key] = self._remote.calls.get(key, 0) + 1
        if self._remote.effects.get(key) == "undone":
            raise RefusedError("undone", "it was undone")
        if way == "refused at pay" or (way == "refused once at pay" and count == 1):
            raise RefusedError("declined", "the card was declined")
        if way == "long at reserve" and count == 1:
            return StillRunning(timedelta(minutes=10), "on the road")
        if way == "asks at ship":
            self._remote.tokens[call.order_id] = call.callback(timedelta(days=7)).token
            return AwaitCallback(timedelta(days=7), "waits for the courier")
        self._remote.effects[key] = "done"
        return {"by": key, "size": "x" * (20_000 if way == "large at reserve" else 1)}

    async def undo(self, call: Call) -> Any:
        """Take the effect back, and refuse the key from now on."""
        self._remote.effects[call.key] = "undone"
        return {"undone": True}

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class System:
    """The functions over Azurite, queues in memory and a clock that only this class moves."""

    def __init__(self, storage: str, clock: VirtualClock, remote: Remote) -> None:
        self.clock, self.remote = clock, remote
        self.store = TableStore.connect(storage, TABLE)
        self.bus = MemoryBus(clock)
        self.bus.declare(*QUEUES.own(AGENTS), SHOP)
        business = Business(WORKFLOWS, {name: Service(remote) for name in AGENTS})
        self.app = assemble(self.store, self.bus, clock, business, read_config(SETTINGS))
        self.handlers: dict[str, Callable[[Application], Any]] = {
            QUEUES.orders: lambda app: app.submitter.handle,
            QUEUES.scheduler: lambda app: app.scheduler.handle,
            QUEUES.replies: lambda app: app.scheduler.handle_reply,
            QUEUES.callbacks: lambda app: app.callbacks.handle,
            **{QUEUES.agent(name): _agent_handler(name) for name in AGENTS},
        }

    async def work(self, stop: Callable[[str, Any], bool] = lambda *_: False) -> list[Message]:
        """Hand out messages until none is visible; return those that were to ``stop``."""
        kept = []
        while taken := [m for queue in self.handlers if (m := self.bus.take(queue)) is not None]:
            for message in taken:
                if stop(message.queue, json.loads(message.body)):
                    kept.append(message)
                    continue
                handler = self.handlers[message.queue](self.app)
                await self.app.receive(handler, delivery(message))
        return kept

    async def sweep(self) -> None:
        """Run the supervisor."""
        await self.app.supervisor.sweep()

    def later(self, time: timedelta) -> None:
        """Let time pass."""
        self.clock.set(self.clock.now() + time)


def _agent_handler(name: str) -> Callable[[Application], Any]:
    return lambda app: app.agents[name].handle


@dataclass(frozen=True)
class Case:
    """An order, where its recording stops, and how it must end."""

    way: str
    stop: Callable[[str, Any], bool] = lambda *_: False
    workflow: str = "order"
    ends: str = "Processed"
    lost: bool = False
    """The message that it stopped at is lost: the supervisor must find the order."""


def at(queue: str, **members: object) -> Callable[[str, Any], bool]:
    """Stop at the messages of a queue that have these members."""
    return lambda name, body: name == queue and members.items() <= body.items()


CASES: Mapping[str, Case] = {
    "ordered": Case("plain", at(QUEUES.orders)),
    "woken": Case("plain", at(QUEUES.scheduler)),
    "requested": Case("plain", at(QUEUES.agent("payment"))),
    "replied": Case("plain", at(QUEUES.replies)),
    "lost": Case("plain", at(QUEUES.agent("payment")), lost=True),
    "large": Case("large", at(QUEUES.agent("payment"))),
    "long": Case("long"),
    "going on": Case("long", at(QUEUES.replies, kind="progress")),
    "asking": Case("asks"),
    "undoing": Case("refused", at(QUEUES.agent("stock"), direction="undo"), ends="Compensated"),
    "held": Case("refused once", workflow="order-with-care"),
    "commanded": Case("refused once", workflow="order-with-care"),
    "done": Case("plain"),
    "undone": Case("refused", ends="Compensated"),
}


async def record(storage: str) -> dict[str, Any]:
    """Bring every case to where it stops, and return all that is stored and sent."""
    system = System(storage, VirtualClock(), Remote())
    kept = [one for name in CASES for one in await _begin(system, name)]
    kept += [await _commanded(system), _called_back(system)]
    waiting = [queued for queue in system.bus.queues.values() for queued in queue.waiting]
    messages = [_message(one, system.clock.now()) for one in kept]
    messages += [_message(one.message, one.visible_at) for one in waiting]
    async with TableClient.from_connection_string(storage, TABLE) as table:
        rows = [_row(entity) async for entity in table.list_entities()]
    await system.app.close()
    return {
        "version": version(),
        "at": system.clock.now().isoformat(),
        "remote": vars(system.remote),
        "messages": messages,
        "rows": rows,
    }


async def _begin(system: System, name: str) -> list[Message]:
    """Submit one case's order, and let it go on to where it stops."""
    case = CASES[name]
    content = {"way": case.way, "text": "x" * (100_000 if case.way == "large" else 1)}
    body = {"order_id": name, "workflow": case.workflow, "reply_queue": SHOP, "order": content}
    sent = json.dumps(body).encode()
    await system.bus.send([Message(QUEUES.orders, f"m-{name}", sent)])
    kept = await system.work(case.stop)
    return [] if case.lost else kept


async def _commanded(system: System) -> Message:
    """Return an operator's command that no scheduler has read."""
    order = await system.store.load("commanded")
    assert order is not None
    command = CommandMessage(
        id="c-1", order_id="commanded", verb=Verb.RESUBMIT.value, seq=order.seq, by="ann"
    )
    return Message(QUEUES.scheduler, command.id, internal.encode(command))


def _called_back(system: System) -> Message:
    """Return a callback that no function has read."""
    body = {"token": system.remote.tokens["asking"], "outcome": "done", "result": {"by": "hand"}}
    return Message(QUEUES.callbacks, "b-1", json.dumps(body).encode())


async def play(storage: str, recording: Mapping[str, Any]) -> System:
    """Store and send what was recorded, and let this version work until nothing is left to do."""
    async with TableClient.from_connection_string(storage, TABLE) as table:
        await table.create_table()
        for row in recording["rows"]:
            await table.create_entity({name: _value(cell) for name, cell in row.items()})
    clock = VirtualClock(datetime.fromisoformat(recording["at"]))
    system = System(storage, clock, Remote(**recording["remote"]))
    await system.bus.send([_sent(one) for one in recording["messages"]])
    for _ in range(20):
        await system.work()
        await system.sweep()
        system.later(timedelta(minutes=1))
    return system


def _message(message: Message, visible_at: datetime) -> dict[str, Any]:
    return {
        "queue": message.queue,
        "id": message.message_id,
        "body": message.body.decode(),
        "properties": dict(message.properties),
        "visible_at": visible_at.isoformat(),
    }


def _sent(recorded: Mapping[str, Any]) -> Message:
    return Message(
        recorded["queue"],
        recorded["id"],
        recorded["body"].encode(),
        scheduled_at=datetime.fromisoformat(recorded["visible_at"]),
        properties=recorded["properties"],
    )


def _row(entity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _cell(value) for name, value in entity.items()}


def _cell(value: Any) -> Any:
    """Return a column as JSON: text, numbers and booleans as they are, others with their type."""
    if isinstance(value, EntityProperty):
        return {"type": str(value.edm_type), "value": str(value.value)}
    if isinstance(value, bytes):
        return {"type": "bytes", "value": base64.b85encode(zlib.compress(value)).decode()}
    if isinstance(value, str) and len(value) > 1000:
        packed = base64.b85encode(zlib.compress(value.encode())).decode()
        return {"type": "text", "value": packed}
    if isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{value!r}: say here how it is recorded")


def _value(cell: Any) -> Any:
    if not isinstance(cell, dict):
        return cell
    if cell["type"] in {"bytes", "text"}:
        found = zlib.decompress(base64.b85decode(cell["value"]))
        return found if cell["type"] == "bytes" else found.decode()
    return EntityProperty(int(cell["value"]), EdmType(cell["type"]))


def main() -> None:
    """Record this version."""
    RECORDED.mkdir(exist_ok=True)
    path = RECORDED / f"{version()}.json"
    with Azurite() as azurite:
        recording = asyncio.run(record(azurite.connection_string))
    path.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {len(recording['rows'])} rows, {len(recording['messages'])} messages")  # noqa: T201


if __name__ == "__main__":
    main()
