from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from sas.domain.workflow import (
    STEPS_MAX,
    TIME_ALLOWED_MAX,
    TIME_ALLOWED_MIN,
    Backoff,
    ExtendedWait,
    OnFailure,
    Step,
    Undo,
    UnknownWorkflowError,
    Workflow,
    WorkflowError,
    Workflows,
)
from tests.each import each

MICROSECOND = timedelta(microseconds=1)


def named(*names: str, **changes: Any) -> tuple[Step, ...]:
    return tuple(Step(name, agent="agent", **changes) for name in names)


def workflow(*steps: Step, **changes: Any) -> Workflow:
    return Workflow("test", version=1, steps=steps or named("a"), **changes)


def test_a_workflow_of_thirty_steps_is_accepted_and_one_more_is_refused() -> None:
    steps = named(*(f"s{n}" for n in range(STEPS_MAX + 1)))
    assert len(workflow(*steps[:STEPS_MAX]).rules.steps) == 30
    with pytest.raises(WorkflowError, match="workflow 'test' has 31 steps: 1 to 30 are allowed"):
        workflow(*steps)


def test_two_steps_of_one_name_are_refused() -> None:
    with pytest.raises(WorkflowError, match="workflow 'test' step 'b' is defined twice"):
        workflow(*named("a", "b", "b"))


@each(["nowhere", "later", "itself"])
def test_a_step_comes_only_after_steps_written_before_it(after: str) -> None:
    steps = (
        *named("first"),
        Step("itself", agent="agent", after=("first", after)),
        *named("later"),
    )
    with pytest.raises(
        WorkflowError,
        match=f"step 'itself' comes after '{after}', which is not a step written before it",
    ):
        workflow(*steps)


@each(
    [
        ({"name": "Test"}, "workflow 'Test': workflow 'Test' is not a name"),
        ({"steps": named("A")}, "workflow 'test': step 'A' is not a name"),
        ({"steps": (Step("a", agent="A b"),)}, "workflow 'test': agent 'A b' is not a name"),
        (
            {"steps": (Step("a", agent="agent", alternatives=("other", "B")),)},
            "workflow 'test': agent 'B' is not a name",
        ),
        (
            {"steps": (Step("a", agent="agent-urgent"),)},
            "workflow 'test': agent 'agent-urgent' ends with '-urgent'",
        ),
        (
            {"steps": (Step("a", agent="agent", alternatives=("other-urgent",)),)},
            "workflow 'test': agent 'other-urgent' ends with '-urgent'",
        ),
        ({"version": 0}, "workflow 'test': versions are counted from 1"),
    ]
)
def test_wrong_names_and_versions_are_refused_saying_where(
    changes: dict[str, Any], text: str
) -> None:
    members: dict[str, Any] = {"name": "test", "version": 1, "steps": named("a")} | changes
    with pytest.raises(WorkflowError, match=text):
        Workflow(**members)


@each([["agent"], ["b", "b"], ["b", "agent", "c"]])
def test_a_step_that_names_an_agent_twice_is_refused_listing_them(
    alternatives: list[str],
) -> None:
    names = ", ".join(("agent", *alternatives))
    with pytest.raises(
        WorkflowError, match=f"workflow 'test' step 'a' names an agent twice: {names}"
    ):
        workflow(*named("a", alternatives=tuple(alternatives)))


def test_the_rules_of_a_step_name_its_agents_by_route() -> None:
    step = Step("b", agent="one", alternatives=("two", "three"))
    rules = workflow(*named("a"), step).rules
    assert [step.agents for step in rules.steps] == [("agent",), ("one", "two", "three")]
    assert rules.unavailable == frozenset()
    assert step.agents == ("one", "two", "three")


@each(product([TIME_ALLOWED_MIN - MICROSECOND, TIME_ALLOWED_MAX + MICROSECOND], [False, True]))
def test_a_time_allowed_out_of_bounds_is_refused(time: timedelta, undoing: bool) -> None:
    times: dict[str, Any] = {"undo": Undo(time)} if undoing else {"time_allowed": time}
    with pytest.raises(
        WorkflowError, match=r"step 'a': a time allowed \(or waited\) must be between"
    ):
        workflow(*named("a", **times))


