"""What the definition of a workflow can reach: transitions, the states after them, and of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from sas.domain.messages import JournalWord
from sas.domain.order import STEP_FORMS, OrderState, StepState, UndoStatus
from sas.domain.workflow import OnFailure, Workflow

Pair = tuple[str, str]
"""A kind of transition, and the state of the order after it."""
States = AbstractSet[OrderState]
_NONE: frozenset[OrderState] = frozenset()
_S, _W = OrderState, JournalWord


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
        forms = [(state, undo) for state, (_, undos) in STEP_FORMS.items() for undo in undos]
        found += [
            (step.name, one.value, undo.value) for one, undo in forms if (one, undo) not in barred
        ]
    return found


def _states_after(workflow: Workflow) -> Iterator[tuple[JournalWord, States]]:
    """Yield the kinds of transition, and the states of the order that can follow each."""
    can = _Can(workflow)
    for table in (_doing(can), _resting(can), _undoing(can), _commanded(can)):
        yield from table.items()


class _Can:
    """What a workflow can do: each set has states, or none if it cannot."""

    def __init__(self, workflow: Workflow) -> None:
        rules = workflow.rules
        numbers = range(len(rules.steps))
        undos = [number for number in numbers if rules.steps[number].undo_time_allowed is not None]
        self.hold = workflow.on_failure is OnFailure.HOLD
        self.deadline = workflow.deadline is not None
        self.undo = bool(undos)
        self.waits_long = any(step.extended_wait for step in rules.steps)
        self.fails = _if(self.hold or self.undo, _S.ERROR)
        apart = any(
            one not in (*rules.predecessors(other), *rules.dependents(other), other)
            for one in numbers
            for other in numbers
        )
        self.error = _if(apart and bool(self.fails), _S.ERROR)
        """An order in Error goes on with other steps."""
        self.begun = _if(len(numbers) > 1, _S.PROCESSING)
        self.undoing = _if(self.undo, _S.COMPENSATING)
        self.undoes_more = _if(len(undos) > 1 or (apart and self.undo), _S.COMPENSATING)
        self.ending = self.undoing | _if(len(numbers) > 1, _S.COMPENSATING)
        self.all_out = _if(not any(step.after for step in rules.steps), _S.PROCESSING)
        kept = [number for number in numbers if number not in undos]
        self.kept = _if(bool(kept), _S.COMPENSATED)
        self.first_kept = _if(any(not rules.steps[one].after for one in kept), _S.COMPENSATED)


def _doing(can: _Can) -> Mapping[JournalWord, States]:
    callback = {_S.PENDING, _S.PROCESSING, _S.PROCESSED} | can.ending | can.fails
    return {
        _W.SUBMITTED: {_S.PENDING},
        _W.REJECTED: {_S.REJECTED},
        _W.CLAIMED: {_S.PROCESSING} | can.undoing | can.error,
        _W.PROGRESS: {_S.PROCESSING} | can.undoing | can.error,
        _W.STEP_PROCESSED: {_S.PROCESSED} | can.begun | can.error,
        _W.STEP_FAILED: can.fails if can.hold else _NONE,
        _W.CALLBACK_ACCEPTED: callback,
        _W.FENCED: callback | {_S.COMPENSATED, _S.REJECTED},
    }


def _resting(can: _Can) -> Mapping[JournalWord, States]:
    """Return what a timer leads to. A simulated deploy is everywhere before it postpones."""
    waits = {_S.PENDING} | can.begun | can.undoing | can.error
    in_queue = {_S.PROCESSING} | can.undoing | can.error
    is_late = can.deadline and can.hold
    return {
        _W.STEP_RESET: {_S.PENDING} | can.begun | can.error,
        _W.UNDO_RESET: can.undoing | can.error,
        _W.WAITS_IN_QUEUE: in_queue,
        _W.QUEUE_AWAY: in_queue,
        _W.WAITING: waits,
        _W.EXTENDED_WAIT: waits if can.waits_long else _NONE,
        _W.RELEASED: waits,
        _W.WOKEN_AGAIN: waits,
        _W.OVERDUE: {_S.PENDING, _S.PROCESSING} | can.fails if is_late else _NONE,
    }


def _undoing(can: _Can) -> Mapping[JournalWord, States]:
    all_undone, at_once = {_S.COMPENSATED}, can.deadline and not can.hold
    return {
        _W.STEP_FAILED_UNDO: _NONE if can.hold else can.undoing | can.first_kept,
        _W.OVERDUE_UNDO: all_undone | can.undoing if at_once else _NONE,
        _W.STEP_UNDONE: all_undone | can.undoes_more | can.error if can.undo else _NONE,
        _W.UNDO_FAILED: can.fails if can.undo else _NONE,
        _W.UNDO_DECIDED: all_undone | can.undoing | can.error,
        _W.CANCELLED: all_undone | can.ending | can.all_out,
        _W.CANCELLED_STEP: can.undoing | can.error | can.kept,
    }


def _commanded(can: _Can) -> Mapping[JournalWord, States]:
    again = {_S.PENDING} | can.begun
    by_hand = {_S.COMPENSATED} | can.undoes_more | can.error
    return {
        _W.RESUBMITTED: (again if can.hold else _NONE) | can.undoing | can.error,
        _W.SKIPPED: {_S.PROCESSED} | can.begun | can.error if can.hold else _NONE,
        _W.UNDONE_BY_HAND: by_hand if can.undo else _NONE,
        _W.ACKNOWLEDGED: can.fails,
    }


def _if(can: bool, state: OrderState) -> frozenset[OrderState]:
    return frozenset({state}) if can else _NONE
