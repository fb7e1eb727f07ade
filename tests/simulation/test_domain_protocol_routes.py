"""With several agents a step, the decisions keep the rules under every fault of messages.

A Processed order has each effect once over all its agents together, a Compensated one none at
any.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sas.domain.workflow import OnFailure
from tests.long import long
from tests.simulation.domain_model_check import find_cycle
from tests.simulation.domain_protocol_check import Budget, Protocol, Remote

ELSEWHERE = Budget(twice=1, lost=1, early=1, shut=1, waited=1)
MEDDLED = Budget(early=1, refused=1, operator=1, shut=1, waited=1)
BY_HAND = Budget(lost=1, refused=1, operator=2, shut=1)
LATE = Budget(early=1, lost=1, shut=1)
TWICE = Budget(early=1, twice=1, waited=1)
ALL = Budget(twice=1, lost=1, early=1, refused=1, operator=1, shut=1, waited=1)
TWO = {"routes": 2}
NO_TOMBSTONES = Remote(tombstones=False)
Case = tuple[str, OnFailure, int, Budget, dict[str, Any]]

SHORT: list[Case] = [
    *product(("one",), (OnFailure.UNDO,), (0,), (ELSEWHERE, MEDDLED), (TWO,)),
    *product(
        ("one",), OnFailure, (1,), (BY_HAND,), (TWO | {"verbs": ("resubmit", "undo", "skip")},)
    ),
    ("one", OnFailure.UNDO, 1, MEDDLED, TWO | {"verbs": ("cancel", "resubmit")}),
    *product(("two in a row",), OnFailure, (1,), (LATE,), (TWO,)),
    ("two in a row", OnFailure.HOLD, 1, MEDDLED._replace(shut=0, refused=0), TWO),
    ("one", OnFailure.UNDO, 0, TWICE._replace(shut=1, waited=1), TWO),
]
LONG: list[Case] = [
    *product(("one",), (OnFailure.HOLD,), (0,), (ELSEWHERE, MEDDLED), (TWO,)),
    ("one", OnFailure.HOLD, 0, TWICE._replace(shut=1, waited=1), TWO),
    ("one", OnFailure.HOLD, 1, MEDDLED, TWO | {"verbs": ("cancel", "resubmit")}),
    *product(("one",), OnFailure, (1,), (ELSEWHERE,), (TWO,)),
    *product(("one",), OnFailure, (1,), (MEDDLED,), (TWO,)),
    *product(("two in a row",), OnFailure, (1,), (TWICE,), (TWO,)),
    *product(("two beside each other",), OnFailure, (1,), (LATE, TWICE), (TWO,)),
    *product(("one",), OnFailure, (1,), (ALL,), (TWO,)),
    *product(("two in a row",), OnFailure, (1,), (ELSEWHERE,), (TWO,)),
    ("one", OnFailure.UNDO, 2, ELSEWHERE._replace(early=2, waited=2), {"routes": 3}),
]


def name(case: Case) -> str:
    shape, on_failure, failures_max, budget, more = case
    verbs = "".join(f", {verb}" for verb in more.get("verbs", ()))
    return f"{shape}, {on_failure.value}, {failures_max}, {''.join(map(str, budget))}{verbs}"


@pytest.mark.parametrize("case", SHORT + long(LONG), ids=name)
def test_an_order_processed_has_each_effect_at_one_agent_and_one_compensated_at_none(
    case: Case,
) -> None:
    shape, policy, failures_max, faults, more = case
    protocol = Protocol(shape, policy, failures_max, faults, **more)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"


def test_the_faults_of_these_checks_lead_to_every_route_and_to_an_undo_elsewhere() -> None:
    protocol = Protocol("one", OnFailure.HOLD, 1, ELSEWHERE, routes=2)
    assert protocol.explore() is None
    records = [order.steps[0] for order in protocol.orders.values()]
    assert {step.call.route for step in records} == {0, 1}
    assert {step.undo.routes for step in records} >= {(), (0,), (1,), (0, 1)}
    assert any(step.process_state.value == "Processed" and step.undo.routes for step in records)


def test_a_remote_without_tombstones_is_caught_by_a_late_call_after_its_undo_elsewhere() -> None:
    protocol = Protocol("one", OnFailure.HOLD, 1, LATE, NO_TOMBSTONES, routes=2)
    assert "done where nobody undoes it" in str(protocol.explore())


@pytest.mark.parametrize("policy", OnFailure)
@pytest.mark.parametrize("faults", [LATE, *long([MEDDLED])])
def test_a_remote_without_tombstones_is_undone_elsewhere_once_its_drain_time_is_over(
    policy: OnFailure, faults: Budget
) -> None:
    protocol = Protocol("one", policy, 1, faults, NO_TOMBSTONES, routes=2, drain_time=True)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None


def test_an_edited_input_leads_to_one_effect_over_all_agents() -> None:
    faults = Budget(early=1, refused=1, operator=2, shut=1)
    verbs = ("edit", "undo")
    closes = Remote(closes=True)
    protocol = Protocol("one", OnFailure.HOLD, 1, faults, closes, verbs=verbs, routes=2)
    assert protocol.explore() is None
