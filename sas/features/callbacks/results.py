"""What a callback says, before it goes on the queue.

A large result is offloaded. A refusal quotes no secret field of its order.
"""

from __future__ import annotations

import msgspec

from sas.codec.internal import CallbackMessage, FaultBody, text_of, to_ref_body
from sas.codec.strict import parse
from sas.domain.order import Fault, Order
from sas.engine.context import Context
from sas.engine.hooks import redact


async def redact_fault(message: CallbackMessage, order: Order, context: Context) -> CallbackMessage:
    """Return a callback whose refusal quotes no secret field of its order.

    Raises:
        UnreadableError: those fields cannot be read, so the refusal may quote them.
        StoreUnavailableError: the order's content could not be read.
    """
    if message.error is None:
        return message
    code, text = message.error.code, message.error.message
    if context.encryption.has_secrets(order.details.workflow):
        for secrets in await _secrets(message.step, order, context):
            code, text = redact(code, secrets), redact(text, secrets)
    fault = Fault(code, text)  # cut to the length that is kept
    return msgspec.structs.replace(message, error=FaultBody(fault.code, fault.message))


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


async def _secrets(number: int, order: Order, context: Context) -> list[tuple[str, ...]]:
    details = order.details
    given = [await context.content.fetch(order.order_id, details.payload)]
    if 0 <= number < len(order.steps) and (edited := order.steps[number].call.edited):
        given.append(edited)
    of = (details.workflow, order.order_id, details.submission)
    return [context.encryption.decrypt(*of, parse(text.encode()))[1] for text in given]
