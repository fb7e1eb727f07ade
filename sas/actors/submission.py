"""Submission: writes an order and the records of its steps together, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sas.bounds import PAYLOAD_BYTES_MAX, TooLargeError, check_bytes
from sas.codec import external
from sas.codec.orders import Salvage, Submission, parse_order, salvage
from sas.codec.payloads import encode_content
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Decision, Trigger
from sas.domain.ids import InvalidIdError, cause_of, digest_id
from sas.domain.messages import Notice
from sas.domain.order import Details, Order
from sas.domain.queues import ForbiddenReplyQueueError
from sas.domain.submit import submit
from sas.domain.workflow import UnknownWorkflowError, Workflow
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.failing_check import FailingCheckError, check_order
from sas.engine.messages import notification
from sas.engine.transition import ApplyResult, TransitionRunner
from sas.ports import Business
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)


class Submitter:
    """Handles the ``orders`` queue."""

    def __init__(
        self,
        context: Context,
        business: Business,
        order_bytes_max: int,
        deploy_wait: timedelta,
    ) -> None:
        """An order of an unknown workflow waits ``deploy_wait`` for an instance that has it."""
        self._context = context
        self._deploy_wait = deploy_wait
        self._business = business
        self._bytes_max = order_bytes_max
        self._runner = TransitionRunner(context, business.workflow_of)

    async def handle(self, delivery: Delivery) -> None:
        """Handle one message of the ``orders`` queue. After the return nothing of it can be lost.

        Raises:
            UnavailableError: put the message back (``sas.engine.receiver``): something is away, or
                the check of the order has a bug.
        """
        with tracing.received("submission", "submission", delivery.properties):
            try:
                submission = read_order(delivery, delivery.queue, self._context, self._bytes_max)
                workflow, details = self._checked(submission, delivery)
                tracing.about(order_id=submission.order_id, workflow=workflow.name)
                await self._store(submission, details, workflow, delivery)
            except MalformedError as error:
                sender = sender_of(delivery, delivery.queue, self._context)
                rejection = delivery.rejected(error, sender.order_id, sender.correlation_id)
                await self._context.rejections.order(rejection, sender)
            except FailingCheckError as bug:
                await bug.report(self._context, submission.order_id)
                raise

    async def reject_too_large(self, delivery: Delivery) -> None:
        """Put a message of any queue aside that is too large to be put back.

        The sender of an order is notified: an order that is allowed always fits. It cannot wait for
        room: if it cannot be kept, an incident counts it.

        Raises:
            UnavailableError: it could not be put aside.
        """
        error = MalformedError(
            Reason.TOO_LARGE,
            f"the message has {len(delivery.body):,} bytes: it must wait, and is too large to be "
            f"put back on its queue. At most {self._bytes_max:,} are accepted",
        )
        rejections = self._context.rejections
        if not self._context.queues.takes_orders(delivery.queue):
            await rejections.put_aside(delivery.rejected(error), is_expendable=True)
            return
        sender = sender_of(delivery, delivery.queue, self._context)
        rejection = delivery.rejected(error, sender.order_id, sender.correlation_id)
        await rejections.order(rejection, sender, is_expendable=True)

    def _checked(self, submission: Submission, delivery: Delivery) -> tuple[Workflow, Details]:
        try:
            workflow = self._business.workflows.find(submission.workflow, submission.version)
            self._check(workflow, submission.payload)
            details = details_of(
                submission,
                self._context,
                workflow=workflow.name,
                version=workflow.version,
                urgent=delivery.urgent,
            )
        except UnknownWorkflowError as error:
            delivery.leave_to_others(error, self._context.clock.now(), self._deploy_wait)
            raise MalformedError(Reason.UNKNOWN_WORKFLOW, str(error)) from None
        except TooLargeError as error:
            raise MalformedError(Reason.TOO_LARGE, str(error)) from None
        return workflow, details

    def _check(self, workflow: Workflow, payload: str) -> None:
        """Have the business check an order's content."""
        try:
            check_order(self._business, (workflow.name, workflow.version), payload.encode())
        except ValueError as error:
            raise MalformedError(Reason.INVALID_ORDER, str(error)) from None

    async def _store(
        self, submission: Submission, details: Details, workflow: Workflow, delivery: Delivery
    ) -> None:
        """Write the order, or compare it with the one that is stored under its id."""
        stored: Order | None = None

        def decide(order: Order | None, _now: datetime) -> Decision | None:
            nonlocal stored
            stored = order
            if order is None or order.rejected:
                return submit(details, workflow.rules)
            if order.details.content_hash != details.content_hash:
                raise MalformedError(
                    Reason.ORDER_ID_TAKEN,
                    f"order_id {order.order_id!r} was submitted before with other content: "
                    "give every order an id of its own; the first one goes on unchanged",
                )
            return None

        trigger = Trigger(
            by=self._context.instance,
            cause=cause_of(self._context.queues.orders, submission.submission_id),
            external_sent=delivery.external_sent,
        )
        large = self._context.content.is_large(details)
        result = await self._runner.run(details.order_id, trigger, decide, expect_new=not large)
        if result is ApplyResult.NOTHING and stored is not None:
            await self._notify_duplicate(stored, submission)
        if result is not ApplyResult.COMMITTED:
            # The dead-letter handler gave this submission up. This is its slow handler, or a replay
            # that needs a new submission_id (docs/operating.md). They look the same from here.
            is_rejected = stored is not None and stored.rejected
            note = " (it was given up before)" if is_rejected else ""
            log.info("order %s: %s%s", details.order_id, result.value, note)

    async def _notify_duplicate(self, order: Order, submission: Submission) -> None:
        """Notify the application that the order is already stored. Nothing changes."""
        cause = cause_of(self._context.queues.orders, submission.submission_id)
        data = external.NotificationData(
            order_id=order.order_id,
            state=order.process_state.value,
            workflow=order.details.workflow,
            version=order.details.version,
            correlation_id=submission.correlation_id,
            seq=order.seq,
            duplicate=True,
        )
        notice = notification(
            Notice.RECEIVED,
            data,
            own_id=f"{order.order_id}/again/{digest_id(cause)[:12]}",
            reply_queue=submission.reply_queue,
            at=self._context.clock.now(),
            to=self._context.to,
        )
        await self._context.outbox.send_external([notice], order)


