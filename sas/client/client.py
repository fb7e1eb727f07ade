"""The client: sends to the ``orders`` queue, reads the application's own response queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self
from uuid import uuid4

import msgspec
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from opentelemetry.trace import SpanKind

from sas.client.inbox import Follower, Inbox
from sas.client.links import LinkError, close_link, send_batches
from sas.client.receiving import Receiving
from sas.codec.external import Notification, event_type
from sas.codec.orders import ORDER_BYTES_MAX, OrderMessage, encode_order, parse_order
from sas.domain.messages import Notice
from sas.domain.order import FINISHED, OrderState
from sas.domain.queues import Queues
from sas.environment import CONNECTION, here, service_bus
from sas.telemetry import tracing

BATCH_ORDERS_MAX = 100
_ENDS = frozenset(
    event_type(notice) for notice in (Notice.COMPLETED, Notice.UNDONE, Notice.REJECTED)
)
_ENDED = frozenset(state.value for state in (*FINISHED, OrderState.REJECTED, OrderState.ERROR))


class InvalidOrderError(ValueError):
    """The system would reject an order. Those before it were sent, those after it were not.

    ``index`` is the place (from 0) of the order among the orders of the call.
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
    ``submission_id`` identifies the submission. Give the same id when you submit the order again.
    Without it, the client makes a new id.
    """

    order_id: str
    order: Mapping[str, Any] | msgspec.Raw
    _: KW_ONLY
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
    """Return whether a notification is the last one of an order.

    If an operator acts on the order later, more may come. The answer to a repeated submission is
    the last one if the order had ended before.
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
            order_bytes_max: largest order message that the system takes: its
                SAS_MESSAGE_BYTES_MAX less 4,096.
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
        self._credential_to_close: AsyncTokenCredential | None = None
        self._patience_s = patience_s
        self._order_bytes_max = order_bytes_max
        self._sender: ServiceBusSender | None = None
        self._lock = asyncio.Lock()
        self._inbox: Inbox[ServiceBusReceivedMessage] = Inbox()
        self._receiving = Receiving(self._client, self._reply_queue, patience_s, self._inbox)

    @classmethod
    def from_environment(cls, **arguments: Any) -> Self:
        """Prepare a client for the system that the command ``sas`` finds here.

        Environment variables name it, or the ``.devstack/env`` of the stack that runs in this
        directory or above it. ``arguments`` are those of the class, for instance ``reply_queue``.

        Raises:
            ValueError: no Service Bus namespace is named anywhere, or the file cannot be used.
            ModuleNotFoundError: a namespace without a key needs azure-identity (the extra cli).
        """
        system = here()
        namespace = service_bus(system.settings)
        if namespace is None:
            source = system.stack or "the environment variables"
            raise ValueError(f"no connection in {source}: start devstack, or set {CONNECTION}")
        if "=" in namespace:  # a connection string
            return cls(namespace, **arguments)
        from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  # slow to import

        credential = DefaultAzureCredential()
        client = cls(fully_qualified_namespace=namespace, credential=credential, **arguments)
        client._credential_to_close = credential
        return client

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close every connection."""
        await self.close()

    async def close(self) -> None:
        """Close every connection; a dead one is abandoned after some seconds.

        Loops that still follow end with FollowError. Notifications that were not handed out stay on
        the queue.
        """
        await self._receiving.stop()
        await close_link(self._client)
        if self._credential_to_close is not None:
            await self._credential_to_close.close()

    async def submit(self, new_order: NewOrder) -> Receipt:
        """Submit one order.

        Raises:
            InvalidOrderError: the system would reject it; the text says why.
            SubmitError: Service Bus did not take it.
        """
        [receipt] = await self.submit_many([new_order])
        return receipt

    async def submit_many(
        self, orders: Iterable[NewOrder], on_sent: Callable[[int], None] | None = None
    ) -> list[Receipt]:
        """Submit orders in batches. ``on_sent`` gets how many have been sent so far.

        Raises:
            InvalidOrderError: the system would reject an order; those before it were sent.
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
            for index, new_order in enumerate(orders):
                try:
                    message, receipt = self._message(index, new_order)
                except InvalidOrderError:
                    await send()
                    raise
                self._inbox.submitted(new_order.order_id, new_order.correlation_id)
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
        """Yield the notifications of these orders until every one of them has ended.

        An order has ended when it is completed, undone or rejected, or when it failed and waits for
        an operator. Without ``order_ids`` this is `events`. Several loops may run at the same time.
        Each gets every notification of its orders.

        A notification is removed from the queue within about a second after the caller asks for
        the next one. After ``break``, an exception or a crash it is handed out again. Messages that
        no loop follows stay on the queue and use up no delivery. One exception: once an order's
        *completed* or *undone* was handed out, its older notifications are removed unread.

        An order that this client submitted is followed by its correlation id too: notifications of
        another application's order with the same id are not yielded. Of an order that another
        process submitted, the order id alone counts. Two processes must not follow the same order
        on one queue: each notification goes to one of them.

        Args:
            order_ids: the orders; they need not be submitted yet.
            until: called several times a second while the queue can be read; True ends the loop.
            quiet_s: longest time without a notification of these orders, in seconds.

        Raises:
            FollowError: the queue cannot be read, or the client is closed.
            TimeoutError: the queue could be read, and nothing came for ``quiet_s`` seconds.
        """
        open_ids = None if order_ids is None else set(order_ids)
        loop = asyncio.get_running_loop()
        follower = self._inbox.join(open_ids)
        news_at = loop.time()
        try:
            self._start()
            while (open_ids is None or open_ids) and not (until and until()):
                await self._woken(follower)
                while follower.unread:
                    entry = follower.unread.popleft()
                    yield entry.event
                    self._inbox.done(follower, entry)
                    news_at = loop.time()
                    if open_ids is not None and is_end(entry.event):
                        open_ids.discard(entry.event.data.order_id)
                if quiet_s is not None and self._receiving.read_at - news_at >= quiet_s:
                    raise TimeoutError(
                        f"nothing came on {self._reply_queue} for {quiet_s:g} s; "
                        f"{len(open_ids or ())} orders have not ended"
                    )
        finally:
            self._inbox.leave(follower)

    def events(
        self, *, until: Callable[[], bool] | None = None, quiet_s: float | None = None
    ) -> AsyncGenerator[Notification]:
        """Yield every notification of the response queue, of all orders.

        It goes on until the caller stops, or ``until`` returns True; see `follow`. If 50
        notifications wait for a slow caller, the other loops of this client wait for it too.

        Raises:
            FollowError: the queue cannot be read, or the client is closed.
            TimeoutError: the queue could be read, and nothing came for ``quiet_s`` seconds.
        """
        return self.follow(None, until=until, quiet_s=quiet_s)

    async def wait(self, order_id: str, *, quiet_s: float | None = None) -> Notification:
        """Return the notification that ends an order, as `is_end` says.

        All its notifications are removed from the queue. An end that was handed out before does
        not come again: bound the wait with ``quiet_s`` or ``asyncio.timeout``.

        Args:
            order_id: the order; it need not be submitted yet.
            quiet_s: longest time without a notification of the order, in seconds.

        Raises:
            FollowError: the queue cannot be read, or the client is closed.
            TimeoutError: the queue could be read, and nothing came for ``quiet_s`` seconds.
        """
        async with aclosing(self.follow([order_id], quiet_s=quiet_s)) as notifications:
            ends = [notification async for notification in notifications if is_end(notification)]
        return ends[-1]

    def _start(self) -> None:
        try:
            self._receiving.start()
        except LinkError as error:
            raise FollowError(str(error)) from error

    async def _woken(self, follower: Follower[ServiceBusReceivedMessage]) -> None:
        """Wait until the queue was read.

        Raises:
            FollowError: it cannot be read.
        """
        await follower.wake.wait()
        follower.wake.clear()
        if failure := follower.failure:
            text = f"queue {self._reply_queue!r} cannot be read: {failure}"
            raise FollowError(text) from failure

    async def _send_all(self, messages: Sequence[ServiceBusMessage]) -> None:
        if not messages:
            return
        if self._sender is None:
            self._sender = self._client.get_queue_sender(self._queues.orders)
        try:
            await send_batches(self._sender, messages, self._patience_s)
        except LinkError as error:
            sender, self._sender = self._sender, None
            await close_link(sender)
            raise SubmitError(
                f"queue {self._queues.orders!r} did not take orders: {error} "
                "To submit them again is safe: a repeat of the same order is recognised."
            ) from error

    def _message(self, index: int, new_order: NewOrder) -> tuple[ServiceBusMessage, Receipt]:
        receipt = Receipt(new_order.order_id, new_order.submission_id or uuid4().hex)
        try:
            body = encode_order(
                OrderMessage(
                    order_id=new_order.order_id,
                    workflow=new_order.workflow,
                    reply_queue=self._reply_queue,
                    order=_content(new_order.order),
                    correlation_id=new_order.correlation_id,
                    submission_id=receipt.submission_id,
                    workflow_version=new_order.workflow_version,
                )
            )
            parse_order(body, receipt.submission_id, self._order_bytes_max)
        except (TypeError, ValueError, RecursionError) as error:
            text = f"order {str(new_order.order_id)[:120]!r}: {error}"
            raise InvalidOrderError(index, text) from None
        with tracing.span(
            "submit",
            kind=SpanKind.PRODUCER,
            order_id=new_order.order_id,
            workflow=new_order.workflow,
        ):
            message = ServiceBusMessage(
                body,
                message_id=receipt.submission_id,
                content_type="application/json",
                correlation_id=new_order.correlation_id,
                application_properties=dict(tracing.carried().items()),
            )
        return message, receipt


def _content(order: Mapping[str, Any] | msgspec.Raw) -> msgspec.Raw:
    if isinstance(order, msgspec.Raw):
        return order
    return msgspec.Raw(json.dumps(order, ensure_ascii=False, allow_nan=False).encode())
