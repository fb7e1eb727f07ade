"""All queues of one broker: their names, forwarding, and the times of their sweeps."""

import difflib
import functools
import logging
import secrets
from collections.abc import Callable, Iterator

from devstack.servicebus.core.errors import BrokerError, EntityNotFoundError
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.properties import QueueProperties, check_queue_name
from devstack.servicebus.core.queue import Journal, Queue

DEAD_LETTERS = "/$DeadLetterQueue"
TRANSFER_DEAD_LETTERS = "/$Transfer/$DeadLetterQueue"
MANAGEMENT = "/$management"
MAX_FORWARD_HOPS = 4
_TOO_MANY_HOPS = (
    "MaxTransferHopCountExceeded",
    f"The message was forwarded {MAX_FORWARD_HOPS} times, which is the maximum; shorten the chain.",
)

_log = logging.getLogger("devstack.servicebus")


class Namespace:
    """The queues by name, ignoring case. ``new_token`` makes lock tokens of 16 bytes."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.new_token: Callable[[], bytes] = functools.partial(secrets.token_bytes, 16)
        self._queues: dict[str, Queue] = {}
        self.due_changed = True

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def every_queue(self) -> list[Queue]:
        """Return every queue, each with its dead-letter queues."""
        return [member for queue in self for member in (queue, *queue.parts)]

    def create(
        self, name: str, properties: QueueProperties | None = None, now: float = 0.0
    ) -> Queue:
        """Create a queue. Raises ValueError for a bad name, or a name in use."""
        check_queue_name(name)
        if name.lower() in self._queues:
            raise ValueError(f"queue '{name}' exists already")
        settings = properties or QueueProperties()
        self.check_forwarding(name, settings)
        parts = [
            Queue(name + ending, settings.for_dead_letters(), self, created_at=now)
            for ending in (DEAD_LETTERS, TRANSFER_DEAD_LETTERS)
        ]
        queue = Queue(name, settings, self, parts=parts, created_at=now)
        self._queues[name.lower()] = queue
        self.journal.queue_changed(queue)
        return queue

    def update(self, name: str, properties: QueueProperties, now: float) -> Queue:
        """Change a queue's properties. Raises EntityNotFoundError, ValueError.

        Sessions and duplicate detection cannot be changed after creation, as in the service.
        """
        queue = self.queue(name)
        current = queue.properties
        if properties.requires_session != current.requires_session:
            raise ValueError("RequiresSession cannot be changed; delete the queue and create it")
        if properties.requires_duplicate_detection != current.requires_duplicate_detection:
            raise ValueError("RequiresDuplicateDetection cannot be changed after creation")
        self.check_forwarding(name, properties)
        for part in queue.parts:
            part.change_properties(properties.for_dead_letters(), now)
        queue.change_properties(properties, now)
        self.journal.queue_changed(queue)
        return queue

    def delete(self, name: str) -> Queue:
        """Delete a queue with its messages. Raises EntityNotFoundError."""
        queue = self.queue(name)
        del self._queues[name.lower()]
        self.journal.queue_deleted(queue)
        # Links may still release messages of the deleted queue. With a namespace of its own, whose
        # journal keeps nothing, the queue records none of that in the data.
        for part in (queue, *queue.parts):
            part.namespace, part.wake_at = Namespace(), None
        return queue

    def check_forwarding(self, name: str, settings: QueueProperties) -> None:
        """Raise ValueError if a name is invalid, or its queue would forward to itself."""
        check_queue_name(name)
        if name.lower() in {settings.forward_to.lower(), settings.forward_dead_letters_to.lower()}:
            raise ValueError(f"queue '{name}' cannot forward to itself")

    def check_targets(self, name: str, settings: QueueProperties) -> None:
        """Raise ValueError if a queue would forward to itself or to a missing queue."""
        self.check_forwarding(name, settings)
        for target in (settings.forward_to, settings.forward_dead_letters_to):
            if target and target.lower() not in self._queues:
                raise ValueError(
                    "SubCode=40400. The auto forwarding destination entity "
                    f"'{target[:300]}' does not exist; create that queue first"
                )

    def queue(self, name: str) -> Queue:
        """Find a queue by name. Raises EntityNotFoundError, and logs similar names."""
        queue = self._queues.get(name.lower())
        if queue is None:
            similar = difflib.get_close_matches(name.lower(), self._queues, n=3)
            _log.warning(
                "a client asked for queue '%s', which does not exist; %s",
                name[:300],
                "similar names: " + ", ".join(self._queues[other].name for other in similar)
                if similar
                else f"none of the {len(self)} queues has a similar name",
            )
            raise EntityNotFoundError(
                f"The messaging entity '{name[:300]}' could not be found. Create the queue, or "
                "use the name of a configured one."
            )
        return queue

    def find(self, path: str) -> Queue:
        """Find a queue or a dead-letter queue by its path or that of its ``$management``.

        Raises EntityNotFoundError.
        """
        if path.lower().endswith(MANAGEMENT):
            path = path[: -len(MANAGEMENT)]
        lowered = path.lower()
        for number, ending in ((1, TRANSFER_DEAD_LETTERS), (0, DEAD_LETTERS)):
            if lowered.endswith(ending.lower()):
                return self.queue(path[: -len(ending)]).parts[number]
        return self.queue(path)

    def forward(self, source: Queue, message: Message, now: float, hops: int) -> None:
        """Move a message to the queue that ``source`` forwards to.

        If the target cannot take the message (for example because it is missing, disabled or full,
        or after too many hops), the message goes to the source's transfer dead letters with the
        reason, as in the service.
        """
        reason, problem = _TOO_MANY_HOPS
        if hops < MAX_FORWARD_HOPS:
            reason = "ForwardingFailed"
            problem = self._transfer_to(source.properties.forward_to, message, now, hops)
            if not problem:
                return
        message.add_dead_letter_reason(reason, problem)
        message.scheduled_at = message.ttl_s = message.expires_at = None
        source.parts[1].accept(message, now)

    def forward_dead(self, source: Queue, message: Message, now: float) -> bool:
        """Move a dead letter to the queue for the dead letters of ``source``.

        Return False if there is no such queue, or if it cannot take the message."""
        target = source.properties.forward_dead_letters_to
        if not target:
            return False
        message.dead_letter_source = source.name
        problem = self._transfer_to(target, message, now, 0)
        if problem:
            message.dead_letter_source = None
            _log.warning("a dead letter of '%s' stays there: %s", source.name, problem)
        return not problem

    def _transfer_to(self, target: str, message: Message, now: float, hops: int) -> str:
        try:
            queue = self.queue(target)
            queue.check_admission([message])
        except BrokerError as error:
            return error.description
        message.enqueued_sequence = message.enqueued_sequence or message.sequence
        message.enqueued_at = 0.0
        message.delivery_count = 0
        queue.accept(message, now, hops + 1)
        return ""

    def wake(self, queue: Queue, at: float) -> None:
        """Sweep ``queue`` at ``at``."""
        queue.wake_at = at
        self.due_changed = True

    def next_due(self) -> float | None:
        """Return the time of the next `tick`, or None if no sweep is planned."""
        moments = (queue.wake_at for queue in self.every_queue())
        return min((at for at in moments if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Sweep every queue that is due."""
        self.due_changed = True
        for queue in self.every_queue():
            if queue.wake_at is not None and queue.wake_at <= now:
                queue.wake_at = None
                next_sweep = queue.sweep(now)
                if next_sweep is not None:
                    queue.wake(max(next_sweep, now + 0.001))