def read_order(delivery: Delivery, queue: str, context: Context, bytes_max: int) -> Submission:
    """Return the submission of an order message that came by ``queue``.

    Raises:
        MalformedError: it is invalid, or names a queue or an id that is not open to this queue's
            senders.
    """
    submission = parse_order(delivery.body, delivery.message_id, bytes_max)
    try:
        context.queues.check_reply_queue(submission.reply_queue, queue)
        context.queues.check_order_id(submission.order_id, queue)
    except ForbiddenReplyQueueError as error:
        raise MalformedError(Reason.FORBIDDEN_REPLY_QUEUE, str(error)) from None
    except InvalidIdError as error:
        raise MalformedError(Reason.INVALID_ORDER_ID, str(error)) from None
    return submission


def sender_of(delivery: Delivery, queue: str, context: Context) -> Salvage:
    """Return what is known of the sender of a refused order.

    The sender on a bound queue is notified on its own response queue, even if the message names
    another one.
    """
    sender = salvage(delivery.body)
    application = context.queues.application_of(queue)
    if application is None:
        return sender
    return replace(sender, reply_queue=context.queues.response_of(application))


def details_of(
    submission: Submission, context: Context, *, workflow: str, version: int, urgent: bool = False
) -> Details:
    """Return the details of an order, as they are stored: its payload is encoded here.

    Raises:
        MalformedError: the payload says that it is encoded already.
        TooLargeError: the payload is too large to be stored.
    """
    payload = encode_content(submission.payload, context.codec)
    check_bytes("payload", len(payload.encode()), PAYLOAD_BYTES_MAX)
    return Details(
        order_id=submission.order_id,
        workflow=workflow,
        version=version,
        payload=payload,
        content_hash=submission.content_hash,
        reply_queue=submission.reply_queue,
        correlation_id=submission.correlation_id,
        submitted_at=context.clock.now(),
        traceparent=tracing.traceparent(),
        urgent=urgent,
    )
