"""A chain that runs on loses nothing, and which of its rules that needs: see run_on_check."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.long import long
from tests.simulation.domain_model_check import find_cycle
from tests.simulation.run_on_check import Rules, RunOnModel
from tests.simulation.run_on_state import Faults

MIXES = list(product((True, False), repeat=2))
"""Which of the two agents are inline."""
SINGLE = list(product((True, False), repeat=1))
"""Orders of one step are small enough for more faults."""
WITH_INLINE = [(True,), (True, True), (True, False), (False, True)]
CRASH_IN_TIME = Faults(crash=1)
CRASH_LATE = Faults(crash=1, early=1)
FAILS = Faults(crash=1, fail=1)
SLOW = Faults(crash=1, lock=1)
SLOW_AND_SILENT = Faults(crash=1, lock=1, silent=1)
LOST = "a notification is lost"
FAILED = "a failure is counted, or a message put aside, after crashes alone"
SLOW_WAKE = (
    "order, delivery 1: decide order",
    "order, delivery 1: LOCK LOST",
    "order, delivery 2: decide order",
    "order, delivery 2: look order",
    "order, delivery 2: send again wake",
    "order, delivery 2: complete",
    "the supervisor: step 0 is Pending, failures: 0",
    "supervisor, delivery 0: send wake",
    "supervisor, delivery 0: remove row 1",
    "wake, delivery 1: decide wake",
    "wake, delivery 1: call request 0.1: silent",
    "wake, delivery 1: complete",
)
"""A handler still has the first wake. Another wake claimed the step, and its agent was silent."""


def name(case: tuple[Rules, Faults]) -> str:
    rules, faults = case
    changed = [
        f"{key}={value}" for key, value in vars(rules).items() if value != getattr(Rules(), key)
    ]
    budgets = [f"{number} {fault}" for fault, number in faults._asdict().items() if number]
    return ", ".join([*changed, *budgets])


def problem(rules: Rules, faults: Faults) -> str | None:
    """Return the broken promise, None if all are kept."""
    trace = RunOnModel(rules, faults).explore()
    return None if trace is None else trace[-1]


SHORT = [
    *((Rules(inline=inline), CRASH_IN_TIME) for inline in MIXES),
    *((Rules(inline=inline), FAILS) for inline in SINGLE),
    *((Rules(inline=inline), CRASH_LATE) for inline in SINGLE),
    (Rules(inline=(True, False)), CRASH_LATE),
    (Rules(), Faults(lock=1)),
    (Rules(inline=(False,), deliveries_max=1), SLOW),
]
LONG = [
    (Rules(inline=(False, False)), CRASH_LATE),
    *((Rules(inline=inline), FAILS) for inline in MIXES),
    *(
        (Rules(inline=inline, deliveries_max=number), SLOW_AND_SILENT)
        for inline in SINGLE
        for number in (1, 2)
    ),
    *((Rules(inline=(inline, inline), deliveries_max=1), SLOW) for inline in (True, False)),
]


@pytest.mark.parametrize("case", SHORT + long(LONG), ids=name)
def test_a_chain_that_runs_on_loses_nothing_wherever_its_handlers_die(
    case: tuple[Rules, Faults],
) -> None:
    model = RunOnModel(*case)
    assert model.explore() is None
    assert find_cycle(model.next) is None, "an order goes round in circles without faults"


@pytest.mark.parametrize("inline", [(True, False), (False, True)], ids=str)
def test_an_agent_that_is_not_first_must_look_for_its_reply_before_its_call_or_after_it(
    inline: tuple[bool, ...],
) -> None:
    rules = Rules(inline=inline, look_first=False, look_last=False)
    assert problem(rules, CRASH_IN_TIME) in (LOST, FAILED)
    assert problem(replace(rules, look_first=True), CRASH_IN_TIME) is None
    assert problem(replace(rules, look_last=True), CRASH_IN_TIME) is None


@pytest.mark.parametrize("inline", [(True,), (True, True), (False, True)], ids=str)
def test_a_redelivered_root_must_walk_its_chain_because_an_undo_leaves_out_older_requests(
    inline: tuple[bool, ...],
) -> None:
    faults = Faults(crash=1, undo=1)
    assert problem(Rules(inline=inline, walk=False), faults) == LOST
    assert problem(Rules(inline=inline), faults) is None


def test_a_dead_lettered_request_must_fence_its_reply() -> None:
    rules = Rules(inline=(False,), deliveries_max=1)
    assert problem(replace(rules, fence_dead=False), SLOW) == LOST


@pytest.mark.parametrize("inline", SINGLE, ids=str)
def test_a_superseded_request_must_look_whether_its_reply_is_recorded(
    inline: tuple[bool, ...],
) -> None:
    assert problem(Rules(inline=inline, look_last=False), SLOW) == LOST


@pytest.mark.parametrize("inline", SINGLE, ids=str)
def test_a_silent_agent_must_fence_its_reply_if_its_delivery_is_not_first(
    inline: tuple[bool, ...],
) -> None:
    assert problem(Rules(inline=inline, fence_silent=False), SLOW_AND_SILENT) == LOST


def test_a_request_that_a_walk_sends_needs_a_mark_because_its_count_is_one() -> None:
    """The slow handler of the order may commit the reply after the agent was silent, and die."""
    assert problem(Rules(inline=(True,), marks=False), SLOW_AND_SILENT) == LOST


@pytest.mark.parametrize("fence_wake", [False, True])
def test_a_wake_that_is_not_first_and_finds_nothing_must_fence_its_cause(
    *, fence_wake: bool
) -> None:
    """Else the slow handler of the order may claim the step by it later, run on, and die."""
    rules = Rules(inline=(True,), fence_wake=fence_wake)
    trace = RunOnModel(rules, Faults(crash=1, lock=1, silent=1, early=1)).explore(SLOW_WAKE)
    assert trace is None if fence_wake else trace is not None and trace[-1] == LOST


@pytest.mark.parametrize("inline", WITH_INLINE, ids=str)
def test_a_step_must_be_excused_while_the_root_of_its_chain_lies_in_a_queue(
    inline: tuple[bool, ...],
) -> None:
    assert problem(Rules(inline=inline, excuse_root=False), CRASH_LATE) == FAILED


@pytest.mark.parametrize(
    "case",
    [
        *((inline, CRASH_IN_TIME) for inline in MIXES),
        *long((inline, SLOW_AND_SILENT) for inline in SINGLE),
    ],
    ids=str,
)
def test_nothing_is_lost_if_redeliveries_run_on_as_well(
    case: tuple[tuple[bool, ...], Faults],
) -> None:
    inline, faults = case
    assert problem(Rules(inline=inline, first_only=False), faults) is None
