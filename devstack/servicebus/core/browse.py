"""What ``$management`` may do to single messages: look, lock by number, cancel, renew."""

from collections.abc import Iterable, Iterator
from itertools import islice

from devstack.servicebus.core.errors import MessageNotFoundError
from devstack.servicebus.core.message import Message, MessageState
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.core.settlement import held

PEEK_MAX_BYTES = 4 << 20


def peek(
    queue: QueueCore, first: int, count: int, session_id: str | None, now: float
) -> list[Message]:
    """Give up to ``count`` messages from sequence number ``first`` on, whatever their state.

    Fewer come where they would be more than `PEEK_MAX_BYTES` together, but always one.
    """
    found: list[Message] = []
    size = 0
    for message in islice(_visible(queue, first, session_id, now), count):
        size += message.size
        if found and size > PEEK_MAX_BYTES:
            break
        found.append(message)
    return found


def _visible(queue: QueueCore, first: int, session_id: str | None, now: float) -> Iterator[Message]:
    for sequence in _numbers(queue, first):
        message = queue.messages.get(sequence)
        if message is None or sequence < first:
            continue
        if session_id is not None and message.session_id != session_id:
            continue
        overdue = message.expires_at is not None and message.expires_at <= now
        if not overdue or message.token is not None or message.state is MessageState.DEFERRED:
            yield message


def _numbers(queue: QueueCore, first: int) -> Iterable[int]:
    """Give the numbers to look at, in order: those there are, or all from ``first`` if fewer.

    Who pages through a long queue would otherwise walk past all that he has seen, again and again.
    """
    start = max(first, 1)
    if queue.last_sequence - start < len(queue.messages):
        return range(start, queue.last_sequence + 1)
    # Dead letters keep their numbers, whichever died first.
    return queue.messages if queue.dead_letters is not None else sorted(queue.messages)


def renew(queue: QueueCore, tokens: Iterable[bytes], now: float) -> list[float]:
    """Renew locks; return their new ends. Raises MessageLockLostError and renews none."""
    messages = [held(queue, token, now) for token in tokens]
    for message in messages:
        message.locked_until = queue.lock_ends_at(now)
        if message.token is not None:
            queue.locked[message.token] = queue.locked.pop(message.token)
        queue.house.journal.changed(queue, message)
    if messages:
        queue.wake(queue.lock_ends_at(now))
    return [message.locked_until for message in messages]


def cancel(queue: QueueCore, sequences: Iterable[int]) -> None:
    """Cancel scheduled messages. Raises MessageNotFoundError and cancels none."""
    messages = [queue.messages.get(sequence) for sequence in sequences]
    found = [m for m in messages if m is not None and m.state is MessageState.SCHEDULED]
    if len(found) != len(messages):
        raise MessageNotFoundError(
            f"not all of these messages are scheduled on queue '{queue.name}': they were "
            "enqueued or cancelled already"
        )
    for message in found:
        queue.remove(message)


def deferred(queue: QueueCore, sequences: Iterable[int], session_id: str | None) -> list[Message]:
    """Give deferred messages that nobody holds. Raises MessageNotFoundError for any other."""
    found = []
    for sequence in sequences:
        message = queue.messages.get(sequence)
        if (
            message is None
            or message.state is not MessageState.DEFERRED
            or message.token is not None
            or (queue.sessions is not None and message.session_id != session_id)
        ):
            raise MessageNotFoundError(
                f"Failed to lock one or more specified messages: queue '{queue.name}' has no "
                f"deferred message {sequence} that is free"
            )
        found.append(message)
    return found
