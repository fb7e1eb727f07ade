"""Faults on demand, for tests and demos.

An armed fault happens at each of the next ``remaining`` events that match it:

- ``server-busy``: a send, a settlement, an attach or a management request is refused;
- ``delay``: the answer to a send or a settlement is ``seconds`` late;
- ``lose-acknowledgement``: a send or a settlement is done, then the connection is dropped without
  an answer;
- ``duplicate-delivery``: the completion of a message's first delivery is accepted, but the message
  is delivered again, as after an expired lock.

The broker drops connections and ends locks at once when it is asked to, so these two are not
armed.
"""

from dataclasses import dataclass

from devstack.servicebus.core.errors import ServerBusyError

OPERATIONS = {
    "server-busy": ("send", "settle", "attach", "manage"),
    "delay": ("send", "settle"),
    "lose-acknowledgement": ("send", "settle"),
    "duplicate-delivery": ("settle",),
}
KINDS = tuple(OPERATIONS)


@dataclass(slots=True, kw_only=True)
class Fault:
    """One armed fault. An empty ``queue`` or ``operation`` matches any."""

    kind: str
    queue: str = ""
    operation: str = ""
    remaining: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is not a fault; use one of {', '.join(KINDS)}")
        if self.operation and self.operation not in OPERATIONS[self.kind]:
            raise ValueError(
                f"{self.kind} cannot happen to {self.operation[:50]!r}; leave the operation out "
                f"or use {' or '.join(OPERATIONS[self.kind])}"
            )
        if not 1 <= self.remaining <= 1_000_000:
            raise ValueError(f"a fault's count is from 1 to 1000000, not {self.remaining!r}")
        if not 0 <= self.seconds <= 600:
            raise ValueError(f"a delay is from 0 to 600 seconds, not {self.seconds!r}")

    def matches(self, queue: str, operation: str) -> bool:
        """Return whether this fault is for ``operation`` on ``queue``."""
        same_queue = not self.queue or self.queue.lower() == queue.lower()
        return same_queue and (not self.operation or self.operation == operation)


class Faults:
    """The armed faults."""

    def __init__(self) -> None:
        self.armed: list[Fault] = []

    def check_busy(self, queue: str, operation: str) -> None:
        """Raise ServerBusyError if that fault is armed."""
        if self.armed and self.take("server-busy", queue, operation):
            raise ServerBusyError(f"queue '{queue}' is busy; wait a moment and try again")

    def take(self, kind: str, queue: str, operation: str) -> Fault | None:
        """Return the first fault that matches and count it down, or None if none matches."""
        for fault in self.armed:
            if fault.kind == kind and fault.matches(queue, operation):
                fault.remaining -= 1
                if not fault.remaining:
                    self.armed.remove(fault)
                return fault
        return None
