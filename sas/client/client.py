"""The client: sends to the ``orders`` queue, reads the application's own response queue."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self
from uuid import uuid4

import msgspec
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from opentelemetry.trace import SpanKind

from sas.client.links import (
    LinkError,
    bytes_of,
    close_link,
    hand_back,
    receive,
    send_batches,
    settle,
)
from sas.codec import outward
from sas.codec.orders import ORDER_BYTES_MAX, OrderMessage, encode_order, parse_order
from sas.codec.outward import Notification, event_type
from sas.codec.strict import MalformedError
from sas.domain.messages import Notice
from sas.domain.order import FINISHED, OrderState
from sas.domain.queues import Queues
from sas.telemetry import tracing

BATCH_ORDERS_MAX = 100
RECEIVE_MAX = 50
_ENDS = frozenset(event_type(n) for n in (Notice.COMPLETED, Notice.UNDONE, Notice.REJECTED))
_ENDED = frozenset(state.value for state in (*FINISHED, OrderState.REJECTED, OrderState.ERROR))


class InvalidOrderError(ValueError):
    """The system would reject an order. The orders before it were sent, none after it.

    ``index`` is its place (from 0) among the orders of the call.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


class SubmitError(Exception):
    """Service Bus did not take an order. To submit it again is safe: repeats are recognised."""


class FollowError(Exception):
    """The response queue cannot be read. Nothing is lost: its messages stay there."""


