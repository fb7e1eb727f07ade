"""The circuit breaker as a sequence: two instances, two agents, and a rival in each write.

The model follows the theory of operation of ``sas.features.circuit_breaker.guard``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.engine.hooks import Admission, CallEnd
from sas.features.circuit_breaker.guard import CircuitBreaker, OpenCircuits, breakers
from sas.features.circuit_breaker.rules import RECHECK, Breaker, BreakerPolicy, BreakerState
from sas.ports import StoreUnavailableError
from sas.testing.clock import START, VirtualClock
from tests.simulation.machines.contested_store import ContestedStore
from tests.simulation.machines.kit import AsyncMachine

SECOND = timedelta(seconds=1)
POLICY = BreakerPolicy(open_for=10 * SECOND, open_for_max=25 * SECOND, probe_for=20 * SECOND)
OPEN, HALF_OPEN, CLOSED = BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED
AGENTS, ORDERS, INSTANCES = ("stock", "payment"), ("O-1", "O-2", "O-3"), (0, 1)
Act = tuple[str, str, CallEnd | None]
"""An order's request and how its call ended; None: it asks to be admitted."""
ACTS = st.tuples(
    st.sampled_from(["stock"] * 5 + ["payment"]),
    st.sampled_from(ORDERS),
    st.sampled_from([None, CallEnd.FAILED, CallEnd.FAILED, *CallEnd]),
)
TROUBLE = st.sampled_from([None, None, None, "lost answer", "store away"]) | ACTS
"""What happens in the middle of a write of a circuit: an act of the other instance is one."""


@dataclass
class Reports:
    """The incidents that were reported, and those that ended."""

    entries: list[tuple[str, datetime | None]] = field(default_factory=list)
    is_away: bool = False

    async def report(self, incident: Incident, *_order_ids: str) -> None:
        self._note(incident.scope, incident.since)

    async def end(self, _kind: AlertKind, scope: str) -> None:
        self._note(scope, None)

    def _note(self, scope: str, since: datetime | None) -> None:
        if self.is_away:
            raise StoreUnavailableError("away")
        self.entries.append((scope, since))


@dataclass
class View:
    """What one instance of the model remembers of one circuit."""

    failures_max: int
    circuit: Breaker = field(default_factory=Breaker)
    version: int = 0
    looked_at: datetime | None = None
    failures: int = 0
    failed_orders: set[str] = field(default_factory=set)


