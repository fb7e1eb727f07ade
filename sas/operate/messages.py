"""The messages that lie in queues, as an operator reads them: plain records for every surface.

1. **One row a message.** ``MessageRow`` says what a message is, which order it is about and what
   became of that order, its cause in words, and what to do.
2. **A cause, no symptom.** Service Bus knows only that a queue gave a message up. The row says what
   happened to the message (``named_cause``).
3. **Alerts of one cause are one alert** with a count (``groups_of``). An alert is *over* when its
   order is repaired or its incident has ended: it is counted, and shown no more.

Reading here only peeks. ``sas.operate.redriving`` sends messages again and removes them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.strict import MalformedError, Reason, convert
from sas.domain.ids import parse_key_time
from sas.domain.messages import AlertKind
from sas.domain.order import Order, OrderState
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.engine.delivery import FAILING_CHECK
from sas.engine.receiver import FAILED, REFUSED, why_given_up
from sas.operate import finding
from sas.operate.errors import ServiceUnavailableError
from sas.operate.letters import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DeadLetterFate,
    Letter,
    LetterKey,
    PeekResult,
    Verdict,
    dead_letter_paths,
    is_dead,
    is_internal,
    is_order,
    is_outgoing,
    judge_all,
    read,
    rejected_of,
)
from sas.operate.record import Record
from sas.ports import MessageBus, Peeked, StateStore, UnavailableError

ALERTS, REJECTED, DEAD_LETTERS = "alerts", "rejected", "dead-letters"
PLACES = (ALERTS, REJECTED, DEAD_LETTERS)
"""The places that operators read. Any other place is a queue; NAME/dlq is its subqueue."""
SUBQUEUE = "/dlq"
ALERT, REJECTED_ORDER, REJECTED_MESSAGE = "alert", "rejected order", "rejected message"
DEAD_LETTER, MESSAGE = "dead letter", "message"
"""What a message is."""
EXAMPLES_MAX = 5
"""Orders that a group of alerts names."""
BODY_CHARACTERS = 200
"""So much of a body stands for the cause, if the message has none."""


class MessageRow(Record, frozen=True, kw_only=True):
    """One message in a queue.

    ``what`` is one of the five words above. ``place`` is the queue or the subqueue, and ``source``
    the queue that refused the message or gave it up. ``kind`` is the kind of the alert, the reason
    of the refusal, or why the queue gave the message up; ``cause`` says it in a sentence.
    ``state`` is the order's ProcessState now, None if it is not known. ``over`` says why an alert
    needs nothing any more. ``fate`` says what a resend of a dead letter would do. ``command`` is
    what to run. ``body`` is None unless it was asked for, because it may be personal.
    """

    what: str
    place: str
    message_id: str
    since: datetime
    source: str
    kind: str
    cause: str
    order_id: str | None = None
    state: str | None = None
    workflow: str | None = None
    step: str | None = None
    agent: str | None = None
    attempts: int | None = None
    fingerprint: str | None = None
    scope: str | None = None
    over: str = ""
    fate: str | None = None
    effect: str = ""
    todo: str = ""
    command: str = ""
    parts: int = 1
    body: str | None = None

    @property
    def worked(self) -> str:
        """The agent of an alert, and how often its step was dispatched, if these are known."""
        agent = f"agent {self.agent}" if self.agent else ""
        count = self.attempts
        attempts = "" if count is None else "1 attempt" if count == 1 else f"{count} attempts"
        return ", ".join(filter(None, (agent, attempts)))


class AlertGroup(Record, frozen=True, kw_only=True):
    """Alerts of one cause, the newest of them whole.

    ``count`` leaves out alerts that are over: ``repaired`` counts those. ``first`` is since when
    the oldest waits. ``orders`` counts their orders, and ``order_ids`` has some of them.
    """

    newest: MessageRow
    count: int
    repaired: int
    first: datetime
    orders: int
    order_ids: tuple[str, ...]


class MessageList(Record, frozen=True, kw_only=True):
    """The messages of some places, the newest first.

    ``groups`` has the alerts that are not over, and ``over`` counts the others. ``problems`` says
    which queue, or which part of the answer, could not be read.
    """

    rows: tuple[MessageRow, ...]
    groups: tuple[AlertGroup, ...]
    over: int
    problems: tuple[str, ...] = ()


class QueueCount(Record, frozen=True, kw_only=True):
    """How many messages a queue has, each number ``READ_MAX`` at most.

    ``oldest`` is since when its oldest message waits, dead letters too, and ``waiting_since`` since
    when a function might have taken one. ``cause`` says why the newest message that was put
    aside in it was. ``left_orders`` has some orders whose messages no instance can handle,
    because none has their workflow, and ``left_since`` since when. ``problem`` says why the queue
    could not be read; then the numbers are 0.
    """

    queue: str
    waiting: int = 0
    scheduled: int = 0
    dead_lettered: int = 0
    oldest: datetime | None = None
    waiting_since: datetime | None = None
    cause: str = ""
    left_orders: tuple[str, ...] = ()
    left_since: datetime | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OrderNow:
    """The state of an order, since when it has it, and when it was submitted."""

    state: OrderState
    since: datetime | None
    submitted_at: datetime | None


def now_of(order: Order) -> OrderNow:
    """Return what a row needs of an order."""
    return OrderNow(order.process_state, finding.since(order), order.details.submitted_at)


# -- Read -------------------------------------------------------------------------------------


def paths_of(place: str, queues: Queues, agents: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the queues of a place: one of ``PLACES``, a queue, or ``NAME/dlq``.

    Dead letters are in the subqueues of the system's queues with these agents, and of ``others``.
    """
    if place == DEAD_LETTERS:
        return dead_letter_paths(queues, agents, others)
    return [{ALERTS: queues.alerts, REJECTED: queues.rejected}.get(place) or path_of(place)]


