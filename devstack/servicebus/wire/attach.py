"""Reading an attach, and writing its answer."""

from typing import Any, NamedTuple

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.amqp.errors import AmqpError, DecodeError

SESSION_FILTER = "com.microsoft:session-filter"
_FIELDS = 14
_FILTER = 7
_COORDINATOR = 0x30


class Attach(NamedTuple):
    """What a peer asks for. ``receives`` says that the peer is the receiver, and we send."""

    name: str
    handle: int
    receives: bool
    sender_settles: int
    receiver_settles: int
    source: bytes
    target: bytes
    source_address: str | None
    target_address: str | None
    filters: dict[str, Any]
    initial_delivery_count: int
    properties: dict[str, Any]

    @property
    def address(self) -> str | None:
        """The address of the side that is the broker's."""
        return self.source_address if self.receives else self.target_address


def read_attach(body: bytes, position: int) -> Attach:
    """Read an attach. Raises DecodeError where it lacks what it must have."""
    raw = decode.spans(body, position)
    raw += [encode.NULL] * (_FIELDS - len(raw))
    name, handle, receives, sender, receiver = (decode.decode(raw[n])[0] for n in range(5))
    if not isinstance(name, str) or not isinstance(handle, int) or not isinstance(receives, bool):
        raise DecodeError("an attach needs a name, a handle and a role")
    source, filters = _terminus(raw[5], frames.SOURCE)
    target, _ = _terminus(raw[6], frames.TARGET)
    count, properties = decode.decode(raw[9])[0], decode.decode(raw[13])[0]
    return Attach(
        name,
        handle,
        receives,
        sender if isinstance(sender, int) else 2,
        receiver if isinstance(receiver, int) else 0,
        raw[5],
        raw[6],
        source,
        target,
        filters,
        count if isinstance(count, int) else 0,
        properties if isinstance(properties, dict) else {},
    )


def _terminus(raw: bytes, code: int) -> tuple[str | None, dict[str, Any]]:
    value, _ = decode.decode(raw)
    if value is None:
        return None, {}
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise DecodeError("a source or target is no terminus of AMQP 1.0")
    if value.descriptor == _COORDINATOR:
        raise AmqpError("amqp:not-implemented", "this broker serves no transactions")
    if value.descriptor != code:
        raise DecodeError(f"{value.descriptor!r} is no terminus of AMQP 1.0")
    fields = value.value
    address = fields[0] if fields else None
    filters = fields[_FILTER] if code == frames.SOURCE and len(fields) > _FILTER else None
    named = filters if isinstance(filters, dict) else {}
    return address if isinstance(address, str) else None, named


def session_filter(attach: Attach) -> tuple[bool, Any]:
    """Say whether a session is asked for, and which: text, None for the next free, or worse."""
    if SESSION_FILTER not in attach.filters:
        return False, None
    value = attach.filters[SESSION_FILTER]
    return True, value.value if isinstance(value, Described) else value


def source_with_session(source: bytes, session_id: str) -> bytes:
    """Give the source back with the session that was chosen in its filter."""
    _, position = decode.decode(source, 1)
    fields = decode.spans(source, position)
    fields += [encode.NULL] * (_FILTER + 1 - len(fields))
    fields[_FILTER] = encode.map_([(encode.symbol(SESSION_FILTER), encode.string(session_id))])
    return encode.composite(frames.SOURCE, fields)


def write_attach(
    attach: Attach,
    handle: int,
    *,
    source: bytes | None = None,
    refused: bool = False,
    max_message_bytes: int = 0,
    properties: bytes = encode.NULL,
) -> bytes:
    """Answer an attach by echoing it.

    Where it is ``refused`` the broker's own terminus is null: with an echoed one the SDKs
    believe that the link has opened.
    """
    ours = encode.NULL if refused else None
    fields = [
        encode.string(attach.name),
        encode.uint(handle),
        encode.boolean(not attach.receives),
        encode.ubyte(attach.sender_settles & 0xFF),
        encode.ubyte(attach.receiver_settles & 0xFF),
        (ours if attach.receives else None) or source or attach.source,
        (None if attach.receives else ours) or attach.target,
        encode.NULL,
        encode.NULL,
        encode.uint(0) if attach.receives else encode.NULL,
        encode.ulong(max_message_bytes) if max_message_bytes else encode.NULL,
        encode.NULL,
        encode.NULL,
        properties,
    ]
    return encode.composite(frames.ATTACH, fields)