@each([TIME_ALLOWED_MIN, TIME_ALLOWED_MAX])
def test_times_allowed_at_their_bounds_are_accepted(time: timedelta) -> None:
    rules = workflow(*named("a", time_allowed=time, undo=Undo(time))).rules.steps[0]
    assert (rules.time_allowed, rules.undo_time_allowed) == (time, time)


@each([-1, 1001])
def test_a_number_of_failures_out_of_bounds_is_refused(failures_max: int) -> None:
    with pytest.raises(WorkflowError, match="failures_max must be between 0 and 1000"):
        workflow(*named("a", failures_max=failures_max))


@each([0, 1000])
def test_a_number_of_failures_at_its_bounds_is_accepted(failures_max: int) -> None:
    assert workflow(*named("a", failures_max=failures_max)).rules.steps[0].failures_max == (
        failures_max
    )


def test_a_step_comes_after_the_one_written_before_it_unless_after_is_given() -> None:
    rules = workflow(
        *named("a", "b"),
        Step("c", agent="agent", after=()),
        Step("d", agent="agent", after=("c", "a", "a")),
        *named("e"),
    ).rules
    assert [step.after for step in rules.steps] == [(), (0,), (), (0, 2), (3,)]


def test_what_comes_after_and_before_a_step_is_found_through_others() -> None:
    rules = workflow(
        *named("a"),
        Step("b", agent="agent", after=("a",)),
        Step("c", agent="agent", after=()),
        Step("d", agent="agent", after=("b",)),
        Step("e", agent="agent", after=("d", "c")),
    ).rules
    assert [rules.dependents(n) for n in range(5)] == [(1, 3, 4), (3, 4), (4,), (4,), ()]
    assert [rules.predecessors(n) for n in range(5)] == [(), (0,), (), (0, 1), (0, 1, 2, 3)]


def test_a_step_without_undo_has_no_time_for_one() -> None:
    rules = workflow(*named("a"), Step("b", agent="agent", undo=Undo())).rules
    assert rules.steps[0].undo_time_allowed is None
    assert rules.steps[1].undo_time_allowed == timedelta(seconds=60)


def test_the_rules_carry_the_policies_of_the_workflow() -> None:
    rules = workflow(
        on_failure=OnFailure.UNDO,
        notify_steps=True,
        pickup=timedelta(seconds=5),
        alert_after=timedelta(minutes=1),
    ).rules
    assert rules.on_failure is OnFailure.UNDO
    assert rules.notify_steps is True
    assert (rules.pickup, rules.alert_after) == (timedelta(seconds=5), timedelta(minutes=1))


@each([timedelta(0), timedelta(seconds=-1), TIME_ALLOWED_MAX * 2])
def test_a_pickup_time_that_would_wake_for_ever_or_never_is_refused(pickup: timedelta) -> None:
    with pytest.raises(WorkflowError, match="workflow 'test': pickup must be between"):
        workflow(pickup=pickup)


def several() -> Workflows:
    return Workflows(
        [
            Workflow("one", version=2, steps=named("a")),
            Workflow("one", version=10, steps=(Step("b", agent="other"),)),
            Workflow("one", version=1, steps=named("c")),
            Workflow("two", version=1, steps=named("d")),
        ]
    )


def test_the_newest_version_of_a_workflow_is_found_unless_one_is_named() -> None:
    assert several().find("one").version == 10
    assert several().find("one", 2).steps[0].name == "a"
    assert several().rules("one", 1).steps[0].name == "c"


def test_an_unknown_workflow_or_version_is_refused_naming_what_there_is() -> None:
    with pytest.raises(UnknownWorkflowError, match="unknown workflow 'three': known are one, two"):
        several().find("three")
    with pytest.raises(
        UnknownWorkflowError, match="workflow 'one' has no version 3: known are 1, 2, 10"
    ):
        several().find("one", 3)


