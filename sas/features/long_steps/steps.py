"""Steps that last longer than a call: looked at again later, or ended by a callback.

The agent asks the scheduler for time (a progress message) and puts its request back for the next
look. No message's lease and no function lasts as long as the step. The CompleteBy that holds is the
one the scheduler granted, so a request that comes back reads it first.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.domain.claim import calls_until, is_out
from sas.domain.ids import digest_id, progress_id
from sas.domain.messages import Progress
from sas.domain.order import Direction
from sas.domain.queues import lane
from sas.domain.workflow import TIME_ALLOWED_MAX
from sas.engine.context import Context
from sas.engine.hooks import CallDeadline, LongSteps, MustWaitError
from sas.features.long_steps.deadline import ExtensibleDeadline
from sas.ports import AwaitCallback, Later, Message, StillRunning
from sas.telemetry.tracing import logger

log = logger(__name__)


GRANT_RECHECK = timedelta(seconds=2)
"""How long a request waits for the grant of the time that was asked for, before it looks again."""


class ContinuedSteps(LongSteps):
    """One agent's steps that go on. See ``sas.engine.hooks.LongSteps``."""

    def __init__(self, context: Context, agent: str) -> None:
        super().__init__(context.clock)
        self._context = context
        self._agent = agent

    def deadline(self, request: RequestMessage, *, first: bool) -> CallDeadline:
        """See ``LongSteps.deadline``."""
        return ExtensibleDeadline(self._context, request, first=first)

    async def granted(self, request: RequestMessage) -> RequestMessage | None:
        """Return a request with the CompleteBy it was granted; None where it must fall silent.

        Raises:
            MustWaitError: the grant is still under way.
            StoreUnavailableError: let the message come again.
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
        """Ask for the time a step needs, and see to it that it is looked at again.

        Every id follows from the request's and how often it was looked at: a redelivery's
        messages are the same.

        Raises:
            BusUnavailableError: let the message come again.
        """
        now = self._context.clock.now()
        messages: list[Message] = []
        match later:
            case AwaitCallback(within, note):
                messages.append(self._progress(request, now + within, note, awaits=True))
            case StillRunning(check_after, note):
                # What is granted ends at TIME_ALLOWED_MAX: some time must be left at the look.
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

        More is asked for only where less than a third of the time allowed would be left, so that
        a step that is looked at often does not fill the journal.
        """
        allowed = timedelta(seconds=request.time_allowed)
        if request.complete_by - at >= allowed / 3:
            return request.complete_by
        return min(at + allowed, self._context.clock.now() + TIME_ALLOWED_MAX)

    def _progress(
        self, request: RequestMessage, until: datetime, note: str, *, awaits: bool = False
    ) -> Message:
        direction, epoch = Direction(request.direction), request.epoch
        own_id = progress_id(
            request.order_id, request.step, request.direction, request.epoch, request.checks
        )
        said = Progress(
            request.order_id, request.step, direction, epoch, until, note, awaits=awaits
        )
        body = internal.encode(internal.from_progress(said, own_id))
        queue = lane(self._context.queues.replies, urgent=request.urgent)
        return Message(queue, own_id, body)

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
