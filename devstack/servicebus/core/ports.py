"""What a queue needs from outside: takers of messages, a memory that lasts, a house to stand in."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from devstack.servicebus.core.message import Message
    from devstack.servicebus.core.queue import QueueCore
    from devstack.servicebus.core.sessions import Session


class Consumer(Protocol):
    """A receiver. The queue calls it; it never calls the queue back from inside these calls."""

    credit: int
    settles_first: bool
    session: "Session | None"

    @property
    def holder(self) -> object:
        """Whoever owns the receiver: its connection. Session operations must come from it."""

    def deliver(self, message: "Message", token: bytes) -> None:
        """Take one message and lower ``credit`` by one; ``token`` is the lock's."""

    def session_granted(self, session: "Session") -> None:
        """The session that was asked for is now this consumer's."""

    def session_refused(self) -> None:
        """No session came free in time."""

    def session_lost(self) -> None:
        """The session's lock expired."""


class Journal(Protocol):
    """Where what must survive a crash is written down. Nothing is durable before a commit."""

    def stored(self, queue: "QueueCore", message: "Message") -> None:
        """A message arrived."""

    def changed(self, queue: "QueueCore", message: "Message") -> None:
        """A message's lock, delivery count or state changed."""

    def removed(self, queue: "QueueCore", message: "Message") -> None:
        """A message is gone from this queue."""

    def remembered(self, queue: "QueueCore", message_id: Any, at: float, sequence: int) -> None:
        """A message-id entered the duplicate detection history."""

    def session_changed(self, queue: "QueueCore", session: "Session") -> None:
        """A session's state changed."""

    def queue_changed(self, queue: "QueueCore") -> None:
        """A queue was created or its properties were changed."""

    def queue_deleted(self, queue: "QueueCore") -> None:
        """A queue was deleted with all it held."""


class House(Protocol):
    """What a queue needs from the namespace it stands in."""

    journal: Journal
    new_token: Callable[[], bytes]

    def wake(self, queue: "QueueCore", at: float) -> None:
        """Call ``queue.sweep`` once ``at`` has come."""

    def forward(self, source: "QueueCore", message: "Message", now: float, hops: int) -> None:
        """Bring a message to the queue that ``source`` forwards to."""

    def forward_dead(self, source: "QueueCore", message: "Message", now: float) -> bool:
        """Bring a dead letter to where ``source`` forwards them; False where it cannot go."""


class NullJournal:
    """Forgets everything: a broker without ``--data``."""

    def stored(self, queue: "QueueCore", message: "Message") -> None:
        """Forget it."""

    def changed(self, queue: "QueueCore", message: "Message") -> None:
        """Forget it."""

    def removed(self, queue: "QueueCore", message: "Message") -> None:
        """Forget it."""

    def remembered(self, queue: "QueueCore", message_id: Any, at: float, sequence: int) -> None:
        """Forget it."""

    def session_changed(self, queue: "QueueCore", session: "Session") -> None:
        """Forget it."""

    def queue_changed(self, queue: "QueueCore") -> None:
        """Forget it."""

    def queue_deleted(self, queue: "QueueCore") -> None:
        """Forget it."""
