"""What clients may do with single messages: settle, renew, peek, cancel, receive by number.

The operations on a lock token raise MessageLockLostError, or SessionLockLostError on a queue with
sessions, if no valid lock has that token. They change nothing then. A lock is valid until its end;
in a session it is valid until the sweep takes the session from its receiver. So of two receivers
that believe they hold the same message, only the one whose lock is valid can settle it.
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
    queue.remove(locked_message(queue, token, now))


def abandon(queue: Queue, token: bytes, now: float, changes: Changes = None) -> None:
    """Make the message available again. This counts as a delivery."""
    message = locked_message(queue, token, now)
    _change(queue, message, changes)
    queue.unlock(message, now, count=True)


def release(queue: Queue, token: bytes, now: float) -> None:
    """Make the message available again. This does not count as a delivery."""
    queue.unlock(locked_message(queue, token, now), now, count=False)


def defer(queue: Queue, token: bytes, now: float, changes: Changes = None) -> None:
    """Set the message aside until a client receives it by its sequence number."""
    message = locked_message(queue, token, now)
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
    message = locked_message(queue, token, now)
    if queue.dead_letters is None:
        raise errors.NotAllowedError(
            f"'{queue.name}' holds dead letters already: complete, abandon or defer the message"
        )
    _change(queue, message, changes)
    queue.move_to_dead_letters(message, now, reason, description)


def locked_message(queue: Queue, token: bytes, now: float) -> Message:
    """Return the message that the token locks. Raises as the module says."""
    # Step 6 of queue.py. The sweep may come a moment late, so the time is tested too. Sessions are
    # an exception: their owner keeps its locks until the sweep.
    message = queue.locked.get(token)
    if message is None or (message.locked_until <= now and queue.sessions is None):
        error_class = (
            errors.MessageLockLostError if queue.sessions is None else errors.SessionLockLostError
        )
        raise error_class(
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
    messages = [locked_message(queue, token, now) for token in tokens]
    for message in messages:
        queue.lock_until(message, queue.lock_ends_at(now))
        queue.namespace.journal.changed(queue, message)
    return [message.locked_until for message in messages]


def cancel(queue: Queue, sequences: Iterable[int]) -> None:
    """Cancel all these scheduled messages or none. Raises MessageNotFoundError."""
    candidates = [queue.messages.get(sequence) for sequence in sequences]
    messages = [m for m in candidates if m is not None and m.state is MessageState.SCHEDULED]
    if len(messages) != len(candidates):
        raise errors.MessageNotFoundError(
            f"not all of these messages are scheduled on queue '{queue.name}': they were "
            "enqueued or cancelled already"
        )
    for message in messages:
        queue.remove(message)


def deferred_messages(
    queue: Queue, sequences: Iterable[int], session_id: str | None
) -> list[Message]:
    """Return deferred messages that have no lock. Raises MessageNotFoundError for any other."""
    messages = []
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
        messages.append(message)
    return messages


def peek(
    queue: Queue, first_sequence: int, *, count: int, session_id: str | None, now: float
) -> list[Message]:
    """Return up to ``count`` messages from sequence number ``first_sequence`` on, in any state.

    Messages that have expired and wait for the sweep are left out.

    The answer is cut at `PEEK_MAX_BYTES`, but has at least one message if there is one.
    """
    messages: list[Message] = []
    size = 0
    for message in islice(_visible(queue, first_sequence, session_id, now), count):
        size += message.size
        if messages and size > PEEK_MAX_BYTES:
            break
        messages.append(message)
    return messages


def _visible(
    queue: Queue, first_sequence: int, session_id: str | None, now: float
) -> Iterator[Message]:
    for sequence in sorted(number for number in queue.messages if number >= first_sequence):
        message = queue.messages[sequence]
        if session_id is not None and message.session_id != session_id:
            continue
        is_expired = message.expires_at is not None and message.expires_at <= now
        if not is_expired or message.token is not None or message.state is MessageState.DEFERRED:
            yield message
