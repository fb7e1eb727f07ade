"""One request while its agent works on it: its state, and the time that it has."""

from __future__ import annotations

from datetime import datetime, timedelta

from sas.codec.internal import RequestMessage
from sas.domain.calls import CARRIED, CallEvent, CallState, after
from sas.engine.delivery import AGAIN, Delivery
from sas.ports import Clock

CALL_STATE = "sas_call_state"
"""Property of a request: its ``CallState`` when its last delivery ended."""
AGENT_FAILURES = "sas_agent_failures"
"""Property of a request: how often in a row a bug of its agent ended its handling."""
CLOSE_TO_COMPLETE_BY = timedelta(seconds=5)
"""An agent does not wait for anything that comes later than this before CompleteBy."""
LAST_REPLY = timedelta(seconds=1)
"""So long before CompleteBy an agent stops waiting for the answer to a probe."""
_CARRIED_BY_VALUE = {state.value: state for state in CARRIED}


def carrying(state: CallState) -> dict[str, str]:
    """Return the properties by which a message carries a state; none if it is QUEUED."""
    return {CALL_STATE: state.value} if state in CARRIED else {}


class InFlightRequest:
    """A request in one delivery of its message.

    The agent's actor makes it, moves its ``state``, and gives it the CompleteBy that
    the long steps granted (``request``). Guards only read it; they may use it as a key, because one
    request has one call at a time. ``carried`` is the state that the message brought, and does not
    change. ``is_first`` says that nobody else has the request, or had it. ``function_ends_at`` is
    when the agent's function must end. ``failures`` is how often in a row a bug of the agent ended
    its handling, this time included.
    """

    def __init__(self, request: RequestMessage, delivery: Delivery, clock: Clock) -> None:
        self.request = request
        self.function_ends_at = delivery.ends_at
        self.is_first = delivery.is_first
        self.carried = _CARRIED_BY_VALUE.get(
            str(delivery.properties.get(CALL_STATE)), CallState.QUEUED
        )
        self.state = self.carried
        failures = str(delivery.properties.get(AGENT_FAILURES))
        self.failures = int(failures) if failures.isdecimal() and len(failures) < 9 else 0
        self._clock = clock
        if (delivery.count or 1) > 1:
            self.move(CallEvent.REDELIVERED)

    def move(self, event: CallEvent) -> None:
        """Move to the state that follows an event; raises IllegalMoveError."""
        self.state = after(self.state, event)

    def interrupt(self) -> dict[str, str]:
        """Return the properties with which the receiver puts the message back.

        Its copy keeps the properties that the message brought. So a state is named only if it is
        another one, and then even if it is QUEUED.
        """
        self.move(CallEvent.INTERRUPTED)
        return {} if self.state is self.carried else {CALL_STATE: self.state.value}

    def coming_again(self, state: CallState) -> dict[str, str]:
        """Return the properties of the message by which the request comes again, in this state."""
        again = {} if self.is_first else {AGAIN: "yes"}
        failures = {AGENT_FAILURES: str(self.failures)} if self.failures else {}
        return carrying(state) | again | failures

    @property
    def time_allowed(self) -> timedelta:
        """The time that its workflow allows one dispatch."""
        return timedelta(seconds=self.request.time_allowed)

    @property
    def fair_share(self) -> timedelta:
        """The shortest time after which a call without answer counts as a failed service."""
        return self.time_allowed / 3

    @property
    def last_reply(self) -> datetime:
        """The last moment to stop waiting for a call, so that a reply is still sent in time."""
        return self.request.complete_by - min(LAST_REPLY, self.time_allowed / 30)

    def seconds_to_complete_by(self) -> float:
        """Return the seconds until CompleteBy; less than 0 if it has passed."""
        return (self.request.complete_by - self._clock.now()).total_seconds()

    def is_late(self) -> bool:
        """Return whether CompleteBy has passed."""
        return self.seconds_to_complete_by() <= 0

    def outlasts_function(self, moment: datetime) -> bool:
        """Return whether a moment comes after the end of the function."""
        return self.function_ends_at is not None and moment >= self.function_ends_at

    def is_close(self, moment: datetime) -> bool:
        """Return whether a moment is too close to CompleteBy to wait for it."""
        reserve = min(CLOSE_TO_COMPLETE_BY, self.time_allowed / 6)
        return moment >= self.request.complete_by - reserve


class MustWaitError(Exception):
    """No call of a request may go out before ``until``, so its message is put back until then."""

    def __init__(self, until: datetime) -> None:
        super().__init__(until)
        self.until = until
