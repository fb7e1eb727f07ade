"""The sample's remote services over HTTP: idempotency, undo, faults, and the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from samples.remote_services import Faults, RemoteServices
from samples.services.faults import FaultKind, Verb
from samples.services.ledger import EffectView
from tests.forked import said_by

CHARGE: dict[str, Any] = {
    "order_id": "a",
    "customer_id": "VINET",
    "amount": "440.00",
    "currency": "USD",
}
RESERVATION = {"order_id": "a", "lines": [{"product_id": 11, "quantity": 12}]}
SHIPMENT = {"order_id": "a", "ship_to": {"city": "Reims"}, "reservation_id": "R-000001"}
MAIL = {"order_id": "a", "customer_id": "VINET", "charge_id": "C-000001", "amount": "440.00"}
DELIVERY = {"order_id": "a", "tracking": "NWTRACK000001"}
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {
    "stock": ("reservations", RESERVATION, {"reservation_id": "R-000001"}, "out-of-stock"),
    "payment": ("charges", CHARGE, {"charge_id": "C-000001"}, "card-declined"),
    "shipping": (
        "shipments",
        SHIPMENT,
        {"shipment_id": "S-000001", "tracking": "NWTRACK000001"},
        "address-refused",
    ),
    "mail": ("mails", MAIL, {"mail_id": "M-000001"}, "no-mailbox"),
    "carrier": (
        "deliveries",
        DELIVERY,
        {"delivery_id": "D-000001", "state": "delivered"},
        "undeliverable",
    ),
}
"""For each service: its collection, a body, the answer, and the problem of a refusal."""
ONCE = Faults(transient=1.0, max_transient_attempts=1)
SLOW_ONCE = Faults(slow=1.0, slow_seconds=60.0, max_transient_attempts=1)
RESET = 0
"""In place of a status: the connection was reset."""


@dataclass
class Answer:
    status: int
    content: Any = None
    replayed: bool = False
    retry_after: str | None = None

    @property
    def problem(self) -> tuple[int, str]:
        """The status, and the name of the problem."""
        assert self.content["title"]
        assert self.content["detail"]
        assert self.content["status"] == self.status
        return self.status, self.content["type"].removeprefix("urn:sample:")


@dataclass
class Client:
    """Calls one service as an agent would. It opens a connection for each call."""

    remote: RemoteServices
    service: str = "payment"

    async def do(self, key: str | None = "a/step", body: Any = None) -> Answer:
        body = CALLS[self.service][1] if body is None else body
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.call("POST", key, raw)

    async def undo(self, key: str | None = "a/step") -> Answer:
        return await self.call("DELETE", key)

    async def call(
        self, method: str, key: str | None, raw: bytes | None = None, path: str | None = None
    ) -> Answer:
        headers = {} if key is None else {"Idempotency-Key": key}
        url = f"{self.remote.urls[self.service]}/{path or CALLS[self.service][0]}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(method, url, data=raw, headers=headers) as response,
            ):
                return Answer(
                    response.status,
                    await response.json(content_type=None),
                    "Idempotent-Replayed" in response.headers,
                    response.headers.get("Retry-After"),
                )
        except aiohttp.ClientConnectionError:
            return Answer(RESET)

    @property
    def effects(self) -> list[EffectView]:
        return self.remote.ledger(self.service)["effects"]


@pytest.fixture
async def remote() -> AsyncIterator[RemoteServices]:
    async with RemoteServices() as remote:
        yield remote


@pytest.mark.parametrize("service", CALLS)
async def test_each_service_acts_once_replays_undoes_and_refuses(
    service: str, remote: RemoteServices
) -> None:
    client = Client(remote, service)
    _, body, expected, refusal = CALLS[service]
    first, again = await client.do(), await client.do()
    assert (first.status, first.content, first.replayed) == (201, expected, False)
    assert (again.status, again.content, again.replayed) == (201, expected, True)
    assert (await client.undo()).content == {"undone": True}
    assert await client.undo() == Answer(200, {"undone": True}, replayed=True)
    assert (await client.do()).problem == (409, "undone")
    (effect,) = client.effects
    assert (effect["order_id"], effect["key"], effect["replays"]) == ("a", "a/step", 1)
    assert effect["undone_at"] is not None
    remote.set_faults(Faults(permanent=1.0), service)
    for _ in range(3):
        assert (await client.do("b", body | {"order_id": "b"})).problem == (422, refusal)
    repaired = await client.call("PUT", None, b'{"permanent": 0}', "faults")
    assert (repaired.status, repaired.content["permanent"]) == (200, 0)
    assert (await client.do("b", body | {"order_id": "b"})).status == 201


async def test_an_undo_that_comes_first_refuses_the_do_that_was_on_its_way(
    remote: RemoteServices,
) -> None:
    payment = Client(remote)
    assert (await payment.undo()).content == {"undone": False}
    assert (await payment.do()).problem == (409, "undone")
    assert payment.effects == []
    remote.set_faults(Faults(undo_permanent=1.0))
    await payment.do("b")
    assert (await payment.undo("b")).problem == (422, "undo-refused")
    assert payment.effects[0]["undone_at"] is None


async def test_what_is_malformed_too_large_or_not_there_is_a_problem_and_has_no_effect(
    remote: RemoteServices,
) -> None:
    payment = Client(remote)
    assert (await payment.do(None)).problem == (400, "idempotency-key-missing")
    assert (await payment.undo("k" * 256)).problem == (400, "malformed")
    for body in (
        *(b"[]", b"not JSON", b"\xff\xfe", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        *(CHARGE | {"amount": amount} for amount in (440.0, "440", "-1.00")),
        *(CHARGE | {"currency": "dollars"}, CHARGE | {"order_id": ""}, {"order_id": "a"}),
    ):
        assert (await payment.do(body=body)).problem == (400, "malformed"), body
    assert (await payment.do(body=b" " * (512 * 1024 + 1))).problem == (413, "content-too-large")
    assert (await payment.call("POST", "a", b"{}", "refunds")).problem == (404, "not-found")
    assert (await payment.call("POST", "a", b"{}", "health")).problem == (405, "method-not-allowed")
    for content in (b"{", b"[]", b'{"transient":2}', b'{"transcient":0}', b'{"seed":null}'):
        answer = await payment.call("PUT", None, content, "faults")
        assert answer.problem == (400, "malformed"), content
    headers = {"Host": "evil.example"}  # DNS rebinding
    url = f"{remote.urls['payment']}/faults"
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, json={"transient": 1}, headers=headers) as response,
    ):
        assert response.status == 421
    assert payment.effects == []
    assert remote.faults("payment") == Faults()


async def test_other_content_under_a_key_is_refused_and_a_second_key_is_found_out(
    remote: RemoteServices,
) -> None:
    payment = Client(remote)
    await payment.do("Bestellung-ä-注文")
    answer = await payment.do("Bestellung-ä-注文", CHARGE | {"amount": "441.00"})
    assert answer.problem == (422, "idempotency-key-reused")
    assert [effect["key"] for effect in payment.effects] == ["Bestellung-ä-注文"]
    await payment.do("made-up")
    assert remote.ledger("payment")["doubled"] == ["a"]


async def test_a_full_ledger_answers_507_and_still_undoes() -> None:
    async with RemoteServices(ledger_max=1) as remote:
        payment = Client(remote)
        assert (await payment.do("a")).status == 201
        assert (await payment.do("b")).problem == (507, "ledger-full")
        assert (await payment.undo("b")).problem == (507, "ledger-full")
        assert (await payment.undo("a")).content == {"undone": True}


# --- faults ---


def key_meeting(kind: FaultKind, faults: Faults, verb: Verb = Verb.DO) -> str:
    """Return a key whose first attempt fails this way, and no other attempt."""
    keys = (f"a/{number}" for number in range(1000))
    return next(key for key in keys if faults.of_attempt("payment", verb, key, 1) is kind)


@pytest.mark.parametrize(
    ("kind", "status", "effects"),
    [
        (FaultKind.RESET, RESET, 0),
        (FaultKind.ERROR, 500, 0),
        (FaultKind.UNAVAILABLE, 503, 0),
        (FaultKind.TOO_MANY, 429, 0),
        (FaultKind.RESET_AFTER_EFFECT, RESET, 1),
        (FaultKind.ERROR_AFTER_EFFECT, 500, 1),
    ],
)
async def test_a_failed_call_happens_once_when_it_is_repeated(
    kind: FaultKind, status: int, effects: int
) -> None:
    faults = replace(ONCE, retry_after_seconds=7)
    verbs = (Verb.DO, Verb.UNDO) if status else (Verb.DO,)  # aiohttp itself repeats a DELETE
    for verb in verbs:
        key = key_meeting(kind, faults, verb)
        async with RemoteServices() as remote:
            payment = Client(remote)
            act = payment.do if verb is Verb.DO else payment.undo
            if verb is Verb.UNDO:
                await payment.do(key)
            remote.set_faults(faults)
            failed = await act(key)
            undo = verb is Verb.UNDO
            moments = [effect["undone_at"] if undo else effect["at"] for effect in payment.effects]
            assert failed.status == status
            assert failed.retry_after == ("7" if kind is FaultKind.TOO_MANY else None)
            assert sum(at is not None for at in moments) == effects
            again = await act(key)
            assert (again.status, again.replayed) == (201 if verb is Verb.DO else 200, effects == 1)
            assert len(payment.effects) == 1
            assert remote.ledger("payment")["faults"][kind] == 1


class Gate:
    """``asyncio`` for a service: its sleeps last until the test lets them go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.sleeps = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def monotonic(self) -> float:
        return 600.0 if self.go.is_set() else 0.0

    async def sleep(self, _seconds: float) -> None:
        self.sleeps.set()
        await self.go.wait()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    for name in ("service.asyncio", "carrier.asyncio", "carrier.time"):
        monkeypatch.setattr(f"samples.services.{name}", gate)
    return gate


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # what a service did, it tells by its ledger only
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("kind", "effects"), [(FaultKind.SLOW_BEFORE_EFFECT, 0), (FaultKind.SLOW_AFTER_EFFECT, 1)]
)
async def test_a_slow_call_acts_even_when_its_client_has_gone_and_is_in_progress_meanwhile(
    kind: FaultKind, effects: int, gate: Gate
) -> None:
    key = key_meeting(kind, SLOW_ONCE)
    async with RemoteServices(SLOW_ONCE) as remote:
        payment = Client(remote)
        slow = asyncio.create_task(payment.do(key))
        async with asyncio.timeout(120):
            await gate.sleeps.wait()
        assert len(payment.effects) == effects
        meanwhile = await payment.do(key)
        assert meanwhile.problem == (409, "in-progress")
        assert meanwhile.retry_after == "1"
        slow.cancel()
        await asyncio.wait([slow])
        gate.go.set()
        await until(lambda: payment.effects)
        async with asyncio.timeout(120):
            while (again := await payment.do(key)).status != 201:
                pass
    assert again.replayed


