"""The store port as a state machine: two instances, what each of them has seen, and a model.

The model is written from the docstrings of ``StateStore``. The decisions are the domain's own: the
model only says whether a change is written, and what a store then returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from sas.domain.change import Change, Decision, Due, OutDue, due_rows, fence
from sas.domain.claim import claim
from sas.domain.command import acknowledge, resubmit, undo
from sas.domain.content import PayloadRef, ref_of
from sas.domain.ids import shard_of
from sas.domain.messages import JournalEntry, Outcome, Reply
from sas.domain.moves import IllegalMoveError
from sas.domain.order import FINISHED, AttemptError, Direction, Fault, Order, OrderState, StepRecord
from sas.domain.reply import answer
from sas.ports import (
    ConflictError,
    HeldMessage,
    LostContentError,
    Message,
    SharedValue,
    StateStore,
    StoreUnavailableError,
)
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.simulation.machines.kit import AsyncMachine

SHARDS = 2
RULES = cases.rules_of(2)
IDS = ("order-1", "order-2", "order-4")  # two in one shard, one in the other
RESULTS = (None, '"small"', '"' + "x" * 20_000 + '"')
CAUSES = (None, "scheduler:a", "scheduler:b", "dead-letters:c")
FAR = NOW + 10**6 * SECOND


@dataclass(kw_only=True)
class KeptOrder:
    """What the model knows of one stored order."""

    order: Order
    version: int
    journal: list[JournalEntry] = field(default_factory=list)
    errors: dict[int, AttemptError] = field(default_factory=dict)


class StoreModel:
    """What a store has to hold. A version stands for a token."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptOrder] = {}
        self.outs: set[OutDue] = set()
        self.versions = 0

    def version(self, order_id: str) -> int:
        """Return the version of an order; 0 where there is none."""
        return self.kept[order_id].version if order_id in self.kept else 0

    def has(self, change: Change) -> bool:
        """Return whether this very change is written already."""
        entries = self.journal(change.after.order_id)
        return change.entry.commit_id in {entry.commit_id for entry in entries}

    def takes(self, change: Change, version: int | None) -> bool:
        """Return whether a change that was decided on a version of its order wins."""
        order_id, cause = change.after.order_id, change.entry.cause
        causes = {entry.cause for entry in self.journal(order_id)} - {None}
        return version == self.version(order_id) and cause not in causes

    def write(self, change: Change) -> None:
        order_id = change.after.order_id
        self.versions += 1
        record = self.kept.setdefault(order_id, KeptOrder(order=change.after, version=0))
        record.order, record.version = change.after, self.versions
        record.journal.append(change.entry)
        if change.out_at is not None:
            self.outs.add(OutDue(change.out_at, order_id, change.entry.seq))

    def journal(self, order_id: str) -> list[JournalEntry]:
        return self.kept[order_id].journal if order_id in self.kept else []


@dataclass(frozen=True)
class SeenOrder:
    """What an instance has seen of an order; ``version`` None: a token that matches nothing."""

    order: Order | None = None
    version: int | None = 0


def decisions(order: Order, now: datetime, result: str | None) -> Iterator[Decision]:
    """Yield all that may be decided about an order."""
    possible = [
        None if order.rejected else claim(order, RULES, now=now, instance="i"),
        *(
            answer(order, reply, RULES, now=now, instance="i")
            for step in order.steps
            for reply in replies(order, step, result)
        ),
        resubmit(order, RULES, now=now),
        undo(order, RULES, now=now),
        acknowledge(order, "ann"),
        fence(order),
    ]
    yield from filter(None, possible)


def replies(order: Order, step: StepRecord, result: str | None) -> Iterator[Reply]:
    """Yield the answers to what may be out of a step."""
    for outcome in (Outcome.DONE, Outcome.REFUSED):
        yield Reply(
            order_id=order.order_id,
            step=step.number,
            direction=step.direction,
            epoch=step.epoch,
            outcome=outcome,
            result=result if step.direction is Direction.DO else None,
            fault=None if outcome is Outcome.DONE else Fault("no", "there is none"),
        )


instances = st.sampled_from(["one", "two"])
order_ids = st.sampled_from((IDS[0], *IDS))  # one of them more often
cells = st.sampled_from(["breaker|a", "breaker|b"])


