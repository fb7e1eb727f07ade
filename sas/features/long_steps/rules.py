"""Long steps, pure: how much time a request has, and when it asks for more.

Only the CompleteBy that the scheduler granted counts. A request that needs more time asks for it,
and checks again whether it was granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.domain.calls import CallState
from sas.domain.claim import calls_until, is_cancelled
from sas.domain.order import Direction, StepRecord
from sas.domain.workflow import NO_TIME, TIME_ALLOWED_MAX, TIME_ALLOWED_MIN

GRANT_RECHECK = timedelta(seconds=2)
"""Pause before a request checks whether it was granted the time that it asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request as it comes to its agent, with the CompleteBy that it carries.

    ``state`` is the ``CallState`` that its message carries. ``checks`` counts the earlier messages
    of this request: more than 0 means that it comes back to check on work, or with new time.
    ``waited`` is how long it waited in its queue.
    """

    complete_by: datetime
    allowed: timedelta
    state: CallState = CallState.QUEUED
    checks: int = 0
    waited: timedelta = NO_TIME

    @property
    def time_needed(self) -> timedelta:
        """The time that must be left for a call.

        A first call gets most of the time allowed, because the time in the queue is not the fault
        of the remote service. A request that its agent put back keeps only the time that is left.
        Otherwise its time would never end: each return from a wait would add some.
        """
        match self.state:
            case CallState.QUEUED:
                return self.allowed * 2 / 3
            case CallState.GOES_ON:
                return self.allowed / 6
            case _:
                return min(TIME_ALLOWED_MIN, self.allowed / 6)


@dataclass(frozen=True, slots=True)
class GoAhead:
    """The call may go out, and has time until ``until``."""

    until: datetime


@dataclass(frozen=True, slots=True)
class CheckAgain:
    """Put the request back until ``at``, with the CompleteBy ``until``.

    ``asks`` says that the scheduler is to be asked for that time.
    """

    at: datetime
    until: datetime
    asks: bool


def has_time(received: Received, now: datetime) -> bool:
    """Return whether a request has time enough by what it carries, so that no order is read."""
    return not received.checks and received.complete_by - now >= received.time_needed


def judge(
    received: Received, step: StepRecord | None, direction: Direction, now: datetime
) -> GoAhead | CheckAgain | None:
    """Decide about a request whose order was read. None drops it: no call may go out.

    ``step`` is None if the step no longer waits for this request.
    """
    if step is None:
        return None
    allowed, carried = received.allowed, received.complete_by
    granted = calls_until(step, direction) or now
    if granted - now >= (received.time_needed if granted >= carried else allowed / 3):
        return GoAhead(min(granted, now + allowed))
    if not _may_get_time(step, direction):
        return None
    at = now + GRANT_RECHECK
    if received.checks and carried - now > allowed / 3:
        return CheckAgain(at, carried, asks=False)  # it is not granted yet
    # It goes to the end of its queue: ask for another wait as long as the last one, too.
    return CheckAgain(at, at + min(received.waited + allowed, TIME_ALLOWED_MAX), asks=True)


def next_check(
    complete_by: datetime,
    allowed: timedelta,
    check_after: timedelta,
    *,
    checks: int,
    now: datetime,
) -> CheckAgain:
    """Return the next check of a step that goes on, ``check_after`` from now.

    It asks for time only if less than a third of the time allowed would be left, or if this was the
    first call. So a step that is checked often does not fill the journal.
    """
    # At most TIME_ALLOWED_MAX is granted, and at the check some of it must be left.
    at = now + min(check_after, TIME_ALLOWED_MAX - allowed / 2)
    until = complete_by
    if complete_by - at < allowed / 3:
        until = min(at + allowed, now + TIME_ALLOWED_MAX)
    return CheckAgain(at, until, asks=until > complete_by or not checks)


def _may_get_time(step: StepRecord, direction: Direction) -> bool:
    """Return whether a request whose time is over may get more.

    It gets none if its order was cancelled or its step waits for a callback: no call may follow.
    """
    if direction is Direction.UNDO:
        return True
    return not is_cancelled(step) and not step.awaits_callback
