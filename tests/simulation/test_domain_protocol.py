"""The decisions keep the rules under every fault of messages: see domain_protocol_check.

Each promise is one test over its small models, and a long one for each larger model. A larger model
is here only if it has what no smaller one has: a second step beside the first, or one more fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from sas.domain.change import Decision
from sas.domain.claim import with_step
from sas.domain.moves import IllegalMoveError
from sas.domain.order import Order, StepState, UndoStatus
from sas.domain.workflow import OnFailure, Rules
from tests.each import each
from tests.simulation.domain_model_check import LATE
from tests.simulation.domain_protocol_check import (
    ALL,
    DO,
    LATE_TWICE,
    MEDDLED,
    UNRELIABLE,
    Budget,
    Flying,
    Kind,
    Protocol,
    Remote,
)

HOLD, UNDO = OnFailure.HOLD, OnFailure.UNDO
ROW, BESIDE = "two in a row", "two beside each other"
Scope = Callable[[], Protocol]


def scopes(
    shapes: Iterable[str], policies: Iterable[OnFailure], failures: Iterable[int],
    budgets: Iterable[Budget], **options: Any,
) -> list[Scope]:  # fmt: skip
    """Return a model for each choice of these; each is made when it is explored."""
    choices = product(shapes, policies, failures, budgets)
    return [partial(Protocol, *choice, **options) for choice in choices]


def explored(small: Sequence[Scope], large: Sequence[Scope] = ()) -> pytest.MarkDecorator:
    """Let a test explore its small models, and each large one where long tests run."""
    sizes = [pytest.param([model], id=model().scope, marks=pytest.mark.long) for model in large]
    return pytest.mark.parametrize("models", [pytest.param(small, id="small"), *sizes])


def check(models: Sequence[Scope]) -> None:
    for model in models:
        model().check()


@explored(
    [
        *scopes([ROW], OnFailure, [1], [UNRELIABLE, MEDDLED]),
        *scopes([BESIDE], OnFailure, [0], [MEDDLED]),
    ],
    [
        *scopes([ROW], [UNDO], [1], [ALL]),
        *scopes([ROW], OnFailure, [1], [LATE_TWICE]),
        *scopes([ROW, BESIDE], OnFailure, [0], [ALL]),
        *scopes([BESIDE], OnFailure, [1], [UNRELIABLE, MEDDLED]),
        *scopes([BESIDE], [UNDO], [1], [LATE_TWICE]),
        *scopes(["three in a row"], OnFailure, [0], [ALL, LATE_TWICE]),
        *scopes(["diamond"], [UNDO], [0], [ALL]),
        *scopes(["diamond"], [HOLD], [0], [LATE_TWICE]),
    ],
)
def test_processed_means_every_effect_once_and_compensated_none_whatever_happens_to_messages(
    models: Sequence[Scope],
) -> None:
    check(models)


@explored(
    [
        *scopes(["one"], OnFailure, [0, 1], [MEDDLED._replace(behind=2)]),
        *scopes([ROW], OnFailure, [0], [Budget(early=1, twice=1, behind=1)]),
    ],
    [
        *scopes(["one"], OnFailure, [1], [ALL._replace(behind=1)]),
        *scopes([BESIDE], OnFailure, [0], [Budget(early=1, twice=1, behind=1)]),
    ],
)
def test_a_step_that_is_requested_again_without_a_failure_breaks_no_promise(
    models: Sequence[Scope],
) -> None:
    check(models)


@explored(
    [
        *scopes(["one"], OnFailure, [0, 1], [MEDDLED._replace(waited=2)]),
        *scopes([ROW], OnFailure, [0], [Budget(early=1, twice=1, waited=1)]),
    ],
    [
        *scopes(["one"], OnFailure, [1], [ALL._replace(waited=1)]),
        *scopes([BESIDE], OnFailure, [0], [Budget(early=1, twice=1, waited=1)]),
    ],
)
def test_a_word_that_nothing_was_called_which_is_not_true_breaks_no_promise(
    models: Sequence[Scope],
) -> None:
    """It is true of one delivery; another of the same request may have called, or may yet."""
    check(models)


NO_TOMBSTONES = Remote(tombstones=False)


@each([ROW, BESIDE])
def test_a_remote_without_tombstones_is_caught_by_a_late_call_after_its_undo(shape: str) -> None:
    assert "S2" in str(Protocol(shape, HOLD, 1, MEDDLED, NO_TOMBSTONES).explore())


@explored(
    scopes([ROW], OnFailure, [1], [MEDDLED], remote=NO_TOMBSTONES, drain_time=True),
    [
        *scopes([BESIDE], OnFailure, [1], [MEDDLED], remote=NO_TOMBSTONES, drain_time=True),
        *scopes([ROW], [HOLD], [1], [LATE_TWICE], remote=NO_TOMBSTONES, drain_time=True),
        *scopes([ROW], [UNDO], [1], [ALL], remote=NO_TOMBSTONES, drain_time=True),
    ],
)
def test_a_remote_without_tombstones_is_undone_whole_where_the_undo_waits_out_its_drain_time(
    models: Sequence[Scope],
) -> None:
    check(models)


@explored(
    scopes([ROW], OnFailure, [1], [MEDDLED], verbs=("cancel", "resubmit")),
    scopes([BESIDE], OnFailure, [0, 1], [MEDDLED], verbs=("cancel", "resubmit")),
)
def test_a_cancelled_order_is_undone_whole_whatever_happens_to_messages(
    models: Sequence[Scope],
) -> None:
    check(models)


EDITS = {"remote": Remote(closes=True), "verbs": ("edit", "undo")}
EDITED = [Budget(refused=2, operator=3), Budget(early=1, refused=1, operator=1)]


@each(
    [
        *scopes(["one", ROW], [HOLD], [1], EDITED, **EDITS),
        *scopes(["one"], [HOLD], [1], [Budget(early=1, refused=1, operator=2, shut=1)],
                **EDITS, routes=2),
    ]
)  # fmt: skip
def test_an_edited_input_leads_to_one_effect_even_if_the_step_timed_out_before_its_refusal(
    model: Scope,
) -> None:
    """At one agent of several, too."""
    assert model().explore() is None


TWO_KEYS = [
    (0, Budget(early=1, refused=1, operator=2), ("edit", "resubmit", "undo")),
    (1, Budget(twice=1, refused=1, operator=1), ("edit", "undo")),
]


@each(TWO_KEYS)
def test_a_call_under_an_older_generation_that_lands_late_needs_an_agent_that_closes_it(
    failures_max: int, faults: Budget, verbs: tuple[str, ...]
) -> None:
    """A refusal answers one call; another under its key may be on the way still."""
    case = ("one", OnFailure.HOLD, failures_max, faults)
    assert "came about twice" in str(Protocol(*case, verbs=verbs).explore())
    assert Protocol(*case, Remote(closes=True), verbs=verbs).explore() is None


class BelievesRefusals(Protocol):
    """Undoes no step that was asked for once, in one dispatch, and refused."""

    def decision(self, order: Order, event: tuple[object, ...], rules: Rules) -> Decision | None:
        decision = super().decision(order, event, rules)
        if decision is None or not isinstance(event, Flying):
            return decision
        if (event.direction, event.outcome, event.epoch) != (DO, "refused", 1):
            return decision
        undone = UndoStatus.NOT_NEEDED
        step = decision.steps[event.step].moved(StepState.COMPENSATED, LATE, undo=undone)
        return replace(decision, steps=with_step(decision.steps, step))


def test_a_refused_step_is_undone_because_another_delivery_may_still_have_its_effect() -> None:
    """A refusal answers one call. Only the tombstone of an undo answers every call of a key."""
    for faults in (Budget(twice=1, refused=1), Budget(early=1, refused=1, twice=1)):
        assert "S2" in str(BelievesRefusals("one", UNDO, 1, faults).explore())
        assert Protocol("one", UNDO, 1, faults).explore() is None


@each([ROW, BESIDE])
def test_a_remote_that_forgets_its_keys_is_caught_by_a_second_effect(shape: str) -> None:
    forgetful = Remote(idempotent=False)
    assert "came about twice" in str(Protocol(shape, HOLD, 1, UNRELIABLE, forgetful).explore())


# Callbacks

CANCELLED: dict[str, Any] = {"verbs": ("cancel",), "awaits": True, "outside": True}
BY_HAND: dict[str, Any] = {
    "verbs": ("callback", "cancel", "resubmit"), "awaits": True, "outside": True,
}  # fmt: skip


@explored(
    [
        *scopes([ROW], OnFailure, [0], [UNRELIABLE, MEDDLED], outside=True),
        *scopes(["one"], [HOLD], [1], [MEDDLED], outside=True, routes=2),
        *scopes(["one"], [UNDO], [1], [UNRELIABLE._replace(shut=1)], outside=True, routes=2),
        *scopes(["one"], [HOLD], [1], [MEDDLED], outside=True, **EDITS),
        *scopes(["one"], [HOLD], [1], [MEDDLED._replace(lost=1)], outside=True,
                verbs=("cancel", "resubmit")),
        *scopes(["one"], [HOLD], [1], [MEDDLED._replace(lost=1)], **CANCELLED),
        *scopes(["one"], [UNDO], [1], [UNRELIABLE._replace(operator=1)], **CANCELLED),
        *scopes(["one"], [HOLD], [1], [MEDDLED._replace(operator=2)], **BY_HAND),
        *scopes([ROW], [UNDO], [0], [MEDDLED], **BY_HAND),
        *scopes([ROW], [UNDO], [0], [Budget(lost=1, early=1, operator=1)], **CANCELLED),
    ],
    [
        *scopes(["one"], OnFailure, [1], [ALL], outside=True),
        *scopes([ROW], OnFailure, [1], [UNRELIABLE, MEDDLED], outside=True),
        *scopes([BESIDE], [UNDO], [1], [UNRELIABLE, MEDDLED], outside=True),
    ],
)  # fmt: skip
def test_processed_means_every_effect_once_and_compensated_none_even_with_callbacks(
    models: Sequence[Scope],
) -> None:
    check(models)


def test_without_faults_no_callback_is_ever_lost_or_comes_too_late() -> None:
    protocol = Protocol(ROW, UNDO, 0, Budget(), outside=True)
    assert protocol.explore() is None
    ends = [protocol.states[number] for number, onward in protocol.next.items() if not onward]
    assert {protocol.orders[state.order].process_state.value for state in ends} == {"Processed"}
    assert not any(m.kind == Kind.CALLBACK.value for state in ends for m in state.flying)


def test_a_service_that_forgets_what_was_called_back_is_caught_by_an_event_after_its_undo() -> None:
    protocol = Protocol("one", HOLD, 1, MEDDLED, NO_TOMBSTONES, outside=True)
    assert "S2" in str(protocol.explore())


# Several agents a step. Each has a remote service of its own: a step that moved from one to another
# would have its effect twice.

ROUTED_MEDDLED = MEDDLED._replace(shut=1, waited=1)
ROUTED_LATE = Budget(early=1, lost=1, shut=1)


@explored(
    [
        *scopes(["one"], OnFailure, [0], [UNRELIABLE._replace(shut=1, waited=1), ROUTED_MEDDLED],
                routes=2),
        *scopes(["one"], OnFailure, [1], [Budget(lost=1, refused=1, operator=2, shut=1)],
                routes=2, verbs=("resubmit", "undo", "skip")),
        *scopes(["one"], OnFailure, [1], [ROUTED_MEDDLED], routes=2, verbs=("cancel", "resubmit")),
        *scopes([ROW], OnFailure, [1], [ROUTED_LATE], routes=2),
    ],
    [
        *scopes(["one"], [UNDO], [1], [ALL._replace(shut=1, waited=1)], routes=2),
        *scopes([ROW], OnFailure, [1], [UNRELIABLE._replace(shut=1, waited=1)], routes=2),
        *scopes([BESIDE], OnFailure, [1], [ROUTED_LATE], routes=2),
        *scopes(["one"], [UNDO], [2], [UNRELIABLE._replace(early=2, shut=1, waited=2)], routes=3),
    ],
)  # fmt: skip
def test_an_order_processed_has_each_effect_at_one_agent_and_one_compensated_at_none(
    models: Sequence[Scope],
) -> None:
    check(models)


def test_the_faults_of_these_checks_lead_to_every_route() -> None:
    protocol = Protocol("one", HOLD, 1, ROUTED_MEDDLED, routes=2)
    assert protocol.explore() is None
    records = [order.steps[0] for order in protocol.orders.values()]
    for state in (StepState.PROCESSED, StepState.COMPENSATED, StepState.ERROR):
        assert {step.call.route for step in records if step.process_state is state} == {0, 1}


class Moves(Protocol):
    """Chooses the agent anew for each attempt, as if the last one had not been asked."""

    def decision(self, order: Order, event: tuple[object, ...], rules: Rules) -> Decision | None:
        decision = super().decision(order, event, rules)
        if decision is None:
            return None
        steps = tuple(
            replace(step, call=replace(step.call, route=step.epoch % 2)) for step in decision.steps
        )
        return replace(decision, steps=steps)


def test_a_step_that_moves_to_another_agent_is_refused() -> None:
    """Its effect at the first agent would be undone by nobody."""
    with pytest.raises(IllegalMoveError, match="it would go to another agent"):
        Moves("one", OnFailure.HOLD, 1, ROUTED_LATE, routes=2).explore()
