"""The state of the system, and what is wrong with it: one record for the terminal and the desk.

1. **Orders** are counted by their index rows and due rows. None is loaded, unless an older version
   wrote its index row: that row does not tell how the order failed.
2. **One cause is one problem.** An open circuit explains the incident *breaker-open* of its agent,
   and the incidents *waiting* of the steps that this agent does. They are folded into the circuit.
   A step that is late is explained by the incident that no scheduler claims steps.
3. **Problems** are sorted with the worst first: what stops all orders, then what waits for a
   person, then what ends by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.domain.change import StepDue
from sas.domain.ids import parse_key_time
from sas.domain.messages import AlertKind
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.engine.receiver import FIRST_AT
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from sas.operate import finding
from sas.operate.letters import PEEKS_AT_ONCE, READ_MAX
from sas.operate.record import Record
from sas.operate.why import LATE_AFTER
from sas.ports import BusUnavailableError, MessageBus, Peeked, StateStore, Summary

ENDED_WINDOW = timedelta(hours=1)
COUNTED_MAX = 100_000
"""Most index rows of one kind that are counted."""
LOADED_MAX = 200
"""Most orders that are loaded because their index rows do not tell how they failed."""
NOT_TOLD = "unknown"
"""The fingerprint of orders whose index rows do not tell it, beyond ``LOADED_MAX``."""


class FailureGroup(Record, frozen=True):
    """The orders in Error that failed alike. ``oldest`` is since when the first one waits."""

    fingerprint: str
    count: int
    oldest: datetime


class CircuitStatus(Record, frozen=True):
    """The circuit of one agent's remote service.

    ``since``: when it closed, or first opened. ``until``: when the next probe may go out (open), or
    when the probe is given up (half-open). ``rounds``: how often it opened since it last closed.
    ``waiting`` has the scopes of the incidents *waiting* that it explains.
    """

    agent: str
    state: str
    since: datetime | None = None
    until: datetime | None = None
    rounds: int = 0
    why: str = ""
    prober: str | None = None
    waiting: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether calls wait."""
        return self.state != BreakerState.CLOSED.value


class IncidentStatus(Record, frozen=True):
    """An active incident: a fault that affects many orders. ``needs_you``: it does not end alone.

    ``alerts`` counts those that were sent; ``orders`` are some that saw it since the last one.
    """

    kind: str
    about: str
    text: str
    since: datetime
    last_seen: datetime
    needs_you: bool
    alerts: int
    next_alert_at: datetime
    orders: tuple[str, ...] = ()


class QueueStatus(Record, frozen=True):
    """What lies in a queue and its dead-letter subqueue; each count ends at ``READ_MAX``.

    ``problem`` says why the queue cannot be read. Then all counts are zero.
    ``is_forbidden``: only because you have no right to read it.
    """

    queue: str
    waiting: int = 0
    scheduled: int = 0
    dead_lettered: int = 0
    oldest: datetime | None = None
    problem: str = ""
    is_forbidden: bool = False


class Problem(Record, frozen=True):
    """Something that is wrong now, in a sentence, and what to do about it.

    ``kind`` is that of an incident, or *late*, *queue*, *error*, *rejected*, *dead-lettered*.
    ``about`` names its part of the system. ``command`` shows more.
    """

    kind: str
    about: str
    text: str
    todo: str
    needs_you: bool
    since: datetime | None = None
    command: str = ""


class SystemStatus(Record, frozen=True):
    """The state of the system at one moment.

    ``ended`` counts the orders that ended in the last hour, by state. ``oldest_due`` is the first
    time at which the supervisor looks at a step; ``is_late``: it should have looked already.
    """

    at: datetime
    problems: tuple[Problem, ...]
    in_error: int
    failures: tuple[FailureGroup, ...]
    under_way: int
    ended: dict[str, int]
    oldest_due: datetime | None
    oldest_due_order: str | None
    is_late: bool
    circuits: tuple[CircuitStatus, ...]
    incidents: tuple[IncidentStatus, ...]
    queues: tuple[QueueStatus, ...] = ()

    @property
    def open_circuits(self) -> tuple[CircuitStatus, ...]:
        """The circuits that are not closed."""
        return tuple(circuit for circuit in self.circuits if circuit.is_open)


