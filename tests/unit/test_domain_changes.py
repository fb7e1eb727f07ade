"""The change that commits a decision: seq, journal row, due rows, stopped_at, rejection."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sas.domain.change import (
    OUT_AGAIN_AFTER,
    Change,
    Decision,
    StepDue,
    Trigger,
    change_of,
    due_rows,
    fence,
    rejection,
)
from sas.domain.claim import claim
from sas.domain.command import can_undo, cancel, undo
from sas.domain.expire import expire, expire_deadline
from sas.domain.messages import JournalEntry, JournalWord, Notice, Notify, StepChange, Wake
from sas.domain.moves import IllegalMoveError
from sas.domain.order import Fault, Order, OrderState, StepState
from sas.domain.submit import submit
from sas.domain.workflow import SMOKE, STEPS_MAX, OnFailure, Step, Undo, Workflow
from tests.unit.domain_cases import T0, Story, details_of, story, submitted

LATER = T0 + timedelta(hours=1)


def commit(
    order: Order | None,
    decision: Decision,
    *,
    by: str = "s",
    cause: str | None = "q:1",
    reason: str = "",
    now: datetime = T0,
) -> Change:
    trigger = Trigger(by=by, cause=cause, reason=reason)
    return change_of(order, decision, trigger, commit_id="c1", now=now)


def claim_of(order: Story) -> Decision:
    decision = claim(order.order, order.rules, now=order.now, instance="s")
    assert decision is not None
    return decision


def test_the_first_change_writes_an_order_that_must_not_exist_yet() -> None:
    rules = story("two in a row").rules
    change = commit(None, submit(details_of(), rules), by="submission", cause="orders:1")
    assert change.before is None
    assert (change.after.seq, change.after.stopped_at, change.out_at) == (1, None, None)
    assert change.entry == JournalEntry(
        seq=1,
        at=T0,
        what=JournalWord.SUBMITTED,
        by="submission",
        commit_id="c1",
        cause="orders:1",
        messages=(Wake(), Notify(Notice.RECEIVED)),
    )
    assert change.due_added() == {
        StepDue(at=T0 + rules.pickup, order_id="order-1", step=0, epoch=0)
    }
    assert change.due_removed() == frozenset()


def test_the_next_change_is_guarded_by_what_was_loaded_and_journals_the_decision() -> None:
    order = story("one")
    order.order = replace(order.order, token="etag-1")
    decision = claim_of(order)
    change = commit(order.order, decision)
    assert change.before is order.order
    assert change.after.token == "etag-1"
    changes = (StepChange(step=0, before=StepState.PENDING, after=StepState.PROCESSING),)
    assert change.entry == JournalEntry(
        seq=2,
        at=T0,
        what=JournalWord.CLAIMED,
        by="s",
        commit_id="c1",
        cause="q:1",
        messages=decision.messages,
        changes=changes,
    )


def test_an_undo_keeps_who_decided_it_and_why_however_often_it_goes_on() -> None:
    order = story("one")
    order.claim()
    decision = undo(order.order, order.rules, now=order.now)
    assert decision is not None
    ann = "operator ann"
    after = commit(order.order, decision, by=ann, reason="the customer asked").after
    assert after.undone_because == "operator ann: the customer asked"
    out = claim(after, order.rules, now=order.now, instance="s")
    assert out is not None
    later = commit(after, out, cause="q:2").after
    assert later.undone_because == after.undone_because
    first = cancel(order.order, order.rules, now=order.now)
    assert first is not None
    cancelled = commit(order.order, first, by=ann).after
    second = undo(cancelled, order.rules, now=order.now)
    assert second is not None
    assert commit(cancelled, second, by="operator ben").after.undone_because == ann
    long = commit(order.order, decision, by=ann, reason="x" * 500).after
    assert len(long.undone_because or "") == 300


def test_an_order_that_is_undone_past_its_deadline_says_so() -> None:
    order = story("one", deadline=timedelta(hours=1), on_failure=OnFailure.UNDO)
    decision = expire_deadline(order.order, order.rules, now=LATER)
    assert decision is not None
    assert commit(order.order, decision).after.undone_because == "it was past its deadline"


def test_an_order_that_is_undone_because_a_step_failed_names_that_step() -> None:
    order = story("two beside each other", on_failure=OnFailure.UNDO)
    order.claim()
    order.refused("b", Fault("sold-out", "none is left"))
    assert order.order.undone_because == "b failed: “sold-out: none is left”"


def test_the_journal_shows_that_an_input_was_edited() -> None:
    order = story("one")
    order.claim()
    step = order.order.steps[0]
    edited = replace(step, call=replace(step.call, generation=1, edited="{}"))
    change = commit(
        order.order, Decision(what=JournalWord.RESUBMITTED, steps=(edited,), messages=())
    )
    state = step.process_state
    assert change.entry.changes == (StepChange(step=0, before=state, after=state, edited=True),)


def test_a_claim_moves_the_due_row_of_its_step() -> None:
    order = story("two in a row")
    change = commit(order.order, claim_of(order))
    assert change.due_removed() == {
        StepDue(at=T0 + timedelta(seconds=30), order_id="order-1", step=0, epoch=0)
    }
    assert change.due_added() == {
        StepDue(at=T0 + timedelta(seconds=60), order_id="order-1", step=0, epoch=1)
    }


def test_a_due_row_that_stays_is_neither_deleted_nor_written() -> None:
    order = story("two beside each other")
    order.claim()
    order.later(60)
    decision = expire(order.order, 0, 1, order.rules, now=order.now)
    assert decision is not None
    change = commit(order.order, decision)
    changed = change.due_removed() | change.due_added()
    assert {row.step for row in changed if isinstance(row, StepDue)} == {0}
    assert {row.step for row in due_rows(change.after) if isinstance(row, StepDue)} == {0, 1}


def test_there_are_no_due_rows_where_there_is_no_order() -> None:
    assert due_rows(None) == frozenset()


def test_an_out_row_is_written_with_messages_only() -> None:
    order = story("one")
    decision = claim_of(order)
    by_timer = commit(order.order, decision, cause=None)
    assert by_timer.out_at == T0 + OUT_AGAIN_AFTER
    assert commit(order.order, replace(decision, messages=()), cause=None).out_at is None
    assert commit(order.order, decision).out_at is None


def test_an_illegal_decision_is_not_turned_into_a_change() -> None:
    order = story("one")
    done = replace(order.order.steps[0], process_state=StepState.PROCESSED, epoch=1, turn=None)
    with pytest.raises(IllegalMoveError):
        commit(order.order, Decision(what=JournalWord.CLAIMED, steps=(done,), messages=()))


def test_settled_at_is_when_the_order_came_to_rest_and_stays_while_it_rests() -> None:
    order = story("two beside each other")
    order.claim()
    assert order.order.stopped_at is None
    order.later(5).refused("a")
    rest_time = order.now
    assert order.order.stopped_at == rest_time
    order.later(5).refused("b")
    assert order.order.stopped_at == rest_time
    order.later(5).resubmit()
    assert order.order.stopped_at is None


def test_settled_at_changes_when_another_final_state_follows() -> None:
    order = story("one", without_undo=frozenset("a"))
    order.claim()
    order.done("a")
    assert order.order.stopped_at == T0
    order.later(60).undo()
    assert order.order.stopped_at == order.now


def test_a_fence_remembers_a_cause_and_changes_nothing_else() -> None:
    order = story("one")
    order.claim()
    change = commit(order.order, fence(order.order), by="dead-letters", cause="q:9", now=LATER)
    assert replace(change.after, seq=order.order.seq) == order.order
    assert change.entry == JournalEntry(
        seq=3,
        at=LATER,
        what=JournalWord.FENCED,
        by="dead-letters",
        commit_id="c1",
        cause="q:9",
        messages=(),
    )
    assert not change.due_added() | change.due_removed()


def test_a_rejection_keeps_the_place_of_an_order_that_never_began() -> None:
    change = commit(None, rejection(details_of()), by="dead-letters", cause="orders:1")
    assert change.before is None
    assert change.after.process_state is OrderState.REJECTED
    assert (change.after.seq, change.after.stopped_at, change.after.steps) == (1, T0, ())
    assert change.entry.messages == ()
    assert not change.due_added()


def test_an_order_submitted_again_takes_the_place_of_a_rejected_one() -> None:
    rules = story("one").rules
    place = commit(None, rejection(details_of()), by="d", cause="orders:1").after
    decision = submit(replace(details_of(), submitted_at=LATER), rules)
    change = commit(place, decision, cause="orders:2")
    assert change.before is place
    assert change.after.process_state is OrderState.PENDING
    assert (change.after.seq, change.after.stopped_at) == (2, None)
    assert (change.entry.seq, change.entry.cause) == (2, "orders:2")
    assert len(change.due_added()) == 1


def test_no_order_takes_the_place_of_one_that_was_not_rejected() -> None:
    rules = story("one").rules
    decision = submit(details_of(), rules)
    for running in (submitted(rules).after, claimed_order()):
        with pytest.raises(IllegalMoveError, match="not Rejected"):
            commit(running, decision, cause="orders:2")


def test_an_order_that_is_not_stored_needs_the_details_of_a_new_one() -> None:
    decision = replace(submit(details_of(), story("one").rules), details=None)
    with pytest.raises(IllegalMoveError, match="no details of a new one"):
        commit(None, decision)


def test_a_fence_leaves_a_rejected_order_as_it_is() -> None:
    place = commit(None, rejection(details_of()), cause="orders:1").after
    assert commit(place, fence(place), now=LATER).after == replace(place, seq=2)


def claimed_order() -> Order:
    order = story("one")
    order.claim()
    return order.order


def test_the_largest_transition_of_thirty_parallel_steps_fits_one_transaction() -> None:
    steps = tuple(Step(f"s{n}", agent="agent", after=(), undo=Undo()) for n in range(STEPS_MAX))
    order = Story(workflow=Workflow("wide", version=1, steps=steps))
    sizes = []
    for act in (claim_of, undo_of):
        change = commit(order.later(1).order, act(order))
        rows = len(change.due_added()) + len(change.due_removed()) + STEPS_MAX
        # beside them: state, journal, cause, out, and attention or done (one out, one in)
        sizes.append(rows + 6)
        order.order = change.after
    assert max(sizes) <= 100


def undo_of(order: Story) -> Decision:
    decision = undo(order.order, order.rules, now=order.now)
    assert decision is not None
    return decision


def test_an_order_of_a_workflow_without_steps_is_completed_when_it_is_submitted() -> None:
    details = details_of()
    decision = submit(details, SMOKE.rules)
    assert decision.messages == (Notify(Notice.RECEIVED), Notify(Notice.COMPLETED))
    by = Trigger(by="a")
    rejected = change_of(None, rejection(details), by, commit_id="1", now=T0).after
    for before in (None, rejected):
        order = change_of(before, decision, by, commit_id="2", now=T0).after
        assert order.process_state is OrderState.PROCESSED
        assert order.stopped_at == details.submitted_at
        assert not can_undo(order), "there is nothing to undo"
