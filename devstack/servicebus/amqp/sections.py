"""Cuts a message into its sections without decoding them: the broker passes most of them on.

Rules: AMQP 1.0, part 3.2 (message format), and the batch format of Service Bus
(message-format 0x80013700: each data section is one whole encoded message).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.errors import DecodeError

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78
BATCH_FORMAT = 0x80013700


class Section(NamedTuple):
    """One section: its code, and the positions of its start, its value and its end."""

    code: int
    start: int
    value_at: int
    end: int


def sections(payload: bytes) -> Iterator[Section]:
    """Cut a message into its sections. Raises DecodeError if it is not an AMQP message.

    Delivery annotations may stand anywhere, and the sections before the bare message in any
    order: azure-servicebus writes its delivery annotations behind the body.
    """
    position, last = 0, HEADER
    while position < len(payload):
        if payload[position] != 0 or position + 3 >= len(payload):
            raise DecodeError(f"a message section is expected at byte {position}")
        code, value_at = decode.decode(payload, position + 1)
        code = code if isinstance(code, int) else 0
        order_matters = last >= PROPERTIES and code != DELIVERY_ANNOTATIONS
        if not HEADER <= code <= FOOTER or (code < last and order_matters):
            raise DecodeError(f"section {code} at byte {position} is unknown or out of order")
        if code <= APPLICATION_PROPERTIES:
            end = decode.compound(payload, value_at)[2]
        else:
            end = decode.skip(payload, value_at)
        yield Section(code, position, value_at, end)
        last, position = max(code, last), end


def unbatch(payload: bytes) -> list[bytes]:
    """Return the messages of a Service Bus batch. Raises DecodeError if it is not a batch."""
    messages = [
        decode.decode(payload, section.value_at)[0]
        for section in sections(payload)
        if section.code == DATA
    ]
    if not all(isinstance(message, bytes) for message in messages):
        raise DecodeError("every data section of a batch holds one message as binary")
    return messages


def pairs(payload: bytes, value_at: int) -> Iterator[tuple[Any, bytes, bytes]]:
    """Walk the map at ``value_at``: each key, the encoded pair, the encoded value."""
    count, position, end = decode.compound(payload, value_at)
    if count % 2:
        raise DecodeError("a map has a key without a value")
    for _ in range(count // 2):
        key, value_position = decode.decode(payload, position)
        pair_end = decode.skip(payload, value_position)
        yield key, payload[position:pair_end], payload[value_position:pair_end]
        position = pair_end
    if position != end:
        raise DecodeError("a map does not fill its size")


def with_application_properties(bare: bytes, added: Mapping[str, bytes]) -> bytes:
    """Add or replace application properties, given as encoded values; return the new message.

    ``bare`` begins at the properties section or later. Its other bytes do not change.
    """
    head_end = tail_start = 0
    others: list[bytes] = []
    for section in sections(bare):
        if section.code == PROPERTIES:
            head_end = tail_start = section.end
        elif section.code == APPLICATION_PROPERTIES:
            head_end, tail_start = section.start, section.end
            others = [raw for key, raw, _ in pairs(bare, section.value_at) if key not in added]
    entries = others + [encode.string(key) + value for key, value in added.items()]
    encoded = encode.map_of_pairs(b"".join(entries), 2 * len(entries))
    return bare[:head_end] + b"\x00\x53\x74" + encoded + bare[tail_start:]
