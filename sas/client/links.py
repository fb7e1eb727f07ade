"""Operations on Service Bus that survive an outage, and say in one sentence why they failed.

Theory of operation
-------------------
The client has at most one link for sending and one for receiving. A link breaks when the
connection is cut, the broker restarts, or the service detaches a link that was idle. The SDK closes
a broken link and raises an error; the next operation opens it again. The SDK would also retry by
itself, but with its own backoff and without a word to the user, so the client switches that off
(``retry_total=0``) and does it here. All operations go through ``persist``:

1. *Try.* Each attempt first opens the link if it is closed. Opening may take the whole patience.
   The SDK alone is not enough: its ``receive_messages`` gives up if opening takes longer than its
   own short waiting time, and a receiver whose link is closed settles nothing.
2. *A refusal ends it at once*: the queue is missing, access is denied, a message is too large, its
   lock has expired, or it is settled already. Another attempt has the same answer, and the user
   should see it now rather than after half a minute.
3. *Any other error of Service Bus is an outage*: pause, and try again. After ``SILENT_S`` a warning
   is logged once, because otherwise a program that waits looks like a program that hangs.
4. *The patience bounds all attempts together*, also an attempt that never returns. Then the last
   error of Service Bus becomes the text of a ``LinkError``: what failed, and what to check.

What can go wrong, and why nothing is lost or done twice:

- *A send took effect, but its answer was lost.* The next attempt sends the same message with the
  same message id, which is the submission id. The system recognises a repeated submission, so
  there is one order. For the same reason the caller may submit again after the patience is over.
- *A batch was not sent.* Batches go one after another, so the orders before it were sent and those
  after it were not. It is unknown whether its own orders were sent. ``submit_many`` tells
  ``on_sent`` how many were surely sent. It is safe to submit the others again.
- *The lock of a message expired during an outage.* A lock belongs to the message and not to the
  link, so after a short outage it still holds. If it has expired, Service Bus delivers the message
  again. ``settle`` therefore reports no error, and ``renew`` raises ``LockLostError``, so that the
  inbox drops what it has.
- *A dead connection does not answer the closing of a link.* ``close_link`` waits ``CLOSE_S``
  and abandons it.
"""

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
RETRY_PAUSE_S = 0.5
"""Pause before a failed operation is tried again, in seconds."""
SILENT_S = 5.0
"""An operation that takes longer than this is logged, in seconds. So people know why they wait."""
RECEIVE_WAIT_S = 0.25
"""Longest wait of one read, in seconds. It also bounds how late a message is completed."""
_REFUSALS = (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    MessageSizeExceededError,
    MessageLockLostError,
    MessageAlreadySettled,
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
        LinkError: Service Bus refused the operation, or the patience is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    last_error: Exception | None = None

    def warn() -> None:
        log.warning(
            "Service Bus has not answered for %g s: %s Trying again, for up to %g s in all.",
            SILENT_S,
            _why(last_error or TimeoutError()),
            patience_s,
        )

    warning = loop.call_later(SILENT_S, warn)
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    return await operation()  # 1. Try.
                except _REFUSALS:
                    raise  # 2. A refusal ends it at once.
                except ServiceBusError as error:
                    last_error = error  # 3. An outage: pause, and try again.
                await asyncio.sleep(RETRY_PAUSE_S)
    except (ServiceBusError, MessageAlreadySettled, TimeoutError) as error:
        # 2. Refused, or 4. the patience is over. The last error says more than our own timeout.
        cause = last_error if last_error and isinstance(error, TimeoutError) else error
        raise LinkError(_why(cause)) from cause
    finally:
        warning.cancel()


async def receive(
    receiver: ServiceBusReceiver, patience_s: float
) -> Sequence[ServiceBusReceivedMessage]:
    """Return a message as soon as it arrives. If there is none, return after ``RECEIVE_WAIT_S``.

    Only one is asked for, because the SDK waits 0.2 seconds for each further one that is not there.

    Raises:
        LinkError: the queue cannot be read.
    """

    async def read() -> Sequence[ServiceBusReceivedMessage]:
        await _open(receiver)
        return await receiver.receive_messages(1, max_wait_time=RECEIVE_WAIT_S)

    return await persist(read, patience_s)


async def settle(
    receiver: ServiceBusReceiver, action: Callable[[], Awaitable[None]], patience_s: float
) -> None:
    """Complete or dead-letter a message. If its lock has expired, it is delivered again.

    Raises:
        LinkError: the message was not settled.
    """

    async def act() -> None:
        await _open(receiver)
        await action()

    try:
        await persist(act, patience_s)
    except LinkError as error:
        if not isinstance(error.__cause__, MessageLockLostError):
            raise


async def _open(receiver: ServiceBusReceiver) -> None:
    """Open the link of a receiver, if it is closed."""
    await receiver.__aenter__()


async def send_batches(
    sender: ServiceBusSender, messages: Sequence[ServiceBusMessage], patience_s: float
) -> None:
    """Send messages in as few batches as possible. Each send takes at most ``patience_s``.

    Raises:
        LinkError: one batch was not sent. Those before it were sent.
    """

    async def send(payload: ServiceBusMessage | ServiceBusMessageBatch) -> None:
        await persist(lambda: sender.send_messages(payload), patience_s)

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
            except MessageSizeExceededError:  # it may be small enough without a batch around it
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
    except LinkError as error:
        if isinstance(error.__cause__, MessageLockLostError):
            raise LockLostError(str(error)) from error
        raise


async def release(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> bool:
    """Give a message back to its queue without using up a delivery. Return whether that worked.

    ``abandon_message`` uses up a delivery, and a queue dead-letters a message after some of them.
    AMQP's outcome *released* uses up none. The SDK releases messages that come too late, but has
    no public method for it. So this function calls a private method. It cannot do so for a message
    of an earlier link, or with a release of the SDK in which this was not tried.
    """
    if not servicebus.__version__.startswith(RELEASES_TRIED):
        return False
    try:
        number, tag = message._delivery_id, message._delivery_tag  # noqa: SLF001  see above
        await receiver._handler.settle_messages_async(number, tag, "released")  # noqa: SLF001
    except Exception:  # noqa: BLE001  a private method may raise anything; the lock holds or expires
        return False
    return True


def bytes_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return a message's body; it is empty if the sender used AMQP values instead of bytes."""
    if message.body_type is not AmqpMessageBodyType.DATA:
        return b""
    return b"".join(message.body)


def _why(error: Exception) -> str:
    """Return why an operation failed and what to look at, in one sentence."""
    match error:
        case MessagingEntityNotFoundError():
            return _NO_QUEUE
        case ServiceBusAuthenticationError() if "Status code: 404" in str(error.inner_exception):
            return _NO_QUEUE  # Azure answers the token for a missing queue with 404
        case ServiceBusAuthenticationError() | ServiceBusAuthorizationError():
            return "access was refused: check the key or the identity's role."
        case MessageSizeExceededError():
            return "an order is larger than the namespace takes: keep large parts elsewhere."
        case TimeoutError():
            return "no answer in time: check that the namespace (or the broker) can be reached."
    lines = str(error).strip().splitlines()
    text = lines[0].rstrip(".") if lines else type(error).__name__
    return f"{text}: check that the namespace (or the broker) is up."
