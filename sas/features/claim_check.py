"""The claim check: what is too large for a row or a message is kept apart, a reference travels.

Written before the transaction that refers to it; redeemed by whoever needs the content itself.
What a crash leaves behind in between goes when its order is purged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sas.bounds import PAYLOAD_INLINE_BYTES_MAX
from sas.domain.content import Content, PayloadRef
from sas.domain.messages import JournalEntry, Notice, Notify
from sas.domain.order import Details, Order
from sas.ports import LostContentError, StateStore
from sas.telemetry.tracing import logger

log = logger(__name__)

NOTICE_BYTES_MAX = 64 * 1024
"""A notification carries results up to here, in bytes, and says so where it leaves them out."""


def size_of(content: Content) -> int:
    """Return the bytes of content as UTF-8."""
    return content.size if isinstance(content, PayloadRef) else len(content.encode())


async def offload(store: StateStore, order_id: str, text: str, inline_bytes_max: int) -> Content:
    """Return a text itself, or what stands for it once it is kept apart.

    Raises:
        StoreUnavailableError: it could not be written.
        TooLargeError: no store takes it.
    """
    data = text.encode()
    if len(data) <= inline_bytes_max:
        return text
    return await store.put_payload(order_id, data)


async def offload_payload(store: StateStore, details: Details) -> Details:
    """Return an order's details with its payload kept apart where that is large.

    Whether the order exists must be looked at *before*, and committed upon what was seen: a
    purge between writing and committing then makes the commit fail, and never takes away what
    it refers to.
    """
    if isinstance(details.payload, PayloadRef):
        return details
    payload = await offload(store, details.order_id, details.payload, PAYLOAD_INLINE_BYTES_MAX)
    return replace(details, payload=payload)


def is_large(details: Details) -> bool:
    """Return whether the payload of an order is to be kept apart."""
    return size_of(details.payload) > PAYLOAD_INLINE_BYTES_MAX


async def fetch(store: StateStore, order_id: str, content: Content) -> str:
    """Return the text of content, wherever it is.

    Raises:
        StoreUnavailableError: it could not be read.
        LostContentError: it is gone, or was changed.
    """
    if isinstance(content, str):
        return content
    return (await store.get_payload(order_id, content)).decode()


async def fetch_all(store: StateStore, order: Order) -> Order:
    """Return an order with all its content in place; what is lost stays a reference."""
    payload = await _fetch_or_ref(store, order.order_id, order.details.payload)
    steps = [
        step
        if step.result is None
        else replace(step, result=await _fetch_or_ref(store, order.order_id, step.result))
        for step in order.steps
    ]
    return replace(order, details=replace(order.details, payload=payload), steps=tuple(steps))


def apart_bytes(order: Order) -> int:
    """Return how many bytes of an order's content are kept apart."""
    contents = [order.details.payload, *(step.result for step in order.steps)]
    return sum(content.size for content in contents if isinstance(content, PayloadRef))


async def fetch_for_notifications(
    store: StateStore, order: Order, entry: JournalEntry
) -> Mapping[PayloadRef, str]:
    """Return the results kept apart that the notifications of a journal row have room for."""
    made: dict[PayloadRef, str] = {}
    for item in entry.messages:
        if isinstance(item, Notify):
            results = results_told(order, item)
            refs = [result for result in results.values() if isinstance(result, PayloadRef)]
            if refs and fit(results):
                found = {ref: await _fetch_or_ref(store, order.order_id, ref) for ref in refs}
                made |= {ref: text for ref, text in found.items() if isinstance(text, str)}
    return made


def results_told(order: Order, item: Notify) -> dict[str, Content]:
    """Return the results, by step, that a notification tells."""
    match item.notice:
        case Notice.COMPLETED:
            steps = order.steps
        case Notice.STEP_COMPLETED if item.step is not None:
            steps = (order.steps[item.step],)
        case _:
            steps = ()
    return {step.name: step.result for step in steps if step.result is not None}


def fit(results: Mapping[str, Content]) -> bool:
    """Return whether results have room in one notification, all together."""
    return sum(size_of(result) for result in results.values()) <= NOTICE_BYTES_MAX


async def _fetch_or_ref(store: StateStore, order_id: str, content: Content) -> Content:
    """Return the text of content; what stands for it where that is lost."""
    try:
        return await fetch(store, order_id, content)
    except LostContentError as lost:
        log.error("%s", lost)  # noqa: TRY400  where it was read says nothing more
        return content
