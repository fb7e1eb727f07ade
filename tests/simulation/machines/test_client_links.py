"""The client of applications, whatever becomes of its link: each notification reaches its loops.

The reference is the promise of ``OrdersClient.follow``. A notification is removed only after each
loop that followed its order asked for the next one, or after the end of its order was handed out.
A loop gets no notification twice unless its lock was lost meanwhile. What nobody follows stays on
the queue and uses up no delivery. Outages that are shorter than the patience end no loop.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import ExitStack, aclosing, suppress

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from sas.client import FollowError, NewOrder, OrdersClient, SubmitError
from sas.codec.external import Notification
from tests.client_link_kit import LOCK_S, FakeBus, Stored, VirtualLoop, client_of, notification
from tests.simulation.machines.kit import AsyncMachine, sequences

ORDERS, NOTIFIED = st.sampled_from(["A", "B"]), st.sampled_from(["A", "B", "A", "B", "nobody's"])
FOLLOWED = st.sampled_from([("A",), ("B",), ("A", "B"), None])
NOTICES = st.sampled_from(
    ["received", "received", "late", "repeat", "completed", "completed", "junk"]
)
TROUBLES = st.sampled_from(
    ["lost locks", "lost locks", "stolen", "stolen", "lost answer", "cut", "restart"]
)
READERS_MAX = 4
PATIENCE_S = 10.0
LIMITS = {
    "receiving.BACKLOG_MAX": 4,
    "receiving.FULL_PAUSE_S": 1.0,
    "links.RECEIVE_WAIT_S": 1.0,
}


class Reader:
    """One loop of the application. While it is ``slow`` it asks for no further notification."""

    def __init__(self, machine: ClientLinksMachine, orders: tuple[str, ...] | None) -> None:
        self.orders = orders
        self.events: list[Notification] = []
        self.asked: set[str] = set()
        self.error: FollowError | None = None
        self.may_fail = False
        self.go = asyncio.Event()
        self.go.set()
        self.joined = machine.step
        self.began_at = asyncio.get_running_loop().time()
        self._machine = machine
        self.task = asyncio.get_running_loop().create_task(self._read(machine.client))

    @property
    def is_live(self) -> bool:
        return not self.task.done()

    def follows(self, event: Notification) -> bool:
        return self.orders is None or event.data.order_id in self.orders

    async def _read(self, client: OrdersClient) -> None:
        try:
            async with aclosing(client.follow(self.orders)) as events:
                async for event in events:
                    self.events.append(event)
                    self._machine.note_handed(self, event)
                    await self.go.wait()
                    self.asked.add(event.id)
                    self._machine.note_asked(event)
        except FollowError as error:
            self.error = error


class ClientLinksMachine(AsyncMachine):
    """Orders, notifications and loops, while links break and other readers come in between."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._patches = ExitStack()
        random.seed(0)
        self.step = 0
        self.bus = FakeBus()
        self.bus.on_complete = self.check_completion
        self.bus.on_loss = self.note_loss
        self.bus.on_take = self.note_taken
        self.readers: list[Reader] = []
        self.outages: list[asyncio.Task[None]] = []
        self.handed: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.losses: Counter[str] = Counter()
        self.stale: set[str] = set()
        self.stolen_at: dict[str, float] = {}
        self.asked: dict[str, int] = {}
        self.wrong: list[str] = []
        self.calm_at = 0.0
        self.locks_end = False
        self.is_long = False
        self.count = 0
        self.client = self._new_client()
        self.follow(("A",))
        self.follow(("B",))

    def _new_client(self) -> OrdersClient:
        return self._patches.enter_context(client_of(self.bus, **LIMITS))

    # -- The reference ------------------------------------------------------------------------

    def note_handed(self, reader: Reader, event: Notification) -> None:
        self.handed.setdefault(event.id, self.step)
        self.losses[event.id] += event.id in self.stale
        if self.now - self.stolen_at.get(event.id, self.now) > LOCK_S:
            self.wrong.append(f"{event.id} was handed out, and another process had it")
        if self.asked.get(event.id, reader.joined) < reader.joined and not self.losses[event.id]:
            self.wrong.append(f"{event.id} comes again to a later loop")

    def note_asked(self, event: Notification) -> None:
        self.asked.setdefault(event.id, self.step)
        if event.type == "sas.order.completed.v1":
            self.ends[event.data.order_id] = event.data.seq or 0

    def note_loss(self, stored: Stored) -> None:
        if stored.event is not None:
            self.stale.add(stored.event.id)
            self.losses[stored.event.id] += stored.event.id in self.handed
        calm_s = stored.locked_until - self.calm_at  # the bus notices it when somebody reads
        began_at = min((each.began_at for each in self.readers if each.is_live), default=self.now)
        if not self.locks_end and calm_s > LOCK_S and stored.locked_until - began_at > LOCK_S:
            self.wrong.append(f"message {stored.number} was locked until its lock expired")

    def note_taken(self, stored: Stored) -> None:
        if stored.event is not None:
            self.stale.discard(stored.event.id)

    @property
    def now(self) -> float:
        return self._runner.get_loop().time()

    def is_late(self, event: Notification) -> bool:
        return (event.data.seq or 0) <= self.ends.get(event.data.order_id, -1)

    def check_completion(self, stored: Stored) -> None:
        event = stored.event
        assert event is not None
        if event.id not in self.asked and not self.is_late(event):
            self.wrong.append(f"{event.id} was completed, and nobody had it")
        for reader in self.readers:
            if not reader.is_live or reader.may_fail or not reader.follows(event):
                continue
            is_in_hand = any(event.id == each.id for each in reader.events)
            was_there = reader.joined < self.handed.get(event.id, 0)
            if event.id not in reader.asked and (is_in_hand or was_there):
                self.wrong.append(f"{event.id} was completed before its loop was done")

    # -- What happens -------------------------------------------------------------------------

    @rule(notices=st.lists(st.tuples(NOTIFIED, NOTICES), min_size=2, max_size=5))
    def notify(self, notices: list[tuple[str, str]]) -> None:
        """Notifications come. A *late* one is older than the end of its order."""
        for order_id, notice in notices:
            self.count += 1
            seq, end = self.count, self.ends.get(order_id, 1)
            if notice in {"late", "repeat"}:
                seq = end - (notice == "late")
            event = notification(order_id, notice, self.count, seq=seq)
            self.bus.put(None if notice == "junk" else event)
        self.pass_time(2.5)

    @precondition(lambda self: sum(reader.is_live for reader in self.readers) < READERS_MAX)
    @rule(orders=FOLLOWED)
    def follow(self, orders: tuple[str, ...] | None) -> None:
        async def begin() -> None:
            self.readers.append(Reader(self, orders))
            await asyncio.sleep(0)

        self.step += 1
        self.run(begin())
        self.allow_failures()
        self.step += 1

    @precondition(lambda self: any(reader.is_live for reader in self.readers))
    @rule(data=st.data(), leaves=st.sampled_from([False, False, True]))
    def turn(self, data: st.DataObject, *, leaves: bool) -> None:
        """A loop becomes slow, or goes on, or ends in the middle and begins again."""
        reader = data.draw(st.sampled_from([each for each in self.readers if each.is_live]))

        async def cancel() -> None:
            reader.task.cancel()
            with suppress(asyncio.CancelledError):
                await reader.task

        if leaves:
            self.run(cancel())
            self.follow(reader.orders)
        else:
            (reader.go.clear if reader.go.is_set() else reader.go.set)()
        self.pass_time(2.5)

    @rule(order_id=ORDERS, lost=st.booleans())
    def submit(self, order_id: str, *, lost: bool) -> None:
        """The answer to the send may be lost: then it is sent again under the same id."""
        self.bus.loses_answer = lost
        self.ends.pop(order_id, None)
        try:
            receipt = self.run(self.client.submit(NewOrder(order_id=order_id, order={})))
            assert receipt.submission_id in self.bus.orders
        except SubmitError:
            assert self.is_long
            assert self.now < self.calm_at + 5.0
        self.bus.loses_answer = False
        if lost:  # the link is cut: without a pause many cuts would last longer than the patience
            self.pass_time(2.5)

    @precondition(lambda self: self.now > self.calm_at + 5.0)
    @rule(
        seconds=st.sampled_from([0.1, 2.0, 4.0, 4.0, 4.0, 25.0]),
        silent=st.booleans(),
        opens_fail=st.integers(0, 2),
        waits=st.booleans(),
    )
    def outage(self, seconds: float, *, silent: bool, opens_fail: int, waits: bool) -> None:
        """The service is away, while other things happen; then links drop while they are opened."""

        async def begin() -> None:
            outage = self.bus.outage(seconds, silent=silent, opens_fail=opens_fail)
            self.outages.append(asyncio.get_running_loop().create_task(outage))

        self.calm_at, self.is_long = self.now + seconds, seconds > PATIENCE_S
        self.allow_failures()
        self.run(begin())
        self.pass_time(seconds + 3.0 if waits else 0.5)

    def allow_failures(self) -> None:
        """A long outage ends the loops that there are, and those that begin meanwhile."""
        for reader in self.readers:
            reader.may_fail |= self.is_long and self.now < self.calm_at + 5.0

    @rule(trouble=TROUBLES)
    def lose(self, trouble: str) -> None:
        """The link breaks, or a settlement is not answered, or locks end before their time.

        Or another process completes what is free then. Or the application begins again.
        """
        self.locks_end = True
        match trouble:
            case "cut":
                self.bus.cut()
            case "lost answer":
                self.bus.loses_answer = True
            case "lost locks":
                self.run(self.bus.lose_locks())
            case "stolen":
                self.stolen_at.update(dict.fromkeys(self.run(self.bus.steal()), self.now))
            case _:
                self.restart()
                self.follow(("A", "B"))
        self.locks_end = False
        self.pass_time(2.5)
        self.bus.loses_answer = False

    @rule(seconds=st.sampled_from([2.5, 12.0, 25.0, None]))
    def wait(self, seconds: float | None) -> None:
        """Time passes, or all loops go on until everything that they follow is handed out."""
        if seconds is None:
            self.everything_goes_on()
        else:
            self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.step += 1
        self.run(asyncio.sleep(seconds))
        self.step += 1

    def restart(self) -> None:
        """The application goes on at the last moment, closes its client, and begins again."""
        for reader in self.readers:
            reader.may_fail = True
            reader.go.set()
        self.run(asyncio.sleep(0.0))
        self.run(self.client.close())
        assert all(not reader.is_live for reader in self.readers)
        for stored in self.bus.messages.values():
            # What an earlier link received cannot be given back.
            if stored.event and stored.link == self.bus.link and self.now > self.calm_at + 5.0:
                assert stored.lock is None
                is_done = stored.event.id in self.asked and not self.losses[stored.event.id]
                assert not is_done or stored.event.id in self.stale
        self.calm_at = max(self.calm_at, self.now)
        self.ends.clear()
        self.asked.clear()
        self.client = self._new_client()

    def everything_goes_on(self) -> None:
        """All loops go on for a while: what they follow is handed out, and late ones are gone."""
        for reader in self.readers:
            reader.go.set()
        self.pass_time(40.0)
        live = [reader for reader in self.readers if reader.is_live]
        if live and self.now > self.calm_at + LOCK_S:
            for stored in self.bus.messages.values():
                event = stored.event
                assert event is not None, "it is no notification, and was not dead-lettered"
                assert not any(reader.follows(event) for reader in live), f"{event.id} still lies"
                assert not self.is_late(event), f"{event.id} is late, and still lies"

    # -- What holds always --------------------------------------------------------------------

    @invariant()
    def no_loop_gets_a_notification_twice(self) -> None:
        assert self.wrong == []
        for reader in self.readers:
            for event_id, times in Counter(event.id for event in reader.events).items():
                assert times <= 1 + self.losses[event_id], f"{event_id} came {times} times"

    @invariant()
    def a_loop_ends_only_with_its_orders(self) -> None:
        for reader in self.readers:
            if reader.error is not None:
                assert reader.may_fail, reader.error

    @invariant()
    def nothing_is_given_up(self) -> None:
        assert all(stored.event is None for stored in self.bus.dead)
        for stored in self.bus.messages.values():
            assert stored.delivery_count == stored.losses

    def teardown(self) -> None:
        """Nothing is lost: a last loop gets all that is left."""
        self.pass_time(40.0)
        self.restart()
        numbers = {stored.number for stored in self.bus.messages.values() if stored.event}
        self.follow(None)
        self.pass_time(40.0)
        assert {stored.number for stored in self.bus.completed} >= numbers
        assert len({event.id for event in self.readers[-1].events}) == len(numbers)
        self.run(self.client.close())
        self._patches.close()
        super().teardown()


TestClientLinks = sequences(ClientLinksMachine, examples=50, steps=40)