@dataclass(frozen=True, slots=True)
class NewOrder:
    """One order to submit.

    ``order`` is the content: values that JSON can hold, or JSON text (``msgspec.Raw``).
    ``submission_id`` identifies the submission: give the same one when you submit again. Without
    it, a new one is made.
    """

    order_id: str
    order: Mapping[str, Any] | msgspec.Raw
    workflow: str = "order"
    correlation_id: str | None = None
    submission_id: str | None = None
    workflow_version: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The ids of a submission."""

    order_id: str
    submission_id: str


def is_end(notification: Notification) -> bool:
    """Return whether a notification is an order's last, unless an operator acts on the order.

    The answer to a repeated submission is the last if the order had already ended.
    """
    if notification.type in _ENDS:
        return True
    if notification.type == event_type(Notice.FAILED):
        return notification.data.awaits == "operator"
    return notification.data.duplicate and notification.data.state in _ENDED


class OrdersClient:
    """Sends orders to the ``orders`` queue and reads the application's own response queue."""

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        reply_queue: str,
        fully_qualified_namespace: str | None = None,
        credential: AsyncTokenCredential | None = None,
        queues: Queues | None = None,
        patience_s: float = 30.0,
        order_bytes_max: int = ORDER_BYTES_MAX,
        **options: Any,
    ) -> None:
        """Prepare a client. The first use opens the connection.

        Args:
            connection_string: of the Service Bus namespace or the local broker.
            reply_queue: this application's response queue.
            fully_qualified_namespace: with ``credential``, instead of a connection string.
            credential: an azure-identity credential.
            queues: names of the queues, if not the default; ``Queues().urgent`` submits in the
                lane that overtakes all others (the sender needs the right to send there).
            patience_s: longest outage of Service Bus that the client survives, in seconds.
            order_bytes_max: largest order message that the system takes (SAS_ORDER_BYTES_MAX).
            options: for the SDK's client, for instance ``transport_type``. The SDK does not
                retry by itself unless ``retry_total`` says so: this client does.

        Raises:
            ForbiddenReplyQueueError: the reply queue is not an application's.
            ValueError: the connection string cannot be read, or none was given.
        """
        self._queues = queues or Queues()
        self._reply_queue = self._queues.check_reply_queue(reply_queue)
        options = {"retry_total": 0} | options
        if connection_string:
            self._client = ServiceBusClient.from_connection_string(connection_string, **options)
        elif fully_qualified_namespace and credential:
            self._client = ServiceBusClient(fully_qualified_namespace, credential, **options)
        else:
            raise ValueError(
                "give a connection_string, or fully_qualified_namespace and credential"
            )
        self._patience_s = patience_s
        self._order_bytes_max = order_bytes_max
        self._sender: ServiceBusSender | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close every connection."""
        await self.close()

    async def close(self) -> None:
        """Close every connection; a dead one is abandoned after some seconds."""
        await close_link(self._client)

    async def submit(self, new: NewOrder) -> Receipt:
        """Submit one order.

        Raises:
            InvalidOrderError: the system would reject it; the text says why.
            SubmitError: Service Bus did not take it.
        """
        return (await self.submit_many([new]))[0]

    async def submit_many(
        self, orders: Iterable[NewOrder], on_sent: Callable[[int], None] | None = None
    ) -> list[Receipt]:
        """Submit orders in batches. ``on_sent`` gets how many have been sent so far.

        Raises:
            InvalidOrderError: the system would reject one; those before it were sent.
            SubmitError: Service Bus did not take all; ``on_sent`` got how many it surely took.
        """
        receipts: list[Receipt] = []
        waiting: list[ServiceBusMessage] = []

        async def send() -> None:
            await self._send_all(waiting)
            waiting.clear()
            if on_sent:
                on_sent(len(receipts))

        async with self._lock:
            for index, new in enumerate(orders):
                try:
                    message, receipt = self._message(index, new)
                except InvalidOrderError:
                    await send()
                    raise
                receipts.append(receipt)
                waiting.append(message)
                if len(waiting) >= BATCH_ORDERS_MAX:
                    await send()
            await send()
        return receipts

    async def follow(
        self,
        order_ids: Iterable[str] | None = None,
        *,
        until: Callable[[], bool] | None = None,
        quiet_s: float | None = None,
    ) -> AsyncGenerator[Notification]:
        """Yield the notifications of the response queue until every named order has ended.

        An order ends completed, undone, rejected, or failed and waiting for an operator. A
        notification is removed from the queue when the caller asks for the next one; after a
        crash in between it is delivered again. Notifications that were read but not yielded go
        back to the queue. Notifications of other orders on the same queue are yielded too.
        Without ``order_ids`` it goes on until the caller stops, or ``until`` returns True;
        ``until`` is called about once a second while the queue can be read.

        Raises:
            FollowError: the queue cannot be read.
            TimeoutError: the queue could be read, and nothing came for ``quiet_s`` seconds.
        """
        left = None if order_ids is None else set(order_ids)
        loop = asyncio.get_running_loop()
        receiver = self._client.get_queue_receiver(self._reply_queue)
        waiting: deque[ServiceBusReceivedMessage] = deque()
        try:
            heard = loop.time()
            while (left is None or left) and not (until and until()):
                with self._failing("queue {!r} cannot be read"):
                    waiting.extend(await receive(receiver, RECEIVE_MAX, self._patience_s))
                if waiting:
                    heard = loop.time()
                elif quiet_s is not None and loop.time() - heard >= quiet_s:
                    raise TimeoutError(
                        f"nothing came on {self._reply_queue} for {quiet_s:g} s; "
                        f"{len(left or ())} orders have not ended"
                    )
                while waiting:
                    notification = await self._notification(receiver, waiting[0])
                    if notification is not None:
                        yield notification
                        await self._settle(receiver, partial(receiver.complete_message, waiting[0]))
                        if left is not None and is_end(notification):
                            left.discard(notification.data.order_id)
                    waiting.popleft()
                    heard = loop.time()
        finally:
            await hand_back(receiver, waiting)
            await close_link(receiver)

    async def _notification(
        self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage
    ) -> Notification | None:
        try:
            return outward.decode_notification(bytes_of(message))
        except MalformedError as wrong:
            put_aside = partial(receiver.dead_letter_message, message, reason="not-a-notification")
            await self._settle(receiver, partial(put_aside, error_description=str(wrong)))
            return None

    async def _settle(
        self, receiver: ServiceBusReceiver, action: Callable[[], Awaitable[None]]
    ) -> None:
        with self._failing("a notification on {!r} is delivered again"):
            await settle(receiver, action, self._patience_s)

    @contextmanager
    def _failing(self, text: str) -> Iterator[None]:
        try:
            yield
        except LinkError as failed:
            raise FollowError(f"{text.format(self._reply_queue)}: {failed}") from failed

    async def _send_all(self, messages: Sequence[ServiceBusMessage]) -> None:
        if not messages:
            return
        if self._sender is None:
            self._sender = self._client.get_queue_sender(self._queues.orders)
        try:
            await send_batches(self._sender, messages, self._patience_s)
        except LinkError as failed:
            broken, self._sender = self._sender, None
            await close_link(broken)
            raise SubmitError(
                f"queue {self._queues.orders!r} did not take orders: {failed} "
                "To submit them again is safe: a repeat of the same order is recognised."
            ) from failed

    def _message(self, index: int, new: NewOrder) -> tuple[ServiceBusMessage, Receipt]:
        receipt = Receipt(new.order_id, new.submission_id or uuid4().hex)
        try:
            body = encode_order(
                OrderMessage(
                    order_id=new.order_id,
                    workflow=new.workflow,
                    reply_queue=self._reply_queue,
                    order=_content(new.order),
                    correlation_id=new.correlation_id,
                    submission_id=receipt.submission_id,
                    workflow_version=new.workflow_version,
                )
            )
            parse_order(body, receipt.submission_id, self._order_bytes_max)
        except (TypeError, ValueError, RecursionError) as wrong:
            raise InvalidOrderError(index, f"order {str(new.order_id)[:120]!r}: {wrong}") from None
        with tracing.span(
            "submit", kind=SpanKind.PRODUCER, order_id=new.order_id, workflow=new.workflow
        ):
            message = ServiceBusMessage(
                body,
                message_id=receipt.submission_id,
                content_type="application/json",
                correlation_id=new.correlation_id,
                application_properties=dict(tracing.carried().items()),
            )
        return message, receipt


def _content(order: Mapping[str, Any] | msgspec.Raw) -> msgspec.Raw:
    if isinstance(order, msgspec.Raw):
        return order
    return msgspec.Raw(json.dumps(order, ensure_ascii=False, allow_nan=False).encode())