def path_of(place: str) -> str:
    """Return the path of a queue, or of a subqueue that is written ``NAME/dlq``."""
    name = place.removesuffix(SUBQUEUE)
    return name if name == place else name + DEAD_LETTER_SUBQUEUE


def place_name(path: str) -> str:
    """Return a queue or a subqueue as an operator writes it: ``NAME`` or ``NAME/dlq``."""
    return path.replace(DEAD_LETTER_SUBQUEUE, SUBQUEUE)


async def read_some(
    bus: MessageBus, paths: Sequence[str], tell: Callable[[int], None] = lambda _count: None
) -> PeekResult:
    """Return the messages of those of these queues that can be read; see ``letters.read``.

    Raises:
        ServiceUnavailableError: none can be read.
    """
    contents = await read(bus, paths, tell=tell)
    if contents.problems.keys() == set(paths):
        raise ServiceUnavailableError(f"no queue could be read: {contents.problems[paths[0]]}")
    return contents


async def joined(
    store: StateStore | None,
    contents: PeekResult,
    queues: Queues,
    *,
    since: datetime | None = None,
    content: bool = False,
) -> MessageList:
    """Return those of the messages that wait since ``since`` or later, with their orders.

    Their orders are loaded from ``store``; without it, or if it does not answer, their states are
    not known. With ``content`` each row has the body.
    """
    letters = [letter for letter in contents.letters if since is None or letter.since >= since]
    problems = list(contents.problems.values())
    orders: Mapping[str, OrderNow] = {}
    verdicts: Mapping[LetterKey, Verdict] = {}
    if store is not None:
        try:
            verdicts = await judge_all(store, letters, queues)
            others = [letter for letter in letters if letter.key not in verdicts]
            orders = await _orders_of(store, others, verdicts.values())
        except UnavailableError as error:
            problems.append(f"the state of the orders is not known: {error}")
    answer = list_of(letters, queues, orders.get, verdicts=verdicts, content=content)
    return structs.replace(answer, problems=tuple(problems))


async def _orders_of(
    store: StateStore, letters: Iterable[Letter], verdicts: Iterable[Verdict]
) -> dict[str, OrderNow]:
    """Return the orders of these letters, and those of the verdicts, which are loaded already."""
    ids = dict.fromkeys(letter.order_id for letter in letters if letter.order_id)
    orders = [verdict.order for verdict in verdicts if verdict.order]
    orders += await finding.load_all(store, list(ids), {})
    return {order.order_id: now_of(order) for order in orders}


