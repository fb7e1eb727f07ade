"""The circuit breaker around one agent's calls. All instances share its state through the store.

While the circuit is closed, an instance reads the state at most once a second. The state is written
only when it changes, guarded by its token.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.engine.context import Context
from sas.engine.hooks import CallAttempt, CallEnd
from sas.engine.shared_values import SharedValues
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import (
    BusUnavailableError,
    Clock,
    ConflictError,
    SharedValue,
    StateStore,
    StoreUnavailableError,
)
from sas.telemetry import metrics
from sas.telemetry.tracing import logger

log = logger(__name__)
LOOK_AGAIN_AFTER = timedelta(seconds=1)
_TRIES = 4
_ACTIVE_FOR = timedelta(days=1)
"""Much longer than the time between two sweeps: the incident ends when the circuit is closed."""


def breakers(store: StateStore) -> SharedValues[Breaker]:
    """Return the shared state of every circuit, by agent."""
    return SharedValues(store, "breaker|", Breaker)


class CircuitBreaker:
    """One agent's circuit, as this instance sees it. See ``sas.engine.hooks.CallGuard``."""

    def __init__(self, context: Context, agent: str, policy: BreakerPolicy) -> None:
        self._context = context
        self._shared = breakers(context.store)
        self._agent = agent
        self._policy = policy
        self._failures = 0
        self._failed_orders: set[str] = set()
        self._value: SharedValue[Breaker] | None = None
        self._breaker = Breaker()
        self._looked_at: datetime | None = None

    async def admit(self, attempt: CallAttempt) -> datetime | None:
        """See ``CallGuard.admit``.

        If a probe is due, this request becomes the probe. If another request became it first, this
        one waits.
        """
        if not self._policy.failures_max:
            return None
        request = attempt.request.id
        for _ in range(_TRIES):
            now = self._context.clock.now()
            await self._look(now)
            found = self._breaker
            wait = rules.wait_of(found, request, now, attempt.request.order_id)
            if wait is not None or found.state is BreakerState.CLOSED:
                return wait
            attempt.probes = True
            if found.prober == request and found.state is BreakerState.HALF_OPEN:
                return None
            if await self._change(rules.probe(found, request, self._policy, now)):
                log.info("circuit of %s: request %s is the probe", self._agent, request)
                return None
            attempt.probes = False
        return self._context.clock.now() + LOOK_AGAIN_AFTER

    async def ended(self, attempt: CallAttempt, end: CallEnd, why: str) -> None:
        """See ``CallGuard.ended``."""
        if not self._policy.failures_max:
            return
        attempt.excused = attempt.probes and end in {CallEnd.FAILED, CallEnd.ERROR_ANSWER}
        match end:
            case CallEnd.ANSWERED:
                await self._succeeded()
            case CallEnd.FAILED:
                self._failures += 1
                await self._failed(attempt.request.order_id, why)
            case CallEnd.ERROR_ANSWER:
                self._failed_orders.add(attempt.request.order_id)
                await self._failed(attempt.request.order_id, why)
            case CallEnd.UNKNOWN:
                found, request = self._breaker, attempt.request.id
                if found.state is BreakerState.HALF_OPEN and found.prober == request:
                    await self._change(rules.given_up(found, self._context.clock.now()))

    async def _succeeded(self) -> None:
        """Record an answer of the service. The answer to a probe closes the circuit."""
        self._start_count()
        for _ in range(_TRIES):  # another instance may change it at the same time
            if self._breaker.state is BreakerState.CLOSED:
                return
            if await self._change(rules.closed(self._context.clock.now())):
                await self._report()
                return

    def _start_count(self) -> None:
        self._failures = 0
        self._failed_orders.clear()

    async def _failed(self, order_id: str, why: str) -> None:
        """Act on a failure. Enough failures in a row, or a failed probe, open the circuit.

        All error answers to one order count once. Otherwise the retries of one order would open the
        circuit for all orders.
        """
        probing = self._breaker.state is BreakerState.HALF_OPEN
        if self._breaker.state is BreakerState.OPEN:
            return
        failures = self._failures + len(self._failed_orders)
        if not probing and failures < self._policy.failures_max:
            return
        now = self._context.clock.now()
        suspect = order_id if probing else None
        if await self._change(
            rules.opened(self._breaker, self._policy, now=now, why=why, suspect=suspect)
        ):
            self._start_count()
            if not probing:
                await self._report()

    async def _look(self, now: datetime) -> None:
        fresh = self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER
        if fresh and self._breaker.state is BreakerState.CLOSED:
            return
        self._value = await self._shared.read(self._agent)
        self._breaker = self._value.value if self._value else Breaker()
        self._looked_at = now

    async def _change(self, to: Breaker) -> bool:
        """Write the shared state; False if a rival changed it first."""
        try:
            self._value = await self._shared.write(self._agent, to, self._value)
        except ConflictError:
            # The adapter of the store repeats a write whose answer was lost. If the first one
            # succeeded, the second one conflicts, and the state is the one we wrote.
            self._looked_at = None
            await self._look(self._context.clock.now())
            return self._breaker == to
        self._breaker = to
        metrics.breaker_changed(self._agent, to.state.value)
        log.warning("circuit of %s: %s", self._agent, to.state.value)
        return True

    async def _report(self) -> None:
        """Report the incident of an open circuit, or its end.

        If the store or the bus is down, the next sweep reports it. The call itself must not fail.
        """
        try:
            if self._breaker.state is BreakerState.CLOSED:
                await self._context.incidents.end(*_name(self._agent))
            else:
                now = self._context.clock.now()
                await self._context.incidents.report(_incident(self._agent, self._breaker, now))
        except (StoreUnavailableError, BusUnavailableError) as down:
            log.warning("circuit of %s: its alert is sent later: %s", self._agent, down)


