"""What a callback says, before it goes on the queue.

Its result is encoded where there is a codec, and offloaded where it is large.
"""

from __future__ import annotations

import msgspec

from sas.bounds import RESULT_BYTES_MAX
from sas.codec.internal import CallbackMessage, FaultBody, check_result, raw, text_of, to_ref_body
from sas.codec.payloads import encode_content
from sas.domain.order import Fault
from sas.engine.context import Context
from sas.ports import PayloadCodec


def cut_fault(message: CallbackMessage) -> CallbackMessage:
    """Return a callback whose refusal has the length that is kept."""
    if message.error is None:
        return message
    fault = Fault(message.error.code, message.error.message)
    return msgspec.structs.replace(message, error=FaultBody(fault.code, fault.message))


def encode_result(message: CallbackMessage, codec: PayloadCodec | None) -> CallbackMessage:
    """Return a callback with its result encoded. Its id stays that of the plain result.

    Raises:
        MalformedError: its result says that it is encoded already, or is too large as it is stored.
    """
    text = text_of(message.result)
    if text is None:
        return message
    stored = encode_content(text, codec)
    check_result(stored, RESULT_BYTES_MAX)
    return msgspec.structs.replace(message, result=raw(stored))


async def offload_result(message: CallbackMessage, context: Context) -> CallbackMessage:
    """Return a callback with a large result offloaded, so that a message can carry it.

    Raises:
        StoreUnavailableError: the result could not be written.
    """
    result = text_of(message.result)
    if result is None:
        return message
    content = await context.content.offload_result(message.order_id, result)
    if isinstance(content, str):
        return message
    return msgspec.structs.replace(message, result=msgspec.UNSET, result_ref=to_ref_body(content))
