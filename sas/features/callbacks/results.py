"""The result of a callback is recorded by the same rules as that of an agent.

A large result is offloaded. A refusal quotes no secret field of its order.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from sas.codec.internal import FaultBody, content_of, to_ref_body
from sas.codec.outward import AlertMessage
from sas.codec.strict import parse
from sas.domain.content import PayloadRef
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.domain.order import Fault, Order
from sas.engine.context import Context
from sas.engine.hooks import redact
from sas.features.callbacks.codec import CallbackMessage, Claims
from sas.ports import UnreadableError


async def redact_fault(
    message: CallbackMessage, claims: Claims, order: Order, context: Context
) -> CallbackMessage:
    """Return a callback whose refusal quotes no secret field of its order.

    Raises:
        UnreadableError: those fields cannot be read, so the refusal may quote them.
        StoreUnavailableError: put the message back.
    """
    if message.error is None:
        return message
    code, text = message.error.code, message.error.message
    if context.encryption.has_secrets(order.details.workflow):
        for secrets in await _secrets(claims, order, context):
            code, text = redact(code, secrets), redact(text, secrets)
    fault = Fault(code, text)  # cut to the length that is kept
    return msgspec.structs.replace(message, error=FaultBody(fault.code, fault.message))


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


async def _secrets(claims: Claims, order: Order, context: Context) -> list[tuple[str, ...]]:
    details = order.details
    given = [await context.content.fetch(order.order_id, details.payload)]
    if 0 <= claims.step < len(order.steps) and (edited := order.steps[claims.step].call.edited):
        given.append(edited)
    of = (details.workflow, order.order_id, details.submission)
    return [context.encryption.decrypt(*of, parse(text.encode()))[1] for text in given]