async def system_status(
    store: StateStore, now: datetime, queues: Sequence[QueueStatus] = ()
) -> SystemStatus:
    """Return the state of the system. ``queues`` are those of ``queue_states``, if any.

    Raises:
        StoreUnavailableError: the table does not answer.
    """
    in_error, ended, dues, breakers_by_agent, shared_incidents = await asyncio.gather(
        store.attention(COUNTED_MAX),
        store.finished(COUNTED_MAX, since=now - ENDED_WINDOW),
        finding.due_rows(store),
        breakers(store).all(),
        active_incidents(store).all(),
    )
    active = [
        shared.value
        for shared in shared_incidents.values()
        if shared.value is not None and not rules.is_over(shared.value, now)
    ]
    circuits = _circuits(
        {agent: shared.value for agent, shared in breakers_by_agent.items()}, active
    )
    steps = [due for due in dues if isinstance(due, StepDue)]
    oldest = min(steps, key=lambda due: due.at, default=None)
    failed_ids = {summary.order_id for summary in in_error}
    parts = _Parts(
        failures=await _failures(store, in_error),
        in_error=len(in_error),
        oldest=oldest,
        is_late=oldest is not None and oldest.at + LATE_AFTER < now,
        circuits=circuits,
        incidents=_incidents(active, circuits),
        queues=tuple(queues),
    )
    return SystemStatus(
        at=now,
        problems=tuple(parts.problems()),
        in_error=len(in_error),
        failures=parts.failures,
        under_way=len({due.order_id for due in steps} - failed_ids),
        ended=dict(Counter(summary.process_state.value for summary in ended)),
        oldest_due=oldest.at if oldest else None,
        oldest_due_order=oldest.order_id if oldest else None,
        is_late=parts.is_late,
        circuits=circuits,
        incidents=parts.incidents,
        queues=parts.queues,
    )


# -- Orders in Error --------------------------------------------------------------------------


async def _failures(store: StateStore, in_error: Sequence[Summary]) -> tuple[FailureGroup, ...]:
    """Return the orders in Error in groups, the largest first."""
    # 1. A row of an older version does not tell how its order failed.
    silent = [summary.order_id for summary in in_error if not summary.fingerprints][:LOADED_MAX]
    loaded = {order.order_id: order.fingerprints for order in await finding.load_all(store, silent)}
    since: dict[str, datetime] = {}
    counts = Counter[str]()
    for summary in in_error:  # the oldest first
        fingerprints = summary.fingerprints or loaded.get(summary.order_id) or (NOT_TOLD,)
        counts.update(fingerprints)
        for fingerprint in fingerprints:
            since.setdefault(fingerprint, summary.at)
    return tuple(
        FailureGroup(fingerprint=fingerprint, count=count, oldest=since[fingerprint])
        for fingerprint, count in counts.most_common()
    )


# -- Circuits and incidents -------------------------------------------------------------------


def _circuits(
    circuits: Mapping[str, Breaker], active: Sequence[ActiveIncident]
) -> tuple[CircuitStatus, ...]:
    """Return all circuits, those that are not closed first."""
    states = [
        CircuitStatus(
            agent=agent,
            state=circuit.state.value,
            since=circuit.since,
            until=circuit.until,
            rounds=circuit.rounds,
            why=circuit.why,
            prober=circuit.prober,
            waiting=tuple(
                incident.scope
                for incident in active
                if incident.kind is AlertKind.WAITING
                and incident.agent == agent
                and circuit.state is not BreakerState.CLOSED
            ),
        )
        for agent, circuit in circuits.items()
    ]
    return tuple(sorted(states, key=lambda state: (not state.is_open, state.agent)))


def _incidents(
    active: Iterable[ActiveIncident], circuits: Sequence[CircuitStatus]
) -> tuple[IncidentStatus, ...]:
    """Return the incidents that no open circuit explains, those that need a person first."""
    # 2. One cause is one problem.
    explained = {circuit.agent for circuit in circuits if circuit.is_open}
    states = [
        IncidentStatus(
            kind=incident.kind.value,
            about=incident.scope,
            text=incident.text,
            since=incident.since,
            last_seen=incident.last_seen,
            needs_you=incident.needs_you,
            alerts=incident.alerts_sent,
            next_alert_at=rules.next_alert_at(incident),
            orders=incident.orders,
        )
        for incident in active
        if incident.kind not in {AlertKind.BREAKER_OPEN, AlertKind.WAITING}
        or incident.agent not in explained
    ]
    return tuple(sorted(states, key=lambda state: (not state.needs_you, state.since)))


# -- Queues -----------------------------------------------------------------------------------


async def queue_states(bus: MessageBus, names: Iterable[str]) -> tuple[QueueStatus, ...]:
    """Return what lies in these queues. A queue that cannot be read says why."""
    gate = asyncio.Semaphore(PEEKS_AT_ONCE)

    async def look(name: str) -> QueueStatus:
        async with gate:
            try:
                messages = await bus.peek(name, READ_MAX)
                dead_letters = await bus.peek(name + DEAD_LETTER_SUBQUEUE, READ_MAX)
            except BusUnavailableError as error:
                text = str(error)
                is_forbidden = "you need the role" in text
                return QueueStatus(queue=name, problem=text, is_forbidden=is_forbidden)
        scheduled = sum(message.is_scheduled for message in messages)
        return QueueStatus(
            queue=name,
            waiting=len(messages) - scheduled,
            scheduled=scheduled,
            dead_lettered=len(dead_letters),
            oldest=min(map(_since, (*messages, *dead_letters)), default=None),
        )

    return tuple(await asyncio.gather(*map(look, dict.fromkeys(names))))


