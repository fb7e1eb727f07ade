"""The broker's TCP: what does not fit waits, an end is told once, and accepting goes on."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from devstack.servicebus.wire import stream as stream_module
from devstack.servicebus.wire.stream import Listener, Stream

MUCH = bytes(range(256)) * 40_000
LIMIT = 100_000


class User:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.data = b""
        self.heard, self.over = asyncio.Event(), asyncio.Event()

    def received(self, data: bytes) -> None:
        self.data += data
        self.heard.set()

    def stalled(self) -> None:
        self.told.append("stalled")

    def drained(self) -> None:
        self.told.append("drained")

    def lost(self) -> None:
        self.told.append("lost")
        self.over.set()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        peer.setblocking(False)
        with ours, peer:
            yield ours, peer


def opened(ours: socket.socket) -> tuple[Stream, User]:
    stream, user = Stream(ours, asyncio.get_running_loop(), LIMIT), User()
    stream.open(user)
    return stream, user


async def read_all(peer: socket.socket, count: int) -> bytes:
    data = b""
    loop = asyncio.get_running_loop()
    while len(data) < count and (more := await loop.sock_recv(peer, 1 << 20)):
        data += more
    return data


async def test_what_the_socket_does_not_take_waits_and_comes_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream, user = opened(pair[0])
    stream.write(MUCH)
    stream.write(b"and the end")
    assert user.told == ["stalled"]
    assert await read_all(pair[1], len(MUCH) + 11) == MUCH + b"and the end"
    assert user.told == ["stalled", "drained"]
    stream.write(b"more")
    assert await read_all(pair[1], 4) == b"more"
    assert user.told == ["stalled", "drained"]
    stream.abort()
    await user.over.wait()


async def test_a_stream_that_is_closed_writes_everything_first_and_ends_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream, user = opened(pair[0])
    stream.write(MUCH)
    stream.close()
    assert await read_all(pair[1], len(MUCH) + 1) == MUCH
    await user.over.wait()
    stream.write(b"too late")
    stream.abort()
    await asyncio.sleep(0)
    assert user.told.count("lost") == 1


async def test_nothing_is_read_while_reading_is_paused_or_after_a_close(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream, user = opened(pair[0])
    stream.pause_reading()
    pair[1].send(b"one")
    await asyncio.sleep(0.02)
    assert user.data == b""
    stream.resume_reading()
    await asyncio.wait_for(user.heard.wait(), 120)
    stream.write(MUCH)
    stream.close()
    stream.resume_reading()
    pair[1].send(b"two")
    await asyncio.sleep(0.02)
    assert user.data == b"one"
    stream.abort()
    await user.over.wait()


@pytest.mark.parametrize("writes", [False, True])
async def test_a_peer_that_resets_ends_the_stream_once(
    pair: tuple[socket.socket, socket.socket], writes: bool
) -> None:
    stream, user = opened(pair[0])
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00" + bytes(4))
    if writes:
        stream.write(MUCH)
    pair[1].close()
    await asyncio.wait_for(user.over.wait(), 120)
    await asyncio.sleep(0)
    assert user.told.count("lost") == 1


async def test_a_listener_that_cannot_accept_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_module, "_TRY_AGAIN_S", 0.01)
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    listener = Listener("127.0.0.1", 0, asyncio.get_running_loop(), taken.put_nowait)
    accept: Any = socket.socket.accept
    refusals = [OSError(errno.EMFILE, "too many open files")]

    def failing(self: socket.socket) -> Any:
        if refusals:
            raise refusals.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with socket.create_connection(("127.0.0.1", listener.port)):
        (await asyncio.wait_for(taken.get(), 120)).close()
    listener.close()
    listener.close()
    assert "no connection can be accepted" in caplog.text
