"""The remote services over HTTP when they fail: what a client sees, and what was done."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from samples.remote_services import Faults, RemoteServices
from samples.services.faults import FaultKind, Verb
from tests.integration.sas_command import Gate

CHARGE = {"order_id": "a", "customer_id": "VINET", "amount": "440.00", "currency": "USD"}
ONCE = Faults(transient=1.0, max_transient_attempts=1)
SLOW_ONCE = Faults(slow=1.0, slow_seconds=0.3, max_transient_attempts=1)
AFTER_EFFECT = [FaultKind.RESET_AFTER_EFFECT, FaultKind.ERROR_AFTER_EFFECT]
BEFORE_EFFECT = [FaultKind.RESET, FaultKind.ERROR, FaultKind.UNAVAILABLE, FaultKind.TOO_MANY]


def key_meeting(kind: FaultKind, faults: Faults, verb: Verb = Verb.DO) -> str:
    """Return a key whose first attempt fails this way, and no other attempt."""
    keys = (f"a/{number}" for number in range(1000))
    return next(key for key in keys if faults.of_attempt("payment", verb, key, 1) is kind)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    # A new connection for each call: aiohttp would repeat a DELETE by itself on a reused one.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def call(
    session: aiohttp.ClientSession, method: str, url: str, key: str, body: Any = None
) -> tuple[int, Any, dict[str, str]]:
    headers = {"Idempotency-Key": key}
    async with session.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json(content_type=None), dict(response.headers)


async def status_or_reset(session: aiohttp.ClientSession, method: str, url: str, key: str) -> int:
    """Return the status of a call, 0 for a connection that was reset."""
    try:
        status, _, _ = await call(session, method, url=url, key=key, body=CHARGE)
    except aiohttp.ClientConnectionError:
        return 0
    return status


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Slow calls wait until the test lets them go on."""
    gate = Gate()
    monkeypatch.setattr("samples.services.service.asyncio", gate)
    return gate


@pytest.mark.parametrize("kind", AFTER_EFFECT)
async def test_a_lost_answer_is_given_again_without_a_second_effect(
    kind: FaultKind, session: aiohttp.ClientSession
) -> None:
    key = key_meeting(kind, ONCE)
    async with RemoteServices(ONCE) as remote:
        url = f"{remote.urls['payment']}/charges"
        lost = await status_or_reset(session, "POST", url, key)
        after_the_first = remote.ledger("payment")
        status, content, headers = await call(session, "POST", url=url, key=key, body=CHARGE)
        after_the_second = remote.ledger("payment")
    assert lost == (0 if kind is FaultKind.RESET_AFTER_EFFECT else 500)
    assert [effect["number"] for effect in after_the_first["effects"]] == ["C-000001"]
    assert (status, content) == (201, {"charge_id": "C-000001"})
    assert headers["Idempotent-Replayed"] == "true"
    assert [effect["replays"] for effect in after_the_second["effects"]] == [1]
    assert after_the_second["faults"][kind] == 1


@pytest.mark.parametrize("kind", BEFORE_EFFECT)
async def test_a_call_that_fails_before_the_effect_did_nothing_and_may_be_repeated(
    kind: FaultKind, session: aiohttp.ClientSession
) -> None:
    key = key_meeting(kind, ONCE)
    async with RemoteServices(ONCE) as remote:
        url = f"{remote.urls['payment']}/charges"
        failed = await status_or_reset(session, "POST", url, key)
        effects = remote.ledger("payment")["effects"]
        status, _, headers = await call(session, "POST", url=url, key=key, body=CHARGE)
    expected = {FaultKind.RESET: 0, FaultKind.ERROR: 500, FaultKind.UNAVAILABLE: 503}
    assert failed == expected.get(kind, 429)
    assert effects == []
    assert status == 201
    assert "Idempotent-Replayed" not in headers


async def test_a_lost_undo_is_answered_as_before_when_asked_again(
    session: aiohttp.ClientSession,
) -> None:
    key = key_meeting(FaultKind.ERROR_AFTER_EFFECT, ONCE, Verb.UNDO)
    async with RemoteServices() as remote:
        url = f"{remote.urls['payment']}/charges"
        await call(session, "POST", url=url, key=key, body=CHARGE)
        remote.set_faults(ONCE)
        lost, problem, _ = await call(session, "DELETE", url, key)
        status, content, headers = await call(session, "DELETE", url, key)
    assert (lost, problem["type"]) == (500, "urn:sample:internal-error")
    assert (status, content, headers["Idempotent-Replayed"]) == (200, {"undone": True}, "true")


async def test_too_many_requests_says_when_to_come_back(session: aiohttp.ClientSession) -> None:
    faults = replace(ONCE, retry_after_seconds=7)
    async with RemoteServices(faults) as remote:
        status, problem, headers = await call(
            session,
            "POST",
            url=f"{remote.urls['payment']}/charges",
            key=key_meeting(FaultKind.TOO_MANY, faults),
            body=CHARGE,
        )
    assert (status, problem["type"], headers["Retry-After"]) == (
        429,
        "urn:sample:too-many-requests",
        "7",
    )