def list_of(
    letters: Sequence[Letter],
    queues: Queues,
    order_of: Callable[[str], OrderNow | None],
    *,
    verdicts: Mapping[LetterKey, Verdict] = {},
    content: bool = False,
) -> MessageList:
    """Return letters as a list, without problems. ``verdicts`` has those of dead letters.

    Of a message in several parts, the first part stands for all.
    """
    ended = _ended_incidents(letters)
    rows: list[MessageRow] = []
    for letter in letters:
        part = rejected_of(letter.peeked)
        if part is not None and part.part > 1:
            continue
        order = order_of(letter.order_id) if letter.order_id else None
        row = row_of(letter, queues, order, verdict=verdicts.get(letter.key), ended=ended)
        body = part.body if part else letter.peeked.body.decode(errors="replace")
        rows.append(structs.replace(row, body=body) if content else row)
    rows.sort(key=lambda row: row.since, reverse=True)
    groups, over = groups_of(rows)
    return MessageList(rows=tuple(rows), groups=groups, over=over)


async def count_queues(bus: MessageBus, names: Sequence[str]) -> list[QueueCount]:
    """Return what lies in each queue and in its subqueue."""
    return counts_of(names, await read(bus, with_subqueues(names)))


def with_subqueues(names: Iterable[str]) -> list[str]:
    """Return each of these queues, and its dead-letter subqueue."""
    return [path for name in names for path in (name, name + DEAD_LETTER_SUBQUEUE)]


def counts_of(names: Iterable[str], contents: PeekResult) -> list[QueueCount]:
    """Return what lies in each of these queues, which were read with their subqueues."""
    letters: dict[str, list[Letter]] = {}
    for letter in contents.letters:
        letters.setdefault(letter.path.removesuffix(DEAD_LETTER_SUBQUEUE), []).append(letter)
    return [_count(name, letters.get(name, []), contents.problems) for name in names]


def _count(name: str, letters: Sequence[Letter], problems: Mapping[str, str]) -> QueueCount:
    dead_letters = [letter for letter in letters if letter.path != name]
    waiting = [
        letter for letter in letters if letter.path == name and not letter.peeked.is_scheduled
    ]
    left_orders = {
        letter.order_id or "": letter.left_since for letter in letters if letter.left_since
    }
    put_aside = [
        (letter.since, cause)
        for letter in letters
        if (cause := _why_put_aside(letter, is_dead=letter.path != name))
    ]
    return QueueCount(
        queue=name,
        waiting=len(waiting),
        scheduled=len(letters) - len(dead_letters) - len(waiting),
        dead_lettered=len(dead_letters),
        oldest=min((letter.since for letter in letters), default=None),
        waiting_since=min(
            (letter.peeked.enqueued_at for letter in waiting if not _is_for_operators(letter)),
            default=None,
        ),
        cause=max(put_aside)[1] if put_aside else "",
        left_orders=tuple(filter(None, left_orders))[:EXAMPLES_MAX],
        left_since=min(left_orders.values(), default=None),
        problem=problems.get(name) or problems.get(name + DEAD_LETTER_SUBQUEUE) or "",
    )


def _is_for_operators(letter: Letter) -> bool:
    return rejected_of(letter.peeked) is not None or alert_of(letter.peeked) is not None


def _why_put_aside(letter: Letter, *, is_dead: bool) -> str:
    """Return why a message was rejected or given up; an empty text if it was not."""
    part = rejected_of(letter.peeked)
    if part is not None:
        return named_cause(part.description)
    return why_given_up(letter.peeked.properties) if is_dead else ""


# -- One row ----------------------------------------------------------------------------------


