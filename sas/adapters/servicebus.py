"""The message bus on Azure Service Bus: sending with a time limit, and what errors mean.

The Functions host receives messages and calls the functions with them.
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
from azure.servicebus.amqp import AmqpMessageHeader
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
from sas.ports import (
    PEEK_BYTES_MAX,
    BusUnavailableError,
    Message,
    Peeked,
    UndeliverableError,
)
from sas.telemetry import metrics
from sas.telemetry.tracing import carried
from sas.telemetry.usage import Usage

NEVER = (MessagingEntityNotFoundError, MessageSizeExceededError, ServiceBusAuthorizationError)
"""Errors that no retry can repair: no such queue, message too large, no right to send.

Others can pass: the reader of a full queue makes room, an operator enables a disabled queue, and
after a failed authentication a token may be issued.
"""

LATER = (ServiceBusServerBusyError, ServiceBusQuotaExceededError, MessagingEntityDisabledError)
"""The link works, but the broker refuses for now. A new sender would be refused too."""

TIME_TO_LIVE_MS_MAX = 2**32 - 1

PEEK_PAGE = 100
"""Most messages that are read at once."""

CLOSE_S = 5.0
"""Longest wait for one sender to close, in seconds: a dead connection may not answer."""


class ServiceBus:
    """Sends messages; one per process and event loop. See ``sas.ports.MessageBus``.

    ``meter`` counts what was asked of the broker. ``send_s`` limits one call of ``send``, in
    seconds: a function that hangs would lose the lock of its own message.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        *,
        send_s: float = 10.0,
        senders_max: int = 100,
        owned: Sequence[Any] = (),
    ) -> None:
        self.meter = Usage()
        self.senders = Senders(client.get_queue_sender, senders_max)
        self._client = client
        self._send_s = send_s
        self._owned = owned
        self._receivers: dict[str, ServiceBusReceiver] = {}
        self._peeking = asyncio.Lock()

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
        owned: list[Any] = []
        if text:
            client = ServiceBusClient.from_connection_string(text, **settings)
        elif not isinstance(endpoint, str) and endpoint.address:
            credential = token_credential(endpoint.client_id)
            owned.append(credential)
            client = ServiceBusClient(endpoint.address, credential, **settings)
        else:
            raise ValueError("the bus needs a connection string or an address")
        return cls(client, send_s=send_s, senders_max=senders_max, owned=owned)

    async def send(self, messages: Sequence[Message]) -> None:
        """See ``MessageBus.send``."""
        by_queue: dict[str, list[Message]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message)
        try:
            async with asyncio.timeout(self._send_s):
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
            except ServiceBusError:
                await self._try_to_send(queue, pending)
        except NEVER as error:
            raise UndeliverableError(why(queue, error), pending[0]) from error
        except ServiceBusError as error:
            if _no_such_queue(error):
                raise UndeliverableError(why(queue, error), pending[0]) from error
            raise BusUnavailableError(why(queue, error)) from error
        finally:
            sent = messages[: len(messages) - len(pending)]
            size = sum(len(message.body) for message in sent)
            self.meter.messages += len(sent)
            self.meter.message_bytes += size
            metrics.sent(len(sent), size)

    async def _try_to_send(self, queue: str, pending: list[Message]) -> None:
        """Send what is pending. Errors of ``LATER`` keep the sender, any other closes it."""
        async with self.senders.use(queue) as sender:
            refused: ServiceBusError | None = None
            try:
                await _send_by(sender, pending, self.meter)
            except (*LATER, MessageSizeExceededError) as error:
                refused = error  # raised after the block that would close the sender
        if refused is not None:
            raise refused

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        try:
            async with asyncio.timeout(self._send_s), self._peeking:
                return await self._peeked(queue, limit)
        except TimeoutError as error:
            raise BusUnavailableError(f"queue {queue} could not be read in time") from error
        except ServiceBusError as error:
            raise BusUnavailableError(why(queue, error)) from error

    async def _peeked(self, queue: str, limit: int) -> list[Peeked]:
        """Read a queue. A link that was kept may be detached meanwhile: then a new one is used."""
        kept = self._receivers.pop(queue, None)
        if kept is not None:
            with suppress(ServiceBusError):
                return await self._read(kept, queue, limit)
        return await self._read(self._client.get_queue_receiver(queue), queue, limit)

    async def _read(self, receiver: ServiceBusReceiver, queue: str, limit: int) -> list[Peeked]:
        """Read pages until there are enough messages. After an error the receiver is closed."""
        try:
            found = await peek_all(receiver, limit, self.meter, PEEK_BYTES_MAX)
        except BaseException:
            self.senders.close_later(receiver)
            raise
        self._receivers[queue] = receiver
        return found

    async def close(self) -> None:
        """Close every sender, the client, and the credential if the bus made it."""
        for receiver in self._receivers.values():
            self.senders.close_later(receiver)
        self._receivers.clear()
        await self.senders.close()
        await self._client.close()
        for owned in self._owned:
            await owned.close()


