"""The workflows whose every reachable state is explored, and how long that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sas.domain.workflow import OnFailure
from tests.simulation.domain_model_check import Case, Graph, explore
from tests.unit.domain_cases import SHAPES

LONG = pytest.mark.long
WITHOUT_UNDO = [
    ("one", "a"),
    ("two in a row", "a"),
    ("two in a row", "b"),
    ("two in a row", "ab"),
    ("three in a row", "b"),
    ("two beside each other", "a"),
    ("two beside each other", "ab"),
    ("diamond", "bc"),
    ("diamond", "a"),
    ("diamond", "d"),
]
PATIENT: list[tuple[str, int, dict[str, Any]]] = [
    ("one", 1, {"backoff": True}),
    ("one", 0, {"waits": 2}),
    ("one", 1, {"backoff": True, "waits": 1, "drain_time": True, "deadline": True}),
    ("two in a row", 1, {"backoff": True, "waits": 1, "drain_time": True, "deadline": True}),
    ("two beside each other", 1, {"backoff": True}),
    ("two beside each other", 0, {"waits": 1}),
    ("two beside each other", 0, {"drain_time": True, "deadline": True}),
]
ROUTED: list[tuple[str, int, dict[str, Any]]] = [
    ("one", 0, {"routes": 2}),
    ("one", 1, {"routes": 2}),
    ("one", 1, {"routes": 3}),
    ("one", 1, {"routes": 2, "without_undo": frozenset("a")}),
    ("one", 1, {"routes": 2, "backoff": True, "waits": 1, "drain_time": True, "deadline": True}),
    ("two in a row", 0, {"routes": 2}),
    ("two in a row", 1, {"routes": 2, "routed": frozenset("a")}),
    ("two in a row", 0, {"routes": 2, "without_undo": frozenset("b"), "drain_time": True}),
    ("two beside each other", 0, {"routes": 2, "routed": frozenset("a")}),
    ("two beside each other", 1, {"routes": 2, "without_undo": frozenset("a")}),
]
WAITING: list[tuple[str, int, dict[str, Any]]] = [
    ("one", 1, {"waited": True}),
    ("one", 0, {"waited": True, "without_undo": frozenset("a")}),
    ("one", 0, {"waited": True, "backoff": True, "drain_time": True, "deadline": True}),
    ("one", 0, {"waited": True, "routes": 2}),
    ("two in a row", 0, {"waited": True}),
    ("two beside each other", 0, {"waited": True}),
]
CASES = (
    [
        Case(shape_name=shape, on_failure=policy, failures_max=failures_max)
        for shape in SHAPES
        for policy in OnFailure
        for failures_max in (0, 1)
        if (shape, failures_max) != ("three beside each other", 1)  # minutes, and nothing new
    ]
    + [
        Case(shape_name=shape, on_failure=policy, failures_max=1, without_undo=frozenset(names))
        for shape, names in WITHOUT_UNDO
        for policy in OnFailure
    ]
    + [
        Case(shape_name=shape, on_failure=policy, failures_max=failures_max, **options)
        for shape, failures_max, options in PATIENT + ROUTED + WAITING
        for policy in OnFailure
    ]
)


def is_large(case: Case) -> bool:
    """Return whether a case has so many states that it is long. HOLD has two or three times as
    many as UNDO, and steps beside each other have more than steps in a row.
    """
    patient = case.backoff or case.waits > 0 or case.drain_time or case.waited
    if case.shape_name == "one":
        return case.routes > 1 and (patient or case.routes > 2)
    if case.shape_name == "two beside each other":
        plain = case.routes == 1 and not patient
        return not plain or (case.on_failure is OnFailure.HOLD and case.failures_max > 0)
    if case.shape_name in {"three beside each other", "diamond"}:
        return case != Case(shape_name="diamond", on_failure=OnFailure.UNDO, failures_max=0)
    if case.shape_name == "two in a row" and case.drain_time:
        return True
    return case.on_failure is OnFailure.HOLD and (
        case.routes > 1 or case.shape_name == "three in a row"
    )


SHORT = [case for case in CASES if not is_large(case)]
LARGE = [case for case in CASES if is_large(case)]


def in_graphs(is_chosen: Callable[[Case], bool], check: Callable[[Graph], None]) -> Any:
    """Return a test that makes a check in every graph of the chosen scopes.

    It is one test for the small scopes and one, which is long, for the large ones. A failure names
    its scope.
    """
    scopes = [pytest.param(SHORT, id="small"), pytest.param(LARGE, id="large", marks=LONG)]

    @pytest.mark.parametrize("cases", scopes)
    def test(cases: list[Case]) -> None:
        chosen_cases = [case for case in cases if is_chosen(case)]
        assert chosen_cases
        for case in chosen_cases:
            try:
                check(explore(case))
            except AssertionError as error:
                error.add_note(f"in the scope: {case}")
                raise

    return test


def in_every_graph(check: Callable[[Graph], None]) -> Any:
    """Return a test that makes a check in every graph."""
    return in_graphs(lambda case: True, check)


def in_routed_graphs(check: Callable[[Graph], None]) -> Any:
    """Return a test that makes a check in every graph whose steps have several agents."""
    return in_graphs(lambda case: case.routes > 1, check)
