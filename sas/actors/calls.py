"""From a request to what an agent is called with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from sas.actors.attempts import MustWaitError
from sas.actors.compose import alert
from sas.actors.contents import redeemed
from sas.actors.context import Context
from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.codec.outward import AlertMessage
from sas.codec.strict import parse
from sas.domain.blobs import Content
from sas.domain.conditions import Condition
from sas.domain.ids import cause_hash, key_time
from sas.domain.messages import AlertKind
from sas.domain.model import Order
from sas.ports import Call, KeyMissingError, RefusedError, StateStore, UnreadableError
from sas.telemetry.logs import logger

log = logger(__name__)
READ_AGAIN_AFTER = timedelta(seconds=12)
"""When what cannot be read is tried again."""


async def call_of(request: RequestMessage, context: Context) -> Call:
    """Return the call that a request asks for; what it refers to is read from the store, what is
    sealed in its order is opened.

    Raises:
        RefusedError: its order is no longer stored.
        MustWaitError: what it refers to cannot be read; the operator was told.
        StoreUnavailableError, BusUnavailableError: let the message come again.
    """
    try:
        return await _read(request, context)
    except UnreadableError as wrong:
        await _known(request, context.store)
        await _tell(request, context, wrong)
        raise MustWaitError(context.clock.now() + READ_AGAIN_AFTER, called=True) from wrong


async def _read(request: RequestMessage, context: Context) -> Call:
    if request.order is msgspec.UNSET and request.order_ref is None:
        return await _claimed(request, context)
    order = internal.content_of(request.order, request.order_ref)
    results: dict[str, Content] = {name: _text(raw) for name, raw in request.results.items()}
    results |= {name: internal.from_kept(kept) for name, kept in request.result_refs.items()}
    own = internal.content_of(request.own_result, request.own_result_ref)
    return await _call(request, context, order, results, own)


async def _known(request: RequestMessage, store: StateStore) -> Order:
    order = await store.load(request.order_id)
    if order is None:
        raise RefusedError("unknown-order", f"order {request.order_id} is no longer stored")
    return order


async def _tell(request: RequestMessage, context: Context, wrong: UnreadableError) -> None:
    """Alert the operator, once for each dispatch of a step; of a missing key once for all."""
    log.warning("order %s step %s waits: %s", request.order_id, request.step_name, wrong)
    if isinstance(wrong, KeyMissingError):
        await key_missing(request.order_id, wrong, READ_AGAIN_AFTER, context)
        return
    told = AlertMessage(
        kind=AlertKind.UNREADABLE.value,
        at=key_time(context.clock.now()),
        text=f"Step {request.step_name} of order {request.order_id} waits: {wrong}. It is tried "
        "again until its CompleteBy; then the supervisor takes it up.",
        id=f"unreadable/{cause_hash(request.id)}",
        order_id=request.order_id,
        step=request.step_name,
        workflow=request.workflow,
    )
    await context.bus.send([alert(told, context.to)])


async def key_missing(
    order_id: str, wrong: KeyMissingError, again_after: timedelta, context: Context
) -> None:
    """Tell the operator of a key that is missing: once, however many orders need it."""
    now = context.clock.now()
    text = f"A secret field of orders cannot be opened: {wrong}. Their steps wait for it."
    scope = f"key {wrong.key}"
    condition = Condition(AlertKind.KEY_MISSING, scope, text, now, now + again_after)
    await context.conditions.met(condition, order_id)
    await context.conditions.note_now_and_then()


async def _claimed(request: RequestMessage, context: Context) -> Call:
    """Redeem a claim check: all together was too large to travel, so read the order."""
    order = await _known(request, context.store)
    results = {step.name: step.result for step in order.steps if step.result is not None}
    edited = order.steps[request.step].edited if request.step < len(order.steps) else None
    named = {name: result for name, result in results.items() if name in request.results}
    own = named.pop(request.step_name, None)
    return await _call(request, context, edited or order.details.payload, named, own)


async def _call(
    request: RequestMessage,
    context: Context,
    order: Content | None,
    results: dict[str, Content],
    own_result: Content | None,
) -> Call:
    async def value(content: Content | None) -> Any:
        if content is None:
            return None
        return parse((await redeemed(context.store, request.order_id, content)).encode())

    opened, secrets = context.privacy.opened(request.workflow, request.order_id, await value(order))

    return Call(
        order_id=request.order_id,
        step=request.step_name,
        key=request.idempotency_key,
        complete_by=request.complete_by,
        order=opened,
        results={name: await value(result) for name, result in results.items()},
        own_result=await value(own_result),
        secrets=secrets,
    )


def _text(raw: msgspec.Raw) -> str:
    """Return the text of a raw part of a message."""
    return bytes(raw).decode()
