"""The verdict of the demo reports each kind of error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from samples.demo.tally import Tally
from samples.demo.verdict import Verdict, judge
from samples.services.ledger import EffectView, LedgerView
from sas.domain.change import Decision, Trigger, change_of
from sas.domain.claim import claim
from sas.domain.ids import idempotency_key, message_id
from sas.domain.messages import Notify, Outcome, Reply
from sas.domain.order import Details, Direction, Order
from sas.domain.reply import answer
from sas.domain.submit import submit
from sas.testing.store import MemoryStore
from tests.sample import WORKFLOWS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKFLOW = WORKFLOWS.find("order")
SEEDS = ("reserve-stock", "take-payment", "ship")


async def processed(store: MemoryStore, order_id: str, steps: int = 3) -> None:
    """Store an order whose first ``steps`` steps are done."""
    details = Details(
        order_id=order_id,
        workflow="order",
        version=1,
        payload="{}",
        content_hash="h",
        reply_queue="responses-x",
        correlation_id=None,
        submitted_at=NOW,
    )
    submission = submit(details, WORKFLOW.rules)
    trigger = Trigger(by="t", cause="orders:1")
    order = await store.commit(change_of(None, submission, trigger, commit_id="0", now=NOW))
    order = await _next(store, order, claim(order, WORKFLOW.rules, now=NOW, instance="i"), "c")
    for number in range(steps):
        reply = Reply(
            order_id=order_id,
            step=number,
            direction=Direction.DO,
            epoch=1,
            outcome=Outcome.DONE,
            result="{}",
        )
        done = answer(order, reply, WORKFLOW.rules, now=NOW, instance="i")
        order = await _next(store, order, done, f"r{number}")


async def _next(store: MemoryStore, order: Order, decision: Decision | None, cause: str) -> Order:
    assert decision is not None
    change = change_of(order, decision, Trigger(by="t", cause=cause), commit_id=cause, now=NOW)
    return await store.commit(change)


async def all_notified(store: MemoryStore, order_id: str) -> Tally:
    tally = Tally(orders=1)
    for entry in await store.journal(order_id):
        for index, message in enumerate(entry.messages):
            if isinstance(message, Notify):
                tally.notification_ids.add(message_id(order_id, entry.seq, index))
    return tally


def ledger(order_id: str, *steps: str, doubled: tuple[str, ...] = ()) -> dict[str, LedgerView]:
    effects: list[EffectView] = [
        {
            "order_id": order_id,
            "key": idempotency_key(order_id, step, 0),
            "number": f"N-{step}",
            "at": (NOW + timedelta(seconds=1)).isoformat(),
            "undone_at": None,
            "replays": 0,
        }
        for step in steps
    ]
    view: LedgerView = {
        "service": "stock",
        "effects": effects,
        "doubled": list(doubled),
        "calls": 3,
        "faults": {},
    }
    return {"stock": view}


async def verdict_of(
    *, steps: int = 3, effects: tuple[str, ...] = SEEDS, forget: int = 0, doubled: bool = False
) -> Verdict:
    store = MemoryStore()
    await processed(store, "O-1", steps)
    tally = await all_notified(store, "O-1")
    for notification_id in sorted(tally.notification_ids)[:forget]:
        tally.notification_ids.discard(notification_id)
    ledgers = ledger("O-1", *effects, doubled=("O-1",) if doubled else ())
    return await judge(store, ["O-1"], tally, ledgers)


async def test_an_order_with_every_effect_and_notification_holds() -> None:
    verdict = await verdict_of()
    assert verdict.holds
    assert (verdict.notifications_expected, verdict.effects_expected) == (2, 3)


async def test_a_run_with_something_missing_unfinished_or_doubled_fails() -> None:
    for verdict in (
        await verdict_of(forget=1),
        await verdict_of(steps=2),
        await verdict_of(effects=SEEDS[:2]),
        await verdict_of(doubled=True),
    ):
        assert not verdict.holds


async def test_an_order_that_was_never_stored_is_unfinished() -> None:
    verdict = await judge(MemoryStore(), ["O-1"], Tally(orders=1), ledger("O-1"))
    assert verdict.unfinished == ["O-1"]
    assert not verdict.holds
