"""States, legal moves, and what an order shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from sas.domain.moves import (
    ORDER_MOVES,
    STEP_MOVES,
    IllegalMoveError,
    check_moves,
)
from sas.domain.order import (
    STEP_FORMS,
    Direction,
    Dispatched,
    Failures,
    Fault,
    Order,
    OrderState,
    Ready,
    Resting,
    StepRecord,
    StepState,
    Turn,
    UndoStatus,
    roll_up,
)
from tests.each import each
from tests.unit.domain_cases import T0, details_of

PENDING, PROCESSING, PROCESSED, ERROR, COMPENSATING, COMPENSATED = StepState
FAULT = Fault("declined", "no")
STEP_LEGAL = {(move.before, move.after) for move in STEP_MOVES}
ORDER_LEGAL = {(move.before, move.after) for move in ORDER_MOVES}


def step_of(number: int, state: StepState, *, undone: bool = False) -> StepRecord:
    """Return a step in a form that its state allows; one that is to be ``undone`` stays so."""
    turns, undos = STEP_FORMS[state]
    turn = Dispatched(locked_by="s", complete_by=T0) if turns[0] is Dispatched else None
    undo = next(
        (status for status in undos if undone is (status is not UndoStatus.NOT_DECIDED)), undos[0]
    )
    return formed(state, turn, undo=undo, number=number, name=f"s{number}")


def formed(
    state: StepState, turn: Turn, undo: UndoStatus, number: int = 0, name: str = "pay"
) -> StepRecord:
    """Return a step with all else that its state needs."""
    error = FAULT if state is ERROR else None
    return StepRecord(
        number=number,
        name=name,
        process_state=state,
        since=T0,
        turn=turn,
        epoch=1,
        error=error,
        undo=undo,
    )


def order_of(*states: StepState, **changes: object) -> Order:
    steps = tuple(step_of(number, state) for number, state in enumerate(states))
    return replace(Order(details=details_of(), steps=steps, seq=1), **changes)  # type: ignore[arg-type]


def next_of(before: Order, *states: StepState) -> Order:
    """Return an order with its steps in these states, after another one."""
    undone = [step.direction is Direction.UNDO for step in before.steps]
    steps = [step_of(n, state, undone=undone[n]) for n, state in enumerate(states)]
    return replace(before, steps=tuple(steps))


def changed(order: Order, **members: object) -> Order:
    first = replace(order.steps[0], **members)  # type: ignore[arg-type]
    return replace(order, steps=(first, *order.steps[1:]))


@each(
    [
        ((PENDING,), OrderState.PENDING),
        ((PENDING, PENDING), OrderState.PENDING),
        ((PENDING, PROCESSING), OrderState.PROCESSING),
        ((PENDING, PROCESSED), OrderState.PROCESSING),
        ((PROCESSED, PROCESSED), OrderState.PROCESSED),
        ((PROCESSED, ERROR), OrderState.ERROR),
        ((COMPENSATED, ERROR), OrderState.ERROR),
        ((COMPENSATING, ERROR), OrderState.ERROR),
        ((PROCESSING, ERROR), OrderState.ERROR),
        ((COMPENSATING,), OrderState.COMPENSATING),
        ((COMPENSATING, COMPENSATED), OrderState.COMPENSATING),
        ((COMPENSATED, PROCESSED), OrderState.COMPENSATING),
        ((COMPENSATED, COMPENSATED), OrderState.COMPENSATED),
    ]
)
def test_the_state_of_an_order_is_rolled_up_from_its_steps(
    states: Iterable[StepState], order_state: OrderState
) -> None:
    steps = order_of(*states).steps
    assert roll_up(steps) is order_state
    assert roll_up(reversed(steps)) is order_state


def test_an_order_that_never_began_is_rejected_whatever_its_steps() -> None:
    assert order_of(rejected=True).process_state is OrderState.REJECTED
    assert order_of(PROCESSED, rejected=True).process_state is OrderState.REJECTED


@each(list(product(StepState, StepState)))
def test_a_step_makes_the_moves_of_the_table_and_no_other(
    before: StepState, after: StepState
) -> None:
    # beside a step in Error the order stays in Error, so that only the step's move is judged
    order = order_of(before, ERROR)
    moved = order, next_of(order, after, ERROR)
    if before is after or (before, after) in STEP_LEGAL:
        check_moves(*moved)
        return
    with pytest.raises(IllegalMoveError) as refused:
        check_moves(*moved)
    assert f"step s0: {before.value} to {after.value}" in str(refused.value)


def test_an_order_makes_the_moves_of_the_table_and_no_other() -> None:
    state_pairs = list(product(StepState, repeat=2))
    legal, illegal = set(), set()
    for states_before, states_after in product(state_pairs, state_pairs):
        before = order_of(*states_before)
        after = next_of(before, *states_after)
        pairs = zip(before.steps, after.steps, strict=True)
        moves = {(old.process_state, new.process_state) for old, new in pairs}
        if any(old is not new and (old, new) not in STEP_LEGAL for old, new in moves):
            continue
        states = before.process_state, after.process_state
        try:
            check_moves(before, after)
            legal.add(states)
        except IllegalMoveError:
            illegal.add(states)
    assert {(a, b) for a, b in legal if a is not b} <= ORDER_LEGAL
    assert not illegal & ORDER_LEGAL
    assert (OrderState.PROCESSING, OrderState.COMPENSATED) in legal
    assert (OrderState.PENDING, OrderState.PROCESSED) not in legal


def test_no_move_leads_out_of_compensated() -> None:
    assert not {move for move in STEP_LEGAL if move[0] is COMPENSATED}
    assert not {move for move in ORDER_LEGAL if move[0] is OrderState.COMPENSATED}


def test_every_move_is_written_once_with_its_time() -> None:
    for table in (STEP_MOVES, ORDER_MOVES):
        assert len({(move.before, move.after) for move in table}) == len(table)
        assert all(move.when for move in table)
        assert not [move for move in table if move.before is move.after]


def test_an_epoch_never_goes_back() -> None:
    order = order_of(PENDING)
    check_moves(changed(order, epoch=1), changed(order, epoch=1))
    check_moves(changed(order, epoch=1), changed(order, epoch=2))
    with pytest.raises(IllegalMoveError, match="epoch 2 became 1"):
        check_moves(changed(order, epoch=2), changed(order, epoch=1))


def test_there_is_no_way_back_from_undo() -> None:
    undoing = order_of(COMPENSATING)
    check_moves(order_of(ERROR), undoing)
    failed = next_of(undoing, ERROR)
    check_moves(undoing, failed)
    check_moves(failed, undoing)
    with pytest.raises(IllegalMoveError, match="an undo is final"):
        check_moves(failed, order_of(PENDING))


@each(
    product(
        StepState,
        [None, Dispatched(locked_by="s", complete_by=T0), Ready(T0), Resting(T0)],
        UndoStatus,
    )
)
def test_a_step_exists_only_in_a_form_that_its_state_allows(
    state: StepState, turn: Turn, undo: UndoStatus
) -> None:
    """A Pending step has no lock, a Compensated one is not to be undone, and so on."""
    turns, undos = STEP_FORMS[state]
    if type(turn) in turns and undo in undos:
        assert formed(state, turn, undo).turn is turn
        return
    with pytest.raises(ValueError, match=f"ProcessState {state.value} of step pay does not fit"):
        formed(state, turn, undo)


@each(
    [
        (PROCESSED, {"epoch": 0}, "step s0 is Processed, but Epoch is 0"),
        (PROCESSING, {"epoch": 0}, "step s0 is Processing, but Epoch is 0"),
        (ERROR, {"error": None}, "step s0 is in Error, but ErrorCode is missing"),
    ]
)
def test_a_step_has_all_that_its_state_needs_and_nothing_else(
    state: StepState, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        replace(step_of(0, state), **changes)


def test_an_order_keeps_its_number_of_steps() -> None:
    with pytest.raises(IllegalMoveError, match="1 steps became 2"):
        check_moves(order_of(PENDING), order_of(PENDING, PENDING))


def test_a_rejected_order_may_become_one_with_steps_and_nothing_but_pending() -> None:
    check_moves(order_of(rejected=True), order_of(PENDING, PENDING))
    with pytest.raises(IllegalMoveError, match="order order-1: Rejected to Processing"):
        check_moves(order_of(rejected=True), order_of(PROCESSING))


def test_an_order_shows_the_five_fields_of_its_steps() -> None:
    order = order_of(PROCESSING, PROCESSING, PENDING)
    early, late = T0 + timedelta(seconds=1), T0 + timedelta(seconds=2)
    steps = (
        replace(
            order.steps[0], turn=Dispatched(locked_by="s", complete_by=late), failures=Failures(2)
        ),
        replace(
            order.steps[1], turn=Dispatched(locked_by="t", complete_by=late), failures=Failures(1)
        ),
        replace(order.steps[2], turn=Ready(early)),
    )
    order = replace(order, steps=steps)
    assert (order.order_id, order.locked_by, order.complete_by) == ("order-1", "s", early)
    assert (order.process_state, order.failure_count) == (OrderState.PROCESSING, 3)
    assert order.direction is Direction.DO


def test_an_order_at_rest_has_neither_lock_nor_complete_by() -> None:
    order = order_of(PROCESSED)
    assert (order.locked_by, order.complete_by) == (None, None)


def test_two_orders_with_different_store_tokens_are_equal() -> None:
    assert order_of(PENDING, token="a") == order_of(PENDING, token="b")
    assert order_of(PENDING, seq=1) != order_of(PENDING, seq=2)
