"""From a request to what an agent is called with."""

from __future__ import annotations

from typing import Any

import msgspec

from sas.actors.contents import redeemed
from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.codec.strict import parse
from sas.domain.blobs import Content
from sas.ports import Call, RefusedError, StateStore


async def call_of(request: RequestMessage, store: StateStore) -> Call:
    """Return the call that a request asks for; what it refers to is read from the store.

    Raises:
        RefusedError: its order is no longer stored.
        StoreUnavailableError: let the message come again.
        LostContentError: what it refers to is gone.
    """
    if request.order is msgspec.UNSET and request.order_ref is None:
        return await _claimed(request, store)
    order = internal.content_of(request.order, request.order_ref)
    results: dict[str, Content] = {name: text(raw) for name, raw in request.results.items()}
    results |= {name: internal.from_kept(kept) for name, kept in request.result_refs.items()}
    own = internal.content_of(request.own_result, request.own_result_ref)
    return await _call(request, store, order, results, own)


async def _claimed(request: RequestMessage, store: StateStore) -> Call:
    """Redeem a claim check: all together was too large to travel, so read the order."""
    order = await store.load(request.order_id)
    if order is None:
        raise RefusedError("unknown-order", f"order {request.order_id} is no longer stored")
    results = {step.name: step.result for step in order.steps if step.result is not None}
    edited = order.steps[request.step].edited if request.step < len(order.steps) else None
    named = {name: result for name, result in results.items() if name in request.results}
    own = results.get(request.step_name)
    return await _call(request, store, edited or order.details.payload, named, own)


async def _call(
    request: RequestMessage,
    store: StateStore,
    order: Content | None,
    results: dict[str, Content],
    own_result: Content | None,
) -> Call:
    async def value(content: Content | None) -> Any:
        if content is None:
            return None
        return parse((await redeemed(store, request.order_id, content)).encode())

    return Call(
        order_id=request.order_id,
        step=request.step_name,
        key=request.idempotency_key,
        complete_by=request.complete_by,
        order=await value(order),
        results={name: await value(result) for name, result in results.items()},
        own_result=await value(own_result),
    )


def text(raw: msgspec.Raw) -> str:
    """Return the text of a raw part of a message."""
    return bytes(raw).decode()
