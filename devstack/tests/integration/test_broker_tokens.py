"""Tokens where a key is required, and answers on management links, by frame."""

import time
from collections.abc import AsyncIterator
from urllib.parse import quote_plus

import pytest

from devstack.servicebus import Broker
from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.tokens import KEY_NAME, signature
from devstack.tests.sdk_kit import SDK
from devstack.tests.wire_kit import Peer, peer_of, request

pytestmark = SDK
KEY = "r1ght="


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["q", "other"], require_key=KEY) as broker:
        yield broker


def token(path: str, lasts_s: float) -> str:
    resource, expiry = quote_plus(f"sb://127.0.0.1/{path}"), str(int(time.time() + lasts_s))
    signed = quote_plus(signature(KEY, resource, expiry))
    return f"SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn={KEY_NAME}"


async def put_token(peer: Peer, number: int, path: str, lasts_s: float) -> None:
    body = encode.string(token(path, lasts_s))
    peer.transfer(number, request(body, operation="put-token", name=path), handle=8)
    await peer.expect(frames.DISPOSITION)


async def enter(peer: Peer, path: str, lasts_s: float) -> None:
    await peer.open()
    await peer.attach("$cbs", receives=False, handle=8)
    await put_token(peer, 0, path, lasts_s)


async def test_a_token_for_another_queue_opens_nothing(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await enter(peer, "other", 60)
        await peer.attach("q", receives=False)
        fields = await peer.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:unauthorized-access"
        await put_token(peer, 1, "q", 60)
        for handle, path in ((1, "q"), (2, "other")):  # one token does not replace the other
            await peer.attach(path, receives=False, handle=handle)
            assert (await peer.read())[0] == frames.FLOW


async def test_a_wrong_token_is_answered_with_the_services_condition(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("$cbs", receives=True, handle=0)
        peer.credit(10)
        await peer.attach("$cbs", receives=False, handle=8)
        body = encode.string("SharedAccessSignature sr=x&sig=y&se=9&skn=z")
        peer.transfer(0, request(body, operation="put-token", name="q"), handle=8)
        peer.send(frames.CLOSE)
        answer = await peer.closed()
        assert b"com.microsoft:auth-failed" in answer
        assert b"does not match: the SharedAccessKey of the connection string" in answer


async def test_a_request_is_answered_before_it_is_accepted() -> None:
    """See RequestReceiverLink.take: in the other order, the SDK renews only 30 locks a second."""
    async with Broker(["q"]) as broker, peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q/$management", receives=True, handle=0)
        peer.credit(10)
        await peer.attach("q/$management", receives=False, handle=1)
        peek = {"from-sequence-number": encode.int64(0), "message-count": encode.int32(1)}
        body = encode.map_((encode.string(name), value) for name, value in peek.items())
        peer.transfer(0, request(body, operation="com.microsoft:peek-message"), handle=1)
        codes = [(await peer.read())[0] for _ in range(3)]
        assert [c for c in codes if c != frames.FLOW] == [frames.TRANSFER, frames.DISPOSITION]
