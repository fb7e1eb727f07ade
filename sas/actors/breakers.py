"""Guards one agent's calls by the breaker of its remote service, shared by all instances.

While the breaker is closed a call costs nothing but a read every second; the shared state is
written only when it changes, guarded by its token.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sas.actors.compose import alert
from sas.actors.context import Context
from sas.codec.breakers import cell_name, from_cell, to_value
from sas.codec.outward import AlertMessage
from sas.domain import breaker
from sas.domain.breaker import Breaker, BreakerPolicy, BreakerState
from sas.domain.ids import key_time
from sas.domain.messages import AlertKind
from sas.ports import BusUnavailableError, Cell, ConflictError
from sas.telemetry import metrics
from sas.telemetry.logs import logger

log = logger(__name__)
LOOK_AGAIN_AFTER = timedelta(seconds=1)
_TRIES = 4


class BreakerGuard:
    """One agent's breaker, as this instance sees it."""

    def __init__(self, context: Context, agent: str, policy: BreakerPolicy) -> None:
        self._context = context
        self._agent = agent
        self._policy = policy
        self._failures = 0
        self._cell: Cell | None = None
        self._breaker = Breaker()
        self._looked_at: datetime | None = None

    async def wait_of(self, request: str) -> datetime | None:
        """Return until when a request must be put back; None where it may call now.

        Where the breaker is due for a probe, this request becomes it, or waits for the rival
        that did.
        """
        if not self._policy.failures_max:
            return None
        for _ in range(_TRIES):
            now = self._context.clock.now()
            await self._look(now)
            found = self._breaker
            wait = breaker.wait_of(found, request, now)
            if wait is not None or found.state is BreakerState.CLOSED:
                return wait
            if found.prober == request and found.state is BreakerState.HALF_OPEN:
                return None
            if await self._change(breaker.probe(found, request, self._policy, now)):
                log.info("breaker of %s: request %s is the probe", self._agent, request)
                return None
        return self._context.clock.now() + LOOK_AGAIN_AFTER

    def probes(self, request: str) -> bool:
        """Return whether everybody waits for what becomes of this request."""
        found = self._breaker
        return found.state is BreakerState.HALF_OPEN and found.prober == request

    async def succeeded(self) -> None:
        """Note that the service answered; a probe's answer closes the breaker."""
        self._failures = 0
        if self._breaker.state is BreakerState.CLOSED or not self._policy.failures_max:
            return
        now = self._context.clock.now()
        opened_since = self._breaker.since
        if await self._change(breaker.closed(now)):
            away = f" (since {key_time(opened_since)})" if opened_since else ""
            await self._tell(
                AlertKind.BREAKER_CLOSED,
                f"The remote service of agent {self._agent} answers again{away}: calls go out.",
            )

    async def failed(self, why: str) -> None:
        """Note that the service failed; enough in a row, or a failed probe, open the breaker."""
        if not self._policy.failures_max:
            return
        self._failures += 1
        probing = self._breaker.state is BreakerState.HALF_OPEN
        if self._breaker.state is BreakerState.OPEN:
            return
        if not probing and self._failures < self._policy.failures_max:
            return
        now = self._context.clock.now()
        if await self._change(breaker.opened(self._breaker, self._policy, now, why)):
            self._failures = 0
            if not probing:
                await self._tell(
                    AlertKind.BREAKER_OPEN,
                    f"The remote service of agent {self._agent} failed "
                    f"{self._policy.failures_max} times in a row ({why}). No calls go out until "
                    "a probe succeeds; requests wait within their CompleteBy.",
                )

    async def _look(self, now: datetime) -> None:
        fresh = self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER
        if fresh and self._breaker.state is BreakerState.CLOSED:
            return
        self._cell = await self._context.store.read_cell(cell_name(self._agent))
        self._breaker = from_cell(self._cell)
        self._looked_at = now

    async def _change(self, to: Breaker) -> bool:
        """Write the shared state; False where a rival changed it first (then look again)."""
        value = to_value(to)
        token = self._cell.token if self._cell else None
        try:
            self._cell = await self._context.store.write_cell(cell_name(self._agent), value, token)
        except ConflictError:
            # A repeat inside the store may be met by its own first write: then it is ours.
            self._looked_at = None
            await self._look(self._context.clock.now())
            return self._breaker == to
        self._breaker = to
        metrics.breaker_changed(self._agent, to.state.value)
        log.warning("breaker of %s: %s", self._agent, to.state.value)
        return True

    async def _tell(self, kind: AlertKind, text: str) -> None:
        """Alert the operator; a bus that is down must not fail the call that went through."""
        now = self._context.clock.now()
        own_id = f"{kind.value}/{self._agent}/{key_time(now)}"
        body = AlertMessage(kind=kind.value, at=key_time(now), text=text, id=own_id)
        try:
            await self._context.bus.send([alert(body, self._context.to)])
        except BusUnavailableError as down:
            log.warning("alert %s could not be sent: %s", own_id, down)
