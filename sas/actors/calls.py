"""From a request to what an agent is called with."""

from __future__ import annotations

import msgspec

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.ports import Call, RefusedError, StateStore


async def call_of(request: RequestMessage, store: StateStore) -> Call:
    """Return the call that a request asks for.

    Raises:
        RefusedError: its order is no longer stored.
        StoreUnavailableError: let the message come again.
    """
    if request.order is msgspec.UNSET:
        return await _claimed(request, store)
    return Call(
        order_id=request.order_id,
        step=request.step_name,
        key=request.idempotency_key,
        complete_by=request.complete_by,
        order=internal.value_of(request.order),
        results={name: internal.value_of(part) for name, part in request.results.items()},
        own_result=internal.value_of(request.own_result),
    )


async def _claimed(request: RequestMessage, store: StateStore) -> Call:
    """Redeem a claim check: the order was too large to travel, so read it."""
    order = await store.load(request.order_id)
    if order is None:
        raise RefusedError("unknown-order", f"order {request.order_id} is no longer stored")
    results = {
        step.name: internal.value_of(internal.raw(step.result))
        for step in order.steps
        if step.result is not None
    }
    edited = order.steps[request.step].edited if request.step < len(order.steps) else None
    return Call(
        order_id=request.order_id,
        step=request.step_name,
        key=request.idempotency_key,
        complete_by=request.complete_by,
        order=internal.value_of(internal.raw(edited or order.details.payload)),
        results={name: value for name, value in results.items() if name in request.results},
        own_result=results.get(request.step_name),
    )
