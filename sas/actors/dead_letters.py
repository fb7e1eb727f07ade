"""Dead letters: a dead-lettered message is never acted on. It is finished, or fenced and kept.

Every queue forwards what it gives up to ``dead-letters``: messages whose deliveries are used up, or
that expired. A dead letter goes like this:

1. **Believe the source.** Service Bus says which queue gave the message up. The letter is decoded
   only as a message of that queue. Otherwise an order that looks like a reply could fence the real
   reply. The Functions host lets a body override the source, so a body that names one is not
   believed. A letter of any other source is put aside without decoding its content.
2. **Finish.** If the cause of the message is recorded, an earlier delivery committed its
   transition, and perhaps died before it sent, or while it ran on. What was recorded since and
   neither handled nor sent is sent now, and the letter is done. The cause of an agent's request is
   that of its reply.
3. **Fence.** If the cause is not recorded, a journal row with that cause is committed, and the
   order stays as it is. This makes the decision final: a slow handler that still has the message
   finds the cause recorded, and commits nothing. If the message is an application's order that is
   not stored yet, a Rejected order is written under its id instead. If the slow handler was faster,
   its messages were sent as in 2.
4. **Put aside.** Only after that, the message goes to ``orders-rejected``, and the operator is
   informed. The application of an order message is notified, unless its order goes on.

Some letters need less. A request for which its step no longer waits is dropped. Otherwise the
supervisor recovers the step at CompleteBy. A message of ``orders-rejected`` that expired unread
goes back there. An expired alert is put aside without a new alert, because an alert about an alert
could repeat without end. A notification that its application did not read is counted in the
incident of its queue, and removed (``sas.engine.rejections``).

What can go wrong, and why nothing is lost: the letter is completed last. After a crash at any point
it is redelivered. It finds the cause recorded: a transition is finished again with the same ids,
and a fence leads to 4 again. What 4 sends has ids that follow from the letter and its source, so a
repeat is recognised. If the handling of a letter fails, it is put back with growing pauses until it
succeeds (``sas.engine.receiver``). A letter that kills its process each time is given up by
``dead-letters`` itself. It is received from the subqueue then, and may come with another source; so
it may be kept twice, and the second copy is sure of its alert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from sas.actors.submission import details_of, read_order, sender_of
from sas.bounds import TooLargeError
from sas.codec import internal
from sas.codec.external import Rejection
from sas.codec.internal import RequestMessage
from sas.codec.orders import salvage
from sas.codec.strict import MalformedError, Reason, parse
from sas.domain.change import Decision, Trigger, fence, rejection
from sas.domain.claim import is_out
from sas.domain.ids import URGENT_SUFFIX, cause_of
from sas.domain.messages import JournalEntry
from sas.domain.order import Details, Direction, Order
from sas.domain.texts import quoted, shortened
from sas.engine import receiver
from sas.engine.context import Context
from sas.engine.delivery import ORDER_ID, Delivery
from sas.engine.transition import ApplyResult, Decide, TransitionRunner
from sas.ports import Business
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)


class DeadLetters:
    """Handles the ``dead-letters`` queue, to which every queue forwards.

    The numbers are those of the module's text.
    """

    def __init__(self, context: Context, business: Business, order_bytes_max: int) -> None:
        self._context = context
        self._bytes_max = order_bytes_max
        self._runner = TransitionRunner(context, business.workflow_of)
        # Service Bus compares names without case, and may spell them in another one.
        self._queue_names = {name.lower(): name for name in context.queues.own(business.agents)}

    async def handle(self, delivery: Delivery) -> None:
        """Handle one dead letter.

        Raises:
            StoreUnavailableError, BusUnavailableError, ContentionError: put the message back.
        """
        with tracing.received("dead-letters", "dead-letters", delivery.properties):
            await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        queues, rejections = self._context.queues, self._context.rejections
        # 1. Believe the source.
        is_forged = _names_its_source(delivery.body)
        named = "" if is_forged else delivery.source_queue or ""
        source = self._queue_names.get(named.lower(), named)
        delivery = replace(delivery, source_queue=source or None)
        if queues.takes_orders(source):
            await self._order(delivery, source)
        # It expired unread, and is kept again. An alert about an alert could repeat without end.
        elif source == queues.rejected:
            await rejections.keep_on(self._rejection(delivery, None))
        elif source == queues.alerts:
            await rejections.keep(self._rejection(delivery, None))
        elif source.removesuffix(URGENT_SUFFIX) == queues.scheduler:
            await self._internal(delivery)
        elif source.startswith(queues.agent_prefix):
            await self._request(delivery)
        elif queues.is_response(source):
            order_id = delivery.properties.get(ORDER_ID) or delivery.message_id
            why = _why_unread(source, delivery.properties)
            await rejections.give_up_notification(source, str(order_id)[:128], why)
        else:
            await self._put_aside(delivery, None, is_expendable=is_forged)

    async def _internal(self, delivery: Delivery) -> None:
        try:
            message = internal.decode_for_scheduler(delivery.body)
        except MalformedError:
            await self._put_aside(delivery, salvage(delivery.body).order_id)
            return
        tracing.about(order_id=message.order_id)
        cause = cause_of(self._context.queues.scheduler, message.id)
        await self._finish(message.order_id, cause, delivery)

    async def _request(self, delivery: Delivery) -> None:
        """Fence the reply to a request and put it aside, unless its step no longer waits for it.

        Without the fence a slow handler could still record its reply, run on, and die.
        """
        try:
            request = internal.decode(delivery.body, RequestMessage)
        except MalformedError:
            await self._put_aside(delivery, salvage(delivery.body).order_id)
            return
        tracing.about(order_id=request.order_id)
        replied = self._context.reply_cause(
            request.order_id, request.step, request.direction, request.epoch
        )
        order = await self._context.load(request.order_id)
        direction = Direction(request.direction)
        if order is None:
            await self._put_aside(delivery, request.order_id)
        elif is_out(order, request.step, direction, request.epoch):
            await self._finish(request.order_id, replied, delivery)
        elif not await self._finished(request.order_id, replied):
            step = f"{request.step_name} {request.direction}"
            log.warning(
                "dropped a dead letter of order %s: step %s no longer waits for epoch %d",
                request.order_id,
                step,
                request.epoch,
            )

    async def _order(self, delivery: Delivery, source: str) -> None:
        """Handle what should be an application's order."""
        try:
            submission = read_order(delivery, source, self._context, self._bytes_max)
            workflow, version = submission.workflow, submission.version or 0
            details = details_of(submission, self._context, workflow=workflow, version=version)
        except (MalformedError, TooLargeError):
            await self._reject(delivery, source)
            return
        details = replace(details, traceparent=None)
        tracing.about(order_id=submission.order_id)
        cause = cause_of(self._context.queues.orders, submission.submission_id)
        if await self._finished(submission.order_id, cause):
            return  # 2. Finish.
        # 3. Fence, or write a Rejected order.
        large = self._context.content.is_large(details)
        result = await self._runner.run(
            details.order_id,
            self._trigger(cause),
            _fence_or_reject(details),
            expect_new=not large,
        )
        if result is ApplyResult.REPEATED and not await self._is_fenced(details.order_id, cause):
            return
        # 4. Put aside.
        order = await self._context.load(submission.order_id)
        if order and not order.rejected and order.details.content_hash == details.content_hash:
            # A repeat of an order that goes on: to its application, "rejected" would mean its end.
            await self._put_aside(delivery, submission.order_id, is_expendable=True)
            return
        await self._reject(delivery, source)

    async def _reject(self, delivery: Delivery, source: str) -> None:
        """Notify the application of an order message, and put it aside."""
        sender = sender_of(delivery, source, self._context)
        rejected = self._rejection(delivery, sender.order_id)
        await self._context.rejections.order(rejected, sender)

    async def _finish(self, order_id: str, cause: str, delivery: Delivery) -> None:
        """Send the messages of a cause. Without any, fence it and put the letter aside."""
        if await self._finished(order_id, cause):
            return  # 2. Finish.
        # 3. Fence.
        result = await self._runner.run(order_id, self._trigger(cause), _fence_or_reject(None))
        # 4. Put aside.
        if result is not ApplyResult.REPEATED or await self._is_fenced(order_id, cause):
            await self._put_aside(delivery, order_id)

    async def _finished(self, order_id: str, cause: str) -> bool:
        """Send the messages of a cause, if it is recorded and not fenced."""
        entry = await self._context.store.recorded(order_id, cause)
        if entry is None or _is_fence(entry):
            return False
        log.info("dead letter of order %s: finishing %s", order_id, entry.what)
        return await self._runner.repeat(order_id, cause)

    async def _is_fenced(self, order_id: str, cause: str) -> bool:
        entry = await self._context.store.recorded(order_id, cause)
        return entry is not None and _is_fence(entry)

    def _trigger(self, cause: str) -> Trigger:
        return Trigger(by=f"dead letters {self._context.instance}", cause=cause)

    async def _put_aside(
        self, delivery: Delivery, order_id: str | None, *, is_expendable: bool = False
    ) -> None:
        rejected = self._rejection(delivery, order_id)
        await self._context.rejections.put_aside(rejected, is_expendable=is_expendable)

    def _rejection(self, delivery: Delivery, order_id: str | None) -> Rejection:
        return Rejection(
            body=delivery.body,
            reason=Reason.DEAD_LETTERED,
            description=shortened(receiver.why_given_up(delivery.properties), 1000),
            source_queue=delivery.source_queue or "unknown",
            message_id=delivery.message_id,
            order_id=order_id,
            correlation_id=None,
        )


