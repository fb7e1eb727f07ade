"""The decisions keep the rules under every fault of messages: see domain_protocol_check."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from sas.domain.change import Decision
from sas.domain.claim import with_step
from sas.domain.order import Order, StepState, UndoStatus
from sas.domain.workflow import OnFailure, Rules
from tests.long import long
from tests.simulation.domain_model_check import LATE, find_cycle
from tests.simulation.domain_protocol_check import DO, Budget, Flying, Protocol, Remote

UNRELIABLE = Budget(twice=1, lost=1, early=1)
MEDDLED = Budget(early=1, refused=1, operator=1)
LATE_TWICE = Budget(twice=1, early=2, operator=1)
ALL = Budget(twice=1, lost=1, early=1, refused=1, operator=1)
PAIRS = ("two in a row", "two beside each other")

SHORT = [
    *product(("two in a row",), OnFailure, (1,), (UNRELIABLE, MEDDLED)),
    *product(("two beside each other",), OnFailure, (0,), (MEDDLED,)),
]
LONG = [
    *product(("two in a row",), OnFailure, (0,), (UNRELIABLE, MEDDLED)),
    *product(("two beside each other",), OnFailure, (0,), (UNRELIABLE,)),
    *product(("two beside each other",), OnFailure, (1,), (UNRELIABLE, MEDDLED)),
    ("two in a row", OnFailure.UNDO, 1, ALL),
    ("diamond", OnFailure.UNDO, 0, MEDDLED),
    *product(PAIRS, OnFailure, (0,), (ALL,)),
    *product(PAIRS, OnFailure, (1,), (LATE_TWICE,)),
]


def name(case: tuple[str, OnFailure, int, Budget]) -> str:
    shape, on_failure, failures_max, budget = case
    return f"{shape}, {on_failure.value}, {failures_max}, {''.join(map(str, budget))}"


@pytest.mark.parametrize("case", SHORT + long(LONG), ids=name)
def test_processed_means_every_effect_once_and_compensated_none_whatever_happens_to_messages(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    protocol = Protocol(*case)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"


BEHIND = [
    *product(("one",), OnFailure, (0, 1), (MEDDLED._replace(behind=2),)),
    *long(product(("one",), OnFailure, (0, 1), (ALL._replace(behind=1),))),
    *product(("two in a row",), OnFailure, (0,), (Budget(early=1, twice=1, behind=1),)),
    *long(
        product(("two beside each other",), OnFailure, (0,), (Budget(early=1, twice=1, behind=1),))
    ),
]


@pytest.mark.parametrize("case", BEHIND, ids=name)
def test_a_step_that_is_requested_again_without_a_failure_breaks_no_promise(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    protocol = Protocol(*case)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"


WAITED = [
    *product(("one",), OnFailure, (0, 1), (MEDDLED._replace(waited=2),)),
    *long(product(("one",), OnFailure, (0, 1), (ALL._replace(waited=1),))),
    *product(("two in a row",), OnFailure, (0,), (Budget(early=1, twice=1, waited=1),)),
    *long(
        product(("two beside each other",), OnFailure, (0,), (Budget(early=1, twice=1, waited=1),))
    ),
]


@pytest.mark.parametrize("case", WAITED, ids=name)
def test_a_word_that_nothing_was_called_which_is_not_true_breaks_no_promise(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    """It is true of one delivery; another of the same request may have called, or may yet."""
    protocol = Protocol(*case)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None


@pytest.mark.parametrize("shape", PAIRS)
def test_a_remote_without_tombstones_is_caught_by_a_late_call_after_its_undo(shape: str) -> None:
    protocol = Protocol(
        shape=shape, on_failure=OnFailure.HOLD, failures_max=1, budget=MEDDLED, remote=NO_TOMBSTONES
    )
    assert "S2" in str(protocol.explore())


NO_TOMBSTONES = Remote(tombstones=False)
WITHIN_THE_LIMIT = [
    *product(("two in a row",), OnFailure, (1,), (MEDDLED,)),
    *long(product(PAIRS, OnFailure, (0,), (MEDDLED,))),
    *long(product(("two beside each other",), OnFailure, (1,), (MEDDLED,))),
]
MORE_FAULTS = [
    ("two in a row", OnFailure.HOLD, 1, LATE_TWICE),
    ("two in a row", OnFailure.UNDO, 1, ALL),
]


@pytest.mark.parametrize("case", WITHIN_THE_LIMIT + long(MORE_FAULTS), ids=name)
def test_a_remote_without_tombstones_is_undone_whole_where_the_undo_waits_out_its_drain_time(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    protocol = Protocol(*case, NO_TOMBSTONES, drain_time=True)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None


@pytest.mark.parametrize("case", WITHIN_THE_LIMIT, ids=name)
def test_a_cancelled_order_is_undone_whole_whatever_happens_to_messages(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    protocol = Protocol(*case, verbs=("cancel", "resubmit"))
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None


@pytest.mark.parametrize("shape", ["one", "two in a row"])
@pytest.mark.parametrize(
    "faults", [Budget(refused=2, operator=3), Budget(early=1, refused=1, operator=1)]
)
def test_an_edited_input_leads_to_one_effect_even_if_the_step_timed_out_before_its_refusal(
    shape: str, faults: Budget
) -> None:
    protocol = Protocol(
        shape=shape,
        on_failure=OnFailure.HOLD,
        failures_max=1,
        budget=faults,
        remote=Remote(closes=True),
        verbs=("edit", "undo"),
    )
    assert protocol.explore() is None


TWO_KEYS = [
    (0, Budget(early=1, refused=1, operator=2), ("edit", "resubmit", "undo")),
    (1, Budget(twice=1, refused=1, operator=1), ("edit", "undo")),
]


@pytest.mark.parametrize(("failures_max", "faults", "verbs"), TWO_KEYS)
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


@pytest.mark.parametrize(
    "faults", [Budget(twice=1, refused=1), Budget(early=1, refused=1, twice=1)], ids=str
)
def test_a_refused_step_is_undone_because_another_delivery_may_still_have_its_effect(
    faults: Budget,
) -> None:
    """A refusal answers one call. Only the tombstone of an undo answers every call of a key."""
    case = ("one", OnFailure.UNDO, 1, faults)
    assert "S2" in str(BelievesRefusals(*case).explore())
    assert Protocol(*case).explore() is None


@pytest.mark.parametrize("shape", PAIRS)
def test_a_remote_that_forgets_its_keys_is_caught_by_a_second_effect(shape: str) -> None:
    protocol = Protocol(
        shape=shape,
        on_failure=OnFailure.HOLD,
        failures_max=1,
        budget=UNRELIABLE,
        remote=Remote(idempotent=False),
    )
    assert "came about twice" in str(protocol.explore())
