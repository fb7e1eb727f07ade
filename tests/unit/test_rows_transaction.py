"""A change as one transaction: what it writes, in what order, and how many operations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sas.adapters.tables import keys
from sas.adapters.tables.operations import Operation, operations
from sas.domain.change import Change, DeadlineDue, Trigger, change_of
from sas.domain.claim import claim
from sas.domain.messages import JournalEntry, JournalWord
from sas.domain.order import Details, Fault, Order, Ready, StepRecord, StepState
from sas.domain.submit import submit
from sas.domain.workflow import Rules, Step, Undo, Workflow
from tests.each import each

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DETAILS = Details(
    order_id="order-1",
    workflow="order",
    version=1,
    payload="{}",
    content_hash="hash",
    reply_queue="responses-a",
    correlation_id=None,
    submitted_at=NOW,
)


def rules_of(steps: int) -> Rules:
    defined_steps = tuple(
        Step(f"s-{n}", agent="inventory", after=(), undo=Undo()) for n in range(steps)
    )
    return Workflow("order", version=1, steps=defined_steps).rules


def submitted(rules: Rules) -> Change:
    trigger = Trigger(by="me", cause="orders:1")
    return change_of(None, submit(DETAILS, rules), trigger, commit_id="c1", now=NOW)


def changed(before: Order, after: Order, cause: str | None = "scheduler:1") -> Change:
    entry = JournalEntry(
        seq=before.seq + 1,
        at=NOW,
        what=JournalWord.CLAIMED,
        by="me",
        commit_id="c2",
        cause=cause,
        messages=(),
    )
    return Change(
        before=replace(before, token="etag"), after=replace(after, seq=before.seq + 1), entry=entry
    )


def verbs(batch: list[Operation]) -> list[tuple[str, str]]:
    return [
        (operation.verb, operation.row_key.removeprefix("order|order-1|")) for operation in batch
    ]


def test_a_first_change_creates_the_state_row_first() -> None:
    batch = operations(submitted(rules_of(1)))
    row_verbs = verbs(batch)
    assert row_verbs[0] == ("create", "a|state")
    assert row_verbs[1:4] == [
        ("upsert", "a|details"),
        ("upsert", "a|step|00"),
        ("create", "b|journal|0000000001"),
    ]
    assert row_verbs[4] == (
        "create",
        keys.cause("order-1", "orders:1").removeprefix("order|order-1|"),
    )
    assert [verb for verb, key in row_verbs[5:] if key.startswith("due|")] == ["upsert"]
    assert batch[3].row["CommitId"] == "c1"


def test_a_later_change_writes_changed_steps_only_under_the_loaded_etag() -> None:
    rules = rules_of(3)
    order = replace(submitted(rules).after, token="etag-7")
    steps = (order.steps[0], replace(order.steps[1], epoch=1), order.steps[2])
    batch = operations(changed(order, replace(order, steps=steps)))
    assert [key for _, key in verbs(batch) if key.startswith("a|")] == ["a|state", "a|step|01"]
    assert batch[0].verb == "update"
    assert batch[0].etag == "etag"


def test_a_change_that_leaves_a_step_due_as_it_was_touches_no_due_row() -> None:
    order = submitted(rules_of(2)).after
    batch = operations(changed(order, order))
    assert [key for _, key in verbs(batch)] == [
        "a|state",
        "b|journal|0000000002",
        keys.cause("order-1", "scheduler:1").removeprefix("order|order-1|"),
    ]


LARGE, SMALL = "x" * 20_000, "x"


@each(
    [
        (None, LARGE, [("upsert", "a|step|00"), ("upsert", "a|step|00|result")]),
        (LARGE, LARGE + "x", [("upsert", "a|step|00"), ("upsert", "a|step|00|result")]),
        (LARGE, SMALL, [("upsert", "a|step|00"), ("delete", "a|step|00|result")]),
        (LARGE, None, [("upsert", "a|step|00"), ("delete", "a|step|00|result")]),
        (SMALL, None, [("upsert", "a|step|00")]),
        (LARGE, LARGE, []),
    ]
)
def test_a_large_result_has_a_row_of_its_own_only_as_long_as_it_is_large(
    before: str | None, after: str | None, written: list[tuple[str, str]]
) -> None:
    order = submitted(rules_of(1)).after
    old = replace(order, steps=(replace(order.steps[0], result=before),))
    new = replace(order, steps=(replace(order.steps[0], result=after),))
    row_verbs = verbs(operations(changed(old, new)))
    assert [entry for entry in row_verbs if entry[1].startswith("a|step")] == written


def test_without_a_cause_there_is_no_cause_row() -> None:
    order = submitted(rules_of(1)).after
    assert not [key for _, key in verbs(operations(changed(order, order, None))) if "cause" in key]


def worst_change(steps: int) -> Change:
    """Every step changes, its due row moves and the deadline's too, a large result comes, the
    order leaves one list for the other, an out row is wanted.
    """
    failed = StepRecord(
        number=0,
        name="s-0",
        process_state=StepState.ERROR,
        since=NOW,
        epoch=1,
        error=Fault("code", "why"),
    )
    ready = StepRecord(
        number=0, name="s-0", process_state=StepState.PENDING, since=NOW, turn=Ready(NOW), epoch=1
    )
    others = [replace(ready, number=n, name=f"s-{n}") for n in range(1, steps)]
    old = (failed, *others)
    later = Ready(NOW + timedelta(1))
    new = tuple(replace(step, turn=later) for step in (ready, *others))
    new = (replace(new[0], result="x" * 20_000), *new[1:])
    before = Order(details=DETAILS, steps=old, seq=1, stopped_at=NOW, deadline=NOW)
    after = Order(
        details=DETAILS, steps=new, stopped_at=NOW + timedelta(1), deadline=NOW + timedelta(1)
    )
    return replace(changed(before, after), out_at=NOW)


def test_thirty_steps_that_all_change_need_ninety_eight_operations_on_as_many_rows() -> None:
    batch = operations(worst_change(30))
    assert len(batch) == 98
    assert len({operation.row_key for operation in batch}) == 98


def test_more_than_a_hundred_operations_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match=r"101 operations .* at most 100"):
        operations(worst_change(31))


def test_a_deadline_has_a_due_row_of_its_own_until_it_no_longer_matters() -> None:
    order = submitted(rules_of(1)).after
    with_deadline = replace(order, deadline=NOW + timedelta(days=1))
    row = keys.due(DeadlineDue(NOW + timedelta(days=1), "order-1"))
    assert ("upsert", row) in verbs(operations(changed(order, with_deadline)))
    assert ("delete", row) in verbs(operations(changed(with_deadline, order)))
    changes = verbs(operations(changed(with_deadline, with_deadline)))
    assert row not in [key for _, key in changes]


def test_an_order_that_was_never_loaded_cannot_be_changed() -> None:
    order = submitted(rules_of(1)).after
    decision = claim(order, rules_of(1), now=NOW, instance="one")
    assert decision is not None
    trigger = Trigger(by="me", cause="scheduler:1")
    change = change_of(order, decision, trigger, commit_id="c", now=NOW)
    with pytest.raises(ValueError, match="order-1 has no token"):
        operations(change)
