"""Frames: how to cut a byte stream into them, and the performatives that they carry.

Rules: AMQP 1.0, part 2 (transport).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.amqp.errors import DecodeError, FramingError
from devstack.servicebus.amqp.sections import pairs

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
MAX_FRAME_BYTES = 65536
AMQP_FRAME, SASL_FRAME, PROTOCOL_HEADER = 0, 1, 2

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
ERROR, RECEIVED, ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x1D, 0x23, 0x24, 0x25, 0x26, 0x27
SOURCE, TARGET = 0x28, 0x29

ACCEPTED_STATE = b"\x00\x53\x24\x45"
RELEASED_STATE = b"\x00\x53\x26\x45"
REJECTED_STATE = b"\x00\x53\x25\x45"

_HEAD = struct.Struct(">IBBH")


def frame(
    channel: int, performative: bytes, payload: bytes = b"", frame_type: int = AMQP_FRAME
) -> bytes:
    """Build one frame."""
    size = 8 + len(performative) + len(payload)
    return _HEAD.pack(size, 2, frame_type, channel) + performative + payload


def error(condition: str, description: str) -> bytes:
    """Encode an error with its three fields.

    The info map is never empty, because azure-servicebus 7.15 needs one: if an error has fewer than
    three fields or an empty info map, the SDK raises IndexError in a callback, and its sends never
    return.
    """
    info = encode.map_([(encode.symbol("broker"), encode.string("devstack"))])
    return encode.composite(ERROR, [encode.symbol(condition), encode.string(description), info])


def rejected(condition: str, description: str) -> bytes:
    """Encode the outcome *rejected* with its error."""
    return encode.composite(REJECTED, [error(condition, description)])


def performative(body: bytes) -> tuple[int, int]:
    """Read a frame body's descriptor; return its code and the position of its list."""
    if body[:2] == b"\x00\x53" and len(body) > 3:
        return body[2], 3
    if len(body) < 4 or body[0] != 0:
        raise DecodeError("a frame body does not begin with a performative")
    code, position = decode.decode(body, 1)
    if not isinstance(code, int):
        raise DecodeError(f"{code!r} is not a performative of AMQP 1.0")
    return code, position


def padded(values: list[object], count: int) -> list[object]:
    """Lengthen ``values`` to ``count`` with nulls: senders leave out nulls at the end."""
    nulls = count - len(values)
    if nulls < 0:
        raise DecodeError(f"a performative has {len(values)} fields, at most {count} are defined")
    return values + [None] * nulls if nulls else values


class Outcome(NamedTuple):
    """A delivery state: its code (None for no state), its encoded fields, and ``changes``.

    ``changes`` are application properties to change, by their names. Their values stay encoded, to
    keep their types.
    """

    code: int | None
    fields: list[bytes]
    changes: dict[str, bytes]


def read_outcome(state: object, body: bytes, position: int) -> Outcome:
    """Read the state of the disposition whose list is at ``position``."""
    if state is not None and not (
        isinstance(state, Described) and isinstance(state.descriptor, int)
    ):
        raise DecodeError("a delivery state is not one of AMQP 1.0")
    code = None if state is None else state.descriptor
    if code not in {REJECTED, MODIFIED}:
        return Outcome(code, [], {})
    fields = _described_fields(decode.spans(body, position)[4])
    encoded_map = fields[2] if code == MODIFIED else _described_fields(fields[0])[2]
    return Outcome(code, fields, values_by_name(encoded_map))


def _described_fields(raw: bytes) -> list[bytes]:
    return [raw] * 3 if raw == encode.NULL else decode.spans(raw, decode.skip(raw, 1), 3)


def values_by_name(raw: bytes) -> dict[str, bytes]:
    """Return the values of an encoded map, still encoded, by their names."""
    entries = pairs(raw, 0) if raw != encode.NULL else ()
    return {key: value for key, _, value in entries if isinstance(key, str)}


class FrameReader:
    """Cuts the bytes of one connection into frames.

    It refuses a frame larger than ``max_frame_bytes`` as soon as it sees the frame's header. So it
    never holds more bytes than one frame of that size and one read of the socket. While
    ``expects_header`` is set, the next eight bytes are a protocol header.
    """

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, *, expects_header: bool = False
    ) -> None:
        self.expects_header = expects_header
        self._buffer = b""
        self._position = 0
        self._max = max_frame_bytes

    def __len__(self) -> int:
        return len(self._buffer) - self._position

    def feed(self, data: bytes) -> None:
        """Add bytes from the socket."""
        if self._position < len(self._buffer):
            data = self._buffer[self._position :] + data
        self._buffer = data
        self._position = 0

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Take the whole frames one after another: type, channel and body of each.

        Raises FramingError for an impossible size or data offset.
        """
        buffer, start, available = self._buffer, self._position, len(self._buffer)
        while available - start >= 8:
            if self.expects_header:
                self.expects_header = False
                start = self._position = start + 8
                yield PROTOCOL_HEADER, 0, buffer[start - 8 : start]
                continue
            size, offset, frame_type, channel = _HEAD.unpack_from(buffer, start)
            self._check(size, offset, frame_type)
            end = start + size
            if available < end:
                return
            body = buffer[start + offset * 4 : end]
            start = self._position = end
            yield frame_type, channel, body

    def _check(self, size: int, offset: int, frame_type: int) -> None:
        if size < 8 or offset < 2 or offset * 4 > size or frame_type > 1:
            raise FramingError(
                f"a frame header claims size {size}, data offset {offset}, type {frame_type}"
            )
        if size > self._max:
            raise FramingError(f"a frame of {size} bytes; at most {self._max} were agreed")
