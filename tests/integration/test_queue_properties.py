"""What ``sas doctor`` reads over a real broker: properties of queues, and the right to send."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from devstack.servicebus import Broker
from devstack.servicebus.tokens import KEY_NAME
from sas.adapters.endpoints import Endpoint
from sas.adapters.queue_properties import UnreadablePropertiesError, read_properties
from sas.adapters.queues import OperatorServiceBus
from sas.ports import BusUnavailableError, UndeliverableError
from tests.broker_runners import BrokerThread
from tests.integration.test_broker_admin import PlainHttp


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(["orders"], management_port=0) as broker:
        yield broker


def endpoint(port: int, key: str = "SAS_KEY_VALUE") -> Endpoint:
    return Endpoint(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={key};"
    )


def test_properties_are_read_by_the_names_of_bicep(broker: BrokerThread) -> None:
    port = broker.management_port
    found = read_properties(endpoint(port), ["orders", "nosuch"], transport=PlainHttp())
    assert found["nosuch"] is None
    orders = found["orders"]
    assert orders is not None
    assert isinstance(orders["lockDuration"], timedelta)
    assert isinstance(orders["maxDeliveryCount"], int)
    assert None not in orders.values()


def test_a_missing_answer_is_reported(broker: BrokerThread) -> None:
    with pytest.raises(UnreadablePropertiesError, match="does not answer"):
        read_properties(endpoint(9), ["orders"], transport=PlainHttp(), retry_total=0)


async def test_the_right_to_send_is_checked_and_nothing_is_sent() -> None:
    async with Broker(["orders"]) as broker:
        bus = OperatorServiceBus.connect(broker.connection_string)
        try:
            await bus.check_sending("orders")
            errors = (BusUnavailableError, UndeliverableError)
            with pytest.raises(errors, match="There is no such queue: create it"):
                await bus.check_sending("nosuch")
            assert await bus.peek("orders", 10) == []
        finally:
            await bus.close()
