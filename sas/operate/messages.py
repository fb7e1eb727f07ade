"""The messages that lie in queues, as an operator reads them: plain records for every surface.

1. **One row a message.** ``MessageRow`` says what a message is, which order it is about and what
   became of that order, its cause in words, and what to do.
2. **A cause, no symptom.** Service Bus knows only that a queue gave a message up. The row says what
   happened to the message.
3. **Alerts of one cause are one alert** with a count. An alert is *over* when its order is repaired
   or its incident has ended: it is counted, and shown no more. So is a message inside the system
   that was given up, by the same rule as the alert about it.

Reading here only peeks. ``sas.operate.redriving`` sends messages again and removes them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import structs

from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.strict import Reason
from sas.domain.messages import AlertKind
from sas.domain.order import OrderState
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.domain.texts import command, quoted
from sas.engine.delivery import BUG
from sas.engine.receiver import DEAD_LETTER_REASON, FAILED, REFUSED, why_given_up
from sas.operate import finding
from sas.operate.letters import (
    DeadLetterFate,
    Letter,
    PeekResult,
    dead_letter_paths,
    is_dead,
    is_internal,
    is_order,
    is_outgoing,
    judged,
    moment_of,
    read,
)
from sas.operate.record import Record
from sas.operate.rows import OrderRow
from sas.ports import MessageBus, StateStore, UnavailableError

EXAMPLES_MAX = 5
"""Most orders that an answer names as examples."""
ALERTS, REJECTED, DEAD_LETTERS = "alerts", "rejected", "dead-letters"
PLACES = (ALERTS, REJECTED, DEAD_LETTERS)
"""The places that operators read. Any other place is a queue; NAME/dlq is its subqueue."""
SUBQUEUE = "/dlq"
ALERT, REJECTED_ORDER, REJECTED_MESSAGE = "alert", "rejected order", "rejected message"
DEAD_LETTER, MESSAGE = "dead letter", "message"
"""What a message is."""
BODY_CHARACTERS = 200
"""So much of a body stands for the cause, if the message has none."""
CAUSE_LENGTH_MAX = 1000


class MessageRow(Record, frozen=True, kw_only=True):
    """One message in a queue.

    ``what`` is one of the five words above. ``place`` is the queue or the subqueue, and ``source``
    the queue that refused the message or gave it up. ``kind`` is the kind of the alert, the reason
    of the refusal, or why the queue gave the message up; ``cause`` says it in a sentence. ``about``
    names the incident of an alert, or its step and agent; alerts of one cause have the same
    ``fingerprint``, and ``over`` says why a message needs nothing any more. ``state`` is the
    order's ProcessState now, None if it is not known. ``fate`` says what a resend of a dead letter
    would do. ``command`` is what to run. A large message has several ``parts``, and ``body`` is
    that of the first; it is None unless it was asked for, because it may be personal.
    """

    what: str
    place: str
    message_id: str
    since: datetime
    source: str
    kind: str
    cause: str
    about: str = ""
    order_id: str | None = None
    state: str | None = None
    fingerprint: str | None = None
    over: str = ""
    fate: str = ""
    todo: str = ""
    command: str = ""
    parts: int = 1
    body: str | None = None


class MessageGroup(Record, frozen=True, kw_only=True):
    """Alerts of one cause, or another message alone: the ``newest`` whole, and the orders of all.

    ``first`` is since when the oldest waits.
    """

    newest: MessageRow
    count: int
    first: datetime
    order_ids: tuple[str, ...]


class MessageList(Record, frozen=True, kw_only=True):
    """The messages of some places, the newest first.

    ``groups`` has them with alerts of one cause together, without those that are over, which
    ``over`` counts. ``problems`` says which queue, or which part of the answer, could not be read.
    """

    rows: tuple[MessageRow, ...] = ()
    groups: tuple[MessageGroup, ...] = ()
    over: int = 0
    problems: tuple[str, ...] = ()


class QueueCount(Record, frozen=True, kw_only=True):
    """How many messages a queue has, each number ``READ_MAX`` at most.

    ``oldest`` is since when its oldest message waits, dead letters too, and ``waiting_since`` since
    when a function might have taken one. ``cause`` says why the newest message that was put aside
    in it was. ``left_orders`` has some orders whose messages no instance can handle, because none
    has their workflow, and ``left_since`` since when. ``problem`` says why the queue could not be
    read; then the numbers are 0.
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


Look = Callable[[PeekResult], Awaitable[MessageList]]
"""Returns messages with their orders."""

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


