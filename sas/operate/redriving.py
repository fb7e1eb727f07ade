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
from dataclasses import dataclass, replace

from sas.codec.external import CLOUDEVENTS_TYPE, RejectedMessage, rejected_body
from sas.codec.orders import with_submission_id
from sas.codec.strict import Reason
from sas.domain.ids import digest_id, key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.engine.delivery import AGAIN, FIRST_ID
from sas.engine.receiver import FIRST_AT, SOURCE
from sas.operate.errors import NotPossibleError
from sas.operate.letters import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    READ_MAX,
    DeadLetterFate,
    Letter,
    PeekResult,
    Verdict,
    judge_all,
    letter_of,
    order_of,
    rejected_of,
)
from sas.operate.messages import ALERT, MessageRow, cause_key, joined, place_name
from sas.operate.record import Record
from sas.ports import Message, MessageBus, MessageMove, OperatorBus, Peeked, StateStore

ParsedMessage = tuple[Peeked, RejectedMessage | None]
"""A message, and its decoded body if it is a rejected message."""


class MoveRow(Record, frozen=True, kw_only=True):
    """What becomes of one message. ``to`` is the queue that gets it; None: it is only removed.

    ``stays`` says why the message stays where it is; then it goes nowhere. ``resubmits``: an order
    that was given up is submitted once more.
    """

    message_id: str
    order_id: str | None
    place: str
    to: str | None = None
    resubmits: bool = False
    stays: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A message of the queue at ``path``, and the move that sends it again or removes it."""

    path: str
    peeked: Peeked
    move: MessageMove


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves that were planned, and the messages that stay."""

    moves: Sequence[PlannedMove]
    staying: Sequence[MoveRow]

    def rows(self, queues: Queues) -> list[MoveRow]:
        """Return what becomes of each message: first those that move, then those that stay."""
        return [_row(plan, queues) for plan in self.moves] + list(self.staying)


def _row(plan: PlannedMove, queues: Queues) -> MoveRow:
    message, rejected = plan.move.message, rejected_of(plan.peeked)
    target = message.queue if message else None
    return MoveRow(
        message_id=plan.peeked.message_id,
        order_id=order_of(plan.peeked.body),
        place=place_name(plan.path),
        to=target,
        resubmits=bool(rejected and target and _is_given_up(rejected, target, queues)),
    )


def _staying(letter: Letter, why: str) -> MoveRow:
    return MoveRow(
        message_id=letter.peeked.message_id,
        order_id=letter.order_id,
        place=place_name(letter.path),
        stays=why,
    )


def named(letters: Iterable[Letter], names: Collection[str]) -> list[Letter]:
    """Return the messages with these ids, or of these orders.

    Raises:
        NotPossibleError: there is none for one of the names.
    """
    matches = [
        letter for letter in letters if {letter.peeked.message_id, letter.order_id} & set(names)
    ]
    present = {name for letter in matches for name in (letter.peeked.message_id, letter.order_id)}
    if missing := [name for name in names if name not in present]:
        raise NotPossibleError(
            f"there is no {', '.join(missing)} among the first {READ_MAX:,} messages: nothing was "
            "changed"
        )
    return matches


async def plan_resend(
    store: StateStore | None,
    letters: Sequence[Letter],
    queues: Queues,
    *,
    names: Collection[str] | None,
    to: str | None = None,
    force: bool = False,
) -> MovePlan:
    """Plan to send messages again: those that are named, by their ids or orders, or all of them.

    ``to`` names another target than the queue from which each message came. ``force`` sends dead
    letters too that are not safe to send again; they must be named. Without ``store``, only dead
    letters for a reader outside the system are safe.

    Raises:
        NotPossibleError: a message that is named is not there.
        UnavailableError: an order cannot be read.
    """
    chosen = list(letters) if names is None else named(letters, names)
    verdicts = await judge_all(store, chosen, queues)
    if force and names is not None:
        verdicts = {
            key: replace(verdict, fate=DeadLetterFate.SAFE) for key, verdict in verdicts.items()
        }
    rejected = [letter.peeked for letter in letters if letter.path == queues.rejected]
    ids = [letter.peeked.message_id for letter in chosen if letter.path == queues.rejected]
    moves, staying = redrive(rejected, queues.rejected, ids=ids, queues=queues, to=to)
    others = [letter for letter in chosen if letter.path != queues.rejected]
    dead = [(letter, verdicts[letter.key]) for letter in others if letter.key in verdicts]
    more_moves, more_staying = redrive_safe(dead, queues, to)
    waiting = [
        _staying(letter, _why_untouched(letter, queues))
        for letter in others
        if letter.key not in verdicts
    ]
    return MovePlan([*moves, *more_moves], [*staying, *more_staying, *waiting])


