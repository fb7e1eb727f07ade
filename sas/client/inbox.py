"""Decides which loops get a notification, and when its message is settled. No I/O, no clock.

Theory of operation
-------------------
An application runs loops (``client.follow``), which this module calls *followers*. All of them
share one response queue, so no loop may take a message away from another one. The queue is read
with peek-lock: a message that this client has received is *unsettled*. It stays on the queue, and
its lock keeps it from all other readers. If the client completes it, it is removed. If the client
gives it back, or if the lock expires, it is delivered again. The inbox has one entry for each
unsettled message. ``receiving.py`` does the I/O: it puts the received messages into the inbox,
asks for the fate of each entry, and carries it out.

Everything runs in one event loop and no method awaits, so a method is atomic without a lock.
Times are seconds of one monotonic clock, passed in. Who writes what:

- ``unsettled``: the receiving task alone, with ``arrived``, ``add`` and ``drop``. At its end it
  clears the dictionary.
- ``followers``: the loops, with ``join`` and ``leave``. The receiving task and the closing of the
  client end all followers with ``fail``.
- ``Follower.unread``: an offer appends to it, the follower's own loop takes from its left,
  ``drop`` removes an entry, and ``leave`` all.
- ``Unsettled.readers``: an offer adds a follower; ``done`` and ``leave`` remove it.

The life of one message:

1. *It arrives* and gets an entry. If its number has an entry already, the lock was lost in an
   outage and Service Bus delivered it again. The entry takes the new lock, and no loop gets it
   twice.
2. *It is offered* to each follower of its order, which becomes one of its readers. A follower that
   joins later is offered all entries that were not handed out yet, so a loop may begin after the
   notification has come. The order id alone does not decide, because another application may name
   this response queue and one of our ids: see ``_follows``.
3. *It is handed out.* A follower stays a reader while its caller works on the notification, and
   stops being one when the caller asks for the next. If the caller leaves instead (``break``, an
   exception), the notification does not count as handed out, and the next follower gets it unless
   another loop has finished it.
4. *Its fate is decided* in each round of the receiving task. A message that was handed out and has
   no reader left is completed. While it has a reader, its lock is renewed, however slow the caller
   is. A lock is renewed after half of its time at the latest, so it expires only in an outage.
5. *Nobody follows its order*: it goes back to the queue, because another process that shares the
   queue may wait for it. It goes back after ten seconds if this client submitted the order, because
   a loop will probably follow it soon. Otherwise it goes back after three seconds. Either time is
   at most half of the lock's time. All such messages go back together, because the receiving task
   pauses afterwards, and one pause for all is enough. A message that was delivered twice before
   keeps its lock instead. Giving back should not count as a delivery. But if it does count, the
   queue would dead-letter a message that goes back too often.
6. *It is older than the end of its order*: it is a repeat, or it is about a step that ran at the
   same time as the last step. Once *completed* or *undone* was handed out, no caller needs it. It
   is completed unread, unless a loop follows the order again. Otherwise such messages would collect
   until they block the queue (``UNFOLLOWED_MAX``).
7. *Its lock is lost*: the entry is dropped, and the message is delivered again as in step 1.

What can go wrong, and why nothing is lost: a message is completed only after its caller has asked
for the next one (3, 4) or after the end of its order (6). If the process dies at any earlier
point, or the completion fails, the lock expires and Service Bus delivers the message again, to
this client or to another process. So each notification of an order that a loop follows is handed
out at least once, except those of step 6. It is handed out twice if the process dies between step
3 and the completion, or if the lock is lost while a caller works. Both times the CloudEvent has
the same ``id``. What the inbox knows of orders dies with the process. It also forgets the oldest
orders above ``ORDERS_MAX``. This loses no message either, because such an order counts as submitted
by another process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from sas.codec.external import Notification, event_type
from sas.domain.messages import Notice

OWN_WAIT_S = 10.0
"""Longest time from a message's arrival or renewal to a decision about it, in seconds."""
FOREIGN_WAIT_S = 3.0
"""The same time for an order that this client did not submit. It is short, because another process
may wait for the message."""
UNFOLLOWED_MAX = 2_000
"""Most unsettled messages that no loop follows."""
ORDERS_MAX = 10_000
"""Orders remembered: those submitted, and those followed to their end."""
DELIVERIES_SPARED = 2
"""A message that was delivered so often before keeps its lock until the task ends."""

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M")
_FINAL = frozenset({event_type(Notice.COMPLETED), event_type(Notice.UNDONE)})


