"""The message bus on Azure Service Bus: sending within a time limit, and what errors mean.

The Functions host receives messages and calls the functions. This module only sends and peeks.

1. ``send`` groups the messages by queue and keeps their order. Messages to one queue go in batches
   as large as the link allows, because each send costs a round trip and an operation on the bill.
2. Each queue has one sender (``Senders``), because opening a link takes nine round trips. Its link
   must not be used by two tasks at once, so a lock lends it to one of them.
3. A message is removed from ``pending`` when the broker has acknowledged it. So after an error it
   is known what is left.
4. If the acknowledgement is lost, the broker may have taken the batch or not. The link is closed,
   because its state is unknown, and what is pending is sent **once more** over a new one. (Each
   time the SDK itself may repeat the send once.) If that fails too: BusUnavailableError. The
   caller's own message is put back, its out row comes due, or the new messages are held in the
   store. Then they are sent again.
5. So a message may be sent twice. That is harmless. Its MessageId follows from the reason why it is
   sent (``sas.domain.ids``) and stays the same, so a queue with duplicate detection drops the
   second one. Where the queue has none, or its window has passed, the receiver is guarded: a
   scheduler finds that the cause is recorded or the order has gone on, an agent calls with the same
   idempotency key, and an application recognises the id.
6. Errors are sorted by what helps. ``NEVER``: no retry helps, UndeliverableError with the message,
   and TooLargeForQueueError if it is too large.
   ``LATER``: the broker refuses for now (``FULL``: until people act). Every other error may pass.
   An error closes the link, unless it is one of ``LATER`` or about a message that is too large:
   then the link works.
7. One call of ``send`` takes ``send_s`` seconds at most. A function that hangs would lose the lock
   of the message that it handles.
"""

from __future__ import annotations

import asyncio
import functools
import math
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Self

import certifi
from azure.core.exceptions import AzureError
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpMessageBodyType, AmqpMessageHeader
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from sas.adapters.endpoints import Endpoint, token_credential
from sas.domain.ids import own_or_digest
from sas.ports import (
    PEEK_BYTES_MAX,
    QUEUE_DISABLED,
    QUEUE_MISSING,
    BusUnavailableError,
    Message,
    Peeked,
    QueueFullError,
    TooLargeForQueueError,
    UndeliverableError,
)
from sas.telemetry import metrics
from sas.telemetry.tracing import carried
from sas.telemetry.usage import Usage

NEVER = (MessagingEntityNotFoundError, MessageSizeExceededError, ServiceBusAuthorizationError)
"""Errors that no retry repairs: no such queue, message too large, no right to send.

Other errors can pass: the reader of a full queue makes room, an operator enables a disabled queue,
and after a failed authentication a token may be issued.
"""

LATER = (ServiceBusServerBusyError, ServiceBusQuotaExceededError, MessagingEntityDisabledError)
"""The link works, but the broker refuses for now. A new sender would be refused too."""

FULL = (ServiceBusQuotaExceededError, MessagingEntityDisabledError)
"""People must do something before the queue takes a message."""

SHUT_S = 5.0
"""A queue that is missing or disabled is not tried again for so long, in seconds: the SDK takes two
seconds to find that, and all sends to one queue wait in line.
"""

NO_MESSAGE = "Service Bus has encountered an error."
"""How the SDK begins the text of an error for which it has no message."""

TIME_TO_LIVE_MS_MAX = 2**32 - 1

PEEK_PAGE = 100
"""Most messages that one request of a peek asks for."""

LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""A message that is scheduled for later counts as scheduled for then: sums stay possible."""

LINK_CLOSE_S = 5.0
"""Longest wait for one link to close, in seconds: a dead connection may not answer."""


class ServiceBus:
    """Sends messages; one per process and event loop. See ``sas.ports.MessageBus``.

    ``meter`` counts the operations at the broker. ``send_s`` limits one call of ``send``, in
    seconds: a function that hangs would lose the lock of its own message.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        *,
        send_s: float = 10.0,
        senders_max: int = 100,
        credentials: Sequence[Any] = (),
    ) -> None:
        self.meter = Usage()
        self.senders = Senders(client.get_queue_sender, senders_max)
        self._client = client
        self._send_s = send_s
        self._credentials = credentials
        self._receivers: dict[str, ServiceBusReceiver] = {}
        self._peeking = asyncio.Lock()
        self._shut: dict[str, tuple[ServiceBusError, float]] = {}
        """Queues that are missing or disabled, with the error, and until when it is believed."""

    @classmethod
    def connect(
        cls,
        endpoint: Endpoint | str,
        *,
        send_s: float = 10.0,
        senders_max: int = 100,
        **options: Any,
    ) -> Self:
        """Return a bus by an endpoint, or by a connection string alone.

        Without a connection string the app's managed identity is used. ``options`` go to the
        SDK's client. No connection is opened before the first send.

        Raises:
            ValueError: neither an address nor a readable connection string.
        """
        settings = {
            "retry_total": 1,
            "retry_backoff_factor": 0.1,
            "retry_backoff_max": 2,
            "ssl_context": tls(),
            **options,
        }
        text = endpoint if isinstance(endpoint, str) else endpoint.connection_string
        credentials: list[Any] = []
        if text:
            client = ServiceBusClient.from_connection_string(text, **settings)
        elif not isinstance(endpoint, str) and endpoint.address:
            credential = token_credential(endpoint.client_id)
            credentials.append(credential)
            client = ServiceBusClient(endpoint.address, credential, **settings)
        else:
            raise ValueError("the bus needs a connection string or an address")
        return cls(client, send_s=send_s, senders_max=senders_max, credentials=credentials)

    async def send(self, messages: Sequence[Message]) -> None:
        """See ``MessageBus.send``. The numbers are those of the module."""
        # 1. By queue, in the order that they have.
        by_queue: dict[str, list[Message]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message)
        try:
            async with asyncio.timeout(self._send_s):  # 7.
                for queue, group in by_queue.items():
                    await self._send_to(queue, group)
        except TimeoutError as error:
            raise BusUnavailableError(
                f"the bus did not take {len(messages)} messages within {self._send_s:g} s. "
                "Check that the namespace (or the broker) is reachable."
            ) from error

    async def _send_to(self, queue: str, messages: Sequence[Message]) -> None:
        """Send to one queue. If the link is broken, try once more over a new one."""
        pending = list(messages)
        try:
            try:
                await self._try_to_send(queue, pending)
            except (*NEVER, *LATER, ServiceBusAuthenticationError):
                raise
            except ServiceBusError:  # 4. The acknowledgement is lost.
                await self._try_to_send(queue, pending)
        except ServiceBusError as error:
            self._remember(queue, error)
            raise _sorted(queue, error, pending[0]) from error  # 6.
        finally:
            acknowledged = messages[: len(messages) - len(pending)]
            size = sum(len(message.body) for message in acknowledged)
            self.meter.messages += len(acknowledged)
            self.meter.message_bytes += size
            metrics.sent(len(acknowledged), size)

    async def _try_to_send(self, queue: str, pending: list[Message]) -> None:
        """Send what is pending. A refusal over a working link keeps the sender, others close it."""
        async with self.senders.use(queue) as sender:
            refusal = self._remembered(queue)
            if refusal is None:
                try:
                    await _send_by(sender, pending, self.meter)
                except (*LATER, MessageSizeExceededError) as error:
                    refusal = error  # 6. Raised after the block that would close the sender.
        if refusal is not None:
            raise refusal

    def _remember(self, queue: str, error: ServiceBusError) -> None:
        """Remember a queue that is missing or disabled. Applications make names up: old ones go."""
        now = monotonic()
        self._shut = {name: shut for name, shut in self._shut.items() if shut[1] > now}
        if queue in self._shut:
            return
        if _no_such_queue(error) or isinstance(error, MessagingEntityDisabledError):
            self._shut[queue] = error, now + SHUT_S

    def _remembered(self, queue: str) -> ServiceBusError | None:
        error, until = self._shut.get(queue, (None, 0.0))
        return error.with_traceback(None) if error is not None and until > monotonic() else None

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        try:
            async with asyncio.timeout(self._send_s), self._peeking:
                return await self._peeked(queue, limit, after)
        except TimeoutError as error:
            raise BusUnavailableError(f"queue {queue} could not be read in time") from error
        except ServiceBusError as error:
            raise BusUnavailableError(explain(queue, error)) from error

    async def _peeked(self, queue: str, limit: int, after: int) -> list[Peeked]:
        """Read a queue. The broker may have detached the link of the last peek: open a new one."""
        receiver = self._receivers.pop(queue, None)
        if receiver is not None:
            with suppress(ServiceBusError):
                return await self._read(receiver, queue, limit, after)
        return await self._read(self._client.get_queue_receiver(queue), queue, limit, after)

    async def _read(
        self, receiver: ServiceBusReceiver, queue: str, limit: int, after: int
    ) -> list[Peeked]:
        """Read pages until there are enough messages. After an error the receiver is closed."""
        try:
            messages = await peek_all(
                receiver, limit, self.meter, bytes_max=PEEK_BYTES_MAX, after=after
            )
        except BaseException:
            self.senders.close_later(receiver)
            raise
        self._receivers[queue] = receiver
        return messages

    async def close(self) -> None:
        """Close every sender, the client, and the credential if the bus made it."""
        for receiver in self._receivers.values():
            self.senders.close_later(receiver)
        self._receivers.clear()
        await self.senders.close()
        await self._client.close()
        for credential in self._credentials:
            await credential.close()