class Model:
    """All circuits, as the instances should share them."""

    def __init__(self) -> None:
        self.shared = {agent: Breaker() for agent in AGENTS}
        self.versions = dict.fromkeys(AGENTS, 0)
        self.reports = Reports()
        self.trouble: Any = None
        self.play_rival: Callable[[Act], object] = lambda _act: None

    def act(self, view: View, act: Act, now: datetime) -> Admission | datetime | None:
        """Play an act; raises StoreUnavailableError."""
        agent, order, end = act
        if not view.failures_max:
            return Admission.CALL if end is None else None
        if end is None:
            return self._admit(view, agent, order, now)
        is_probe = view.circuit.state is HALF_OPEN and view.circuit.prober == f"{order}/0/1"
        if end is CallEnd.ANSWERED:  # any answer closes the circuit
            view.failures, view.failed_orders = 0, set()
            for _ in range(2):
                if view.circuit.state is not CLOSED and self._write(
                    view, agent, Breaker(since=now), now
                ):
                    self._report(agent, None)
                    break
        elif end is CallEnd.UNKNOWN and is_probe:  # another one may probe at once
            self._write(view, agent, replace(view.circuit, state=OPEN, until=now, prober=None), now)
        elif end is not CallEnd.UNKNOWN:
            if end is CallEnd.FAILED:
                view.failures += 1
            else:  # counts once for each order
                view.failed_orders.add(order)
            self._failed(view, agent, order, now)
        return None

    def _admit(self, view: View, agent: str, order: str, now: datetime) -> Admission | datetime:
        for _ in range(2):
            is_new = view.looked_at is not None and now - view.looked_at < SECOND
            if not is_new or view.circuit.state is not CLOSED:
                self._look(view, agent, now)
            circuit = view.circuit
            if circuit.state is CLOSED:
                return Admission.CALL
            assert circuit.until is not None
            if circuit.state is HALF_OPEN:
                if circuit.prober == f"{order}/0/1":
                    return Admission.PROBE
                if circuit.until > now:
                    return min(circuit.until, now + RECHECK)
            else:  # the order whose probe failed lets others probe first
                until = circuit.until + (RECHECK if order == circuit.suspect else 0 * SECOND)
                if until > now:
                    return until
            probing = replace(
                circuit, state=HALF_OPEN, prober=f"{order}/0/1", until=now + POLICY.probe_for
            )
            if self._write(view, agent, probing, now):
                return Admission.PROBE
        raise AssertionError("one rival delays a probe once")

    def _failed(self, view: View, agent: str, order: str, now: datetime) -> None:
        circuit = view.circuit
        is_probing = circuit.state is HALF_OPEN
        count = view.failures + len(view.failed_orders)
        if circuit.state is OPEN or (not is_probing and count < view.failures_max):
            return
        rounds = circuit.rounds if is_probing and order == circuit.suspect else circuit.rounds + 1
        opened = Breaker(
            state=OPEN,
            since=circuit.since if circuit.rounds else now,
            until=now + min(10 * 2 ** (rounds - 1), 25) * SECOND,
            rounds=rounds,
            why=circuit.why if circuit.rounds else f"failure of {order}",
            suspect=order if is_probing else None,
        )
        if self._write(view, agent, opened, now):
            view.failures, view.failed_orders = 0, set()
            if not is_probing:
                self._report(agent, opened.since)

    def _look(self, view: View, agent: str, now: datetime) -> None:
        view.circuit, view.version = self.shared[agent], self.versions[agent]
        view.looked_at = now

    def _write(self, view: View, agent: str, circuit: Breaker, now: datetime) -> bool:
        trouble, self.trouble = self.trouble, None
        if trouble == "store away":
            raise StoreUnavailableError("away")
        if isinstance(trouble, tuple):
            self.play_rival(trouble)
        if view.version == self.versions[agent]:
            self.shared[agent] = view.circuit = circuit
            self.versions[agent] = view.version = view.version + 1
            if trouble != "lost answer":
                return True
        self._look(view, agent, now)  # a rival was first, or it looks so
        return view.circuit == circuit

    def _report(self, agent: str, since: datetime | None) -> None:
        if not self.reports.is_away:
            self.reports.entries.append((f"agent {agent}", since))