class Fate(Enum):
    """What to do with an unsettled message."""

    WAIT = "wait"
    COMPLETE = "complete"
    GIVE_BACK = "give back"
    RENEW = "renew"


@dataclass(eq=False, slots=True, kw_only=True)
class Follower(Generic[M]):
    """One loop over the notifications of some orders. ``orders`` is None for all orders."""

    orders: frozenset[str] | None
    unread: deque[Unsettled[M]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class Unsettled(Generic[M]):
    """An entry: a message whose lock this client has, and the followers not yet done with it.

    ``number`` is its sequence number on the queue. ``decide_at`` is the next time to decide about
    its lock, and ``wait_s`` the time from one such decision to the next.
    """

    number: int
    message: M
    event: Notification
    decide_at: float
    wait_s: float
    keeps_lock: bool
    readers: set[Follower[M]] = field(default_factory=set)
    handed_out: bool = False


class Inbox(Generic[M]):
    """The unsettled messages of one client, its followers, and what it knows of its orders."""

    def __init__(self) -> None:
        self.unsettled: dict[int, Unsettled[M]] = {}
        self.followers: set[Follower[M]] = set()
        self._submitted: OrderedDict[str, set[str | None]] = OrderedDict()
        """The correlation ids that an order of this client may have, by its order id."""
        self._ended: OrderedDict[str, int] = OrderedDict()
        """The seq at which each order ended, once that end was handed out."""

    def submitted(self, order_id: str, correlation_id: str | None) -> None:
        """Note an order before it is sent, because its first notification may come very soon."""
        self._ended.pop(order_id, None)
        correlation_ids = self._submitted.get(order_id, set())
        _remember(self._submitted, order_id, correlation_ids | {correlation_id})

    def join(self, orders: Iterable[str] | None) -> Follower[M]:
        """Return a new follower. It also gets the notifications that have come before."""
        follower: Follower[M] = Follower(orders=None if orders is None else frozenset(orders))
        self.followers.add(follower)
        for entry in self.unsettled.values():
            self._offer(entry, follower)
        return follower

    def leave(self, follower: Follower[M]) -> None:
        """End a follower, which gets no more. Its unfinished messages go to the other followers."""
        self.followers.discard(follower)
        follower.unread.clear()
        for entry in self.unsettled.values():
            entry.readers.discard(follower)

    def done(self, follower: Follower[M], entry: Unsettled[M]) -> None:
        """Note that a follower has asked for the next notification."""
        # 3. It was handed out.
        entry.readers.discard(follower)
        entry.handed_out = True
        data = entry.event.data
        if entry.event.type in _FINAL and data.seq is not None:
            _remember(self._ended, data.order_id, data.seq)

    def arrived(
        self,
        number: int,
        message: M,
        event: Notification,
        *,
        now: float,
        lock_s: float,
        delivery_count: int,
    ) -> None:
        """Take a message.

        Args:
            number: its sequence number on the queue.
            message: what settles it.
            event: the notification in it.
            now: the time.
            lock_s: how long its lock lasts, in seconds.
            delivery_count: how often it was delivered before.
        """
        # 1. It arrives.
        correlation_ids = self._submitted.get(event.data.order_id)
        wait_max_s = FOREIGN_WAIT_S if correlation_ids is None else OWN_WAIT_S
        wait_s = min(wait_max_s, max(lock_s, 0.0) / 2)
        entry = self.unsettled.get(number)
        if entry is not None:  # its old lock was lost, and the new lock counts
            entry.message, entry.decide_at, entry.wait_s = message, now + wait_s, wait_s
            return
        self.add(
            Unsettled(
                number=number,
                message=message,
                event=event,
                decide_at=now + wait_s,
                wait_s=wait_s,
                keeps_lock=delivery_count >= DELIVERIES_SPARED,
            )
        )
        if correlation_ids is not None and event.data.duplicate:
            # This client submitted an order again. The order has the correlation id of the first
            # submission. So notifications with that id are of this client's order too.
            correlation_ids.add(event.data.correlation_id)
            self._offer_all()

    def add(self, entry: Unsettled[M]) -> None:
        """Add an entry, and offer it to every follower."""
        self.unsettled[entry.number] = entry
        for follower in self.followers:
            self._offer(entry, follower)

    def fate(self, entry: Unsettled[M], now: float) -> Fate:
        """Decide about a message."""
        # 4. Its fate is decided.
        if entry.readers or not (entry.handed_out or self._is_late(entry.event)):
            if now < entry.decide_at:
                return Fate.WAIT
            return Fate.RENEW if entry.readers or entry.keeps_lock else Fate.GIVE_BACK
        return Fate.COMPLETE

    def to_give_back(self, now: float) -> list[Unsettled[M]]:
        """Return the messages to give back now. If one is due, all that no loop follows go back."""
        # 5. Nobody follows their orders.
        if not any(self.fate(entry, now) is Fate.GIVE_BACK for entry in self.unsettled.values()):
            return []
        later = now + OWN_WAIT_S  # all of them are due by then
        return [
            entry for entry in self.unsettled.values() if self.fate(entry, later) is Fate.GIVE_BACK
        ]

    def drop(self, entry: Unsettled[M]) -> None:
        """Forget a message that is about to be settled, or whose lock is lost."""
        # 7. After a lost lock, the old entry must not be handed out.
        self.unsettled.pop(entry.number, None)
        for follower in entry.readers:
            if entry in follower.unread:
                follower.unread.remove(entry)

    def backlog(self) -> int:
        """Return how many notifications wait for the slowest follower."""
        return max((len(follower.unread) for follower in self.followers), default=0)

    def unfollowed(self) -> int:
        """Return how many unsettled messages no loop follows."""
        return sum(not entry.readers for entry in self.unsettled.values())

    def wake(self) -> None:
        """Let every follower look again."""
        for follower in self.followers:
            follower.wake.set()

    def fail(self, failure: Exception) -> None:
        """End every follower with a failure."""
        for follower in list(self.followers):
            follower.failure = failure
            follower.wake.set()
            self.leave(follower)

    def _offer_all(self) -> None:
        for entry in self.unsettled.values():
            for follower in self.followers:
                self._offer(entry, follower)

    def _offer(self, entry: Unsettled[M], follower: Follower[M]) -> None:
        # 2. It is offered.
        if entry.handed_out or follower in entry.readers:
            return
        if self._follows(follower, entry.event):
            entry.readers.add(follower)
            follower.unread.append(entry)
            follower.wake.set()

    def _follows(self, follower: Follower[M], event: Notification) -> bool:
        """Return whether a notification is of an order that a follower follows.

        Another application may name this response queue and one of these order ids. Its
        notifications have another correlation id than this client has sent. If this client
        submitted the order again, ``arrived`` adds the correlation id of the first submission.
        """
        if follower.orders is None:
            return True
        data = event.data
        if data.order_id not in follower.orders:
            return False
        if event.subject not in (msgspec.UNSET, data.order_id):
            return False
        correlation_ids = self._submitted.get(data.order_id)
        return correlation_ids is None or data.correlation_id in correlation_ids

    def _is_late(self, event: Notification) -> bool:
        """Return whether a notification is older than the end of its order, which was handed out.

        No caller needs it: it is a repeat, or is about a step that ran beside the last step.
        """
        # 6. It is older than the end of its order.
        end, seq = self._ended.get(event.data.order_id), event.data.seq
        return end is not None and seq is not None and seq <= end


def _remember(latest: OrderedDict[K, V], key: K, value: V) -> None:
    """Set a value as the latest. Forget the oldest value if there are too many."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > ORDERS_MAX:
        latest.popitem(last=False)
