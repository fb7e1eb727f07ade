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
from sas.domain.claim import is_out
from sas.domain.ids import digest_id, progress_id
from sas.domain.messages import Progress
from sas.domain.order import Direction
from sas.domain.queues import lane
from sas.domain.workflow import NO_TIME
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.hooks import (
    CALLED,
    PUT_BACK,
    called_before,
)
from sas.features.long_steps import rules
from sas.features.long_steps.rules import GoAhead, LookAgain, Received
from sas.ports import AwaitCallback, Later, Message, StillRunning
from sas.telemetry.tracing import logger

log = logger(__name__)


class ContinuedSteps:
    """The long steps of one agent. See ``sas.engine.hooks.LongSteps``."""

    def __init__(self, context: Context, agent: str) -> None:
        self._context = context
        self._agent = agent

    async def granted(self, request: RequestMessage, delivery: Delivery) -> RequestMessage | None:
        """See ``LongSteps.granted``.

        Raises:
            StoreUnavailableError, BusUnavailableError: put the message back.
        """
        now = self._context.clock.now()
        waited = now - delivery.enqueued_at if delivery.enqueued_at else NO_TIME
        put_back = delivery.message_id.startswith(PUT_BACK)
        received = Received(
            complete_by=request.complete_by,
            allowed=timedelta(seconds=request.time_allowed),
            is_look=request.checks > 0,
            first=not put_back and CALLED not in delivery.properties,
            put_back=put_back,
            waited=max(waited, NO_TIME),
        )
        if rules.has_time(received, now):
            return request
        order = await self._context.load(request.order_id)
        direction = Direction(request.direction)
        step = None
        if order is not None and is_out(order, request.step, direction, request.epoch):
            step = order.steps[request.step]
        match rules.judge(received, step, direction, now):
            case GoAhead(until):
                return msgspec.structs.replace(request, complete_by=until)
            case LookAgain() as look:
                asked = [self._progress(request, look.until, "received late")] if look.asks else []
                again = self._again(request, look, called=called_before(delivery))
                await self._context.bus.send([*asked, again])
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
                allowed = timedelta(seconds=request.time_allowed)
                look = rules.next_look(
                    request.complete_by, allowed, check_after, now, is_look=request.checks > 0
                )
                if look.asks:
                    messages.append(self._progress(request, look.until, note))
                messages.append(self._again(request, look, called=True))
        await self._context.bus.send(messages)
        log.info(
            "goes on: order %s step %s %s epoch %d, look %d",
            request.order_id, request.step_name, request.direction, request.epoch, request.checks,
        )  # fmt: skip

    def _progress(
        self, request: RequestMessage, until: datetime, note: str, *, awaits: bool = False
    ) -> Message:
        progress = Progress(
            order_id=request.order_id,
            step=request.step,
            direction=Direction(request.direction),
            epoch=request.epoch,
            complete_by=until,
            note=note,
            awaits=awaits,
        )
        own_id = progress_id(
            request.order_id,
            request.step,
            direction=request.direction,
            epoch=request.epoch,
            check=request.checks,
        )
        queue = lane(self._context.queues.replies, urgent=request.urgent)
        return Message(queue, own_id, internal.encode(internal.from_progress(progress, own_id)))

    def _again(self, request: RequestMessage, look: LookAgain, *, called: bool) -> Message:
        again = msgspec.structs.replace(request, complete_by=look.until, checks=request.checks + 1)
        own_id = digest_id(request.id, "look", str(again.checks))
        return Message(
            self._context.queues.agent(self._agent, urgent=request.urgent),
            f"look/{own_id}",
            internal.encode(again),
            scheduled_at=look.at,
            properties={CALLED: "yes"} if called else {},
        )
