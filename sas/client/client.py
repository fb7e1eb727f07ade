"""The client: sends to the ``orders`` queue, reads the application's own response queue."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from opentelemetry.trace import SpanKind

from sas.client import links
from sas.client.links import LinkError
from sas.client.orders import (
    FollowError,
    InvalidOrderError,
    NewOrder,
    Receipt,
    SubmitError,
    is_end,
)
from sas.codec import outward
from sas.codec.orders import ORDER_BYTES_MAX, OrderMessage, encode_order, parse_order
from sas.codec.outward import Notification
from sas.codec.strict import MalformedError
from sas.domain.queues import Queues
from sas.telemetry import tracing

BATCH_ORDERS_MAX = 100
RECEIVE_MAX = 50


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
        """Prepare a client; nothing is opened before the first use.

        Args:
            connection_string: of the Service Bus namespace or the local broker.
            reply_queue: this application's response queue.
            fully_qualified_namespace: with ``credential``, instead of a connection string.
            credential: an azure-identity credential.
            queues: the queues' names, where they are not the default ones; ``Queues().urgent``
                submits by the lane that overtakes all others (it takes the right to send there).
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self.close()

    async def close(self) -> None:
        """Close every connection; a dead one is left after some seconds."""
        await links.close(self._client)

    async def submit(self, new: NewOrder) -> Receipt:
        """Submit one order.

        Raises:
            InvalidOrderError: it would be rejected; the text says why.
            SubmitError: Service Bus did not take it.
        """
        return (await self.submit_many([new]))[0]

    async def submit_many(
        self, orders: Iterable[NewOrder], on_sent: Callable[[int], None] | None = None
    ) -> list[Receipt]:
        """Submit orders in batches; ``on_sent`` is told how many have been sent so far.

        Raises:
            InvalidOrderError: one would be rejected; those before it were sent.
            SubmitError: Service Bus did not take them; ``on_sent`` was told how many it
                surely took.
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
        patience_seconds: float | None = None,
    ) -> AsyncGenerator[Notification]:
        """Yield what the response queue brings, until every order named has come to its end.

        An order ends completed, undone, rejected, or failed and held for an operator. A
        notification is completed once the next one is asked for, so that a crash in between
        brings it again; what was read and not yielded goes back to the queue.
        Notifications of other orders on the same queue are yielded too.
        Without ``order_ids`` it goes on until the caller stops, or ``until`` (asked at least
        once a second) returns True.

        Raises:
            FollowError: the queue cannot be read.
            TimeoutError: nothing came for ``patience_seconds``.
        """
        left = None if order_ids is None else set(order_ids)
        loop = asyncio.get_running_loop()
        receiver = self._client.get_queue_receiver(self._reply_queue)
        waiting: deque[ServiceBusReceivedMessage] = deque()
        try:
            heard = loop.time()
            while (left is None or left) and not (until and until()):
                waiting.extend(await self._receive(receiver))
                if waiting:
                    heard = loop.time()
                elif patience_seconds is not None and loop.time() - heard >= patience_seconds:
                    raise TimeoutError(
                        f"nothing came on {self._reply_queue} for {patience_seconds:g} s; "
                        f"{len(left or ())} orders have not ended"
                    )
                while waiting:
                    told = await self._told(receiver, waiting[0])
                    if told is not None:
                        yield told
                        await self._settle(receiver, partial(receiver.complete_message, waiting[0]))
                        if left is not None and is_end(told):
                            left.discard(told.data.order_id)
                    waiting.popleft()
                    heard = loop.time()
        finally:
            await links.hand_back(receiver, waiting)
            await links.close(receiver)

    async def _receive(self, receiver: ServiceBusReceiver) -> Sequence[ServiceBusReceivedMessage]:
        try:
            return await links.receive(receiver, RECEIVE_MAX, self._patience_s)
        except LinkError as failed:
            raise FollowError(f"queue {self._reply_queue!r} cannot be read: {failed}") from failed

    async def _told(
        self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage
    ) -> Notification | None:
        try:
            return outward.decode_notification(links.bytes_of(message))
        except MalformedError as wrong:
            await self._settle(
                receiver,
                partial(
                    receiver.dead_letter_message,
                    message,
                    reason="not-a-notification",
                    error_description=str(wrong),
                ),
            )
            return None

    async def _settle(
        self, receiver: ServiceBusReceiver, action: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await links.settle(receiver, action, self._patience_s)
        except LinkError as failed:
            raise FollowError(
                f"a notification on {self._reply_queue!r} is delivered again: {failed}"
            ) from failed

    async def _send_all(self, messages: Sequence[ServiceBusMessage]) -> None:
        if not messages:
            return
        if self._sender is None:
            self._sender = self._client.get_queue_sender(self._queues.orders)
        try:
            await links.send_batches(self._sender, messages, self._patience_s)
        except LinkError as failed:
            broken, self._sender = self._sender, None
            await links.close(broken)
            raise SubmitError(
                f"queue {self._queues.orders!r} did not take orders: {failed} "
                "Submitting them again is safe: a repeat of the same order is recognised."
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