class OpenCircuits:
    """The agents whose circuit is open: for routing, and for the health check of each sweep.

    See ``sas.features.routing.Unavailable`` and ``sas.features.incidents.board.HealthCheck``.
    """

    def __init__(self, store: StateStore, clock: Clock) -> None:
        self._clock = clock
        self._shared = breakers(store)
        self._known: dict[str, Breaker] = {}
        self._looked_at: datetime | None = None

    async def incidents(self) -> tuple[list[Incident], list[tuple[AlertKind, str]]]:
        """Return the incidents of open circuits, and the names of those that have ended.

        They follow from the shared state, so neither a crash nor an outage loses one.

        Raises:
            StoreUnavailableError: the circuits could not be read.
        """
        now = self._clock.now()
        found = {name: one.value for name, one in (await self._shared.all()).items()}
        return (
            [_incident(agent, one, now) for agent, one in found.items() if _is_open(one)],
            [_name(agent) for agent, one in found.items() if not _is_open(one)],
        )

    async def refresh(self, agents: Mapping[str, object]) -> None:
        """Read the circuits of these agents, at most once a second.

        Raises:
            StoreUnavailableError: they could not be read.
        """
        now = self._clock.now()
        if self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER:
            return
        for agent in sorted(agents):
            found = await self._shared.read(agent)
            self._known[agent] = found.value if found else Breaker()
        self._looked_at = now

    def is_open(self, agent: str, now: datetime) -> bool:
        """Return whether a new request to an agent would have to wait."""
        return rules.wait_of(self._known.get(agent, Breaker()), "", now) is not None


def _is_open(found: Breaker) -> bool:
    return found.state is not BreakerState.CLOSED


def _name(agent: str) -> tuple[AlertKind, str]:
    return AlertKind.BREAKER_OPEN, f"agent {agent}"


def _incident(agent: str, found: Breaker, now: datetime) -> Incident:
    text = (
        f"The remote service of agent {agent} failed too often in a row ({found.why}). No calls go "
        "out until a probe succeeds. Requests wait, and no failure is counted. Check that service."
    )
    kind, scope = _name(agent)
    return Incident(
        kind=kind,
        scope=scope,
        text=text,
        since=found.since or now,
        until=now + _ACTIVE_FOR,
        agent=agent,
    )