def row_of(
    letter: Letter,
    queues: Queues,
    order: OrderNow | None,
    *,
    verdict: Verdict | None = None,
    ended: Mapping[tuple[str, str], datetime] = {},
) -> MessageRow:
    """Return a message as an operator reads it, without its body.

    ``ended`` has the time at which an incident ended last, by its kind and its scope.
    """
    message = letter.peeked
    row = MessageRow(
        what=MESSAGE,
        place=place_name(letter.path),
        message_id=message.message_id,
        since=letter.since,
        source=letter.source,
        kind="scheduled" if message.is_scheduled else "waiting",
        cause=message.body.decode(errors="replace")[:BODY_CHARACTERS],
        order_id=letter.order_id,
        state=order.state.value if order else None,
        todo="nothing: it waits for its reader",
    )
    if is_dead(letter, queues):
        return _dead_letter(row, letter, queues, verdict)
    if (alert := alert_of(message)) is not None:
        return structs.replace(
            row,
            what=ALERT,
            kind=alert.kind,
            cause=named_cause(alert.text),
            workflow=alert.workflow,
            step=alert.step,
            agent=alert.agent,
            attempts=alert.attempts,
            fingerprint=_fingerprint(alert),
            scope=alert.scope,
            over=_why_over(alert, order, ended),
            todo="",
            command=alert.command or "",
        )
    if (part := rejected_of(message)) is not None:
        return structs.replace(
            row,
            what=REJECTED_ORDER if is_order(part, queues) else REJECTED_MESSAGE,
            source=part.source_queue,
            kind=part.reason,
            cause=named_cause(part.description),
            todo=_todo_of_rejected(part, queues),
            command=f"sas messages {'resend' if part.order_id else 'remove'} "
            f"{shlex.quote(message.message_id)}",
            parts=part.parts,
        )
    return row


def _dead_letter(
    row: MessageRow, letter: Letter, queues: Queues, verdict: Verdict | None
) -> MessageRow:
    properties = letter.peeked.properties
    reason, error = properties.get(DEAD_LETTER_REASON, ""), properties.get(FAILING_CHECK)
    todo, verb = _TODO_OF_FATE[verdict.fate if verdict else DeadLetterFate.UNKNOWN]
    command = f"sas messages {verb.format(shlex.quote(row.message_id))}"
    if letter.path == queues.dead_letters:
        todo = "nothing: the function of this queue takes it; check that the function app runs"
        command = ""
    return structs.replace(
        row,
        what=DEAD_LETTER,
        kind=_KIND_OF_REASON.get(reason, reason or "given-up"),
        cause=why_given_up(properties) + (f": {error}" if error else ""),
        fate=verdict.fate.value if verdict else None,
        effect=verdict.why if verdict else "",
        todo=todo,
        command=command,
    )


_TODO_OF_FATE = {
    DeadLetterFate.SAFE: ("repair the cause, then send it again", "resend {}"),
    DeadLetterFate.DONE: ("nothing: remove it", "remove {}"),
    DeadLetterFate.GONE: ("nothing: remove it", "remove {}"),
    DeadLetterFate.UNKNOWN: ("look at it", "show {} --content"),
}


def _todo_of_rejected(part: RejectedMessage, queues: Queues) -> str:
    if part.order_id is None:
        return "look who sent it, then remove it: it belongs to no order"
    if is_internal(part, queues):
        todo = "undo or resubmit the order"
    elif is_outgoing(part, queues):
        todo = f"its order goes on: let {part.source_queue} be read, and tell its reader"
    elif part.reason == Reason.ORDER_ID_TAKEN:
        todo = "the first order goes on: submit this one with an id of its own"
    else:
        todo = "correct it and submit it again"
    return f"{todo}; if its cause was outside, send it again"


# -- The cause --------------------------------------------------------------------------------

_KIND_OF_REASON = {
    FAILED: "failed",
    "MaxDeliveryCountExceeded": "given-up",
    REFUSED: "refused",
    "TTLExpiredException": "expired",
}
_GIVEN_UP = re.compile(r"the queue gave it up \((\w+)(?:: (.*?))?\)", re.DOTALL)
"""What messages of older instances say."""


def named_cause(text: str) -> str:
    """Return a text with each symptom that Service Bus names replaced by what happened."""
    return _GIVEN_UP.sub(
        lambda match: why_given_up(
            {DEAD_LETTER_REASON: match.group(1), DEAD_LETTER_DESCRIPTION: match.group(2)}
        ),
        text,
    )


# -- Alerts -----------------------------------------------------------------------------------


def alert_of(message: Peeked) -> AlertMessage | None:
    """Return the alert in a message; None if the message is no alert."""
    with suppress(MalformedError):
        return convert(message.body, AlertMessage)
    return None


