"""Encoded content: what a payload codec makes of an order's content, as JSON.

With a codec, content (a payload, an edited input, a result) is stored, sent and held as the object
``{"$encoded": "<text of the codec>"}``. Content is encoded once, where it enters the system. It is
decoded in the agent that is called, and for people who ask for it. Everything in between handles it
as opaque JSON.

Content that is not such an object was stored before there was a codec, and is used as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TypeVar

from sas.codec.strict import MalformedError, Reason
from sas.domain.order import Order
from sas.ports import DecodingError, PayloadCodec, UnavailableError

T = TypeVar("T")
ENCODED = "$encoded"
"""The only member of an object that stands for encoded content."""
UNREADABLE = "encrypted"
"""What people see in place of encoded content."""
_BEGINS = re.compile(r'\s*\{\s*"\$encoded"\s*:')


def encode_content(text: str, codec: PayloadCodec | None) -> str:
    """Return JSON text as it is stored and sent; unchanged without a codec.

    Raises:
        MalformedError: the text says that it is encoded already. Nobody outside may say that.
        UnavailableError: the codec failed: put the message back.
    """
    if is_encoded(text):
        raise MalformedError(
            Reason.INVALID_ORDER,
            f"an object with the one member {ENCODED!r} stands for encoded content: give it in "
            "plain text, or under another name",
        )
    if codec is None:
        return text
    try:
        return json.dumps({ENCODED: codec.encode(text)})
    except Exception as error:  # a bug in the adopter's codec must undo no order
        raise UnavailableError(f"the payload codec failed: {type(error).__name__}") from error


def decode_content(text: str, codec: PayloadCodec | None) -> str:
    """Return the JSON text that was encoded; a text that is not encoded is returned unchanged.

    Raises:
        DecodingError: there is no codec, or it cannot decode the text.
    """
    encoded = _encoded(text)
    if encoded is None:
        return text
    if codec is None:
        raise DecodingError("it is encoded, and there is no codec here: set SAS_PAYLOAD_KEYS")
    try:
        return codec.decode(encoded)
    except DecodingError:
        raise
    except Exception as error:  # a bug in the adopter's codec must undo no order
        raise DecodingError(f"the payload codec failed: {type(error).__name__}") from error


def is_encoded(text: str) -> bool:
    """Return whether a text is encoded content."""
    return _encoded(text) is not None


def decode_order(order: Order, codec: PayloadCodec | None) -> Order:
    """Return an order for people, with its content decoded.

    What cannot be decoded stays encoded, and a payload reference stays one.
    """
    if codec is None:
        return order

    def readable(content: T) -> T | str:
        try:
            return decode_content(content, codec) if isinstance(content, str) else content
        except DecodingError:
            return content

    steps = [
        replace(
            step,
            result=readable(step.result),
            call=replace(step.call, edited=readable(step.call.edited)),
        )
        for step in order.steps
    ]
    details = replace(order.details, payload=readable(order.details.payload))
    return replace(order, details=details, steps=tuple(steps))


def _encoded(text: str) -> str | None:
    """Return the text of the codec; None if this is not encoded content."""
    if _BEGINS.match(text) is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    encoded = value[ENCODED]
    return encoded if value.keys() == {ENCODED} and isinstance(encoded, str) else None