async def plan_removal(
    store: StateStore | None,
    letters: Sequence[Letter],
    queues: Queues,
    names: Collection[str] | None,
) -> MovePlan:
    """Plan to remove messages: those that are named, or the alerts that need nothing any more.

    The id of an alert stands for all alerts of its cause that are as old or older.

    Raises:
        NotPossibleError: a message that is named is not there, or a name fits several places.
    """
    alerts = [letter for letter in letters if letter.path == queues.alerts]
    rows = (await joined(store, PeekResult(alerts, {}), queues)).rows
    if names is None:
        return _removal(alerts, {row.message_id for row in rows if row.over}, queues)
    chosen = named(letters, names)
    for name in names:
        fits = {
            letter.path for letter in chosen if name in (letter.peeked.message_id, letter.order_id)
        }
        if len(fits) > 1:
            places = " and ".join(sorted(map(place_name, fits)))
            raise NotPossibleError(f"{name} fits messages in {places}: give --in PLACE")
    ids = {letter.peeked.message_id for letter in chosen} | _of_one_cause(rows, names)
    return _removal(letters, ids, queues)


def _of_one_cause(alerts: Sequence[MessageRow], names: Collection[str]) -> set[str]:
    rows = [row for row in alerts if row.what == ALERT]
    newest = {cause_key(row): row.since for row in rows if row.message_id in names}
    return {
        row.message_id
        for row in rows
        if (since := newest.get(cause_key(row))) is not None and row.since <= since
    }


def _removal(letters: Sequence[Letter], ids: set[str], queues: Queues) -> MovePlan:
    operators = {queues.alerts, queues.rejected}
    moves: list[PlannedMove] = []
    staying: list[MoveRow] = []
    groups: dict[str, list[Letter]] = {}
    for letter in letters:
        groups.setdefault(letter.path, []).append(letter)
    for path, group in groups.items():
        if path in operators or path.endswith(DEAD_LETTER_SUBQUEUE):
            messages = [letter.peeked for letter in group]
            moves_of_queue, _ = _plan(
                messages, path, ids=ids, queues=queues, message_of=lambda _: None
            )
            moves += moves_of_queue
        else:
            staying += [
                _staying(letter, _why_untouched(letter, queues))
                for letter in group
                if letter.peeked.message_id in ids
            ]
    return MovePlan(moves, staying)


def _why_untouched(letter: Letter, queues: Queues) -> str:
    if letter.path == queues.alerts:
        return "it is an alert, which is for you"
    if letter.path == queues.dead_letters:
        return f"the function of {queues.dead_letters} takes it"
    return f"it waits for the reader of {letter.path}"


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


def redrive(
    messages: Sequence[Peeked],
    path: str,
    *,
    ids: Collection[str] | None,
    queues: Queues,
    to: str | None = None,
) -> tuple[list[PlannedMove], list[MoveRow]]:
    """Plan to send the messages with these ids again; with ``ids`` None, all of these messages.

    ``to`` names another target than the queue from which each message came. Return the moves, and
    the messages that stay.
    """
    return _plan(
        messages,
        path,
        ids=ids,
        queues=queues,
        message_of=lambda group: _new_message(group, path, queues, to),
    )


def redrive_safe(
    verdicts: Iterable[tuple[Letter, Verdict]], queues: Queues, to: str | None = None
) -> tuple[list[PlannedMove], list[MoveRow]]:
    """Plan to send the dead letters again that are safe to send.

    Return the moves, and the dead letters that stay.
    """
    staying: list[MoveRow] = []
    safe: dict[str, list[Peeked]] = {}
    for letter, verdict in verdicts:
        if letter.path == queues.dead_letters:
            staying.append(_staying(letter, _why_untouched(letter, queues)))
        elif verdict.fate is not DeadLetterFate.SAFE:
            staying.append(_staying(letter, f"{verdict.fate.value}: {verdict.why}"))
        else:
            safe.setdefault(letter.path, []).append(letter.peeked)
    moves: list[PlannedMove] = []
    for path, messages in safe.items():
        moves_of_queue, staying_of_queue = redrive(messages, path, ids=None, queues=queues, to=to)
        moves += moves_of_queue
        staying += staying_of_queue
    return moves, staying