def groups_of(rows: Iterable[MessageRow]) -> tuple[tuple[AlertGroup, ...], int]:
    """Return the alerts that are not over, by their cause, and how many alerts are over.

    The groups come in the order of their first rows.
    """
    alerts = [row for row in rows if row.what == ALERT]
    repaired = Counter(cause_key(row) for row in alerts if row.over)
    groups: dict[tuple[str | None, ...], list[MessageRow]] = {}
    for row in alerts:
        if not row.over:
            groups.setdefault(cause_key(row), []).append(row)
    return tuple(
        _group(members, repaired[key]) for key, members in groups.items()
    ), repaired.total()


def _group(members: Sequence[MessageRow], repaired: int) -> AlertGroup:
    order_ids = list(dict.fromkeys(row.order_id for row in members if row.order_id))
    return AlertGroup(
        newest=max(members, key=lambda row: row.since),
        count=len(members),
        repaired=repaired,
        first=min(row.since for row in members),
        orders=len(order_ids),
        order_ids=tuple(order_ids[:EXAMPLES_MAX]),
    )


def cause_key(row: MessageRow) -> tuple[str | None, ...]:
    """Return what alerts of one cause have in common.

    That is the incident, or how and where a step failed. Other alerts have one cause if their texts
    differ only in names of orders and in numbers.
    """
    if row.scope:
        return row.kind, row.scope
    if row.fingerprint:
        return row.kind, row.workflow, row.fingerprint, row.agent
    text = row.cause.replace(row.order_id, "ORDER") if row.order_id else row.cause
    return row.kind, row.workflow, row.step, row.agent, re.sub(r"\d+", "#", text)


def _fingerprint(alert: AlertMessage) -> str | None:
    """Return the fingerprint of an alert; alerts of older instances have none."""
    return alert.fingerprint or (f"{alert.step}/{alert.error.code}" if alert.error else None)


_OF_A_FAILURE = frozenset({AlertKind.STEP_FAILED.value, AlertKind.UNDO_FAILED.value})
_REPAIRABLE = _OF_A_FAILURE | {
    AlertKind.OVERDUE.value,
    AlertKind.DEAD_LETTERED.value,
    AlertKind.UNREADABLE.value,
}
_ENDED_WELL = frozenset({OrderState.PROCESSED, OrderState.COMPENSATED})


def _why_over(
    alert: AlertMessage, order: OrderNow | None, ended: Mapping[tuple[str, str], datetime]
) -> str:
    """Return why an alert needs nothing any more; an empty text if it does."""
    if alert.scope is not None:
        at, end = _moment(alert.at), ended.get((alert.cleared or alert.kind, alert.scope))
        return "the incident is over" if at and end and at <= end else ""
    state = _state_after(alert, order) if order else None
    if state is None:
        return ""
    return f"{'repaired: ' if state in _ENDED_WELL else ''}now {state.value}"


def _state_after(alert: AlertMessage, order: OrderNow) -> OrderState | None:
    """Return the state of an alert's order, if the order left what the alert speaks of since then.

    A rejected order left it if it was submitted once more.
    """
    at, state = _moment(alert.at), order.state
    if at is None or state in {OrderState.ERROR, OrderState.REJECTED}:
        return None
    if alert.kind == AlertKind.REJECTED.value:
        return state if order.submitted_at is not None and order.submitted_at > at else None
    if state in _ENDED_WELL:
        is_later = order.since is not None and order.since > at
        return state if alert.kind in _REPAIRABLE and is_later else None
    return state if alert.kind in _OF_A_FAILURE else None


def _ended_incidents(letters: Iterable[Letter]) -> dict[tuple[str, str], datetime]:
    """Return when each incident ended last, by its kind and its scope."""
    ended: dict[tuple[str, str], datetime] = {}
    for letter in letters:
        alert = alert_of(letter.peeked)
        at = _moment(alert.at) if alert and alert.cleared and alert.scope else None
        if alert and at and alert.cleared and alert.scope:
            name = (alert.cleared, alert.scope)
            ended[name] = max(at, ended.get(name, at))
    return ended


def _moment(text: str) -> datetime | None:
    with suppress(ValueError):
        return parse_key_time(text)
    return None
