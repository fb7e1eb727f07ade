"""The call deadline of a request that may get more time, by heartbeats of a running call.

A heartbeat asks the scheduler for time with a progress message. Only the time that the scheduler
granted counts: the order is read again shortly before the known CompleteBy. If the request is
superseded, the running call is cut off.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.codec.results import whole_text
from sas.domain.claim import calls_until, is_out
from sas.domain.ids import digest_id, key_time, reply_id
from sas.domain.messages import Progress
from sas.domain.order import Direction
from sas.domain.queues import Queues, lane
from sas.engine.context import Context
from sas.engine.hooks import CallDeadline
from sas.features.long_steps.rules import heartbeat_interval
from sas.ports import Message, StoreUnavailableError, UnavailableError, UndeliverableError
from sas.telemetry.tracing import logger

log = logger(__name__)
LOOK_EARLY_MAX = timedelta(seconds=2)
"""Longest time before CompleteBy at which a request begins to look for the time it asked for."""


class ExtensibleDeadline(CallDeadline):
    """See ``CallDeadline``. ``first``: the request comes to its first call."""

    def __init__(self, context: Context, request: RequestMessage, *, first: bool) -> None:
        super().__init__(context.clock, request)
        self._context = context
        self._first = first
        self._asked = False
        self._last_heartbeat: datetime | None = None
        self._superseded = asyncio.Event()

    async def begin(self) -> None:
        """Ask for the time allowed again if a third of it went by in the queue.

        Queue delay is not the fault of the remote service. This happens only once, and not for a
        request that was put back, so that its time ends.
        """
        first, self._first = self._first, False
        if first and self.left() < 2 * self.fair_share.total_seconds():
            await self.heartbeat("received late")

    async def heartbeat(self, note: str = "") -> None:
        """Report that the call goes on, and ask for the time allowed again; throttled.

        A failure of the store or the bus fails no call: the next heartbeat asks again. If the
        request is superseded, this never returns: the call is about to be cut off.
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
        except (UnavailableError, UndeliverableError) as down:
            log.warning("order %s: a heartbeat was not sent: %s", self.request.order_id, down)
        if self.superseded:
            await asyncio.Event().wait()

    async def passed(self) -> None:
        """See ``CallDeadline.passed``. If more time was granted, it waits on."""
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
        """Wait until shortly before CompleteBy; return whether more time was granted."""
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
        """Read the CompleteBy that was granted, and whether the request is superseded."""
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
        reply = reply_id(request.order_id, request.step, request.direction, request.epoch)
        own_id = f"heartbeat/{digest_id(reply, key_time(now))}"
        until = now + self._allowed
        return progress_message(request, own_id, until, whole_text(note), self._context.queues)


def progress_message(
    request: RequestMessage,
    own_id: str,
    until: datetime,
    note: str,
    queues: Queues,
    *,
    awaits: bool = False,
) -> Message:
    """Return a progress message that asks for time until ``until``."""
    direction = Direction(request.direction)
    progress = Progress(
        request.order_id, request.step, direction, request.epoch, until, note, awaits=awaits
    )
    queue = lane(queues.replies, urgent=request.urgent)
    return Message(queue, own_id, internal.encode(internal.from_progress(progress, own_id)))
