"""Callbacks: an outside event (a carrier's message, a person's approval) ends a step.

1. The HTTP endpoint is the only door. It checks the token, and that the step can still end so.
2. It puts what it checked on the internal queue ``scheduler``: an accepted callback is a message
   that is redelivered until it is processed. The token stays behind.
3. The scheduler has it decided as if the message were the agent's reply. The cause row tells a
   repeat. A callback that comes between two attempts of its step waits on the queue: see
   ``WAIT_MIN``.

The end of a token is checked where the callback arrives. An accepted callback counts however long
an outage delays it, if its step still waits for a result under the token's key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from opentelemetry.trace import SpanKind

from sas.codec import internal
from sas.codec.internal import CallbackMessage, text_of
from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Decision, Trigger, fence
from sas.domain.ids import cause_of, digest_id
from sas.domain.messages import JournalWord
from sas.domain.order import Direction, Order
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.transition import ApplyResult, TransitionRunner
from sas.features.callbacks import codec, results
from sas.features.callbacks import rules as decisions
from sas.features.callbacks.codec import CallbackKeys, ForgedError, check_order
from sas.features.callbacks.rules import StepStatus
from sas.ports import (
    Business,
    Message,
    UnavailableError,
    UndeliverableError,
    UnreadableError,
)
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
AGAIN_MIN = timedelta(seconds=5)
AGAIN_MAX = timedelta(minutes=15)
"""Shortest and longest pause before a callback that waits for its step is tried again."""
WAIT_MIN = timedelta(days=7)
"""A callback waits until its token has expired and its step has not changed for this long."""
RETRY_AFTER_S = 5
_ANSWERS = {
    StepStatus.OUT: (202, "accepted", "the callback counts"),
    StepStatus.WAITS: (202, "accepted", "the callback counts as soon as the step is tried again"),
    StepStatus.ALREADY: (200, "already", "the step has ended already; nothing is left to do"),
    StepStatus.CLOSED: (
        410,
        Reason.TOO_LATE.value,
        "the step is being undone, or goes on with another input: undo what you did",
    ),
}

_OTHER = (
    "another result of this token was accepted and is not processed yet: nothing else is kept; "
    "send that one again, or this one later"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the callback endpoint: status, headers, and a code and a sentence in JSON."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str]

    @property
    def body(self) -> str:
        """The JSON of the answer."""
        return json.dumps({"code": self.code, "message": self.message})


def _answer(status: int, code: str, message: str) -> Answer:
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Answer(
        status=status,
        code=code,
        message=message,
        headers={**retry, **challenge, "Cache-Control": "no-store"},
    )


class Callbacks:
    """Handles the callback endpoint, and the callbacks on the ``scheduler`` queue."""

    def __init__(self, context: Context, business: Business, keys: CallbackKeys) -> None:
        self._context = context
        self._business = business
        self._keys = keys
        self._runner = TransitionRunner(context, business.workflow_of)

    async def answer(self, token: str | None, authorization: str | None, body: bytes) -> Answer:
        """Handle a callback by HTTP. Its token is in the address or the Authorization header.

        202: it is on the queue; 200: the step has ended already; 400, 401, 404, 409, 410: it never
        counts, and why; 503: send it again. Without a key there is no endpoint: 404. The host has
        read the body before, and bounds bodies and requests (``FUNCTIONS_REQUEST_BODY_SIZE_LIMIT``,
        host.json).
        """
        if not self._keys:
            return _answer(404, "not-found", "there is nothing here")
        with tracing.span("callback endpoint", kind=SpanKind.SERVER, actor="callbacks"):
            try:
                return await self._answer(codec.bearer(authorization) or token, body)
            except MalformedError as error:
                return _answer(400, error.reason, error.description)
            except (UnavailableError, UndeliverableError, UnreadableError) as error:
                log.warning("a callback could not be accepted: %s", error)
                return _answer(503, "unavailable", "it cannot be accepted now: send it again")

    async def _answer(self, token: str | None, body: bytes) -> Answer:
        try:
            claims = self._keys.read(token or "")
        except ForgedError as error:
            return _answer(401, Reason.FORGED_TOKEN.value, str(error))
        message = codec.message_of(token or "", claims, codec.parse_body(body))
        if claims.expires_at <= self._context.clock.now():
            expired = f"the token expired at {claims.expires_at.isoformat()}"
            return _answer(410, Reason.EXPIRED.value, f"{expired}: it is not accepted any more")
        tracing.about(order_id=claims.order_id)
        try:
            order = check_order(message, await self._context.load(message.order_id))
        except MalformedError as error:
            return _answer(404, error.reason, error.description)
        self._check_result(message, order)
        message = results.cut_fault(message)
        status = decisions.status_of(order, codec.to_callback_result(message))
        http_status, code, sentence = _ANSWERS[status]
        if status in {StepStatus.OUT, StepStatus.WAITS}:
            message = results.encode_result(message, self._context.codec)
            if not await self._is_first_result(message, token or ""):
                return _answer(409, "other-result", f"order {order.order_id}: {_OTHER}")
            await self._send_once(message, order)
        return _answer(http_status, code, f"order {order.order_id}: {sentence}")

    async def _is_first_result(self, message: CallbackMessage, token: str) -> bool:
        """Return whether this is the result of its token that may be recorded and sent now.

        The first result is recorded in the order's journal. Another result is accepted only after
        the first was acted on.
        """
        queue, store = self._context.queues.scheduler, self._context.store

        def accept(order: Order | None, _now: datetime) -> Decision:
            return fence(check_order(message, order), JournalWord.CALLBACK_ACCEPTED)

        number = 0
        while True:
            cause = cause_of(queue, f"accepted/{digest_id(token)}/{number}")
            entry = await store.recorded(message.order_id, cause)
            if entry is None:
                await self._runner.run(
                    message.order_id, Trigger(by=message.id, cause=cause), accept
                )
                entry = await store.recorded(message.order_id, cause)  # a rival may have won
            if entry is None or entry.by == message.id:
                return entry is not None
            if await store.recorded(message.order_id, cause_of(queue, entry.by)) is None:
                return False
            number += 1

    async def _send_once(self, message: CallbackMessage, order: Order) -> None:
        """Send an accepted callback, and record that it was sent.

        The queue has no duplicate detection, and a callback may wait in it for days. So the same
        callback again sends nothing: a token can fill neither the store nor the queue. After a
        crash between the send and its record it is sent once more, and counts once.
        """
        cause = cause_of(self._context.queues.scheduler, f"sent/{message.id}")
        if await self._context.store.recorded(order.order_id, cause) is not None:
            return
        message = await results.offload_result(message, self._context)
        # It is held if the bus is away, because the journal names it as its token's result.
        outgoing = Message(self._lane(order), message.id, internal.encode(message))
        await self._context.external.send([outgoing], order.order_id)

        def record(order: Order | None, _now: datetime) -> Decision:
            return fence(check_order(message, order), JournalWord.CALLBACK_SENT)

        await self._runner.run(order.order_id, Trigger(by=message.id, cause=cause), record)

    async def act(self, message: CallbackMessage, delivery: Delivery) -> ApplyResult:
        """Act on an accepted callback.

        Raises:
            MalformedError: it never counts.
            ContentionError, UnavailableError: put the message back.
        """
        tracing.about("callback")
        order = check_order(message, await self._context.load(message.order_id))
        trace = order.details.traceparent
        with tracing.of_order("callback act", trace, order_id=order.order_id):
            result, status, since = await self._apply(message, delivery)
            if result is not ApplyResult.NOTHING:
                return result
            if status is StepStatus.CLOSED:
                raise MalformedError(Reason.TOO_LATE, _ANSWERS[status][2])
            if status is StepStatus.WAITS:
                await self._put_back(message, order, delivery, since)
        return result

    def _check_result(self, message: CallbackMessage, order: Order) -> None:
        """Check that a result has the type of its step.

        Raises:
            MalformedError: it does not fit. The step goes on waiting.
        """
        is_result = (message.outcome, message.direction) == ("done", Direction.DO.value)
        if not is_result or message.step >= len(order.steps):
            return
        try:
            name = order.steps[message.step].name
            self._business.check_result(order, name, text_of(message.result))
        except ValueError as error:
            raise MalformedError(Reason.INVALID, f"its result does not fit: {error}") from None

    async def _apply(
        self, message: CallbackMessage, delivery: Delivery
    ) -> tuple[ApplyResult, StepStatus, datetime]:
        """Decide about a callback; return also the status of its step, and since when."""
        callback = codec.to_callback_result(message)
        status, since = StepStatus.CLOSED, self._context.clock.now()

        def decide(loaded: Order | None, now: datetime) -> Decision | None:
            nonlocal status, since
            order = check_order(message, loaded)  # it may have been purged, and its id used again
            status = decisions.status_of(order, callback)
            if status is StepStatus.CLOSED:
                return None
            step = order.steps[callback.step]
            since = step.since
            tracing.about(step=step.name, epoch=step.epoch)
            if status is not StepStatus.OUT:
                return None
            rules = self._context.rules.of(self._business.workflow_of(order), now)
            return decisions.decide(
                order, callback, rules, now=now, instance=self._context.instance
            )

        cause = cause_of(self._context.queues.scheduler, message.id)
        trigger = Trigger(by="callback", cause=cause, external_sent=delivery.external_sent)
        await self._context.rules.refresh()
        result = await self._runner.run(callback.order_id, trigger, decide)
        return result, status, since

    def _lane(self, order: Order) -> str:
        """Return the scheduler's queue of an order's lane."""
        return lane(self._context.queues.scheduler, urgent=order.details.urgent)

    async def _put_back(
        self, message: CallbackMessage, order: Order, delivery: Delivery, since: datetime
    ) -> None:
        """Put a callback back until its step may be out. The pause grows with the step's wait.

        Raises:
            MalformedError: it has waited long enough.
        """
        now = self._context.clock.now()
        if max(message.expires_at, since + WAIT_MIN) <= now:
            raise MalformedError(
                Reason.EXPIRED,
                f"the token expired at {message.expires_at.isoformat()}, and its step has not "
                f"changed since {since.isoformat()}",
            )
        at = now + min(max(now - since, AGAIN_MIN), AGAIN_MAX)
        own_id = f"callback/again/{digest_id(delivery.message_id)}"
        later = delivery.on_bus(at, now)
        again = Message(self._lane(order), own_id, delivery.body, scheduled_at=later)
        await self._context.bus.send([again])
        log.info("a callback waits for order %s step %d", message.order_id, message.step)