class CircuitBreakerMachine(AsyncMachine):
    """Requests are admitted and calls end, while time passes and instances start anew."""

    @initialize(apart=st.sampled_from([0, 0, 3]))
    def begin(self, apart: int) -> None:
        self.store, self.reports, self.model = ContestedStore(), Reports(), Model()
        self.clocks = [VirtualClock(), VirtualClock(START + apart * SECOND)]
        self.guards: dict[tuple[int, str], CircuitBreaker] = {}
        self.views: dict[tuple[int, str], View] = {}
        for instance in INSTANCES:
            self.starts(instance, 2)

    @rule(instance=st.sampled_from(INSTANCES), failures_max=st.sampled_from([0, 1, 2, 2]))
    def starts(self, instance: int, failures_max: int) -> None:
        """An instance forgets what it counted, and may have another policy."""
        context: Any = SimpleNamespace(
            store=self.store, clock=self.clocks[instance], incidents=self.reports
        )
        policy = replace(POLICY, failures_max=failures_max)
        for agent in AGENTS:
            self.guards[instance, agent] = CircuitBreaker(context, agent, policy)
            self.views[instance, agent] = View(failures_max)

    @rule(seconds=st.sampled_from([0.5, 1, 3, 10, 25]))
    def passes(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.set(clock.now() + seconds * SECOND)

    @rule(
        instance=st.sampled_from(INSTANCES),
        order=st.sampled_from(ORDERS),
        meanwhile=st.lists(
            st.tuples(
                st.sampled_from([0, 1, 18, 20]),
                st.sampled_from(INSTANCES),
                st.sampled_from(ORDERS),
                st.sampled_from([None, None, CallEnd.UNKNOWN, CallEnd.FAILED]),
            ),
            max_size=3,
        ),
        end=st.sampled_from(list(CallEnd)),
        trouble=TROUBLE,
    )
    def probes_when_its_pause_is_over(
        self,
        instance: int,
        order: str,
        *,
        meanwhile: list[tuple[int, int, str, CallEnd | None]],
        end: CallEnd,
        trouble: Any,
    ) -> None:
        """The usual course of an open circuit: a probe goes out as soon as it may, and ends."""
        until = self.model.shared["stock"].until
        if until is not None:
            for clock in self.clocks:
                clock.set(clock.now() + max(until - self.clocks[instance].now(), 0 * SECOND))
        self.acts(instance, ("stock", order, None), trouble)
        for seconds, other, rival_order, rival_end in meanwhile:
            self.passes(seconds)
            self.acts(other, ("stock", rival_order, rival_end), None)
        self.acts(instance, ("stock", order, end), None)

    @rule(is_away=st.booleans())
    def bus_is_away(self, is_away: bool) -> None:
        """While no alert is sent, the circuit works all the same."""
        self.reports.is_away = self.model.reports.is_away = is_away

    @rule(instance=st.sampled_from(INSTANCES), act=ACTS, trouble=TROUBLE)
    def acts(self, instance: int, act: Act, trouble: Any) -> None:
        rival = 1 - instance
        self.store.loses_answer = trouble == "lost answer"
        if trouble == "store away":
            self.store.before_writes.append(self.fails)
        elif isinstance(trouble, tuple):
            self.store.before_writes.append(lambda: self.played(rival, trouble))
        self.model.trouble = trouble
        self.model.play_rival = lambda other: self.expected(rival, other)
        result = self.run(self.played(instance, act))
        assert result == self.expected(instance, act)
        self.store.calm()

    async def fails(self) -> None:
        raise StoreUnavailableError("away")

    async def played(self, instance: int, act: Act) -> object:
        agent, order, end = act
        call: Any = SimpleNamespace(request=SimpleNamespace(id=f"{order}/0/1", order_id=order))
        guard = self.guards[instance, agent]
        try:
            if end is None:
                return await guard.admit(call)
            await guard.ended(call, end, f"failure of {order}")
        except StoreUnavailableError:
            return "store away"
        return None

    def expected(self, instance: int, act: Act) -> object:
        try:
            return self.model.act(self.views[instance, act[0]], act, self.clocks[instance].now())
        except StoreUnavailableError:
            return "store away"

    @invariant()
    def all_share_the_circuits_of_the_model(self) -> None:
        stored = self.run(breakers(self.store).all())
        circuits = {agent: stored[agent].value for agent in stored}
        expected = self.model.shared
        assert circuits == {agent: expected[agent] for agent in AGENTS if agent in circuits}
        assert {agent for agent in AGENTS if self.model.versions[agent]} == set(circuits)
        assert self.reports.entries == self.model.reports.entries

    @invariant()
    def a_sweep_and_routing_see_what_is_open(self) -> None:
        now = self.clocks[0].now()
        circuits = OpenCircuits(self.store, self.clocks[0])
        active, over = self.run(circuits.incidents())
        is_open = {f"agent {a}" for a, b in self.model.shared.items() if b.state is not CLOSED}
        assert {(incident.scope, incident.since) for incident in active} == {
            (f"agent {agent}", circuit.since)
            for agent, circuit in self.model.shared.items()
            if circuit.state is not CLOSED
        }
        used = {f"agent {agent}" for agent in AGENTS if self.model.versions[agent]}
        assert {scope for _, scope in over} == used - is_open
        self.run(circuits.refresh(dict.fromkeys(AGENTS)))
        for agent, circuit in self.model.shared.items():
            waits = circuit.until is not None and circuit.until > now
            assert circuits.is_open(agent, now) is (circuit.state is not CLOSED and waits)


CircuitBreakerMachine.TestCase.settings = settings(stateful_step_count=60)
TestCircuitBreaker = CircuitBreakerMachine.TestCase