async def test_a_late_call_that_lands_after_the_undo_does_nothing(gate: Gate) -> None:
    key = key_meeting(FaultKind.SLOW_BEFORE_EFFECT, SLOW_ONCE)
    async with RemoteServices(SLOW_ONCE) as remote:
        payment = Client(remote)
        late = asyncio.create_task(payment.do(key))
        async with asyncio.timeout(120):
            await gate.sleeps.wait()
        remote.set_faults(Faults())
        assert (await payment.undo(key)).content == {"undone": False}
        gate.go.set()
        assert (await late).problem == (409, "undone")
        assert payment.effects == []


async def retried(act: Callable[[str], Any], key: str) -> int:
    """Return the first final status of a client that retries all that is transient."""
    for _ in range(20):
        status = (await act(key)).status
        if RESET < status < 429:
            return int(status)
    raise AssertionError("a bound on transient attempts was set, yet 20 attempts failed")


async def drive(faults: Faults) -> tuple[list[int], Any]:
    """Charge 60 orders, undo every third; return the answers and the ledger without times."""
    async with RemoteServices(faults) as remote:
        payment = Client(remote)
        ids = [f"NW-{number}" for number in range(60)]

        async def charge(key: str) -> Answer:
            return await payment.do(key, CHARGE | {"order_id": key})

        answers = [await retried(charge, key) for key in ids]
        answers += [await retried(payment.undo, key) for key in ids[::3]]
        ledger = remote.ledger("payment")
    effects = [(e["order_id"], e["undone_at"] is not None, e["replays"]) for e in ledger["effects"]]
    return answers, (effects, ledger["doubled"], ledger["calls"], ledger["faults"])


