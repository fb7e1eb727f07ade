"""Decodes AMQP 1.0 values into plain Python values, with every length checked.

Symbols and strings become ``str``, every integer ``int``, timestamps milliseconds since 1970,
arrays and lists ``list``. The wire type of a value is lost by that. So where the broker must send a
value back with its type, it sends the raw bytes between two positions.

Limits: values nest at most ``MAX_DEPTH`` deep, and a compound cannot claim more items than its
bytes can hold. Items without bytes (nulls, for example) are the exception: one array may claim
``_MAX_ZERO_WIDTH_ITEMS`` of them. So a frame of 64 KiB full of such arrays takes about 200 MB.
Rules: AMQP 1.0, part 1 (types).
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from devstack.servicebus.amqp.errors import DecodeError

MAX_DEPTH = 16
_MAX_ZERO_WIDTH_ITEMS = 4096
_U32 = struct.Struct(">I").unpack_from
#: Bytes of a value by the upper half of its constructor; from 0xA on a size precedes the value.
_WIDTHS = (0, 0, 0, 0, 0, 1, 2, 4, 8, 16)
_LISTS, _MAPS, _ARRAYS = (0x45, 0xC0, 0xD0), (0xC1, 0xD1), (0xE0, 0xF0)

#: Values that are a constructor alone.
_CONSTANTS: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_BYTES = (0x50, 0x52, 0x53)
_signed = partial(int.from_bytes, byteorder="big", signed=True)
_unsigned = partial(int.from_bytes, byteorder="big")
_SCALARS: dict[int, Callable[[bytes], Any]] = {
    **dict.fromkeys((0x50, 0x52, 0x53, 0x60, 0x70, 0x80), _unsigned),
    **dict.fromkeys((0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83), _signed),
    **dict.fromkeys((0x74, 0x84, 0x94, 0xA0, 0xB0), bytes),
    **dict.fromkeys((0xA1, 0xA3, 0xB1, 0xB3), bytes.decode),
    0x56: lambda raw: raw == b"\x01",
    0x72: lambda raw: struct.unpack(">f", raw)[0],
    0x73: lambda raw: raw.decode("utf-32-be"),
    0x82: lambda raw: struct.unpack(">d", raw)[0],
    0x98: lambda raw: UUID(bytes=raw),
}


class Described(NamedTuple):
    """A value with its descriptor: a number for what AMQP defines, else a symbol."""

    descriptor: Any
    value: Any


def decode(buffer: bytes, position: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Decode the value at ``position``; return it and the position behind it.

    Raises DecodeError if the bytes are not an AMQP value.
    """
    code = _constructor(buffer, position)
    if code in _CONSTANTS:
        return _CONSTANTS[code], position + 1
    if code in _BYTES:  # a shortcut for the most frequent numbers
        return _constructor(buffer, position + 1), position + 2
    if code:
        return _value(buffer, code, position + 1, depth)
    if depth > MAX_DEPTH:
        raise DecodeError(f"values nest more than {MAX_DEPTH} deep")
    descriptor, position = decode(buffer, position + 1, depth + 1)
    value, position = decode(buffer, position, depth + 1)
    return Described(descriptor, value), position


def skip(buffer: bytes, position: int, depth: int = 0) -> int:
    """Return the position behind the value at ``position`` without decoding it."""
    code = _constructor(buffer, position)
    if code:
        return _content(buffer, code, position + 1)[1]
    if depth > MAX_DEPTH:
        raise DecodeError(f"descriptors nest more than {MAX_DEPTH} deep")
    return skip(buffer, skip(buffer, position + 1, depth + 1), depth + 1)


def compound(buffer: bytes, position: int) -> tuple[int, int, int]:
    """Read the head of the list or map at ``position``: item count, first item, end."""
    code = _constructor(buffer, position)
    if code not in _LISTS and code not in _MAPS:
        raise DecodeError(f"0x{code:02x} at byte {position} is neither a list nor a map")
    return _head(buffer, code, position + 1)


def fields(buffer: bytes, position: int) -> tuple[list[Any], int]:
    """Decode the list at ``position``; return its values and the position behind it."""
    count, first, end = compound(buffer, position)
    return _items(buffer, first, end=end, count=count, depth=0), end


