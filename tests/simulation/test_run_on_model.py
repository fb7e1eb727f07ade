"""A chain that runs on loses nothing, and which of its rules that needs: see run_on_check."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.long import long
from tests.simulation.domain_model_check import find_cycle
from tests.simulation.run_on_check import RunOnModel
from tests.simulation.run_on_handlers import Faults, Peeks, Rules, Silent

MIXES = list(product((True, False), repeat=2))
"""Which of the two agents are inline."""
SINGLE = list(product((True, False), repeat=1))
"""Orders of one step are small enough for more faults."""
BARE = Rules(reply_look=False, fence_reply=False, silent=Silent.COMPLETES, out_rows=True)
"""Out rows in place of the three rules about requests whose reply a rival may have committed."""
WITH_INLINE = [(True,), (True, True), (True, False), (False, True)]
CRASH_IN_TIME = Faults(crash=1)
CRASH_LATE = Faults(crash=1, early=1)
TRAVELS = Faults(crash=1, fail=1)
SLOW = Faults(crash=1, lock=1)
SLOW_AND_SILENT = Faults(crash=1, lock=1, silent=1)
LOST = "a notification is lost"
FAILED = "a failure is counted, or a message put aside, after crashes alone"


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
    *((Rules(inline=inline), faults) for inline in MIXES for faults in (CRASH_IN_TIME,)),
    (Rules(), Faults(lock=1)),
    (Rules(), TRAVELS),
    (Rules(inline=(True,)), CRASH_LATE),
    (Rules(inline=(True,), drops=True), CRASH_LATE),
    *((replace(BARE, inline=inline), CRASH_IN_TIME) for inline in MIXES),
    (Rules(inline=(False,), deliveries_max=1), SLOW),
]
LONG = [
    *((Rules(inline=inline), CRASH_LATE) for inline in MIXES),
    *((Rules(inline=inline, drops=True), CRASH_LATE) for inline in MIXES),
    *((Rules(inline=inline), TRAVELS) for inline in MIXES),
    *((Rules(inline=inline), Faults(crash=1, undo=1)) for inline in MIXES),
    *((Rules(inline=inline, deliveries_max=1), SLOW) for inline in MIXES),
    *(
        (Rules(inline=inline, deliveries_max=number), SLOW_AND_SILENT)
        for inline in SINGLE
        for number in (1, 2)
    ),
    *((Rules(inline=inline, drops=True), SLOW_AND_SILENT) for inline in SINGLE),
    *((Rules(inline=inline, silent=Silent.WAITS), SLOW_AND_SILENT) for inline in SINGLE),
    *((replace(BARE, inline=inline), SLOW_AND_SILENT) for inline in SINGLE),
    *((Rules(inline=inline), Faults(crash=1, lock=1, undo=1)) for inline in SINGLE),
    *((Rules(inline=inline), Faults(crash=1, early=1, fail=1)) for inline in SINGLE),
]


@pytest.mark.parametrize("case", SHORT + long(LONG), ids=name)
def test_a_chain_that_runs_on_loses_nothing_wherever_its_handlers_die(
    case: tuple[Rules, Faults],
) -> None:
    model = RunOnModel(*case)
    assert model.explore() is None
    assert find_cycle(model.next) is None, "an order goes round in circles without faults"


@pytest.mark.parametrize("inline", WITH_INLINE, ids=str)
def test_a_redelivered_root_must_walk_its_chain_if_agents_do_not_look_for_replies(
    inline: tuple[bool, ...],
) -> None:
    rules = Rules(inline=inline, reply_look=False)
    assert problem(replace(rules, walk=False), CRASH_IN_TIME) in (LOST, FAILED)
    assert problem(rules, CRASH_IN_TIME) is None


@pytest.mark.parametrize("inline", [(True,), (True, True), (False, True)], ids=str)
def test_a_redelivered_root_must_walk_its_chain_because_an_undo_leaves_out_older_requests(
    inline: tuple[bool, ...],
) -> None:
    faults = Faults(crash=1, undo=1)
    assert problem(Rules(inline=inline, walk=False), faults) == LOST
    assert problem(Rules(inline=inline), faults) is None


def test_a_dead_lettered_request_must_fence_its_reply() -> None:
    rules = Rules(inline=(False,), deliveries_max=1)
    assert problem(replace(rules, fence_reply=False), SLOW) == LOST


@pytest.mark.parametrize("inline", SINGLE, ids=str)
def test_a_superseded_request_must_look_whether_its_reply_is_recorded(
    inline: tuple[bool, ...],
) -> None:
    assert problem(Rules(inline=inline, reply_look=False), SLOW) == LOST


@pytest.mark.parametrize("silent", [Silent.COMPLETES, Silent.LOOKS], ids=str)
@pytest.mark.parametrize("inline", SINGLE, ids=str)
def test_a_silent_agent_that_only_looks_loses_what_a_slow_handler_commits_later(
    inline: tuple[bool, ...], silent: Silent
) -> None:
    """The fix is FENCES or WAITS, in the long cases above."""
    assert problem(Rules(inline=inline, silent=silent), SLOW_AND_SILENT) == LOST


@pytest.mark.parametrize("inline", WITH_INLINE, ids=str)
def test_a_step_must_be_excused_while_the_root_of_its_chain_lies_in_a_queue(
    inline: tuple[bool, ...],
) -> None:
    assert problem(Rules(inline=inline, excuse_root=False), CRASH_LATE) == FAILED


READ_DOWNSTREAM = [
    (False, False),
    *long(inline for inline in MIXES if inline != (False, False)),
]


@pytest.mark.parametrize("inline", READ_DOWNSTREAM, ids=str)
def test_the_supervisor_must_read_the_queues_downstream(inline: tuple[bool, ...]) -> None:
    faults = Faults(early=1)
    by_agent = problem(Rules(inline=inline, peeks=Peeks.AGENT_FIRST), faults)
    assert by_agent == (None if all(inline) else FAILED)
    assert problem(Rules(inline=inline, peeks=Peeks.DOWNSTREAM), faults) is None


@pytest.mark.parametrize("first_only", [True, False])
@pytest.mark.parametrize("inline", MIXES, ids=str)
def test_a_poison_message_costs_the_root_of_its_chain_one_delivery_at_most(
    inline: tuple[bool, ...], *, first_only: bool
) -> None:
    """Even if redeliveries run on: what was recorded before is always sent."""
    rules = Rules(inline=inline, poison=True, deliveries_max=2, first_only=first_only)
    assert problem(rules, Faults()) is None


@pytest.mark.parametrize(
    "case",
    [
        *((inline, CRASH_IN_TIME) for inline in MIXES),
        *long((inline, SLOW_AND_SILENT) for inline in SINGLE),
        *long((inline, TRAVELS) for inline in MIXES),
    ],
    ids=str,
)
def test_nothing_is_lost_if_redeliveries_run_on_as_well(
    case: tuple[tuple[bool, ...], Faults],
) -> None:
    inline, faults = case
    assert problem(Rules(inline=inline, first_only=False), faults) is None
