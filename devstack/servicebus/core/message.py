"""One message on a queue: the sender's bytes, and the few facts that a queue needs.

The broker keeps the bare message (properties, application properties, body) as the sender encoded
it. It rewrites the header and the annotations, because these hold the broker's own facts, for
instance the delivery count and the sequence number. It changes the bare message in two cases only:
it adds a message-id if there is none, and it adds application properties (the reason of a dead
letter, or what a receiver changes when it abandons, defers or dead-letters the message).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID, uuid4

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.amqp.errors import DecodeError
from devstack.servicebus.amqp.sections import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    pairs,
    sections,
    with_application_properties,
)

_EMPTY_HEADER = encode.NULL * 4
_SCHEDULED = "x-opt-scheduled-enqueue-time"
#: Annotations that only the broker sets. It drops them from what a sender sends.
_BROKER_ANNOTATIONS = (
    "x-opt-enqueued-time",
    "x-opt-sequence-number",
    "x-opt-message-state",
    "x-opt-locked-until",
    "x-opt-enqueue-sequence-number",
    "x-opt-deadletter-source",
    "x-opt-lock-token",
)
(
    _ENQUEUED_TIME,
    _SEQUENCE_NUMBER,
    _STATE,
    _LOCKED_UNTIL,
    _ENQUEUED_SEQUENCE,
    _SOURCE,
    _LOCK_TOKEN,
) = map(encode.symbol, _BROKER_ANNOTATIONS)
_GROUP_ID = 10
_NO_OTHER_FIELDS = encode.NULL * (_GROUP_ID - 1)
_U32_MAX = 0xFFFFFFFF


class MessageState(IntEnum):
    """The values of ``x-opt-message-state``."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True, eq=False, kw_only=True)
class Message:
    """A message and its state on a queue. Times are seconds since 1970.

    ``token`` is the lock token, None without a lock.
    """

    sequence: int = 0
    enqueued_sequence: int | None = None
    enqueued_at: float = 0.0
    scheduled_at: float | None = None
    expires_at: float | None = None
    ttl_s: float | None = None
    delivery_count: int = 0
    state: MessageState = MessageState.ACTIVE
    token: bytes | None = None
    locked_until: float = 0.0
    message_id: Any = None
    session_id: str | None = None
    dead_letter_source: str | None = None
    header: bytes = _EMPTY_HEADER
    delivery_annotations: bytes = b""
    annotations: bytes = b""
    annotation_count: int = 0
    bare: bytes = b""
    size: int = 0

    def limit_ttl(self, ttl_s: float) -> None:
        """Lower the time to live to a queue's default, in the header too."""
        if self.ttl_s is not None and self.ttl_s <= ttl_s:
            return
        self.ttl_s = ttl_s
        spans = decode.spans(encode.map_of_pairs(self.header, 4), 0)
        spans[2] = encode.uint(min(int(ttl_s * 1000), _U32_MAX))
        self.header = b"".join(spans)

    def add_properties(self, properties: Mapping[str, bytes]) -> None:
        """Add or replace application properties, given as encoded values.

        If the sender's properties are not an AMQP map, nothing can be added. The message stays as
        it is, because a dead letter without its reason is better than a lost message.
        """
        with suppress(DecodeError):
            self.bare = with_application_properties(self.bare, properties)

    def add_dead_letter_reason(self, reason: str | None, description: str | None) -> None:
        """Add the dead-letter reason to the application properties."""
        texts = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self.add_properties({name: encode.string(text) for name, text in texts.items() if text})


def parse_message(payload: bytes) -> Message:
    """Read an encoded message. Raises DecodeError if it is not a message."""
    message = Message()
    message.size = len(payload)
    bare_sections: list[bytes] = []
    for code, start, value_at, end in sections(payload):
        if code >= PROPERTIES:
            bare_sections.append(payload[start:end])
            if code == PROPERTIES:
                _read_properties(message, payload, value_at)
        elif code == HEADER:
            _read_header(message, payload, value_at)
        elif code == MESSAGE_ANNOTATIONS:
            _read_annotations(message, payload, value_at)
        else:
            annotations = pairs(payload, value_at)
            message.delivery_annotations = b"".join(
                raw for key, raw, _ in annotations if key not in _BROKER_ANNOTATIONS
            )
    message.bare = b"".join(bare_sections)
    if message.message_id is None:
        _assign_message_id(message)
    return message


