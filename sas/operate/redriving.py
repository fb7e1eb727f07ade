"""Sending messages of queues again, or removing them: what is planned, and why others stay.

Nothing is sent here. ``sas rejected``, ``sas dlq``, ``sas queues`` and the desk keep these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from sas.codec.external import CLOUDEVENTS_TYPE, RejectedMessage, rejected_body
from sas.codec.orders import with_submission_id
from sas.codec.strict import Reason
from sas.domain.ids import digest_id, key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.engine.receiver import FIRST_AT, FIRST_ID, SOURCE
from sas.operate.errors import NotPossibleError
from sas.operate.letters import (
    READ_MAX,
    WHY,
    WHY_TEXT,
    Fate,
    Letter,
    Verdict,
    judge,
    letter_of,
    rejected_of,
)
from sas.ports import Message, MessageBus, MessageMove, Peeked, StateStore

Seen = tuple[Peeked, RejectedMessage | None]
"""A message, and what it says if it is a rejected message."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A message of the queue at ``path``, and what is to be done with it."""

    path: str
    peeked: Peeked
    move: MessageMove

    def resubmits(self, queues: Queues) -> bool:
        """Whether it is an order that was given up: then it gets a new submission id."""
        said, sent = rejected_of(self.peeked), self.move.message
        return bool(said and sent and _is_given_up(said, sent.queue, queues))


def redrive(
    found: Sequence[Peeked],
    path: str,
    ids: Collection[str] | None,
    queues: Queues,
    to: str | None = None,
) -> tuple[list[Planned], list[str]]:
    """Return what sends these messages of a queue again, and why others stay. ``ids`` None: all."""
    return _planned(
        found,
        path,
        ids=ids,
        queues=queues,
        message_of=lambda group: _again(group, path, queues, to),
    )


def redrive_safe(
    judged: Iterable[tuple[Letter, Verdict]], queues: Queues
) -> tuple[list[Planned], list[str]]:
    """Return what sends those dead letters again that are safe, and why others stay."""
    left: list[str] = []
    safe: dict[str, list[Peeked]] = {}
    for letter, verdict in judged:
        if why := why_it_stays(letter, verdict, queues):
            left.append(f"{letter.peeked.message_id} stays: {why}")
        else:
            safe.setdefault(letter.path, []).append(letter.peeked)
    moves: list[Planned] = []
    for path, found in safe.items():
        some, stay = redrive(found, path, None, queues)
        moves += some
        left += stay
    return moves, left


def removal(
    found: Sequence[Peeked], path: str, ids: Collection[str], queues: Queues
) -> tuple[list[Planned], list[str]]:
    """Return what removes these messages of a queue, and why others stay."""
    return _planned(found, path, ids=ids, queues=queues, message_of=lambda _: None)


def why_it_stays(letter: Letter, verdict: Verdict, queues: Queues) -> str:
    """Return why a dead letter is not sent again; empty if that is safe."""
    if letter.path == queues.dead_letters:
        return f"the function of {queues.dead_letters} takes it"
    return "" if verdict.fate is Fate.SAFE else f"{verdict.fate.value}: {verdict.why}"


async def plan_one(
    bus: MessageBus, store: StateStore, queues: Queues, path: str, message_id: str
) -> Planned:
    """Return what sends one rejected message or dead letter again, by the rules of the verbs.

    Raises:
        NotPossibleError: it is gone, or must stay; the text says why.
        UnavailableError: the queue, or its order, cannot be read.
    """
    found = await bus.peek(path, READ_MAX)
    if path != queues.rejected:
        for one in (one for one in found if one.message_id == message_id):
            letter = letter_of(path, one)
            if why := why_it_stays(letter, await judge(store, letter, queues), queues):
                raise NotPossibleError(f"{message_id} stays: {why}")
    moves, left = redrive(found, path, [message_id], queues)
    if left or len(moves) != 1:
        raise NotPossibleError(left[0] if left else f"{message_id} is in the queue more than once")
    return moves[0]