def queue_names(queues: Queues, agents: Iterable[str]) -> tuple[str, ...]:
    """Return the queues that ``queue_states`` looks into, those of operators first."""
    for_operators = (queues.rejected, queues.dead_letters, queues.alerts)
    return (*for_operators, *queues.on_the_way(sorted(agents)))


def _since(message: Peeked) -> datetime:
    """Return since when a message waits. A message that was put back keeps its age."""
    try:
        return parse_key_time(message.properties[FIRST_AT])
    except (KeyError, ValueError):
        return message.enqueued_at


# -- What is wrong ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What problems follow from."""

    failures: tuple[FailureGroup, ...]
    in_error: int
    oldest: StepDue | None
    is_late: bool
    circuits: tuple[CircuitStatus, ...]
    incidents: tuple[IncidentStatus, ...]
    queues: tuple[QueueStatus, ...]

    def problems(self) -> Iterable[Problem]:
        """Yield what is wrong, the worst first."""
        # 3. What stops all orders, then what waits for a person, then what ends by itself.
        yield from self._queues_away()
        yield from self._late()
        yield from (_of_incident(incident) for incident in self.incidents if incident.needs_you)
        yield from self._in_error()
        yield from self._messages()
        yield from (_of_circuit(circuit) for circuit in self.circuits if circuit.is_open)
        yield from (_of_incident(incident) for incident in self.incidents if not incident.needs_you)

    def _queues_away(self) -> Iterable[Problem]:
        unreadable = [state for state in self.queues if state.problem and not state.is_forbidden]
        texts = dict.fromkeys(state.problem for state in unreadable)
        for text in texts:
            first, _, todo = text.partition(". ")
            yield Problem(
                kind="queue",
                about=", ".join(state.queue for state in unreadable if state.problem == text),
                text=_ended(first),
                todo=_ended(todo) or "Check that the queue exists and is enabled.",
                needs_you=True,
                command="sas status --check",
            )

    def _late(self) -> Iterable[Problem]:
        if self.oldest is None or not self.is_late:
            return
        if any(incident.kind == AlertKind.NOT_PICKED_UP.value for incident in self.incidents):
            return
        yield Problem(
            kind="late",
            about=f"order {self.oldest.order_id}",
            text="The supervisor is late: it has not looked at a step that is due.",
            todo="Check that the function app runs: the supervisor looks within seconds.",
            needs_you=True,
            since=self.oldest.at,
            command=f"sas show {self.oldest.order_id}",
        )

    def _in_error(self) -> Iterable[Problem]:
        if not self.in_error:
            return
        subject = "1 order is" if self.in_error == 1 else f"{self.in_error:,} orders are"
        groups = ", ".join(f"{group.count:,} {group.fingerprint}" for group in self.failures[:3])
        others = f", and {len(self.failures) - 3:,} more groups" if len(self.failures) > 3 else ""
        yield Problem(
            kind="error",
            about="orders in Error",
            text=f"{subject} in Error: {groups}{others}.",
            todo="Repair the cause, then resubmit, skip or undo.",
            needs_you=True,
            since=min(group.oldest for group in self.failures),
            command="sas list",
        )

    def _messages(self) -> Iterable[Problem]:
        """Yield the queues with dead letters; dead letters are moved away within seconds."""
        for state in self.queues:
            if state.dead_lettered:
                name, count = state.queue, state.dead_lettered
                plural = "s lie" if count != 1 else " lies"
                yield Problem(
                    kind="dead-lettered",
                    about=f"queue {name}",
                    text=f"{count:,} dead letter{plural} in queue {name}.",
                    todo="Look why, and send them again or remove them.",
                    needs_you=True,
                    since=state.oldest,
                    command="sas messages list dead-letters",
                )


def _of_incident(incident: IncidentStatus) -> Problem:
    text, _, todo = incident.text.partition(". ")
    return Problem(
        kind=incident.kind,
        about=incident.about,
        text=_ended(text),
        todo=_ended(todo),
        needs_you=incident.needs_you,
        since=incident.since,
    )


def _of_circuit(circuit: CircuitStatus) -> Problem:
    waiting = f" These wait: {'; '.join(circuit.waiting)}." if circuit.waiting else ""
    why = circuit.why.rstrip(".") or "its service failed"
    return Problem(
        kind=AlertKind.BREAKER_OPEN.value,
        about=f"agent {circuit.agent}",
        text=f"The circuit of agent {circuit.agent} is {circuit.state}: {why}.{waiting}",
        todo="Check that service. A probe that succeeds closes the circuit, and all goes on.",
        needs_you=False,
        since=circuit.since,
        command="sas list --state running",
    )


def _ended(text: str) -> str:
    """Return a sentence with its full stop; empty for no text."""
    return f"{text.rstrip('.')}." if text else ""
