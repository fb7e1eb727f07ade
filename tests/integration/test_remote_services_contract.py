"""The remote services over HTTP when nothing fails: idempotency, undo, problems, bounds."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from samples.remote_services import Faults, RemoteServices

CHARGE = {"order_id": "a", "customer_id": "VINET", "amount": "440.00", "currency": "USD"}
RESERVATION = {"order_id": "a", "lines": [{"product_id": 11, "quantity": 12}]}
SHIPMENT = {"order_id": "a", "ship_to": {"city": "Reims"}, "reservation_id": "R-000001"}
MAIL = {"order_id": "a", "customer_id": "VINET", "charge_id": "C-000001", "amount": "440.00"}
DELIVERY = {"order_id": "a", "tracking": "NWTRACK000001"}
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "stock": ("reservations", RESERVATION, {"reservation_id": "R-000001"}),
    "payment": ("charges", CHARGE, {"charge_id": "C-000001"}),
    "shipping": (
        "shipments",
        SHIPMENT,
        {"shipment_id": "S-000001", "tracking": "NWTRACK000001"},
    ),
    "mail": ("mails", MAIL, {"mail_id": "M-000001"}),
    "carrier": ("deliveries", DELIVERY, {"delivery_id": "D-000001", "state": "delivered"}),
}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    content: Any


@dataclass
class Client:
    """Calls one service as an agent would, and keeps the whole answer."""

    session: aiohttp.ClientSession
    base: str
    collection: str

    async def do(self, key: str | None, body: Any) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._call("POST", key, raw)

    async def undo(self, key: str | None) -> Answer:
        return await self._call("DELETE", key, None)

    async def _call(self, method: str, key: str | None, raw: bytes | None) -> Answer:
        headers = {} if key is None else {"Idempotency-Key": key}
        url = f"{self.base}/{self.collection}"
        async with self.session.request(method, url, data=raw, headers=headers) as response:
            content = await response.json(content_type=None)
            return Answer(response.status, dict(response.headers), content)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def remote() -> AsyncIterator[RemoteServices]:
    async with RemoteServices() as remote:
        yield remote


@pytest.fixture
def payment(session: aiohttp.ClientSession, remote: RemoteServices) -> Client:
    return Client(session, remote.urls["payment"], "charges")


def assert_problem(answer: Answer, status: int, name: str) -> None:
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert answer.content["type"] == f"urn:sample:{name}"
    assert answer.content["title"]
    assert answer.content["detail"]
    assert (answer.status, answer.content["status"]) == (status, status)


@pytest.mark.parametrize("service", CALLS)
async def test_each_service_acts_once_replays_and_undoes(
    service: str, session: aiohttp.ClientSession, remote: RemoteServices
) -> None:
    collection, body, expected = CALLS[service]
    client = Client(session, remote.urls[service], collection)
    first = await client.do("a/step", body)
    again = await client.do("a/step", body)
    assert (first.status, first.content) == (201, expected)
    assert "Idempotent-Replayed" not in first.headers
    assert (again.status, again.content) == (201, expected)
    assert again.headers["Idempotent-Replayed"] == "true"
    undone = await client.undo("a/step")
    assert (undone.status, undone.content) == (200, {"undone": True})
    (effect,) = remote.ledger(service)["effects"]
    assert (effect["order_id"], effect["key"], effect["replays"]) == ("a", "a/step", 1)
    assert effect["number"] in expected.values()
    assert effect["undone_at"] is not None


async def test_a_key_that_did_something_refuses_other_content(
    payment: Client, remote: RemoteServices
) -> None:
    await payment.do("a/payment", CHARGE)
    answer = await payment.do("a/payment", {**CHARGE, "amount": "441.00"})
    assert_problem(answer, 422, "idempotency-key-reused")
    assert len(remote.ledger("payment")["effects"]) == 1


async def test_a_do_after_its_undo_is_refused_for_good(
    payment: Client, remote: RemoteServices
) -> None:
    await payment.do("a/payment", CHARGE)
    assert (await payment.undo("a/payment")).content == {"undone": True}
    assert_problem(await payment.do("a/payment", CHARGE), 409, "undone")
    assert len(remote.ledger("payment")["effects"]) == 1


async def test_an_undo_that_comes_first_refuses_the_do_that_was_on_its_way(
    payment: Client, remote: RemoteServices
) -> None:
    assert (await payment.undo("a/payment")).content == {"undone": False}
    assert_problem(await payment.do("a/payment", CHARGE), 409, "undone")
    assert remote.ledger("payment")["effects"] == []


async def test_a_repeated_undo_gives_the_recorded_answer(payment: Client) -> None:
    await payment.do("a/payment", CHARGE)
    first = await payment.undo("a/payment")
    again = await payment.undo("a/payment")
    assert (first.content, again.content) == ({"undone": True}, {"undone": True})
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"


async def test_an_engine_that_makes_up_a_second_key_is_found_out(
    payment: Client, session: aiohttp.ClientSession
) -> None:
    await payment.do("a/payment", CHARGE)
    await payment.do("a/payment/another", CHARGE)
    await payment.do("b/payment", {**CHARGE, "order_id": "b"})
    async with session.get(f"{payment.base}/ledger") as response:
        ledger = await response.json()
    assert (ledger["service"], ledger["doubled"], ledger["calls"]) == ("payment", ["a"], 3)


async def test_a_key_with_letters_beyond_ascii_comes_back_as_it_was_sent(
    payment: Client, remote: RemoteServices
) -> None:
    await payment.do("Bestellung-ä-注文/payment", CHARGE)
    assert remote.ledger("payment")["effects"][0]["key"] == "Bestellung-ä-注文/payment"


async def test_a_call_without_a_key_is_malformed_whether_do_or_undo(payment: Client) -> None:
    assert_problem(await payment.do(None, CHARGE), 400, "idempotency-key-missing")
    assert_problem(await payment.undo(None), 400, "idempotency-key-missing")
    assert_problem(await payment.undo("k" * 256), 400, "malformed")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b"\xff\xfe",
        {**CHARGE, "amount": 440.0},
        {**CHARGE, "amount": "440"},
        {**CHARGE, "amount": "-1.00"},
        {**CHARGE, "currency": "dollars"},
        {**CHARGE, "order_id": ""},
        {name: CHARGE[name] for name in CHARGE if name != "customer_id"},
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=repr,
)
async def test_a_malformed_body_has_no_effect(
    body: Any, payment: Client, remote: RemoteServices
) -> None:
    assert_problem(await payment.do("a/payment", body), 400, "malformed")
    assert remote.ledger("payment")["effects"] == []


async def test_a_large_body_an_unknown_address_and_a_wrong_method_are_problems_too(
    payment: Client, session: aiohttp.ClientSession
) -> None:
    too_large = await payment.do("a/payment", b" " * (512 * 1024 + 1))
    assert_problem(too_large, 413, "content-too-large")
    elsewhere = Client(session, payment.base, "refunds")
    assert_problem(await elsewhere.do("a/payment", CHARGE), 404, "not-found")
    health = Client(session, payment.base, "health")
    wrong_method = await health.do("a/payment", CHARGE)
    assert_problem(wrong_method, 405, "method-not-allowed")
    assert wrong_method.headers["Allow"] == "GET,HEAD"


async def test_a_page_of_another_name_changes_no_faults(
    session: aiohttp.ClientSession, remote: RemoteServices
) -> None:
    headers = {"Host": "evil.example"}  # DNS rebinding
    url = f"{remote.urls['payment']}/faults"
    async with session.put(url, json={"transient": 1}, headers=headers) as answer:
        assert answer.status == 421
    assert remote.faults("payment") == Faults()


async def test_a_full_ledger_answers_507_and_still_undoes(session: aiohttp.ClientSession) -> None:
    async with RemoteServices(ledger_max=1) as remote:
        payment = Client(session, remote.urls["payment"], "charges")
        assert (await payment.do("a/payment", CHARGE)).status == 201
        assert_problem(await payment.do("b/payment", CHARGE), 507, "ledger-full")
        assert_problem(await payment.undo("b/payment"), 507, "ledger-full")
        assert (await payment.undo("a/payment")).content == {"undone": True}


async def test_one_connection_too_many_is_turned_away_until_another_closes() -> None:
    async with RemoteServices(connections_max=1) as remote:
        host, port = remote.urls["stock"].removeprefix("http://").split(":")
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

        async def ask() -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(get)
            try:
                return await reader.read(15), writer
            except ConnectionError:
                return b"", writer

        first, first_writer = await ask()
        second, second_writer = await ask()
        assert (first, second) == (b"HTTP/1.1 200 OK", b"")
        for writer in (first_writer, second_writer):
            writer.close()
        third = b""
        async with asyncio.timeout(120):
            while not third:
                third, writer = await ask()
                writer.close()
        assert third == b"HTTP/1.1 200 OK"


def two_ports_in_a_row() -> tuple[socket.socket, int]:
    """Return a socket that listens, and the free port just below its own."""
    for _ in range(100):
        upper = socket.create_server(("127.0.0.1", 0))
        below = upper.getsockname()[1] - 1
        try:
            socket.create_server(("127.0.0.1", below)).close()
        except OSError:
            upper.close()
        else:
            return upper, below
    raise AssertionError("no two free ports in a row were found in 100 attempts")


async def test_when_one_port_is_taken_none_is_left_listening() -> None:
    upper, below = two_ports_in_a_row()
    with upper:
        with pytest.raises(OSError, match=str(below + 1)):
            await RemoteServices(port_base=below).start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", below)


async def test_ports_in_a_row_can_be_asked_for() -> None:
    for attempt in range(20):
        upper, first = two_ports_in_a_row()
        upper.close()
        try:
            async with RemoteServices(port_base=first) as remote:
                assert remote.urls["stock"] == f"http://127.0.0.1:{first}"
                assert remote.urls["payment"] == f"http://127.0.0.1:{first + 1}"
                assert remote.urls["shipping"] == f"http://127.0.0.1:{first + 2}"
                return
        except OSError:  # somebody else took one of them first
            assert attempt < 19


async def test_health_names_the_service(
    session: aiohttp.ClientSession, remote: RemoteServices
) -> None:
    for service, base in remote.urls.items():
        async with session.get(f"{base}/health") as response:
            assert await response.json() == {"service": service, "healthy": True}


async def test_an_unknown_service_is_refused_by_name(remote: RemoteServices) -> None:
    with pytest.raises(KeyError, match="use one of stock, payment, shipping"):
        remote.ledger("catering")
    with pytest.raises(KeyError, match="catering"):
        RemoteServices({"catering": Faults()})
