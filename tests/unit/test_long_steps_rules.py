"""The rules of long steps: whether a request may call, checks again, or asks for more time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.calls import CallState
from sas.domain.order import (
    Direction,
    Dispatched,
    LastCall,
    StepRecord,
    StepState,
    UndoStatus,
)
from sas.domain.workflow import TIME_ALLOWED_MAX, TIME_ALLOWED_MIN
from sas.features.long_steps import rules
from sas.features.long_steps.rules import GRANT_RECHECK, CheckAgain, GoAhead, Received
from tests.unit.domain_cases import SECOND, T0

ALLOWED = 60 * SECOND
HOUR = timedelta(hours=1)
AT = T0 + GRANT_RECHECK


def received(seconds_left: float, **members: object) -> Received:
    """Return a request whose own CompleteBy is so many seconds from now."""
    return Received(complete_by=T0 + seconds_left * SECOND, allowed=ALLOWED, **members)  # type: ignore[arg-type]


def test_what_was_put_back_needs_a_sixth_of_a_time_that_is_very_short() -> None:
    tried = Received(complete_by=T0, allowed=0.12 * SECOND, state=CallState.TRIED)
    assert tried.time_needed == 0.02 * SECOND


def out(seconds_left: float) -> StepRecord:
    """Return a step that is out, and was granted this time."""
    until = T0 + seconds_left * SECOND
    call = LastCall(called_until=until)
    return StepRecord(
        number=0,
        name="a",
        process_state=StepState.PROCESSING,
        since=T0,
        turn=Dispatched(locked_by="s", complete_by=until),
        epoch=1,
        call=call,
    )


@pytest.mark.parametrize(
    ("request_", "enough"),
    [
        (received(40), True),
        (received(39), False),
        (received(10, state=CallState.GOES_ON), True),
        (received(9, state=CallState.GOES_ON), False),
        (received(60, checks=1), False),  # only the granted CompleteBy counts
        (received(TIME_ALLOWED_MIN.total_seconds(), state=CallState.WAITING), True),
        (received(TIME_ALLOWED_MIN.total_seconds() / 2, state=CallState.WAITING), False),
    ],
)
def test_a_request_with_time_enough_reads_no_order(request_: Received, enough: bool) -> None:
    assert rules.has_time(request_, T0) is enough


@pytest.mark.parametrize(
    ("request_", "step", "answer"),
    [
        (received(5), None, None),
        (received(5), out(40), GoAhead(T0 + 40 * SECOND)),
        (received(5), out(500), GoAhead(T0 + ALLOWED)),
        (received(5), out(5), CheckAgain(AT, AT + ALLOWED, asks=True)),
        (received(30), out(30), CheckAgain(AT, AT + ALLOWED, asks=True)),
        (received(-500), out(-500), CheckAgain(AT, AT + ALLOWED, asks=True)),
        (received(5, waited=HOUR), out(5), CheckAgain(AT, AT + HOUR + ALLOWED, asks=True)),
        (
            received(5, waited=TIME_ALLOWED_MAX),
            out(5),
            CheckAgain(AT, AT + TIME_ALLOWED_MAX, asks=True),
        ),
        (received(10, state=CallState.GOES_ON), out(10), GoAhead(T0 + 10 * SECOND)),
        (received(60, checks=1), out(15), CheckAgain(AT, T0 + ALLOWED, asks=False)),
        (received(20, checks=1), out(15), CheckAgain(AT, AT + ALLOWED, asks=True)),
        (
            received(60, checks=1, state=CallState.GOES_ON),
            out(15),
            CheckAgain(AT, T0 + ALLOWED, asks=False),
        ),
        (received(60, checks=1), out(60), GoAhead(T0 + ALLOWED)),
    ],
    ids=[
        "superseded",
        "granted more than it knew",
        "granted more than one call needs",
        "late",
        "a little late",
        "hours late",
        "late after a long wait in its queue",
        "late after the longest wait",
        "called before: a sixth is enough",
        "its grant is under way",
        "its grant is under way, and too late",
        "its grant is under way: a third is needed",
        "granted",
    ],
)
def test_a_request_calls_by_the_time_that_its_step_was_granted(
    request_: Received, step: StepRecord | None, answer: GoAhead | CheckAgain | None
) -> None:
    assert rules.judge(request_, step, Direction.DO, T0) == answer


AWAITS = replace(
    out(500),
    turn=Dispatched(locked_by="s", complete_by=T0 + 500 * SECOND, awaits=True),
    call=LastCall(called_until=T0),
)


@pytest.mark.parametrize(
    ("step", "direction", "asks"),
    [
        (out(5), Direction.DO, True),
        (replace(out(5), undo=UndoStatus.TO_BE_UNDONE), Direction.DO, False),
        (AWAITS, Direction.DO, False),
        (replace(out(5), call=LastCall(called_until=T0)), Direction.UNDO, True),
    ],
    ids=["it goes on", "its order was cancelled", "it awaits a callback", "its undo goes on"],
)
def test_a_late_request_asks_for_time_only_if_a_call_may_follow(
    step: StepRecord, direction: Direction, asks: bool
) -> None:
    answer = rules.judge(received(5), step, direction, T0)
    assert answer == (CheckAgain(AT, AT + ALLOWED, asks=True) if asks else None)


@pytest.mark.parametrize(
    ("time_left", "after", "checks", "check"),
    [
        (ALLOWED, 10 * SECOND, 0, (10 * SECOND, ALLOWED, True)),
        (ALLOWED, 10 * SECOND, 1, (10 * SECOND, ALLOWED, False)),
        (ALLOWED, 40 * SECOND, 1, (40 * SECOND, ALLOWED, False)),
        (ALLOWED, 41 * SECOND, 1, (41 * SECOND, 101 * SECOND, True)),
        (
            ALLOWED,
            TIME_ALLOWED_MAX,
            1,
            (TIME_ALLOWED_MAX - ALLOWED / 2, TIME_ALLOWED_MAX, True),
        ),
    ],
    ids=["after the first call", "soon", "a third is left", "less is left", "the longest"],
)
def test_a_step_asks_for_time_once_and_then_only_when_little_is_left(
    time_left: timedelta, after: timedelta, checks: int, check: tuple[timedelta, timedelta, bool]
) -> None:
    at, until, asks = check
    next_check = rules.next_check(T0 + time_left, ALLOWED, after, checks=checks, now=T0)
    assert next_check == CheckAgain(T0 + at, T0 + until, asks=asks)
