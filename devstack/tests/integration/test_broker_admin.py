"""The management port: the real ServiceBusAdministrationClient, health, faults, bad requests."""

import http.client
import json
import re
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from devstack.servicebus.tokens import KEY_NAME
from devstack.tests.broker_runners import BrokerThread
from devstack.tests.sdk_kit import SDK

pytestmark = SDK


ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content><QueueDescription xmlns='
    b'"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
DESCRIPTION = b" HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(ENTRY), ENTRY)


class PlainHttp(RequestsTransport):  # type: ignore[misc]  # azure.core's is untyped here
    """Sends a request of the SDK, which speaks https only, as http."""

    def send(self, request: HttpRequest, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


def admin_of(
    broker: BrokerThread, key: str = "SAS_KEY_VALUE", name: str = KEY_NAME
) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        f"Endpoint=sb://127.0.0.1:{broker.management_port};SharedAccessKeyName={name};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;",
        transport=PlainHttp(),
        retry_total=0,
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(["first"], management_port=0) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: BrokerThread) -> Iterator[ServiceBusAdministrationClient]:
    with admin_of(broker) as admin:
        yield admin


def ask(
    broker: BrokerThread, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.management_port, timeout=60)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    is_json = response.getheader("Content-Type") == "application/json"
    return response.status, json.loads(text) if is_json else text


def host_of(broker: BrokerThread) -> bytes:
    return b"Host: 127.0.0.1:%d" % broker.management_port


def test_a_queue_is_created_read_updated_listed_and_deleted(
    admin: ServiceBusAdministrationClient,
) -> None:
    created = admin.create_queue(
        "made",
        lock_duration=timedelta(seconds=7),
        max_delivery_count=4,
        requires_session=True,
        default_message_time_to_live=timedelta(hours=2),
        dead_lettering_on_message_expiration=True,
        forward_dead_lettered_messages_to="first",
    )
    assert created.lock_duration == timedelta(seconds=7)
    queue = admin.get_queue("made")
    assert (queue.name, queue.max_delivery_count, queue.requires_session) == ("made", 4, True)
    assert queue.default_message_time_to_live == timedelta(hours=2)
    assert queue.dead_lettering_on_message_expiration
    assert (queue.forward_dead_lettered_messages_to or "").endswith("first")
    queue.max_delivery_count, queue.dead_lettering_on_message_expiration = 9, False
    admin.update_queue(queue)
    queue = admin.get_queue("made")
    assert (queue.max_delivery_count, queue.dead_lettering_on_message_expiration) == (9, False)
    assert [queue.name for queue in admin.list_queues()] == ["first", "made"]
    admin.delete_queue("made")
    assert [queue.name for queue in admin.list_queues()] == ["first"]


def test_a_missing_queue_is_reported(admin: ServiceBusAdministrationClient) -> None:
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("missing")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("missing")
    stale = admin.create_queue("stale")
    admin.delete_queue("stale")
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(stale)


def test_values_the_service_would_refuse_are_refused_with_a_sentence(
    admin: ServiceBusAdministrationClient,
) -> None:
    with pytest.raises(HttpResponseError, match="LockDuration must be from"):
        admin.create_queue("wrong", lock_duration=timedelta(hours=1))
    with pytest.raises(HttpResponseError, match="cannot forward to itself"):
        admin.create_queue("wrong", forward_to="wrong")
    with pytest.raises(HttpResponseError, match="cannot forward to itself"):
        admin.create_queue("wrong", forward_dead_lettered_messages_to="wrong")


def test_runtime_counts_follow_the_messages(
    broker: BrokerThread, admin: ServiceBusAdministrationClient
) -> None:
    broker.call(lambda b: b.create_queue("counted"))
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("counted") as sender,
        client.get_queue_receiver("counted") as receiver,
    ):
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        (message,) = receiver.receive_messages(1, max_wait_time=60)
        receiver.dead_letter_message(message)
    counts = admin.get_queue_runtime_properties("counted")
    assert counts.active_message_count == 1
    assert counts.dead_letter_message_count == 1
    assert counts.total_message_count == 2
    assert counts.scheduled_message_count == 0
    assert (counts.size_in_bytes or 0) > 0
    assert counts.created_at_utc is not None


def test_health_says_healthy(broker: BrokerThread) -> None:
    status, body = ask(broker, "GET", "/health")
    assert (status, body["status"]) == (200, "healthy")


def test_faults_are_armed_shown_and_cleared_over_http(broker: BrokerThread) -> None:
    fault = {"kind": "server-busy", "queue": "first", "count": 2}
    assert ask(broker, "POST", "/$faults", fault)[0] == 200
    armed = ask(broker, "GET", "/$faults")[1]["armed"]
    assert [(f["kind"], f["queue"], f["remaining"]) for f in armed] == [("server-busy", "first", 2)]
    assert ask(broker, "DELETE", "/$faults") == (200, {"armed": []})
    assert ask(broker, "POST", "/$faults", {"kind": "expire-locks"}) == (200, {"expired": 0})
    assert ask(broker, "POST", "/$faults", {"kind": "drop-connections"})[0] == 200


CHANGES = (("POST", "/$faults"), ("DELETE", "/first"), ("PUT", "/pages"))


