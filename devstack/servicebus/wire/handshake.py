"""What the broker says while a connection opens: SASL, the open and a session's begin."""

from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.limits import Limits

_MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "MSSBCBS")
_WINDOW = encode.uint(0x7FFFFFFF)


def sasl_offer() -> bytes:
    """Build the frame that offers the mechanisms; who a peer is, its tokens say later."""
    names = encode.array_of_symbols(_MECHANISMS)
    offer = encode.composite(frames.SASL_MECHANISMS, [names])
    return frames.frame(0, offer, frame_type=frames.SASL_FRAME)


def sasl_outcome() -> bytes:
    """Build the frame that says that SASL went well."""
    outcome = encode.composite(frames.SASL_OUTCOME, [encode.ubyte(0)])
    return frames.frame(0, outcome, frame_type=frames.SASL_FRAME)


def open_answer(limits: Limits) -> bytes:
    """Build the performative that answers an open."""
    product = encode.map_([(encode.symbol("product"), encode.string("devstack"))])
    fields = [
        encode.string("devstack.servicebus"),
        encode.NULL,
        encode.uint(frames.MAX_FRAME_BYTES),
        encode.ushort(limits.sessions_per_connection - 1),
        encode.uint(int(limits.idle_s * 1000)),
        *[encode.NULL] * 4,
        product,
    ]
    return encode.composite(frames.OPEN, fields)


def begin_answer(channel: int, next_outgoing: int, limits: Limits) -> bytes:
    """Build the performative that answers a begin on ``channel``."""
    fields = [
        encode.ushort(channel),
        encode.uint(next_outgoing),
        _WINDOW,
        _WINDOW,
        encode.uint(limits.links_per_session - 1),
    ]
    return encode.composite(frames.BEGIN, fields)
