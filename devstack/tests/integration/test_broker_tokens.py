"""Tokens that expire while a link is open, and answers on management links, by frame."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pytest
from azure.core.credentials import AzureSasCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from devstack.servicebus import Broker, Limits
from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.tokens import KEY_NAME, signature
from devstack.tests.integration.test_broker_wire import BODY, Peer, peer_of
from devstack.tests.sdk_kit import (  # noqa: F401 (fixtures for every test here)
    LEFTOVERS,
    collect_leftovers,
    short_pauses,
)

pytestmark = LEFTOVERS
KEY = "r1ght="


class Clock:
    """The broker's time, which a test may push forward."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    limits = Limits(idle_s=1e6, handshake_s=1e6)
    async with Broker(["q", "other"], require_key=KEY, clock=clock, limits=limits) as broker:
        yield broker


def token(path: str, lasts_s: float) -> str:
    resource, expiry = quote_plus(f"sb://127.0.0.1/{path}"), str(int(time.time() + lasts_s))
    signed = quote_plus(signature(KEY, resource, expiry))
    return f"SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn={KEY_NAME}"


def request(body: bytes, **named: str) -> bytes:
    entries = [(encode.string(name), encode.string(value)) for name, value in named.items()]
    return (
        encode.composite(0x73, [encode.uuid(uuid4())])
        + b"\x00\x53\x74"
        + encode.map_(entries)
        + b"\x00\x53\x77"
        + body
    )


async def put_token(peer: Peer, number: int, path: str, lasts_s: float) -> None:
    body = encode.string(token(path, lasts_s))
    peer.transfer(number, request(body, operation="put-token", name=path), handle=8)
    await peer.expect(frames.DISPOSITION)


async def enter(peer: Peer, path: str, lasts_s: float) -> None:
    await peer.open()
    await peer.attach("$cbs", receives=False, handle=8)
    await put_token(peer, 0, path, lasts_s)


async def sends(peer: Peer, number: int) -> bool:
    peer.transfer(number, BODY)
    fields: Any = await peer.expect(frames.DISPOSITION)
    return bool(fields[4].descriptor == frames.ACCEPTED)


async def sasl(peer: Peer, mechanism: str, response: bytes) -> int:
    """Begin with SASL; give the code of the outcome."""
    peer.write(frames.SASL_HEADER)
    init = [encode.symbol(mechanism), encode.binary(response)]
    peer.write(frames.frame(0, encode.composite(frames.SASL_INIT, init), b"", frames.SASL_FRAME))
    assert await peer.reader.readexactly(8) == frames.SASL_HEADER
    return int((await peer.expect(frames.SASL_OUTCOME))[0])


async def test_sasl_plain_with_the_policy_and_its_key_opens_every_link(broker: Broker) -> None:
    for identity in (b"", b"somebody"):
        async with peer_of(broker) as peer:
            response = b"\0".join((identity, KEY_NAME.encode(), KEY.encode()))
            assert await sasl(peer, "PLAIN", response) == 0
            await peer.open()
            for handle, queue in enumerate(("q", "other")):
                assert (await peer.attach(queue, receives=False, handle=handle))[6] is not None
            assert await sends(peer, 1)


@pytest.mark.parametrize(
    "response", [b"", b"\0\0", b"\0RootManageSharedAccessKey\0wrong", b"\0other\0r1ght=", b"r1ght="]
)
async def test_sasl_plain_with_another_name_or_key_is_refused(
    broker: Broker, response: bytes
) -> None:
    async with peer_of(broker) as peer:
        assert await sasl(peer, "PLAIN", response) == 1
        assert await peer.closed() == b""


async def test_other_mechanisms_give_no_right_where_a_key_is_required(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        assert await sasl(peer, "ANONYMOUS", b"") == 0
        await peer.open()
        assert (await peer.attach("q", receives=False))[6] is None
        fields = await peer.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:unauthorized-access"


async def test_a_link_ends_with_its_token_and_others_go_on(broker: Broker, clock: Clock) -> None:
    async with peer_of(broker) as brief, peer_of(broker) as lasting:
        for peer, lasts_s in ((brief, 60), (lasting, 3600)):
            await enter(peer, "q", lasts_s)
            await peer.attach("q", receives=False)
            assert await sends(peer, 1)
        clock.ahead_s = 120
        fields = await brief.expect(frames.DETACH)
        condition, description, _ = fields[2].value
        assert condition == "amqp:link:detach-forced"
        assert "Code: RenewToken" in description
        assert "'q': the token has expired; put a new one on $cbs" in description
        assert await sends(lasting, 2)
        await put_token(brief, 2, "q", 3600)  # the connection and $cbs are open still
        await brief.attach("q", receives=False, handle=1)
        assert broker.counts("q").active == 3


async def test_a_token_renewed_in_time_keeps_the_link_open(broker: Broker, clock: Clock) -> None:
    async with peer_of(broker) as peer:
        await enter(peer, "q", 60)
        await peer.attach("q", receives=False)
        await put_token(peer, 1, "q", 3600)
        clock.ahead_s = 120
        for connection in broker.connections:  # the broker looks so once a second
            connection.check_deadlines(clock())
        assert await sends(peer, 2)


async def test_a_token_for_another_queue_opens_nothing(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await enter(peer, "other", 60)
        await peer.attach("q", receives=False)
        fields = await peer.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:unauthorized-access"


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


async def test_the_sdk_gets_an_error_when_its_token_cannot_be_renewed(
    broker: Broker, clock: Clock
) -> None:
    credential = AzureSasCredential(token("q", 60))
    async with (
        ServiceBusClient(
            f"127.0.0.1:{broker.port}", credential, use_tls=False, retry_backoff_factor=0.05
        ) as client,
        client.get_queue_sender("q") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("in time"))
        clock.ahead_s = 120
        async with asyncio.timeout(120):
            while any(link.queue for link in broker.links()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
            await sender.send_messages(ServiceBusMessage("too late"))
    assert broker.counts("q").active == 1


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
