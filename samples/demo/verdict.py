"""Check the result: compare the state store with the notifications and the services' ledgers.

The expected notifications come from the journal of every order, the expected effects from the
state of every step. Both are compared with the notifications that the applications got and with
the effects that the services recorded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from samples.demo.tally import Tally
from samples.services.ledger import LedgerView
from sas.domain.ids import idempotency_key, message_id
from sas.domain.messages import Alert, JournalEntry, Notify
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState
from sas.ports import StateStore

AT_ONCE = 16


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The figures of the last line of the demo."""

    orders: int
    states: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    notifications_expected: int = 0
    notifications_seen: int = 0
    missing: list[str] = field(default_factory=list)
    effects_expected: int = 0
    effects_in_force: int = 0
    effects_unknown: int = 0
    """Effects in force of steps that failed by a timeout. An operator has to check them."""
    wrong_effects: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing is unfinished, missing, doubled or wrong."""
        return not (self.unfinished or self.missing or self.doubled or self.wrong_effects)

    @property
    def settled(self) -> bool:
        """Whether it holds, and nothing is on its way any more."""
        all_notified = self.notifications_seen == self.notifications_expected
        effects_known = self.effects_in_force - self.effects_unknown
        return self.holds and all_notified and effects_known == self.effects_expected

    def last_line(self) -> str:
        """Return the figures in one line."""
        state = self.states
        effects_known = self.effects_in_force - self.effects_unknown
        unknown = f" unknown {self.effects_unknown}" if self.effects_unknown else ""
        return (
            f"orders in {self.orders} | processed {state['Processed']} | failed {state['Error']} | "
            f"undone {state['Compensated']} | unfinished {len(self.unfinished)} | "
            f"notifications expected {self.notifications_expected} "
            f"seen {self.notifications_seen} | "
            f"remote effects expected {self.effects_expected} in force {effects_known}{unknown} "
            f"doubled {len(self.doubled)}"
        )


async def judge(
    store: StateStore, order_ids: Iterable[str], tally: Tally, ledgers: Mapping[str, LedgerView]
) -> Verdict:
    """Return the verdict on every order, from the store and the ledgers."""
    ids = list(order_ids)
    verdict = Verdict(orders=len(ids), notifications_seen=len(tally.notification_ids))
    gate = asyncio.Semaphore(AT_ONCE)

    async def read(order_id: str) -> tuple[str, Order | None, list[JournalEntry]]:
        async with gate:
            order = await store.load(order_id)
            return order_id, order, await store.journal(order_id) if order else []

    in_force = _in_force(ledgers)
    for order_id, order, journal in await asyncio.gather(*map(read, ids)):
        if order is None:
            verdict.unfinished.append(order_id)
            continue
        _judge_order(verdict, order, journal=journal, tally=tally, in_force=in_force)
    verdict.effects_in_force = sum(in_force.values())
    verdict.doubled = sorted(
        {order_id for ledger in ledgers.values() for order_id in ledger["doubled"]}
    )
    return verdict


def _judge_order(
    verdict: Verdict,
    order: Order,
    *,
    journal: list[JournalEntry],
    tally: Tally,
    in_force: Mapping[str, int],
) -> None:
    state = order.process_state
    verdict.states[state.value] += 1
    verdict.transitions.update(entry.what for entry in journal)
    if state not in {OrderState.PROCESSED, OrderState.ERROR, OrderState.COMPENSATED}:
        verdict.unfinished.append(order.order_id)
    expected = ids_of(Notify, order.order_id, journal)
    verdict.notifications_expected += len(expected)
    verdict.missing += [own_id for own_id in expected if own_id not in tally.notification_ids]
    for step in order.steps:
        effects = in_force[idempotency_key(order.order_id, step.name, step.call.generation)]
        _judge_step(verdict, order.order_id, step, effects)


def ids_of(kind: type[Notify | Alert], order_id: str, journal: Iterable[JournalEntry]) -> list[str]:
    """Return the ids of the messages of one kind that the journal of an order recorded."""
    return [
        message_id(order_id, entry.seq, index)
        for entry in journal
        for index, message in enumerate(entry.messages)
        if isinstance(message, kind)
    ]


def _judge_step(verdict: Verdict, order_id: str, step: StepRecord, effects: int) -> None:
    """Compare the effects in force of one step with its state."""
    if step.process_state is StepState.PROCESSED:
        verdict.effects_expected += 1
    expected = {StepState.PROCESSED: 1, StepState.COMPENSATED: 0}.get(step.process_state)
    if step.process_state is StepState.ERROR and step.direction is Direction.DO:
        if step.error and step.error.code != "timed-out":
            expected = 0
        else:
            verdict.effects_unknown += effects
    if expected is not None and effects != expected:
        verdict.wrong_effects.append(f"{order_id} {step.name}: {effects}, not {expected}")


def _in_force(ledgers: Mapping[str, LedgerView]) -> Counter[str]:
    """Count the effects in force of each idempotency key over all services."""
    return Counter(
        effect["key"]
        for ledger in ledgers.values()
        for effect in ledger["effects"]
        if effect["undone_at"] is None
    )