async def joined(
    store: StateStore | None, contents: PeekResult, queues: Queues, *, content: bool = False
) -> MessageList:
    """Return messages with their orders, which are loaded from ``store``.

    Without it, or if it does not answer, the states of the orders are not known. With ``content``
    each row has the body.
    """
    unreadable: dict[str, str] = {}
    try:
        letters, orders = await judged(store, contents.letters, queues, unreadable)
    except UnavailableError as error:
        problem = f"the state of the orders is not known: {error}"
        answer = list_of(contents, queues, {}, content=content)
        return structs.replace(answer, problems=(*answer.problems, problem))
    rows = {
        order_id: OrderRow(
            order_id=order_id,
            process_state=order.process_state.value,
            since=finding.since(order),
            submitted_at=order.details.submitted_at,
        )
        for order_id, order in orders.items()
    }
    problems = contents.problems | {
        f"order {order_id}": f"the state of order {order_id} is not known: {why}"
        for order_id, why in unreadable.items()
    }
    return list_of(PeekResult(letters, problems), queues, rows, content=content)


def list_of(
    contents: PeekResult,
    queues: Queues,
    orders: Mapping[str, OrderRow],
    *,
    content: bool = False,
) -> MessageList:
    """Return messages with their orders, as far as these are known, by their ids.

    Of a message in several parts, the first part stands for all. A group of a rejected message
    stands for the alert about it too.
    """
    ended = _ended_incidents(contents.letters)
    rows: list[MessageRow] = []
    for letter in contents.letters:
        part = letter.rejected
        order = orders.get(letter.order_id or "")
        if part is not None and part.part > 1:
            continue
        row = _row(letter, order)
        if is_dead(letter, queues):
            changes = _dead_letter(letter, queues)
        elif (alert := letter.alert) is not None:
            changes = _alert(alert, order, ended)
        else:
            changes = _rejected(part, row.message_id, queues, order) if part else {}
        if content:
            changes["body"] = part.body if part else letter.peeked.body.decode(errors="replace")
        rows.append(structs.replace(row, **changes))
    rows.sort(key=lambda row: row.since, reverse=True)
    spoken = {alert_id_of(part) for letter in contents.letters if (part := letter.rejected)}
    return MessageList(
        rows=tuple(rows),
        groups=_groups(row for row in rows if not row.over and row.message_id not in spoken),
        over=sum(bool(row.over) for row in rows),
        problems=tuple(contents.problems.values()),
    )


async def count_queue(
    bus: MessageBus, name: str, queues: Queues, look: Look | None = None
) -> QueueCount:
    """Return what lies in a queue and in its dead-letter subqueue.

    Rejected messages that are over do not count, if ``look`` is there to tell. A message of an
    application tells of no order that is left: its sender could write that, and such an order waits
    for ``DEPLOY_WAIT`` only.
    """
    contents = await read(bus, [name, name + DEAD_LETTER_SUBQUEUE], queues)
    rejected = [letter for letter in contents.letters if letter.path == name and letter.rejected]
    answer = await look(PeekResult(rejected, {})) if look and rejected else MessageList()
    over = {row.message_id for row in answer.rows if row.over}
    ended = {letter.whole for letter in rejected if letter.peeked.message_id in over}
    letters = [letter for letter in contents.letters if letter.whole not in ended]
    dead_letters = [letter for letter in letters if letter.path != name]
    waiting = [
        letter for letter in letters if letter.path == name and not letter.peeked.is_scheduled
    ]
    left_orders = {
        letter.order_id or "": since
        for letter in letters
        if not (queues.takes_orders(name) or queues.takes_orders(letter.source))
        and (since := letter.left_since)
    }
    causes = [
        (letter.since, cause_of(part) if part else why_given_up(letter.peeked.properties))
        for letter in letters
        if (part := letter.rejected) or letter.path != name
    ]
    return QueueCount(
        queue=name,
        waiting=len(waiting),
        scheduled=len(letters) - len(dead_letters) - len(waiting),
        dead_lettered=len(dead_letters),
        oldest=min((letter.since for letter in letters), default=None),
        waiting_since=min(
            (
                letter.peeked.enqueued_at  # one that was put back waits since it came again
                for letter in waiting
                if name not in {queues.rejected, queues.alerts}
            ),
            default=None,
        ),
        cause=max(causes)[1] if causes else "",
        left_orders=tuple(filter(None, left_orders))[:EXAMPLES_MAX],
        left_since=min(left_orders.values(), default=None),
        problem=next(iter(contents.problems.values()), ""),
    )


# -- One row ----------------------------------------------------------------------------------


