"""Decoding AMQP 1.0 values into plain Python values, with every length checked.

Symbols and strings become ``str``, every integer ``int``, timestamps milliseconds since 1970,
arrays and lists ``list``. The decoder drops wire types: the broker echoes a value with its type
as the raw bytes between two positions.

Limits: values nest at most ``MAX_DEPTH`` deep, and a compound cannot claim more items than its
bytes can hold. So a frame cannot make the broker allocate more than a small multiple of the
frame's size. Rules: AMQP 1.0, part 1 (types).
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from devstack.servicebus.amqp.errors import DecodeError

MAX_DEPTH = 16
_MAX_ZERO_WIDTH_ITEMS = 4096

Reader = Callable[[bytes, int, int], tuple[Any, int]]


class Described(NamedTuple):
    """A value with its descriptor: a number for what AMQP defines, else a symbol."""

    descriptor: Any
    value: Any


def decode(buffer: bytes, position: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Decode the value at ``position``; return it and the position behind it.

    Raises DecodeError if the bytes are not an AMQP value.
    """
    try:
        return _READERS[buffer[position]](buffer, position + 1, depth)
    except (IndexError, struct.error):
        raise DecodeError(f"the value at byte {position} is cut short") from None
    except UnicodeDecodeError:
        raise DecodeError(f"the text at byte {position} is not UTF-8") from None


def skip(buffer: bytes, position: int, depth: int = 0) -> int:
    """Return the position behind the value at ``position`` without decoding it."""
    try:
        code = buffer[position]
        width = _WIDTHS[code >> 4]
        if width > 0:
            end = position + width
        elif width == _SIZE_IN_ONE:
            end = position + 2 + buffer[position + 1]
        elif width == _SIZE_IN_FOUR:
            end = position + 5 + int(_U32(buffer, position + 1)[0])
        elif code == 0:
            if depth > MAX_DEPTH:
                raise DecodeError(f"descriptors nest more than {MAX_DEPTH} deep")
            return skip(buffer, skip(buffer, position + 1, depth + 1), depth + 1)
        else:
            raise DecodeError(f"0x{code:02x} is not an AMQP constructor")
    except (IndexError, struct.error):
        raise DecodeError(f"the value at byte {position} is cut short") from None
    if end > len(buffer):
        raise DecodeError(f"the value at byte {position} is cut short")
    return end


def compound(buffer: bytes, position: int) -> tuple[int, int, int]:
    """Read the head of the list or map at ``position``: item count, first item, end."""
    try:
        code = buffer[position]
        if code == 0x45:
            return 0, position + 1, position + 1
        if code in {0xC0, 0xC1}:
            size, count, first = buffer[position + 1], buffer[position + 2], position + 3
            end = position + 2 + size
        elif code in {0xD0, 0xD1}:
            size, count = _TWO_U32(buffer, position + 1)
            first, end = position + 9, position + 5 + size
        else:
            raise DecodeError(f"0x{code:02x} at byte {position} is neither a list nor a map")
    except (IndexError, struct.error):
        raise DecodeError(f"the compound at byte {position} is cut short") from None
    if end > len(buffer) or first > end or count > end - first:
        raise DecodeError(f"the compound at byte {position} claims more than it holds")
    return count, first, end


def fields(buffer: bytes, position: int) -> tuple[list[Any], int]:
    """Decode the list at ``position``; return its values and the position behind it."""
    count, first, end = compound(buffer, position)
    try:
        return _items(buffer, first, end, count, 0), end
    except (IndexError, struct.error):
        raise DecodeError(f"a value in the list at byte {position} is cut short") from None
    except UnicodeDecodeError:
        raise DecodeError(f"a text in the list at byte {position} is not UTF-8") from None


def spans(buffer: bytes, position: int) -> list[bytes]:
    """Cut the list at ``position`` into its items, each still encoded."""
    count, first, end = compound(buffer, position)
    found = []
    for _ in range(count):
        behind = skip(buffer, first)
        found.append(buffer[first:behind])
        first = behind
    if first != end:
        raise DecodeError(f"the list at byte {position} does not fill its size")
    return found


def count_values(buffer: bytes) -> int:
    """Count the encoded values in ``buffer``."""
    count = position = 0
    while position < len(buffer):
        position = skip(buffer, position)
        count += 1
    return count