async def test_a_reset_is_a_tcp_reset_and_not_an_orderly_end() -> None:
    key = key_meeting(FaultKind.RESET, ONCE)
    async with RemoteServices(ONCE) as remote:
        host, port = remote.urls["payment"].removeprefix("http://").split(":")
        body = json.dumps(CHARGE)
        head = f"POST /charges HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

        def ask() -> bytes:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(request)
                return connection.recv(1)

        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(ask)


@pytest.mark.parametrize(
    ("service", "collection", "body", "name"),
    [
        (
            "stock",
            "reservations",
            {"order_id": "a", "lines": [{"product_id": 1, "quantity": 1}]},
            "out-of-stock",
        ),
        ("payment", "charges", CHARGE, "card-declined"),
        (
            "shipping",
            "shipments",
            {"order_id": "a", "ship_to": {"city": "Graz"}, "reservation_id": "R-1"},
            "address-refused",
        ),
    ],
)
async def test_a_permanent_refusal_stands_until_an_operator_repairs_the_service(
    service: str, collection: str, body: Any, name: str, session: aiohttp.ClientSession
) -> None:
    async with RemoteServices(Faults(permanent=1.0)) as remote:
        url = f"{remote.urls[service]}/{collection}"
        refusals = [await call(session, "POST", url=url, key="a/step", body=body) for _ in range(3)]
        async with session.put(f"{remote.urls[service]}/faults", json={"permanent": 0}) as put:
            changed = await put.json()
        status, _, _ = await call(session, "POST", url=url, key="a/step", body=body)
        others = {other: remote.faults(other).permanent for other in remote.urls}
    assert [(s, problem["type"]) for s, problem, _ in refusals] == [(422, f"urn:sample:{name}")] * 3
    assert (put.status, changed["permanent"], changed["seed"]) == (200, 0, 42)
    assert status == 201
    assert others == {**dict.fromkeys(others, 1.0), service: 0}


async def test_a_refused_undo_leaves_the_effect_in_force(session: aiohttp.ClientSession) -> None:
    async with RemoteServices(Faults(undo_permanent=1.0)) as remote:
        url = f"{remote.urls['payment']}/charges"
        await call(session, "POST", url=url, key="a/payment", body=CHARGE)
        status, problem, _ = await call(session, "DELETE", url, "a/payment")
        (effect,) = remote.ledger("payment")["effects"]
    assert (status, problem["type"]) == (422, "urn:sample:undo-refused")
    assert effect["undone_at"] is None


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"transient":2}', b'{"transcient":0}', b'{"seed":null}']
)
async def test_unusable_faults_change_nothing(
    content: bytes, session: aiohttp.ClientSession
) -> None:
    async with RemoteServices(Faults(transient=0.25)) as remote:
        async with session.put(f"{remote.urls['stock']}/faults", data=content) as response:
            problem = await response.json(content_type=None)
        async with session.get(f"{remote.urls['stock']}/faults") as now:
            transient = (await now.json())["transient"]
    assert (response.status, problem["type"]) == (400, "urn:sample:malformed")
    assert problem["detail"].startswith("nothing changed")
    assert transient == 0.25


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # what a service did, it tells by its ledger only
            await asyncio.sleep(0.005)


async def wait_for_fault(remote: RemoteServices, kind: FaultKind) -> None:
    await eventually(lambda: remote.ledger("payment")["faults"][kind])


@pytest.mark.parametrize(
    ("kind", "effects_while_waiting"),
    [(FaultKind.SLOW_BEFORE_EFFECT, 0), (FaultKind.SLOW_AFTER_EFFECT, 1)],
)
async def test_a_slow_call_acts_before_or_after_its_wait_and_answers_late(
    kind: FaultKind, effects_while_waiting: int, session: aiohttp.ClientSession
) -> None:
    key = key_meeting(kind, SLOW_ONCE)
    loop = asyncio.get_running_loop()
    async with RemoteServices(SLOW_ONCE) as remote:
        began = loop.time()
        slow = asyncio.create_task(
            call(session, "POST", url=f"{remote.urls['payment']}/charges", key=key, body=CHARGE)
        )
        await wait_for_fault(remote, kind)
        effects = len(remote.ledger("payment")["effects"])
        status, _, _ = await slow
        took = loop.time() - began
        at_the_end = len(remote.ledger("payment")["effects"])
    assert effects == effects_while_waiting
    assert (status, at_the_end) == (201, 1)
    assert took >= SLOW_ONCE.slow_seconds * 0.9


async def test_a_key_being_worked_on_is_answered_in_progress_and_replayed_afterwards(
    session: aiohttp.ClientSession, gate: Gate
) -> None:
    key = key_meeting(FaultKind.SLOW_BEFORE_EFFECT, SLOW_ONCE)
    async with RemoteServices(SLOW_ONCE) as remote:
        url = f"{remote.urls['payment']}/charges"
        first = asyncio.create_task(call(session, "POST", url=url, key=key, body=CHARGE))
        await wait_for_fault(remote, FaultKind.SLOW_BEFORE_EFFECT)
        status, problem, headers = await call(session, "POST", url=url, key=key, body=CHARGE)
        gate.go.set()
        await first
        again, _, replay_headers = await call(session, "POST", url=url, key=key, body=CHARGE)
        effects = remote.ledger("payment")["effects"]
    assert (status, problem["type"]) == (409, "urn:sample:in-progress")
    assert headers["Retry-After"] == "1"
    assert (again, replay_headers["Idempotent-Replayed"]) == (201, "true")
    assert len(effects) == 1


