"""Decides which follower gets a notification, and how its message is settled. No I/O, no clock.

Times are seconds of one monotonic clock, passed in.
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

WAIT_S = 10.0
"""Longest time for which a message is unsettled without a decision, in seconds."""
FOREIGN_WAIT_S = 3.0
"""The same for a message of an order that this client does not know: another process waits."""
KEPT_MAX = 2_000
"""Most unsettled messages that no loop follows."""
ORDERS_MAX = 10_000
"""Orders remembered: those submitted, and those followed to their end."""
DELIVERIES_SPARED = 2
"""A message that was delivered so often before keeps its lock: it goes back only at the end."""

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
    """One loop over notifications: of some orders, or of all (``orders`` is None)."""

    orders: frozenset[str] | None
    unread: deque[Unsettled[M]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class Unsettled(Generic[M]):
    """A message whose lock this client has, and the followers that are not done with it."""

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
        self._ended: OrderedDict[str, int] = OrderedDict()

    def submitted(self, order_id: str, correlation_id: str | None) -> None:
        """Note an order that is about to be sent."""
        self._ended.pop(order_id, None)
        known = self._submitted.get(order_id, set())
        _remember(self._submitted, order_id, known | {correlation_id})

    def join(self, orders: Iterable[str] | None) -> Follower[M]:
        """Return a new follower. It gets what came of its orders before."""
        follower: Follower[M] = Follower(orders=None if orders is None else frozenset(orders))
        self.followers.add(follower)
        for one in self.unsettled.values():
            self._offer(one, follower)
        return follower

    def leave(self, follower: Follower[M]) -> None:
        """End a follower. Its unfinished messages go to the other followers."""
        self.followers.discard(follower)
        for one in self.unsettled.values():
            one.readers.discard(follower)

    def done(self, follower: Follower[M], one: Unsettled[M]) -> None:
        """Note that a follower has asked for the next notification."""
        one.readers.discard(follower)
        one.handed_out = True
        data = one.event.data
        if one.event.type in _FINAL and data.seq is not None:
            _remember(self._ended, data.order_id, data.seq)

    def arrived(
        self,
        number: int,
        message: M,
        event: Notification,
        *,
        now: float,
        lock_s: float,
        before: int,
    ) -> None:
        """Take a message.

        Args:
            number: its sequence number on the queue. One that is here already was delivered
                again because its lock was lost: the new lock counts.
            message: what settles it.
            event: what it says.
            now: the time.
            lock_s: how long its lock lasts, in seconds.
            before: how often it was delivered before.
        """
        known = self._submitted.get(event.data.order_id)
        most = FOREIGN_WAIT_S if known is None else WAIT_S
        wait_s = min(most, max(lock_s, 0.0) / 2)
        again = self.unsettled.get(number)
        if again is not None:
            again.message, again.decide_at, again.wait_s = message, now + wait_s, wait_s
            return
        keeps_lock = before >= DELIVERIES_SPARED
        one = Unsettled(
            number=number,
            message=message,
            event=event,
            decide_at=now + wait_s,
            wait_s=wait_s,
            keeps_lock=keeps_lock,
        )
        self.keep(one)
        if known is not None and event.data.duplicate:
            known.add(event.data.correlation_id)
            self._offer_all()

    def keep(self, one: Unsettled[M]) -> None:
        """Keep a message, and offer it to every follower."""
        self.unsettled[one.number] = one
        for follower in self.followers:
            self._offer(one, follower)

    def fate(self, one: Unsettled[M], now: float) -> Fate:
        """Decide about a message."""
        if one.readers or not (one.handed_out or self._is_late(one.event)):
            if now < one.decide_at:
                return Fate.WAIT
            return Fate.RENEW if one.readers or one.keeps_lock else Fate.GIVE_BACK
        return Fate.COMPLETE

    def given_back(self, now: float) -> list[Unsettled[M]]:
        """Return the messages to give back now: once one is due, all that no loop follows."""
        if not any(self.fate(one, now) is Fate.GIVE_BACK for one in self.unsettled.values()):
            return []
        later = now + WAIT_S
        return [one for one in self.unsettled.values() if self.fate(one, later) is Fate.GIVE_BACK]

    def drop(self, one: Unsettled[M]) -> None:
        """Forget a message whose lock is lost or given up. It is delivered again."""
        self.unsettled.pop(one.number, None)
        for follower in one.readers:
            if one in follower.unread:
                follower.unread.remove(one)

    def unread(self) -> int:
        """Return how many notifications wait for the slowest follower."""
        return max((len(follower.unread) for follower in self.followers), default=0)

    def kept(self) -> int:
        """Return how many unsettled messages no loop follows."""
        return sum(not one.readers for one in self.unsettled.values())

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
        for one in self.unsettled.values():
            for follower in self.followers:
                self._offer(one, follower)

    def _offer(self, one: Unsettled[M], follower: Follower[M]) -> None:
        if one.handed_out or follower in one.readers or not self._wants(follower, one.event):
            return
        one.readers.add(follower)
        follower.unread.append(one)
        follower.wake.set()

    def _wants(self, follower: Follower[M], event: Notification) -> bool:
        """Return whether a notification is of an order that a follower follows.

        Another application may name this response queue and one of these order ids. Its
        notifications have another correlation id than the one that this client has sent. The
        answer to a repeat tells with which correlation id the same order was recorded before.
        """
        if follower.orders is None:
            return True
        data = event.data
        if data.order_id not in follower.orders:
            return False
        if event.subject not in (msgspec.UNSET, data.order_id):
            return False
        known = self._submitted.get(data.order_id)
        return known is None or data.correlation_id in known

    def _is_late(self, event: Notification) -> bool:
        """Return whether a notification is older than the end of its order, which was handed out.

        It is a repeat, or is about a step that ran beside the last one: no caller needs it.
        """
        end, seq = self._ended.get(event.data.order_id), event.data.seq
        return end is not None and seq is not None and seq <= end


def _remember(latest: OrderedDict[K, V], key: K, value: V) -> None:
    """Set a value as the latest; forget the oldest if there are too many."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > ORDERS_MAX:
        latest.popitem(last=False)
