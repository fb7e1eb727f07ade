"""Reads and answers the performatives that open connections, sessions and links."""

from typing import Any, NamedTuple

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.amqp.errors import DecodeError
from devstack.servicebus.wire.context import Limits

SESSION_FILTER = "com.microsoft:session-filter"
WINDOW = encode.uint(0x7FFFFFFF)
_MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "MSSBCBS")
_OFFER = encode.composite(
    frames.SASL_MECHANISMS, [encode.array([encode.symbol(name) for name in _MECHANISMS])]
)
#: The broker accepts any mechanism, because a client proves its rights later, with a token.
SASL_OFFER = frames.frame(0, _OFFER, frame_type=frames.SASL_FRAME)
_OUTCOME = encode.composite(frames.SASL_OUTCOME, [encode.ubyte(0)])
SASL_ACCEPTED = frames.frame(0, _OUTCOME, frame_type=frames.SASL_FRAME)
_FIELDS = 14
_FILTER = 7
#: The address that stands for the coordinator of transactions, a target without an address.
COORDINATOR = "$coordinator"
_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI")


def unknown_protocol(header: bytes) -> str:
    """Say which protocol a peer with this header of eight bytes speaks, and what to do about it."""
    if header.startswith(b"\x16\x03"):
        return (
            "it speaks TLS, and this port is plain TCP: put UseDevelopmentEmulator=true into its "
            "connection string"
        )
    if header.startswith(_HTTP):
        return (
            "it speaks HTTP: administration is on the management port, and this broker does not "
            "serve AMQP over websockets"
        )
    if header.startswith(b"AMQP"):
        return f"it speaks another AMQP ({header!r}): this broker speaks 1.0, plain or with SASL"
    return f"it sent {header!r}, which is not AMQP: check which program uses this port"


def open_answer(limits: Limits) -> bytes:
    """Build the broker's open."""
    product = encode.map_([(encode.symbol("product"), encode.string("devstack"))])
    fields = [
        encode.string("devstack.servicebus"),
        encode.NULL,  # host name
        encode.uint(frames.MAX_FRAME_BYTES),
        encode.ushort(limits.sessions_per_connection - 1),
        encode.uint(int(limits.idle_s * 1000)),
        encode.NULL,  # outgoing locales
        encode.NULL,  # incoming locales
        encode.NULL,  # offered capabilities
        encode.NULL,  # desired capabilities
        product,
    ]
    return encode.composite(frames.OPEN, fields)


def begin_answer(channel: int, next_outgoing: int, limits: Limits) -> bytes:
    """Build the broker's begin for ``channel``."""
    fields = [
        encode.ushort(channel),
        encode.uint(next_outgoing),
        WINDOW,
        WINDOW,
        encode.uint(limits.links_per_session - 1),
    ]
    return encode.composite(frames.BEGIN, fields)


class Attach(NamedTuple):
    """A peer's attach. ``receives`` means that the peer is the receiver, and the broker sends."""

    name: str
    handle: int
    receives: bool
    sender_settle_mode: int
    receiver_settle_mode: int
    source: bytes
    target: bytes
    source_address: str | None
    target_address: str | None
    filters: dict[str, Any]
    initial_delivery_count: int
    properties: dict[str, Any]

    @property
    def address(self) -> str | None:
        """The address on the broker's side."""
        return self.source_address if self.receives else self.target_address

    def session_filter(self) -> tuple[bool, Any]:
        """Say whether the peer asks for a session, and for which; None is the next free one."""
        if SESSION_FILTER not in self.filters:
            return False, None
        value = self.filters[SESSION_FILTER]
        return True, value.value if isinstance(value, Described) else value


def read_attach(body: bytes, position: int) -> Attach:
    """Read an attach. Raises DecodeError if a required field is missing."""
    raw = decode.spans(body, position, _FIELDS)
    name, handle, receives, sender, receiver = (decode.decode(raw[n])[0] for n in range(5))
    if not isinstance(name, str) or not isinstance(handle, int) or not isinstance(receives, bool):
        raise DecodeError("an attach needs a name, a handle and a role")
    source, filters = _terminus(raw[5], frames.SOURCE)
    target, _ = _terminus(raw[6], frames.TARGET)
    count, properties = decode.decode(raw[9])[0], decode.decode(raw[13])[0]
    return Attach(
        name=name,
        handle=handle,
        receives=receives,
        sender_settle_mode=sender if isinstance(sender, int) else 2,
        receiver_settle_mode=receiver if isinstance(receiver, int) else 0,
        source=raw[5],
        target=raw[6],
        source_address=source,
        target_address=target,
        filters=filters,
        initial_delivery_count=count if isinstance(count, int) else 0,
        properties=properties if isinstance(properties, dict) else {},
    )


def _terminus(raw: bytes, code: int) -> tuple[str | None, dict[str, Any]]:
    value, _ = decode.decode(raw)
    if value is None:
        return None, {}
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise DecodeError("a source or target is not a terminus of AMQP 1.0")
    if value.descriptor == 0x30:
        return COORDINATOR, {}
    if value.descriptor != code:
        raise DecodeError(f"{value.descriptor!r} is not a terminus of AMQP 1.0")
    fields = value.value
    address = fields[0] if fields else None
    filters = fields[_FILTER] if code == frames.SOURCE and len(fields) > _FILTER else None
    if not isinstance(filters, dict):
        filters = {}
    return address if isinstance(address, str) else None, filters


def source_with_session(source: bytes, session_id: str) -> bytes:
    """Put the session that was chosen into the filter of a source."""
    _, position = decode.decode(source, 1)
    fields = decode.spans(source, position, _FILTER + 1)
    fields[_FILTER] = encode.map_([(encode.symbol(SESSION_FILTER), encode.string(session_id))])
    return encode.composite(frames.SOURCE, fields)
