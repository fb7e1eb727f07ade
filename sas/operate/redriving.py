"""Plan to send messages of queues again, or to remove them, and say why other messages stay.

This module sends nothing. ``sas rejected``, ``sas dlq``, ``sas queues`` and the desk carry out its
plans, so all of them follow the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

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
    Verdict,
    judge,
    letter_of,
    rejected_of,
)
from sas.ports import Message, MessageBus, MessageMove, Peeked, StateStore

ParsedMessage = tuple[Peeked, RejectedMessage | None]
"""A message, and its decoded body if it is a rejected message."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A message of the queue at ``path``, and the move that sends it again or removes it."""

    path: str
    peeked: Peeked
    move: MessageMove

    def resubmits(self, queues: Queues) -> bool:
        """Return whether this move submits an order that was given up once more.

        Such an order gets a new submission_id. With the old one it would be ignored as a duplicate.
        """
        rejected, message = rejected_of(self.peeked), self.move.message
        return bool(rejected and message and _is_given_up(rejected, message.queue, queues))


def redrive(
    messages: Sequence[Peeked],
    path: str,
    *,
    ids: Collection[str] | None,
    queues: Queues,
    to: str | None = None,
) -> tuple[list[PlannedMove], list[str]]:
    """Plan to send the messages with these ids again; with ``ids`` None, all of these messages.

    ``to`` names another target than the queue from which each message came. Return the moves, and a
    reason for each message that stays.
    """
    return _plan(
        messages,
        path,
        ids=ids,
        queues=queues,
        message_of=lambda group: _new_message(group, path, queues, to),
    )


def redrive_safe(
    verdicts: Iterable[tuple[Letter, Verdict]], queues: Queues
) -> tuple[list[PlannedMove], list[str]]:
    """Plan to send the dead letters again that are safe to send.

    Return the moves, and a reason for each dead letter that stays.
    """
    reasons: list[str] = []
    safe: dict[str, list[Peeked]] = {}
    for letter, verdict in verdicts:
        if reason := why_it_stays(letter, verdict, queues):
            reasons.append(f"{letter.peeked.message_id} stays: {reason}")
        else:
            safe.setdefault(letter.path, []).append(letter.peeked)
    moves: list[PlannedMove] = []
    for path, messages in safe.items():
        moves_of_queue, reasons_of_queue = redrive(messages, path, ids=None, queues=queues)
        moves += moves_of_queue
        reasons += reasons_of_queue
    return moves, reasons


def removal(
    messages: Sequence[Peeked], path: str, ids: Collection[str], queues: Queues
) -> tuple[list[PlannedMove], list[str]]:
    """Plan to remove the messages with these ids from a queue.

    Return the moves, and a reason for each message that stays.
    """
    return _plan(messages, path, ids=ids, queues=queues, message_of=lambda _: None)


def why_it_stays(letter: Letter, verdict: Verdict, queues: Queues) -> str:
    """Return why a dead letter is not sent again; an empty text if it may be sent again."""
    if letter.path == queues.dead_letters:
        return f"the function of {queues.dead_letters} takes it"
    return "" if verdict.fate is DeadLetterFate.SAFE else f"{verdict.fate.value}: {verdict.why}"


async def plan_one(
    bus: MessageBus, store: StateStore, *, queues: Queues, path: str, message_id: str
) -> PlannedMove:
    """Plan to send one rejected message or dead letter again, by the rules of the verbs.

    Raises:
        NotPossibleError: the message is not in the queue any more, or it must stay; the text says
            why.
        UnavailableError: the queue or the order cannot be read.
    """
    messages = await bus.peek(path, READ_MAX)
    if path != queues.rejected:
        for message in messages:
            if message.message_id != message_id:
                continue
            letter = letter_of(path, message)
            if reason := why_it_stays(letter, await judge(store, letter, queues), queues):
                raise NotPossibleError(f"{message_id} stays: {reason}")
    moves, reasons = redrive(messages, path, ids=[message_id], queues=queues)
    if reasons or len(moves) != 1:
        raise NotPossibleError(
            reasons[0] if reasons else f"{message_id} is in the queue more than once"
        )
    return moves[0]


def _plan(
    messages: Sequence[Peeked],
    path: str,
    *,
    ids: Collection[str] | None,
    queues: Queues,
    message_of: Callable[[Sequence[ParsedMessage]], Message | None],
) -> tuple[list[PlannedMove], list[str]]:
    """Return the moves, and a reason for each message that stays.

    A large rejected message is in its queue as several messages, one for each part. One move takes
    all parts. ``message_of`` returns the message to send in their place; None to remove them only.
    """
    groups: dict[str, list[ParsedMessage]] = {}
    for message in messages:
        part = rejected_of(message) if path == queues.rejected else None
        key = part.id.rpartition("/")[0] if part else f"#{message.sequence}"
        groups.setdefault(key, []).append((message, part))
    moves: list[PlannedMove] = []
    reasons: list[str] = []
    missing_ids = set(ids or ())
    for group in groups.values():
        names = {message.message_id for message, _ in group}
        if ids is None or missing_ids & names:
            missing_ids -= names
            try:
                move = MessageMove(
                    frozenset(message.sequence for message, _ in group), message_of(group)
                )
                moves.append(PlannedMove(path, group[0][0], move))
            except NotPossibleError as error:
                reasons.append(f"{min(names)} stays: {error}")
    return moves, reasons + [
        f"there is no {message_id} among the first 1,000" for message_id in sorted(missing_ids)
    ]


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
