"""With several agents a step, the decisions keep the rules under every fault of messages.

A Processed order has each effect once, at the one agent that was asked; a Compensated one has none.
Every agent has a remote service of its own, so a step that moved would have its effect twice.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from sas.domain.change import Decision
from sas.domain.moves import IllegalMoveError
from sas.domain.order import Order, StepState
from sas.domain.workflow import OnFailure, Rules
from tests.long import long
from tests.simulation.domain_model_check import find_cycle
from tests.simulation.domain_protocol_check import Budget, Protocol, Remote

MESSAGES = Budget(twice=1, lost=1, early=1, shut=1, waited=1)
MEDDLED = Budget(early=1, refused=1, operator=1, shut=1, waited=1)
BY_HAND = Budget(lost=1, refused=1, operator=2, shut=1)
LATE = Budget(early=1, lost=1, shut=1)
ALL = Budget(twice=1, lost=1, early=1, refused=1, operator=1, shut=1, waited=1)
TWO = {"routes": 2}
Case = tuple[str, OnFailure, int, Budget, dict[str, Any]]

SHORT: list[Case] = [
    *product(("one",), OnFailure, (0,), (MESSAGES, MEDDLED), (TWO,)),
    *product(
        ("one",), OnFailure, (1,), (BY_HAND,), (TWO | {"verbs": ("resubmit", "undo", "skip")},)
    ),
    *product(("one",), OnFailure, (1,), (MEDDLED,), (TWO | {"verbs": ("cancel", "resubmit")},)),
    *product(("two in a row",), OnFailure, (1,), (LATE,), (TWO,)),
]
LONG: list[Case] = [
    *product(("one",), OnFailure, (1,), (ALL,), (TWO,)),
    *product(("two in a row",), OnFailure, (1,), (MESSAGES,), (TWO,)),
    *product(("two beside each other",), OnFailure, (1,), (LATE,), (TWO,)),
    ("one", OnFailure.UNDO, 2, MESSAGES._replace(early=2, waited=2), {"routes": 3}),
]


def name(case: Case) -> str:
    shape, on_failure, failures_max, budget, options = case
    verbs = "".join(f", {verb}" for verb in options.get("verbs", ()))
    return f"{shape}, {on_failure.value}, {failures_max}, {''.join(map(str, budget))}{verbs}"


@pytest.mark.parametrize("case", SHORT + long(LONG), ids=name)
def test_an_order_processed_has_each_effect_at_one_agent_and_one_compensated_at_none(
    case: Case,
) -> None:
    shape, policy, failures_max, faults, options = case
    protocol = Protocol(
        shape=shape, on_failure=policy, failures_max=failures_max, budget=faults, **options
    )
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"


def test_the_faults_of_these_checks_lead_to_every_route() -> None:
    protocol = Protocol(
        shape="one", on_failure=OnFailure.HOLD, failures_max=1, budget=MEDDLED, routes=2
    )
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
        Moves("one", OnFailure.HOLD, 1, LATE, routes=2).explore()


def test_an_edited_input_leads_to_one_effect_over_all_agents() -> None:
    faults = Budget(early=1, refused=1, operator=2, shut=1)
    verbs = ("edit", "undo")
    closes = Remote(closes=True)
    protocol = Protocol(
        shape="one",
        on_failure=OnFailure.HOLD,
        failures_max=1,
        budget=faults,
        remote=closes,
        verbs=verbs,
        routes=2,
    )
    assert protocol.explore() is None
