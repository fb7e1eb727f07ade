"""An instance of this version (the older one) beside one of the next, over one table and one bus.

The newer one adds a column to every row, a member to every shared value and internal message, words
to the journal, a kind of due row, and a version of a workflow. Some of its messages only it
understands. Each reads what it wrote itself.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from azure.data.tables import TableEntity

from sas.adapters import keys
from sas.adapters.rows import Entity
from sas.adapters.table import Meter, RefusedTransactionError, RetryBudget, Table
from sas.adapters.table_store import TableStore
from sas.adapters.transaction import Operation
from sas.codec.outward import AlertMessage, decode_notification, notice_of
from sas.codec.strict import convert
from sas.domain.ids import key_time
from sas.domain.order import Order, OrderState
from sas.domain.workflow import Workflows
from sas.ports import Business, Message, MessageBus, Peeked
from sas.testing.bus import MemoryBus, Queued
from sas.testing.clock import VirtualClock
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.remote import RemoteFaults, RemoteLedger, SimulatedAgent
from sas.testing.store import MemoryStore
from sas.testing.system import ClockApart, Host
from sas.testing.world import Faults, Handler, Instance, World
from tests.business import workflows
from tests.long import seeds
from tests.simulation.system import AGENTS, deployed_host, deployed_queues

NEWER = "OfANewerVersion"
WORD = "newly "
"""The newer version puts this before most words of the journal."""
DUE = "newer"
"""A kind of due row of the newer version."""
ORDERS = 12
FAULTS = Faults(lock_lost=0.02, duplicate=0.02, bus_down=0.01)
Kept = dict[tuple[str, str], TableEntity]
Pause = Callable[[], Awaitable[None]]
_etags = itertools.count()


class Rows(Table):
    """A table in memory, as the adapter of the older version writes and reads it."""

    def __init__(self, kept: Kept, pause: Pause) -> None:
        super().__init__(None, RetryBudget(), Meter())  # type: ignore[arg-type]
        self.kept, self.pause, self.swept = kept, pause, 0

    def written(self, row: Entity) -> Entity:
        """Return a row as this version writes it."""
        return row

    def read(self, row: TableEntity) -> TableEntity:
        """Return a row as this version reads it."""
        return row

    async def create(self) -> None:
        pass

    async def get(self, partition: str, row_key: str) -> TableEntity | None:
        await self.pause()
        found = self.kept.get((partition, row_key))
        return None if found is None else self.read(found)

    async def insert(self, partition: str, row: Entity) -> bool:
        await self.pause()
        if (partition, row["RowKey"]) in self.kept:
            return False
        self._put_row(partition, row)
        return True

    async def put(self, partition: str, row: Entity) -> None:
        await self.pause()
        self._put_row(partition, row)

    async def replace(self, partition: str, row: Entity, etag: str) -> bool:
        await self.pause()
        found = self.kept.get((partition, row["RowKey"]))
        if found is None or found.metadata["etag"] != etag:
            return False
        self._put_row(partition, row)
        return True

    async def delete(self, partition: str, row_key: str) -> None:
        await self.pause()
        self.kept.pop((partition, row_key), None)

    async def pages(
        self,
        partition: str,
        span: tuple[str, str],
        *,
        limit: int | None = None,
        select: Sequence[str] | None = None,
    ) -> AsyncIterator[list[TableEntity]]:
        await self.pause()
        found = [self.kept[key] for key in sorted(self.kept) if key[0] == partition]
        inside = [self.read(row) for row in found if span[0] <= row["RowKey"] < span[1]]
        if inside[:limit]:
            yield inside[:limit]

    async def transact(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        await self.pause()
        for index, one in enumerate(operations):
            found = self.kept.get((partition, one.row_key))
            status = 409 if found is not None and one.verb == "create" else 0
            status = 404 if found is None and one.verb in {"update", "delete"} else status
            if one.etag is not None and found is not None and found.metadata["etag"] != one.etag:
                status = 412
            if status:
                raise RefusedTransactionError(status, index, f"{one.verb} {one.row_key}")
        for one in operations:
            if one.verb == "delete":
                del self.kept[partition, one.row_key]
            else:
                self._put_row(partition, one.row)
        written = [self.kept.get((partition, one.row_key)) for one in operations]
        return [None if row is None else str(row.metadata["etag"]) for row in written]

    def _put_row(self, partition: str, row: Entity) -> None:
        columns = {name: value for name, value in self.written(row).items() if value is not None}
        made = TableEntity({**columns, "PartitionKey": partition})
        made._metadata = {"etag": f"e{next(_etags)}", "timestamp": None}
        before = self.kept.get((partition, row["RowKey"]))
        if before is not None and newer_part(before):
            assert newer_part(made) == newer_part(before), f"{row['RowKey']} lost what it had"
        self.kept[partition, row["RowKey"]] = made


class NewerRows(Rows):
    """The same table, as the adapter of the newer version writes and reads it."""

    def __init__(self, kept: Kept, pause: Pause, clock: VirtualClock) -> None:
        super().__init__(kept, pause)
        self.clock = clock

    def written(self, row: Entity) -> Entity:
        row = {**row, NEWER: "yes"}
        if "What" in row and row["What"] not in {"fenced", "rejected"}:
            row["What"] = WORD + row["What"]
        if "Messages00" in row and "Messages01" not in row:
            messages = [one | {NEWER: 1} for one in json.loads(row["Messages00"])]
            row["Messages00"] = json.dumps(messages)
        if row["RowKey"].startswith("shared|") and row["Value"].startswith("{"):
            row["Value"] = json.dumps(json.loads(row["Value"]) | {NEWER: [1]})
        return row

    def read(self, row: TableEntity) -> TableEntity:
        known = TableEntity(row)
        known._metadata = row.metadata
        if "What" in row:
            known["What"] = row["What"].removeprefix(WORD)
        return known

    async def transact(self, partition: str, operations: Sequence[Operation]) -> list[str | None]:
        """Leave a due row of a new kind beside every order that is written first."""
        first = operations[0]
        if first.verb == "create" and "CommitId" in first.row:
            at = key_time(self.clock.now() + timedelta(seconds=20))
            key = f"due|{at}|{keys.escape(first.row['OrderID'])}|{DUE}|1"
            operations = [*operations, Operation("create", {"RowKey": key})]
        return await super().transact(partition, operations)

    async def pages(
        self, partition: str, span: tuple[str, str], **options: Any
    ) -> AsyncIterator[list[TableEntity]]:
        """Handle the due rows of the new kind: they are removed."""
        async for page in super().pages(partition, span, **options):
            own = [row for row in page if f"|{DUE}|" in row["RowKey"]]
            for row in own:
                self.swept += self.kept.pop((partition, row["RowKey"]), None) is not None
            if rest := [row for row in page if row not in own]:
                yield rest


class NewerBus:
    """The bus as the newer version uses it: some messages only it understands."""

    def __init__(self, bus: MessageBus, rng: random.Random) -> None:
        self._bus, self._rng = bus, rng

    async def send(self, messages: Sequence[Message]) -> None:
        await self._bus.send([self._newer(one) for one in messages])

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        return await self._bus.peek(queue, limit)

    async def close(self) -> None:
        pass

    def _newer(self, message: Message) -> Message:
        body = json.loads(message.body)
        if "kind" not in body or "v" not in body:
            return message
        body |= {NEWER: {"deep": [1]}}
        for part in (body.get("error"), body.get("order_ref"), body.get("result_ref")):
            if isinstance(part, dict):
                part[NEWER] = 1
        if self._rng.random() < 0.3:
            body["v"] = 2
        return replace(message, body=json.dumps(body).encode())


def understands(handle: Handler) -> Handler:
    """Return a handler of the newer version, given one that knows version 1 only."""

    async def newer(queued: Queued) -> object:
        body = queued.message.body
        with suppress(ValueError):
            parsed = json.loads(body)
            if isinstance(parsed, dict) and parsed.get("v") == 2:
                body = json.dumps(parsed | {"v": 1}).encode()
        return await handle(replace(queued, message=replace(queued.message, body=body)))

    return newer


class SideBySide:
    """Two instances, and what runs at the moment."""

    def __init__(self, seed: int, faults: Faults) -> None:
        random.seed(seed)
        clock = self.clock = VirtualClock()
        bus = self.bus = MemoryBus(clock)
        for queue, rules in deployed_queues().items():
            bus.declare(queue, rules=rules)
        self.world = World(seed, clock, MemoryStore(), bus, faults, deployed_host())
        self.kept: Kept = {}
        self.ran: Counter[str] = Counter()
        self.rows = (
            Rows(self.kept, self.world.pause),
            NewerRows(self.kept, self.world.pause, clock),
        )
        told = [replace(one, notify_steps=True) for one in workflows(timedelta(minutes=3))]
        old = Workflows(told)
        first = old.find("order")
        self.hosts = (
            self._host("older", self.rows[0], self.world.bus, old),
            self._host(
                "newer",
                self.rows[1],
                NewerBus(self.world.bus, self.world.rng),
                Workflows([*old, replace(first, version=2, steps=first.steps[1:])]),
            ),
        )
        self.instances = [Instance(host) for host in self.hosts]
        self.run_only(0, 1)
        self.submitted: list[str] = []

    def _host(self, name: str, rows: Rows, bus: MessageBus, definitions: Workflows) -> Host:
        store = TableStore(rows)
        ledger = self.__dict__.setdefault("ledger", RemoteLedger())
        agents = {
            n: SimulatedAgent(self.clock, ledger, RemoteFaults(), self.world.rng) for n in AGENTS
        }
        business = Business(definitions, agents)
        made = Host(
            self.world,
            ClockApart(self.clock),
            name,
            business,
            ports=(store, bus),
        )
        self.ran[name] = 0
        newer = name == "newer"
        own = made.handlers
        made.handlers = {queue: self._counted(name, own[queue], newer=newer) for queue in own}
        return made

    def _counted(self, name: str, handle: Handler, *, newer: bool) -> Handler:
        async def counted(queued: Queued) -> object:
            self.ran[name] += 1
            return await handle(queued)

        return understands(counted) if newer else counted

    def run_only(self, *running: int) -> None:
        """Let these instances run: messages go to whichever, and all of them sweep."""
        self.world.instances = [self.instances[number] for number in running]

    def submit(self, order_id: str, version: int | None) -> None:
        body: dict[str, object] = {
            "order_id": order_id,
            "workflow": "order",
            "reply_queue": REPLIES_TO,
            "order": {},
            "workflow_version": version,
        }
        self.submitted.append(order_id)
        text = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        self.bus._enqueue(Message(QUEUES.orders, f"m-{order_id}", text))

    async def order(self, order_id: str) -> Order | None:
        return await TableStore(Rows(self.kept, _no_pause)).load(order_id)

    def stored(self) -> int:
        return sum(key.endswith("|state") for _, key in self.kept)

    def finished(self) -> bool:
        index = [key for _, key in self.kept if key.startswith("due|")]
        done = {key.rsplit("|", 1)[1] for _, key in self.kept if key.startswith("done|")}
        return done >= set(self.submitted) and not index

    async def run_for(self, seconds: float) -> None:
        """Run for some virtual time, whether all is done or not."""
        end = self.clock.now() + timedelta(seconds=seconds)
        with suppress(TimeoutError):
            await self.world.run(lambda: False, hours_max=seconds / 3600)
        assert self.clock.now() >= end

    async def failures(self) -> int:
        orders = [await self.order(order_id) for order_id in self.submitted]
        return sum(order.failure_count for order in orders if order is not None)

    def alerts(self) -> list[AlertMessage]:
        return [convert(one.body, AlertMessage) for one in self.bus.messages(QUEUES.alerts)]

    async def check(self) -> None:
        """Every order is Processed, its application notified, and no newer column is lost."""
        assert [alert.text for alert in self.alerts()] == []
        assert self.bus.messages(QUEUES.rejected) == []
        told: dict[str, str] = {}
        for message in self.bus.messages(REPLIES_TO):
            event = decode_notification(message.body)
            told[event.id] = f"{event.data.order_id} {notice_of(event.type)}"
        for order_id in self.submitted:
            order = await self.order(order_id)
            assert order is not None
            assert order.process_state is OrderState.PROCESSED
            counted = Counter(told.values())
            assert counted[f"{order_id} received"] == counted[f"{order_id} completed"] == 1
            assert counted[f"{order_id} step-completed"] == len(order.steps)


async def _no_pause() -> None:
    pass


def newer_part(row: Entity) -> object:
    """Return what the newer version added to a row of an order, or to a shared value."""
    if row["RowKey"].startswith("shared|"):
        value = json.loads(row["Value"])
        return value.get(NEWER) if isinstance(value, dict) else None
    return row.get(NEWER) if row["RowKey"].startswith("order|") else None


@pytest.mark.parametrize("faults", [Faults(), FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize("seed", seeds(2, 50))
async def test_orders_run_to_their_end_on_two_versions_at_once(seed: int, faults: Faults) -> None:
    both = SideBySide(seed, faults)
    for number in range(ORDERS):
        both.submit(f"O-{number}", (None, 1, 2)[number % 3])
    await both.world.run(both.finished)
    await both.check()
    assert min(both.ran.values()) > ORDERS
    assert both.rows[1].swept > 0
    if faults == Faults():
        assert await both.failures() == 0
    await both.world.close()


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_what_a_newer_version_began_an_older_one_ends_or_leaves_alone(seed: int) -> None:
    """The newer one is taken back for some minutes, in the middle of its orders."""
    both = SideBySide(seed, Faults())
    both.run_only(1)
    for number in range(ORDERS):
        both.submit(f"O-{number}", 1 + number % 2)
    while both.stored() < ORDERS:
        await both.run_for(0.5)
    both.run_only(0)
    await both.run_for(200)
    assert [alert.text for alert in both.alerts()] == []
    both.run_only(0, 1)
    await both.world.run(both.finished)
    await both.check()
    await both.world.close()


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_what_an_older_version_began_a_newer_one_ends(seed: int) -> None:
    both = SideBySide(seed, Faults())
    both.run_only(0)
    for number in range(ORDERS):
        both.submit(f"O-{number}", 1)
    await both.run_for(0.5 + seed % 3)
    both.run_only(1)
    await both.world.run(both.finished)
    await both.check()
    assert await both.failures() == 0
    await both.world.close()
