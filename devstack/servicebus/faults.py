"""Faults on demand: what a test or a demo asks to go wrong, and how many times.

Armed faults wait for the next fitting event and are used up by it:

- ``server-busy``: a send, a settlement, an attach or a management request is refused;
- ``delay``: the answer to a send or a settlement comes ``seconds`` late;
- ``lose-acknowledgement``: a send or a settlement is done, then the connection is cut instead of
  answering;
- ``duplicate-delivery``: a completion is accepted and the message comes once more, as after a
  lock that ended unnoticed.

Dropping connections and expiring locks happen at once; the broker does those.
"""

from dataclasses import dataclass

OPERATIONS = {
    "server-busy": ("send", "settle", "attach", "manage"),
    "delay": ("send", "settle"),
    "lose-acknowledgement": ("send", "settle"),
    "duplicate-delivery": ("settle",),
}
KINDS = tuple(OPERATIONS)


@dataclass(slots=True)
class Fault:
    """One armed fault. An empty ``queue`` or ``operation`` fits any."""

    kind: str
    queue: str = ""
    operation: str = ""
    remaining: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no fault; use one of {', '.join(KINDS)}")
        if self.operation and self.operation not in OPERATIONS[self.kind]:
            raise ValueError(
                f"{self.kind} cannot happen to {self.operation[:50]!r}; leave the operation out "
                f"or use {' or '.join(OPERATIONS[self.kind])}"
            )
        if not 1 <= self.remaining <= 1_000_000:
            raise ValueError(f"a fault's count is from 1 to 1000000, not {self.remaining!r}")
        if not 0 <= self.seconds <= 600:
            raise ValueError(f"a delay is from 0 to 600 seconds, not {self.seconds!r}")

    def fits(self, queue: str, operation: str) -> bool:
        """Whether an event on ``queue`` is meant."""
        here = not self.queue or self.queue.lower() == queue.lower()
        return here and (not self.operation or self.operation == operation)


class Faults:
    """The faults that are armed. ``armed`` is falsy when there are none: the common case."""

    def __init__(self) -> None:
        self.armed: list[Fault] = []

    def arm(self, fault: Fault) -> None:
        """Let a fault wait for its event."""
        self.armed.append(fault)

    def clear(self) -> None:
        """Disarm everything."""
        self.armed.clear()

    def take(self, kind: str, queue: str, operation: str) -> Fault | None:
        """Use up one count of the first fault that fits, None where none does."""
        for fault in self.armed:
            if fault.kind == kind and fault.fits(queue, operation):
                fault.remaining -= 1
                if not fault.remaining:
                    self.armed.remove(fault)
                return fault
        return None
