"""Operations on Service Bus that survive an outage, and say in one sentence why they failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from azure import servicebus
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
RELEASES_TRIED = ("7.14.", "7.15.")
"""Releases of azure-servicebus whose private method of *released* was tried."""
CLOSE_S = 5.0
"""Longest wait for a link to close, in seconds: a dead connection may not answer."""
PAUSE_S = 0.5
"""Pause before a failed operation is tried again, in seconds."""
SILENT_S = 5.0
"""An operation that takes longer is logged, in seconds, so that people know why they wait."""
POLL_S = 0.25
"""Longest wait of one read, in seconds. It also bounds how late a message is completed."""
_REFUSALS = (
    MessagingEntityNotFoundError,
    *(ServiceBusAuthenticationError, ServiceBusAuthorizationError),
    *(MessageSizeExceededError, MessageLockLostError, MessageAlreadySettled),
)
"""Answers that another attempt does not change."""
_NO_QUEUE = "there is no such queue: create it, or correct the name."


class LinkError(Exception):
    """An operation failed; the text is a sentence that says what to look at."""


class LockLostError(LinkError):
    """The lock of a message has expired: it is delivered again."""


async def persist(operation: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Try an operation until it succeeds, and return its result.

    A broken connection is opened again. All attempts together take at most ``patience_s``. After
    ``SILENT_S`` a warning says that it goes on trying.

    Raises:
        LinkError: Service Bus refused the operation, or the patience has run out.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    last: Exception | None = None

    def warn() -> None:
        said = _why(last or TimeoutError())
        log.warning(
            "Service Bus has not answered for %g s: %s Trying again, for up to %g s in all.",
            *(SILENT_S, said, patience_s),
        )

    warning = loop.call_later(SILENT_S, warn)
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    return await operation()
                except _REFUSALS:
                    raise
                except ServiceBusError as failed:
                    last = failed
                await asyncio.sleep(PAUSE_S)
    except (ServiceBusError, TimeoutError) as failed:
        why = last if last and isinstance(failed, TimeoutError) else failed
        raise LinkError(_why(why)) from why
    finally:
        warning.cancel()


async def receive(
    receiver: ServiceBusReceiver, count_max: int, patience_s: float
) -> Sequence[ServiceBusReceivedMessage]:
    """Return what has arrived: soon after the first message, or nothing after ``POLL_S``.

    The link is opened first, with the full patience: ``receive_messages`` would give up when
    opening the link takes longer than its own waiting time.

    Raises:
        LinkError: the queue cannot be read.
    """

    async def poll() -> Sequence[ServiceBusReceivedMessage]:
        await _open(receiver)
        return await receiver.receive_messages(count_max, max_wait_time=POLL_S)

    return await persist(poll, patience_s)


async def settle(
    receiver: ServiceBusReceiver, action: Callable[[], Awaitable[None]], patience_s: float
) -> None:
    """Complete or dead-letter a message. One whose lock has expired is delivered again.

    Raises:
        LinkError: the message was not settled.
    """

    async def act() -> None:
        await _open(receiver)  # a receiver whose link is closed settles nothing
        await action()

    try:
        await persist(act, patience_s)
    except LinkError as failed:
        if not isinstance(failed.__cause__, MessageLockLostError):
            raise


async def _open(receiver: ServiceBusReceiver) -> None:
    """Open the link of a receiver. Return at once where it is open."""
    await receiver.__aenter__()


async def send_batches(
    sender: ServiceBusSender, messages: Sequence[ServiceBusMessage], patience_s: float
) -> None:
    """Send messages in as few batches as they fit into; each send takes at most ``patience_s``.

    Raises:
        LinkError: some were not sent; those before them were.
    """

    async def send(what: ServiceBusMessage | ServiceBusMessageBatch) -> None:
        await persist(lambda: sender.send_messages(what), patience_s)

    batch = await persist(sender.create_message_batch, patience_s)
    for message in messages:
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            if len(batch):
                await send(batch)
                batch = await persist(sender.create_message_batch, patience_s)
            try:
                batch.add_message(message)
            except MessageSizeExceededError:  # without a batch's wrapping it may fit
                await send(message)
    if len(batch):
        await send(batch)


async def close_link(link: ServiceBusClient | ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a link, or leave it after ``CLOSE_S`` seconds."""
    with suppress(ServiceBusError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await link.close()


async def renew(
    receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, patience_s: float
) -> None:
    """Renew the lock of a message.

    Raises:
        LockLostError: it has expired; the message is delivered again.
        LinkError: the lock was not renewed.
    """

    async def act() -> None:
        await _open(receiver)
        await receiver.renew_message_lock(message)

    try:
        await persist(act, patience_s)
    except LinkError as failed:
        if isinstance(failed.__cause__, MessageLockLostError):
            raise LockLostError(str(failed)) from failed
        raise


async def release(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> bool:
    """Give a message back to its queue, and use up no delivery. Return whether that was possible.

    ``abandon_message`` uses up a delivery. AMQP's outcome *released* does not. The SDK releases
    messages that come too late, but has no public method for it. It is not possible for a message
    of an earlier link, nor with a release of the SDK in which this was not tried.
    """
    if not servicebus.__version__.startswith(RELEASES_TRIED):
        return False
    try:
        number, tag = message._delivery_id, message._delivery_tag  # noqa: SLF001  see above
        await receiver._handler.settle_messages_async(number, tag, "released")  # noqa: SLF001
    except Exception:  # noqa: BLE001  of an internal method: the lock is kept, or expires
        return False
    return True


def bytes_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return a message's body; nothing where its sender used AMQP values instead of bytes."""
    if message.body_type is not AmqpMessageBodyType.DATA:
        return b""
    return b"".join(message.body)


def _why(failed: Exception) -> str:
    match failed:
        case MessagingEntityNotFoundError():
            return _NO_QUEUE
        case ServiceBusAuthenticationError() if "Status code: 404" in str(failed.inner_exception):
            return _NO_QUEUE  # Azure answers the token for a missing queue with 404
        case ServiceBusAuthenticationError() | ServiceBusAuthorizationError():
            return "access was refused: check the key or the identity's role."
        case MessageSizeExceededError():
            return "an order is larger than the namespace takes: keep large parts elsewhere."
        case TimeoutError():
            return "no answer in time: check that the namespace (or the broker) can be reached."
    said = str(failed).strip().splitlines()
    what = said[0].rstrip(".") if said else type(failed).__name__
    return f"{what}: check that the namespace (or the broker) is up."
