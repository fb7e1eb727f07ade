"""Raw bytes against the broker: limits, bad peers, and no effect on other peers."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator

import pytest

from devstack.servicebus import Broker, Limits, QueueProperties
from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.wire.connection import AmqpConnection
from devstack.tests.queue_kit import raw
from devstack.tests.wire_kit import BODY, Clock, Peer, peer_of, put, settled, works

FUZZ_FRAMES = int(os.environ.get("SAS_FUZZ_FRAMES", "3000"))
LIMITS = Limits(connections=20, handshake_s=1.0, idle_s=1.5, stalled_s=1.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    queues = {"q": QueueProperties(), "lanes": QueueProperties(requires_session=True)}
    async with Broker(queues, limits=LIMITS, clock=clock) as broker:
        yield broker


async def test_a_message_sent_in_many_small_pieces_is_taken(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=False)
        for position in range(len(BODY)):
            last = position == len(BODY) - 1
            peer.transfer(0, BODY[position : position + 1], more=not last)
        await peer.expect(frames.DISPOSITION)
    assert broker.counts("q").active == 1


async def test_the_peers_window_and_frame_size_are_kept(broker: Broker) -> None:
    put(broker, 5, b"x" * 2000)
    async with peer_of(broker) as peer:
        await peer.open(window=2, frame_size=4096)
        await peer.attach("q", receives=True)
        peer.credit(5, window=2)
        transfers = [await peer.expect(frames.TRANSFER) for _ in range(2)]
        assert [fields[1] for fields in transfers] == [1, 2]
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.read(), 0.1)
        peer.credit(3, delivery_count=2, window=3)
        assert [(await peer.expect(frames.TRANSFER))[1] for _ in range(3)] == [3, 4, 5]


async def test_every_frame_of_a_message_counts_in_the_window(broker: Broker) -> None:
    put(broker, 3, b"x" * 10_000)
    async with peer_of(broker) as peer:
        await peer.open(window=2, frame_size=4096)
        await peer.attach("q", receives=True)
        frame_count, transfers = 0, []
        for window in (2, 1, 5, 1):
            numbers = (frame_count + 1, window, 0, 2048, 0, 0, 3)
            peer.send(frames.FLOW, *[encode.uint(number) for number in numbers])
            for _ in range(window):
                fields = await peer.expect(frames.TRANSFER)
                transfers.append((fields[1], fields[5]))
            frame_count += window
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(peer.read(), 0.05)
        assert transfers == [(n, more) for n in (1, 2, 3) for more in (True, True, False)]


async def test_a_message_sent_in_part_is_free_when_its_receiver_leaves(broker: Broker) -> None:
    put(broker, 1, b"x" * 10_000)
    async with peer_of(broker) as peer:
        await peer.open(window=2, frame_size=4096)
        await peer.attach("q", receives=True)
        peer.credit(1, window=2)
        await peer.expect(frames.TRANSFER)
        assert broker.counts("q").locked == 1
        peer.send(frames.DETACH, b"\x43", b"\x41")
        await peer.expect(frames.DETACH)
        assert broker.counts("q").locked == 0
        await peer.attach("q", receives=True, handle=1)
        numbers = (3, 100, 0, 2048, 1, 0, 1)
        peer.send(frames.FLOW, *[encode.uint(number) for number in numbers])
        transfers = [await peer.expect(frames.TRANSFER) for _ in range(3)]
        assert [(fields[1], fields[5]) for fields in transfers] == [
            (2, True),
            (2, True),
            (2, False),
        ]


async def test_messages_held_back_by_the_window_are_free_when_the_peer_leaves(
    broker: Broker,
) -> None:
    put(broker, 5)
    async with peer_of(broker) as peer:
        await peer.open(window=1)
        await peer.attach("q", receives=True)
        peer.credit(9, window=1)
        await peer.expect(frames.TRANSFER)
        assert broker.counts("q").locked == 5
    await settled(broker)
    assert broker.counts("q").locked == 1


async def test_a_message_that_was_not_yet_sent_to_a_presettling_receiver_is_not_lost(
    broker: Broker,
) -> None:
    put(broker, 5)
    async with peer_of(broker) as peer:
        await peer.open(window=1)
        await peer.attach("q", receives=True, settles=encode.ubyte(1))
        peer.credit(5, window=1)
        await peer.expect(frames.TRANSFER)
        assert broker.counts("q").total == 0
    await settled(broker)
    assert (broker.counts("q").active, broker.counts("q").locked) == (4, 0)


async def test_what_was_sent_in_part_to_a_receiver_that_presettled_is_not_lost(
    broker: Broker,
) -> None:
    put(broker, 1, b"x" * 10_000)
    async with peer_of(broker) as peer:
        await peer.open(window=1, frame_size=4096)
        await peer.attach("q", receives=True, settles=encode.ubyte(1))
        peer.credit(1, window=1)
        assert (await peer.expect(frames.TRANSFER))[5] is True
    await settled(broker)
    assert (broker.counts("q").active, broker.counts("q").locked) == (1, 0)


async def test_only_links_on_which_the_broker_receives_announce_a_size_limit(
    broker: Broker,
) -> None:
    """.NET refuses a message above the announced limit, and a delivery adds annotations."""
    async with peer_of(broker) as peer:
        await peer.open()
        limits = [
            (await peer.attach(address, receives=receives, handle=handle))[10]
            for handle, (address, receives) in enumerate(
                (address, receives)
                for address in ("q", "q/$management", "$cbs")
                for receives in (True, False)
            )
        ]
    assert limits == [None, 256 * 1024, None, 2 << 20, None, 2 << 20]


async def test_a_coordinator_is_refused_and_the_connection_goes_on(broker: Broker) -> None:
    put(broker, 1)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        peer.credit(1)
        await peer.expect(frames.TRANSFER)
        coordinator = encode.composite(0x30, [encode.array([encode.symbol("amqp:local-txn")])])
        attach = await peer.attach("", receives=False, handle=1, target=coordinator)
        assert attach[6] is None
        detach = await peer.expect(frames.DETACH)
        condition, description, _ = detach[2].value
        assert condition == "amqp:not-implemented"
        assert "send and settle each message by itself" in description
        fields = [b"\x41", encode.uint(1), b"\x40", b"\x42", frames.ACCEPTED_STATE]
        peer.send(frames.DISPOSITION, *fields)
        await peer.expect(frames.DISPOSITION)
    assert broker.counts("q").total == 0


async def test_what_one_link_gives_back_is_not_given_to_another_of_a_lost_connection(
    broker: Broker,
) -> None:
    put(broker, 3)
    async with peer_of(broker) as peer:
        await peer.open(window=1)
        await peer.attach("q", receives=True)
        peer.credit(3, window=1)
        await peer.expect(frames.TRANSFER)
        peer.send(frames.BEGIN, encode.NULL, *[encode.uint(99)] * 3, channel=1)
        await peer.expect(frames.BEGIN)
        source = encode.composite(frames.SOURCE, [encode.string("q")])
        link = [encode.string("other"), b"\x43", encode.TRUE, encode.ubyte(1), encode.ubyte(0)]
        peer.send(frames.ATTACH, *link, source, channel=1)
        await peer.expect(frames.ATTACH)
        numbers = (1, 99, 0, 99, 0, 0, 9)
        peer.send(
            frames.FLOW,
            *[encode.uint(number) for number in numbers],
            encode.NULL,
            encode.NULL,
            encode.TRUE,
            channel=1,
        )
        await peer.expect(frames.FLOW)
    await settled(broker)
    assert (broker.counts("q").active, broker.counts("q").locked) == (3, 1)


async def test_a_drain_is_answered_with_the_credit_used_up(broker: Broker) -> None:
    put(broker, 1)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        numbers = [encode.uint(n) for n in (1, 100, 0, 100, 0, 0, 10, 0)]
        peer.send(frames.FLOW, *numbers, encode.TRUE)
        await peer.expect(frames.TRANSFER)
        flow = await peer.expect(frames.FLOW)
        assert (flow[5], flow[6], flow[8]) == (10, 0, True)


async def test_after_a_drain_nothing_comes_that_waited_for_the_window(broker: Broker) -> None:
    put(broker, 5)
    async with peer_of(broker) as peer:
        await peer.open(window=1)
        await peer.attach("q", receives=True)
        numbers = [encode.uint(n) for n in (1, 1, 0, 100, 0, 0, 9, 0)]
        peer.send(frames.FLOW, *numbers, encode.TRUE)
        await peer.expect(frames.TRANSFER)
        flow = await peer.expect(frames.FLOW)
        assert (flow[5], flow[6], flow[8]) == (9, 0, True)
        assert broker.counts("q").locked == 1
        peer.send(frames.FLOW, *[encode.uint(n) for n in (2, 100, 0, 100, 0, 9, 0, 0)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.read(), 0.1)
        assert broker.counts("q").locked == 1


async def test_a_range_of_all_numbers_settles_only_what_is_open(broker: Broker) -> None:
    put(broker, 3)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        peer.credit(3)
        for _ in range(3):
            await peer.expect(frames.TRANSFER)
        last = encode.uint(0xFFFFFFFF)
        peer.send(frames.DISPOSITION, b"\x41", b"\x43", last, b"\x42", frames.ACCEPTED_STATE)
        for _ in range(3):
            await peer.expect(frames.DISPOSITION)
    assert broker.counts("q").total == 0


async def test_more_messages_than_credit_end_the_link(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await peer.open()
        source = encode.composite(frames.SOURCE, [encode.string("x")])
        await peer.attach("$cbs", receives=False, source=source)
        link = next(iter(broker.links()))
        link.credit = 0
        peer.transfer(0, BODY)
        fields = await peer.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:link:transfer-limit-exceeded"


async def test_a_message_above_the_limit_is_not_kept_while_it_comes(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=False)
        piece = bytes(60_000)
        for number in range(40):
            peer.transfer(0, piece, more=number < 39)
            await peer.writer.drain()
        fields = await peer.expect(frames.DISPOSITION)
        (error,) = fields[4].value
        assert error.value[0] == "amqp:link:message-size-exceeded"
    await works(broker)


@pytest.mark.parametrize(
    ("kilobytes", "total", "accepted"), [(256, 300 << 10, False), (2048, 1 << 20, True)]
)
async def test_a_batch_may_be_as_large_as_the_link_announces_and_no_larger(
    kilobytes: int, total: int, accepted: bool
) -> None:
    async with (
        Broker({"q": QueueProperties(max_message_kilobytes=kilobytes)}) as broker,
        peer_of(broker) as peer,
    ):
        await peer.open()
        attach = await peer.attach("q", receives=False)
        announced = attach[13]["com.microsoft:max-message-batch-size"]
        assert announced == min(kilobytes << 10, 1 << 20)
        part = b"\x00\x53\x75" + encode.binary(raw(bytes(40_000)))
        batch = part * (total // len(part))
        assert (len(batch) <= announced) is accepted
        for start in range(0, len(batch), 60_000):
            more = start + 60_000 < len(batch)
            batch_format = encode.uint(0x80013700)
            peer.transfer(0, batch[start : start + 60_000], more=more, message_format=batch_format)
            await peer.writer.drain()
        fields = await peer.expect(frames.DISPOSITION)
        if accepted:
            assert fields[4].descriptor == frames.ACCEPTED
        else:
            assert fields[4].value[0].value[0] == "amqp:link:message-size-exceeded"
        assert bool(broker.counts("q").total) is accepted


async def test_a_settled_message_above_the_limit_ends_the_link_as_the_only_signal_to_the_sender(
    broker: Broker,
) -> None:
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=False)
        for number in range(6):
            peer.transfer(0, bytes(60_000), more=number < 5, settled=b"\x41")
            await peer.writer.drain()
        fields = await peer.expect(frames.DETACH)
        assert fields[2].value[0] == "amqp:link:message-size-exceeded"
    await works(broker)


async def test_a_refused_link_has_a_null_terminus_and_then_the_error(broker: Broker) -> None:
    for address, condition in (
        ("none", "amqp:not-found"),
        ("", "amqp:not-found"),
        ("q/$Transfer", "amqp:not-found"),
        ("lanes", "amqp:not-allowed"),
    ):
        async with peer_of(broker) as peer:
            await peer.open()
            source = encode.composite(frames.SOURCE, [encode.string(address)])
            peer.send(
                frames.ATTACH,
                encode.string("l"),
                b"\x43",
                b"\x41",
                b"\x50\x00",
                b"\x50\x01",
                source,
            )
            attach = await peer.expect(frames.ATTACH)
            assert attach[5] is None
            detach = await peer.expect(frames.DETACH)
            assert detach[1] is True
            assert detach[2].value[0] == condition
            assert detach[2].value[2]


async def test_a_peer_that_breaks_the_protocol_gets_an_error_and_is_closed(
    broker: Broker,
) -> None:
    for data, answer in (
        (b"GET / HTTP/1.1\r\n\r\n", frames.AMQP_HEADER),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", frames.AMQP_HEADER),
        (frames.AMQP_HEADER + b"\x00\x00\x00\x07\x02\x00\x00\x00", b"framing-error"),
        (frames.AMQP_HEADER + b"\x7f\x00\x00\x00\x02\x00\x00\x00", b"at most 65536"),
        (frames.AMQP_HEADER + frames.frame(0, b"\x00\x53\x11\x45"), b"first frame must be"),
        (frames.AMQP_HEADER + frames.frame(0, b"nonsense"), b"decode-error"),
        (frames.SASL_HEADER + frames.frame(0, b"\x00\x53\x44\x45", frame_type=1), b"not-allowed"),
        (frames.AMQP_HEADER + frames.frame(0, b"\x00\x53\x10\x45") * 2, b"illegal-state"),
        (frames.AMQP_HEADER + frames.frame(0, b"\x00\x53\x10\x45\x00\x53\x99\x45"), b""),
    ):
        async with peer_of(broker) as peer:
            peer.write(data)
            if answer:
                assert answer in await peer.closed(), data
    await works(broker)


async def test_the_protocol_of_a_wrong_peer_is_named_in_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for data, says in (
        (b"GET / HTTP/1.1\r\n\r\n", "administration is on the management port"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "put UseDevelopmentEmulator=true into"),
        (b"AMQP\x00\x00\x09\x01", "this broker speaks 1.0"),
        (b"SSH-2.0-x", "check which program uses this port"),
    ):
        async with peer_of(broker) as peer:
            peer.write(data)
            assert await peer.closed() == frames.AMQP_HEADER
        assert says in caplog.text


async def test_silent_half_open_and_idle_peers_are_disconnected(
    broker: Broker, clock: Clock
) -> None:
    async with peer_of(broker) as silent, peer_of(broker) as slow, peer_of(broker) as idle:
        slow.write(frames.AMQP_HEADER + b"\x00\x00\x01")
        assert await slow.reader.readexactly(8) == frames.AMQP_HEADER
        await idle.open()
        with clock.running():
            assert await silent.closed() == b""
            assert await slow.closed() == b""
            assert b"inactive for more than" in await idle.closed()
            await settled(broker)


@pytest.mark.parametrize("half_open", [True, False])
async def test_a_peer_that_leaves_what_was_sent_unread_is_let_go_too(
    broker: Broker, clock: Clock, half_open: bool
) -> None:
    """Its unread bytes are fewer than the limit at which the broker stops sending."""
    mute = socket.socket()
    mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    mute.setblocking(False)
    await asyncio.get_running_loop().sock_connect(mute, ("127.0.0.1", broker.port))
    peer = Peer(*await asyncio.open_connection(sock=mute, limit=1024))
    try:
        await peer.open()
        await peer.attach("q", receives=True)
        (connection,) = broker.connections
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        transport = connection.output.transport
        assert transport is not None
        peer.credit(10_000, window=10_000)
        async with asyncio.timeout(120):
            while not transport.get_write_buffer_size():
                put(broker, 20, b"x" * 2000)
                await asyncio.sleep(0)
        assert not connection.output.blocked
        if half_open:
            mute.shutdown(socket.SHUT_WR)
        with clock.running():
            await settled(broker)
        assert not connection.output.blocked
        count = broker.counts("q").locked
        put(broker, 1)
        assert broker.counts("q").locked == count
    finally:
        peer.writer.transport.abort()


async def test_a_peer_is_kept_alive_as_it_asks(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        peer.write(frames.AMQP_HEADER)
        nulls = [encode.NULL] * 3
        peer.send(frames.OPEN, encode.string("p"), *nulls, encode.uint(200))
        assert await peer.reader.readexactly(8) == frames.AMQP_HEADER
        await peer.expect(frames.OPEN)
        assert await asyncio.wait_for(peer.reader.readexactly(8), 60) == frames.EMPTY_FRAME


async def test_a_connection_above_the_limit_gets_an_error(broker: Broker) -> None:
    writers = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(20)]
    async with peer_of(broker) as peer:
        peer.write(frames.AMQP_HEADER)
        peer.send(frames.OPEN, encode.string("p"))
        assert b"20 connections already" in await peer.closed()
    for _, writer in writers:
        writer.transport.abort()
    await settled(broker)
    await works(broker)


async def test_a_peer_that_reads_nothing_is_cut_off_and_holds_little(
    broker: Broker, clock: Clock
) -> None:
    put(broker, 400, b"x" * 100_000)
    async with peer_of(broker) as peer:
        await peer.open()
        await peer.attach("q", receives=True)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.credit(400)
        with clock.running():
            await settled(broker)
        assert broker.counts("q").locked < 400
    await works(broker)


async def test_random_and_mutated_frames_affect_no_other_peer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frame_count = 0
    original = AmqpConnection._on_frame

    def count(self: AmqpConnection, channel: int, body: bytes, now: float) -> None:
        nonlocal frame_count
        frame_count += 1
        original(self, channel, body, now)

    monkeypatch.setattr(AmqpConnection, "_on_frame", count)
    seed = int(os.environ.get("SAS_FUZZ_SEED", "7"))
    chance = random.Random(seed)  # noqa: S311 (a seed makes a failure repeatable)
    sane = [
        encode.composite(frames.ATTACH, [encode.string("l"), b"\x43", b"\x42"]),
        encode.composite(frames.FLOW, [encode.uint(n) for n in (1, 9, 0, 9, 0, 0, 5)]),
        encode.composite(frames.TRANSFER, [b"\x43", b"\x43", b"\xa0\x01x"]) + BODY,
        encode.composite(
            frames.DISPOSITION, [b"\x41", b"\x43", b"\x40", b"\x41", frames.ACCEPTED_STATE]
        ),
        encode.composite(frames.DETACH, [b"\x43", b"\x41"]),
        encode.composite(frames.END, []),
        encode.composite(frames.BEGIN, [b"\x40", b"\x43", encode.uint(9), encode.uint(9)]),
    ]
    async with peer_of(broker) as bystander:
        await bystander.open()
        await bystander.attach("q", receives=False)
        for _ in range(FUZZ_FRAMES):
            if frame_count >= FUZZ_FRAMES:
                break
            await _send_mutated(broker, chance, sane)
            bystander.write(frames.EMPTY_FRAME)
        bystander.transfer(0, BODY)
        assert (await bystander.expect(frames.DISPOSITION))[4].descriptor == frames.ACCEPTED
    await settled(broker)
    assert "could not be processed" not in caplog.text  # each was refused for what it was
    assert not broker.context._outputs
    for queue in broker.namespace.every_queue():
        assert not getattr(queue.dispatch, "_with_credit", ())


async def _send_mutated(broker: Broker, chance: random.Random, sane: list[bytes]) -> None:
    async with peer_of(broker) as peer:
        try:
            await peer.open()
            await peer.attach("q", receives=chance.random() < 0.5)
            for number in range(1, 60):
                body = bytearray(chance.choice(sane))
                for _ in range(chance.choice((0, 0, 0, 1, 3))):
                    body[chance.randrange(len(body))] = chance.randrange(256)
                peer.write(frames.frame(chance.choice((0, 0, 0, 1, 65535)), bytes(body)))
                if number % 8 == 0:
                    await peer.writer.drain()
                    await asyncio.sleep(0)
                if peer.reader.at_eof():
                    return
        except (ConnectionError, EOFError):
            return