def spans(buffer: bytes, position: int, count_min: int = 0) -> list[bytes]:
    """Cut the list at ``position`` into its items, each still encoded.

    Senders leave out nulls at the end, so the result is filled with nulls up to ``count_min``.
    """
    count, first, end = compound(buffer, position)
    items, start = [], first
    for _ in range(count):
        item_end = skip(buffer, start)
        items.append(buffer[start:item_end])
        start = item_end
    if start != end:
        raise DecodeError(f"the list at byte {position} does not fill its size")
    return items + [b"\x40"] * (count_min - len(items))


def count_values(buffer: bytes) -> int:
    """Count the encoded values in ``buffer``."""
    count = position = 0
    while position < len(buffer):
        position = skip(buffer, position)
        count += 1
    return count


# The functions below take the position behind a constructor, because the items of an array
# share one constructor.


def _constructor(buffer: bytes, position: int) -> int:
    if position >= len(buffer):
        raise DecodeError(f"the value at byte {position} is cut short")
    return buffer[position]


def _content(buffer: bytes, code: int, position: int) -> tuple[int, int]:
    """Return start and end of a value's bytes, behind its size if it has one."""
    category, available = code >> 4, len(buffer)  # part 1.2 calls the upper half the category
    if category < 10:
        start, end = position, position + _WIDTHS[category]
        if category < 4:
            raise DecodeError(f"0x{code:02x} is not an AMQP constructor")
    elif category & 1:
        start = position + 4
        end = start + _U32(buffer, position)[0] if start <= available else start
    else:
        start = position + 1
        end = start + buffer[position] if start <= available else start
    if end > available:
        raise DecodeError(f"the value at byte {position - 1} is cut short")
    return start, end


def _head(buffer: bytes, code: int, position: int) -> tuple[int, int, int]:
    """Return the item count of a compound or an array, the position behind it, and the end."""
    start, end = _content(buffer, code, position)
    if code == 0x45:
        return 0, start, end
    first = start + (4 if code & 0x10 else 1)
    if first <= end:
        count = _U32(buffer, start)[0] if code & 0x10 else buffer[start]
        if count <= end - first or code in _ARRAYS:
            return count, first, end
    raise DecodeError(f"the compound at byte {position - 1} claims more than it holds")


def _value(buffer: bytes, code: int, position: int, depth: int) -> tuple[Any, int]:
    convert = _SCALARS.get(code)
    if convert is not None:
        start, end = _content(buffer, code, position)
        try:
            return convert(buffer[start:end]), end
        except UnicodeDecodeError:
            raise DecodeError(f"the text at byte {position - 1} is not UTF-8") from None
    if code in _CONSTANTS:  # an item of an array
        return _CONSTANTS[code], position
    if code not in (*_LISTS, *_MAPS, *_ARRAYS):
        raise DecodeError(f"0x{code:02x} is not an AMQP constructor")
    count, first, end = _head(buffer, code, position)
    if code in _ARRAYS:
        return _array(buffer, first, end=end, count=count, depth=depth), end
    items = _items(buffer, first, end=end, count=count, depth=depth)
    if code in _LISTS:
        return items, end
    if len(items) % 2:
        raise DecodeError(f"the map at byte {position - 1} has a key without a value")
    try:
        return dict(zip(items[::2], items[1::2], strict=True)), end
    except TypeError:
        raise DecodeError(f"the map at byte {position - 1} has a compound as a key") from None


def _items(buffer: bytes, position: int, end: int, count: int, depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise DecodeError(f"values nest more than {MAX_DEPTH} deep")
    values = []
    for _ in range(count):
        value, position = decode(buffer, position, depth + 1)
        values.append(value)
    if position != end:
        raise DecodeError(f"a compound ends at byte {position} and not at {end} as it claims")
    return values


def _array(buffer: bytes, position: int, end: int, count: int, depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise DecodeError(f"values nest more than {MAX_DEPTH} deep")
    descriptor = None
    code = _constructor(buffer, position)
    position += 1
    is_described = code == 0
    if is_described:
        descriptor, position = decode(buffer, position, depth + 1)
        code = _constructor(buffer, position)
        position += 1
    count_max = _MAX_ZERO_WIDTH_ITEMS if code >> 4 == 4 else end - position
    if count > count_max:
        raise DecodeError(f"an array claims {count} items in {end - position} bytes")
    values = []
    for _ in range(count):
        value, position = _value(buffer, code, position, depth + 1)
        values.append(Described(descriptor, value) if is_described else value)
    if position != end:
        raise DecodeError(f"an array ends at byte {position} and not at {end} as it claims")
    return values