@dataclass(slots=True)
class _Entry:
    """The sender of one queue, if it is open, and how many tasks use it or wait for it."""

    sender: ServiceBusSender | None = None
    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Senders:
    """The senders of one Service Bus client: one for each queue, opened on first use and kept.

    Opening a sender takes nine round trips, closing it up to a second, and each sender holds a
    link. Two tasks must not use one sender at once. So each sender has a lock, their number is
    limited, the least recently used one is closed first, and closing happens in the background.
    """

    def __init__(self, open_sender: Callable[[str], ServiceBusSender], senders_max: int) -> None:
        self._open = open_sender
        self._max = senders_max
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return how many queues have a sender."""
        return len(self._entries)

    @asynccontextmanager
    async def use(self, queue: str) -> AsyncIterator[ServiceBusSender]:
        """Lend a queue's sender to one task at a time.

        If the use ends with an exception or is cancelled, the sender is closed and the next user
        gets a new one, because the state of its link is unknown.
        """
        entry = self._entries.setdefault(queue, _Entry())
        self._entries.move_to_end(queue)
        entry.users += 1
        try:
            async with entry.lock:  # 2.
                if entry.sender is None:
                    entry.sender = self._open(queue)
                try:
                    yield entry.sender
                except BaseException:
                    self._close_later(entry)
                    raise
        finally:
            entry.users -= 1
            self._evict()

    def _evict(self) -> None:
        idle = [queue for queue, entry in self._entries.items() if not entry.users]
        for queue in idle[: max(0, len(self._entries) - self._max)]:
            self._close_later(self._entries.pop(queue))

    def _close_later(self, entry: _Entry) -> None:
        sender, entry.sender = entry.sender, None
        if sender is not None:
            self.close_later(sender)

    def close_later(self, link: ServiceBusSender | ServiceBusReceiver) -> None:
        """Close a sender or a receiver in the background."""
        task = asyncio.get_running_loop().create_task(_close(link))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every sender, and wait for those that are closing already."""
        for entry in self._entries.values():
            self._close_later(entry)
        self._entries.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)


@functools.cache
def tls() -> ssl.SSLContext:
    """Return the TLS settings of every link of this process.

    They are the same as the SDK's own. Without them the SDK reads the certificates of all
    authorities for every link, even without TLS. That takes 20 ms of CPU.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    return context


async def _close(link: ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a sender or a receiver; failures are ignored, because nothing is lost by them."""
    with suppress(AzureError, OSError, TimeoutError, ValueError, AttributeError):
        async with asyncio.timeout(LINK_CLOSE_S):
            await link.close()


async def _send_by(sender: ServiceBusSender, pending: list[Message], meter: Usage) -> None:
    """Send messages in batches as large as the link allows; remove what is acknowledged."""
    while pending:
        batch, size = await _batch(sender, pending) if len(pending) > 1 else (None, 1)
        meter.sends += 1
        metrics.bus_operation("sends")
        await sender.send_messages(to_sdk(pending[0]) if batch is None else batch)
        del pending[:size]  # 3. The broker has them.


async def _batch(
    sender: ServiceBusSender, messages: Sequence[Message]
) -> tuple[ServiceBusMessageBatch | None, int]:
    """Return the first messages as a batch, and their number; None and 1 if only one fits."""
    batch, size = await sender.create_message_batch(), 0
    with suppress(MessageSizeExceededError):
        for message in messages:
            batch.add_message(to_sdk(message))
            size += 1
    return (batch, size) if size > 1 else (None, 1)


def to_sdk(message: Message) -> ServiceBusMessage:
    """Return a message as the SDK takes it.

    The time to live goes into the header directly: the SDK's setter cuts it to whole seconds,
    and 0 would mean no limit.
    """
    properties: dict[str | bytes, Any] = {}
    properties.update(message.properties.items())
    properties.update(carried().items())
    sdk_message = ServiceBusMessage(
        message.body,
        message_id=message.message_id,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        scheduled_enqueue_time_utc=message.scheduled_at,
        application_properties=properties,
    )
    if message.time_to_live is not None:
        milliseconds = int(message.time_to_live.total_seconds() * 1000)
        bounded = min(max(milliseconds, 1), TIME_TO_LIVE_MS_MAX)
        sdk_message.raw_amqp_message.header = AmqpMessageHeader(time_to_live=bounded)
    return sdk_message


