"""What holds in every state an order can reach, and of every decision on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from sas.domain.change import DeadlineDue, StepDue, due_rows
from sas.domain.claim import claim, is_cancelled
from sas.domain.command import resubmit, undo
from sas.domain.expire import expire, postpone
from sas.domain.messages import AlertKind, Notice, Notify, Outcome, Request, Wake
from sas.domain.moves import ORDER_MOVES, STEP_MOVES
from sas.domain.order import (
    CLOCK_SKEW,
    FINISHED,
    Direction,
    Dispatched,
    Order,
    OrderState,
    StepRecord,
    StepState,
    UndoStatus,
)
from sas.domain.reply import answer, progressed
from sas.domain.workflow import OnFailure
from sas.features.callbacks.rules import CallbackResult, StepStatus, decide, status_of
from tests.simulation.domain_model_check import (
    BEHIND,
    DRAIN_TIME,
    FAULT,
    LATE,
    REPLIES,
    SOON,
    WAIT,
    WAITED,
    Case,
    Edge,
    Event,
    Graph,
    Key,
    all_after,
    explore,
    find_cycle,
    is_out,
    key_of,
    progress_of,
    reaching,
    reply_to,
    resting,
    whose_turn,
)
from tests.simulation.domain_scopes import SHORT, in_every_graph
from tests.unit.domain_cases import T0, details_of, due_at, expected_direction, submitted

PROGRESS = ("progress", "undo progress", "awaits", "undo awaits")
OPERATOR = frozenset({"resubmit", "undo", "skip", "cancel", "acknowledge"})
AT_REST = FINISHED | {OrderState.ERROR}


def frees(edge: Edge) -> bool:
    """Return whether the rest of a step is over."""
    return edge.event.name == "expire" and edge.before.steps[edge.event.step].resting


def first_violation(edges: list[Edge]) -> str | None:
    """Return the first of some decisions for a failing test to show."""
    return str(edges[0]) if edges else None


# Every state


@in_every_graph
def test_exactly_the_steps_whose_turn_it_is_have_complete_by_and_a_due_row(graph: Graph) -> None:
    for order in graph.states.values():
        turn = whose_turn(order, graph.case.shape_name) | resting(order)
        assert {s.number for s in order.steps if s.complete_by} == turn
        assert {row for row in due_rows(order) if isinstance(row, StepDue)} == {
            StepDue(at=T0, order_id="order-1", step=number, epoch=order.steps[number].epoch)
            for number in turn
        }


@in_every_graph
def test_locked_by_is_set_while_an_agent_may_be_at_work_and_never_else(graph: Graph) -> None:
    may_be_locked = {StepState.PROCESSING, StepState.COMPENSATING}
    for order in graph.states.values():
        for step in order.steps:
            if step.process_state is StepState.PROCESSING:
                assert step.locked_by == "scheduler"
            if step.process_state not in may_be_locked:
                assert step.locked_by is None


@in_every_graph
def test_no_step_goes_forward_once_undo_was_decided(graph: Graph) -> None:
    for order in graph.states.values():
        assert len({step.direction for step in order.steps}) == 1
        undoing = order.direction is Direction.UNDO
        forward = {StepState.PENDING, StepState.PROCESSING, StepState.PROCESSED}
        backward = {StepState.COMPENSATING, StepState.COMPENSATED}
        if undoing:  # what was out at a cancel is waited for, and then undone
            forward -= {StepState.PROCESSING}
        assert not {s.process_state for s in order.steps} & (forward if undoing else backward)


@in_every_graph
def test_the_order_is_in_the_state_that_its_steps_make(graph: Graph) -> None:
    for order in graph.states.values():
        states = {step.process_state for step in order.steps}
        if StepState.ERROR in states:
            expected = OrderState.ERROR
        elif order.direction is Direction.UNDO:
            undo_states = {
                frozenset({StepState.COMPENSATED}): OrderState.COMPENSATED,
                frozenset({StepState.PROCESSING}): OrderState.PROCESSING,
            }
            expected = undo_states.get(frozenset(states), OrderState.COMPENSATING)
        elif states == {StepState.PROCESSED}:
            expected = OrderState.PROCESSED
        elif states == {StepState.PENDING}:
            expected = OrderState.PENDING
        else:
            expected = OrderState.PROCESSING
        assert order.process_state is expected


@in_every_graph
def test_only_a_step_that_names_an_undo_and_was_dispatched_is_ever_compensating(
    graph: Graph,
) -> None:
    for order in graph.states.values():
        for step in order.steps:
            if step.process_state is StepState.COMPENSATING:
                assert step.name not in graph.case.without_undo
                assert step.epoch > 0


@in_every_graph
def test_no_step_fails_that_was_never_dispatched(graph: Graph) -> None:
    for order in graph.states.values():
        for step in order.steps:
            if step.process_state is StepState.ERROR or step.failure_count:
                assert step.epoch > 0


@in_every_graph
def test_failure_count_is_bounded_and_starts_again_at_success(graph: Graph) -> None:
    for order in graph.states.values():
        for step in order.steps:
            limit = (
                graph.case.failures_max + graph.case.waits + (step.process_state is StepState.ERROR)
            )
            assert step.failure_count <= limit
            if step.process_state in {StepState.PROCESSED, StepState.COMPENSATED}:
                assert step.failure_count == 0


@in_every_graph
def test_a_step_out_of_time_is_tried_again_until_it_failed_failures_max_times_and_waited(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        if edge.event.name != "expire" or not is_out(edge.before.steps[edge.event.step]):
            continue
        old = edge.before.steps[edge.event.step]
        new = edge.after.steps[edge.event.step]
        doing = old.process_state is StepState.PROCESSING
        if doing and old.direction is Direction.UNDO:
            continue  # cancelled: not tried again
        again = StepState.PENDING if doing else old.process_state
        retried = new.process_state is again and new.direction is old.direction
        below = old.failure_count < graph.case.failures_max
        if doing and old.awaits_callback:
            assert new.process_state is not StepState.PENDING, str(edge)
            continue  # whoever was asked had the whole time
        waits = not below and old.failures.extended_waits < graph.case.waits
        assert retried == (below or waits), str(edge)
        assert not retried or new.failure_count == old.failure_count + 1
        assert not retried or new.failures.extended_waits == old.failures.extended_waits + waits
        assert not retried or new.resting == (waits or graph.case.backoff), str(edge)
        assert edge.reports(AlertKind.WAITING) == waits


@in_every_graph
def test_a_step_that_could_not_be_begun_counts_no_failure_and_rests_until_its_time_is_over(
    graph: Graph,
) -> None:
    edges = [edge for edge in graph.edges if edge.event.name in WAITED]
    assert bool(edges) == graph.case.waited
    for edge in edges:
        old, new = edge.before.steps[edge.event.step], edge.after.steps[edge.event.step]
        if old.process_state is StepState.PROCESSING and old.direction is Direction.UNDO:
            continue  # cancelled: it is turned
        doing = old.process_state is StepState.PROCESSING
        assert (new.failure_count, new.failures.extended_waits) == (
            old.failure_count,
            old.failures.extended_waits,
        )
        assert new.process_state is (StepState.PENDING if doing else old.process_state)
        assert (new.resting, new.locked_by, new.complete_by) == (True, None, old.complete_by)
        assert not edge.change.entry.messages


@in_every_graph
def test_a_step_whose_message_waits_in_a_queue_counts_no_failure_and_is_not_requested_again(
    graph: Graph,
) -> None:
    edges = [edge for edge in graph.edges if edge.event.name == BEHIND]
    assert bool(edges) == graph.case.waited
    for edge in edges:
        old, new = edge.before.steps[edge.event.step], edge.after.steps[edge.event.step]
        if old.process_state is StepState.PROCESSING and old.direction is Direction.UNDO:
            continue  # cancelled: it is turned
        assert (new.process_state, new.failures) == (old.process_state, old.failures)
        assert (new.locked_by, new.epoch) == (old.locked_by, old.epoch)
        assert edge.change.entry.messages == ()


@in_every_graph
def test_extended_waits_are_bounded_and_forgotten_at_success(graph: Graph) -> None:
    for order in graph.states.values():
        for step in order.steps:
            assert step.failures.extended_waits <= graph.case.waits
            if step.process_state is StepState.PROCESSED:
                assert step.failures.extended_waits == 0


@in_every_graph
def test_a_resting_step_has_a_time_at_which_its_due_row_brings_it_back(graph: Graph) -> None:
    freed = {
        (edge.source, edge.event.step)
        for edge in graph.edges
        if edge.event.name == "expire" and not edge.after.steps[edge.event.step].resting
    }
    for key, order in graph.states.items():
        for number in resting(order):
            assert order.steps[number].complete_by is not None
            assert order.steps[number].locked_by is None
            assert (key, number) in freed


@in_every_graph
def test_no_resting_step_is_dispatched_in_the_direction_that_it_rests_from(graph: Graph) -> None:
    for edge in graph.edges:
        requests = {(request.step, request.direction) for request in edge.sent(Request)}
        rests = {
            (n, rests_from(edge.before.steps[n]))
            for n in resting(edge.before)
            if edge.after.steps[n].resting or edge.after.direction is edge.before.direction
        }
        assert not requests & rests, str(edge)


def rests_from(step: StepRecord) -> Direction:
    """Return what a resting step waits for: its next do, or an undo."""
    return Direction.DO if step.process_state is StepState.PENDING else Direction.UNDO


@in_every_graph
def test_only_an_undo_or_a_retry_rests_and_only_by_the_workflow(
    graph: Graph,
) -> None:
    case = graph.case
    for order in graph.states.values():
        for number in resting(order):
            step = order.steps[number]
            failed = step.failure_count > 0 or (case.waited and step.epoch > 0)
            doing = step.process_state is StepState.PENDING and failed
            undoing = step.process_state is StepState.COMPENSATING
            assert doing or undoing
            assert case.backoff or case.waits or case.waited or (undoing and case.drain_time)


@in_every_graph
def test_an_undo_soon_after_its_do_waits_for_the_drain_time_and_a_day_later_it_does_not(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            turned = (
                new.process_state is StepState.COMPENSATING
                and old.process_state not in {StepState.COMPENSATING, StepState.ERROR}
            ) or (old.direction is Direction.DO and new.process_state is StepState.COMPENSATING)
            if turned:
                soon = edge.event.at < T0 + CLOCK_SKEW + DRAIN_TIME
                assert new.resting == (graph.case.drain_time and soon), str(edge)


@in_every_graph
def test_settled_at_is_noted_while_the_order_is_finished_or_in_error(graph: Graph) -> None:
    for order in graph.states.values():
        assert (order.stopped_at is not None) == (order.process_state in AT_REST)


@in_every_graph
def test_an_order_not_at_rest_has_a_due_row_whatever_message_is_lost(graph: Graph) -> None:
    for order in graph.states.values():
        if order.process_state not in AT_REST:
            assert due_rows(order), [step.process_state.value for step in order.steps]
        if order.process_state in FINISHED:
            assert not due_rows(order)


# Every decision


@in_every_graph
def test_no_decision_breaks_the_law_of_moves(graph: Graph) -> None:
    assert graph.illegal == []


@in_every_graph
def test_every_decision_has_the_next_seq_and_is_journalled_under_it(graph: Graph) -> None:
    for edge in graph.edges:
        assert edge.after.seq == edge.before.seq + 1 == edge.change.entry.seq


@in_every_graph
def test_due_rows_deleted_and_written_never_share_a_key_and_make_the_new_set(graph: Graph) -> None:
    for edge in graph.edges:
        added, removed = edge.change.due_added(), edge.change.due_removed()
        old, new = due_rows(edge.before), due_rows(edge.after)
        assert not added & removed
        assert removed <= old
        assert not added & old
        assert (old - removed) | added == new


@in_every_graph
def test_every_request_is_for_a_step_locked_by_it_with_the_next_epoch(graph: Graph) -> None:
    for edge in graph.edges:
        locked = [
            Request(
                step=new.number,
                direction=expected_direction(new),
                epoch=old.epoch + 1,
                generation=new.call.generation,
                complete_by=new.complete_by,
            )
            for old, new in edge.pairs()
            if new.locked_by is not None and (old.locked_by is None or new.epoch != old.epoch)
            if new.complete_by is not None
        ]
        assert sorted(edge.sent(Request), key=lambda r: r.step) == locked, str(edge)


@in_every_graph
def test_an_epoch_rises_with_a_request_and_never_else(graph: Graph) -> None:
    for edge in graph.edges:
        step_numbers = {request.step for request in edge.sent(Request)}
        for old, new in edge.pairs():
            assert new.epoch == old.epoch + (new.number in step_numbers), str(edge)


@in_every_graph
def test_complete_by_of_what_is_written_lies_in_the_future(graph: Graph) -> None:
    for edge in graph.edges:
        assert all(row.at > edge.event.at for row in edge.change.due_added()), str(edge)


@in_every_graph
def test_no_step_is_begun_while_another_is_in_error(graph: Graph) -> None:
    for edge in graph.edges:
        begun = [r for r in edge.sent(Request) if r.direction is Direction.DO]
        if begun:
            assert OrderState.ERROR not in {
                edge.before.process_state,
                edge.after.process_state,
            }, str(edge)


@in_every_graph
def test_a_step_is_begun_when_all_before_it_are_processed(graph: Graph) -> None:
    for edge in graph.edges:
        state = {step.name: step.process_state for step in edge.after.steps}
        for request in edge.sent(Request):
            if request.direction is Direction.DO:
                name = edge.after.steps[request.step].name
                assert {state[n] for n in graph.case.shape[name]} <= {StepState.PROCESSED}


@in_every_graph
def test_no_undo_starts_before_everything_after_it_is_compensated(graph: Graph) -> None:
    for edge in graph.edges:
        state = {step.name: step.process_state for step in edge.after.steps}
        for request in edge.sent(Request):
            if request.direction is Direction.UNDO:
                name = edge.after.steps[request.step].name
                later = all_after(graph.case.shape_name)[name]
                assert {state[n] for n in later} <= {StepState.COMPENSATED}, str(edge)


@in_every_graph
def test_a_step_whose_turn_has_come_is_asked_for_or_a_scheduler_is_woken(graph: Graph) -> None:
    for edge in graph.edges:
        old, new = (
            {n for n in whose_turn(order, graph.case.shape_name) if not is_out(order.steps[n])}
            for order in (edge.before, edge.after)
        )
        if new - old:
            assert edge.sent(Wake), str(edge)


@in_every_graph
def test_the_expiry_of_a_step_that_no_scheduler_claimed_wakes_a_scheduler(graph: Graph) -> None:
    woken = [e for e in graph.edges if e.event.name == "expire" and e.source == e.to]
    assert woken
    assert first_violation([e for e in woken if not e.sent(Wake)]) is None


@in_every_graph
def test_internal_messages_are_sent_before_notifications_and_alerts(graph: Graph) -> None:
    for edge in graph.edges:
        kinds = [isinstance(m, Wake | Request) for m in edge.change.entry.messages]
        assert kinds == sorted(kinds, reverse=True), str(edge)


@in_every_graph
def test_an_order_is_received_when_it_is_submitted_and_never_again(graph: Graph) -> None:
    assert not [e for e in graph.edges if e.notified(Notice.RECEIVED)]
    first = submitted(graph.rules).entry.messages
    assert first == (Wake(), Notify(Notice.RECEIVED))


@in_every_graph
def test_the_application_is_notified_of_the_end_exactly_when_it_comes(graph: Graph) -> None:
    ends = {Notice.COMPLETED: OrderState.PROCESSED, Notice.UNDONE: OrderState.COMPENSATED}
    for edge in graph.edges:
        for notice, end in ends.items():
            came = edge.after.process_state is end is not edge.before.process_state
            assert edge.notified(notice) == [None] * came, str(edge)


@in_every_graph
def test_the_application_is_notified_of_each_step_that_was_processed(graph: Graph) -> None:
    for edge in graph.edges:
        processed = [
            new.number
            for old, new in edge.pairs()
            if new.process_state is StepState.PROCESSED is not old.process_state
            and edge.event.name not in OPERATOR  # the operator's word, not the service's
        ]
        assert edge.notified(Notice.STEP_COMPLETED) == processed, str(edge)


@in_every_graph
def test_the_application_is_notified_of_each_step_that_failed_for_good(graph: Graph) -> None:
    goes_on = {StepState.PENDING, StepState.PROCESSED}
    for edge in graph.edges:
        failed = [
            (old.number, edge.after.direction is not edge.before.direction)
            for old, new in edge.pairs()
            if old.number == edge.event.step
            and old.process_state is not new.process_state
            and (
                new.process_state is StepState.ERROR
                or (
                    old.process_state is StepState.PROCESSING
                    and old.direction is Direction.DO  # else it was cancelled
                    and new.process_state not in goes_on
                )
            )
        ]
        if edge.event.name == "deadline" and graph.case.on_failure is OnFailure.UNDO:
            failed = [(-1, True)]
        notices = [
            (-1 if m.step is None else m.step, m.undoing)
            for m in edge.sent(Notify)
            if m.notice is Notice.FAILED
        ]
        assert notices == failed, str(edge)


@in_every_graph
def test_an_order_whose_workflow_is_not_known_here_is_looked_at_later_and_not_changed(
    graph: Graph,
) -> None:
    for order in graph.states.values():
        for step in order.steps:
            decision = postpone(order, step.number, "why", now=SOON)
            assert (decision is not None) == (step.complete_by is not None)
            if decision is not None:
                after = decision.steps[step.number]
                assert after.complete_by is not None
                assert after.complete_by > SOON
                assert due_at(after, step.complete_by or SOON) == step


@in_every_graph
def test_the_operator_is_alerted_of_every_step_that_comes_to_rest_in_error(graph: Graph) -> None:
    for edge in graph.edges:
        for undoing, kind in ((False, AlertKind.STEP_FAILED), (True, AlertKind.UNDO_FAILED)):
            stuck = [
                new.number
                for old, new in edge.pairs()
                if new.process_state is StepState.ERROR is not old.process_state
                and (old.process_state is not StepState.PROCESSING) is undoing
            ]
            assert edge.alerted(kind) == stuck, str(edge)


@in_every_graph
def test_no_order_of_the_undo_policy_rests_in_error_for_a_step_that_can_be_undone(
    graph: Graph,
) -> None:
    if graph.case.on_failure is OnFailure.HOLD:
        assert any(order.process_state is OrderState.ERROR for order in graph.states.values())
        return
    for order in graph.states.values():
        for step in order.steps:
            if step.process_state is StepState.ERROR:
                assert step.undo_failed
                assert order.direction is Direction.UNDO


@in_every_graph
def test_an_unclaimed_step_is_alerted_by_its_age_and_by_nothing_else(graph: Graph) -> None:
    for edge in graph.edges:
        unclaimed = edge.event.name == "expire" and edge.source == edge.to
        late = unclaimed and edge.event.at == LATE
        assert edge.reports(AlertKind.NOT_PICKED_UP) == late, str(edge)


@in_every_graph
def test_an_out_row_is_asked_for_with_every_decision_that_sends(graph: Graph) -> None:
    for edge in graph.edges:
        assert (edge.change.out_at is None) == (not edge.change.entry.messages)


# Nothing follows


@in_every_graph
def test_a_reply_of_another_epoch_changes_nothing(graph: Graph) -> None:
    for order in graph.states.values():
        for step, name, off in product(order.steps, REPLIES, (-1, 1)):
            reply = reply_to(order, step.number, name, epoch_off=off)
            assert answer(order, reply, graph.rules, now=SOON, instance="s") is None


@in_every_graph
def test_a_reply_to_a_step_that_is_not_out_that_way_changes_nothing(graph: Graph) -> None:
    answered = {(e.source, e.event.step, e.event.name) for e in graph.edges}
    for key, order in graph.states.items():
        for step in order.steps:
            for name in REPLIES:
                direction = Direction.UNDO if name.startswith("undo") else Direction.DO
                awaited = is_out(step) and expected_direction(step) is direction
                assert ((key, step.number, name) in answered) == awaited


@in_every_graph
def test_the_same_reply_a_second_time_changes_nothing(graph: Graph) -> None:
    again = [e for e in graph.edges if e.event.name in REPLIES]
    assert again
    for edge in again:
        reply = reply_to(edge.before, edge.event.step, edge.event.name)
        assert answer(edge.after, reply, graph.rules, now=SOON, instance="s") is None


@in_every_graph
def test_a_second_wake_claims_nothing_more(graph: Graph) -> None:
    claims = [e for e in graph.edges if e.event.name == "claim"]
    assert claims
    for edge in claims:
        assert claim(edge.after, graph.rules, now=SOON, instance="other") is None


@in_every_graph
def test_a_scheduler_claims_exactly_when_a_step_is_ready_and_unlocked(graph: Graph) -> None:
    claimed = {e.source: {r.step for r in e.sent(Request)} for e in graph.edges if _is_claim(e)}
    for key, order in graph.states.items():
        turn = whose_turn(order, graph.case.shape_name)
        assert claimed.get(key, set()) == {n for n in turn if not is_out(order.steps[n])}


def _is_claim(edge: Edge) -> bool:
    return edge.event.name == "claim"


@in_every_graph
def test_no_step_expires_before_its_time_or_for_another_dispatch(graph: Graph) -> None:
    for order in graph.states.values():
        for step in order.steps:
            for epoch in (step.epoch - 1, step.epoch + 1):
                assert expire(order, step.number, epoch, graph.rules, now=LATE) is None
            early = due_at(step, LATE)
            steps = tuple(early if s is step else s for s in order.steps)
            waiting = replace(order, steps=steps)
            assert expire(waiting, step.number, step.epoch, graph.rules, now=SOON) is None


@in_every_graph
def test_the_supervisor_decides_on_every_due_row_so_that_each_is_removed(
    graph: Graph,
) -> None:
    expired = {(e.source, e.event.step) for e in graph.edges if e.event.name == "expire"}
    late = {e.source for e in graph.edges if e.event.name == "deadline"}
    rows = [(key, row) for key, order in graph.states.items() for row in due_rows(order)]
    assert expired == {(key, row.step) for key, row in rows if isinstance(row, StepDue)}
    assert late == {key for key, row in rows if isinstance(row, DeadlineDue)}


@in_every_graph
def test_undo_is_decided_once_and_from_any_state_before(graph: Graph) -> None:
    undone = {e.source for e in graph.edges if e.event.name == "undo"}
    for key, order in graph.states.items():
        out = any(s.process_state is StepState.PROCESSING for s in order.steps)
        assert (key in undone) == (order.direction is Direction.DO or out)


@in_every_graph
def test_an_order_is_resubmitted_from_error_and_from_nothing_else(graph: Graph) -> None:
    again = [edge for edge in graph.edges if edge.event.name == "resubmit"]
    failed = {k for k, order in graph.states.items() if order.process_state is OrderState.ERROR}
    assert {edge.source for edge in again} == failed
    for edge in again:
        for old, new in edge.pairs():
            is_target = edge.event.step in {-1, old.number}
            if old.process_state is StepState.ERROR and is_target:
                assert (new.failure_count, new.direction) == (0, old.direction)
                assert new.process_state is not StepState.ERROR
            else:
                assert new.process_state is old.process_state


# Steps that go on


@in_every_graph
def test_progress_counts_for_the_dispatch_that_is_out_and_ends_a_cancelled_step_that_would_wait(
    graph: Graph,
) -> None:
    reports = {(e.source, e.event) for e in graph.edges if e.event.name in PROGRESS}
    for key, order in graph.states.items():
        for step, name in product(order.steps, PROGRESS):
            event = Event(name=name, step=step.number)
            undoing = name.startswith("undo")
            doing = step.process_state is StepState.PROCESSING
            out = is_out(step) and doing is not undoing
            cancelled = not undoing and step.direction is Direction.UNDO
            assert ((key, event) in reports) == (out and (not cancelled or name == "awaits"))
            for off in (-1, 1):
                stale = progress_of(order, event, epoch_off=off)
                decision = progressed(order, stale, graph.rules, now=SOON, instance="s")
                assert decision is None


@in_every_graph
def test_progress_moves_one_steps_complete_by_on_and_sends_nothing(graph: Graph) -> None:
    for edge in graph.edges:
        if edge.event.name not in PROGRESS or is_cancelled(edge.before.steps[edge.event.step]):
            continue
        assert edge.change.entry.messages == ()
        for old, new in edge.pairs():
            if old.number != edge.event.step:
                assert new == old
                continue
            until = SOON + WAIT
            awaits = edge.event.name.endswith("awaits")
            may_call = old.process_state is StepState.PROCESSING and not awaits
            called = until if may_call else old.call.called_until
            expected = replace(due_at(old, until), call=replace(old.call, called_until=called))
            assert isinstance(expected.turn, Dispatched)
            expected = replace(expected, turn=replace(expected.turn, awaits=awaits))
            assert new == expected, str(edge)


@in_every_graph
def test_no_step_of_a_cancelled_order_waits_for_a_callback_to_do_it(graph: Graph) -> None:
    for edge in graph.edges:
        assert not any(is_cancelled(s) and s.awaits_callback for s in edge.after.steps), str(edge)
        for old, new in edge.pairs():
            if edge.event.name == "cancel" and old.awaits_callback:
                assert new.undo in {UndoStatus.UNDOING, UndoStatus.NOT_NEEDED}, str(edge)


@in_every_graph
def test_the_progress_note_is_cleared_when_a_step_is_no_longer_out(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            same_dispatch = is_out(old) and is_out(new) and old.epoch == new.epoch
            assert new.note == (old.note if same_dispatch else None), str(edge)


# Callbacks


CALLED_BACK = ("done", "refused", "undone", "undo refused")


def returned_as(step: StepRecord, name: str, generation: int) -> CallbackResult:
    direction = Direction.UNDO if name.startswith("undo") else Direction.DO
    outcome = Outcome.REFUSED if name.endswith("refused") else Outcome.DONE
    fault = FAULT if outcome is Outcome.REFUSED else None
    return CallbackResult(
        order_id="order-1",
        step=step.number,
        direction=direction,
        generation=generation,
        outcome=outcome,
        result=None,
        fault=fault,
    )


def every_callback(graph: Graph) -> Iterator[tuple[Order, StepRecord, str, CallbackResult]]:
    for order in graph.states.values():
        for step, name in product(order.steps, CALLED_BACK):
            yield order, step, name, returned_as(step, name, step.call.generation)


@in_every_graph
def test_a_callback_counts_as_the_reply_to_whichever_dispatch_is_out(graph: Graph) -> None:
    for order, step, name, callback in every_callback(graph):
        out = is_out(step) and expected_direction(step) is callback.direction
        decided = decide(order, callback, graph.rules, now=SOON, instance="scheduler")
        assert (status_of(order, callback) is StepStatus.OUT) == out
        assert (decided is not None) == out
        if out:
            reply = reply_to(order, step.number, name)
            assert decided == answer(order, reply, graph.rules, now=SOON, instance="scheduler")


@in_every_graph
def test_a_callback_waits_only_where_its_step_may_be_out_again(graph: Graph) -> None:
    if len(graph.states) > 300:  # the smaller ones show it as well
        return
    sends = {
        (edge.source, request.step, request.direction)
        for edge in graph.edges
        for request in edge.sent(Request)
    }
    onward = graph.successors(lambda edge: edge.event.name != "undo")
    sources: dict[tuple[int, Direction], set[Key]] = {}
    for order, _, _, callback in every_callback(graph):
        if status_of(order, callback) is StepStatus.WAITS:
            key = (callback.step, callback.direction)
            goals = {state for state, *dispatch in sends if tuple(dispatch) == key}
            if key not in sources:
                sources[key] = reaching(onward, goals)
            assert key_of(order) in sources[key]


@in_every_graph
def test_a_callback_after_the_end_of_its_step_is_reported_and_one_during_its_undo_is_too_late(
    graph: Graph,
) -> None:
    for order, step, _, callback in every_callback(graph):
        status = status_of(order, callback)
        state = step.process_state
        if not step.epoch:
            assert status is StepStatus.CLOSED
        elif callback.direction is Direction.DO:
            if state is StepState.PROCESSED:
                assert status is StepStatus.ALREADY
            if state in {StepState.COMPENSATING, StepState.COMPENSATED}:
                assert status is StepStatus.CLOSED
        elif state is StepState.COMPENSATED:
            assert status is StepStatus.ALREADY
        elif state in {StepState.PENDING, StepState.PROCESSING}:
            assert status is StepStatus.CLOSED


@in_every_graph
def test_a_callback_of_another_generation_than_there_is_changes_nothing(graph: Graph) -> None:
    for order, step, name, _ in every_callback(graph):
        for generation in (step.call.generation - 1, step.call.generation + 1):
            other = returned_as(step, name, generation)
            assert status_of(order, other) is StepStatus.CLOSED


# Every order ends


@in_every_graph
def test_without_faults_every_order_ends_from_wherever_it_is(graph: Graph) -> None:
    good = {"claim", "done", "undone"}
    onward = graph.successors(lambda edge: edge.event.name in good or frees(edge))
    assert find_cycle(onward) is None
    ends = {key for key, targets in onward.items() if not targets}
    for key in ends:
        order = graph.states[key]
        assert order.process_state in AT_REST
        assert not any(is_out(step) for step in order.steps)


@in_every_graph
def test_without_an_operator_no_order_goes_round_in_circles(graph: Graph) -> None:
    circles = {*OPERATOR, *WAITED, BEHIND, "progress", "undo progress"}  # an agent's own choice
    onward = graph.successors(lambda edge: edge.event.name not in circles)
    assert find_cycle(onward) is None
    ends = {key for key, targets in onward.items() if not targets}
    assert {graph.states[key].process_state for key in ends} <= AT_REST


@in_every_graph
def test_with_time_alone_every_order_gets_to_rest(graph: Graph) -> None:
    onward = graph.successors(lambda edge: edge.event.name in {"expire", "claim", "deadline"})
    assert find_cycle(onward) is None
    ends = {key for key, targets in onward.items() if not targets}
    assert {graph.states[key].process_state for key in ends} <= AT_REST


@in_every_graph
def test_an_operator_can_bring_every_order_to_compensated(graph: Graph) -> None:
    onward = graph.successors(lambda edge: True)
    ends = {k for k, o in graph.states.items() if o.process_state is OrderState.COMPENSATED}
    assert reaching(onward, ends) == set(graph.states)


@in_every_graph
def test_an_operator_can_bring_every_order_to_processed_until_undo_is_decided(graph: Graph) -> None:
    good = {"claim", "done", "undone", "resubmit"}
    onward = graph.successors(lambda edge: edge.event.name in good or frees(edge))
    ends = {k for k, o in graph.states.items() if o.process_state is OrderState.PROCESSED}
    forward = {k for k, o in graph.states.items() if o.direction is Direction.DO}
    assert reaching(onward, ends) == forward


# The operator's hand, and the deadline


@in_every_graph
def test_a_cancelled_order_starts_no_new_step(graph: Graph) -> None:
    for edge in graph.edges:
        if edge.after.direction is Direction.UNDO:
            assert Direction.DO not in {request.direction for request in edge.sent(Request)}


@in_every_graph
def test_a_step_out_at_the_cancel_is_undone_once_it_is_back_and_never_counted_as_done(
    graph: Graph,
) -> None:
    ends: set[str] = set()
    for edge in graph.edges:
        for old, new in edge.pairs():
            if old.process_state is StepState.PROCESSING and old.direction is Direction.UNDO:
                if new.process_state is StepState.PROCESSING:
                    assert new == old
                    continue
                if edge.event.name == "undo":  # the operator waits no longer, for any of them
                    continue
                ends.add(edge.event.name)
                without_undo = old.name in graph.case.without_undo
                expected = StepState.COMPENSATED if without_undo else StepState.COMPENSATING
                assert new.process_state is expected, str(edge)
                assert old.number == edge.event.step, str(edge)
    uncounted = (WAITED[0], BEHIND) * graph.case.waited
    assert ends == {"done", "refused", "expire", "awaits", *uncounted}


@in_every_graph
def test_an_undo_waits_for_no_step_that_is_out(graph: Graph) -> None:
    for edge in graph.edges:
        if edge.event.name == "undo":
            out = [step for step in edge.after.steps if step.process_state is StepState.PROCESSING]
            assert not out, str(edge)


@in_every_graph
def test_a_cancelled_order_ends_compensated_or_in_error_for_an_undo_that_failed(
    graph: Graph,
) -> None:
    onward = graph.successors(lambda edge: edge.event.name not in OPERATOR)
    for key, targets in onward.items():
        order = graph.states[key]
        if order.direction is Direction.UNDO and not targets:
            failed = [s for s in order.steps if s.process_state is StepState.ERROR]
            assert order.process_state is OrderState.COMPENSATED or failed
            assert all(step.undo_failed for step in failed)


@in_every_graph
def test_a_command_is_carried_out_in_the_states_it_is_meant_for_and_in_no_other(
    graph: Graph,
) -> None:
    under_way = {OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR}
    carried = {(edge.source, edge.event.name) for edge in graph.edges}
    for key, order in graph.states.items():
        failed = order.process_state is OrderState.ERROR
        running = order.process_state in under_way and order.direction is Direction.DO
        assert ((key, "cancel") in carried) == running
        assert ((key, "skip") in carried) == failed
        assert ((key, "acknowledge") in carried) == failed


@in_every_graph
def test_to_acknowledge_changes_nothing_but_who_has_seen_it(graph: Graph) -> None:
    for edge in graph.edges:
        if edge.event.name == "acknowledge":
            assert edge.change.entry.messages == ()
            expected = replace(edge.before, seq=edge.before.seq + 1, acknowledged_by="ann")
            assert edge.after == expected
        else:
            assert edge.after.acknowledged_by is None


@in_every_graph
def test_a_skipped_step_is_processed_and_a_skipped_undo_is_undone_by_hand(graph: Graph) -> None:
    for edge in graph.edges:
        if edge.event.name != "skip":
            continue
        for old, new in edge.pairs():
            is_target = edge.event.step in {-1, old.number}
            if old.process_state is not StepState.ERROR or not is_target:
                assert new.process_state is old.process_state
            elif old.direction is Direction.DO:
                assert (new.process_state, new.result) == (StepState.PROCESSED, "null")
            else:
                assert new.process_state is StepState.COMPENSATED
                assert new.undo is UndoStatus.BY_HAND


@in_every_graph
def test_each_step_has_the_state_of_its_undo(graph: Graph) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            status = new.undo
            match new.process_state:
                case StepState.COMPENSATING:
                    assert status is UndoStatus.UNDOING
                case StepState.ERROR:
                    undoing = old.process_state is StepState.COMPENSATING
                    undoing = undoing or old.undo is UndoStatus.FAILED
                    assert status is (UndoStatus.FAILED if undoing else UndoStatus.NOT_DECIDED)
                case StepState.COMPENSATED if old.process_state is not StepState.COMPENSATED:
                    assert status is how_compensated(edge, old.process_state)
                case StepState.COMPENSATED:
                    assert new.undo is old.undo
                case StepState.PROCESSING if order_cancelled(edge.after):
                    assert status is UndoStatus.TO_BE_UNDONE
                case _:
                    assert status is UndoStatus.NOT_DECIDED


def order_cancelled(order: Order) -> bool:
    """Return whether the undo of an order is decided."""
    return order.direction is Direction.UNDO


def how_compensated(edge: Edge, before: StepState) -> UndoStatus:
    if edge.event.name == "skip":
        return UndoStatus.BY_HAND
    return UndoStatus.UNDONE if before is StepState.COMPENSATING else UndoStatus.NOT_NEEDED


@in_every_graph
def test_a_deadline_is_there_until_it_passed_or_the_order_is_processed_or_being_undone(
    graph: Graph,
) -> None:
    for order in graph.states.values():
        is_over = order.direction is Direction.UNDO or order.process_state in FINISHED
        assert not (is_over and order.deadline)
        assert not order.deadline or graph.case.deadline
    for edge in graph.edges:
        is_over = edge.after.direction is Direction.UNDO or edge.after.process_state in FINISHED
        lost = edge.before.deadline is not None and edge.after.deadline is None
        had = edge.before.deadline is not None
        assert lost == (had and (is_over or edge.event.name == "deadline")), str(edge)
        assert had or edge.after.deadline is None


@in_every_graph
def test_a_deadline_that_passed_undoes_the_order_or_alerts_the_operator_by_its_policy(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        if edge.event.name != "deadline":
            assert edge.alerted(AlertKind.OVERDUE) == []
        elif graph.case.on_failure is OnFailure.HOLD:
            assert edge.alerted(AlertKind.OVERDUE) == [None]
            assert edge.after.steps == edge.before.steps
        else:
            assert edge.alerted(AlertKind.OVERDUE) == []
            assert edge.after.direction is Direction.UNDO


# The law


def test_every_row_of_the_law_is_reached_and_nothing_outside_it() -> None:
    edges = [edge for case in SHORT for edge in explore(case).edges]
    steps = {
        (old.process_state, new.process_state)
        for edge in edges
        for old, new in edge.pairs()
        if old.process_state is not new.process_state
    }
    orders = {
        (edge.before.process_state, edge.after.process_state)
        for edge in edges
        if edge.before.process_state is not edge.after.process_state
    }
    # an order submitted anew in the place of a Rejected one: see test_domain_changes
    orders |= {(OrderState.REJECTED, after) for after in (OrderState.PENDING, OrderState.PROCESSED)}
    assert steps == {(move.before, move.after) for move in STEP_MOVES}
    assert orders == {(move.before, move.after) for move in ORDER_MOVES}


def test_nothing_is_decided_about_a_rejected_order() -> None:
    rules = Case(shape_name="one", on_failure=OnFailure.HOLD, failures_max=1).rules
    order = Order(details=details_of(), steps=(), seq=1, stopped_at=T0, rejected=True)
    assert claim(order, rules, now=SOON, instance="s") is None
    assert resubmit(order, rules, now=SOON) is None
    assert undo(order, rules, now=SOON) is None
    assert expire(order, 0, 0, rules, now=SOON) is None
    with_step = replace(submitted(rules).after, rejected=True)
    claimed = claim(submitted(rules).after, rules, now=SOON, instance="s")
    assert claimed is not None
    out = replace(with_step, steps=claimed.steps)
    reply = reply_to(out, 0, "done")
    assert answer(out, reply, rules, now=SOON, instance="s") is None
    assert expire(out, 0, 1, rules, now=LATE) is None
    assert claim(with_step, rules, now=LATE, instance="s") is None
