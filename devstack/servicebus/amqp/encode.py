"""Encoding AMQP 1.0 values: each function returns bytes, and compounds join encoded values.

``uint(5)`` is the encoded unsigned integer: the code that chooses a value also shows its type on
the wire. Rules: AMQP 1.0, part 1 (types).
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
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
_F64 = struct.Struct(">d")
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


@lru_cache(maxsize=512)
def symbol(value: str) -> bytes:
    """Encode a symbol. Symbols are ASCII; other characters become ``?``."""
    return _variable(0xA3, value.encode("ascii", "replace"))


def list_(items: Sequence[bytes]) -> bytes:
    """Encode a list of encoded values."""
    count = len(items)
    if not count:
        return EMPTY_LIST
    body = b"".join(items)
    size = len(body)
    if size < 255 and count < 256:
        return bytes((0xC0, size + 1, count)) + body
    return b"\xd0" + _TWO_U32.pack(size + 4, count) + body


def map_of_pairs(pairs: bytes, count: int) -> bytes:
    """Encode a map from the joined encodings of ``count`` values, keys included."""
    size = len(pairs)
    if size < 255 and count < 256:
        return bytes((0xC1, size + 1, count)) + pairs
    return b"\xd1" + _TWO_U32.pack(size + 4, count) + pairs


def map_(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a map of encoded keys and values."""
    flat = [part for entry in entries for part in entry]
    return map_of_pairs(b"".join(flat), len(flat))


def array(constructor: int, bodies: Sequence[bytes]) -> bytes:
    """Encode an array: ``bodies`` are the items without their common constructor."""
    body = bytes((constructor,)) + b"".join(bodies)
    return b"\xf0" + _TWO_U32.pack(len(body) + 4, len(bodies)) + body


def array_of_int64(values: Iterable[int]) -> bytes:
    """Encode an array of ``long``."""
    return array(0x81, [_I64.pack(value) for value in values])


def array_of_timestamps(moments: Iterable[float]) -> bytes:
    """Encode an array of moments given in seconds since 1970."""
    return array(0x83, [_I64.pack(int(moment * 1000)) for moment in moments])


def array_of_symbols(names: Iterable[str]) -> bytes:
    """Encode an array of symbols."""
    raws = [name.encode("ascii") for name in names]
    return array(0xB3, [_U32.pack(len(raw)) + raw for raw in raws])


def array_of_strings(texts: Iterable[str]) -> bytes:
    """Encode an array of strings."""
    raws = [text.encode() for text in texts]
    return array(0xB1, [_U32.pack(len(raw)) + raw for raw in raws])


def described(code: int, value: bytes) -> bytes:
    """Put the numeric descriptor ``code`` before an encoded value."""
    return b"\x00" + ulong(code) + value


def composite(code: int, fields: Sequence[bytes]) -> bytes:
    """Encode a described list. The standard allows to leave out nulls at the end."""
    count = len(fields)
    while count and fields[count - 1] == NULL:
        count -= 1
    return b"\x00\x53" + bytes((code,)) + list_(fields[:count])


def scalar(value: object) -> bytes:  # noqa: PLR0911 (one line for each type)
    """Encode a plain Python value, such as the decoder returns.

    Raises TypeError for a type that has no AMQP form.
    """
    match value:
        case None:
            return NULL
        case bool():
            return boolean(value)
        case int():
            return int64(value)
        case float():
            return b"\x82" + _F64.pack(value)
        case str():
            return string(value)
        case bytes():
            return binary(value)
        case UUID():
            return uuid(value)
        case Mapping():
            return map_((scalar(key), scalar(item)) for key, item in value.items())
        case list() | tuple():
            return list_([scalar(item) for item in value])
        case _:
            raise TypeError(f"{type(value).__name__} has no AMQP form; give text, bytes or numbers")
