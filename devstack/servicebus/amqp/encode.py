"""Encodes AMQP 1.0 values: each function returns bytes, and compounds join encoded values.

A caller chooses the wire type by the function: ``uint(5)`` and ``int64(5)`` are different bytes.
Rules: AMQP 1.0, part 1 (types).
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from uuid import UUID

NULL = b"\x40"
TRUE = b"\x41"
FALSE = b"\x42"
EMPTY_LIST = b"\x45"

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_TWO_U32 = struct.Struct(">II")
_SMALL_UINTS = tuple(b"\x43" if n == 0 else bytes((0x52, n)) for n in range(256))
_SMALL_ULONGS = tuple(b"\x44" if n == 0 else bytes((0x53, n)) for n in range(256))


def boolean(value: bool) -> bytes:
    """Encode a boolean."""
    return TRUE if value else FALSE


def ubyte(value: int) -> bytes:
    """Encode an unsigned integer of 8 bits."""
    return bytes((0x50, value))


def ushort(value: int) -> bytes:
    """Encode an unsigned integer of 16 bits."""
    return b"\x60" + _U16.pack(value)


def uint(value: int) -> bytes:
    """Encode an unsigned integer of 32 bits, in its shortest form."""
    return _SMALL_UINTS[value] if value < 256 else b"\x70" + _U32.pack(value)


def ulong(value: int) -> bytes:
    """Encode an unsigned integer of 64 bits, in its shortest form."""
    return _SMALL_ULONGS[value] if value < 256 else b"\x80" + _U64.pack(value)


def int32(value: int) -> bytes:
    """Encode a signed integer of 32 bits (AMQP ``int``)."""
    return b"\x71" + _I32.pack(value)


def int64(value: int) -> bytes:
    """Encode a signed integer of 64 bits (AMQP ``long``)."""
    return b"\x81" + _I64.pack(value)


def timestamp(seconds: float) -> bytes:
    """Encode a moment, given in seconds since 1970, as milliseconds since 1970."""
    return b"\x83" + _I64.pack(int(seconds * 1000))


def uuid(value: UUID) -> bytes:
    """Encode a UUID."""
    return b"\x98" + value.bytes


def _variable(code: int, raw: bytes) -> bytes:
    """Encode bytes behind their size: one byte of size, or four with the higher constructor."""
    size = len(raw)
    return (
        bytes((code, size)) + raw if size < 256 else bytes((code | 0x10,)) + _U32.pack(size) + raw
    )


def binary(value: bytes) -> bytes:
    """Encode bytes."""
    return _variable(0xA0, value)


def string(value: str) -> bytes:
    """Encode text as UTF-8."""
    return _variable(0xA1, value.encode())


def long_string(value: str) -> bytes:
    """Encode text with four bytes of size: the items of an array need the same constructor."""
    raw = value.encode()
    return b"\xb1" + _U32.pack(len(raw)) + raw


@lru_cache(maxsize=512)
def symbol(value: str) -> bytes:
    """Encode a symbol. Symbols are ASCII; other characters become ``?``."""
    return _variable(0xA3, value.encode("ascii", "replace"))


def _compound(code: int, body: bytes, count: int) -> bytes:
    size = len(body)
    if size < 255 and count < 256:
        return bytes((code, size + 1, count)) + body
    return bytes((code | 0x10,)) + _TWO_U32.pack(size + 4, count) + body


def list_(items: Sequence[bytes]) -> bytes:
    """Encode a list of encoded values."""
    return _compound(0xC0, b"".join(items), len(items)) if items else EMPTY_LIST


def map_of_pairs(pairs: bytes, count: int) -> bytes:
    """Encode a map from the joined encodings of ``count`` values, keys included."""
    return _compound(0xC1, pairs, count)


def map_(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a map of encoded keys and values."""
    flat = [part for entry in entries for part in entry]
    return map_of_pairs(b"".join(flat), len(flat))


def array(items: Sequence[bytes]) -> bytes:
    """Encode an array of encoded items, which must have the same constructor."""
    body = (items[0][:1] if items else NULL) + b"".join(item[1:] for item in items)
    return b"\xf0" + _TWO_U32.pack(len(body) + 4, len(items)) + body


def described(code: int, value: bytes) -> bytes:
    """Put the numeric descriptor ``code`` before an encoded value."""
    return b"\x00" + ulong(code) + value


def composite(code: int, fields: Sequence[bytes]) -> bytes:
    """Encode a described list. The standard lets a sender leave out nulls at the end."""
    count = len(fields)
    while count and fields[count - 1] == NULL:
        count -= 1
    return b"\x00\x53" + bytes((code,)) + list_(fields[:count])


def scalar(value: object) -> bytes:
    """Encode text, bytes, a whole number, a UUID or null, as the decoder returns them."""
    match value:
        case None:
            return NULL
        case int():
            return int64(value) if value < 1 << 63 else ulong(value)
        case str():
            return string(value)
        case bytes():
            return binary(value)
        case UUID():
            return uuid(value)
        case _:
            raise TypeError(f"{type(value).__name__}: give text, bytes, an int, a UUID or None")
