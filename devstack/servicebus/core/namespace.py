"""All queues of one broker: their names, what forwards to what, and what falls due when."""

import difflib
import heapq
import itertools
import logging
import os
from collections.abc import Callable, Iterator

from devstack.servicebus.core.admission import check_admission
from devstack.servicebus.core.changes import change
from devstack.servicebus.core.errors import BrokerError, EntityNotFoundError
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.ports import Journal, NullJournal
from devstack.servicebus.core.properties import QueueProperties, check_queue_name
from devstack.servicebus.core.queue import QueueCore

DEAD_LETTERS = "/$DeadLetterQueue"
TRANSFER_DEAD_LETTERS = "/$Transfer/$DeadLetterQueue"
MANAGEMENT = "/$management"
MAX_FORWARD_HOPS = 4
_TOO_MANY_HOPS = (
    "MaxTransferHopCountExceeded",
    f"The message was forwarded {MAX_FORWARD_HOPS} times, which is the maximum; shorten the chain.",
)

_log = logging.getLogger("devstack.servicebus")


def _random_tokens() -> Iterator[bytes]:
    """Make lock tokens, many for each call of the operating system."""
    while True:
        pool = os.urandom(16 * 256)
        yield from (pool[at : at + 16] for at in range(0, len(pool), 16))


