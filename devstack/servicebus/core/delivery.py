"""A message as a receiver sees it: its own bytes, behind what the broker knows of it."""

import struct
from uuid import UUID

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.core.message import Message, MessageState

_KEY_ENQUEUED = encode.symbol("x-opt-enqueued-time") + b"\x83"
_KEY_SEQUENCE = encode.symbol("x-opt-sequence-number") + b"\x81"
_KEY_ENQUEUED_SEQUENCE = encode.symbol("x-opt-enqueue-sequence-number") + b"\x81"
_KEY_LOCKED = encode.symbol("x-opt-locked-until") + b"\x83"
_KEY_SOURCE = encode.symbol("x-opt-deadletter-source")
_STATE_PAIRS = [
    encode.symbol("x-opt-message-state") + encode.int32(state) for state in MessageState
]
_I64 = struct.Struct(">q").pack
_ALWAYS = f">{len(_KEY_ENQUEUED)}sq{len(_KEY_SEQUENCE)}sq{len(_STATE_PAIRS[0])}s"
_FREE = struct.Struct(_ALWAYS).pack
_HELD = struct.Struct(f"{_ALWAYS}{len(_KEY_LOCKED)}sq").pack
_LITTLE_UUID, _BIG_UUID = struct.Struct("<IHH8s").unpack, struct.Struct(">IHH8s").pack
_LOCK_TOKEN_SECTION = b"\x00\x53\x71" + encode.map_of_pairs(
    encode.symbol("x-opt-lock-token") + b"\x98" + bytes(16), 2
)
_LOCK_TOKEN_PREFIX = _LOCK_TOKEN_SECTION[:-16]
_MAP32 = struct.Struct(">3sBII").pack
_HEADER_PREFIX = b"\x00\x53\x70\xc0"


def encode_message(message: Message) -> bytes:
    """Encode a message as a receiver or a peek sees it.

    The delivery count is always written, from 0, because the .NET SDK needs it there.
    """
    header = message.header + encode.uint(message.delivery_count)
    token, values = message.token, message.annotation_count + 6
    enqueued, state = int(message.enqueued_at * 1000), _STATE_PAIRS[message.state]
    if token is None:
        annotations = _FREE(_KEY_ENQUEUED, enqueued, _KEY_SEQUENCE, message.sequence, state)
    else:
        locked = int(message.locked_until * 1000)
        annotations = _HELD(
            _KEY_ENQUEUED, enqueued, _KEY_SEQUENCE, message.sequence, state, _KEY_LOCKED, locked
        )
        values += 2
    if message.enqueued_sequence is not None:
        annotations += _KEY_ENQUEUED_SEQUENCE + _I64(message.enqueued_sequence)
        values += 2
    if message.dead_letter_source is not None:
        annotations += _KEY_SOURCE + encode.string(message.dead_letter_source)
        values += 2
    if message.annotations:
        annotations = message.annotations + annotations
    head = _HEADER_PREFIX + bytes((1 + len(header), 5)) + header
    if message.delivery_annotations:
        head += _delivery_annotations(message)
    elif token is not None:
        head += _LOCK_TOKEN_PREFIX + _BIG_UUID(*_LITTLE_UUID(token))
    size = len(annotations) + 4
    return head + _MAP32(b"\x00\x53\x72", 0xD1, size, values) + annotations + message.bare


def _delivery_annotations(message: Message) -> bytes:
    """Encode the sender's delivery annotations, which the service passes on, with the token."""
    joined = message.delivery_annotations
    if message.token is not None:
        joined += encode.symbol("x-opt-lock-token") + encode.uuid(UUID(bytes_le=message.token))
    count, position = 0, 0
    while position < len(joined):
        position = decode.skip(joined, position)
        count += 1
    return b"\x00\x53\x71" + encode.map_of_pairs(joined, count)