def test_a_page_of_a_browser_changes_nothing(broker: BrokerThread) -> None:
    for headers, status, changes in (
        ({"Host": "evil.example:5300"}, 421, CHANGES),  # DNS rebinding
        ({"Host": "127.0.0.1"}, 421, CHANGES),
        ({"Origin": "https://evil.example"}, 403, CHANGES),
        ({"Origin": "null"}, 403, CHANGES),
        ({"Content-Type": "text/plain"}, 415, CHANGES[:1]),  # what a page can send unasked
        ({"Content-Type": "text/ping"}, 415, CHANGES[:1]),
    ):
        fault = {"kind": "server-busy", "count": 1_000_000}
        for method, path in changes:
            assert ask(broker, method, path, fault, **headers)[0] == status
        assert ask(broker, "GET", "/$faults")[1] == {"armed": []}
        names = broker.call(lambda b: {queue.name for queue in b.namespace})
        assert "first" in names
        assert "pages" not in names


def test_a_request_of_a_page_is_refused_before_its_body_is_read(broker: BrokerThread) -> None:
    head = b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", broker.management_port), timeout=60) as peer:
        peer.sendall(head)  # and no body
        assert b" 421 " in peer.recv(65536)


def test_a_bad_request_gets_one_sentence(broker: BrokerThread) -> None:
    for method, path, body, status, says in (
        ("POST", "/$faults", {"kind": "meteor"}, 400, "is not a fault; use one of"),
        ("POST", "/$faults", {"kind": "delay", "seconds": 9999}, 400, "0 to 600 seconds"),
        ("POST", "/$faults", {"kind": "server-busy", "count": 0}, 400, "from 1 to 1000000"),
        ("POST", "/$faults", {"kind": "server-busy", "often": 1}, 400, "not a part of this fault"),
        ("POST", "/$faults", {"kind": "expire-locks", "count": 2}, 400, "not a part of this fault"),
        ("POST", "/$faults", {"kind": "delay", "count": True}, 400, "is a whole number"),
        ("POST", "/$faults", {"kind": "delay", "queue": "none"}, 404, "could not be found"),
        (
            "POST",
            "/$faults",
            {"kind": "delay", "operation": "attach"},
            400,
            "or use send or settle",
        ),
        ("POST", "/$faults", {"kind": "expire-locks", "queue": "none"}, 404, "could not be found"),
        ("POST", "/$faults", [], 400, "must be a JSON object"),
        ("PATCH", "/first", None, 405, "GET, PUT or DELETE"),
        ("PUT", "/new", {}, 400, "is not XML"),
        ("PUT", "/topic/subscriptions/s", {}, 501, "queues only"),
        ("PUT", "/", "", 400, "is not XML"),
    ):
        answer_status, text = ask(broker, method, path, body)
        assert (answer_status, says in str(text)) == (status, True), text


def test_a_broken_request_is_answered_and_leaves_no_traceback(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    for request_bytes, says in (
        (b"GET /q HTTP/1.1\r\nHost: h\r\nContent-Length: \xb2\r\n\r\n", b" 400 "),
        (b"GET /q HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b" 400 "),
        (b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n" + b"x" * 9, b"is not XML"),
        (
            b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 2_000_000,
            b" 413 ",
        ),
        (
            b"POST /$faults HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            b"Content-Length: 90000\r\n\r\n" + b"[" * 90000,
            b"is not JSON",
        ),
        (b"PUT /" + DESCRIPTION, b"'' cannot name a queue"),
    ):
        answer = b""
        with socket.create_connection(("127.0.0.1", broker.management_port), timeout=60) as peer:
            peer.sendall(request_bytes.replace(b"Host: h", host_of(broker)))
            while says not in answer and (data := peer.recv(65536)):
                answer += data
        assert says in answer
        assert b"broker failed" not in answer
        assert "Traceback" not in caplog.text


def test_a_connection_that_is_reset_leaves_no_traceback(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    for request_bytes in (b"", b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab"):
        with socket.create_connection(("127.0.0.1", broker.management_port), timeout=60) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(request_bytes.replace(b"Host: h", host_of(broker)))
            assert ask(broker, "GET", "/health")[0] == 200
        assert ask(broker, "GET", "/health")[0] == 200
        assert "Traceback" not in caplog.text


def test_a_queue_may_be_named_health(
    broker: BrokerThread, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_queue("health", max_delivery_count=7)
    assert admin.get_queue("health").max_delivery_count == 7
    assert ask(broker, "GET", "/health")[1]["status"] == "healthy"
    admin.delete_queue("health")


def test_with_a_required_key_only_its_bearers_come_in() -> None:
    with BrokerThread(["first"], management_port=0, require_key="s3cret=") as broker:
        assert ask(broker, "GET", "/health")[0] == 200
        assert ask(broker, "GET", "/first")[0] == 401
        with admin_of(broker, "s3cret=") as admin:
            assert admin.get_queue("first").name == "first"
        for key, name in (("wrong", KEY_NAME), ("s3cret=", "Listener")):
            with admin_of(broker, key, name) as admin, pytest.raises(ClientAuthenticationError):
                admin.get_queue("first")


def test_the_example_of_the_page_runs(broker: BrokerThread) -> None:
    page = (Path(__file__).parents[2] / "docs" / "devstack.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"management_port": broker.management_port}
    exec(code, names)  # noqa: S102  what the page shows
    with names["admin"] as admin:
        assert admin.get_queue("invoices").max_delivery_count == 3
        admin.delete_queue("invoices")