async def plan_one(
    bus: MessageBus, store: StateStore, *, queues: Queues, path: str, message_id: str
) -> tuple[PlannedMove, MoveRow]:
    """Plan to send one message again, by the rules of the command.

    Raises:
        NotPossibleError: the message is not in the queue any more, or it must stay; the text says
            why.
        UnavailableError: the queue or the order cannot be read.
    """
    letters = [letter_of(path, message) for message in await bus.peek(path, READ_MAX)]
    plan = await plan_resend(store, letters, queues, names=[message_id])
    for row in plan.staying:
        raise NotPossibleError(f"{row.message_id} stays: {row.stays}")
    if len(plan.moves) != 1:
        raise NotPossibleError(f"{message_id} is in the queue more than once")
    return plan.moves[0], _row(plan.moves[0], queues)


def _plan(
    messages: Sequence[Peeked],
    path: str,
    *,
    ids: Collection[str] | None,
    queues: Queues,
    message_of: Callable[[Sequence[ParsedMessage]], Message | None],
) -> tuple[list[PlannedMove], list[MoveRow]]:
    """Return the moves, and the messages that stay.

    A large rejected message is in its queue as several messages, one for each part. One move takes
    all parts. ``message_of`` returns the message to send in their place; None to remove them only.
    """
    groups: dict[str, list[ParsedMessage]] = {}
    for message in messages:
        part = rejected_of(message) if path == queues.rejected else None
        key = part.id.rpartition("/")[0] if part else f"#{message.sequence}"
        groups.setdefault(key, []).append((message, part))
    moves: list[PlannedMove] = []
    staying: list[MoveRow] = []
    for group in groups.values():
        if ids is not None and not {message.message_id for message, _ in group} & set(ids):
            continue
        first = group[0][0]
        try:
            sequences = frozenset(message.sequence for message, _ in group)
            moves.append(PlannedMove(path, first, MessageMove(sequences, message_of(group))))
        except NotPossibleError as error:
            staying.append(_staying(letter_of(path, first), str(error)))
    return moves, staying


def _new_message(
    group: Sequence[ParsedMessage], path: str, queues: Queues, to: str | None
) -> Message:
    """Return the message that replaces the messages of one group.

    It gets a new id, because duplicate detection would drop a message with the old id. The new id
    is a digest of the queue, the sequence number and the time of the first message. So the id is
    the same when an operator repeats the command after a crash.

    Raises:
        NotPossibleError: the messages must stay; the text says why.
    """
    message = group[0][0]
    new_id = f"redrive/{digest_id(path, str(message.sequence), key_time(message.enqueued_at))}"
    if path.endswith(DEAD_LETTER_SUBQUEUE):
        return _copy(message, new_id, to or path.removesuffix(DEAD_LETTER_SUBQUEUE), queues)
    parts = {part.part: part for _, part in group if part}
    if not parts:
        raise NotPossibleError("it is not a rejected message: send it by hand")
    rejected = next(iter(parts.values()))
    if len(parts) < rejected.parts:
        raise NotPossibleError(f"only {len(parts)} of its {rejected.parts} parts are here")
    target, body = to or _origin(rejected, queues), rejected_body(list(parts.values()))
    if _is_given_up(rejected, target, queues):
        body = with_submission_id(body, new_id)
    is_event = target.startswith(queues.response_prefix)
    content_type = CLOUDEVENTS_TYPE if is_event else "application/json"
    return Message(
        target, new_id, body, content_type=content_type, correlation_id=rejected.correlation_id
    )


def _is_given_up(rejected: RejectedMessage, target: str, queues: Queues) -> bool:
    return rejected.reason == Reason.DEAD_LETTERED and queues.takes_orders(target)


def _copy(message: Peeked, new_id: str, target: str, queues: Queues) -> Message:
    """Return a copy of a dead letter.

    The copy keeps the first id of the message as a property, because that id may be the recorded
    cause of a transition. The copy also keeps the count of how often the message was put back. The
    ids of messages that are put back depend on this count. If the count began at 0 again, a later
    copy would get an id that was used before, and duplicate detection would drop that copy.
    """
    source = None
    dropped = {FIRST_AT, SOURCE, DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION}
    if target == queues.dead_letters:
        # The function of this queue reads why the message was given up, and by which queue.
        source = message.source
        dropped = {FIRST_AT, SOURCE} if source else {FIRST_AT}
    retained = {name: text for name, text in message.properties.items() if name not in dropped}
    properties = {FIRST_ID: message.message_id} | retained | {AGAIN: "yes"}
    if source:
        properties[SOURCE] = source
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
    if source in _lanes(queues.orders) or source.startswith(queues.response_prefix):
        return source
    raise NotPossibleError(f"a sender can forge its source {source!r}: check it, and give --to")


def _lanes(queue: str) -> tuple[str, str]:
    return queue, lane(queue, urgent=True)
