"""Long steps: they outlast a call. The agent checks on them later, or a callback ends them.

The agent asks the scheduler for time with a progress message, and puts its request back until the
next check. So no message lock and no function lasts as long as the step. Only the CompleteBy that
the scheduler granted counts, so a request that comes back reads it first.

A request that waited too long in its queue gets time in the same way.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.domain.calls import CallEvent, CallState, after
from sas.domain.claim import is_out
from sas.domain.ids import digest_id, progress_id
from sas.domain.messages import Progress
from sas.domain.order import Direction
from sas.domain.queues import lane
from sas.domain.workflow import NO_TIME
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.in_flight import InFlightRequest
from sas.features.long_steps import rules
from sas.features.long_steps.rules import CheckAgain, GoAhead, Received
from sas.ports import AwaitCallback, Later, Message, StillRunning
from sas.telemetry.tracing import logger

log = logger(__name__)


class ContinuedSteps:
    """The long steps of one agent. See ``sas.engine.hooks.LongSteps``."""

    def __init__(self, context: Context, agent: str) -> None:
        self._context = context
        self._agent = agent

    async def granted(self, call: InFlightRequest, delivery: Delivery) -> RequestMessage | None:
        """See ``LongSteps.granted``.

        Raises:
            StoreUnavailableError, BusUnavailableError: put the message back.
        """
        request, now = call.request, self._context.clock.now()
        waited = now - delivery.enqueued_at if delivery.enqueued_at else NO_TIME
        received = Received(
            complete_by=request.complete_by,
            allowed=call.time_allowed,
            state=call.carried,
            checks=request.checks,
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
            case CheckAgain() as check:
                call.move(CallEvent.NEEDS_TIME)
                messages = [self._again(call, check, call.state)]
                if check.asks:
                    messages.insert(0, self._progress(request, check.until, "received late"))
                await self._context.bus.send(messages)
            case None:
                call.move(CallEvent.SUPERSEDED)
        return None

    async def go_on(self, call: InFlightRequest, later: Later) -> None:
        """See ``LongSteps.go_on``.

        Every message id follows from the request's id and the number of the check. So a redelivery
        sends the same messages.

        Raises:
            BusUnavailableError: put the message back.
        """
        request, now = call.request, self._context.clock.now()
        messages: list[Message] = []
        match later:
            case AwaitCallback(within, note):
                messages.append(self._progress(request, now + within, note, awaits=True))
            case StillRunning(check_after, note):
                allowed = timedelta(seconds=request.time_allowed)
                check = rules.next_check(
                    request.complete_by, allowed, check_after, checks=request.checks, now=now
                )
                if check.asks:
                    messages.append(self._progress(request, check.until, note))
                messages.append(
                    self._again(call, check, after(CallState.TRIED, CallEvent.CONTINUED))
                )
        await self._context.bus.send(messages)
        log.info(
            "goes on: order %s step %s %s epoch %d, check %d",
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
        queue = lane(self._context.queues.scheduler, urgent=request.urgent)
        return Message(queue, own_id, internal.encode(internal.from_progress(progress, own_id)))

    def _again(self, call: InFlightRequest, check: CheckAgain, state: CallState) -> Message:
        """Return a request as it comes again at its next check, in that state."""
        request = call.request
        again = msgspec.structs.replace(request, complete_by=check.until, checks=request.checks + 1)
        return Message(
            self._context.queues.agent(self._agent, urgent=request.urgent),
            f"check/{digest_id(request.id, 'check', str(again.checks))}",
            internal.encode(again),
            scheduled_at=check.at,
            properties=call.coming_again(state),
        )
