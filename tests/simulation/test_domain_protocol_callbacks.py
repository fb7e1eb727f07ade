"""Callbacks keep the rules under every fault of messages."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sas.domain.workflow import OnFailure
from tests.long import long
from tests.simulation.domain_model_check import find_cycle
from tests.simulation.domain_protocol_check import Budget, Kind, Protocol, Remote

UNRELIABLE = Budget(twice=1, lost=1, early=1)
MEDDLED = Budget(early=1, refused=1, operator=1)
ALL = Budget(twice=1, lost=1, early=1, refused=1, operator=1)
CANCELLED: dict[str, Any] = {"verbs": ("cancel",), "awaits": True}
BY_HAND: dict[str, Any] = {"verbs": ("callback", "cancel", "resubmit"), "awaits": True}
Case = tuple[str, OnFailure, int, Budget, dict[str, Any]]
SHORT: list[Case] = [
    *product(("two in a row",), OnFailure, (0,), (UNRELIABLE, MEDDLED), ({},)),
    ("one", OnFailure.HOLD, 1, MEDDLED, {"routes": 2}),
    ("one", OnFailure.UNDO, 1, UNRELIABLE._replace(shut=1), {"routes": 2}),
    ("one", OnFailure.HOLD, 1, MEDDLED, {"verbs": ("edit", "undo"), "remote": Remote(closes=True)}),
    ("one", OnFailure.HOLD, 1, MEDDLED._replace(lost=1), {"verbs": ("cancel", "resubmit")}),
    ("one", OnFailure.HOLD, 1, MEDDLED._replace(lost=1), CANCELLED),
    ("one", OnFailure.UNDO, 1, UNRELIABLE._replace(operator=1), CANCELLED),
    ("one", OnFailure.HOLD, 1, MEDDLED._replace(operator=2), BY_HAND),
    ("two in a row", OnFailure.UNDO, 0, MEDDLED, BY_HAND),
    ("two in a row", OnFailure.UNDO, 0, Budget(lost=1, early=1, operator=1), CANCELLED),
]
LONG: list[Case] = [
    *product(("one",), OnFailure, (1,), (ALL,), ({},)),
    *product(("two in a row",), OnFailure, (1,), (UNRELIABLE, MEDDLED), ({},)),
    ("two beside each other", OnFailure.UNDO, 1, ALL, {}),
]


@pytest.mark.parametrize("case", SHORT + long(LONG), ids=str)
def test_processed_means_every_effect_once_and_compensated_none_even_with_callbacks(
    case: Case,
) -> None:
    shape, on_failure, failures_max, budget, options = case
    protocol = Protocol(
        shape=shape,
        on_failure=on_failure,
        failures_max=failures_max,
        budget=budget,
        outside=True,
        **options,
    )
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"


def test_without_faults_no_callback_is_ever_lost_or_comes_too_late() -> None:
    protocol = Protocol(
        shape="two in a row",
        on_failure=OnFailure.UNDO,
        failures_max=0,
        budget=Budget(),
        outside=True,
    )
    assert protocol.explore() is None
    ends = [protocol.states[number] for number, onward in protocol.next.items() if not onward]
    assert {protocol.orders[state.order].process_state.value for state in ends} == {"Processed"}
    assert not any(m.kind == Kind.CALLBACK.value for state in ends for m in state.flying)


def test_a_service_that_forgets_what_was_called_back_is_caught_by_an_event_after_its_undo() -> None:
    protocol = Protocol(
        shape="one",
        on_failure=OnFailure.HOLD,
        failures_max=1,
        budget=MEDDLED,
        remote=Remote(tombstones=False),
        outside=True,
    )
    assert "S2" in str(protocol.explore())