def _row(letter: Letter, order: OrderRow | None) -> MessageRow:
    message = letter.peeked
    return MessageRow(
        what=MESSAGE,
        place=place_name(letter.path),
        message_id=message.message_id,
        since=letter.since,
        source=letter.source,
        kind="scheduled" if message.is_scheduled else "waiting",
        cause=quoted(message.body.decode(errors="replace"), BODY_CHARACTERS),
        order_id=letter.order_id,
        state=order.process_state if order else None,
        todo="nothing: it waits for its reader",
    )


def _dead_letter(letter: Letter, queues: Queues) -> dict[str, Any]:
    properties, verdict = letter.peeked.properties, letter.verdict
    reason, error = properties.get(DEAD_LETTER_REASON, ""), properties.get(BUG)
    todo, verb, options = _TODO_OF_FATE[verdict.fate if verdict else DeadLetterFate.UNKNOWN]
    line = command(f"sas messages {verb}", letter.peeked.message_id, options=options)
    if letter.path == queues.dead_letters:
        todo = "nothing: the function of this queue takes it; check that the function app runs"
        line = ""
    return {
        "what": DEAD_LETTER,
        "kind": _KIND_OF_REASON.get(reason, "given-up"),
        "cause": why_given_up(properties) + (f": {quoted(error)}" if error else ""),
        "fate": str(verdict or ""),
        "todo": todo,
        "command": line,
    }


_KIND_OF_REASON = {
    FAILED: "failed",
    "MaxDeliveryCountExceeded": "given-up",
    REFUSED: "refused",
    "TTLExpiredException": "expired",
}
_TODO_OF_FATE = {
    DeadLetterFate.SAFE: ("repair the cause, then send it again", "resend", ""),
    DeadLetterFate.DONE: ("nothing: remove it", "remove", ""),
    DeadLetterFate.GONE: ("nothing: remove it", "remove", ""),
    DeadLetterFate.UNKNOWN: ("look at it", "show", "--content"),
}


def _rejected(
    part: RejectedMessage, message_id: str, queues: Queues, order: OrderRow | None
) -> dict[str, Any]:
    over = _why_passed(part, order, queues)
    is_whole = part.size is None  # see redriving
    verb = "resend" if part.order_id and is_whole and not over else "remove"
    to_queue = verb == "resend" and is_internal(part, queues)
    options = command("--to", part.source_queue) if to_queue else ""
    return {
        "what": REJECTED_ORDER if is_order(part, queues) else REJECTED_MESSAGE,
        "source": part.source_queue,
        "kind": part.reason,
        "cause": cause_of(part),
        "over": over,
        "todo": "nothing: remove it" if over else _todo_of_rejected(part, queues, order),
        "command": command(f"sas messages {verb}", message_id, options=options),
        "parts": part.parts,
    }


def cause_of(part: RejectedMessage) -> str:
    """Return why a message was refused, as a quotation: its sender's words may be in it."""
    return quoted(part.description.rstrip("."), CAUSE_LENGTH_MAX)


def _why_passed(part: RejectedMessage, order: OrderRow | None, queues: Queues) -> str:
    """Return why a rejected message needs nothing any more; an empty text if it does.

    A rejected order was submitted again, or the order of a message inside the system asked again.
    """
    kind = AlertKind.DEAD_LETTERED
    if is_order(part, queues):
        kind = AlertKind.REJECTED
    elif part.reason != Reason.DEAD_LETTERED or not is_internal(part, queues):
        return ""
    return _why_repaired(kind.value, moment_of(part.at), order)


def alert_id_of(part: RejectedMessage) -> str:
    """Return the id of the alert about a rejected message."""
    return f"{part.id.rpartition('/')[0]}/alert"


def _todo_of_rejected(part: RejectedMessage, queues: Queues, order: OrderRow | None) -> str:
    if part.order_id is None:
        return "look who sent it, then remove it: it belongs to no order"
    if is_internal(part, queues):
        return _todo_of_internal(part, order)
    if part.size is not None:
        return "only its beginning was kept: ask its sender to send it again, corrected"
    if is_outgoing(part, queues):
        todo = f"its order goes on: let {part.source_queue} be read, and tell its reader"
    elif part.reason == Reason.ORDER_ID_TAKEN:
        todo = "the first order goes on: submit this one with an id of its own"
    else:
        todo = "correct it and submit it again"
    return f"{todo}; if its cause was outside, send it again"


