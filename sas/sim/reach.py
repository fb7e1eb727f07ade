"""What the definition of a workflow can reach: transitions, the states after them, and of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sas.domain.messages import JournalWord
from sas.domain.order import STEP_FORMS, OrderState, StepState, UndoStatus
from sas.domain.workflow import OnFailure, Workflow

Pair = tuple[str, str]
"""A kind of transition, and the state of the order after it."""
_NONE: frozenset[OrderState] = frozenset()


def pairs(workflow: Workflow) -> set[Pair]:
    """Return the transitions that orders of a workflow can have."""
    return {
        (word.value, state.value) for word, states in _states_after(workflow) for state in states
    }


def order_states(workflow: Workflow) -> list[str]:
    """Return the states that orders of a workflow can have."""
    found = {state for _, state in pairs(workflow)}
    return [state.value for state in OrderState if state.value in found]


def step_states(workflow: Workflow) -> list[tuple[str, str, str]]:
    """Return the states that steps can have: name, ProcessState, and status of the undo."""
    found = []
    for step in workflow.steps:
        barred = set()
        if workflow.on_failure is OnFailure.UNDO:
            barred.add((StepState.ERROR, UndoStatus.NOT_DECIDED))
        if step.undo is None:
            barred |= {(StepState.ERROR, UndoStatus.FAILED)}
            barred |= {(StepState.COMPENSATING, UndoStatus.UNDOING)}
            done = UndoStatus.UNDONE, UndoStatus.BY_HAND
            barred |= {(StepState.COMPENSATED, one) for one in done}
        if step.undo is None or not step.alternatives:
            barred.add((StepState.ERROR, UndoStatus.FAILED_ELSEWHERE))
        forms = [(state, undo) for state, (_, undos) in STEP_FORMS.items() for undo in undos]
        found += [
            (step.name, one.value, undo.value) for one, undo in forms if (one, undo) not in barred
        ]
    return found


def _states_after(workflow: Workflow) -> Iterable[tuple[JournalWord, Iterable[OrderState]]]:
    """Return the states of the order that can follow each kind of transition."""
    word, rules = JournalWord, workflow.rules
    steps = range(len(rules.steps))
    undos = [number for number in steps if rules.steps[number].undo_time_allowed is not None]
    routes = any(len(step.agents) > 1 for step in rules.steps)
    side_by_side = any(
        one not in (*rules.predecessors(other), *rules.dependents(other), other)
        for one in steps
        for other in steps
    )
    hold = workflow.on_failure is OnFailure.HOLD
    pending, running, processed = OrderState.PENDING, OrderState.PROCESSING, OrderState.PROCESSED
    compensated = OrderState.COMPENSATED
    apart = side_by_side or routes
    """Whether an order goes on with one step while another one is in Error."""
    fails = _if(hold or bool(undos), OrderState.ERROR)
    error = fails if apart else _NONE
    begun = _if(len(steps) > 1 or routes, running)
    undoing = _if(bool(undos), OrderState.COMPENSATING)
    goes_on = {running} | undoing | error
    waits = {pending} | begun | undoing | error
    several = _if(len(undos) > 1 or (apart and bool(undos)), OrderState.COMPENSATING)
    cancelled = undoing | _if(len(steps) > 1, OrderState.COMPENSATING)
    roots = _if(not any(step.after for step in rules.steps), running)
    no_undo = [number for number in steps if number not in undos]
    alone = _if(any(not rules.steps[number].after for number in no_undo), compensated)
    deadline = workflow.deadline is not None
    table: Mapping[JournalWord, Iterable[OrderState]] = {
        word.SUBMITTED: {pending},
        word.CLAIMED: goes_on,
        word.PROGRESS: goes_on,
        word.STEP_PROCESSED: {processed} | begun | error,
        word.STEP_FAILED: fails if hold else _NONE,
        word.STEP_FAILED_UNDO: _NONE if hold else undoing | alone,
        word.STEP_RESET: {pending} | begun | error,
        word.UNDO_RESET: undoing | error | (begun if routes and undos else _NONE),
        word.WAITS_IN_QUEUE: goes_on,
        word.QUEUE_AWAY: goes_on,
        word.ANOTHER_AGENT: {running} | error if routes else _NONE,
        word.WAITING: waits,
        word.EXTENDED_WAIT: waits if any(one.extended_wait for one in rules.steps) else _NONE,
        word.RELEASED: waits,
        word.WOKEN_AGAIN: waits,
        word.POSTPONED: _NONE,  # a simulated deploy is everywhere within a minute
        word.OVERDUE: {pending, running} | fails if deadline and hold else _NONE,
        word.OVERDUE_UNDO: {compensated} | undoing if deadline and not hold else _NONE,
        word.CALLBACK_ACCEPTED: {pending, running, processed} | cancelled | fails,
        word.STEP_UNDONE: {compensated} | several | error if undos else _NONE,
        word.UNDONE_AT_ONE_AGENT: (
            {running, processed} | undoing | error if routes and undos else _NONE
        ),
        word.UNDO_FAILED: fails if undos else _NONE,
        word.RESUBMITTED: (
            ({pending} | begun if hold else begun if routes and undos else _NONE) | undoing | error
        ),
        word.SKIPPED: {processed} | begun | error if hold or (routes and undos) else _NONE,
        word.UNDONE_BY_HAND: {compensated} | several | error if undos else _NONE,
        word.UNDO_DECIDED: {compensated} | undoing | error,
        word.CANCELLED: {compensated} | cancelled | roots,
        word.CANCELLED_STEP: undoing | error | _if(bool(no_undo), compensated),
        word.ACKNOWLEDGED: fails,
        word.FENCED: set(OrderState) - {OrderState.COMPENSATING, OrderState.ERROR}
        | cancelled
        | fails,
        word.REJECTED: {OrderState.REJECTED},
    }
    return table.items()


def _if(can: bool, state: OrderState) -> frozenset[OrderState]:
    return frozenset({state}) if can else _NONE
