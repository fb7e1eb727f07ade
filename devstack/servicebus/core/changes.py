"""What becomes of the messages of a queue whose properties change while they are there."""

from devstack.servicebus.core.message import MessageState
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import QueueCore


def change(queue: QueueCore, properties: QueueProperties, now: float) -> None:
    """Give a queue other properties. Locks that are held keep the ends they have."""
    queue.properties = properties
    queue.updated_at = now
    if queue.locked:
        last = max(message.locked_until for message in queue.locked.values())
        queue.dispatch.unordered_until(last)
    forward_waiting(queue, now)


def forward_waiting(queue: QueueCore, now: float) -> None:
    """Send on what waits, where the queue has begun to forward."""
    if not queue.properties.forward_to:
        return
    waiting = [
        message
        for message in queue.messages.values()
        if message.token is None and message.state is MessageState.ACTIVE
    ]
    for message in waiting:
        queue.remove(message)
        queue.house.forward(queue, message, now, 0)
