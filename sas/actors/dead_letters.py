"""Dead letters: finish what was recorded, fence what was not, never decide.

A message that is dead-lettered is finished. Its cause is looked up: what it led to is
sent (again). Where it led to nothing, its cause is fenced first, so that a slow handler
of it, or a rival, can no longer act upon it; only then is anybody told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

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
from sas.domain.change import FENCED, REJECTED, fence, rejection
from sas.domain.ids import cause_of
from sas.domain.messages import AlertKind
from sas.domain.order import Details, Order
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.engine.transition import CONFLICTS_MAX, ContentionError, TransitionRunner, backoff
from sas.features.callbacks import codec
from sas.features.claim_check import is_large, offload_payload
from sas.features.field_encryption.encryption import name_of
from sas.ports import Business, ConflictError
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)


_INTERNAL: type[Internal] = Internal  # type: ignore[assignment]  # msgspec takes a union


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as the queue hands it over. Only ``body`` is believed; the others are
    metadata, which a JSON body can forge: they are for people to read.
    """

    body: bytes
    message_id: str
    source_queue: str | None
    reason: str | None
    description: str | None


class DeadLetters:
    """Handles the ``dead-letters`` queue, to which every queue forwards."""

    def __init__(
        self, context: Context, business: Business, order_bytes_max: int = ORDER_BYTES_MAX
    ) -> None:
        self._context = context
        self._bytes_max = order_bytes_max
        self._shell = TransitionRunner(context, business.workflow_of)

    async def handle(
        self, letter: DeadLetter, properties: Mapping[str, object] | None = None
    ) -> None:
        """Take one dead letter; its ``properties`` carry its trace.

        Raises:
            StoreUnavailableError, BusUnavailableError, ContentionError: let it come again.
        """
        with tracing.received("dead-letters", "dead-letters", properties):
            await self._handle(letter)

    async def _handle(self, letter: DeadLetter) -> None:
        orders = self._context.queues.orders
        if letter.source_queue in {orders, lane(orders, urgent=True)}:  # where applications send
            await self._not_internal(letter)
            return
        try:
            message = internal.decode(letter.body, _INTERNAL)
        except MalformedError:
            await self._not_internal(letter)
            return
        tracing.about(order_id=message.order_id)
        match message:
            case RequestMessage():
                # Agents commit nothing: the step's CompleteBy brings the supervisor to it.
                await self._put_aside(letter, message.order_id)
            case WakeMessage() | CommandMessage():
                cause = cause_of(self._context.queues.scheduler, message.id)
                await self._finish(message.order_id, cause, letter)
            case ReplyMessage() | ProgressMessage():
                cause = cause_of(self._context.queues.replies, message.id)
                await self._finish(message.order_id, cause, letter)

    async def _not_internal(self, letter: DeadLetter) -> None:
        try:
            called, claims = codec.read_message(letter.body, self._context.callback_keys)
        except MalformedError:
            await self._not_callback(letter)
            return
        tracing.about(order_id=claims.order_id)
        try:
            claims.check_order(await self._context.store.load(claims.order_id))
        except MalformedError:  # nothing of another order under its id is to be fenced
            await self._put_aside(letter, claims.order_id)
            return
        cause = cause_of(self._context.queues.callbacks, codec.own_id(called))
        await self._finish(claims.order_id, cause, letter)

    async def _not_callback(self, letter: DeadLetter) -> None:
        try:
            submission = parse_order(letter.body, letter.message_id, self._bytes_max)
            details = self._details(submission)
        except (MalformedError, TooLargeError):
            sender = salvage(letter.body)
            await self._put_aside(letter, sender.order_id)
            return
        tracing.about(order_id=submission.order_id)
        name = name_of(submission, details.content_hash)
        cause = cause_of(self._context.queues.orders, name)
        if await self._finished(submission.order_id, cause):
            return
        if not await self._fenced_order(details, cause):
            return
        order = await self._context.store.load(submission.order_id)
        if order and not order.rejected and self._is_same(order, submission):
            # A repeat of an order that goes on: "rejected" would be read as that order's end.
            await self._put_aside(letter, submission.order_id)
            return
        rejected = self._rejection(letter, submission.order_id)
        await self._context.rejections.order(rejected, salvage(letter.body))

    async def _finish(self, order_id: str, cause: str, letter: DeadLetter) -> None:
        if await self._finished(order_id, cause):
            return
        if await self._fenced(order_id, cause):
            await self._put_aside(letter, order_id)

    async def _finished(self, order_id: str, cause: str) -> bool:
        """Send what a cause led to, if it led to anything that is not a fence."""
        order = await self._context.store.load(order_id)
        entry = await self._context.store.recorded(order_id, cause)
        if order is None or entry is None or entry.what in {FENCED, REJECTED}:
            return False
        log.info("dead letter of order %s: finishing %s", order_id, entry.what)
        await self._shell.repeat(order, cause)
        return True

    async def _fenced(self, order_id: str, cause: str) -> bool:
        """Remember a cause as given up; False where it was finished by somebody meanwhile."""
        for attempt in range(CONFLICTS_MAX):
            order = await self._context.store.load(order_id)
            if order is None:
                return True
            entry = await self._context.store.recorded(order_id, cause)
            if entry is not None:
                return entry.what in {FENCED, REJECTED} or not await self._finished(order_id, cause)
            change = fence(
                order,
                by=f"dead letters {self._context.instance}",
                commit_id=uuid4().hex,
                cause=cause,
                at=self._context.clock.now(),
            )
            try:
                await self._context.commit(change)
            except ConflictError:
                await self._context.clock.sleep(backoff(attempt))
            else:
                return True
        raise ContentionError(f"order {order_id}: rivals won {CONFLICTS_MAX} times; it comes again")

    def _details(self, submission: Submission) -> Details:
        return self._context.privacy.details(
            submission,
            workflow=submission.workflow,
            version=submission.version or 0,
            at=self._context.clock.now(),
        )

    def _is_same(self, order: Order, submission: Submission) -> bool:
        try:
            return self._context.privacy.same(order.details, submission)
        except MalformedError:  # it can no longer be told
            return False

    async def _fenced_order(self, details: Details, cause: str) -> bool:
        """Keep the place of an order that was never written; fence the cause if one exists."""
        store = self._context.store
        if is_large(details) and await store.load(details.order_id) is not None:
            return await self._fenced(details.order_id, cause)
        now = details.submitted_at
        details = await offload_payload(store, details)
        by = f"dead letters {self._context.instance}"
        change = rejection(details, by=by, commit_id=uuid4().hex, cause=cause, at=now)
        try:
            await self._context.commit(change)
        except ConflictError as rival:
            if await store.load(details.order_id) is None:  # nothing would keep its place
                raise ContentionError(
                    f"order {details.order_id}: {rival}; it comes again"
                ) from rival
            return await self._fenced(details.order_id, cause)
        return True

    async def _put_aside(self, letter: DeadLetter, order_id: str | None) -> None:
        rejected = self._rejection(letter, order_id)
        queues = self._context.queues
        match letter.source_queue:
            # Nobody read it in time. It is kept on; an alert about an alert would never end.
            case queues.rejected:
                await self._context.rejections.keep_on(rejected)
            case queues.alerts:
                await self._context.rejections.keep(rejected)
            case _:
                await self._context.rejections.put_aside(rejected, AlertKind.DEAD_LETTERED)

    def _rejection(self, letter: DeadLetter, order_id: str | None) -> Rejection:
        why = letter.reason or Reason.DEAD_LETTERED
        said = f": {letter.description}" if letter.description else ""
        return Rejection(
            body=letter.body,
            reason=Reason.DEAD_LETTERED,
            description=f"the queue gave it up ({why}{said})"[:1000],
            source_queue=letter.source_queue or "unknown",
            message_id=letter.message_id,
            order_id=order_id,
            correlation_id=None,
        )