def _planned(
    found: Sequence[Peeked],
    path: str,
    ids: Collection[str] | None,
    queues: Queues,
    message_of: Callable[[Sequence[Seen]], Message | None],
) -> tuple[list[Planned], list[str]]:
    """Return the moves, and why other messages stay. Parts of a message go together."""
    groups: dict[str, list[Seen]] = {}
    for one in found:
        part = rejected_of(one) if path == queues.rejected else None
        key = part.id.rpartition("/")[0] if part else f"#{one.sequence}"
        groups.setdefault(key, []).append((one, part))
    moves: list[Planned] = []
    left: list[str] = []
    wanted = set(ids or ())
    for group in groups.values():
        names = {one.message_id for one, _ in group}
        if ids is None or wanted & names:
            wanted -= names
            try:
                move = MessageMove(frozenset(one.sequence for one, _ in group), message_of(group))
                moves.append(Planned(path, group[0][0], move))
            except NotPossibleError as why:
                left.append(f"{min(names)} stays: {why}")
    return moves, left + [f"there is no {one} among the first 1,000" for one in sorted(wanted)]


def _again(group: Sequence[Seen], path: str, queues: Queues, to: str | None) -> Message:
    """Return the message to send in the place of these.

    Its id is new, or duplicate detection would drop it; after a crash it is the same again.
    """
    first = group[0][0]
    new_id = f"redrive/{digest_id(path, str(first.sequence), key_time(first.enqueued_at))}"
    if path.endswith(DEAD_LETTER_SUBQUEUE):
        return _copy(first, new_id, to or path.removesuffix(DEAD_LETTER_SUBQUEUE), queues)
    parts = {part.part: part for _, part in group if part}
    if not parts:
        raise NotPossibleError("it is not a rejected message: send it by hand")
    said = next(iter(parts.values()))
    if len(parts) < said.parts:
        raise NotPossibleError(f"only {len(parts)} of its {said.parts} parts are here")
    target, body = to or _origin(said, queues), rejected_body(list(parts.values()))
    if _is_given_up(said, target, queues):
        body = with_submission_id(body, new_id)
    is_event = target.startswith(queues.response_prefix)
    content_type = CLOUDEVENTS_TYPE if is_event else "application/json"
    return Message(
        target, new_id, body, content_type=content_type, correlation_id=said.correlation_id
    )


def _is_given_up(said: RejectedMessage, target: str, queues: Queues) -> bool:
    return said.reason == Reason.DEAD_LETTERED and target in _lanes(queues.orders)


def _copy(one: Peeked, new_id: str, target: str, queues: Queues) -> Message:
    """Return a copy of a dead letter. Its first id goes with it: that may name its cause.

    How often it was put back goes with it too. With a count from 0 its next copy would have the id
    of its first one, and duplicate detection would drop it.
    """
    dropped, source = {FIRST_AT, SOURCE, WHY, WHY_TEXT}, one.source
    if target == queues.dead_letters:  # its function asks why, and from where
        dropped = {FIRST_AT, SOURCE} if source else {FIRST_AT}
    else:
        source = None
    kept = {name: text for name, text in one.properties.items() if name not in dropped}
    properties = {FIRST_ID: one.message_id} | kept | ({SOURCE: source} if source else {})
    content_type = one.content_type or "application/json"
    return Message(
        target,
        new_id,
        one.body,
        content_type=content_type,
        correlation_id=one.correlation_id,
        properties=properties,
    )


def _origin(said: RejectedMessage, queues: Queues) -> str:
    """Return the queue that refused a message, if applications may send there themselves.

    A body can forge its source (see Delivery): an operator must not make it an internal message.
    """
    source = said.source_queue
    if source in _lanes(queues.orders) or source.startswith(queues.response_prefix):
        return source
    raise NotPossibleError(f"a sender can forge its source {source!r}: check it, and give --to")


def _lanes(queue: str) -> tuple[str, str]:
    return queue, lane(queue, urgent=True)
