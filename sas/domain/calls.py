"""The life of one request at its agent, as a state machine: did a call go out, and what is known?

An agent may get the same request many times: its message is redelivered after a crash, is put back
while a circuit is open, or comes again to check on work that takes hours. Each time two things must
be decided, and both depend only on what happened to this request before:

* **May its end be counted as a failure?** A request of which no call could begin has not failed.
  Its agent replies that it waited, the step rests, and FailureCount stays as it is.
* **May its agent reply at all?** If a call went out and time is over, nobody knows whether the call
  had its effect. Then the agent is silent, and the supervisor recovers the step.

*Time is over* when CompleteBy has passed, or when no further call may begin before it: the next one
would have to wait for a moment after CompleteBy, or so close to it that the wait is of no use
(``InFlightRequest.is_close``: five seconds, or a sixth of the time allowed if that is less).

The states, and what is known in each of them:

=============  ====================================================================================
QUEUED         No call counts: it only waited in its queue, or its inline call was cut off.
WAITING        It was put back, and no call went out. A probe that failed counts as no call.
OUT            A call is at the remote service.
PROBING        The first call is at a service whose circuit is open: it tests that service.
TRIED          A call went out, or a crash hides whether one did. It may have had its effect.
GOES_ON        The service may be at work, or an outage or a bug came. A later message checks.
ANSWERED       The end: a reply was sent.
NOT_BEGUN      Time is over, and no call counts. The agent replies that the step waited, or puts
               the request back if CompleteBy has passed: it asks for more time when it comes again.
CUT_OFF        The end: time is over, and a call may have gone out. The agent is silent.
SUPERSEDED     The end: the step no longer waits for this request. It is dropped.
=============  ====================================================================================

A message carries the state from one delivery to the next (``CARRIED``): no state is in the store.
``CALL_MOVES`` is the whole machine. Every other move is a bug, and ``after`` raises. docs/states.md
shows the table as a diagram. The tests walk every state and event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum

from sas.domain.moves import IllegalMoveError


class CallState(Enum):
    """What is known of the calls of one request. See the table above."""

    QUEUED = "queued"
    WAITING = "waiting"
    OUT = "out"
    PROBING = "probing"
    TRIED = "tried"
    GOES_ON = "goes-on"
    ANSWERED = "answered"
    NOT_BEGUN = "not-begun"
    CUT_OFF = "cut-off"
    SUPERSEDED = "superseded"


class CallEvent(Enum):
    """What may happen to a request at its agent."""

    REDELIVERED = "redelivered"
    """An earlier delivery of the same message ended without a trace: a call may have gone out."""
    NEEDS_TIME = "needs time"
    """It came too late for a call. It asks the scheduler for time, and comes again."""
    SUPERSEDED = "superseded"
    CALLED = "a call goes out"
    PROBED = "a call goes out as a probe"
    ENDED = "the call ended"
    """It returned, failed, or was cut off: it may have had its effect."""
    SERVICE_AWAY = "the service is away"
    """The call failed because of the service alone. If it was a probe, its step has not failed."""
    INTERRUPTED = "interrupted"
    """The receiver puts the message back. The store or a queue does not answer, or CompleteBy has
    passed before the agent could reply that the step waited.
    """
    PUT_BACK = "put back"
    TIME_OVER = "time is over"
    """CompleteBy has passed, or comes before the next call may begin."""
    REPLIED = "replied"
    CONTINUED = "continued"
    """The agent answered that the step goes on."""


_S, _E = CallState, CallEvent


@dataclass(frozen=True, slots=True)
class CallMove:
    """One legal move: in this state, this event leads to that state."""

    before: CallState
    event: CallEvent
    after: CallState
    _: KW_ONLY
    why: str = ""


CALL_MOVES: tuple[CallMove, ...] = (
    # Before a call goes out
    CallMove(_S.QUEUED, _E.REDELIVERED, _S.TRIED, why="the crash may have come after a call"),
    CallMove(_S.QUEUED, _E.NEEDS_TIME, _S.QUEUED),
    CallMove(_S.QUEUED, _E.SUPERSEDED, _S.SUPERSEDED),
    CallMove(_S.QUEUED, _E.CALLED, _S.OUT),
    CallMove(_S.QUEUED, _E.PROBED, _S.PROBING),
    CallMove(_S.QUEUED, _E.INTERRUPTED, _S.QUEUED),
    CallMove(_S.QUEUED, _E.PUT_BACK, _S.WAITING),
    CallMove(_S.QUEUED, _E.TIME_OVER, _S.NOT_BEGUN),
    CallMove(_S.QUEUED, _E.REPLIED, _S.ANSWERED, why="refused without a call: its order is gone"),
    CallMove(_S.WAITING, _E.REDELIVERED, _S.TRIED),
    CallMove(_S.WAITING, _E.NEEDS_TIME, _S.QUEUED, why="with new time it begins anew"),
    CallMove(_S.WAITING, _E.SUPERSEDED, _S.SUPERSEDED),
    CallMove(_S.WAITING, _E.CALLED, _S.OUT),
    CallMove(_S.WAITING, _E.PROBED, _S.PROBING),
    CallMove(_S.WAITING, _E.INTERRUPTED, _S.WAITING),
    CallMove(_S.WAITING, _E.PUT_BACK, _S.WAITING),
    CallMove(_S.WAITING, _E.TIME_OVER, _S.NOT_BEGUN),
    CallMove(_S.WAITING, _E.REPLIED, _S.ANSWERED),
    # While a call is out
    CallMove(_S.OUT, _E.ENDED, _S.TRIED),
    CallMove(_S.OUT, _E.SERVICE_AWAY, _S.TRIED),
    CallMove(_S.PROBING, _E.ENDED, _S.TRIED, why="the service answered: it was a call like others"),
    CallMove(_S.PROBING, _E.SERVICE_AWAY, _S.WAITING, why="the probe failed, not the step"),
    # After a call
    CallMove(_S.TRIED, _E.REDELIVERED, _S.TRIED),
    CallMove(_S.TRIED, _E.NEEDS_TIME, _S.GOES_ON),
    CallMove(_S.TRIED, _E.SUPERSEDED, _S.SUPERSEDED),
    CallMove(_S.TRIED, _E.CALLED, _S.OUT, why="a retry, with the same idempotency key"),
    CallMove(_S.TRIED, _E.PROBED, _S.OUT, why="an earlier call counts already"),
    CallMove(_S.TRIED, _E.INTERRUPTED, _S.GOES_ON, why="the outage is not its fault: new time"),
    CallMove(_S.TRIED, _E.PUT_BACK, _S.TRIED),
    CallMove(_S.TRIED, _E.TIME_OVER, _S.CUT_OFF),
    CallMove(_S.TRIED, _E.REPLIED, _S.ANSWERED),
    CallMove(_S.TRIED, _E.CONTINUED, _S.GOES_ON),
    # Time is over, and no call counts
    CallMove(_S.NOT_BEGUN, _E.REPLIED, _S.ANSWERED, why="the agent replies that the step waited"),
    CallMove(_S.NOT_BEGUN, _E.INTERRUPTED, _S.QUEUED, why="no reply in time: it asks for more"),
    # A check of work that goes on
    CallMove(_S.GOES_ON, _E.REDELIVERED, _S.GOES_ON),
    CallMove(_S.GOES_ON, _E.NEEDS_TIME, _S.GOES_ON),
    CallMove(_S.GOES_ON, _E.SUPERSEDED, _S.SUPERSEDED),
    CallMove(_S.GOES_ON, _E.CALLED, _S.OUT),
    CallMove(_S.GOES_ON, _E.PROBED, _S.OUT),
    CallMove(_S.GOES_ON, _E.INTERRUPTED, _S.GOES_ON),
    CallMove(_S.GOES_ON, _E.PUT_BACK, _S.TRIED, why="it gets no new time for this check"),
    CallMove(_S.GOES_ON, _E.TIME_OVER, _S.CUT_OFF),
    CallMove(_S.GOES_ON, _E.REPLIED, _S.ANSWERED),
    CallMove(_S.GOES_ON, _E.CONTINUED, _S.GOES_ON, why="its agent had a bug, and a guard waits"),
)

CARRIED = frozenset({CallState.WAITING, CallState.TRIED, CallState.GOES_ON})
"""The states that a message carries. One that carries none is QUEUED."""

_AFTER: Mapping[tuple[CallState, CallEvent], CallState] = {
    (move.before, move.event): move.after for move in CALL_MOVES
}


def after(state: CallState, event: CallEvent) -> CallState:
    """Return the state that follows an event.

    Raises:
        IllegalMoveError: ``CALL_MOVES`` has no such move. It is a bug.
    """
    try:
        return _AFTER[state, event]
    except KeyError:
        text = f"a request that is {state.value} cannot meet the event: {event.value}"
        raise IllegalMoveError(text) from None
