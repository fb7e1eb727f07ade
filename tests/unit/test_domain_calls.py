"""The life of one request at its agent: every state and every event."""

from __future__ import annotations

import itertools

import pytest

from sas.domain.calls import CALL_MOVES, CARRIED, CallEvent, CallState, after
from sas.domain.moves import IllegalMoveError
from tests.each import each

LEGAL = {(move.before, move.event): move.after for move in CALL_MOVES}
ENDS = {CallState.ANSWERED, CallState.CUT_OFF, CallState.SUPERSEDED}
CALLS_OUT = {CallEvent.CALLED, CallEvent.PROBED}


def walks(length: int) -> list[tuple[list[CallEvent], CallState]]:
    """Return every sequence of legal events from QUEUED, up to a length, with its last state."""
    walks: list[tuple[list[CallEvent], CallState]] = [([], CallState.QUEUED)]
    newest = walks
    for _ in range(length):
        newest = [
            ([*events, event], LEGAL[state, event])
            for events, state in newest
            for event in CallEvent
            if (state, event) in LEGAL
        ]
        walks = walks + newest
    return walks


@each(list(itertools.product(CallState, CallEvent)))
def test_each_state_meets_each_event_as_the_table_says_or_refuses_it(
    state: CallState, event: CallEvent
) -> None:
    if (state, event) in LEGAL:
        assert after(state, event) is LEGAL[state, event]
    else:
        with pytest.raises(IllegalMoveError, match=f"{state.value} cannot meet .* {event.value}"):
            after(state, event)


# The same machine once more, written by hand: a column for each event, "." where it is illegal.
EXPECTED = """
             redel.   needs-t.  supers.     called  probed   ended  away     interr.  put-b.   over       replied   cont.
queued       tried    queued    superseded  out     probing  .      .        queued   waiting  not-begun  answered  .
waiting      tried    queued    superseded  out     probing  .      .        waiting  waiting  not-begun  answered  .
out          .        .         .           .       .        tried  tried    .        .        .          .         .
probing      .        .         .           .       .        tried  waiting  .        .        .          .         .
tried        tried    goes-on   superseded  out     out      .      .        goes-on  tried    cut-off    answered  goes-on
goes-on      goes-on  goes-on   superseded  out     out      .      .        goes-on  tried    cut-off    answered  goes-on
not-begun    .        .         .           .       .        .      .        queued   .        .          answered  .
"""  # noqa: E501


def test_the_machine_is_the_one_that_is_expected() -> None:
    lines = [line.split() for line in EXPECTED.strip().splitlines()]
    for state, *cells in lines[1:]:
        for event, cell in zip(CallEvent, cells, strict=True):
            following = LEGAL.get((CallState(state), event))
            assert (following.value if following else ".") == cell, (state, event)
    assert {CallState(line[0]) for line in lines[1:]} == set(CallState) - ENDS


def test_the_table_has_each_state_and_event_once() -> None:
    assert len(LEGAL) == len(CALL_MOVES)
    assert {state for _, state in walks(4)} == set(CallState)
    assert {move.event for move in CALL_MOVES} == set(CallEvent)


def test_nothing_follows_an_end_and_every_other_state_can_be_left() -> None:
    assert {move.before for move in CALL_MOVES} == set(CallState) - ENDS


@each([CallState.QUEUED, *(s for s in CallState if s in CARRIED)])
def test_a_carried_state_meets_all_that_may_happen_to_a_message(state: CallState) -> None:
    """A copy of a message must not come back in a state that its delivery cannot leave."""
    for event in (
        CallEvent.REDELIVERED,
        CallEvent.NEEDS_TIME,
        CallEvent.SUPERSEDED,
        CallEvent.INTERRUPTED,
        CallEvent.PUT_BACK,
        CallEvent.TIME_OVER,
        *CALLS_OUT,
    ):
        assert (state, event) in LEGAL


def test_an_agent_is_silent_only_after_a_call_and_a_step_waited_only_without_one() -> None:
    """A redelivery may hide a call. A probe that its service failed was no call of its step."""
    for events, state in walks(6):
        pairs = itertools.zip_longest(events, events[1:])
        may_have_effect = any(
            event in {CallEvent.CALLED, CallEvent.REDELIVERED}
            or (event is CallEvent.PROBED and following is not CallEvent.SERVICE_AWAY)
            for event, following in pairs
        )
        assert state is not CallState.CUT_OFF or may_have_effect, events
        assert state is not CallState.NOT_BEGUN or not may_have_effect, events
