"""A business whose parts do not fit together is refused, with one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.workflow import (
    Backoff,
    ExtendedWait,
    Step,
    Undo,
    Workflow,
    WorkflowError,
    Workflows,
)
from sas.ports import LIMIT_MAX, Business
from tests.unit.actors_kit import ScriptedAgent

HOUR = timedelta(hours=1)
TRIP = Workflow("trip", version=1, steps=(Step("book", agent="hotel", alternatives=("hostel",)),))


def business(agents: Mapping[str, Any] | None = None, **members: Any) -> Business:
    hotel_agents: dict[str, Any] = {"hotel": ScriptedAgent(), "hostel": ScriptedAgent()}
    return Business(
        workflows=Workflows([TRIP]), agents={**hotel_agents, **(agents or {})}, **members
    )


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"checks": {("trp", 1): len}}, "checks names the workflow 'trp': there is trip"),
        ({"codec": "a text"}, "codec is 'a text': it has the methods encode and decode"),
        ({"limits": {"motel": 1}}, "limits names the agent 'motel': there is hostel, hotel"),
    ],
)
def test_what_names_nothing_that_is_there_is_refused(members: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkflowError, match=why):
        business(**members)


def test_the_error_for_an_unknown_agent_names_the_agents_that_exist() -> None:
    with pytest.raises(WorkflowError, match=r"no agent is given for hostel: .* given are hotel"):
        Business(workflows=Workflows([TRIP]), agents={"hotel": ScriptedAgent()})


def test_a_business_that_fits_together_is_taken() -> None:
    system = business(checks={("trip", 1): len}, limits={"hostel": LIMIT_MAX})
    assert set(system.agents) == {"hotel", "hostel"}


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"time_allowed": 30}, r"step 'book': time_allowed=30: give a timedelta, as in timedelta"),
        ({"undo": True}, r"step 'book': undo=True: give Undo\(\) or None"),
        ({"undo": Undo(30)}, "step 'book' undo: time_allowed=30: give a timedelta"),  # type: ignore[arg-type]
        ({"after": "pack"}, "after='pack': give names in a tuple"),
        ({"alternatives": "hostel"}, "alternatives='hostel': give names in a tuple"),
        ({"failures_max": "3"}, "failures_max='3': give a whole number"),
        ({"backoff": HOUR}, r"give a Backoff\(...\)"),
        ({"backoff": Backoff(HOUR)}, "first=1:00:00, longer than most=0:15:00"),
        ({"backoff": Backoff(factor="2")}, "backoff: factor='2': give a number"),  # type: ignore[arg-type]
        ({"extended_wait": ExtendedWait(HOUR, 1.5)}, "extended_wait: times=1.5: give a whole"),  # type: ignore[arg-type]
        ({"name": None}, "name=None: give a text"),
    ],
)
def test_a_step_with_a_value_of_the_wrong_kind_is_refused_saying_what_to_give(
    step: dict[str, Any], why: str
) -> None:
    members: dict[str, Any] = {"name": "book", "agent": "hotel"} | step
    with pytest.raises(WorkflowError, match=why):
        Workflow("trip", version=1, steps=(Step("pack", agent="hotel"), Step(**members)))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"steps": Step("book", agent="hotel")}, r"with its comma: steps=\(Step\(...\),\)"),
        ({"steps": (TRIP,)}, r"steps\[0\] is not a step: give a Step\(...\)"),
        ({"on_failure": "undo"}, "on_failure='undo': give OnFailure.HOLD or OnFailure.UNDO"),
        ({"version": "1"}, "version='1': give a whole number"),
        ({"alert_after": -HOUR}, "alert_after must be between 0 and 30 days"),
        ({"pickup": 30}, "pickup=30: give a timedelta"),
        ({"notify_steps": "yes"}, "notify_steps='yes': give True or False"),
    ],
)
def test_a_workflow_with_a_value_of_the_wrong_kind_is_refused_saying_what_to_give(
    members: dict[str, Any], why: str
) -> None:
    values: dict[str, Any] = {"name": "trip", "version": 1, "steps": TRIP.steps} | members
    with pytest.raises(WorkflowError, match=f"workflow 'trip': .*{why}"):
        Workflow(**values)


def test_workflows_are_given_in_a_list() -> None:
    with pytest.raises(WorkflowError, match=r"in a list: Workflows\(\[Workflow"):
        Workflows(TRIP)  # type: ignore[arg-type]
