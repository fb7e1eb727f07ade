"""The notifications that the two applications got so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from sas.client import is_end
from sas.codec.external import Notification, notice_of


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts orders by their state, from notifications only, as an application sees it.

    A queue delivers at least once, so a CloudEvent id that is known counts only as a repeat.
    """

    orders: int
    submitted: int = 0
    repeats: int = 0
    notification_ids: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, notification: Notification) -> None:
        """Count one notification."""
        if notification.id in self.notification_ids:
            self.repeats += 1
            return
        self.notification_ids.add(notification.id)
        order_id, notice = notification.data.order_id, notice_of(notification.type)
        self.received.add(order_id)
        if notice == "failed":
            reason = notification.data.error.code if notification.data.error else "unknown"
            self.failed[order_id] = f"{notification.data.step}: {reason}"
        if is_end(notification):
            self.ended[order_id] = notice

    @property
    def done(self) -> bool:
        """Whether every order has ended."""
        return len(self.ended) >= self.orders

    @property
    def processing(self) -> int:
        """The number of orders in process."""
        return len(self.received) - len(self.ended)

    def ends(self, notice: str) -> int:
        """Return how many orders ended with this notice."""
        return sum(1 for end in self.ended.values() if end == notice)
