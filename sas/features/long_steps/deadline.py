"""Until when a request may be worked upon: its CompleteBy, and how a running call gets more.

A heartbeat asks the scheduler for time (a progress message, as a step that is put back does).
What holds is what the scheduler granted: the order is read before the CompleteBy that is known
has passed. If the step is no longer this dispatch's, the running call is cut off.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.domain.claim import calls_until, is_out
from sas.domain.ids import digest_id, key_time, reply_id
from sas.domain.messages import Progress
from sas.domain.order import Direction
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.ports import BusUnavailableError, Message, StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)


HEARTBEAT_INTERVAL_MIN = timedelta(seconds=10)


NEAR = timedelta(seconds=5)
"""How long before CompleteBy at most nothing is waited for any more."""


EARLY_MAX = timedelta(seconds=2)
"""How long before CompleteBy an agent that has asked for more begins to look for it."""


def heartbeat_interval(allowed: timedelta) -> timedelta:
    """Return how often a heartbeat is passed on: at most once in a third of the time allowed, and
    in ten seconds (in half of a time allowed that is shorter than twice that). So the journal
    of a step has at most three rows for each time allowed.
    """
    return max(allowed / 3, min(HEARTBEAT_INTERVAL_MIN, allowed / 2))


class CallDeadline:
    """One request's time."""

    def __init__(self, context: Context, request: RequestMessage, *, fresh: bool = False) -> None:
        self._context = context
        self._fresh = fresh
        self._allowed = timedelta(seconds=request.time_allowed)
        self._asked = False
        self._beaten: datetime | None = None
        self.request = request
        """The request, with the CompleteBy that is known to be granted."""
        self.moved = False
        """Whether that is a later one than it came with."""
        self.over = asyncio.Event()
        """Set once the step is no longer this request's."""

    @property
    def fair(self) -> timedelta:
        """How long a call must have had before its silence says anything of its service."""
        return self._allowed / 3

    def is_near(self, moment: datetime) -> bool:
        """Return whether CompleteBy comes so soon after a moment that it is too late to wait for
        anything: the word that more time was given would come after it.
        """
        return moment >= self.request.complete_by - min(NEAR, self._allowed / 6)

    async def begin(self) -> None:
        """Ask for the time allowed once more where a request was taken up late, as its first call
        begins: what stood before it in its queue is no fault of its service.

        Only once, and not for one that came back: its time is over at some time. Nor so near its
        CompleteBy that the call would be cut off first, and the time granted be nobody's.
        """
        fresh, self._fresh = self._fresh, False
        late = self.left() < self.fair.total_seconds()
        if fresh and late and not self.is_near(self._context.clock.now()):
            await self.beat("taken up late")

    def left(self) -> float:
        """Return the seconds until CompleteBy; none once it is over."""
        if self.over.is_set():
            return 0.0
        return (self.request.complete_by - self._context.clock.now()).total_seconds()

    async def beat(self, note: str = "") -> None:
        """Say that the call goes on, and ask for the time allowed once more; throttled.

        That store or bus are down fails no call: the next heartbeat says it again. Where the
        step is no longer this request's it does not return: the call is about to be cut off.
        """
        now = self._context.clock.now()
        if self.left() <= 0 and not self.over.is_set():
            return  # silent past CompleteBy
        if self._beaten is not None and now - self._beaten < heartbeat_interval(self._allowed):
            return
        self._beaten = now
        try:
            await self._look()
            if not self.over.is_set():
                await self._context.bus.send([self._progress(now, note)])
                self._asked = True
        except (StoreUnavailableError, BusUnavailableError) as down:
            log.warning("order %s: a heartbeat was not passed on: %s", self.request.order_id, down)
        if self.over.is_set():
            await asyncio.Event().wait()

    async def more(self) -> bool:
        """Return, as CompleteBy comes near, whether there is more time; False once it passed."""
        early = min(EARLY_MAX, self._allowed / 6).total_seconds()
        await self._context.clock.sleep(self.left() - early)
        while self.left() > 0:
            known = self.request.complete_by
            if self._asked and await self._looked() and self.request.complete_by > known:
                self._asked = False
                return True
            await self._context.clock.sleep(min(self.left(), max(early / 4, 0.01)))
        return False

    async def _looked(self) -> bool:
        try:
            await self._look()
        except StoreUnavailableError as down:
            log.warning("order %s: its CompleteBy was not read: %s", self.request.order_id, down)
            return False
        return True

    async def _look(self) -> None:
        """Learn the CompleteBy that was granted, and whether the step is this request's still."""
        request = self.request
        order = await self._context.store.load(request.order_id)
        direction = Direction(request.direction)
        if order is None or not is_out(order, request.step, direction, request.epoch):
            self.over.set()
            return
        granted = calls_until(order.steps[request.step], direction)
        if granted is not None and granted > request.complete_by:
            self.request = msgspec.structs.replace(request, complete_by=granted)
            self.moved = True

    def _progress(self, now: datetime, note: str) -> Message:
        request = self.request
        direction = Direction(request.direction)
        said = Progress(
            request.order_id,
            request.step,
            direction,
            request.epoch,
            now + self._allowed,
            note.encode("utf-8", "replace").decode(),
        )
        of = reply_id(request.order_id, request.step, request.direction, request.epoch)
        own_id = f"beat/{digest_id(of, key_time(now))}"
        queue = lane(self._context.queues.replies, urgent=request.urgent)
        return Message(queue, own_id, internal.encode(internal.from_progress(said, own_id)))