async def test_a_client_that_retries_gets_one_effect_and_a_seed_repeats_its_faults() -> None:
    faults = Faults(
        seed=5, transient=0.5, slow=0.1, slow_seconds=0.01, permanent=0.1, max_transient_attempts=6
    )
    answers, (effects, doubled, calls, counts) = await drive(faults)
    charged = [f"NW-{n}" for n in range(60) if answers[n] == 201]
    assert set(answers[:60]) == {201, 422}
    assert set(answers[60:]) == {200}
    assert [order_id for order_id, _, _ in effects] == charged
    assert all(undone == (int(order_id[3:]) % 3 == 0) for order_id, undone, _ in effects)
    assert doubled == []
    assert all(count for kind, count in counts.items() if kind != FaultKind.UNDO_REFUSED)
    assert await drive(faults) == (answers, (effects, doubled, calls, counts))
    other_answers, _ = await drive(replace(faults, seed=6))
    assert other_answers != answers


# --- the carrier ---


class Listener:
    """A receiver of callbacks that answers as the test says."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.bodies: list[Any] = []

    async def __aenter__(self) -> str:
        app = web.Application()
        app.add_routes([web.post("/told", self._take)])
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/told"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.Response(status=self.statuses.pop(0))


@pytest.fixture
async def carrier() -> AsyncIterator[Client]:
    async with RemoteServices({"carrier": Faults(delivery=0.6)}) as remote:
        yield Client(remote, "carrier")


async def test_a_parcel_is_on_its_way_until_it_is_delivered_once(
    carrier: Client, gate: Gate
) -> None:
    answer = await carrier.do()
    assert (answer.status, answer.content["state"]) == (202, "on-its-way")
    assert answer.content["check_after"] >= 0.5
    assert carrier.effects == []
    gate.go.set()
    for _ in range(2):
        answer = await carrier.do()
        assert (answer.status, answer.content["state"]) == (201, "delivered")
    assert len(carrier.effects) == 1


async def test_it_calls_back_until_it_is_answered_and_the_address_is_not_part_of_the_parcel(
    carrier: Client, gate: Gate
) -> None:
    listener = Listener(503, 202)
    async with listener as address:
        for answer_to in (address, address + "?again"):
            assert (await carrier.do(body=DELIVERY | {"answer_to": answer_to})).status == 202
        gate.go.set()
        await until(lambda: len(listener.bodies) == 2)
    result = {"delivery_id": "D-000001", "state": "delivered"}
    assert listener.bodies == [{"outcome": "done", "result": result}] * 2
    assert len(carrier.effects) == 1


async def test_if_its_callback_is_too_late_it_takes_the_parcel_back(
    carrier: Client, gate: Gate
) -> None:
    listener = Listener(410)
    gate.go.set()
    async with listener as address:
        await carrier.do(body=DELIVERY | {"answer_to": address})
        await until(lambda: listener.bodies)
        await until(lambda: carrier.effects[0]["undone_at"])


# --- the process ---


async def test_it_prints_one_ready_line_and_ends_by_a_signal_even_during_a_slow_call() -> None:
    options = ("--slow", "1", "--transient", "0", "--slow-seconds", "60", "--seed", "9")
    words = (sys.executable, "-m", "samples.remote_services", *options)
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120), aiohttp.ClientSession() as session:
            line = json.loads(await process.stdout.readline())
            assert set(line) == {*CALLS, "pid"}
            assert line["pid"] == process.pid
            slow = asyncio.create_task(
                session.post(
                    f"{line['payment']}/charges", json=CHARGE, headers={"Idempotency-Key": "a"}
                )
            )
            calls = 0
            async with asyncio.timeout(120):
                while not calls:
                    async with session.get(f"{line['payment']}/ledger") as response:
                        calls = (await response.json())["calls"]
            async with session.get(f"{line['payment']}/faults") as response:
                faults = await response.json()
            assert (faults["seed"], faults["slow"], faults["slow_seconds"]) == (9, 1.0, 60.0)
            process.send_signal(signal.SIGTERM)
            assert await process.communicate() == (b"", b"")
            assert process.returncode == 0
            with pytest.raises(aiohttp.ClientConnectionError):
                await slow
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def test_a_port_that_is_taken_and_unusable_options_are_refused_before_anything_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for options, sentence in (
            (("--port-base", port), f"port {port} is held by pid {os.getpid()}: "),
            (("--transient", "1.5"), "transient is 1.5: give a number from 0 to 1"),
            (("--port-base", "65535"), "--port-base 65535: give one from 1 to 65531"),
            (("--ledger-max", "0"), "--ledger-max 0: give at least 1"),
        ):
            output = said_by("samples.remote_services", options, os.environ)
            assert (output.code, output.out) == (2, "")
            assert sentence in output.err
