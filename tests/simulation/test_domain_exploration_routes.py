"""Rules of routes in every reachable state: which agent is asked, and which one undoes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.domain import command
from sas.domain.messages import Notify, Request
from sas.domain.order import Direction, Failures, StepRecord, StepState, UndoLedger, UndoStatus
from sas.domain.workflow import OnFailure
from tests.simulation.domain_model_check import (
    SOON,
    Edge,
    Graph,
    explore,
    find_cycle,
    in_every_graph,
)
from tests.simulation.test_domain_exploration import LARGE, SHORT, by_shape

ROUTED = [[case for case in cases if case.routes > 1] for cases in (SHORT, LARGE)]


@pytest.fixture(scope="module", params=by_shape(*ROUTED))
def graphs(request: pytest.FixtureRequest) -> list[Graph]:
    return [explore(case) for case in request.param]


def failed_elsewhere(step: StepRecord) -> bool:
    """Return whether a step is done, but its undo at an agent asked before has failed."""
    undone = step.direction is Direction.DO and step.undo_failed
    return step.process_state is StepState.ERROR and undone


@in_every_graph
def test_the_routes_to_be_undone_are_some_of_the_steps_own_each_once(graph: Graph) -> None:
    for order in graph.states.values():
        for step in order.steps:
            own = set(range(graph.case.routes_of(step.name)))
            assert {step.call.route, *step.undo.routes} <= own
            assert len(set(step.undo.routes)) == len(step.undo.routes)
            if step.epoch == 0:
                assert (step.call.route, step.undo.routes) == (0, ())


@in_every_graph
def test_a_step_being_undone_has_an_agent_to_be_undone_at_and_one_that_is_undone_has_none(
    graph: Graph,
) -> None:
    for order in graph.states.values():
        for step in order.steps:
            match step.process_state:
                case StepState.COMPENSATING:
                    assert step.undo.routes
                case StepState.COMPENSATED:
                    assert step.undo.routes == ()
                case StepState.ERROR:
                    assert step.undo.routes


@in_every_graph
def test_the_agent_that_did_a_processed_step_is_not_undone_while_do_goes_on(graph: Graph) -> None:
    seen = False
    for edge in graph.edges:
        for new in edge.after.steps:
            if new.process_state is StepState.PROCESSED or failed_elsewhere(new):
                assert new.call.route not in new.undo.routes
                seen = seen or bool(new.undo.routes)
    assert seen == goes_elsewhere(graph)


def goes_elsewhere(graph: Graph) -> bool:
    """Return whether a step of this case may be done elsewhere after it timed out."""
    lacks = graph.case.without_undo >= set(graph.case.shape)
    again = graph.case.failures_max > 0 or graph.case.on_failure is OnFailure.HOLD
    again = again or graph.case.waited
    return again and not lacks


@in_every_graph
def test_a_step_that_names_no_undo_stays_with_the_agent_that_may_have_done_it(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            if old.name in graph.case.without_undo:
                assert set(new.undo.routes) <= {new.call.route}
                assert new.call.route == old.call.route or not old.undo.routes, str(edge)


@in_every_graph
def test_where_a_step_may_have_been_done_is_kept_until_it_is_done_there_or_undone(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            assert set(new.undo.routes) == expected_tried(edge, old, new), str(edge)


def expected_tried(  # noqa: PLR0911  a table
    edge: Edge, old: StepRecord, new: StepRecord
) -> set[int]:
    """Return which routes are to be undone after a decision: worked out apart from ``sas``."""
    about = edge.event.step in {-1, old.number}
    turned = old.direction is Direction.DO and new.direction is Direction.UNDO
    out = old.process_state is StepState.PROCESSING
    if out and new.process_state is StepState.PROCESSING and new.direction is Direction.UNDO:
        return set(old.undo.routes)  # cancelled: out still
    if out and new.process_state is StepState.PROCESSING and new.epoch == old.epoch:
        return set(old.undo.routes)  # it goes on, or is excused
    if turned or (out and old.direction is Direction.UNDO):
        undone = new.process_state is not StepState.COMPENSATED
        return {*old.undo.routes, old.call.route} if undone else set()
    if not about:
        return set(old.undo.routes)
    match edge.event.name:
        case "done" if out:
            return set(old.undo.routes) - {old.call.route}
        case "expire" | "expire behind" | "refused" | "waited" if out:
            return {*old.undo.routes, old.call.route}
        case "undone":
            return set(old.undo.routes[1:])
        case "skip" if old.process_state is StepState.ERROR:
            failed = {old.undo.routes[0]} if old.undo_failed else {old.call.route}
            return set(old.undo.routes) - failed
        case _:
            return set(old.undo.routes)


@in_every_graph
def test_the_undo_of_a_whole_step_begins_at_the_agent_asked_last(graph: Graph) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            if old.direction is Direction.DO and new.process_state is StepState.COMPENSATING:
                assert new.undo.routes[0] == old.call.route, str(edge)


@in_every_graph
def test_a_step_that_waited_goes_to_an_agent_further_down_or_rests(graph: Graph) -> None:
    told = [edge for edge in graph.edges if edge.event.name == "waited"]
    assert bool(told) == graph.case.waited
    onward = graph.successors(lambda edge: edge.event.name == "waited")
    assert find_cycle(onward) is None
    for edge in told:
        old, new = edge.before.steps[edge.event.step], edge.after.steps[edge.event.step]
        if old.direction is Direction.UNDO:
            continue
        asked = [request.route for request in edge.sent(Request) if request.step == old.number]
        assert all(route > old.call.route for route in asked)
        assert new.resting == (not asked), str(edge)
        assert (new.failure_count, new.failures.extended_waits) == (
            old.failure_count,
            old.failures.extended_waits,
        )
        assert edge.sent(Notify) == []
        assert old.call.route in new.undo.routes


@in_every_graph
def test_an_undo_that_failed_elsewhere_takes_no_input_and_its_step_is_tried_there_again(
    graph: Graph,
) -> None:
    seen = False
    for order in graph.states.values():
        for step in filter(failed_elsewhere, order.steps):
            seen = True
            assert not command.takes_input(step, graph.rules)
            again = command.resubmit(order, graph.rules, now=SOON, step=step.name, edited="1")
            assert again is not None
            new = again.steps[step.number]
            expected = replace(
                step,
                process_state=StepState.PROCESSED,
                undo=UndoLedger(UndoStatus.NOT_DECIDED, step.undo.routes),
                failures=Failures(),
                error=None,
                since=new.since,
                turn=new.turn,
            )
            assert new == expected
            assert new.complete_by is not None
            assert new.complete_by > SOON
    assert seen == goes_elsewhere(graph)


@in_every_graph
def test_what_is_shut_changes_who_is_asked_and_nothing_else(graph: Graph) -> None:
    """Whether an agent is to be had says nothing of what has been done."""
    open_edges = {(e.source, e.event): e for e in graph.edges if not e.event.shut}
    shut_edges = [edge for edge in graph.edges if edge.event.shut]
    assert shut_edges
    for edge in shut_edges:
        other = open_edges[edge.source, replace(edge.event, shut=frozenset())]
        for one, two in zip(edge.after.steps, other.after.steps, strict=True):
            if edge.event.name != "waited":  # without another agent it rests
                assert on_route_0(one) == on_route_0(two), str(edge)
            assert (one.undo.routes, one.failure_count) == (two.undo.routes, two.failure_count)


def on_route_0(step: StepRecord) -> StepRecord:
    return replace(step, call=replace(step.call, route=0))
