"""What holds of routes in every state an order can reach: who is asked, and who is undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.domain import commands
from sas.domain.messages import Notify, Request, Wake
from sas.domain.model import Direction, StepRecord, StepState, UndoRecord
from sas.domain.workflow import OnFailure
from tests.unit.domain_model_check import SOON, Edge, Graph, explore, find_cycle, in_every_graph
from tests.unit.test_domain_exploration import LARGE, SHORT, by_shape

ROUTED = [[case for case in cases if case.routes > 1] for cases in (SHORT, LARGE)]


@pytest.fixture(scope="module", params=by_shape(*ROUTED))
def graphs(request: pytest.FixtureRequest) -> list[Graph]:
    return [explore(case) for case in request.param]


def failed_elsewhere(step: StepRecord) -> bool:
    """Return whether a step is done, but its undo at an agent asked before has failed."""
    undone = step.direction is Direction.DO and step.undo is UndoRecord.FAILED
    return step.process_state is StepState.ERROR and undone


@in_every_graph
def test_the_routes_to_be_undone_are_some_of_the_steps_own_each_once(graph: Graph) -> None:
    for order in graph.states.values():
        for step in order.steps:
            own = set(range(graph.case.routes_of(step.name)))
            assert {step.route, *step.tried} <= own
            assert len(set(step.tried)) == len(step.tried)
            if step.epoch == 0:
                assert (step.route, step.tried) == (0, ())


@in_every_graph
def test_a_step_being_undone_has_an_agent_to_be_undone_at_and_one_that_is_undone_has_none(
    graph: Graph,
) -> None:
    for order in graph.states.values():
        for step in order.steps:
            match step.process_state:
                case StepState.COMPENSATING:
                    assert step.tried
                case StepState.COMPENSATED:
                    assert step.tried == ()
                case StepState.ERROR:
                    assert step.tried


@in_every_graph
def test_the_agent_that_did_a_processed_step_is_not_undone_while_do_goes_on(graph: Graph) -> None:
    seen = False
    for edge in graph.edges:
        for new in edge.after.steps:
            if new.process_state is StepState.PROCESSED or failed_elsewhere(new):
                assert new.route not in new.tried
                seen = seen or bool(new.tried)
    assert seen == goes_elsewhere(graph)


def goes_elsewhere(graph: Graph) -> bool:
    """Return whether a step of this case may be done elsewhere after it timed out."""
    lacks = graph.case.without_undo >= set(graph.case.shape)
    again = graph.case.failures_max > 0 or graph.case.on_failure is OnFailure.HOLD
    again = again or graph.case.vain
    return again and not lacks


@in_every_graph
def test_a_step_that_names_no_undo_stays_with_the_agent_that_may_have_done_it(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            if old.name in graph.case.without_undo:
                assert set(new.tried) <= {new.route}
                assert new.route == old.route or not old.tried, str(edge)


@in_every_graph
def test_where_a_step_may_have_been_done_is_kept_until_it_is_done_there_or_undone(
    graph: Graph,
) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            assert set(new.tried) == expected_tried(edge, old, new), str(edge)


def expected_tried(  # noqa: PLR0911  a table
    edge: Edge, old: StepRecord, new: StepRecord
) -> set[int]:
    """Return which routes are to be undone after a decision: worked out apart from ``sas``."""
    about = edge.event.step in {-1, old.number}
    turned = old.direction is Direction.DO and new.direction is Direction.UNDO
    out = old.process_state is StepState.PROCESSING
    if out and new.process_state is StepState.PROCESSING and new.direction is Direction.UNDO:
        return set(old.tried)  # cancelled: out still
    if turned or (out and old.direction is Direction.UNDO):
        undone = new.process_state is not StepState.COMPENSATED
        return {*old.tried, old.route} if undone else set()
    if not about:
        return set(old.tried)
    match edge.event.name:
        case "done" if out:
            return set(old.tried) - {old.route}
        case "expire" | "expire behind" | "refused" | "waited" if out:
            return {*old.tried, old.route}
        case "undone":
            return set(old.tried[1:])
        case "skip" if old.process_state is StepState.ERROR:
            failed = {old.tried[0]} if old.undo is UndoRecord.FAILED else {old.route}
            return set(old.tried) - failed
        case _:
            return set(old.tried)


@in_every_graph
def test_the_undo_of_a_whole_step_begins_at_the_agent_asked_last(graph: Graph) -> None:
    for edge in graph.edges:
        for old, new in edge.pairs():
            if old.direction is Direction.DO and new.process_state is StepState.COMPENSATING:
                assert new.tried[0] == old.route, str(edge)


@in_every_graph
def test_an_agent_that_called_nobody_is_no_failure_and_no_wait(graph: Graph) -> None:
    told = [edge for edge in graph.edges if edge.event.name == "unavailable"]
    assert told
    for edge in told:
        old, new = edge.before.steps[edge.event.step], edge.after.steps[edge.event.step]
        if old.direction is Direction.DO:
            assert (new.failure_count, new.waits) == (old.failure_count, old.waits)
            assert new.process_state in {StepState.PENDING, StepState.PROCESSING}
            assert edge.sent(Notify) == []
            assert not new.hold


@in_every_graph
def test_an_agent_that_called_nobody_is_followed_by_those_after_it_or_by_a_wake(
    graph: Graph,
) -> None:
    onward = graph.successors(lambda edge: edge.event.name == "unavailable")
    assert find_cycle(onward) is None
    for edge in graph.edges:
        if edge.event.name != "unavailable" or edge.before.direction is Direction.UNDO:
            continue
        old = edge.before.steps[edge.event.step]
        asked = [request.route for request in edge.sent(Request) if request.step == old.number]
        assert all(route > old.route for route in asked)
        blocked = StepState.ERROR in {step.process_state for step in edge.before.steps}
        assert len(asked) == 1 or edge.sent(Wake) or blocked, str(edge)


@in_every_graph
def test_an_undo_that_failed_elsewhere_takes_no_input_and_its_step_is_tried_there_again(
    graph: Graph,
) -> None:
    seen = False
    for order in graph.states.values():
        for step in filter(failed_elsewhere, order.steps):
            seen = True
            assert not commands.takes_input(step, graph.rules)
            again = commands.resubmit(order, graph.rules, now=SOON, step=step.name, edited="1")
            assert again is not None
            new = again.steps[step.number]
            since = new.since
            expected = replace(
                step, process_state=StepState.PROCESSED, undo=None, failure_count=0, since=since
            )
            expected = replace(expected, waits=0)
            assert replace(new, complete_by=None) == replace(expected, complete_by=None)
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
            if edge.event.name != "unavailable":
                assert replace(one, route=0) == replace(two, route=0), str(edge)
            assert (one.tried, one.failure_count) == (two.tried, two.failure_count)
