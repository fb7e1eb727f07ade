"""The state of the system, and what is wrong with it: one record for the terminal and the desk.

1. **Orders** are counted by their index rows and due rows. None is loaded.
2. **One cause is one problem.** An open circuit explains the incident *breaker-open* of its agent,
   and the incidents *waiting* of the steps that this agent does. They are part of the circuit.
   A step that is late is explained by the incident that no scheduler claims steps, by a workflow
   that no instance has, or by rows that cannot be read. Refused messages are shown as long as they
   lie in their queue, so the incidents of their causes are not.
3. **Problems** are sorted with the worst first: what stops all orders, then what waits for a
   person, then what ends by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from sas.domain.change import StepDue
from sas.domain.messages import AlertKind
from sas.domain.queues import Queues
from sas.domain.texts import command, quoted
from sas.engine.rejections import is_of_refused
from sas.features.circuit_breaker.guard import breakers
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from sas.operate import finding
from sas.operate.messages import Look, QueueCount, count_queue
from sas.operate.record import Record
from sas.operate.rows import FailedAlike, OrderRow, groups_of, rows_in_error
from sas.operate.why import LATE_AFTER, Circuit, circuit_of
from sas.ports import MessageBus, StateStore, Summary

LATELY = timedelta(hours=1)
"""Orders that ended within this time count as ended lately."""
IN_ERROR = "orders in Error"
"""What a problem of failed orders is about."""
ENDED_MAX = 2000
"""Orders that ended lately are counted up to this number."""
QUEUES_AT_ONCE = 4
"""Queues that are looked into at the same time, each together with its dead-letter subqueue."""
QUEUES_S = 15.0
"""All queues together are looked into for so long, in seconds."""


class Problem(Record, frozen=True):
    """Something that is wrong now, in a sentence, and what to do about it.

    ``kind`` is that of an incident, or *late*, *queue*, *error*, *rejected*, *dead-lettered*.
    ``about`` names its part of the system. ``command`` shows more. ``last_seen`` is that of an
    incident: one that was repaired ends some time after it.
    """

    kind: str
    about: str
    text: str
    todo: str
    needs_you: bool
    since: datetime | None = None
    last_seen: datetime | None = None
    command: str = ""


class SystemStatus(Record, frozen=True):
    """The state of the system at one moment.

    ``ended`` counts the orders that ended ``LATELY`` by state, at most ``ENDED_MAX``.
    ``oldest_due`` is the first time at which the supervisor looks at a step; ``is_late``: it should
    have looked already. The circuits that are not closed come first.
    """

    at: datetime
    problems: tuple[Problem, ...]
    in_error: int
    partly_undone: int
    failures: tuple[FailedAlike, ...]
    under_way: int
    ended: dict[str, int]
    oldest_due: datetime | None
    oldest_due_order: str | None
    is_late: bool
    circuits: tuple[Circuit, ...]
    queues: tuple[QueueCount, ...] = ()

    @property
    def open_circuits(self) -> tuple[Circuit, ...]:
        """The circuits that are not closed."""
        return tuple(circuit for circuit in self.circuits if circuit.is_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReading:
    """What the table tells of the system. ``dues`` has the due steps of all orders, sorted."""

    in_error: Sequence[OrderRow]
    ended: Sequence[Summary]
    dues: Sequence[StepDue]
    circuits: Sequence[Circuit]
    incidents: Sequence[ActiveIncident]


async def read_system(store: StateStore, now: datetime) -> SystemReading:
    """Read the system's state.

    Raises:
        StoreUnavailableError: the table does not answer.
    """
    in_error, ended, dues, circuits, incidents = await asyncio.gather(
        rows_in_error(store),
        store.finished(ENDED_MAX, since=now - LATELY),
        finding.due_rows(store),
        breakers(store).all(),
        active_incidents(store).all(),
    )
    return SystemReading(
        in_error=in_error,
        ended=ended,
        # Every order with an open step has a due row of it.
        dues=sorted((due for due in dues if isinstance(due, StepDue)), key=lambda due: due.at),
        circuits=[circuit_of(agent, shared.value) for agent, shared in circuits.items()],
        incidents=[
            shared.value
            for shared in incidents.values()
            if shared.value is not None and not rules.is_over(shared.value, now)
        ],
    )


def status_of(
    reading: SystemReading, now: datetime, queues: Sequence[QueueCount] = ()
) -> SystemStatus:
    """Return the state of the system, and what is wrong with it. ``queues``: what lies in them."""
    failed_ids = {row.order_id for row in reading.in_error}
    oldest = reading.dues[0] if reading.dues else None
    status = SystemStatus(
        at=now,
        problems=(),
        in_error=len(reading.in_error),
        partly_undone=sum(row.undone_because is not None for row in reading.in_error),
        failures=groups_of(reading.in_error),
        under_way=len({due.order_id for due in reading.dues} - failed_ids),
        ended=dict(Counter(summary.process_state.value for summary in reading.ended)),
        oldest_due=oldest.at if oldest else None,
        oldest_due_order=oldest.order_id if oldest else None,
        is_late=oldest is not None and oldest.at + LATE_AFTER < now,
        circuits=tuple(
            sorted(reading.circuits, key=lambda circuit: (not circuit.is_open, circuit.agent))
        ),
        queues=tuple(queues),
    )
    return replace(status, problems=tuple(_problems(status, reading.incidents)))


# -- Queues -----------------------------------------------------------------------------------


async def queue_counts(
    bus: MessageBus, names: Iterable[str], queues: Queues, look_at: Look | None = None
) -> tuple[QueueCount, ...]:
    """Return what lies in these queues; of one that does not answer in time that it is silent.

    ``look_at`` finds the rejected messages that are over: they do not count.
    """
    gate = asyncio.Semaphore(QUEUES_AT_ONCE)
    end_s = asyncio.get_running_loop().time() + QUEUES_S

    async def look(name: str) -> QueueCount:
        try:
            async with asyncio.timeout_at(end_s), gate:
                return await count_queue(bus, name, queues, look_at)
        except TimeoutError:
            silent = f"queue {name}: it did not answer within {QUEUES_S:.0f} s."
            return QueueCount(queue=name, problem=silent)

    return tuple(await asyncio.gather(*map(look, names)))


def queue_names(queues: Queues, agents: Iterable[str]) -> tuple[str, ...]:
    """Return the queues of the system with these agents, those of operators first."""
    for_operators = (queues.rejected, queues.dead_letters, queues.alerts)
    return (*for_operators, *queues.on_the_way(sorted(agents)))


def is_forbidden(count: QueueCount) -> bool:
    """Return whether you have no right to read a queue: that may be intended."""
    return "you need the role" in count.problem


# -- What is wrong ----------------------------------------------------------------------------


def _problems(status: SystemStatus, active: Sequence[ActiveIncident]) -> Iterable[Problem]:
    """Yield what is wrong, the worst first."""
    # 2. One cause is one problem.
    explained = {circuit.agent for circuit in status.open_circuits}
    incidents = [
        incident
        for incident in sorted(active, key=lambda incident: incident.since)
        if not is_of_refused(incident.kind, incident.scope)
        and (
            incident.kind not in {AlertKind.BREAKER_OPEN, AlertKind.WAITING}
            or incident.agent not in explained
        )
    ]
    # 3. What stops all orders, then what waits for a person, then what ends by itself.
    yield from _unreadable(status.queues)
    kinds = {incident.kind for incident in incidents}
    for problem in _not_runnable(status, kinds):
        kinds.add(AlertKind.NOT_RUNNABLE)
        yield problem
    yield from _late(status, kinds)
    yield from (_of_incident(incident) for incident in incidents if incident.needs_you)
    yield from _in_error(status)
    yield from _left(status.queues)
    for circuit in status.open_circuits:
        yield _of_circuit(circuit, [incident for incident in active if incident not in incidents])
    yield from (_of_incident(incident) for incident in incidents if not incident.needs_you)


def _unreadable(queues: Iterable[QueueCount]) -> Iterable[Problem]:
    """Yield one problem for all queues that cannot be read for one reason."""
    names_by_reason: dict[str, list[str]] = {}
    for count in queues:
        if count.problem and not is_forbidden(count):
            reason = count.problem.removeprefix(f"queue {count.queue}: ")
            names_by_reason.setdefault(reason.replace(count.queue, "it"), []).append(count.queue)
    for reason, names in names_by_reason.items():
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        plural = "s" if len(names) > 1 else ""
        yield Problem(
            kind="queue",
            about=", ".join(names),
            text=f"Queue{plural} {', '.join(names[:3])}{others} cannot be read: {reason}",
            todo="Unless the app can read what you cannot, messages wait. Nothing is lost.",
            needs_you=True,
            command="sas status --check",
        )


def _not_runnable(status: SystemStatus, kinds: set[AlertKind]) -> Iterable[Problem]:
    """Yield that messages wait for a workflow, unless an incident says so already."""
    since = min((count.left_since for count in status.queues if count.left_since), default=None)
    kind = AlertKind.NOT_RUNNABLE
    if since is None or kind in kinds:
        return
    if since + LATE_AFTER > status.at and not status.is_late:
        return  # a deploy goes on
    order_ids = list(dict.fromkeys(name for count in status.queues for name in count.left_orders))
    yield Problem(
        kind=kind.value,
        about=f"orders {', '.join(order_ids)}",
        text="Orders wait for a workflow that no instance has: "
        f"{', '.join(map(quoted, order_ids[:3]))}.",
        todo="Deploy it again as it was, beside the other versions. They go on by themselves.",
        needs_you=True,
        since=since,
        command=command("sas show", order_ids[0]) if order_ids else "",
    )


def _late(status: SystemStatus, kinds: set[AlertKind]) -> Iterable[Problem]:
    """Yield that the function app is late, as far as no other problem explains it."""
    is_late = status.is_late and not kinds & _WHY_SUPERVISOR_LATE
    waiting = {
        count.queue: count.waiting_since
        for count in status.queues
        if count.waiting_since and count.waiting_since + LATE_AFTER < status.at
    }
    if kinds & _WHY_MESSAGES_WAIT:
        waiting = {}
    names, order_id = ", ".join(waiting), status.oldest_due_order or ""
    parts = (
        f"messages wait in {names}" * bool(waiting),
        f"the supervisor has not looked at order {quoted(order_id)}, which is due" * is_late,
    )
    moments = [*waiting.values(), *([status.oldest_due] if is_late and status.oldest_due else [])]
    if moments:
        yield Problem(
            kind="late",
            about=names or f"order {order_id}",
            text=f"The function app is late: {', and '.join(filter(None, parts))}.",
            todo="Check that it runs. If it does, it has too much to do: add instances.",
            needs_you=True,
            since=min(moments),
            command=command("sas show", order_id) if is_late else "",
        )


_WHY_SUPERVISOR_LATE = {AlertKind.NOT_PICKED_UP, AlertKind.NOT_RUNNABLE, AlertKind.UNREADABLE}
_WHY_MESSAGES_WAIT = {AlertKind.NOT_PICKED_UP, AlertKind.QUEUE_DELAY}


def _in_error(status: SystemStatus) -> Iterable[Problem]:
    """Yield the orders that are partly undone, then the others in Error."""
    undone = [
        replace(group, count=group.partly_undone)
        for group in status.failures
        if group.partly_undone
    ]
    others = [
        replace(group, count=group.count - group.partly_undone)
        for group in status.failures
        if group.count > group.partly_undone
    ]
    if undone:
        yield _failed(
            undone,
            kind=AlertKind.UNDO_FAILED.value,
            count=status.partly_undone,
            what="partly undone, because an undo failed",
            todo="Repair the cause and resubmit, or undo the step by hand and skip it.",
        )
    if others:
        yield _failed(
            others,
            kind="error",
            count=status.in_error - status.partly_undone,
            what="in Error",
            todo="Repair the cause, then resubmit, skip or undo them.",
        )


def _failed(
    groups: Sequence[FailedAlike], *, kind: str, count: int, what: str, todo: str
) -> Problem:
    subject = "1 order is" if count == 1 else f"{count:,} orders are"
    names = ", ".join(f"{group.count:,} {quoted(group.fingerprint)}" for group in groups[:3])
    more = f" and {len(groups) - 3:,} more" if len(groups) > 3 else ""
    return Problem(
        kind=kind,
        about=IN_ERROR,
        text=f"{subject} {what}: {names}{more}.",
        todo=todo,
        needs_you=True,
        since=min((group.since for group in groups if group.since), default=None),
        command="sas list",
    )


def _left(queues: Iterable[QueueCount]) -> Iterable[Problem]:
    """Yield what was put aside: rejected messages, and dead letters."""
    for count in queues:
        if not (count.cause or count.dead_lettered):
            continue
        total = count.dead_lettered or count.waiting
        what = "dead letter" if count.dead_lettered else "rejected message"
        subject = f"{total:,} {what} lies" if total == 1 else f"{total:,} {what}s lie"
        newest = "" if total == 1 else "the newest: "
        yield Problem(
            kind="dead-lettered" if count.dead_lettered else "rejected",
            about=f"queue {count.queue}",
            text=_ended(f"{subject} in queue {count.queue}: {newest}{count.cause}"),
            todo="Repair the cause, then send them again or remove them.",
            needs_you=True,
            since=count.oldest,
            command=command(
                "sas messages list", "dead-letters" if count.dead_lettered else "rejected"
            ),
        )


_FIRST_SENTENCE = re.compile("((?:“[^”]*”|.)*?)(?:[.] (.*))?", re.DOTALL)
"""The first sentence of a text, and the rest. What is quoted may have sentences of its own."""


def _of_incident(incident: ActiveIncident) -> Problem:
    sentences = _FIRST_SENTENCE.fullmatch(incident.text)
    text, todo = sentences.groups("") if sentences else (incident.text, "")
    return Problem(
        kind=incident.kind.value,
        about=incident.scope,
        text=_ended(text),
        todo=_ended(todo),
        needs_you=incident.needs_you,
        since=incident.since,
        last_seen=incident.last_seen,
    )


def _of_circuit(circuit: Circuit, explained: Iterable[ActiveIncident]) -> Problem:
    scopes = [
        incident.scope
        for incident in explained
        if incident.kind is AlertKind.WAITING and incident.agent == circuit.agent
    ]
    waiting = f" These wait: {'; '.join(scopes)}." if scopes else ""
    why = quoted(circuit.why.rstrip(".")) if circuit.why else "its service failed"
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