def _read_header(message: Message, payload: bytes, value_at: int) -> None:
    spans = decode.spans(payload, value_at, 4)[:4]
    header = b"".join(spans)
    if len(header) > 64:
        raise DecodeError("a message header holds more than its five short fields")
    ttl_ms = decode.decode(spans[2])[0]
    if ttl_ms is not None:
        if not isinstance(ttl_ms, int) or ttl_ms < 0:
            raise DecodeError(f"a message's ttl must be a number of milliseconds, not {ttl_ms!r}")
        message.ttl_s = ttl_ms / 1000
    message.header = header


def _read_annotations(message: Message, payload: bytes, value_at: int) -> None:
    annotations = []
    for key, raw, value in pairs(payload, value_at):
        if key in _BROKER_ANNOTATIONS:
            continue
        if key == _SCHEDULED:
            moment = decode.decode(value)[0]
            if moment is not None and not isinstance(moment, int):
                raise DecodeError(f"{_SCHEDULED} must be a timestamp, not {moment!r}")
            message.scheduled_at = None if moment is None else moment / 1000
        annotations.append(raw)
    message.annotations = b"".join(annotations)
    message.annotation_count = 2 * len(annotations)


def _read_properties(message: Message, payload: bytes, value_at: int) -> None:
    count, position, _ = decode.compound(payload, value_at)
    if not count:
        return
    message_id, position = decode.decode(payload, position)
    if isinstance(message_id, list | dict | Described | float | bool):
        raise DecodeError("a message-id must be text, a number, a uuid or bytes")
    message.message_id = message_id
    if count > _GROUP_ID:
        if payload.startswith(_NO_OTHER_FIELDS, position):
            position += len(_NO_OTHER_FIELDS)
        else:
            for _ in range(_GROUP_ID - 1):
                position = decode.skip(payload, position)
        session_id = decode.decode(payload, position)[0]
        if session_id is not None and not isinstance(session_id, str):
            raise DecodeError(f"a group-id (session id) must be text, not {session_id!r}")
        message.session_id = session_id


def read_identity(message: Message) -> None:
    """Read message-id and session-id from the message's own bytes, after a restart."""
    for section in sections(message.bare):
        if section.code == PROPERTIES:
            _read_properties(message, message.bare, section.value_at)


def _assign_message_id(message: Message) -> None:
    message.message_id = uuid4().hex
    fields, rest = [encode.NULL], message.bare
    section = next(sections(message.bare), None)
    if section is not None and section.code == PROPERTIES:
        fields = decode.spans(message.bare, section.value_at) or fields
        rest = message.bare[section.end :]
    fields[0] = encode.string(message.message_id)
    message.bare = encode.composite(PROPERTIES, fields) + rest


def encode_message(message: Message) -> bytes:
    """Encode a message as a receiver or a peek sees it.

    The delivery count is written even if it is 0, because the .NET SDK needs the field.
    """
    header = message.header + encode.uint(message.delivery_count)
    head = b"\x00\x53\x70\xc0" + bytes((1 + len(header), 5)) + header
    broker_annotations = [
        _ENQUEUED_TIME + encode.timestamp(message.enqueued_at),
        _SEQUENCE_NUMBER + encode.int64(message.sequence),
        _STATE + encode.int32(message.state),
    ]
    delivery_annotations = message.delivery_annotations
    if message.token is not None:
        broker_annotations.append(_LOCKED_UNTIL + encode.timestamp(message.locked_until))
        delivery_annotations += _LOCK_TOKEN + encode.uuid(UUID(bytes_le=message.token))
    if message.enqueued_sequence is not None:
        broker_annotations.append(_ENQUEUED_SEQUENCE + encode.int64(message.enqueued_sequence))
    if message.dead_letter_source is not None:
        broker_annotations.append(_SOURCE + encode.string(message.dead_letter_source))
    annotations = message.annotations + b"".join(broker_annotations)
    if delivery_annotations:
        count = decode.count_values(delivery_annotations)
        head += encode.described(
            DELIVERY_ANNOTATIONS, encode.map_of_pairs(delivery_annotations, count)
        )
    count = message.annotation_count + 2 * len(broker_annotations)
    head += encode.described(MESSAGE_ANNOTATIONS, encode.map_of_pairs(annotations, count))
    return head + message.bare
