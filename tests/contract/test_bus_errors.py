"""The adapter maps errors of the SDK to those of the port, and messages to the SDK's. No broker."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from sas.adapters.servicebus import ServiceBus, to_sdk
from sas.ports import (
    BusUnavailableError,
    Message,
    QueueFullError,
    TooLargeForQueueError,
    UndeliverableError,
)

NOWHERE = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
)


@pytest.mark.parametrize(
    ("raised", "expected", "attempts"),
    [
        (ServiceBusAuthorizationError(), UndeliverableError, 1),
        (MessagingEntityNotFoundError(), UndeliverableError, 1),
        (MessageSizeExceededError(), TooLargeForQueueError, 1),
        (ServiceBusAuthenticationError(), BusUnavailableError, 1),
        (ServiceBusServerBusyError(), BusUnavailableError, 1),
        (ServiceBusQuotaExceededError(), QueueFullError, 1),
        (MessagingEntityDisabledError(), QueueFullError, 1),
        (ServiceBusConnectionError(), BusUnavailableError, 2),
        (ServiceBusCommunicationError(), BusUnavailableError, 2),
        (OperationTimeoutError(), BusUnavailableError, 2),
        (ServiceBusError("Handler failed: what the SDK did not expect."), BusUnavailableError, 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ServiceBusError) else "",
)
async def test_each_error_of_the_sdk_becomes_an_error_of_the_port(
    monkeypatch: pytest.MonkeyPatch,
    raised: ServiceBusError,
    expected: type[Exception],
    attempts: int,
) -> None:
    tried: list[object] = []

    async def fail(self: ServiceBusSender, message: object) -> None:
        tried.append(message)
        raise raised

    monkeypatch.setattr(ServiceBusSender, "send_messages", fail)
    bus = ServiceBus.connect(NOWHERE)
    message = Message("somewhere", "order-1/1/0", b"{}")
    with pytest.raises(expected, match="queue somewhere: ") as caught:
        await bus.send([message])
    await bus.close()
    assert len(tried) == attempts
    if isinstance(caught.value, UndeliverableError):
        assert caught.value.undelivered == message


@pytest.mark.parametrize(
    ("time_to_live", "header"),
    [
        (timedelta(milliseconds=1500), 1500),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 1),  # 0 would mean the default of the queue
        (timedelta(seconds=-1), 1),
        (timedelta(days=365), 2**32 - 1),
        (None, None),
    ],
)
async def test_a_time_to_live_is_sent_in_milliseconds_and_is_at_least_one(
    time_to_live: timedelta | None, header: int | None
) -> None:
    sdk_message = to_sdk(Message("agent-a", "1", b"{}", time_to_live=time_to_live))
    assert sdk_message.raw_amqp_message.header is not None
    assert sdk_message.raw_amqp_message.header.time_to_live == header


async def test_an_empty_connection_string_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a connection string or an address"):
        ServiceBus.connect("")
