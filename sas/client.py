"""What a Python application uses to submit orders and to follow them.

::

    async with OrdersClient(connection_string, reply_queue="responses-web-shop") as client:
        receipt = await client.submit(NewOrder("A-1", {"customer_id": "ALFKI", ...}))
        async for told in client.follow([receipt.order_id]):
            print(told.type, told.data.state)

Applications in other languages send the same JSON: see docs/contract.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from sas.codec import outward
from sas.codec.orders import ORDER_BYTES_MAX, OrderMessage, encode_order, parse_order
from sas.codec.outward import Notification, notice_of
from sas.codec.strict import MalformedError
from sas.domain.messages import Notice
from sas.domain.queues import Queues

_ENDS = frozenset({Notice.COMPLETED, Notice.UNDONE, Notice.REJECTED})
BATCH_ORDERS_MAX = 100


class InvalidOrderError(ValueError):
    """An order would be rejected as it stands; nothing of this call was sent after it."""


class SubmitError(Exception):
    """Service Bus did not take an order. Submitting it again is safe: repeats are recognised."""


@dataclass(frozen=True, slots=True)
class NewOrder:
    """One order to submit.

    ``order`` is the business's content, JSON-able. ``submission_id`` makes a repeated
    submission recognisable; give the same one when you try again, or leave it out and a
    new one is made.
    """

    order_id: str
    order: Mapping[str, Any]
    workflow: str = "order"
    correlation_id: str | None = None
    submission_id: str | None = None
    workflow_version: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What names a submission afterwards."""

    order_id: str
    submission_id: str


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
    ) -> None:
        """Prepare a client; nothing is opened before the first use.

        Args:
            connection_string: of the Service Bus namespace or the local broker.
            reply_queue: this application's response queue.
            fully_qualified_namespace: with ``credential``, instead of a connection string.
            credential: an azure-identity credential.
            queues: the queues' names, where they are not the default ones.
        """
        self._queues = queues or Queues()
        self._reply_queue = self._queues.check_reply_queue(reply_queue)
        if connection_string:
            self._client = ServiceBusClient.from_connection_string(connection_string)
        elif fully_qualified_namespace and credential:
            self._client = ServiceBusClient(fully_qualified_namespace, credential)
        else:
            raise ValueError(
                "give a connection_string, or fully_qualified_namespace and credential"
            )
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
        """Close every connection."""
        await self._client.close()

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

        Raises as ``submit`` does; what came before the order at fault was sent.
        """
        receipts: list[Receipt] = []
        waiting: list[ServiceBusMessage] = []
        async with self._lock:
            for new in orders:
                message, receipt = self._message(new)
                receipts.append(receipt)
                waiting.append(message)
                if len(waiting) >= BATCH_ORDERS_MAX:
                    await self._send_all(waiting)
                    waiting = []
                    if on_sent:
                        on_sent(len(receipts))
            await self._send_all(waiting)
        if on_sent:
            on_sent(len(receipts))
        return receipts

    async def follow(
        self, order_ids: Iterable[str] | None = None, *, patience_seconds: float | None = None
    ) -> AsyncIterator[Notification]:
        """Yield what the response queue brings, until every order named has come to its end.

        An order ends completed, undone, rejected, or failed and held for an operator. A
        notification is completed once the next one is asked for, so that a crash in between
        brings it again. Notifications of other orders on the same queue are yielded too.
        Without ``order_ids`` it goes on until the caller stops.

        Raises:
            TimeoutError: nothing came for ``patience_seconds``.
        """
        left = None if order_ids is None else set(order_ids)
        receiver = self._client.get_queue_receiver(self._reply_queue)
        async with receiver:
            silence = 0.0
            while left is None or left:
                messages = await self._receive(receiver)
                silence = 0.0 if messages else silence + 1.0
                if patience_seconds is not None and silence >= patience_seconds:
                    raise TimeoutError(
                        f"nothing came on {self._reply_queue} for {patience_seconds:g} s; "
                        f"{len(left or ())} orders have not ended"
                    )
                for message in messages:
                    told = await self._told(receiver, message)
                    if told is None:
                        continue
                    yield told
                    await receiver.complete_message(message)
                    if left is not None and is_end(told):
                        left.discard(told.data.order_id)

    async def _open(self) -> ServiceBusSender:
        if self._sender is None:
            self._sender = self._client.get_queue_sender(self._queues.orders)
        return self._sender

    async def _receive(self, receiver: ServiceBusReceiver) -> list[Any]:
        try:
            return list(await receiver.receive_messages(max_message_count=50, max_wait_time=1))
        except MessagingEntityNotFoundError:
            raise SubmitError(f"there is no queue {self._reply_queue!r}: create it") from None

    async def _told(self, receiver: ServiceBusReceiver, message: Any) -> Notification | None:
        try:
            return outward.decode_notification(b"".join(message.body))
        except MalformedError as wrong:
            await receiver.dead_letter_message(
                message, reason="not-a-notification", error_description=str(wrong)[:1000]
            )
            return None

    async def _send_all(self, messages: list[ServiceBusMessage]) -> None:
        """Send messages in as few batches as they fit into."""
        if not messages:
            return
        sender = await self._open()
        try:
            batch = await sender.create_message_batch()
            for message in messages:
                try:
                    batch.add_message(message)
                except (ValueError, MessageSizeExceededError):
                    if len(batch):
                        await sender.send_messages(batch)
                    batch = await sender.create_message_batch()
                    batch.add_message(message)
            await sender.send_messages(batch)
        except (ServiceBusError, ValueError) as failed:
            raise SubmitError(
                f"queue {self._queues.orders!r} did not take orders: {failed}. Submit them again: "
                "with the same submission_id a repeat is recognised."
            ) from failed

    def _message(self, new: NewOrder) -> tuple[ServiceBusMessage, Receipt]:
        receipt = Receipt(new.order_id, new.submission_id or uuid4().hex)
        try:
            content = json.dumps(new.order, ensure_ascii=False, allow_nan=False).encode()
            body = encode_order(
                OrderMessage(
                    order_id=new.order_id,
                    workflow=new.workflow,
                    reply_queue=self._reply_queue,
                    order=msgspec.Raw(content),
                    correlation_id=new.correlation_id,
                    submission_id=receipt.submission_id,
                    workflow_version=new.workflow_version,
                )
            )
            parse_order(body, receipt.submission_id, ORDER_BYTES_MAX)
        except (MalformedError, TypeError, ValueError) as wrong:
            raise InvalidOrderError(f"order {new.order_id!r}: {wrong}") from None
        message = ServiceBusMessage(
            body,
            message_id=receipt.submission_id,
            content_type="application/json",
            correlation_id=new.correlation_id,
        )
        return message, receipt


def is_end(told: Notification) -> bool:
    """Return whether a notification is an order's last, unless an operator takes a hand."""
    notice = Notice(notice_of(told.type))
    return notice in _ENDS or (notice is Notice.FAILED and told.data.awaits == "operator")