def _todo_of_internal(part: RejectedMessage, order: OrderRow | None) -> str:
    if part.reason in {Reason.TOO_LATE, Reason.EXPIRED}:  # a callback
        return "ask its sender to reverse the work, then remove it: it no longer counts"
    if order is None:
        return "look at its order: in Error, undo or resubmit it; else remove this message"
    state = OrderState(order.process_state or OrderState.PROCESSING)
    if state is OrderState.ERROR:
        return "undo or resubmit the order; if its cause was outside, send it again"
    if state in _AT_REST:
        return "nothing: remove it"
    return (
        "nothing while its order goes on: send it again or remove it. If it was a command, give "
        "that again"
    )


# -- Alerts -----------------------------------------------------------------------------------


def _alert(
    alert: AlertMessage, order: OrderRow | None, ended: Mapping[tuple[str, str], datetime]
) -> dict[str, Any]:
    attempts = "1 attempt" if alert.attempts == 1 else f"{alert.attempts} attempts"
    parts = (
        f"step {alert.step}" if alert.step else "",
        f"agent {alert.agent}" if alert.agent else "",
        attempts if alert.attempts is not None else "",
    )
    return {
        "what": ALERT,
        "kind": alert.kind,
        "cause": alert.text,
        "about": alert.scope or ", ".join(filter(None, parts)),
        "fingerprint": _fingerprint(alert),
        "over": _why_over(alert, order, ended),
        "todo": "",
        "command": alert.command or "",
    }


def _fingerprint(alert: AlertMessage) -> str:
    """Return what alerts of one cause have in common.

    That is the incident, or how and where a step failed. Other alerts have one cause if their texts
    differ only in names of orders and in numbers.
    """
    if alert.scope:
        return f"{alert.kind} {alert.scope}"
    text = alert.text.replace(alert.order_id, "ORDER") if alert.order_id else alert.text
    pattern = re.sub(r"\d+", "#", text)
    failure = alert.fingerprint or f"{alert.step} {pattern}"
    return f"{alert.kind} {alert.workflow} {alert.agent} {failure}"


def _groups(rows: Iterable[MessageRow]) -> tuple[MessageGroup, ...]:
    """Return messages with alerts of one cause together. They come newest first, and stay so."""
    groups: dict[str, list[MessageRow]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.fingerprint or f"#{number}", []).append(row)
    return tuple(
        MessageGroup(
            newest=members[0],
            count=len(members),
            first=members[-1].since,
            order_ids=tuple(dict.fromkeys(row.order_id for row in members if row.order_id)),
        )
        for members in groups.values()
    )


_OF_A_FAILURE = frozenset({AlertKind.STEP_FAILED.value, AlertKind.UNDO_FAILED.value})
_REPAIRABLE = _OF_A_FAILURE | {
    AlertKind.OVERDUE.value,
    AlertKind.DEAD_LETTERED.value,
    AlertKind.UNREADABLE.value,
}
_ENDED_WELL = frozenset({OrderState.PROCESSED, OrderState.COMPENSATED})
_AT_REST = _ENDED_WELL | {OrderState.REJECTED}


def _why_over(
    alert: AlertMessage, order: OrderRow | None, ended: Mapping[tuple[str, str], datetime]
) -> str:
    """Return why an alert needs nothing any more; an empty text if it does.

    The order of an alert must have left what the alert speaks of. A rejected order left it if it
    was submitted once more.
    """
    at = moment_of(alert.at)
    if alert.scope is not None:
        end = ended.get((alert.cleared or alert.kind, alert.scope))
        return "the incident is over" if at and end and at <= end else ""
    return _why_repaired(alert.kind, at, order)


def _why_repaired(kind: str, at: datetime | None, order: OrderRow | None) -> str:
    """Return how an order left what an alert of this kind spoke of at that time; empty if not."""
    if at is None or order is None:
        return ""
    state = OrderState(order.process_state or OrderState.PROCESSING)
    if kind == AlertKind.REJECTED.value:
        is_over = order.submitted_at is not None and order.submitted_at > at
    elif state in _ENDED_WELL:
        is_over = kind in _REPAIRABLE and order.since is not None and order.since > at
    else:
        is_over = kind in _OF_A_FAILURE
    if not is_over or state in {OrderState.ERROR, OrderState.REJECTED}:
        return ""
    return f"{'repaired: ' if state in _ENDED_WELL else ''}now {state.value}"


def _ended_incidents(letters: Iterable[Letter]) -> dict[tuple[str, str], datetime]:
    """Return when each incident ended last, by its kind and its scope."""
    ended: dict[tuple[str, str], datetime] = {}
    for letter in letters:
        alert = letter.alert
        if alert and alert.cleared and alert.scope and (at := moment_of(alert.at)):
            name = (alert.cleared, alert.scope)
            ended[name] = max(at, ended.get(name, at))
    return ended