async def test_a_late_call_that_lands_after_the_undo_does_nothing(
    session: aiohttp.ClientSession, gate: Gate
) -> None:
    key = key_meeting(FaultKind.SLOW_BEFORE_EFFECT, SLOW_ONCE)
    async with RemoteServices(SLOW_ONCE) as remote:
        url = f"{remote.urls['payment']}/charges"
        late = asyncio.create_task(call(session, "POST", url=url, key=key, body=CHARGE))
        await wait_for_fault(remote, FaultKind.SLOW_BEFORE_EFFECT)
        remote.set_faults(Faults())
        undo_status, undone, _ = await call(session, "DELETE", url, key)
        gate.go.set()
        late_status, problem, _ = await late
        effects = remote.ledger("payment")["effects"]
    assert (undo_status, undone) == (200, {"undone": False})
    assert (late_status, problem["type"]) == (409, "urn:sample:undone")
    assert effects == []


async def test_a_slow_call_acts_even_when_its_client_has_gone(
    session: aiohttp.ClientSession, gate: Gate
) -> None:
    key = key_meeting(FaultKind.SLOW_BEFORE_EFFECT, SLOW_ONCE)
    async with RemoteServices(SLOW_ONCE) as remote:
        url = f"{remote.urls['payment']}/charges"
        abandoned_call = asyncio.create_task(call(session, "POST", url=url, key=key, body=CHARGE))
        await wait_for_fault(remote, FaultKind.SLOW_BEFORE_EFFECT)
        abandoned_call.cancel()
        await asyncio.wait([abandoned_call])
        assert remote.ledger("payment")["effects"] == []
        gate.go.set()
        await eventually(lambda: remote.ledger("payment")["effects"])
        status, _, headers = await call(session, "POST", url=url, key=key, body=CHARGE)
    assert (status, headers["Idempotent-Replayed"]) == (201, "true")


async def retried(session: aiohttp.ClientSession, method: str, url: str, order_id: str) -> int:
    """Return the first final answer of a client that retries all that is transient."""
    for _ in range(20):
        try:
            status, _, _ = await call(
                session,
                method,
                url=url,
                key=f"{order_id}/payment",
                body={**CHARGE, "order_id": order_id},
            )
        except aiohttp.ClientConnectionError:
            continue
        if status < 429:
            return status
    raise AssertionError("a bound on transient attempts was set, yet 20 attempts failed")


async def drive(session: aiohttp.ClientSession, faults: Faults) -> tuple[list[int], Any]:
    """Charge 60 orders, undo every third; return the answers and the ledger without times."""
    async with RemoteServices(faults) as remote:
        url = f"{remote.urls['payment']}/charges"
        ids = [f"NW-{number}" for number in range(60)]
        answers = [await retried(session, "POST", url, order_id) for order_id in ids]
        answers += [await retried(session, "DELETE", url, order_id) for order_id in ids[::3]]
        ledger = remote.ledger("payment")
    effects = [(e["order_id"], e["undone_at"] is not None, e["replays"]) for e in ledger["effects"]]
    return answers, (effects, ledger["doubled"], ledger["calls"], ledger["faults"])


async def test_a_client_that_retries_gets_one_effect_whatever_fails_and_a_seed_repeats_its_faults(
    session: aiohttp.ClientSession,
) -> None:
    faults = Faults(
        seed=5, transient=0.5, slow=0.1, slow_seconds=0.01, permanent=0.1, max_transient_attempts=6
    )
    answers, (effects, doubled, calls, counts) = await drive(session, faults)
    charged = [f"NW-{n}" for n in range(60) if answers[n] == 201]
    assert set(answers[:60]) == {201, 422}
    assert set(answers[60:]) == {200}
    assert [order_id for order_id, _, _ in effects] == charged
    assert all(undone == (int(order_id[3:]) % 3 == 0) for order_id, undone, _ in effects)
    assert doubled == []
    assert calls > 80
    assert all(count for kind, count in counts.items() if kind != FaultKind.UNDO_REFUSED)
    assert await drive(session, faults) == (answers, (effects, doubled, calls, counts))
    other_answers, _ = await drive(session, replace(faults, seed=6))
    assert other_answers != answers


async def test_every_call_takes_the_latency_that_was_asked_for() -> None:
    async with RemoteServices(Faults(latency=0.2)) as remote, aiohttp.ClientSession() as client:
        begun = asyncio.get_running_loop().time()
        async with client.delete(
            f"{remote.urls['stock']}/reservations", headers={"Idempotency-Key": "k"}
        ) as answer:
            assert answer.status == 200
        assert asyncio.get_running_loop().time() - begun >= 0.2
