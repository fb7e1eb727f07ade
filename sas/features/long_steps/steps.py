"""Long steps: they outlast a call. The agent looks at them again later, or a callback ends them.

The agent asks the scheduler for time with a progress message, and puts its request back until the
next look. So no message lock and no function lasts as long as the step. Only the CompleteBy that
the scheduler granted counts, so a request that comes back reads it first.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.domain.claim import calls_until, is_out
from sas.domain.ids import digest_id, progress_id
from sas.domain.order import Direction
from sas.domain.workflow import TIME_ALLOWED_MAX
from sas.engine.context import Context
from sas.engine.hooks import CallDeadline, LongSteps, MustWaitError
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

    async def granted(self, request: RequestMessage) -> RequestMessage | None:
        """See ``LongSteps.granted``.

        Raises:
            MustWaitError: the scheduler has not granted the time yet.
            StoreUnavailableError: redeliver the message.
        """
        if not request.checks:
            return request
        order = await self._context.load(request.order_id)
        direction = Direction(request.direction)
        if order is None or not is_out(order, request.step, direction, request.epoch):
            return None
        now = self._context.clock.now()
        granted = calls_until(order.steps[request.step], direction) or now
        enough = timedelta(seconds=request.time_allowed / 3)
        if granted < request.complete_by and granted - now < enough:
            raise MustWaitError(now + GRANT_RECHECK, called=True)
        return msgspec.structs.replace(request, complete_by=granted)

    async def go_on(self, request: RequestMessage, later: Later) -> None:
        """See ``LongSteps.go_on``.

        Every message id follows from the request's id and the number of the look. So a redelivery
        sends the same messages.

        Raises:
            BusUnavailableError: redeliver the message.
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
                messages.append(self._again(request, at, until))
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

    def _again(self, request: RequestMessage, at: datetime, until: datetime) -> Message:
        again = msgspec.structs.replace(request, complete_by=until, checks=request.checks + 1)
        own_id = digest_id(request.id, "look", str(again.checks))
        return Message(
            self._context.queues.agent(self._agent, urgent=request.urgent),
            f"look/{own_id}",
            internal.encode(again),
            time_to_live=max(until - at, timedelta(seconds=1)),
            scheduled_at=at,
        )
