"""The result of a callback is recorded by the same rules as that of an agent.

It is encoded where there is a codec, and offloaded where it is large.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from sas.bounds import RESULT_BYTES_MAX
from sas.codec.internal import FaultBody, check_result, content_of, raw, text_of, to_ref_body
from sas.codec.outward import AlertMessage
from sas.codec.payloads import encode_content
from sas.domain.content import PayloadRef
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.domain.order import Fault, Order
from sas.engine.context import Context
from sas.features.callbacks.codec import CallbackMessage, own_id
from sas.ports import PayloadCodec, UnreadableError


def cut_fault(message: CallbackMessage) -> CallbackMessage:
    """Return a callback whose refusal has the length that is kept."""
    if message.error is None:
        return message
    fault = Fault(message.error.code, message.error.message)
    return msgspec.structs.replace(message, error=FaultBody(fault.code, fault.message))


def encode_result(message: CallbackMessage, codec: PayloadCodec | None) -> CallbackMessage:
    """Return a callback with its result encoded; one that is encoded already is unchanged.

    An encoded result differs each time. So the callback carries the id of its plain result.

    Raises:
        MalformedError: its result says that it is encoded already, or is too large as it is stored.
    """
    text = text_of(message.result)
    if text is None or message.id:
        return message
    stored = encode_content(text, codec)
    check_result(stored, RESULT_BYTES_MAX)
    if codec is None:
        return message
    return msgspec.structs.replace(message, id=own_id(message), result=raw(stored))


async def offload_result(
    message: CallbackMessage, order: Order, context: Context
) -> CallbackMessage:
    """Return a callback with a large result offloaded, so that a message can carry it.

    Raises:
        StoreUnavailableError: the result could not be written, or read.
        UnreadableError: the message refers to content that is missing.
    """
    result = content_of(message.result, message.result_ref)
    if isinstance(result, PayloadRef):
        await context.content.fetch(order.order_id, result)
        return message
    if result is None:
        return message
    content = await context.content.offload_result(order.order_id, result)
    if isinstance(content, str):
        return message
    return msgspec.structs.replace(message, result=msgspec.UNSET, result_ref=to_ref_body(content))


async def alert_unreadable(
    order: Order, own_id: str, wrong: UnreadableError, again_within: timedelta, context: Context
) -> None:
    """Alert the operator, once, that a callback cannot be read."""
    body = AlertMessage(
        kind=AlertKind.UNREADABLE.value,
        at=key_time(context.clock.now()),
        text=f"A callback of order {order.order_id} waits: {wrong}. It is tried again until its "
        "token has expired and its step has not changed for a week.",
        id=f"unreadable/{digest_id(own_id)}",
        order_id=order.order_id,
        workflow=order.details.workflow,
    )
    await context.report_unreadable(wrong, body, again_within)
