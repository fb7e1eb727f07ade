"""Long steps: they outlast a call. The agent looks at them again later, or a callback ends them.

The agent asks the scheduler for time with a progress message, and puts its request back until the
next look. So no message lock and no function lasts as long as the step. Only the CompleteBy that
the scheduler granted counts, so a request that comes back reads it first.

A request that waited too long in its queue gets time in the same way.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.domain.claim import calls_until, is_cancelled, is_out
from sas.domain.ids import digest_id, progress_id
from sas.domain.order import Direction, StepRecord
from sas.domain.workflow import NO_TIME, TIME_ALLOWED_MAX, TIME_ALLOWED_MIN
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.hooks import (
    CALLED,
    PUT_BACK,
    CallDeadline,
    LongSteps,
    called_before,
    is_first,
)
from sas.features.long_steps.deadline import ExtensibleDeadline, progress_message
from sas.ports import AwaitCallback, Later, Message, StillRunning
from sas.telemetry.tracing import logger

log = logger(__name__)
GRANT_RECHECK = timedelta(seconds=2)
"""Pause before a request looks again for the time that it asked for."""


class ContinuedSteps(LongSteps):
    """The long steps of one agent. See ``sas.engine.hooks.LongSteps``."""

    def __init__(self, context: Context, agent: str) -> None:
        super().__init__(context.clock)
        self._context = context
        self._agent = agent

    def deadline(self, request: RequestMessage, *, first: bool) -> CallDeadline:
        """See ``LongSteps.deadline``."""
        return ExtensibleDeadline(self._context, request, first=first)

    async def granted(self, request: RequestMessage, delivery: Delivery) -> RequestMessage | None:
        """See ``LongSteps.granted``.

        A request that was put back because no call could begin keeps only the time that is left.
        Otherwise its time would never end.

        Raises:
            StoreUnavailableError, BusUnavailableError: put the message back.
        """
        now = self._context.clock.now()
        allowed = timedelta(seconds=request.time_allowed)
        enough = allowed / (3 if is_first(delivery) else 6)
        if delivery.message_id.startswith(PUT_BACK):
            enough = min(TIME_ALLOWED_MIN, enough)
        left = request.complete_by - now
        if not request.checks and left >= enough:
            return request
        order = await self._context.load(request.order_id)
        direction = Direction(request.direction)
        if order is None or not is_out(order, request.step, direction, request.epoch):
            return None
        step = order.steps[request.step]
        granted = calls_until(step, direction) or now
        if granted - now >= (enough if granted >= request.complete_by else allowed / 3):
            return msgspec.structs.replace(request, complete_by=min(granted, now + allowed))
        if not _may_get_time(step, direction):
            return None
        at, called = now + GRANT_RECHECK, called_before(delivery)
        if request.checks and granted < request.complete_by and left > allowed / 3:
            again = self._again(request, at, request.complete_by, called=called)
            await self._context.bus.send([again])  # it is not granted yet
            return None
        # It goes to the end of its queue: ask for another wait as long as the last one, too.
        waited = max(now - delivery.enqueued_at, NO_TIME) if delivery.enqueued_at else NO_TIME
        until = at + min(waited + allowed, TIME_ALLOWED_MAX)
        progress = self._progress(request, until, "received late")
        await self._context.bus.send([progress, self._again(request, at, until, called=called)])
        return None

    async def go_on(self, request: RequestMessage, later: Later) -> None:
        """See ``LongSteps.go_on``.

        Every message id follows from the request's id and the number of the look. So a redelivery
        sends the same messages.

        Raises:
            BusUnavailableError: put the message back.
        """
        now = self._context.clock.now()
        messages: list[Message] = []
        match later:
            case AwaitCallback(within, note):
                messages.append(self._progress(request, now + within, note, awaits=True))
            case StillRunning(check_after, note):
                # At most TIME_ALLOWED_MAX is granted, and at the look some of it must be left.
                latest = TIME_ALLOWED_MAX - timedelta(seconds=request.time_allowed / 2)
                at = now + min(check_after, latest)
                until = self._needed(request, at)
                if until > request.complete_by or not request.checks:
                    messages.append(self._progress(request, until, note))
                messages.append(self._again(request, at, until, called=True))
        await self._context.bus.send(messages)
        log.info(
            "goes on: order %s step %s %s epoch %d, look %d",
            request.order_id, request.step_name, request.direction, request.epoch, request.checks,
        )  # fmt: skip

    def _needed(self, request: RequestMessage, at: datetime) -> datetime:
        """Return the CompleteBy that a look at ``at`` needs.

        It is later than the current one only if less than a third of the time allowed would be
        left. So a step that is looked at often does not fill the journal.
        """
        allowed = timedelta(seconds=request.time_allowed)
        if request.complete_by - at >= allowed / 3:
            return request.complete_by
        return min(at + allowed, self._context.clock.now() + TIME_ALLOWED_MAX)

    def _progress(
        self, request: RequestMessage, until: datetime, note: str, *, awaits: bool = False
    ) -> Message:
        own_id = progress_id(
            request.order_id, request.step, request.direction, request.epoch, request.checks
        )
        queues = self._context.queues
        return progress_message(request, own_id, until, note, queues, awaits=awaits)

    def _again(
        self, request: RequestMessage, at: datetime, until: datetime, *, called: bool
    ) -> Message:
        again = msgspec.structs.replace(request, complete_by=until, checks=request.checks + 1)
        own_id = digest_id(request.id, "look", str(again.checks))
        return Message(
            self._context.queues.agent(self._agent, urgent=request.urgent),
            f"look/{own_id}",
            internal.encode(again),
            scheduled_at=at,
            properties={CALLED: "yes"} if called else {},
        )


def _may_get_time(step: StepRecord, direction: Direction) -> bool:
    """Return whether a request whose time is over may get more.

    It gets none if its order was cancelled or its step waits for a callback: no call may follow.
    """
    if direction is Direction.UNDO:
        return True
    return not is_cancelled(step) and calls_until(step, direction) == step.complete_by