@dataclass(slots=True)
class _Entry:
    """One queue's sender, if it is open, and how many tasks use it or wait for it."""

    sender: ServiceBusSender | None = None
    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Senders:
    """The senders of one Service Bus client: one for each queue, opened on first use and kept.

    Opening a sender takes nine round trips, closing one up to a second, and each holds a link. Two
    tasks must not use one sender at once. So each has a lock, their number is limited, the least
    recently used is closed first, and closing happens in the background.
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
            async with entry.lock:
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
        async with asyncio.timeout(CLOSE_S):
            await link.close()


async def _send_by(sender: ServiceBusSender, pending: list[Message], meter: Usage) -> None:
    """Send messages in batches as large as the link allows; remove those that were sent."""
    while pending:
        batch, taken = await _batch(sender, pending) if len(pending) > 1 else (None, 0)
        meter.sends += 1
        metrics.bus_operation("sends")
        await sender.send_messages(to_sdk(pending[0]) if batch is None else batch)
        del pending[: taken or 1]


async def _batch(
    sender: ServiceBusSender, messages: Sequence[Message]
) -> tuple[ServiceBusMessageBatch | None, int]:
    """Return the first messages as one batch, and how many; None and 0 if only one fits."""
    batch, taken = await sender.create_message_batch(), 0
    with suppress(MessageSizeExceededError):
        for message in messages:
            batch.add_message(to_sdk(message))
            taken += 1
    return (batch, taken) if taken > 1 else (None, 0)


def to_sdk(message: Message) -> ServiceBusMessage:
    """Return a message as the SDK takes it.

    The time to live goes into the header directly: the SDK's setter cuts it to whole seconds,
    and 0 would mean no limit.
    """
    properties: dict[str | bytes, Any] = {}
    properties.update(message.properties.items())
    properties.update(carried().items())
    made = ServiceBusMessage(
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
        made.raw_amqp_message.header = AmqpMessageHeader(time_to_live=bounded)
    return made


async def peek_all(
    receiver: ServiceBusReceiver, limit: int, meter: Usage, bytes_max: float = math.inf
) -> list[Peeked]:
    """Read pages until there are ``limit`` messages, or bodies of ``bytes_max`` bytes."""
    found: list[Peeked] = []
    size = 0
    while len(found) < limit and size < bytes_max:
        first = found[-1].sequence + 1 if found else 1
        most = min(limit - len(found), PEEK_PAGE)
        meter.peeks += 1
        metrics.bus_operation("peeks")
        page = await receiver.peek_messages(most, sequence_number=first)
        if not page:
            break
        found += [_as_peeked(message) for message in page]
        size = sum(len(one.body) for one in found)
    return found


def _as_peeked(message: ServiceBusReceivedMessage) -> Peeked:
    at = message.scheduled_enqueue_time_utc or message.enqueued_time_utc
    properties = message.application_properties or {}
    return Peeked(
        message_id=message.message_id or "",
        body=b"".join(message.body),
        enqueued_at=at or datetime.min.replace(tzinfo=UTC),
        properties={_text(key): _text(value) for key, value in properties.items()},
        sequence=message.sequence_number or 0,
        is_scheduled=message.state is ServiceBusMessageState.SCHEDULED,
        source=message.dead_letter_source,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
    )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _no_such_queue(error: ServiceBusError) -> bool:
    """Whether the queue is missing.

    Azure answers the token for a missing queue with 404, and the SDK reports failed authentication.
    """
    refused = isinstance(error, ServiceBusAuthenticationError)
    by_token = refused and "Status code: 404" in str(error.inner_exception)
    return by_token or isinstance(error, MessagingEntityNotFoundError)


def why(queue: str, error: ServiceBusError) -> str:
    """Say what is wrong with a queue, and what to do."""
    match error:
        case _ if _no_such_queue(error):
            advice = "There is no such queue: create it, or correct the name."
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
            advice = "It is disabled: enable it."
        case _:
            advice = "Check that the namespace (or the broker) is reachable."
    lines = str(error.message).strip().splitlines()
    return f"queue {queue}: {lines[0] if lines else type(error).__name__} {advice}"
