"""Scheduler: claims what is ready, has its agents work on it, records what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sas.actors.operator import Operator
from sas.codec import internal
from sas.codec.internal import (
    CommandMessage,
    Internal,
    ProgressMessage,
    ReplyMessage,
    WakeMessage,
)
from sas.codec.outward import Rejection
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Decision
from sas.domain.claim import claim
from sas.domain.ids import cause_of
from sas.domain.messages import AlertKind, Progress, Reply
from sas.domain.order import Order
from sas.domain.queues import lane
from sas.domain.reply import answer, progressed
from sas.domain.workflow import Rules
from sas.engine.context import Context
from sas.engine.transition import ApplyResult, Cause, TransitionRunner
from sas.features.routing import Routes
from sas.ports import Business
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
_FOR_SCHEDULER: type[WakeMessage | CommandMessage] = WakeMessage | CommandMessage  # type: ignore[assignment]
_FROM_AGENTS: type[ReplyMessage | ProgressMessage] = ReplyMessage | ProgressMessage  # type: ignore[assignment]


class Scheduler:
    """Handles the ``scheduler`` queue (wakes, commands) and ``agent-replies``."""

    def __init__(self, context: Context, business: Business) -> None:
        self._context = context
        self._business = business
        self._shell = TransitionRunner(context, business.workflow_of)
        self._operator = Operator(context, business, self._shell)
        self._routes = Routes(context, business.workflows)

    async def handle(
        self,
        body: bytes,
        message_id: str,
        properties: Mapping[str, object] | None = None,
        *,
        urgent: bool = False,
    ) -> ApplyResult:
        """Take one message of the ``scheduler`` queue, or of its ``urgent`` lane; its
        ``properties`` carry its trace.

        Raises:
            ContentionError, StoreUnavailableError, BusUnavailableError: let it come again.
        """
        with tracing.received("scheduler", "scheduler", properties):
            return await self._handle(body, message_id, urgent=urgent)

    async def handle_reply(
        self,
        body: bytes,
        message_id: str,
        properties: Mapping[str, object] | None = None,
        *,
        delivery_count: int | None = None,
        enqueued_at: datetime | None = None,
        urgent: bool = False,
    ) -> ApplyResult:
        """Take one message of the ``agent-replies`` queue; raises as ``handle`` does.

        ``delivery_count`` (from 1) and ``enqueued_at`` tell how long that queue is.
        """
        with tracing.received("scheduler reply", "scheduler", properties):
            queue = lane(self._context.queues.replies, urgent=urgent)
            await self._context.lags.took_up(queue, enqueued_at, delivery_count)
            return await self._handle_reply(body, message_id, urgent=urgent)

    async def _handle(self, body: bytes, message_id: str, *, urgent: bool) -> ApplyResult:
        queue = self._context.queues.scheduler
        came_by = lane(queue, urgent=urgent)
        try:
            message = internal.decode(body, _FOR_SCHEDULER)
            command = internal.to_command(message) if isinstance(message, CommandMessage) else None
        except MalformedError as wrong:
            return await self._put_aside(body, message_id, came_by, wrong)
        work = "claim" if command is None else "command"
        tracing.about(f"scheduler {work}", order_id=message.order_id)
        source = Cause(cause_of(queue, message.id), self._context.instance)
        if command is not None:
            return await self._operator.carry_out(command, source.cause)
        await self._routes.look()
        acted = await self._shell.act(message.order_id, source, self._claim)
        return await self._known(acted, message, body, came_by)

    async def _handle_reply(self, body: bytes, message_id: str, *, urgent: bool) -> ApplyResult:
        queue = self._context.queues.replies
        came_by = lane(queue, urgent=urgent)
        try:
            message = internal.decode(body, _FROM_AGENTS)
            said = _said(message)
        except MalformedError as wrong:
            return await self._put_aside(body, message_id, came_by, wrong)

        tracing.about(order_id=message.order_id, epoch=message.epoch)
        step = "unknown"

        def decide(order: Order, now: datetime) -> Decision | None:
            nonlocal step
            if order.rejected:
                return None
            if 0 <= said.step < len(order.steps):
                step = order.steps[said.step].name
                tracing.about(step=step)
            if isinstance(said, Progress):
                return progressed(order, said, now=now)
            rules = self._rules_of(order, now)
            instance = self._context.instance
            return answer(order, said, rules, now=now, instance=instance)

        source = Cause(cause_of(queue, message.id), f"agent of step {message.step}")
        await self._routes.look()
        acted = await self._shell.act(message.order_id, source, decide)
        if acted is ApplyResult.NOTHING and isinstance(said, Reply):
            metrics.late_reply(step)
            log.info("late reply: order %s step %s", message.order_id, step)
        return await self._known(acted, message, body, came_by)

    def _claim(self, order: Order, now: datetime) -> Decision | None:
        if order.rejected:  # it may name a workflow that never was
            return None
        rules = self._rules_of(order, now)
        return claim(order, rules, now=now, instance=self._context.instance)

    def _rules_of(self, order: Order, now: datetime) -> Rules:
        workflow = self._business.workflow_of(order)
        return self._routes.rules_of(workflow, now, urgent=order.details.urgent)

    async def _known(
        self, acted: ApplyResult, message: Internal, body: bytes, queue: str
    ) -> ApplyResult:
        if acted is ApplyResult.UNKNOWN_ORDER:
            wrong = MalformedError(Reason.UNKNOWN_ORDER, f"there is no order {message.order_id!r}")
            await self._put_aside(body, message.id, queue, wrong)
        return acted

    async def _put_aside(
        self, body: bytes, message_id: str, queue: str, wrong: MalformedError
    ) -> ApplyResult:
        rejection = Rejection(body, wrong.reason, wrong.description, queue, message_id)
        await self._context.rejections.put_aside(rejection, AlertKind.REJECTED)
        return ApplyResult.NOTHING


def _said(message: ReplyMessage | ProgressMessage) -> Reply | Progress:
    if isinstance(message, ProgressMessage):
        return internal.to_progress(message)
    return internal.to_reply(message)
