"""One message on a queue: its bytes as they came, and the few facts a queue decides by.

The bare message (properties, application properties, body) is kept as the sender encoded it.
Only the header, the annotations and, for dead letters, the application properties are
rewritten, because only those carry what the broker knows.
"""

import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any
from uuid import uuid4

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.amqp.errors import DecodeError
from devstack.servicebus.amqp.sections import (
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    pairs,
    section_at,
    sections,
    with_application_properties,
)

_EMPTY_HEADER = encode.NULL * 4
_SCHEDULED = "x-opt-scheduled-enqueue-time"
_BROKER_OWNS = {
    "x-opt-enqueued-time",
    "x-opt-sequence-number",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    "x-opt-lock-token",
}
_GROUP_ID = 10
_LIST8 = 0xC0
_NOTHING_BETWEEN = encode.NULL * (_GROUP_ID - 1)
_NO_GROUP = encode.NULL * _GROUP_ID
_U32 = struct.Struct(">I").unpack_from
_U32_MAX = 0xFFFFFFFF


class MessageState(IntEnum):
    """What ``x-opt-message-state`` says."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class Message:
    """A message and its place in the life of a queue. Moments are seconds since 1970."""

    __slots__ = (
        "annotation_count",
        "annotations",
        "bare",
        "dead_letter_source",
        "delivery_annotations",
        "delivery_count",
        "enqueued_at",
        "enqueued_sequence",
        "expires_at",
        "header",
        "locked_until",
        "message_id",
        "scheduled_at",
        "sequence",
        "session_id",
        "size",
        "state",
        "token",
        "ttl_s",
    )

    def __init__(self) -> None:
        self.sequence = 0
        self.enqueued_sequence: int | None = None
        self.enqueued_at = 0.0
        self.scheduled_at: float | None = None
        self.expires_at: float | None = None
        self.ttl_s: float | None = None
        self.delivery_count = 0
        self.state = MessageState.ACTIVE
        self.token: bytes | None = None
        self.locked_until = 0.0
        self.message_id: Any = None
        self.session_id: str | None = None
        self.dead_letter_source: str | None = None
        self.header = _EMPTY_HEADER
        self.delivery_annotations = b""
        self.annotations = b""
        self.annotation_count = 0
        self.bare = b""
        self.size = 0

    def limit_ttl(self, ttl_s: float) -> None:
        """Lower the time to live to a queue's default, and say so in the header."""
        if self.ttl_s is not None and self.ttl_s <= ttl_s:
            return
        self.ttl_s = ttl_s
        spans = decode.spans(encode.list_of_raw(self.header, 4), 0)
        spans[2] = encode.uint(min(int(ttl_s * 1000), _U32_MAX))
        self.header = b"".join(spans)

    def add_properties(self, added: Mapping[str, Any]) -> None:
        """Add application properties.

        Raises TypeError for values AMQP cannot carry, DecodeError where the sender's are broken.
        """
        encoded = {key: encode.scalar(value) for key, value in added.items()}
        self.bare = with_application_properties(self.bare, encoded)

    def tell_reason(self, reason: str | None, description: str | None) -> None:
        """Say in the application properties why this is a dead letter.

        A sender's properties that are no AMQP map cannot take the reason; the message is kept
        all the same, because a dead letter without its reason is better than none.
        """
        told = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        with suppress(DecodeError):
            self.add_properties({key: text for key, text in told.items() if text is not None})


def parse_message(payload: bytes) -> Message:
    """Read an encoded message. Raises DecodeError where it is none."""
    message = Message()
    message.size = len(payload)
    if _is_bare(payload):
        message.bare = payload
        _read_properties(message, payload, 3)
    else:
        _read_sections(message, payload)
    if message.message_id is None:
        _assign_message_id(message)
    return message


def _is_bare(payload: bytes) -> bool:
    """Whether this is what SDKs send most: properties, perhaps application properties, and data.

    Properties are a short list, and data is one section up to the end.
    """
    size = len(payload)
    if size < 8 or not payload.startswith(b"\x00\x53\x73\xc0") or payload[5] >= payload[4]:
        return False
    at = 5 + payload[4]
    if payload.startswith(b"\x00\x53\x74\xc1", at) and at + 5 < size:
        if payload[at + 5] >= payload[at + 4]:
            return False
        at += 5 + payload[at + 4]
    if payload.startswith(b"\x00\x53\x75\xb0", at) and at + 8 <= size:
        return bool(at + 8 + _U32(payload, at + 4)[0] == size)
    if payload.startswith(b"\x00\x53\x75\xa0", at) and at + 5 <= size:
        return at + 5 + payload[at + 4] == size
    return False


