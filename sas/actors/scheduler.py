"""Scheduler: claims ready steps, sends requests to agents, records how they ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from sas.actors.operator import Operator
from sas.codec import internal
from sas.codec.internal import (
    CallbackMessage,
    CommandMessage,
    ForScheduler,
    ProgressMessage,
    ReplyMessage,
    WakeMessage,
)
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Decision, Trigger, fence
from sas.domain.claim import claim
from sas.domain.ids import cause_of
from sas.domain.messages import Progress, Reply
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
ActOnCallback = Callable[[CallbackMessage, Delivery], Awaitable[ApplyResult]]
"""Acts on an accepted callback (``sas.features.callbacks``)."""


class Scheduler:
    """Handles the ``scheduler`` queue: wakes, replies, callbacks and operators' commands."""

    def __init__(
        self,
        context: Context,
        business: Business,
        act_on_callback: ActOnCallback,
        deploy_wait: timedelta,
    ) -> None:
        """For ``deploy_wait`` a command is left to an instance that has its order's workflow."""
        self._context = context
        self._business = business
        self._act_on_callback = act_on_callback
        self._runner = TransitionRunner(context, business.workflow_of)
        self._operator = Operator(context, business, self._runner, deploy_wait)

    async def handle(self, delivery: Delivery) -> ApplyResult:
        """Handle one message of the ``scheduler`` queue.

        Raises:
            ContentionError, UnavailableError: put the message back (``sas.engine.receiver``).
        """
        order_id: str | None = None
        with tracing.received("scheduler", "scheduler", delivery.properties):
            try:
                message = internal.decode_for_scheduler(delivery.body)
                order_id = message.order_id
                return await self._act(message, delivery)
            except MalformedError as error:
                rejection = delivery.rejected(error, order_id)
                await self._context.rejections.put_aside(rejection)
                return ApplyResult.NOTHING

    async def _act(self, message: ForScheduler, delivery: Delivery) -> ApplyResult:
        """Act on a message.

        Raises:
            MalformedError: it can never be used.
        """
        cause = cause_of(self._context.queues.scheduler, message.id)
        match message:
            case WakeMessage():
                result = await self._wake(message, cause, delivery)
            case CommandMessage():
                tracing.about("scheduler command", order_id=message.order_id)
                return await self._operator.carry_out(internal.to_command(message), cause, delivery)
            case CallbackMessage():
                return await self._act_on_callback(message, delivery)
            case ReplyMessage():
                result = await self._reply(internal.to_reply(message), message.seq, cause, delivery)
            case ProgressMessage():
                result = await self._reply(internal.to_progress(message), None, cause, delivery)
        if result is ApplyResult.UNKNOWN_ORDER:
            raise MalformedError(Reason.UNKNOWN_ORDER, f"there is no order {message.order_id!r}")
        return result

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
        return await self._runner.run(message.order_id, trigger, decide)

    async def _reply(
        self, reply: Reply | Progress, seq: int | None, cause: str, delivery: Delivery
    ) -> ApplyResult:
        tracing.about("scheduler reply", order_id=reply.order_id, epoch=reply.epoch)
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
            cause=cause,
            seq=seq,
            external_sent=delivery.external_sent,
        )
        await self._context.rules.refresh()
        result = await self._runner.run(reply.order_id, trigger, decide)
        if result is ApplyResult.NOTHING and isinstance(reply, Reply):
            metrics.late_reply(name)
            log.info("late reply: order %s step %s", reply.order_id, name)
        return result

    def _rules(self, order: Order, now: datetime) -> Rules:
        return self._context.rules.of(self._business.workflow_of(order), now)


def _is_over(order: Order) -> bool:
    """Return whether nothing can follow for an order. Its workflow may be gone by now."""
    return order.rejected or order.process_state in FINISHED
