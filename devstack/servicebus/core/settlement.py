"""What a receiver says about a message that it holds: one verb each.

Every verb raises MessageLockLostError (SessionLockLostError on a queue with sessions) where the
lock is no longer held, and then changes nothing.
"""

from collections.abc import Mapping
from typing import Any

from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.core.errors import (
    ArgumentError,
    MessageLockLostError,
    NotAllowedError,
    SessionLockLostError,
)
from devstack.servicebus.core.message import Message, MessageState
from devstack.servicebus.core.queue import QueueCore

Changes = Mapping[str, Any] | None


def complete(queue: QueueCore, token: bytes, now: float) -> None:
    """Remove the message: it was processed."""
    queue.remove(held(queue, token, now))


def abandon(queue: QueueCore, token: bytes, now: float, changes: Changes = None) -> None:
    """Make the message available again; this counts as a delivery."""
    message = held(queue, token, now)
    _change(queue, message, changes)
    queue.unlock(message, now, count=True)


def release(queue: QueueCore, token: bytes, now: float) -> None:
    """Make the message available again as if it had not been delivered."""
    queue.unlock(held(queue, token, now), now, count=False)


def defer(queue: QueueCore, token: bytes, now: float, changes: Changes = None) -> None:
    """Set the message aside until it is asked for by its sequence number."""
    message = held(queue, token, now)
    _change(queue, message, changes)
    message.state = MessageState.DEFERRED
    queue.unlock(message, now, count=False)


def dead_letter(
    queue: QueueCore,
    token: bytes,
    now: float,
    reason: str | None = None,
    description: str | None = None,
    changes: Changes = None,
) -> None:
    """Move the message to the dead letters, with the reason in its application properties."""
    message = held(queue, token, now)
    if queue.dead_letters is None:
        raise NotAllowedError(
            f"'{queue.name}' holds dead letters already: complete, abandon or defer the message"
        )
    _change(queue, message, changes)
    queue.bury(message, now, reason, description)


def held(queue: QueueCore, token: bytes, now: float) -> Message:
    """Give the message that a lock token holds. Raises as the verbs do."""
    message = queue.locked.get(token)
    if message is None or (message.locked_until <= now and queue.sessions is None):
        lost = MessageLockLostError if queue.sessions is None else SessionLockLostError
        raise lost(
            "The lock supplied is invalid. Either the lock expired, or the message has already "
            f"been removed from queue '{queue.name}'."
        )
    queue.accessed_at = now
    return message


def _change(queue: QueueCore, message: Message, changes: Changes) -> None:
    if changes:
        try:
            message.add_properties(changes)
        except (TypeError, AmqpError) as error:
            raise ArgumentError(str(error)) from None
        queue.house.journal.stored(queue, message)