def _items(buffer: bytes, position: int, end: int, count: int, depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise DecodeError(f"values nest more than {MAX_DEPTH} deep")
    found = []
    readers = _READERS
    for _ in range(count):
        value, position = readers[buffer[position]](buffer, position + 1, depth + 1)
        found.append(value)
    if position != end:
        raise DecodeError(f"a compound ends at byte {position} and not at {end} as it claims")
    return found


def _list(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    count, first, end = compound(buffer, position - 1)
    return _items(buffer, first, end, count, depth), end


def _map(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    items, end = _list(buffer, position, depth)
    if len(items) % 2:
        raise DecodeError(f"the map at byte {position - 1} has a key without a value")
    try:
        return dict(zip(items[::2], items[1::2], strict=True)), end
    except TypeError:
        raise DecodeError(f"the map at byte {position - 1} has a compound as a key") from None


def _array8(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    end = position + 1 + buffer[position]
    return _array(buffer, position + 2, end, buffer[position + 1], depth)


def _array32(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    size, count = _TWO_U32(buffer, position)
    return _array(buffer, position + 8, position + 4 + size, count, depth)


def _array(buffer: bytes, position: int, end: int, count: int, depth: int) -> tuple[list[Any], int]:
    if end > len(buffer) or depth > MAX_DEPTH:
        raise DecodeError(f"the array at byte {position} is cut short or nests too deep")
    descriptor = None
    code = buffer[position]
    position += 1
    described = code == 0
    if described:
        descriptor, position = decode(buffer, position, depth + 1)
        code = buffer[position]
        position += 1
    allowed = _MAX_ZERO_WIDTH_ITEMS if code >> 4 == 4 else end - position
    if count > allowed:
        raise DecodeError(f"an array claims {count} items in {end - position} bytes")
    reader = _READERS[code]
    found = []
    for _ in range(count):
        value, position = reader(buffer, position, depth + 1)
        found.append(Described(descriptor, value) if described else value)
    if position != end:
        raise DecodeError(f"an array ends at byte {position} and not at {end} as it claims")
    return found, end


def _described(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise DecodeError(f"values nest more than {MAX_DEPTH} deep")
    descriptor, position = _READERS[buffer[position]](buffer, position + 1, depth + 1)
    value, position = _READERS[buffer[position]](buffer, position + 1, depth + 1)
    return Described(descriptor, value), position


def _constant(value: Any) -> Reader:
    return lambda _buffer, position, _depth: (value, position)


def _fixed(layout: str) -> Reader:
    unpacker = struct.Struct(layout)
    unpack, size = unpacker.unpack_from, unpacker.size
    return lambda buffer, position, _depth: (unpack(buffer, position)[0], position + size)


def _byte(buffer: bytes, position: int, _depth: int) -> tuple[Any, int]:
    return buffer[position], position + 1


def _opaque(convert: Callable[[bytes], Any], size: int) -> Reader:
    def read(buffer: bytes, position: int, _depth: int) -> tuple[Any, int]:
        end = position + size
        if end > len(buffer):
            raise DecodeError(f"the value at byte {position - 1} is cut short")
        return convert(buffer[position:end]), end

    return read


def _variable(width: int, convert: Callable[[bytes], Any]) -> Reader:
    """Make a reader of bytes that follow their size, which has ``width`` bytes."""

    def read(buffer: bytes, position: int, _depth: int) -> tuple[Any, int]:
        start = position + width
        end = start + (buffer[position] if width == 1 else int(_U32(buffer, position)[0]))
        if end > len(buffer):
            raise DecodeError(f"the value at byte {position - 1} is cut short")
        return convert(buffer[start:end]), end

    return read


def _unknown(buffer: bytes, position: int, _depth: int) -> tuple[Any, int]:
    raise DecodeError(f"0x{buffer[position - 1]:02x} is not an AMQP constructor")


def _bool8(buffer: bytes, position: int, _depth: int) -> tuple[Any, int]:
    return buffer[position] == 1, position + 1


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _character(raw: bytes) -> str:
    return raw.decode("utf-32-be")


_U32 = struct.Struct(">I").unpack_from
_TWO_U32 = struct.Struct(">II").unpack_from
_SIZE_IN_ONE, _SIZE_IN_FOUR = -1, -4
#: Bytes of a value by the upper half of its constructor; 0 if that does not tell the size.
_WIDTHS = (0, 0, 0, 0, 1, 2, 3, 5, 9, 17) + (_SIZE_IN_ONE, _SIZE_IN_FOUR) * 3
_TABLE: dict[int, Reader] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda _buffer, position, _depth: ([], position),
    0x50: _byte,
    0x51: _fixed(">b"),
    0x52: _byte,
    0x53: _byte,
    0x54: _fixed(">b"),
    0x55: _fixed(">b"),
    0x56: _bool8,
    0x60: _fixed(">H"),
    0x61: _fixed(">h"),
    0x70: _fixed(">I"),
    0x71: _fixed(">i"),
    0x72: _fixed(">f"),
    0x73: _opaque(_character, 4),
    0x74: _opaque(bytes, 4),
    0x80: _fixed(">Q"),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _fixed(">q"),
    0x84: _opaque(bytes, 8),
    0x94: _opaque(bytes, 16),
    0x98: _opaque(_uuid, 16),
    0xA0: _variable(1, bytes),
    0xA1: _variable(1, bytes.decode),
    0xA3: _variable(1, bytes.decode),
    0xB0: _variable(4, bytes),
    0xB1: _variable(4, bytes.decode),
    0xB3: _variable(4, bytes.decode),
    0xC0: _list,
    0xC1: _map,
    0xD0: _list,
    0xD1: _map,
    0xE0: _array8,
    0xF0: _array32,
}
_READERS: list[Reader] = [_TABLE.get(code, _unknown) for code in range(256)]
