"""The message bus on Azure Service Bus: sending, bounded in time, errors told apart.

Receiving is the host's: functions are handed their messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Self

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
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
from sas.adapters.senders import Senders
from sas.ports import BusUnavailableError, Message, UndeliverableError
from sas.telemetry import metrics
from sas.telemetry.tracing import carried

NEVER = (MessagingEntityNotFoundError, MessageSizeExceededError, ServiceBusAuthorizationError)
"""Sending again cannot help: no such queue, too large, no right to send.

A full queue is not among them (its reader makes room), nor a disabled one (an operator
disables it for a while), nor failed authentication (a token may be had later).
"""

LATER = (ServiceBusServerBusyError, ServiceBusQuotaExceededError, MessagingEntityDisabledError)
"""The link works and the broker said: not now. A new sender would hear the same."""

TIME_TO_LIVE_MS_MAX = 2**32 - 1


class ServiceBus:
    """Sends messages; one per process and event loop. See ``sas.ports.MessageBus``.

    ``sent`` counts the messages that the broker took. ``send_s`` bounds one call of ``send``,
    in seconds, whatever the network does: a function that hangs would lose its message's lease.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        *,
        send_s: float = 10.0,
        senders_max: int = 100,
        owned: Sequence[Any] = (),
    ) -> None:
        self.sent = 0
        self.senders = Senders(client.get_queue_sender, senders_max)
        self._client = client
        self._send_s = send_s
        self._owned = owned

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

        An endpoint without a connection string is asked as the app's managed identity.
        ``options`` go to the SDK's client. Nothing is opened before the first send.

        Raises:
            ValueError: neither an address nor a readable connection string.
        """
        settings = {"retry_total": 1, "retry_backoff_factor": 0.1, "retry_backoff_max": 2} | options
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
        try:
            async with asyncio.timeout(self._send_s):
                for queue, group in groupby(messages, key=lambda message: message.queue):
                    await self._send_to(queue, list(group))
        except TimeoutError as error:
            raise BusUnavailableError(
                f"the bus did not take {len(messages)} messages within {self._send_s:g} s. "
                "Check that the namespace (or the broker) is reachable."
            ) from error

    async def _send_to(self, queue: str, messages: list[Message]) -> None:
        """Send to one queue; where the link is broken, once more over a new one."""
        outbox = Outbox(messages)
        try:
            try:
                await self._try_to_send(queue, outbox)
            except (*NEVER, *LATER, ServiceBusAuthenticationError):
                raise
            except ServiceBusError:
                await self._try_to_send(queue, outbox)
        except NEVER as error:
            raise UndeliverableError(_why(queue, error), outbox.first) from error
        except ServiceBusError as error:
            raise BusUnavailableError(_why(queue, error)) from error
        finally:
            self.sent += outbox.sent
            metrics.sent(outbox.sent)

    async def _try_to_send(self, queue: str, outbox: Outbox) -> None:
        """Empty the outbox. A sender that was told "not now" is kept, any other error ends it."""
        async with self.senders.use(queue) as sender:
            refused: ServiceBusError | None = None
            try:
                await outbox.empty(sender)
            except (*LATER, MessageSizeExceededError) as error:
                refused = error
        if refused is not None:
            raise refused

    async def close(self) -> None:
        """Close every sender, the client, and the credential if it is ours."""
        await self.senders.close()
        await self._client.close()
        for owned in self._owned:
            await owned.close()


class Outbox:
    """Messages to one queue, in order, and how many of them the broker took."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.sent = 0

    @property
    def first(self) -> Message:
        """The first message not sent yet: the one that an error is about."""
        return self.messages[self.sent]

    async def empty(self, sender: ServiceBusSender) -> None:
        """Send what is left, in batches as large as the link allows."""
        while self.sent < len(self.messages):
            taken = await self._send_batch(sender) if len(self.messages) - self.sent > 1 else 0
            if taken == 0:
                await sender.send_messages(to_sdk(self.first))
            self.sent += taken or 1

    async def _send_batch(self, sender: ServiceBusSender) -> int:
        """Send the next messages as one batch; return how many, 0 where one alone is too many."""
        batch = await sender.create_message_batch()
        taken = _fill(batch, self.messages[self.sent :])
        if taken < 2:
            return 0
        await sender.send_messages(batch)
        return taken


def _fill(batch: ServiceBusMessageBatch, messages: Sequence[Message]) -> int:
    """Add messages until one does not fit; return how many did."""
    for taken, message in enumerate(messages):
        try:
            batch.add_message(to_sdk(message))
        except MessageSizeExceededError:
            return taken
    return len(messages)


def to_sdk(message: Message) -> ServiceBusMessage:
    """Return a message as the SDK wants it.

    The time to live is set in the header itself: the SDK's own setter cuts it to whole
    seconds, and 0 would mean for ever.
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


def _why(queue: str, error: ServiceBusError) -> str:
    match error:
        case MessagingEntityNotFoundError():
            advice = "There is no such queue: create it, or correct the name."
        case MessageSizeExceededError():
            advice = "The message is larger than the queue takes."
        case ServiceBusAuthenticationError():
            advice = "Check the key in the connection string, or the identity (yours: az login)."
        case ServiceBusAuthorizationError():
            advice = "Give the identity (or the key's policy) the right to send to it."
        case ServiceBusQuotaExceededError():
            advice = "It is full: look whether anybody reads it."
        case MessagingEntityDisabledError():
            advice = "It is disabled: enable it."
        case _:
            advice = "Check that the namespace (or the broker) is reachable."
    said = str(error.message).strip().splitlines()
    return f"queue {queue}: {said[0] if said else type(error).__name__} {advice}"
