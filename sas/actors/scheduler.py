"""Scheduler: claims ready steps, sends requests to agents, records their replies."""

from __future__ import annotations

from datetime import datetime, timedelta

from sas.actors.operator import Operator
from sas.codec import internal
from sas.codec.internal import Internal, ProgressMessage, ReplyMessage, WakeMessage
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Decision, Trigger, fence
from sas.domain.claim import claim
from sas.domain.ids import cause_of
from sas.domain.messages import AlertKind, Progress, Reply
from sas.domain.order import FINISHED, Order
from sas.domain.reply import answer, progressed
from sas.domain.workflow import Rules
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.transition import ApplyResult, TransitionRunner
from sas.ports import Business
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)


class Scheduler:
    """Handles the ``scheduler`` queue (wakes, commands) and ``agent-replies``."""

    def __init__(self, context: Context, business: Business, deploy_wait: timedelta) -> None:
        """For ``deploy_wait`` a command is left to an instance that has its order's workflow."""
        self._context = context
        self._business = business
        self._runner = TransitionRunner(context, business.workflow_of)
        self._operator = Operator(context, business, self._runner, deploy_wait)

    async def handle(self, delivery: Delivery) -> ApplyResult:
        """Handle one message of the ``scheduler`` queue.

        Raises:
            UnavailableError: put the message back (``sas.engine.receiver``).
        """
        with tracing.received("scheduler", "scheduler", delivery.properties):
            try:
                message = internal.decode_for_scheduler(delivery.body)
                cause = cause_of(self._context.queues.scheduler, message.id)
                if isinstance(message, WakeMessage):
                    return await self._wake(message, cause, delivery)
                command = internal.to_command(message)
            except MalformedError as error:
                return await self._put_aside(delivery, error)
            tracing.about("scheduler command", order_id=message.order_id)
            return await self._operator.carry_out(command, cause, delivery)

    async def handle_reply(self, delivery: Delivery) -> ApplyResult:
        """Handle one message of the ``agent-replies`` queue; raises as ``handle`` does."""
        with tracing.received("scheduler reply", "scheduler", delivery.properties):
            try:
                message = internal.decode_from_agent(delivery.body)
                reply = (
                    internal.to_progress(message)
                    if isinstance(message, ProgressMessage)
                    else internal.to_reply(message)
                )
            except MalformedError as error:
                return await self._put_aside(delivery, error)
            return await self._reply(message, reply, delivery)

    async def _wake(self, message: WakeMessage, cause: str, delivery: Delivery) -> ApplyResult:
        tracing.about("scheduler claim", order_id=message.order_id)

        def decide(order: Order | None, now: datetime) -> Decision | None:
            if order is None or _is_over(order):
                return None
            rules, instance = self._rules(order, now), self._context.instance
            decision = claim(order, rules, now=now, instance=instance)
            # Another handler may have this wake. It must not claim a step that is reset later.
            return fence(order) if decision is None and not delivery.is_first else decision

        trigger = Trigger(
            by=self._context.instance,
            cause=cause,
            seq=message.seq,
            external_sent=delivery.external_sent,
        )
        await self._context.rules.refresh()
        result = await self._runner.run(message.order_id, trigger, decide)
        return await self._known(result, message, delivery)

    async def _reply(
        self, message: ReplyMessage | ProgressMessage, reply: Reply | Progress, delivery: Delivery
    ) -> ApplyResult:
        tracing.about(order_id=message.order_id, epoch=message.epoch)
        name = "unknown"

        def decide(order: Order | None, now: datetime) -> Decision | None:
            nonlocal name
            if order is None or _is_over(order):
                return None
            if 0 <= reply.step < len(order.steps):
                name = order.steps[reply.step].name
                tracing.about(step=name)
            rules, instance = self._rules(order, now), self._context.instance
            if isinstance(reply, Progress):
                return progressed(order, reply, rules, now=now, instance=instance)
            return answer(order, reply, rules, now=now, instance=instance)

        def by(order: Order) -> str:
            agents = self._business.workflow_of(order).steps[reply.step].agents
            return f"agent {agents[order.steps[reply.step].call.route]}"

        trigger = Trigger(
            by=by,
            cause=cause_of(self._context.queues.replies, message.id),
            seq=message.seq if isinstance(message, ReplyMessage) else None,
            external_sent=delivery.external_sent,
        )
        await self._context.rules.refresh()
        result = await self._runner.run(message.order_id, trigger, decide)
        if result is ApplyResult.NOTHING and isinstance(reply, Reply):
            metrics.late_reply(name)
            log.info("late reply: order %s step %s", message.order_id, name)
        return await self._known(result, message, delivery)

    def _rules(self, order: Order, now: datetime) -> Rules:
        return self._context.rules.of(self._business.workflow_of(order), now)

    async def _known(
        self, result: ApplyResult, message: Internal, delivery: Delivery
    ) -> ApplyResult:
        """Put a message aside if its order does not exist."""
        if result is ApplyResult.UNKNOWN_ORDER:
            error = MalformedError(Reason.UNKNOWN_ORDER, f"there is no order {message.order_id!r}")
            await self._put_aside(delivery, error)
        return result

    async def _put_aside(self, delivery: Delivery, error: MalformedError) -> ApplyResult:
        await self._context.rejections.put_aside(delivery.rejected(error), AlertKind.REJECTED)
        return ApplyResult.NOTHING


def _is_over(order: Order) -> bool:
    """Return whether nothing can follow for an order. Its workflow may be gone by now."""
    return order.rejected or order.process_state in FINISHED
