"""The content of a request: what its agent needs for the call, fetched and decoded.

A small order travels in the request itself. If it was too large for a message, the request names
only the order, and the content is read from the state store.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from sas.codec import internal
from sas.codec.external import AlertMessage
from sas.codec.internal import RequestMessage
from sas.codec.payloads import decode_content
from sas.codec.strict import MalformedError, parse
from sas.domain.content import Content
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.domain.order import FaultCode, Order
from sas.domain.texts import quoted
from sas.engine.context import Context
from sas.engine.in_flight import MustWaitError
from sas.ports import AgentCall, DecodingError, RefusedError, UnreadableError

READ_AGAIN_AFTER = timedelta(seconds=12)
"""Pause before content that cannot be read is read again."""


class RequestContent:
    """Reads the content of one agent's requests."""

    def __init__(self, context: Context, agent: str) -> None:
        self._context = context
        self._agent = agent

    async def call_of(self, request: RequestMessage) -> AgentCall:
        """Return the call that a request asks for, with its content fetched and decoded.

        Raises:
            RefusedError: its order is no longer stored.
            MustWaitError: content cannot be read now; the operator was alerted.
            StoreUnavailableError, BusUnavailableError: put the message back.
        """
        try:
            order, results, own_result = await self._stored_form(request)
            return AgentCall(
                order_id=request.order_id,
                workflow=request.workflow,
                step=request.step_name,
                key=request.idempotency_key,
                complete_by=request.complete_by,
                order=await self._value(request, order),
                results={
                    step: await self._value(request, result) for step, result in results.items()
                },
                own_result=await self._value(request, own_result),
            )
        except UnreadableError as error:
            await self._order(request)
            await self._report_unreadable(request, error)
            raise MustWaitError(self._context.clock.now() + READ_AGAIN_AFTER) from error

    async def _stored_form(
        self, request: RequestMessage
    ) -> tuple[Content | None, Mapping[str, Content], Content | None]:
        """Return the order, the results of earlier steps and the step's own result."""
        if request.order is not msgspec.UNSET or request.order_ref is not None:
            results: dict[str, Content] = {
                name: bytes(raw).decode() for name, raw in request.results.items()
            }
            results |= {
                name: internal.from_ref_body(ref) for name, ref in request.result_refs.items()
            }
            order = internal.content_of(request.order, request.order_ref)
            return order, results, internal.content_of(request.own_result, request.own_result_ref)
        # The content was too large for a message: read it from the store.
        stored = await self._order(request)
        results = {
            step.name: step.result
            for step in stored.steps
            if step.result is not None and step.name in request.results
        }
        own_result = results.pop(request.step_name, None)
        edited = next((s.call.edited for s in stored.steps if s.name == request.step_name), None)
        return edited or stored.details.payload, results, own_result

    async def _order(self, request: RequestMessage) -> Order:
        order = await self._context.load(request.order_id)
        if order is None:
            text = f"order {request.order_id} is not stored any more: it was purged or removed"
            raise RefusedError(FaultCode.UNKNOWN_ORDER, text)
        return order

    async def _value(self, request: RequestMessage, content: Content | None) -> Any:
        if content is None:
            return None
        text = await self._context.content.fetch(request.order_id, content)
        try:
            return parse(decode_content(text, self._context.codec).encode())
        except MalformedError as error:
            raise DecodingError(f"its content is not JSON: {error.description}") from error

    async def _report_unreadable(self, request: RequestMessage, error: UnreadableError) -> None:
        """Alert the operator, once for each dispatch of a step."""
        body = AlertMessage(
            kind=AlertKind.UNREADABLE.value,
            at=key_time(self._context.clock.now()),
            text=f"Step {request.step_name} of order {quoted(request.order_id)} waits: {error}. "
            "It is tried again automatically, and no failure is counted.",
            id=f"unreadable/{digest_id(request.id)}",
            order_id=request.order_id,
            step=request.step_name,
            workflow=request.workflow,
            agent=self._agent,
            attempts=request.epoch,
        )
        await self._context.report_unreadable(error, body, READ_AGAIN_AFTER)
