"""Feature: claim check. Large content is offloaded, and a payload reference travels in its place.

Content is written before the transaction that refers to it. Content that a crash leaves without a
reference is removed when its order is purged.
"""

from __future__ import annotations

from dataclasses import replace

from sas.bounds import PAYLOAD_INLINE_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.domain.content import Content, PayloadRef, size_of
from sas.domain.order import Details, Order
from sas.ports import LostContentError, StateStore
from sas.telemetry.tracing import logger

log = logger(__name__)


class ClaimCheck:
    """Offloads payloads over 64 KB and results over 48 KB to rows of their own.

    See ``sas.engine.hooks.ContentStore``.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def is_large(self, details: Details) -> bool:
        """See ``ContentStore.is_large``."""
        return size_of(details.payload) > PAYLOAD_INLINE_BYTES_MAX

    async def offload_payload(self, details: Details) -> Details:
        """See ``ContentStore.offload_payload``.

        Raises:
            StoreUnavailableError: it could not be written.
            TooLargeError: it is too large for any store.
        """
        payload = await self._offload(details.order_id, details.payload, PAYLOAD_INLINE_BYTES_MAX)
        return details if payload is details.payload else replace(details, payload=payload)

    async def offload_result(self, order_id: str, text: str) -> Content:
        """See ``ContentStore.offload_result``; raises as ``offload_payload``."""
        return await self._offload(order_id, text, RESULT_INLINE_BYTES_MAX)

    async def fetch(self, order_id: str, content: Content) -> str:
        """See ``ContentStore.fetch``.

        Raises:
            StoreUnavailableError: it could not be read.
            LostContentError: it is missing, or was changed.
        """
        if isinstance(content, str):
            return content
        return (await self._store.get_payload(order_id, content)).decode()

    async def fetch_all(self, order: Order) -> Order:
        """See ``ContentStore.fetch_all``."""
        payload = await self._fetched(order.order_id, order.details.payload)
        steps = [
            step
            if step.result is None
            else replace(step, result=await self._fetched(order.order_id, step.result))
            for step in order.steps
        ]
        return replace(order, details=replace(order.details, payload=payload), steps=tuple(steps))

    async def _fetched(self, order_id: str, content: Content) -> Content:
        try:
            return await self.fetch(order_id, content)
        except LostContentError as lost:
            log.error("%s", lost)  # noqa: TRY400  a traceback adds nothing
            return content

    async def _offload(self, order_id: str, content: Content, inline_bytes_max: int) -> Content:
        if isinstance(content, PayloadRef) or size_of(content) <= inline_bytes_max:
            return content
        return await self._store.put_payload(order_id, content.encode())
