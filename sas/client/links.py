"""Links to Service Bus: each operation bounded in time, each failure said in a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

T = TypeVar("T")
CLOSE_S = 5.0
"""Longest that closing is waited for, in seconds: a dead connection may not answer."""


class LinkError(Exception):
    """An operation failed; the text is a sentence that says what to look at."""


async def bounded(operation: Awaitable[T], patience_s: float) -> T:
    """Return what an operation returns.

    Raises:
        LinkError: Service Bus refused it, or did not answer in time.
    """
    try:
        async with asyncio.timeout(patience_s):
            return await operation
    except (ServiceBusError, TimeoutError) as failed:
        raise LinkError(_why(failed)) from failed


async def send_batches(
    sender: ServiceBusSender, messages: Sequence[ServiceBusMessage], patience_s: float
) -> None:
    """Send messages in as few batches as they fit into; each send takes at most ``patience_s``.

    Raises:
        LinkError: some were not sent; those before them were.
    """
    batch = await bounded(sender.create_message_batch(), patience_s)
    for message in messages:
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            if len(batch):
                await bounded(sender.send_messages(batch), patience_s)
                batch = await bounded(sender.create_message_batch(), patience_s)
            try:
                batch.add_message(message)
            except MessageSizeExceededError:  # without a batch's wrapping it may fit
                await bounded(sender.send_messages(message), patience_s)
    if len(batch):
        await bounded(sender.send_messages(batch), patience_s)


async def close(link: ServiceBusClient | ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a link, or leave it after ``CLOSE_S`` seconds."""
    with suppress(LinkError):
        await bounded(link.close(), CLOSE_S)


async def hand_back(
    receiver: ServiceBusReceiver, messages: Iterable[ServiceBusReceivedMessage]
) -> None:
    """Put messages back on their queue now; where that fails, their leases run out instead."""

    async def abandon() -> None:
        for message in messages:
            await receiver.abandon_message(message)

    with suppress(LinkError):
        await bounded(abandon(), CLOSE_S)


def bytes_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return a message's body; nothing where its sender used AMQP values instead of bytes."""
    if message.body_type is not AmqpMessageBodyType.DATA:
        return b""
    return b"".join(message.body)


def _why(failed: Exception) -> str:
    match failed:
        case MessagingEntityNotFoundError():
            return "there is no such queue: create it, or correct the name."
        case ServiceBusAuthenticationError() | ServiceBusAuthorizationError():
            return "access was refused: check the key or the identity's role."
        case MessageSizeExceededError():
            return "an order is larger than the namespace takes: keep large parts elsewhere."
        case TimeoutError():
            return "no answer in time: check that the namespace (or the broker) can be reached."
    said = str(failed).strip().splitlines()
    return f"{said[0] if said else type(failed).__name__} (is the namespace or broker up?)"
