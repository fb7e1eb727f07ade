"""What clients may do with single messages: settle, renew, peek, cancel, receive by number.

The operations on a lock token raise MessageLockLostError (SessionLockLostError on a queue with
sessions) if the lock is not held, and then change nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from devstack.servicebus.core import errors
from devstack.servicebus.core.message import Message, MessageState
from devstack.servicebus.core.queue import Queue

PEEK_MAX_BYTES = 4 << 20

#: Application properties to add or replace: their names and encoded values.
Changes = Mapping[str, bytes] | None


def complete(queue: Queue, token: bytes, now: float) -> None:
    """Remove the message: it was processed."""
    queue.remove(held(queue, token, now))


def abandon(queue: Queue, token: bytes, now: float, changes: Changes = None) -> None:
    """Make the message available again, and count the delivery."""
    message = held(queue, token, now)
    _change(queue, message, changes)
    queue.unlock(message, now, count=True)


def release(queue: Queue, token: bytes, now: float) -> None:
    """Make the message available again, and do not count the delivery."""
    queue.unlock(held(queue, token, now), now, count=False)


def defer(queue: Queue, token: bytes, now: float, changes: Changes = None) -> None:
    """Set the message aside until a client receives it by its sequence number."""
    message = held(queue, token, now)
    _change(queue, message, changes)
    message.state = MessageState.DEFERRED
    queue.unlock(message, now, count=False)


def dead_letter(
    queue: Queue,
    token: bytes,
    now: float,
    reason: str | None = None,
    description: str | None = None,
    changes: Changes = None,
) -> None:
    """Move the message to the dead letters, with the reason in its application properties."""
    message = held(queue, token, now)
    if queue.dead_letters is None:
        raise errors.NotAllowedError(
            f"'{queue.name}' holds dead letters already: complete, abandon or defer the message"
        )
    _change(queue, message, changes)
    queue.move_to_dead_letters(message, now, reason, description)


def held(queue: Queue, token: bytes, now: float) -> Message:
    """Give the message that a lock token locks."""
    message = queue.locked.get(token)
    if message is None or (message.locked_until <= now and queue.sessions is None):
        lost = (
            errors.MessageLockLostError if queue.sessions is None else errors.SessionLockLostError
        )
        raise lost(
            "The lock supplied is invalid. Either the lock expired, or the message has already "
            f"been removed from queue '{queue.name}'."
        )
    queue.accessed_at = now
    return message


def _change(queue: Queue, message: Message, changes: Changes) -> None:
    if changes:
        message.add_properties(changes)
        queue.namespace.journal.stored(queue, message)


def renew(queue: Queue, tokens: Iterable[bytes], now: float) -> list[float]:
    """Renew all locks or none; return their new ends."""
    messages = [held(queue, token, now) for token in tokens]
    for message in messages:
        queue.lock_until(message, queue.lock_ends_at(now))
        queue.namespace.journal.changed(queue, message)
    return [message.locked_until for message in messages]


def cancel(queue: Queue, sequences: Iterable[int]) -> None:
    """Cancel all these scheduled messages or none. Raises MessageNotFoundError."""
    messages = [queue.messages.get(sequence) for sequence in sequences]
    found = [m for m in messages if m is not None and m.state is MessageState.SCHEDULED]
    if len(found) != len(messages):
        raise errors.MessageNotFoundError(
            f"not all of these messages are scheduled on queue '{queue.name}': they were "
            "enqueued or cancelled already"
        )
    for message in found:
        queue.remove(message)


def deferred(queue: Queue, sequences: Iterable[int], session_id: str | None) -> list[Message]:
    """Give deferred messages without a lock. Raises MessageNotFoundError for any other."""
    found = []
    for sequence in sequences:
        message = queue.messages.get(sequence)
        if (
            message is None
            or message.state is not MessageState.DEFERRED
            or message.token is not None
            or (queue.sessions is not None and message.session_id != session_id)
        ):
            raise errors.MessageNotFoundError(
                f"Failed to lock one or more specified messages: queue '{queue.name}' has no "
                f"deferred message {sequence} without a lock"
            )
        found.append(message)
    return found


def peek(queue: Queue, first: int, count: int, session_id: str | None, now: float) -> list[Message]:
    """Give up to ``count`` messages from sequence number ``first`` on, in any state.

    The answer is cut at `PEEK_MAX_BYTES`, but has at least one message if there is one.
    """
    found: list[Message] = []
    size = 0
    for message in islice(_visible(queue, first, session_id, now), count):
        size += message.size
        if found and size > PEEK_MAX_BYTES:
            break
        found.append(message)
    return found


def _visible(queue: Queue, first: int, session_id: str | None, now: float) -> Iterator[Message]:
    for sequence in sorted(number for number in queue.messages if number >= first):
        message = queue.messages[sequence]
        if session_id is not None and message.session_id != session_id:
            continue
        expired = message.expires_at is not None and message.expires_at <= now
        if not expired or message.token is not None or message.state is MessageState.DEFERRED:
            yield message