def test_one_version_is_not_defined_twice() -> None:
    workflow = Workflow("one", version=1, steps=named("a"))
    with pytest.raises(WorkflowError, match="workflow 'one' version 1 is defined twice"):
        Workflows([workflow, Workflow("one", version=1, steps=named("b"))])


def test_a_deployment_without_any_workflow_is_refused() -> None:
    with pytest.raises(WorkflowError, match="no workflow is defined: give at least one"):
        Workflows([])


def test_all_workflows_and_their_agents_are_listed() -> None:
    assert [(w.name, w.version) for w in several()] == [
        ("one", 2),
        ("one", 10),
        ("one", 1),
        ("two", 1),
    ]
    assert several().agents() == {"agent", "other"}


def test_the_agents_of_all_workflows_are_listed_with_every_alternative() -> None:
    steps = (
        Step("a", agent="one", alternatives=("two",)),
        Step("b", agent="one", alternatives=("three",)),
    )
    assert Workflows([workflow(*steps)]).agents() == {"one", "two", "three"}


DAYS = TIME_ALLOWED_MAX
OUT_OF_BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"backoff": Backoff(-MICROSECOND)}, "a rest or a drain time must be between 0 and 30 days"),
    ({"backoff": Backoff(DAYS + MICROSECOND)}, "a rest or a drain time must be between"),
    ({"backoff": Backoff(most=DAYS + MICROSECOND)}, "a rest or a drain time must be between"),
    ({"backoff": Backoff(factor=0.9)}, "the factor of a backoff must be between 1 and 100"),
    ({"backoff": Backoff(factor=float("nan"))}, "the factor of a backoff must be between"),
    ({"backoff": Backoff(factor=100.1)}, "the factor of a backoff must be between"),
    ({"undo": Undo(drain_time=-MICROSECOND)}, "a rest or a drain time must be between"),
    ({"undo": Undo(drain_time=DAYS + MICROSECOND)}, "a rest or a drain time must be between"),
    ({"extended_wait": ExtendedWait(timedelta(0))}, "a time allowed .or waited. must be between"),
    (
        {"extended_wait": ExtendedWait(DAYS, times=0)},
        "the times of an extended wait must be between 1 and 1000",
    ),
    (
        {"extended_wait": ExtendedWait(DAYS, times=1001)},
        "the times of an extended wait must be between 1",
    ),
]


@each(OUT_OF_BOUNDS)
def test_a_number_out_of_bounds_is_refused_saying_where(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkflowError, match=f"workflow 'test' step 'a': {text}"):
        workflow(*named("a", **changes))


def test_the_decisions_see_how_patient_a_step_is() -> None:
    backoff, wait = Backoff(MICROSECOND, 100, DAYS), ExtendedWait(DAYS, 1000)
    step = Step("a", agent="agent", undo=Undo(drain_time=DAYS), backoff=backoff, extended_wait=wait)
    rules = workflow(step, deadline=DAYS).rules
    assert (rules.deadline, rules.steps[0].drain_time) == (DAYS, DAYS)
    assert (rules.steps[0].backoff, rules.steps[0].extended_wait) == (backoff, wait)
    assert backoff.delay(1001) == DAYS


@each([timedelta(0), -DAYS, DAYS + MICROSECOND])
def test_a_deadline_out_of_bounds_is_refused(deadline: timedelta) -> None:
    with pytest.raises(WorkflowError, match="workflow 'test': a deadline must be between"):
        workflow(deadline=deadline)


def test_a_rest_grows_by_its_factor_up_to_the_most() -> None:
    assert workflow(Step("a", agent="one", backoff=Backoff(factor=1)))
    backoff = Backoff(timedelta(seconds=2), factor=3, most=timedelta(seconds=20))
    assert [backoff.delay(n).total_seconds() for n in (1, 2, 3, 4)] == [2, 6, 18, 20]
    assert Backoff().delay(5) == timedelta(0)
