"""Plan to send messages of queues again, or to remove them; say why others stay; carry it out.

There is one way to send a message again, for every queue and for terminal and desk:

1. A **rejected message** goes to the queue that refused it. A sender can forge that source, so only
   queues of orders and response queues are believed. Its parts go as one message. An order that was
   given up gets a new submission_id: with the old one it would be ignored as a duplicate.
2. A **dead letter** goes to its queue if that is safe by the state of its order
   (``letters.judge``), or if the operator names it and insists.
3. All other messages stay: those on dead-letters wait for their function, those of other queues for
   their reader, and alerts are for the operator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import structs

from sas.codec.external import CLOUDEVENTS_TYPE, RejectedMessage, rejected_body
from sas.codec.orders import with_submission_id
from sas.codec.strict import Reason
from sas.domain.ids import digest_id, key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.engine.delivery import AGAIN, BUG, FIRST_ID
from sas.engine.receiver import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    FAILURES,
    FIRST_AT,
    SOURCE,
    bounded,
)
from sas.operate.errors import NotPossibleError
from sas.operate.letters import (
    READ_MAX,
    DeadLetterFate,
    Letter,
    PeekResult,
    is_internal,
    judged,
    read,
)
from sas.operate.messages import alert_id_of, joined, place_name
from sas.operate.record import Record
from sas.ports import Message, MessageBus, MessageMove, OperatorBus, Peeked, StateStore


class MoveRow(Record, frozen=True, kw_only=True):
    """What becomes of one message. ``to`` is the queue that gets it; None: it is only removed.

    ``stays`` says why the message stays where it is; then it goes nowhere.
    """

    message_id: str
    order_id: str | None
    place: str
    to: str | None = None
    stays: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The move that sends a message of the queue ``path`` again, or removes it."""

    path: str
    move: MessageMove
    row: MoveRow


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves that were planned, and the messages that stay."""

    moves: Sequence[PlannedMove]
    staying: Sequence[MoveRow]


def named(contents: PeekResult, names: Collection[str]) -> list[Letter]:
    """Return the messages with these ids, or of these orders, each with all its parts.

    Raises:
        NotPossibleError: there is none for one of the names; the text says also what was not read.
    """
    letters = contents.letters
    keys = {letter.whole for letter in letters if _is_named(letter, names)}
    missing = [name for name in names if not any(_is_named(letter, [name]) for letter in letters)]
    if missing:
        absence = f"there is no {', '.join(missing)} among the first {READ_MAX:,} messages"
        raise NotPossibleError("; ".join((absence, *contents.problems.values())))
    return [letter for letter in letters if letter.whole in keys]


def _is_named(letter: Letter, names: Collection[str]) -> bool:
    return letter.peeked.message_id in names or letter.order_id in names


async def plan_resend(
    store: StateStore | None,
    contents: PeekResult,
    queues: Queues,
    *,
    names: Collection[str] | None,
    to: str | None = None,
    force: bool = False,
) -> MovePlan:
    """Plan to send messages again: those that are named, by their ids or orders, or all of them.

    ``to`` names another target than the queue from which each message came. ``force`` sends dead
    letters too that are not safe to send again. Without ``store``, only dead letters for a reader
    outside the system are safe.

    Raises:
        NotPossibleError: a message that is named is not there.
        UnavailableError: the table does not answer, or a journal cannot be read.
    """
    chosen = contents.letters if names is None else named(contents, names)
    letters, _ = await judged(store, chosen, queues, {})
    return resend(letters, queues, to, force=force)


async def plan_one(
    bus: MessageBus, store: StateStore, *, queues: Queues, path: str, message_id: str
) -> PlannedMove:
    """Plan to send one message again, by the rules of the command.

    Raises:
        NotPossibleError: the message is not in the queue any more, or it must stay; the text says
            why.
        UnavailableError: the table does not answer, or the journal cannot be read.
    """
    plan = await plan_resend(store, await read(bus, [path], queues), queues, names=[message_id])
    for row in plan.staying:
        raise NotPossibleError(f"{row.message_id} stays: {row.stays}")
    if len(plan.moves) != 1:
        raise NotPossibleError(f"{message_id} is in the queue more than once")
    return plan.moves[0]


async def plan_removal(
    store: StateStore | None,
    contents: PeekResult,
    queues: Queues,
    names: Collection[str] | None,
) -> MovePlan:
    """Plan to remove messages: those that are named, or those that need nothing any more.

    The id of an alert stands for all alerts of its cause that are as old or older. With a rejected
    message goes the alert about it.

    Raises:
        NotPossibleError: a message that is named is not there, or a name fits several places.
    """
    alerts = [letter for letter in contents.letters if letter.path == queues.alerts]
    if names is None:
        answer = await joined(store, contents, queues)
        pairs = {(row.place, row.message_id) for row in answer.rows if row.over}
        keys = {
            letter.whole
            for letter in contents.letters
            if (place_name(letter.path), letter.peeked.message_id) in pairs
        }
        over = [letter for letter in contents.letters if letter.whole in keys]
        return _plan(over, lambda _: None)
    rows = (await joined(store, PeekResult(alerts, {}), queues)).rows
    chosen = named(contents, names)
    # With a rejected message goes the alert about it.
    spoken = {alert_id_of(part) for letter in chosen if (part := letter.rejected)}
    chosen = [letter for letter in chosen if letter.peeked.message_id not in spoken]
    for name in names:
        places = sorted({place_name(letter.path) for letter in chosen if _is_named(letter, [name])})
        if len(places) > 1:
            raise NotPossibleError(
                f"{name} fits messages in {' and '.join(places)}: give --in PLACE"
            )
    # The rows come newest first.
    newest = {row.fingerprint: row.since for row in reversed(rows) if row.message_id in names}
    ids = {
        row.message_id
        for row in rows
        if row.fingerprint in newest and row.since <= newest[row.fingerprint]
    }
    chosen += [
        alert for alert in alerts if alert.peeked.message_id in ids | spoken and alert not in chosen
    ]

    def nothing(group: Sequence[Letter]) -> None:
        path = group[0].path
        if path not in {queues.alerts, queues.rejected} and not path.endswith(DEAD_LETTER_SUBQUEUE):
            raise NotPossibleError(_why_untouched(path, queues))

    return _plan(chosen, nothing)


def resend(
    letters: Iterable[Letter], queues: Queues, to: str | None = None, *, force: bool = False
) -> MovePlan:
    """Plan to send these messages again, as ``plan_resend``: the dead letters are judged."""
    return _plan(letters, lambda group: _new_message(group, queues, to, force=force))


def _why_untouched(path: str, queues: Queues) -> str:
    if path == queues.alerts:
        return "it is an alert, which is for you"
    if path == queues.dead_letters:
        return f"the function of {queues.dead_letters} takes it"
    return f"it waits for the reader of {path}"


def _plan(
    letters: Iterable[Letter], message_of: Callable[[Sequence[Letter]], Message | None]
) -> MovePlan:
    """Plan a move for each message; one move takes all parts of a message.

    ``message_of`` returns the message to send in place of the parts, or None to remove them only.
    It raises NotPossibleError if they must stay.
    """
    groups: dict[tuple[str, str], list[Letter]] = {}
    for letter in letters:
        groups.setdefault(letter.whole, []).append(letter)
    moves: list[PlannedMove] = []
    staying: list[MoveRow] = []
    for group in groups.values():
        first = group[0]
        row = MoveRow(
            message_id=first.peeked.message_id,
            order_id=first.order_id,
            place=place_name(first.path),
        )
        try:
            message = message_of(group)
        except NotPossibleError as error:
            staying.append(structs.replace(row, stays=str(error)))
            continue
        sequences = frozenset(letter.peeked.sequence for letter in group)
        row = structs.replace(row, to=message.queue if message else None)
        moves.append(PlannedMove(first.path, MessageMove(sequences, message), row))
    return MovePlan(moves, staying)


async def carry_out(bus: OperatorBus, moves: Sequence[PlannedMove]) -> AsyncGenerator[bool]:
    """Carry out moves, and yield for each whether its messages were removed.

    A move whose messages are gone, or held by another reader, is left out. After a crash nothing is
    lost: what was sent and not removed is sent again under the same id.

    Raises:
        BusUnavailableError, UndeliverableError: see ``OperatorBus.move``.
    """
    for path in dict.fromkeys(plan.path for plan in moves):
        batch = [plan.move for plan in moves if plan.path == path]
        async with aclosing(bus.move(path, batch)) as moving:
            async for removed in moving:
                yield removed


def _new_message(
    group: Sequence[Letter], queues: Queues, to: str | None, *, force: bool
) -> Message:
    """Return the message that replaces the messages of one group.

    It gets a new id, because duplicate detection would drop a message with the old id. The new id
    is a digest of the queue, the sequence number and the time of the first message. So the id is
    the same when an operator repeats the command after a crash.

    Raises:
        NotPossibleError: the messages must stay; the text says why.
    """
    path, message, verdict = group[0].path, group[0].peeked, group[0].verdict
    new_id = f"redrive/{digest_id(path, str(message.sequence), key_time(message.enqueued_at))}"
    if path.endswith(DEAD_LETTER_SUBQUEUE) and verdict is not None:
        if verdict.fate is not DeadLetterFate.SAFE and not force:
            raise NotPossibleError(str(verdict))
        return _copy(message, new_id, to or path.removesuffix(DEAD_LETTER_SUBQUEUE), queues)
    if path != queues.rejected:
        raise NotPossibleError(_why_untouched(path, queues))
    parts = {part.part: part for letter in group if (part := letter.rejected)}
    if not parts:
        raise NotPossibleError("it is not a rejected message: send it by hand")
    rejected = next(iter(parts.values()))
    if len(parts) < rejected.parts:
        raise NotPossibleError(f"only {len(parts)} of its {rejected.parts} parts are here")
    if rejected.size is not None:
        raise NotPossibleError(
            f"only the beginning of its {rejected.size:,} bytes was kept: ask its sender to send "
            "it again"
        )
    target, body = to or _origin(rejected, queues), rejected_body(list(parts.values()))
    if rejected.reason == Reason.DEAD_LETTERED and queues.takes_orders(target):
        body = with_submission_id(body, new_id)
    is_event = queues.is_response(target)
    content_type = CLOUDEVENTS_TYPE if is_event else "application/json"
    return Message(
        target, new_id, body, content_type=content_type, correlation_id=rejected.correlation_id
    )


def _copy(message: Peeked, new_id: str, target: str, queues: Queues) -> Message:
    """Return a copy of a dead letter.

    The copy keeps the first id of the message as a property, because that id may be the recorded
    cause of a transition. The copy also keeps the count of how often the message was put back. The
    ids of messages that are put back depend on this count. If the count began at 0 again, a later
    copy would get an id that was used before, and duplicate detection would drop that copy.
    """
    dropped = {FIRST_AT, FAILURES, BUG, SOURCE, DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION}
    if target == queues.dead_letters:
        # The function of this queue reads why the message was given up, and by which queue.
        dropped = {FIRST_AT}
    is_outside = queues.is_response(target) or target == queues.alerts
    properties = message.properties if is_outside else bounded(message.properties)
    retained = {name: text for name, text in properties.items() if name not in dropped}
    properties = {FIRST_ID: message.message_id} | retained | {AGAIN: "yes"}
    if target == queues.dead_letters and message.source:
        properties[SOURCE] = message.source
    content_type = message.content_type or "application/json"
    return Message(
        target,
        new_id,
        message.body,
        content_type=content_type,
        correlation_id=message.correlation_id,
        properties=properties,
    )


def _origin(rejected: RejectedMessage, queues: Queues) -> str:
    """Return the queue that refused a message, if it is a queue of orders or a response queue.

    A sender can write any source into a body. So a source in a body must not turn a message from
    outside into an internal message.

    Raises:
        NotPossibleError: the source is another queue: the operator must name the target with
            ``--to``.
    """
    source = rejected.source_queue
    lanes = {queues.orders, lane(queues.orders, urgent=True)}
    if source in lanes or queues.is_response(source):
        return source
    name = f" {source}" if is_internal(rejected, queues) else ""
    raise NotPossibleError(
        f"a sender can forge its source {source!r}: check it, and give --to{name}"
    )