def _names_its_source(body: bytes) -> bool:
    """Return whether the body has a member that the Functions host may take for the source.

    No message of this system has one. The host may read a body that we cannot parse.
    """
    try:
        value = parse(body)
    except MalformedError:
        return b"eadlettersource" in body.lower() or b"\\u" in body
    return isinstance(value, dict) and "deadlettersource" in map(str.casefold, value)


def _why_unread(queue: str, properties: Mapping[str, object]) -> str:
    """Return why an application did not get a notification, after the name of its queue."""
    reason = properties.get(receiver.DEAD_LETTER_REASON)
    match reason:
        case receiver.REFUSED:
            why = str(properties.get(receiver.DEAD_LETTER_DESCRIPTION))
            why = why.removeprefix(f"queue {queue}: ").rstrip(".")
            return f"refuses notifications: {quoted(why)}"  # the application may have written it
        case "TTLExpiredException":
            return "is not read: notifications expire in it. Its application's team must read it"
        case "MaxDeliveryCountExceeded":
            return (
                "has notifications that its application receives again and again and never "
                "completes. Its team must repair the application"
            )
        case _:
            return (
                f"has notifications that its application refuses: {quoted(str(reason))}. Its team "
                "must say why"
            )


def _is_fence(entry: JournalEntry) -> bool:
    return not entry.what.acts


def _fence_or_reject(details: Details | None) -> Decide:
    """Return what fences a cause. If there is no order yet, a Rejected one is written."""

    def decide(order: Order | None, _now: datetime) -> Decision | None:
        if order is not None:
            return fence(order)
        return rejection(details) if details is not None else None

    return decide
