"""Steps of more than their time allowed, and callbacks, through the real host and queues."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import pytest_asyncio

from devstack.tests.sdk_kit import SDK
from samples.remote_services import Faults
from sas.domain.content import PayloadRef
from sas.domain.order import UndoStatus
from sas.features.callbacks.codec import CallbackKeys, Claims
from sas.features.claim_check import ClaimCheck
from tests.functions_rig import EVERY_SECOND, Rig, rig, until
from tests.integration.sas_command import sas
from tests.ports import free_port

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *SDK]
KEYS = CallbackKeys(("OLTmUuRNp/I3DZ4mDicTZVCko6bQf1wMMy+LEiQIP9I=",))
DELIVERED = "order-delivered"
TIME_ALLOWED = timedelta(seconds=10)
"""The time allowed in one test. Its other steps need less than a second on an idle machine."""
WHOLE = sorted(["received", "completed"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig(SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND) as system:
        yield system


def token(order_id: str, submission: str = "", seconds: float = 600.0) -> str:
    """Return a token of the step "deliver", as the agent is given it."""
    claims = Claims(
        order_id=order_id,
        step=4,
        direction="do",
        generation=0,
        expires=int((datetime.now(UTC) + timedelta(seconds=seconds)).timestamp()),
        submission=submission,
    )
    return KEYS.issue(claims)


async def post(address: str, token: str | None = None, **body: object) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(address, json={"outcome": "done"} | body, headers=headers) as answer,
    ):
        return answer.status, (await answer.json())["code"]


async def test_a_delivery_longer_than_its_time_allowed_is_looked_at_until_it_is_there(
    system: Rig,
) -> None:
    system.remote.set_faults(Faults(delivery=600.0, check_after=1.0), "carrier")

    async def longer_than_allowed() -> bool:
        entries = await system.store.journal("L-1")
        looks = [entry.at for entry in entries if entry.what == "progress"]
        return len(looks) > 1 and looks[-1] - looks[0] > TIME_ALLOWED

    allowed = f"{TIME_ALLOWED.total_seconds():g}"
    async with system.host(TESTS_TIME_ALLOWED_SECONDS=allowed):
        await system.submit("L-1", workflow=DELIVERED)
        await until(longer_than_allowed, "the delivery under way longer than its time allowed")
        system.remote.set_faults(Faults(), "carrier")
        await system.ends("L-1", "Processed")
        await system.quiet()
    order = await system.order("L-1")
    assert [(step.epoch, step.failure_count) for step in order.steps] == [(1, 0)] * 5
    words = await system.words("L-1")
    assert words.count("progress") >= 2
    assert "step reset" not in words
    assert sorted(await system.kinds("L-1")) == WHOLE
    assert system.remote.counts("carrier")[0] >= 4
    assert len(system.remote.ledger("carrier")["effects"]) == 1
    system.nothing_lost()


async def test_a_carrier_calls_back_by_http_and_a_caller_without_a_token_is_refused(
    system: Rig,
) -> None:
    system.remote.set_faults(Faults(delivery=4.0), "carrier")
    port = free_port()
    address = f"http://127.0.0.1:{port}/api/callbacks"
    settings = {
        "SAS_CALLBACK_KEY": KEYS.keys[0],
        "SAS_CALLBACK_URL": address,
        "TESTS_CARRIER_TELLS_SECONDS": "300",
    }
    system.http_port = port
    async with system.host(**settings):
        await system.submit("H-1", workflow=DELIVERED)
        assert await post(address) == (401, "forged-token")
        assert await post(address, token("H-1") + "x") == (401, "forged-token")
        assert await post(address, token("H-1", seconds=-1)) == (410, "expired")
        assert await post(address, token("H-nobody")) == (404, "unknown-order")
        assert await post(address, token("H-1"), extra=1) == (400, "invalid")
        await system.ends("H-1", "Processed")
        order_token = token("H-1", (await system.order("H-1")).details.submission)
        assert await post(f"{address}/{order_token}") == (200, "already")
        await system.quiet()
    order = await system.order("H-1")
    assert json.loads(str(order.steps[4].result))["state"] == "delivered"
    assert [(step.epoch, step.failure_count) for step in order.steps] == [(1, 0)] * 5
    journal = await system.store.journal("H-1")
    assert [entry.what for entry in journal if entry.by == "callback"] == ["step processed"]
    assert sorted(await system.kinds("H-1")) == WHOLE
    assert await system.rejected() == []
    system.nothing_lost()


async def delivery_awaited(system: Rig, order_id: str) -> None:
    async def awaited() -> bool:
        order = await system.store.load(order_id)
        return order is not None and order.steps[4].note is not None

    await until(awaited, "the delivery awaited")


async def test_a_large_callback_result_is_offloaded_and_one_for_a_former_order_is_not_taken(
    system: Rig,
) -> None:
    """The result is larger than a message of Service Bus Standard may be."""
    system.remote.set_faults(Faults(delivery=600.0), "carrier")
    port = free_port()
    address = f"http://127.0.0.1:{port}/api/callbacks"
    settings = {
        "SAS_CALLBACK_KEY": KEYS.keys[0],
        "SAS_CALLBACK_URL": "http://127.0.0.1:1/nowhere",
        "TESTS_CARRIER_TELLS_SECONDS": "300",
    }
    system.http_port = port
    async with system.host(**settings):
        await system.submit("B-1", workflow=DELIVERED)
        await delivery_awaited(system, "B-1")
        former = token("B-1", "0123456789abcdef")
        assert await post(address, former) == (404, "unknown-order")
        order_token = token("B-1", (await system.order("B-1")).details.submission)
        scan = {"scan": "x" * 400_000}
        assert await post(address, order_token, result=scan) == (202, "accepted")
        await system.ends("B-1", "Processed")
        assert await post(address, order_token, result=scan) == (200, "already")
        await system.quiet()
    order = await system.order("B-1")
    whole = await ClaimCheck(system.store).fetch_all(order)
    assert isinstance(order.steps[4].result, PayloadRef)
    assert json.loads(str(whole.steps[4].result)) == scan
    assert [rejected for rejected in await system.rejected() if rejected.order_id == "B-1"] == []
    system.nothing_lost()


async def test_an_awaited_callback_is_shown_answered_refused_and_not_waited_for_once_cancelled(
    system: Rig,
) -> None:
    system.remote.set_faults(Faults(delivery=600.0), "carrier")
    port = free_port()
    address = f"http://127.0.0.1:{port}/api/callbacks"
    callbacks = {"SAS_CALLBACK_KEY": KEYS.keys[0], "SAS_CALLBACK_URL": address}
    system.http_port = port
    names = ("O-shown", "O-answered", "O-refused", "O-cancelled")
    async with system.host(**callbacks, TESTS_CARRIER_TELLS_SECONDS="300"):
        for name in names:
            await system.submit(name, workflow=DELIVERED)
        for name in names:
            await delivery_awaited(system, name)

        shown = await sas(system, "callback", "O-shown", **callbacks)
        assert await post(shown.out.splitlines()[-1]) == (202, "accepted")
        assert await system.ends("O-shown", "Processed") == "Processed"

        late = (await sas(system, "callback", "O-cancelled", **callbacks)).out.splitlines()[-1]
        by_hand = ("--yes", "--wait", "120")
        scan = '{"state": "delivered"}'
        answered = await sas(system, "callback", "O-answered", "--answer", scan, *by_hand)
        assert (answered.code, answered.err) == (0, "")
        assert await system.ends("O-answered", "Processed") == "Processed"
        refusal = ("--refuse", "not-at-home", "--text", "nobody opened")
        refused = await sas(system, "callback", "O-refused", *refusal, *by_hand)
        assert (refused.code, refused.err) == (0, "")
        assert await system.ends("O-refused", "Compensated") == "Compensated"
        assert (await sas(system, "undo", "O-cancelled", *by_hand)).code == 0
        assert await system.ends("O-cancelled", "Compensated") == "Compensated"
        assert await post(late) == (410, "too-late")
        await system.quiet()
    assert json.loads(str((await system.order("O-answered")).steps[4].result)) == json.loads(scan)
    by = [entry.by for entry in await system.store.journal("O-answered")]
    assert by.count("operator ann") == 1
    undone = (await system.order("O-refused")).undone_because
    assert undone == "deliver failed: “not-at-home: nobody opened”"
    cancelled = (await system.order("O-cancelled")).steps[4]
    assert (cancelled.undo, cancelled.call.generation) == (UndoStatus.UNDONE, 0)
    system.nothing_lost()
