"""A real function posts alerts to a webhook, signed; what it does not take comes again."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from sas.codec.outward import AlertMessage
from tests.functions_rig import Rig, rig, until
from tests.integration.broker_sdk_kit import short_pauses
from tests.integration.test_sign_in import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["short_pauses"]  # a fixture of every test here

KEY = hashlib.sha256(b"a key of the tests").digest()
COPIES = "operator-alerts-webhook"


@dataclass
class Receiver:
    """A webhook: it refuses unsigned requests, and at first every request."""

    refusals: int = 0
    taken: list[tuple[str, AlertMessage]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        body, own_id = await request.read(), request.headers["webhook-id"]
        text = f"{own_id}.{request.headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(KEY, text, hashlib.sha256).digest()
        wanted = f"v1,{base64.b64encode(digest).decode()}"
        if wanted not in request.headers["webhook-signature"].split():
            return web.Response(status=401)
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503, text="not now")
        self.taken.append((own_id, msgspec.json.decode(body, type=AlertMessage)))
        return web.Response(status=204)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running
        running.nothing_lost()


async def test_an_alert_comes_signed_to_the_webhook_and_stays_on_its_queue(made: Rig) -> None:
    receiver = Receiver(refusals=2)
    async with serving(receiver.answer) as url:
        given = {
            "SAS_ALERT_WEBHOOK_URL": f"{url}/hooks/t0ken",
            "SAS_ALERT_WEBHOOK_SECRET": f"whsec_{base64.b64encode(KEY).decode()}",
        }
        async with made.host(**given):
            await made.submit("W-1", order=None)
            await until(lambda: _is_taken(receiver), "the alert at the webhook")
            await made.quiet_queue(COPIES)
    ((own_id, alert),) = receiver.taken
    assert (alert.kind, alert.order_id) == ("rejected", "W-1")
    assert own_id.startswith("msg_")
    assert receiver.refusals == 0
    assert [one.id for one in await made.alerts("W-1")] == [alert.id]


async def _is_taken(receiver: Receiver) -> bool:
    return bool(receiver.taken)


async def test_without_the_setting_no_alert_is_copied(made: Rig) -> None:
    async with made.host():
        await made.submit("W-2", order=None)
        await until(lambda: made.alerts("W-2"), "the alert on its queue")
        await made.quiet()
    assert made.broker.counts(COPIES).total == 0
