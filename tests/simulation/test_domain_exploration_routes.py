"""Rules of routes in every reachable state: which agent is asked, and that a step stays there."""

from __future__ import annotations

from dataclasses import replace

from sas.domain.messages import Request
from sas.domain.order import StepRecord
from tests.simulation.domain_model_check import Edge, Graph
from tests.simulation.domain_scopes import in_routed_graphs


@in_routed_graphs
def test_a_step_goes_to_one_of_its_agents_and_its_first_request_chooses_which(
    graph: Graph,
) -> None:
    routes = {step.name: {0} for order in graph.states.values() for step in order.steps}
    for edge in graph.edges:
        step_numbers = {request.step for request in edge.sent(Request)}
        for old, new in edge.pairs():
            first = old.epoch == 0 and old.number in step_numbers
            assert new.call.route == (first_closed(edge, old) if first else old.call.route)
            routes[new.name].add(new.call.route)
    assert routes == {name: set(range(graph.case.routes_of(name))) for name in routes}


def first_closed(edge: Edge, step: StepRecord) -> int:
    """Return the first agent whose circuit is closed, or the first: apart from ``sas``."""
    routes = range(edge.case.routes_of(step.name))
    closed = [route for route in routes if (step.number, route) not in edge.event.shut]
    return closed[0] if closed else 0


@in_routed_graphs
def test_what_is_shut_changes_who_is_asked_and_nothing_else(graph: Graph) -> None:
    """Whether an agent is to be had says nothing of what has been done."""
    open_edges = {(e.source, e.event): e for e in graph.edges if not e.event.shut}
    shut_edges = [edge for edge in graph.edges if edge.event.shut]
    assert shut_edges
    for edge in shut_edges:
        other = open_edges[edge.source, replace(edge.event, shut=frozenset())]
        for step, other_step in zip(edge.after.steps, other.after.steps, strict=True):
            assert on_route_0(step) == on_route_0(other_step), str(edge)


def on_route_0(step: StepRecord) -> StepRecord:
    return replace(step, call=replace(step.call, route=0))
