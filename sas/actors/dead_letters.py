"""Dead letters: a dead-lettered message is never acted upon.

If its transition was recorded, its messages are sent. If not, its cause is blocked first (fenced),
so that a slow handler cannot act on it later. Only then is anybody told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from sas.actors.submission import details_of, name_of
from sas.bounds import TooLargeError
from sas.codec import internal
from sas.codec.internal import (
    CommandMessage,
    Internal,
    ProgressMessage,
    ReplyMessage,
    RequestMessage,
    WakeMessage,
)
from sas.codec.orders import ORDER_BYTES_MAX, Submission, parse_order, salvage
from sas.codec.outward import Rejection
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Change, fence, rejection
from sas.domain.ids import cause_of
from sas.domain.messages import AlertKind, JournalEntry
from sas.domain.order import Details, Order
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.transition import ApplyResult, Propose, Source, TransitionRunner
from sas.ports import Business
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
_INTERNAL: type[Internal] = Internal  # type: ignore[assignment]  # msgspec takes a union

Identify = Callable[[bytes], Awaitable[tuple[str, str | None]]]
"""Given the body of a dead letter: the order it is about and its cause, None where nothing may be
fenced. Raises MalformedError where the body is not of its kind.
"""


class DeadLetters:
    """Handles the ``dead-letters`` queue, to which every queue forwards.

    ``kinds`` identify messages that features put on queues of their own.
    """

    def __init__(
        self,
        context: Context,
        business: Business,
        order_bytes_max: int = ORDER_BYTES_MAX,
        kinds: Sequence[Identify] = (),
    ) -> None:
        self._context = context
        self._bytes_max = order_bytes_max
        self._kinds = kinds
        self._runner = TransitionRunner(context, business.workflow_of)

    async def handle(self, delivery: Delivery) -> None:
        """Take one dead letter.

        Raises:
            StoreUnavailableError, BusUnavailableError, ContentionError: let it come again.
        """
        with tracing.received("dead-letters", "dead-letters", delivery.properties):
            await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        orders = self._context.queues.orders
        if delivery.source_queue in {orders, lane(orders, urgent=True)}:  # applications send there
            await self._not_internal(delivery)
            return
        try:
            message = internal.decode(delivery.body, _INTERNAL)
        except MalformedError:
            await self._not_internal(delivery)
            return
        tracing.about(order_id=message.order_id)
        match message:
            case RequestMessage():
                # Agents commit nothing: at CompleteBy the supervisor takes the step up.
                await self._put_aside(delivery, message.order_id)
            case WakeMessage() | CommandMessage():
                cause = cause_of(self._context.queues.scheduler, message.id)
                await self._finish(message.order_id, cause, delivery)
            case ReplyMessage() | ProgressMessage():
                cause = cause_of(self._context.queues.replies, message.id)
                await self._finish(message.order_id, cause, delivery)

    async def _not_internal(self, delivery: Delivery) -> None:
        for identify in self._kinds:
            try:
                order_id, cause = await identify(delivery.body)
            except MalformedError:
                continue
            tracing.about(order_id=order_id)
            if cause is None:
                await self._put_aside(delivery, order_id)
            else:
                await self._finish(order_id, cause, delivery)
            return
        await self._order(delivery)

    async def _order(self, delivery: Delivery) -> None:
        """Take what should be an application's order."""
        try:
            submission = parse_order(delivery.body, delivery.message_id, self._bytes_max)
            workflow, version = submission.workflow, submission.version or 0
            details = details_of(submission, self._context, workflow=workflow, version=version)
        except (MalformedError, TooLargeError):
            await self._put_aside(delivery, salvage(delivery.body).order_id)
            return
        details = replace(details, traceparent=None)
        tracing.about(order_id=submission.order_id)
        name = name_of(submission, details.content_hash)
        cause = cause_of(self._context.queues.orders, name)
        if await self._finished(submission.order_id, cause):
            return
        source = self._source(cause)
        propose = _fence_or_reject(source, details)
        large = self._context.content.is_large(details)
        result = await self._runner.run(details.order_id, source, propose, expect_new=not large)
        if result is ApplyResult.REPEATED and not await self._is_fenced(details.order_id, cause):
            return
        order = await self._context.load(submission.order_id)
        if order and not order.rejected and self._is_same(order, submission):
            # A repeat of an order that goes on: "rejected" would be read as that order's end.
            await self._put_aside(delivery, submission.order_id)
            return
        rejected = self._rejection(delivery, submission.order_id)
        await self._context.rejections.order(rejected, salvage(delivery.body))

    async def _finish(self, order_id: str, cause: str, delivery: Delivery) -> None:
        """Send what a cause led to; where it led to nothing, fence it and put the letter aside."""
        if await self._finished(order_id, cause):
            return
        source = self._source(cause)
        result = await self._runner.run(order_id, source, _fence_or_reject(source, None))
        if result is not ApplyResult.REPEATED or await self._is_fenced(order_id, cause):
            await self._put_aside(delivery, order_id)

    async def _finished(self, order_id: str, cause: str) -> bool:
        """Send what a cause led to, if that is more than a fence."""
        order = await self._context.load(order_id)
        entry = await self._context.store.recorded(order_id, cause)
        if order is None or entry is None or _is_fence(entry):
            return False
        log.info("dead letter of order %s: finishing %s", order_id, entry.what)
        await self._runner.repeat(order, cause)
        return True

    async def _is_fenced(self, order_id: str, cause: str) -> bool:
        entry = await self._context.store.recorded(order_id, cause)
        return entry is not None and _is_fence(entry)

    def _is_same(self, order: Order, submission: Submission) -> bool:
        try:
            return self._context.encryption.is_same(order.details, submission)
        except MalformedError:  # the key that would tell is gone
            return False

    def _source(self, cause: str) -> Source:
        return Source(cause, f"dead letters {self._context.instance}")

    async def _put_aside(self, delivery: Delivery, order_id: str | None) -> None:
        rejected = self._rejection(delivery, order_id)
        queues = self._context.queues
        match delivery.source_queue:
            # It expired unread. It is kept on; an alert about an alert would never end.
            case queues.rejected:
                await self._context.rejections.keep_on(rejected)
            case queues.alerts:
                await self._context.rejections.keep(rejected)
            case _:
                await self._context.rejections.put_aside(rejected, AlertKind.DEAD_LETTERED)

    def _rejection(self, delivery: Delivery, order_id: str | None) -> Rejection:
        why = delivery.properties.get("DeadLetterReason") or "dead-lettered"
        description = delivery.properties.get("DeadLetterErrorDescription")
        said = f": {description}" if description else ""
        return Rejection(
            body=delivery.body,
            reason=Reason.DEAD_LETTERED,
            description=f"the queue gave it up ({why}{said})"[:1000],
            source_queue=delivery.source_queue or "unknown",
            message_id=delivery.message_id,
            order_id=order_id,
            correlation_id=None,
        )


def _is_fence(entry: JournalEntry) -> bool:
    return not entry.what.acts


def _fence_or_reject(source: Source, details: Details | None) -> Propose:
    """Return what blocks a cause: a fence, or where no order exists a Rejected one in its place."""

    def propose(order: Order | None, now: datetime) -> Change | None:
        cause, commit_id, by = source.cause or "", uuid4().hex, str(source.by)
        if order is not None:
            return fence(order, by=by, commit_id=commit_id, cause=cause, at=now)
        if details is None:
            return None
        return rejection(details, by=by, commit_id=commit_id, cause=cause, at=details.submitted_at)

    return propose