class StoreMachine(AsyncMachine):
    """Plays instances against a store. A subclass makes the store, and loses an answer of it."""

    compares_each_step = True

    def __init__(self) -> None:
        super().__init__()
        self.model = StoreModel()
        self.ticks = 0
        self.seen: dict[tuple[str, str], SeenOrder] = {}
        self.last: dict[str, tuple[Change, int | None]] = {}
        self.payloads: dict[str, dict[PayloadRef, bytes]] = {}
        self.held: dict[str, HeldMessage] = {}
        self.shared: dict[str, SharedValue[str]] = {}
        self.read: dict[tuple[str, str], str | None] = {}
        self.leases: dict[str, tuple[str, datetime]] = {}
        self.store: StateStore = self.run(self.connect())

    async def connect(self) -> StateStore:
        """Return an empty store of ``SHARDS`` shards."""
        raise NotImplementedError

    async def closed(self) -> None:
        """Close the store, at the end of a run."""
        await self.store.close()

    def lose_answer(self) -> None:
        """Lose the answer to the next commit, which is written if it would be."""
        raise NotImplementedError

    @property
    def now(self) -> datetime:
        return NOW + self.ticks * SECOND

    def tick(self) -> datetime:
        self.ticks += 1
        return self.now

    # Orders

    @rule(instance=instances, order_id=order_ids)
    def an_instance_loads(self, instance: str, order_id: str) -> None:
        order = self.run(self.store.load(order_id))
        self.seen[instance, order_id] = SeenOrder(order, self.model.version(order_id))

    @rule(
        instance=instances,
        order_id=order_ids,
        choices=st.lists(st.integers(0, 20), min_size=1, max_size=5),
        cause=st.sampled_from(CAUSES),
        loaded=st.booleans(),
        lost=st.sampled_from([False, False, False, True]),
    )
    def an_instance_works(
        self, *, instance: str, order_id: str, choices: list[int], cause: str | None,
        loaded: bool, lost: bool,
    ) -> None:  # fmt: skip
        """Decide about the order as this instance has seen it: just now, or long ago.

        The last of its commits has the cause, and its answer may be lost.
        """
        if loaded:
            self.an_instance_loads(instance, order_id)
        for place, choice in enumerate(reversed(choices)):
            is_last = place == len(choices) - 1
            change, version = self.decided(instance, order_id, choice, cause if is_last else None)
            self.last[instance] = (change, version)
            self.play(instance, change, version, lost=lost and is_last)

    def decided(
        self, instance: str, order_id: str, choice: int, cause: str | None
    ) -> tuple[Change, int | None]:
        """Return a change of an order as an instance has seen it, and the version of that."""
        now, view = self.tick(), self.seen.get((instance, order_id), SeenOrder())
        if view.order is None:
            return self.first(order_id, choice, cause), view.version
        if view.order.rejected and choice % 2:
            return cases.revived(view.order, RULES, at=now), view.version
        options = list(decisions(view.order, now, RESULTS[choice % 3]))
        return cases.changed(
            view.order, options[choice % len(options)], cause, at=now
        ), view.version

    def first(self, order_id: str, choice: int, cause: str | None) -> Change:
        """Return the first change of an order: mostly a submission, with or without a deadline."""
        if choice % 5 == 0:
            return cases.rejected(order_id, at=self.now)
        change = cases.submitted(order_id, RULES, cause=cause, at=self.now)
        return cases.with_deadline(change, self.now + 99 * SECOND) if choice % 2 else change

    @rule(instance=instances, lost=st.booleans())
    @precondition(lambda self: self.last)
    def an_instance_commits_the_same_again(self, instance: str, lost: bool) -> None:
        """Its answer was lost, or its message came again."""
        if instance in self.last:
            change, version = self.last[instance]
            self.play(instance, change, version, lost=lost)

    @rule(instance=instances, choice=st.integers(0, 20))
    def a_rival_overtakes_an_instance_that_then_commits_again(
        self, instance: str, choice: int
    ) -> None:
        rival = "two" if instance == "one" else "one"
        if instance in self.last:
            order_id = self.last[instance][0].after.order_id
            self.an_instance_loads(rival, order_id)
            change, version = self.decided(rival, order_id, choice, None)
            self.play(rival, change, version, lost=False)
            self.an_instance_commits_the_same_again(instance, lost=False)
            change, version = self.decided(instance, order_id, choice, None)
            self.play(instance, change, version, lost=False)  # what it was given guards nothing

    def play(self, instance: str, change: Change, version: int | None, *, lost: bool) -> None:
        order_id = change.after.order_id
        ours = self.model.has(change)
        written = not ours and self.model.takes(change, version)
        if lost:
            self.lose_answer()
        try:
            order = self.run(self.store.commit(change))
        except ConflictError:
            assert not ours, "our own write is taken for another's"
            assert not written, "a conflict without a rival"
            return
        except StoreUnavailableError:
            assert lost
            assert ours or written
            order = None
        assert ours or written, "a stale order or a recorded cause is committed"
        if written:
            self.model.write(change)
        if order is not None:
            record = self.model.kept[order_id]
            overtaken = record.order.seq != change.entry.seq
            assert order == change.after
            self.seen[instance, order_id] = SeenOrder(order, None if overtaken else record.version)

    @rule(instance=instances, order_id=order_ids)
    def three_commit_at_once(self, instance: str, order_id: str) -> None:
        view = self.seen.get((instance, order_id), SeenOrder())
        if view.order is None or not self.model.takes(self.raced(view.order), view.version):
            return
        changes = [self.raced(view.order) for _ in range(3)]
        outcomes = self.run(self.at_once(changes))
        assert sorted(outcomes) == [False, False, True], "of several commits one wins"
        self.model.write(changes[outcomes.index(True)])

    def raced(self, order: Order) -> Change:
        return cases.fenced(order, cases.fresh("race"))

    async def at_once(self, changes: list[Change]) -> list[bool]:
        async def wins(change: Change) -> bool:
            try:
                await self.store.commit(change)
            except ConflictError:
                return False
            return True

        return await asyncio.gather(*map(wins, changes))

    @rule(order_id=order_ids, number=st.integers(0, 1), text=st.sampled_from(["a", "ü 🛒\n"]))
    def an_agent_keeps_an_error(self, order_id: str, number: int, text: str) -> None:
        record = self.model.kept.get(order_id)
        if record is not None and record.order.rejected:
            return
        error = cases.attempt_error(text, at=self.tick())
        self.run(self.store.keep_error(order_id, number, error))
        if record is not None:
            record.errors[number] = error

    @rule(order_id=order_ids, size=st.sampled_from([1, 70_000]))
    def a_payload_is_kept(self, order_id: str, size: int) -> None:
        data = b"x" * size
        ref = self.run(self.store.put_payload(order_id, data))
        self.payloads.setdefault(order_id, {})[ref] = data

    @rule(instance=instances, order_id=order_ids)
    def a_finished_order_is_removed(self, instance: str, order_id: str) -> None:
        self.purged(instance, [order_id])

    @rule(instance=instances, touched_id=st.sampled_from((None, *IDS)))
    def finished_orders_are_removed_together(self, instance: str, touched_id: str | None) -> None:
        """One of them may be touched after the others were loaded."""
        for order_id in IDS:
            self.an_instance_loads(instance, order_id)
            if self.seen[instance, order_id].order is None:
                rejected = cases.rejected(order_id, at=self.tick())
                self.play(instance, rejected, 0, lost=False)
        touched = self.seen[instance, touched_id].order if touched_id else None
        if touched is not None:
            self.play("a third", cases.fenced(touched, cases.fresh("touched")),
                      self.model.version(touched.order_id), lost=False)  # fmt: skip
        self.purged(instance, IDS)

    def purged(self, instance: str, ids: Sequence[str]) -> None:
        orders: list[Order] = []
        current_ids: set[str] = set()
        for order_id in ids:
            view = self.seen.get((instance, order_id), SeenOrder())
            if view.order is None:
                continue
            if not view.order.rejected and view.order.process_state not in FINISHED:
                with pytest.raises(IllegalMoveError):
                    self.run(self.store.purge(view.order))
                continue
            orders.append(view.order)
            if view.version == self.model.version(order_id) != 0:
                current_ids.add(order_id)
        removed = self.run(self.store.purge(*orders))
        assert removed <= current_ids, "an order that changed is removed"
        if removed != current_ids:  # others of the call may be left with one that changed
            assert len(current_ids) < len(orders), "an order that did not change is left"
        for order_id in removed:
            del self.model.kept[order_id]
            self.payloads.pop(order_id, None)

    @rule(order_id=order_ids)
    def what_waited_to_be_sent_is_sent(self, order_id: str) -> None:
        outs = [out for out in self.model.outs if out.order_id == order_id]
        out = min(outs, key=lambda due: due.seq, default=OutDue(NOW, order_id, 99))
        self.run(self.store.remove_due(out))
        self.model.outs.discard(out)

    # Beside orders

    @rule(number=st.integers(0, 3), released=st.booleans())
    def a_message_is_held_or_released(self, number: int, released: bool) -> None:
        message = Message(f"responses-{number % 2}", f"m-{number}", b"{}")
        item = HeldMessage(message=message, since=NOW + (9 - number) * SECOND, order_id="o")
        self.run(self.store.release(item) if released else self.store.hold(item))
        self.held.pop(message.message_id, None)
        if not released:
            self.held[message.message_id] = item

    @rule(instance=instances, name=cells)
    def a_shared_value_is_read(self, instance: str, name: str) -> None:
        value = self.run(self.store.read_shared(name))
        assert value == self.shared.get(name)
        self.read[instance, name] = value.token if value else None

    @rule(instance=instances, name=cells)
    def a_shared_value_is_written(self, instance: str, name: str) -> None:
        token, there = self.read.get((instance, name)), self.shared.get(name)
        value = f"{self.tick()}"
        try:
            shared = self.run(self.store.write_shared(name, value, token))
        except ConflictError:
            assert token != (there.token if there else None)
            return
        assert token == (there.token if there else None)
        assert shared.value == value
        self.shared[name] = shared
        self.read[instance, name] = shared.token

    @rule(holder=instances, seconds=st.integers(0, 3))
    def a_lease_is_asked_for(self, holder: str, seconds: int) -> None:
        """Zero seconds give it back."""
        now = self.tick()
        has, until = self.leases.get("sweep", (holder, now))
        free = has == holder or until <= now
        until = now + seconds * SECOND
        assert self.run(self.store.acquire_lease("sweep", holder, until, now)) == free
        if free:
            self.leases["sweep"] = (holder, until)

    # What is there afterwards

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if self.compares_each_step:
            self.run(self.compared())

    async def compared(self) -> None:
        store = self.store
        for order_id in IDS:
            await self.compared_order(order_id)
        due: dict[str, set[Due]] = {shard: set() for shard in store.shards}
        for out in self.model.outs:  # it may outlive its order
            due[shard_of(out.order_id, SHARDS)].add(out)
        for order_id, record in self.model.kept.items():
            due[shard_of(order_id, SHARDS)] |= due_rows(record.order)
        for shard, expected in due.items():
            rows = await store.due(shard, FAR, 100)
            assert (set(rows), len(rows)) == (expected, len(expected))
            assert [row.at for row in rows] == sorted(row.at for row in rows)
        stopped = sorted(
            (record.order.stopped_at, order_id, record.order)
            for order_id, record in self.model.kept.items()
            if record.order.stopped_at is not None
        )
        for listed, in_error in (
            (await store.attention(9), True),
            (await store.finished(9), False),
        ):
            orders = [
                (at, order.order_id, order.process_state, order.acknowledged_by, order.fingerprints)
                for at, _, order in stopped
                if (order.process_state is OrderState.ERROR) is in_error
            ]
            assert orders == [
                (s.at, s.order_id, s.process_state, s.acknowledged_by, s.fingerprints)
                for s in listed
            ]
        for queue in ("responses-0", "responses-1"):
            items = [item for item in self.held.values() if item.message.queue == queue]
            items.sort(key=lambda item: item.since)
            assert await store.held(queue, 9) == items
            assert await store.held_count(queue, 9) == len(items)
        assert await store.shared_values("breaker|") == dict(sorted(self.shared.items()))

    async def compared_order(self, order_id: str) -> None:
        record, order = self.model.kept.get(order_id), await self.store.load(order_id)
        assert order == (record.order if record else None)
        journal = self.model.journal(order_id)
        assert await self.store.journal(order_id) == journal
        for cause in CAUSES[1:]:
            entry = next((entry for entry in journal if entry.cause == cause), None)
            assert await self.store.recorded(order_id, cause or "") == entry
        if order is not None and record is not None:
            errors = [record.errors.get(step.number) for step in order.steps]
            assert [step.last_error for step in order.steps] == errors
        for ref, data in self.payloads.get(order_id, {}).items():
            assert await self.store.get_payload(order_id, ref) == data
        if order_id not in self.payloads:
            try:
                await self.store.get_payload(order_id, ref_of(b"x"))
            except LostContentError:
                return
            raise AssertionError("a payload outlived its order")

    def teardown(self) -> None:
        self.run(self.compared())
        self.run(self.closed())
        super().teardown()