class Namespace:
    """The queues, by name; names differ by more than case. Sans-IO like the queues.

    ``new_token`` makes lock tokens of 16 bytes; a simulation passes its own.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        new_token: Callable[[], bytes] | None = None,
    ) -> None:
        self.journal: Journal = journal or NullJournal()
        self.new_token = new_token or _random_tokens().__next__
        self._queues: dict[str, QueueCore] = {}
        self._transfer: dict[str, QueueCore] = {}
        self.due_changed = True
        self._timers: list[tuple[float, int, QueueCore]] = []
        self._ticket = itertools.count()

    def __iter__(self) -> Iterator[QueueCore]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def every_queue(self) -> list[QueueCore]:
        """Give every queue and every queue of dead letters."""
        subs = [queue.dead_letters for queue in self if queue.dead_letters is not None]
        return [*self, *subs, *self._transfer.values()]

    # -- names --------------------------------------------------------------------------

    def create(
        self, name: str, properties: QueueProperties | None = None, now: float = 0.0
    ) -> QueueCore:
        """Create a queue. Raises ValueError for a bad name, or one that is taken."""
        check_queue_name(name)
        if name.lower() in self._queues:
            raise ValueError(f"queue '{name}' exists already")
        settings = properties or QueueProperties()
        self.check_forwarding(name, settings)
        dead = QueueCore(name + DEAD_LETTERS, settings.for_dead_letters(), self, created_at=now)
        queue = QueueCore(name, settings, self, dead_letters=dead, created_at=now)
        self._queues[name.lower()] = queue
        self.journal.queue_changed(queue)
        return queue

    def update(self, name: str, properties: QueueProperties, now: float) -> QueueCore:
        """Change a queue's properties. Raises EntityNotFoundError, ValueError.

        Sessions and duplicate detection cannot be changed after creation, as in the service.
        """
        queue = self.queue(name)
        old = queue.properties
        if properties.requires_session != old.requires_session:
            raise ValueError("RequiresSession cannot be changed; delete the queue and create it")
        if properties.requires_duplicate_detection != old.requires_duplicate_detection:
            raise ValueError("RequiresDuplicateDetection cannot be changed after creation")
        self.check_forwarding(name, properties)
        for part in (queue.dead_letters, self._transfer.get(name.lower())):
            if part is not None:
                change(part, properties.for_dead_letters(), now)
        change(queue, properties, now)
        self.journal.queue_changed(queue)
        return queue

    def delete(self, name: str) -> QueueCore:
        """Delete a queue and all it holds. Raises EntityNotFoundError."""
        queue = self.queue(name)
        del self._queues[name.lower()]
        transfer = self._transfer.pop(name.lower(), None)
        self.journal.queue_deleted(queue)
        # Links may still let go of what they held: from now on that is written nowhere.
        for part in (queue, queue.dead_letters, transfer):
            if part is not None:
                part.house, part.wake_at = Namespace(), None
        return queue

    def check_forwarding(self, name: str, settings: QueueProperties) -> None:
        """Raise ValueError where a queue would forward to itself."""
        if name.lower() in {settings.forward_to.lower(), settings.forward_dead_letters_to.lower()}:
            raise ValueError(f"queue '{name}' cannot forward to itself")

    def check_targets(self, name: str, settings: QueueProperties) -> None:
        """Raise ValueError where a queue would forward to itself or to one that is not there."""
        self.check_forwarding(name, settings)
        for target in (settings.forward_to, settings.forward_dead_letters_to):
            if target and target.lower() not in self._queues:
                raise ValueError(
                    "SubCode=40400. The auto forwarding destination entity "
                    f"'{target[:300]}' does not exist; create that queue first"
                )

    def queue(self, name: str) -> QueueCore:
        """Find a queue by name. Raises EntityNotFoundError and logs the names that are near."""
        queue = self._queues.get(name.lower())
        if queue is None:
            near = difflib.get_close_matches(name.lower(), self._queues, n=3)
            _log.warning(
                "queue '%s' was asked for and does not exist; %s",
                name[:300],
                "near names: " + ", ".join(self._queues[other].name for other in near)
                if near
                else f"there are {len(self)} queues and none is near",
            )
            raise EntityNotFoundError(
                f"The messaging entity '{name[:300]}' could not be found. Create the queue, or "
                "name one of the configuration."
            )
        return queue

    def find(self, path: str) -> QueueCore:
        """Find a queue, or its dead letters, by path. Raises EntityNotFoundError."""
        lowered = path.lower()
        if lowered.endswith(TRANSFER_DEAD_LETTERS.lower()):
            return self._transfer_queue(self.queue(path[: -len(TRANSFER_DEAD_LETTERS)]))
        if lowered.endswith(DEAD_LETTERS.lower()):
            dead = self.queue(path[: -len(DEAD_LETTERS)]).dead_letters
            if dead is not None:
                return dead
        return self.queue(path)

    def transfer_queue_of(self, name: str) -> QueueCore | None:
        """Give the queue of messages that could not be forwarded, None where there are none."""
        return self._transfer.get(name.lower())

    def _transfer_queue(self, source: QueueCore) -> QueueCore:
        found = self._transfer.get(source.name.lower())
        if found is None:
            found = QueueCore(
                source.name + TRANSFER_DEAD_LETTERS, source.properties.for_dead_letters(), self
            )
            self._transfer[source.name.lower()] = found
        return found

    # -- forwarding ---------------------------------------------------------------------

    def forward(self, source: QueueCore, message: Message, now: float, hops: int) -> None:
        """Bring a message to the queue ``source`` forwards to.

        What cannot go there (no such queue, disabled, full, too many hops) is kept among the
        source's transfer dead letters with the reason, as the service does.
        """
        reason, refusal = _TOO_MANY_HOPS
        if hops < MAX_FORWARD_HOPS:
            reason = "ForwardingFailed"
            refusal = self._hand_over(source.properties.forward_to, message, now, hops)
            if not refusal:
                return
        message.tell_reason(reason, refusal)
        message.scheduled_at = message.ttl_s = message.expires_at = None
        self._transfer_queue(source).arrive(message, now)

    def forward_dead(self, source: QueueCore, message: Message, now: float) -> bool:
        """Bring a dead letter to where ``source`` forwards them, annotated with its name."""
        target = source.properties.forward_dead_letters_to
        if not target:
            return False
        message.dead_letter_source = source.name
        refusal = self._hand_over(target, message, now, 0)
        if refusal:
            message.dead_letter_source = None
            _log.warning("a dead letter of '%s' stays there: %s", source.name, refusal)
        return not refusal

    def _hand_over(self, target: str, message: Message, now: float, hops: int) -> str:
        try:
            queue = self.queue(target)
            check_admission(queue, [message])
        except BrokerError as error:
            return error.description
        message.enqueued_sequence = message.enqueued_sequence or message.sequence
        message.enqueued_at = 0.0
        message.delivery_count = 0
        queue.arrive(message, now, hops + 1)
        return ""

    # -- time ---------------------------------------------------------------------------

    def wake(self, queue: QueueCore, at: float) -> None:
        """Sweep ``queue`` once ``at`` has come."""
        queue.wake_at = at
        self.due_changed = True
        heapq.heappush(self._timers, (at, next(self._ticket), queue))

    def next_due(self) -> float | None:
        """Say when `tick` has something to do."""
        while self._timers and self._timers[0][2].wake_at != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def tick(self, now: float) -> None:
        """Sweep every queue whose moment has come."""
        self.due_changed = True
        while (due := self.next_due()) is not None and due <= now:
            queue = heapq.heappop(self._timers)[2]
            queue.wake_at = None
            again = queue.sweep(now)
            if again is not None:
                queue.wake(max(again, now + 0.001))