async def peek_all(
    receiver: ServiceBusReceiver,
    limit: int,
    meter: Usage,
    *,
    bytes_max: float = math.inf,
    after: int = 0,
) -> list[Peeked]:
    """Read pages until there are ``limit`` messages, or ``bytes_max`` bytes of them."""
    messages: list[Peeked] = []
    size = 0
    while len(messages) < limit and size < bytes_max:
        first = (messages[-1].sequence if messages else after) + 1
        count = min(limit - len(messages), PEEK_PAGE)
        meter.peeks += 1
        metrics.bus_operation("peeks")
        page = await receiver.peek_messages(count, sequence_number=first)
        if not page:
            break
        messages += [_as_peeked(message) for message in page]
        size = sum(message.size for message in messages)
    return messages


def _as_peeked(message: ServiceBusReceivedMessage) -> Peeked:
    properties = message.application_properties or {}
    body = _body_of(message)
    own_id, correlation_id = message.message_id, message.correlation_id
    return Peeked(
        message_id=own_or_digest(own_id and _text(own_id), body),
        body=body,
        enqueued_at=_visible_at(message),
        properties={_text(key): _text(value) for key, value in properties.items()},
        sequence=message.sequence_number or 0,
        is_scheduled=message.state is ServiceBusMessageState.SCHEDULED,
        source=message.dead_letter_source,
        content_type=message.content_type and _text(message.content_type),
        correlation_id=correlation_id and _text(correlation_id),
    )


def _body_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return the bytes of a body. A sender may send any AMQP value: as text, nobody reads it."""
    if message.body_type is AmqpMessageBodyType.DATA:
        return b"".join(message.body)
    return b"not data: " + str(message.raw_amqp_message).encode()


def _visible_at(message: ServiceBusReceivedMessage) -> datetime:
    """Return when a message became, or becomes, visible. A sender may schedule it for any time."""
    try:
        scheduled_at = message.scheduled_enqueue_time_utc
    except (ValueError, OverflowError, OSError):
        scheduled_at = LATEST if message.state is ServiceBusMessageState.SCHEDULED else None
    times = filter(None, (scheduled_at, message.enqueued_time_utc))
    return min(max(times, default=datetime.min.replace(tzinfo=UTC)), LATEST)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _no_such_queue(error: ServiceBusError) -> bool:
    """Return whether the queue is missing.

    Azure answers the token for a missing queue with 404, and the SDK reports that authentication
    failed.
    """
    unauthenticated = isinstance(error, ServiceBusAuthenticationError)
    token_refused = unauthenticated and "Status code: 404" in str(error.inner_exception)
    return token_refused or isinstance(error, MessagingEntityNotFoundError)


def _sorted(queue: str, error: ServiceBusError, message: Message) -> Exception:
    """Return the error of the port for an error of the SDK about a message."""
    text = explain(queue, error)
    if isinstance(error, MessageSizeExceededError):
        return TooLargeForQueueError(text, message)
    if isinstance(error, NEVER) or _no_such_queue(error):
        return UndeliverableError(text, message)
    return QueueFullError(text) if isinstance(error, FULL) else BusUnavailableError(text)


def explain(queue: str, error: ServiceBusError) -> str:
    """Say what is wrong with a queue, and what to do."""
    match error:
        case _ if _no_such_queue(error):
            return f"queue {queue}: {QUEUE_MISSING}"
        case MessageSizeExceededError():
            advice = "The message is larger than the queue accepts."
        case ServiceBusAuthenticationError():
            advice = (
                "Without a connection string, `az login` first. "
                "Check the key in the connection string, if you use one."
            )
        case ServiceBusAuthorizationError():
            advice = (
                "To send to it needs the role Azure Service Bus Data Sender (a key's policy: Send)."
            )
        case ServiceBusQuotaExceededError():
            advice = "It is full: check that its reader runs."
        case MessagingEntityDisabledError():
            return f"queue {queue}: {QUEUE_DISABLED}"
        case _:
            advice = "Check that the namespace (or the broker) is reachable."
    lines = str(error.message).removeprefix(NO_MESSAGE).strip().splitlines()
    return f"queue {queue}: {lines[0] if lines else type(error).__name__} {advice}"
