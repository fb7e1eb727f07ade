"""Guards one agent's calls by the breaker of its remote service, shared by all instances.

While the breaker is closed a call costs nothing but a read every second; the shared state is
written only when it changes, guarded by its token.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.engine.context import Context
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import BusUnavailableError, ConflictError, SharedValue, StoreUnavailableError
from sas.telemetry import metrics
from sas.telemetry.tracing import logger

log = logger(__name__)


LOOK_AGAIN_AFTER = timedelta(seconds=1)


_TRIES = 4


_STANDS_FOR = timedelta(days=1)
"""Longer than any sweep is away: what ends this condition is that the breaker is closed."""


class CircuitBreaker:
    """One agent's breaker, as this instance sees it."""

    def __init__(self, context: Context, agent: str, policy: BreakerPolicy) -> None:
        self._context = context
        self._agent = agent
        self._policy = policy
        self._failures = 0
        self._cell: SharedValue[str] | None = None
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
            wait = rules.wait_of(found, request, now)
            if wait is not None or found.state is BreakerState.CLOSED:
                return wait
            if found.prober == request and found.state is BreakerState.HALF_OPEN:
                return None
            if await self._change(rules.probe(found, request, self._policy, now)):
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
        if await self._change(rules.closed(now)):
            await self._tell()

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
        if await self._change(rules.opened(self._breaker, self._policy, now, why)):
            self._failures = 0
            if not probing:
                await self._tell()

    async def found_nothing_out(self, request: str) -> None:
        """Note that a call was cut off too soon to say anything of the service: where it was the
        probe, another request may be it.
        """
        if self.probes(request):
            await self._change(rules.given_up(self._breaker, self._context.clock.now()))

    async def _look(self, now: datetime) -> None:
        fresh = self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER
        if fresh and self._breaker.state is BreakerState.CLOSED:
            return
        self._cell = await self._context.store.read_shared(cell_name(self._agent))
        self._breaker = from_cell(self._cell)
        self._looked_at = now

    async def _change(self, to: Breaker) -> bool:
        """Write the shared state; False where a rival changed it first (then look again)."""
        value = to_value(to)
        token = self._cell.token if self._cell else None
        try:
            self._cell = await self._context.store.write_shared(
                cell_name(self._agent), value, token
            )
        except ConflictError:
            # A repeat inside the store may be met by its own first write: then it is ours.
            self._looked_at = None
            await self._look(self._context.clock.now())
            return self._breaker == to
        self._breaker = to
        metrics.breaker_changed(self._agent, to.state.value)
        log.warning("breaker of %s: %s", self._agent, to.state.value)
        return True

    async def _tell(self) -> None:
        """Have the operator told how the breaker stands now. Where store or bus are down the
        supervisor's next sweep does it: that must not fail the call that went through.
        """
        try:
            if self._breaker.state is BreakerState.CLOSED:
                await self._context.conditions.over(*_incident_name(self._agent))
            else:
                now = self._context.clock.now()
                await self._context.conditions.met(_incident(self._agent, self._breaker, now))
        except (StoreUnavailableError, BusUnavailableError) as down:
            log.warning("breaker of %s: the operator is told later: %s", self._agent, down)


async def incidents_of(context: Context) -> tuple[list[Incident], list[tuple[AlertKind, str]]]:
    """Return the conditions that breakers are in which are not closed, from their state, so that no
    crash and no outage loses one; and the kinds and scopes of those that are.

    Raises:
        StoreUnavailableError: they could not be read.
    """
    now = context.clock.now()
    found = {
        name.removeprefix(CELLS): from_cell(cell)
        for name, cell in (await context.store.shared_values(CELLS)).items()
    }
    shut = {agent: one for agent, one in found.items() if one.state is not BreakerState.CLOSED}
    standing = [_incident(agent, one, now) for agent, one in shut.items()]
    return standing, [_incident_name(agent) for agent in found if agent not in shut]


def _incident_name(agent: str) -> tuple[AlertKind, str]:
    return AlertKind.BREAKER_OPEN, f"agent {agent}"


def _incident(agent: str, found: Breaker, now: datetime) -> Incident:
    text = (
        f"The remote service of agent {agent} failed too often in a row ({found.why}). No calls go "
        "out until a probe succeeds; requests wait, and no failure is counted for it."
    )
    kind, scope = _incident_name(agent)
    return Incident(kind, scope, text, found.since or now, now + _STANDS_FOR)


CELLS = "breaker|"
"""What the names of all these cells begin with."""


def cell_name(agent: str) -> str:
    """Return the name under which an agent's breaker is kept."""
    return f"{CELLS}{agent}"


def from_cell(cell: SharedValue[str] | None) -> Breaker:
    """Return the breaker that a cell holds; a closed one where there is none."""
    return msgspec.json.decode(cell.value, type=Breaker) if cell else Breaker()


def to_value(rules: Breaker) -> str:
    """Return a breaker as the value of its cell."""
    return msgspec.json.encode(rules).decode()