def _read_sections(message: Message, payload: bytes) -> None:
    size = message.size
    bare_at = -1
    position, last = 0, HEADER
    while position < size:
        code, value_at, end = section_at(payload, position, last)
        if code >= PROPERTIES:
            last = code
            if bare_at < 0:
                bare_at = position
            if code == PROPERTIES:
                _read_properties(message, payload, value_at)
        elif code == HEADER:
            _read_header(message, payload, value_at)
        elif code == MESSAGE_ANNOTATIONS:
            _read_annotations(message, payload, value_at)
        else:
            kept = [raw for key, raw, _ in pairs(payload, value_at) if key not in _BROKER_OWNS]
            message.delivery_annotations = b"".join(kept)
            if bare_at >= 0:
                payload = payload[:position] + payload[end:]
                size, end = len(payload), position
        position = end
    message.bare = payload[bare_at:] if bare_at >= 0 else b""


def _read_header(message: Message, payload: bytes, value_at: int) -> None:
    spans = decode.spans(payload, value_at)[:4]
    spans += [encode.NULL] * (4 - len(spans))
    header = b"".join(spans)
    if len(header) > 64:
        raise DecodeError("a message header holds more than its five short fields")
    ttl_ms = decode.decode(spans[2])[0]
    if ttl_ms is not None:
        if not isinstance(ttl_ms, int) or ttl_ms < 0:
            raise DecodeError(f"a message's ttl is milliseconds, not {ttl_ms!r}")
        message.ttl_s = ttl_ms / 1000
    message.header = header


def _read_annotations(message: Message, payload: bytes, value_at: int) -> None:
    kept = []
    for key, raw, position in pairs(payload, value_at):
        if key in _BROKER_OWNS:
            continue
        if key == _SCHEDULED:
            moment = decode.decode(payload, position)[0]
            if moment is not None and not isinstance(moment, int):
                raise DecodeError(f"{_SCHEDULED} is a timestamp, not {moment!r}")
            message.scheduled_at = None if moment is None else moment / 1000
        kept.append(raw)
    message.annotations = b"".join(kept)
    message.annotation_count = 2 * len(kept)


def _read_properties(message: Message, payload: bytes, value_at: int) -> None:
    if payload[value_at] == _LIST8:  # its size was checked when the section was cut
        count, position = payload[value_at + 2], value_at + 3
    else:
        count, position, _ = decode.compound(payload, value_at)
    if not count:
        return
    message_id, position = decode.decode(payload, position)
    if isinstance(message_id, list | dict | Described | float | bool):
        raise DecodeError("a message-id is text, a number, a uuid or bytes")
    message.message_id = message_id
    if count > _GROUP_ID and not payload.startswith(_NO_GROUP, position):
        if payload.startswith(_NOTHING_BETWEEN, position):
            position += len(_NOTHING_BETWEEN)
        else:
            for _ in _NOTHING_BETWEEN:
                position = decode.skip(payload, position)
        session_id = decode.decode(payload, position)[0]
        if session_id is not None and not isinstance(session_id, str):
            raise DecodeError(f"a group-id (session id) is text, not {session_id!r}")
        message.session_id = session_id


def read_identity(message: Message) -> None:
    """Read message-id and session-id from a message's own bytes, after a restart."""
    for section in sections(message.bare):
        if section.code == PROPERTIES:
            _read_properties(message, message.bare, section.value_at)


def _assign_message_id(message: Message) -> None:
    message.message_id = uuid4().hex
    fields, rest = [encode.NULL], message.bare
    first = next(sections(message.bare), None)
    if first is not None and first.code == PROPERTIES:
        fields = decode.spans(message.bare, first.value_at) or fields
        rest = message.bare[first.end :]
    fields[0] = encode.string(message.message_id)
    message.bare = encode.composite(PROPERTIES, fields) + rest
