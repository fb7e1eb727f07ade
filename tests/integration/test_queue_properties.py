"""What ``sas doctor`` asks over the network: properties of queues, the right to send, the clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from devstack.servicebus import Broker
from devstack.servicebus.tokens import KEY_NAME
from devstack.tests.broker_runners import BrokerThread
from devstack.tests.integration.test_broker_admin import PlainHttp
from sas.adapters.endpoints import Endpoint
from sas.adapters.queue_properties import UnreadablePropertiesError, clock_of, read_properties
from sas.adapters.queues import OperatorServiceBus
from sas.cli import doctor
from sas.ports import BusUnavailableError, UndeliverableError
from tests.unit.cli_kit import Night
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture


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


class Late(BaseHTTPRequestHandler):
    """Refuses everything, with a date of ten minutes ago."""

    def do_GET(self) -> None:
        self.send_response_only(403)
        late = datetime.now(UTC) - timedelta(minutes=10)
        self.send_header("Date", format_datetime(late, usegmt=True))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def late() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Late) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_clocks_apart_are_wrong_and_a_silent_service_leaves_it_unknown(
    night: Night, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = clock_of(late)
    assert abs(ours - theirs - timedelta(minutes=10)) < timedelta(seconds=30)
    monkeypatch.setattr(doctor, "CHECKS", (doctor._clock,))
    monkeypatch.setenv("SAS_TABLES", f"AccountName=a;AccountKey=b;TableEndpoint={late}")
    (found,) = night.sas("doctor", "--json").json
    assert (
        found["State"],
        "s from that of Storage: set this machine's clock" in found["Said"],
    ) == (
        "wrong",
        True,
    )
    monkeypatch.setenv("SAS_TABLES", "AccountName=a;AccountKey=b;TableEndpoint=http://127.0.0.1:9")
    (found,) = night.sas("doctor", "--json").json
    assert found["State"] == "unknown"
    assert json.dumps(found).count("not compared with that of Storage") == 1
