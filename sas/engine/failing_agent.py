"""A bug of an agent: its step waits, operators are alerted, and nothing is undone.

1. An agent raised what is neither a refusal nor a transient error, or returned what cannot be
   stored. The error, and the innermost line of the adopter's own code, is kept as the last error of
   the step.
2. The step goes on like a long step (``sas.features.long_steps``): its request comes again after a
   pause, and gets the time that it needs. That uses up no delivery and counts no failure. The
   pauses grow to five minutes, so a bug that lasts for days costs little. The number of failures in
   a row travels with the request (``InFlightRequest.failures``).
3. From the second failure of a request in a row, an incident is reported: one for all orders. An
   error that is gone two seconds later needs nobody.
4. After the deploy that mends the bug each request goes on with the same key, and the first one
   that ends well ends the incident. If no request comes back, the incident ends by itself.

A process that dies is another matter: its message is redelivered, and is poison in the end.
"""

from __future__ import annotations

from datetime import timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.order import AttemptError
from sas.domain.texts import quoted
from sas.engine.context import Context
from sas.engine.explained import explained
from sas.engine.in_flight import InFlightRequest
from sas.engine.receiver import delay_s
from sas.ports import HeldError, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
ALERT_FROM = 2
"""An incident is reported from this number of failures in a row of one request."""


class FailingAgentError(Exception):
    """An agent has a bug, so its step waits for ``pause``. The text names the error and its line.

    ``failures`` counts this one and those just before it.
    """

    def __init__(self, error: Exception, failures: int) -> None:
        super().__init__(explained(error))
        self.kind = AttemptError.HELD if isinstance(error, HeldError) else AttemptError.BUG
        self.pause = timedelta(seconds=delay_s(failures, AttemptError.PAUSE_MAX.total_seconds()))


class FailingAgent:
    """The incident of one agent that has a bug."""

    def __init__(self, context: Context, agent: str) -> None:
        self._context = context
        self._agent = agent
        self._name = AlertKind.AGENT_FAILING, f"agent {agent}"

    async def report(self, call: InFlightRequest, error: FailingAgentError) -> None:
        """Log a failure, and report the incident (3). If that fails, the next failure does it."""
        # The text of the error is not logged: it may quote the order.
        log.warning(
            "agent %s failed %d times in a row with %s; order %s step %s %s: again in %.1f s",
            self._agent, call.failures, type(error.__cause__).__name__, call.request.order_id,
            call.request.step_name, call.request.direction, error.pause.total_seconds(),
            exc_info=error.__cause__ if call.failures == 1 else None,
        )  # fmt: skip
        if call.failures < ALERT_FROM:
            return
        kind, scope = self._name
        why = str(error)
        if error.kind == AttemptError.HELD:
            why = quoted(why.rstrip("."))
        now = self._context.clock.now()
        incident = Incident(
            kind=kind,
            scope=scope,
            text=f"Agent {self._agent} fails: {why}. Deploy a mended version. "
            "Its steps wait, and are tried again at least every five minutes. Nothing is undone "
            "meanwhile, and nothing must be resubmitted.",
            since=now,
            until=now + error.pause + AttemptError.PAUSE_MAX,
            agent=self._agent,
        )
        try:
            await self._context.incidents.report(incident, call.request.order_id)
        except UnavailableError as outage:
            log.warning("agent %s fails: its alert is sent later: %s", self._agent, outage)

    async def ended_well(self, call: InFlightRequest) -> None:
        """End the incident if this request had reported it (4)."""
        failures, call.failures = call.failures, 0
        if failures < ALERT_FROM:
            return
        try:
            await self._context.incidents.end(*self._name)
        except UnavailableError as outage:
            log.warning("agent %s works: its incident ends later: %s", self._agent, outage)
