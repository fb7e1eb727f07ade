"""The deadline of a request that may be given more time: heartbeats of a running call.

A heartbeat asks the scheduler for time, by a progress message. What holds is what the scheduler
granted: the order is read before the CompleteBy that is known has passed. If the step is no longer
this request's, the running call is cut off.
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
from sas.engine.hooks import CallDeadline
from sas.ports import BusUnavailableError, Message, StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
HEARTBEAT_INTERVAL_MIN = timedelta(seconds=10)
LOOK_EARLY_MAX = timedelta(seconds=2)
"""How long before CompleteBy, at most, a request that asked for more time begins to look for it."""


def heartbeat_interval(allowed: timedelta) -> timedelta:
    """Return how often a heartbeat is passed on.

    A third of the time allowed, ten seconds at least (half of it where it is shorter than twenty).
    So the journal of a step has at most three rows for each time allowed.
    """
    return max(allowed / 3, min(HEARTBEAT_INTERVAL_MIN, allowed / 2))


class ExtensibleDeadline(CallDeadline):
    """See ``CallDeadline``. ``first``: the request was not put back before."""

    def __init__(self, context: Context, request: RequestMessage, *, first: bool) -> None:
        super().__init__(context.clock, request)
        self._context = context
        self._first = first
        self._asked = False
        self._last_heartbeat: datetime | None = None
        self._superseded = asyncio.Event()

    async def begin(self) -> None:
        """Ask for the time allowed once more where a request was received late.

        What stood before it in its queue is not its service's fault. Only once, and not for a
        request that was put back: its time is over at some time. Nor close to CompleteBy: the
        call would be cut off before the time is granted.
        """
        first, self._first = self._first, False
        late = self.left() < self.fair_share.total_seconds()
        if first and late and not self.is_close(self._clock.now()):
            await self.heartbeat("received late")

    async def heartbeat(self, note: str = "") -> None:
        """Say that the call goes on, and ask for the time allowed once more; throttled.

        Store or bus being down fails no call: the next heartbeat says it again. Where the step is
        no longer this request's it does not return: the call is about to be cut off.
        """
        now = self._clock.now()
        if self.left() <= 0 and not self.superseded:
            return  # silent past CompleteBy
        last = self._last_heartbeat
        if last is not None and now - last < heartbeat_interval(self._allowed):
            return
        self._last_heartbeat = now
        try:
            await self._look()
            if not self.superseded:
                await self._context.bus.send([self._progress(now, note)])
                self._asked = True
        except (StoreUnavailableError, BusUnavailableError) as down:
            log.warning("order %s: a heartbeat was not passed on: %s", self.request.order_id, down)
        if self.superseded:
            await asyncio.Event().wait()

    async def passed(self) -> None:
        """See ``CallDeadline.passed``. Where more time was granted it waits on."""
        over = asyncio.ensure_future(self._superseded.wait())
        try:
            while True:
                more = asyncio.ensure_future(self._more())
                try:
                    await asyncio.wait({over, more}, return_when=asyncio.FIRST_COMPLETED)
                    if over.done() or not more.result():
                        return
                finally:
                    more.cancel()
                    await asyncio.gather(more, return_exceptions=True)
                if self.on_extended is not None:
                    await self.on_extended()
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)

    async def _more(self) -> bool:
        """Return, close to CompleteBy, whether there is more time; False once it has passed."""
        early = min(LOOK_EARLY_MAX, self._allowed / 6).total_seconds()
        await self._clock.sleep(self.left() - early)
        while self.left() > 0:
            known = self.request.complete_by
            if self._asked and await self._looked() and self.request.complete_by > known:
                self._asked = False
                return True
            await self._clock.sleep(min(self.left(), max(early / 4, 0.01)))
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
        order = await self._context.load(request.order_id)
        direction = Direction(request.direction)
        if order is None or not is_out(order, request.step, direction, request.epoch):
            self.superseded = True
            self._superseded.set()
            return
        granted = calls_until(order.steps[request.step], direction)
        if granted is not None and granted > request.complete_by:
            self.request = msgspec.structs.replace(request, complete_by=granted)
            self.extended = True

    def _progress(self, now: datetime, note: str) -> Message:
        request = self.request
        said = Progress(
            request.order_id,
            request.step,
            Direction(request.direction),
            request.epoch,
            now + self._allowed,
            note.encode("utf-8", "replace").decode(),
        )
        reply = reply_id(request.order_id, request.step, request.direction, request.epoch)
        own_id = f"heartbeat/{digest_id(reply, key_time(now))}"
        queue = lane(self._context.queues.replies, urgent=request.urgent)
        return Message(queue, own_id, internal.encode(internal.from_progress(said, own_id)))
