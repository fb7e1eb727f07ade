"""Steps that outlast a call: looked at again later, or ended by a callback.

The agent asks the scheduler for time (a progress message) and puts its request back for the
next look: no message's lease and no function lasts as long as the step. The CompleteBy that
holds is the one the scheduler granted, so a request that comes back reads it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from sas.engine.hooks import MustWaitError
from sas.features.callbacks.codec import Claims
from sas.ports import AwaitCallback, Callback, CallbacksOffError, Later, Message, StillRunning
from sas.telemetry.tracing import logger

log = logger(__name__)


GRANT_RECHECK = timedelta(seconds=2)
"""How long a request waits for the grant of the time that was asked for, before it looks again."""


class LongSteps:
    """One agent's steps that go on."""

    def __init__(self, context: Context, agent: str) -> None:
        self._context = context
        self._agent = agent

    async def granted(self, request: RequestMessage) -> RequestMessage | None:
        """Return a request with the CompleteBy it was granted; None where it must fall silent.

        Raises:
            MustWaitError: the grant is still under way.
            StoreUnavailableError: let the message come again.
        """
        if not request.checks:
            return request
        order = await self._context.store.load(request.order_id)
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

    def callbacks_of(
        self, request: RequestMessage, generation: int
    ) -> Callable[[timedelta], Callback]:
        """Return what gives out callbacks for a request under one generation of its key."""

        def give(within: timedelta) -> Callback:
            keys = self._context.callback_keys
            if not keys:
                raise CallbacksOffError
            expires = math.ceil((self._context.clock.now() + within).timestamp())
            claims = Claims(
                order_id=request.order_id,
                step=request.step,
                direction=request.direction,
                generation=generation,
                expires=expires,
                alternative=request.alternative,
                submission=request.submission,
            )
            token = keys.issue(claims)
            url = f"{keys.url.rstrip('/')}/{token}" if keys.url else None
            return Callback(token, url, claims.expires_at)

        return give

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
