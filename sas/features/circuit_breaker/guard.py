"""The circuit breaker around one agent's calls. All instances share its state through the store.

1. **Look.** Before a call the guard reads the shared state. While the circuit is closed, it reads
   at most once a second, so an instance may call for a second longer than it should. Otherwise it
   reads before each call.
2. **Admit.** Closed: the call goes out. Open, or another request probes: the request must wait, and
   is put back, and no failure is counted.
3. **Probe.** When the pause is over, a request makes itself the probe by writing its id into the
   shared state. The write is guarded by a token, so of two requests one becomes the probe.
4. **Learn.** Each instance counts its own consecutive failures in memory, and only a change of the
   circuit is written. Enough failures, or a failed probe, open it. Any answer closes it. If two
   instances write at once, the token lets one win, and the other one reads the new state.
5. **Report.** An open circuit is an incident. If its alert is not sent, because the store is away
   or the instance dies, the next sweep derives the same incident from the shared state
   (``OpenCircuits``).

If the probe's instance dies, the probe is given up at ``until``, and another request may probe.
Losing the count of failures costs a few more calls. No order depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.texts import quoted
from sas.engine.context import Context
from sas.engine.hooks import Admission, CallEnd
from sas.engine.in_flight import InFlightRequest
from sas.engine.shared_values import SharedValues
from sas.features.circuit_breaker import rules
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, BreakerState
from sas.ports import (
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

    async def admit(self, call: InFlightRequest) -> Admission | datetime:
        """See ``CallGuard.admit``.

        If a probe is due, this request becomes the probe. If another request became it first, this
        one waits.
        """
        if not self._policy.failures_max:
            return Admission.CALL
        request = call.request
        for _ in range(_TRIES):
            now = self._context.clock.now()
            await self._look(now)  # 1. Look.
            breaker = self._breaker
            # 2. Admit.
            until = rules.wait_of(breaker, request.id, now, request.order_id)
            if until is not None:
                return until
            if breaker.state is BreakerState.CLOSED:
                return Admission.CALL
            if breaker.prober == request.id:
                return Admission.PROBE
            # 3. Probe.
            if await self._change(rules.probe(breaker, request.id, self._policy, now)):
                log.info("circuit of %s: request %s is the probe", self._agent, request.id)
                return Admission.PROBE
        return self._context.clock.now() + LOOK_AGAIN_AFTER

    async def ended(self, call: InFlightRequest, end: CallEnd, why: str) -> None:
        """See ``CallGuard.ended``."""
        if not self._policy.failures_max:
            return
        request = call.request
        match end:  # 4. Learn.
            case CallEnd.ANSWERED:
                await self._succeeded()
            case CallEnd.FAILED:
                self._failures += 1
                await self._failed(request.order_id, why)
            case CallEnd.ERROR_ANSWER:
                self._failed_orders.add(request.order_id)
                await self._failed(request.order_id, why)
            case CallEnd.UNKNOWN:
                breaker = self._breaker
                if breaker.prober == request.id:
                    await self._change(rules.given_up(breaker, self._context.clock.now()))

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
        is_new = self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_AFTER
        if is_new and self._breaker.state is BreakerState.CLOSED:
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

        If the store is down, the next sweep reports it. The call itself must not fail.
        """
        try:
            if self._breaker.state is BreakerState.CLOSED:
                await self._context.incidents.end(*_name(self._agent))
            else:
                now = self._context.clock.now()
                await self._context.incidents.report(_incident(self._agent, self._breaker, now))
        except StoreUnavailableError as error:
            log.warning("circuit of %s: its alert is sent later: %s", self._agent, error)


class OpenCircuits:
    """The agents whose circuit is open: for routing, and for the health check of each sweep.

    See ``sas.features.routing.Unavailable`` and ``sas.features.incidents.board.HealthCheck``.
    """

    def __init__(self, store: StateStore, clock: Clock) -> None:
        self._clock = clock
        self._shared = breakers(store)
        self._circuits: dict[str, Breaker] = {}
        self._looked_at: datetime | None = None

    async def incidents(self) -> tuple[list[Incident], list[tuple[AlertKind, str]]]:
        """Return the incidents of open circuits, and the names of those that have ended.

        They follow from the shared state, so neither a crash nor an outage loses one.

        Raises:
            StoreUnavailableError: the circuits could not be read.
        """
        now = self._clock.now()
        circuits = {name: shared.value for name, shared in (await self._shared.all()).items()}
        return (
            [
                _incident(agent, breaker, now)
                for agent, breaker in circuits.items()
                if _is_open(breaker)
            ],
            [_name(agent) for agent, breaker in circuits.items() if not _is_open(breaker)],
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
            shared = await self._shared.read(agent)
            self._circuits[agent] = shared.value if shared else Breaker()
        self._looked_at = now

    def is_open(self, agent: str, now: datetime) -> bool:
        """Return whether a new request to an agent would have to wait."""
        return rules.wait_of(self._circuits.get(agent, Breaker()), "", now) is not None


def _is_open(breaker: Breaker) -> bool:
    return breaker.state is not BreakerState.CLOSED


def _name(agent: str) -> tuple[AlertKind, str]:
    return AlertKind.BREAKER_OPEN, f"agent {agent}"


def _incident(agent: str, breaker: Breaker, now: datetime) -> Incident:
    text = (
        f"The remote service of agent {agent} failed too often in a row, with "
        f"{quoted(breaker.why)}. No calls go out until a probe succeeds. Requests wait, and no "
        "failure is counted. Check that service."
    )
    kind, scope = _name(agent)
    return Incident(
        kind=kind,
        scope=scope,
        text=text,
        since=breaker.since or now,
        until=now + _ACTIVE_FOR,
        agent=agent,
    )
