"""Submission: the order and its state records are written together, in one operation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import uuid4

from sas.bounds import TooLargeError
from sas.codec import outward
from sas.codec.orders import ORDER_BYTES_MAX, Submission, parse_order, salvage
from sas.codec.outward import Rejection
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Change, first_change, revival
from sas.domain.ids import cause_of, digest_id
from sas.domain.messages import Notice
from sas.domain.order import Details, Order
from sas.domain.queues import ForbiddenReplyQueueError, lane
from sas.domain.submit import submit
from sas.domain.workflow import UnknownWorkflowError, Workflow
from sas.engine.context import Context
from sas.engine.messages import notification
from sas.engine.transition import ApplyResult, ContentionError, backoff
from sas.features.claim_check import is_large, offload_payload
from sas.features.field_encryption.encryption import name_of
from sas.features.field_encryption.redaction import check_content
from sas.ports import Business, ConflictError
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
_TRIES = 8


class Submitter:
    """Handles the ``orders`` queue."""

    def __init__(
        self, context: Context, business: Business, order_bytes_max: int = ORDER_BYTES_MAX
    ) -> None:
        self._context = context
        self._business = business
        self._bytes_max = order_bytes_max

    async def handle(
        self,
        body: bytes,
        message_id: str,
        properties: Mapping[str, object] | None = None,
        *,
        urgent: bool = False,
    ) -> None:
        """Take one message of the ``orders`` queue; return when nothing of it can be lost.

        ``properties`` are the message's application properties: they carry its trace. ``urgent``
        says that it came by that lane, and so does all that follows from it.

        Raises:
            StoreUnavailableError, BusUnavailableError: let the message come again.
        """
        with tracing.received("submission", "submission", properties):
            await self._handle(body, message_id, urgent=urgent)

    async def _handle(self, body: bytes, message_id: str, *, urgent: bool) -> None:
        try:
            submission, workflow, details = self._checked(body, message_id, urgent=urgent)
        except MalformedError as wrong:
            await self._reject(body, message_id, wrong, urgent=urgent)
            return
        tracing.about(order_id=submission.order_id, workflow=workflow.name)
        try:
            await self._take(submission, details, workflow)
        except MalformedError as conflict:
            await self._reject(body, message_id, conflict, urgent=urgent)

    def _checked(
        self, body: bytes, message_id: str, *, urgent: bool
    ) -> tuple[Submission, Workflow, Details]:
        submission = parse_order(body, message_id, self._bytes_max)
        try:
            self._context.queues.check_reply_queue(submission.reply_queue)
            workflow = self._business.workflows.find(submission.workflow, submission.version)
            secrets = self._context.privacy.secrets_of(submission, workflow.name)
            check_content(self._business, workflow.name, submission.payload.encode(), secrets)
            details = self._context.privacy.details(
                submission,
                workflow=workflow.name,
                version=workflow.version,
                at=self._context.clock.now(),
                traceparent=tracing.traceparent(),
                urgent=urgent,
            )
        except ForbiddenReplyQueueError as wrong:
            raise MalformedError(Reason.FORBIDDEN_REPLY_QUEUE, str(wrong)) from None
        except UnknownWorkflowError as wrong:
            raise MalformedError(Reason.UNKNOWN_WORKFLOW, str(wrong)) from None
        except TooLargeError as wrong:
            raise MalformedError(Reason.TOO_LARGE, str(wrong)) from None
        return submission, workflow, details

    async def _take(self, submission: Submission, details: Details, workflow: Workflow) -> None:
        queue = self._context.queues.orders
        cause = cause_of(queue, name_of(submission, details.content_hash))
        if not await self._first(details, cause, workflow):
            await self._meet(submission, details, cause, workflow)

    async def _first(self, details: Details, cause: str, workflow: Workflow) -> bool:
        """Write an order where there is none; False where its id is taken."""
        store, now = self._context.store, details.submitted_at
        if is_large(details) and await store.load(details.order_id) is not None:
            return False
        details = await offload_payload(store, details)
        change = first_change(
            details,
            submit(workflow.rules, now=now),
            by=self._context.instance,
            commit_id=uuid4().hex,
            cause=cause,
            at=now,
        )
        return await self._committed(change, workflow)

    async def _meet(
        self, submission: Submission, details: Details, cause: str, workflow: Workflow
    ) -> None:
        """The order id is taken: the same order again, another order, or a rejected place."""
        for attempt in range(_TRIES):
            order = await self._context.store.load(details.order_id)
            if order is not None:
                done = await self._met(order, submission, details, cause, workflow)
                if done:
                    log.info("order %s: %s", order.order_id, done.value)
                    return
            await self._context.clock.sleep(backoff(attempt))
        raise ContentionError(f"order {details.order_id}: rivals won {_TRIES} times")

    async def _met(
        self,
        order: Order,
        submission: Submission,
        details: Details,
        cause: str,
        workflow: Workflow,
    ) -> ApplyResult | None:
        same = self._context.privacy.same(order.details, submission)
        if same:  # without an id of its own it may be known by a hash under an older key
            name = name_of(submission, order.details.content_hash)
            cause = cause_of(self._context.queues.orders, name)
        entry = await self._context.store.recorded(order.order_id, cause)
        if order.rejected and entry is None:
            kept, now = await offload_payload(self._context.store, details), details.submitted_at
            change = _revived(order, kept, workflow, cause, self._context.instance, now)
            return ApplyResult.COMMITTED if await self._committed(change, workflow) else None
        if order.rejected:
            # Given up and fenced: this is its slow handler, or a replay under the old name, which
            # needs a submission_id of its own (docs/operating.md); they look the same from here.
            log.warning("order %s: a submission that was given up came again", order.order_id)
            return ApplyResult.REPEATED
        if not same:
            raise MalformedError(
                Reason.ORDER_ID_TAKEN,
                f"order_id {order.order_id!r} was submitted before with other content: "
                "give every order an id of its own; the first one goes on unchanged",
            )
        if entry is not None:
            await self._context.outbox.send(order, entry, self._business.workflow_of(order))
            return ApplyResult.REPEATED
        await self._tell_duplicate(order, submission, cause)
        return ApplyResult.NOTHING

    async def _committed(self, change: Change, workflow: Workflow) -> bool:
        try:
            order = await self._context.commit(change)
        except ConflictError:
            return False
        await self._context.outbox.send(order, change.entry, workflow)
        return True

    async def _tell_duplicate(self, order: Order, submission: Submission, cause: str) -> None:
        """The same order under another submission changes nothing and is told so."""
        data = outward.NotificationData(
            order_id=order.order_id,
            state=order.process_state.value,
            workflow=order.details.workflow,
            version=order.details.version,
            correlation_id=submission.correlation_id,
            seq=order.seq,
            duplicate=True,
        )
        told = notification(
            Notice.RECEIVED,
            data,
            own_id=f"{order.order_id}/again/{digest_id(cause)[:12]}",
            reply_queue=submission.reply_queue,
            at=self._context.clock.now(),
            to=self._context.to,
        )
        await self._context.outbox.send_all([told], order)

    async def _reject(
        self, body: bytes, message_id: str, wrong: MalformedError, *, urgent: bool
    ) -> None:
        sender = salvage(body)
        rejection = Rejection(
            body=body,
            reason=wrong.reason,
            description=wrong.description,
            source_queue=lane(self._context.queues.orders, urgent=urgent),
            message_id=message_id,
            order_id=sender.order_id,
            correlation_id=sender.correlation_id,
        )
        await self._context.rejections.order(rejection, sender)


def _revived(
    order: Order, details: Details, workflow: Workflow, cause: str, by: str, at: datetime
) -> Change:
    return revival(
        order,
        details,
        submit(workflow.rules, now=at),
        by=by,
        commit_id=uuid4().hex,
        cause=cause,
        at=at,
    )
