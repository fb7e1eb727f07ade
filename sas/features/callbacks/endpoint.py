"""Callbacks: an event outside (a carrier, a person's approval) ends a step.

It comes by HTTP or on the ``callbacks`` queue. Both ways end on that queue, so that an accepted
callback has a message that comes again until it is done. The token is the authentication. A
callback between two attempts of its step, or one that cannot be read now, waits there until its
token expires.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from opentelemetry.trace import SpanKind

from sas.codec.strict import MalformedError, Reason
from sas.domain.change import Decision
from sas.domain.ids import cause_of, key_time
from sas.domain.messages import AlertKind
from sas.domain.order import CLOCK_SKEW, Order
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.transition import ApplyResult, Source, TransitionRunner
from sas.features.callbacks import codec, results
from sas.features.callbacks import rules as decisions
from sas.features.callbacks.codec import CallbackKeys, CallbackMessage, Claims, ForgedError
from sas.features.callbacks.rules import CallbackResult, StepStatus
from sas.ports import (
    Business,
    BusUnavailableError,
    CallbacksOffError,
    Message,
    StoreUnavailableError,
    UndeliverableError,
    UnreadableError,
)
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)


AGAIN_MIN = timedelta(seconds=5)


AGAIN_MAX = timedelta(minutes=15)
"""How soon, and how late, a callback that waits for its step is looked at again."""


RETRY_AFTER_S = 5


_ANSWERS = {
    StepStatus.OUT: (202, "accepted", "it is taken, and counts"),
    StepStatus.WAITS: (
        202,
        "accepted",
        "it is taken, and counts as soon as the step is tried again",
    ),
    StepStatus.ALREADY: (200, "already", "the step has ended; nothing is left to do"),
    StepStatus.CLOSED: (
        410,
        "too-late",
        "the step is being undone, or goes on with another input or agent: take back what was done",
    ),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the callback endpoint answers: status, headers, and a code and a sentence in JSON."""

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
    return Answer(status, code, message, {**retry, **challenge, "Cache-Control": "no-store"})


class Callbacks:
    """Handles the callback endpoint and the ``codec`` queue."""

    def __init__(self, context: Context, business: Business, keys: CallbackKeys) -> None:
        self._context = context
        self._business = business
        self._keys = keys
        self._runner = TransitionRunner(context, business.workflow_of)

    async def answer(self, token: str | None, authorization: str | None, body: bytes) -> Answer:
        """Take a callback by HTTP, its token from the address or the Authorization header.

        202: it lies on the queue and will count; 200: the step has ended already; 400, 401, 404,
        410: it never will, and why; 503: try again.
        """
        with tracing.span("callback endpoint", kind=SpanKind.SERVER, actor="callbacks"):
            try:
                return await self._answer(codec.bearer(authorization) or token, body)
            except MalformedError as wrong:
                return _answer(400, wrong.reason, wrong.description)
            except (
                StoreUnavailableError,
                BusUnavailableError,
                UndeliverableError,
                UnreadableError,
            ) as down:
                log.warning("a callback could not be taken: %s", down)
                return _answer(503, "unavailable", "it could not be taken just now: send it again")

    async def _answer(self, token: str | None, body: bytes) -> Answer:
        if not self._keys:
            return _answer(503, "callbacks-off", str(CallbacksOffError()))
        try:
            claims = self._keys.read(token or "")
        except ForgedError as forged:
            return _answer(401, "forged-token", str(forged))
        said = codec.parse_body(body)
        if claims.expires_at <= self._context.clock.now():
            return _answer(410, "expired", _expired(claims))
        tracing.about(order_id=claims.order_id)
        try:
            order = claims.check_order(await self._context.load(claims.order_id))
        except MalformedError as gone:
            return _answer(404, gone.reason, gone.description)
        message = CallbackMessage(token or "", said.outcome, said.result, said.error)
        message = await results.redact_fault(message, claims, order, self._context)
        status = decisions.status_of(order, self._to_returned(message, claims, order))
        http_status, code, sentence = _ANSWERS[status]
        if status in {StepStatus.OUT, StepStatus.WAITS}:
            message = await results.offload_result(message, order, self._context)
            encoded, own_id = codec.encode_message(message), codec.own_id(message)
            queue = self._lane(order)
            await self._context.bus.send([Message(queue, own_id, encoded)])
        return _answer(http_status, code, f"order {claims.order_id}: {sentence}")

    async def handle(self, delivery: Delivery) -> ApplyResult:
        """Take one message of the ``callbacks`` queue.

        Raises:
            ContentionError, StoreUnavailableError, BusUnavailableError: let it come again.
        """
        order_id: str | None = None
        with tracing.received("callback", "callbacks", delivery.properties):
            try:
                message, claims = codec.read_message(delivery.body, self._keys)
                order_id = claims.order_id
                return await self._take(message, claims, delivery)
            except MalformedError as wrong:
                rejection = delivery.rejected(wrong, order_id)
                await self._context.rejections.put_aside(rejection, AlertKind.REJECTED)
                return ApplyResult.NOTHING

    async def identify(self, body: bytes) -> tuple[str, str | None]:
        """Return the order and the cause of a dead-lettered callback.

        The cause is None where the order is gone: another order under its id must not be fenced.

        Raises:
            MalformedError: it is not a callback of this system.
        """
        message, claims = codec.read_message(body, self._keys)
        try:
            claims.check_order(await self._context.load(claims.order_id))
        except MalformedError:
            return claims.order_id, None
        return claims.order_id, cause_of(self._context.queues.callbacks, codec.own_id(message))

    async def _take(
        self, message: CallbackMessage, claims: Claims, delivery: Delivery
    ) -> ApplyResult:
        order = claims.check_order(await self._context.load(claims.order_id))
        of_order = tracing.of_order(
            "callback act", order.details.traceparent, order_id=order.order_id
        )
        with of_order:
            try:
                said = await self._readable(message, claims, order)
            except UnreadableError as wrong:
                return await self._wait(message, claims, order, delivery, wrong)
            result, status, since = await self._act(said, claims, codec.own_id(message))
            if result is not ApplyResult.NOTHING:
                return result
            if status is StepStatus.CLOSED:
                raise MalformedError(Reason.TOO_LATE, _ANSWERS[status][2])
            if status is StepStatus.WAITS:
                again_on = self._lane(order)
                await self._put_back(again_on, claims, delivery, since)
        return result

    async def _wait(
        self,
        message: CallbackMessage,
        claims: Claims,
        order: Order,
        delivery: Delivery,
        wrong: UnreadableError,
    ) -> ApplyResult:
        """Let a callback that cannot be read come again; one that was result upon is finished."""
        own_id = codec.own_id(message)
        cause = cause_of(self._context.queues.callbacks, own_id)
        if await self._runner.repeat(order, cause):
            return ApplyResult.REPEATED
        await results.alert_unreadable(order, own_id, wrong, AGAIN_MAX, self._context)
        since = _since(order, claims, self._context.clock.now())
        await self._put_back(self._lane(order), claims, delivery, since)
        return ApplyResult.NOTHING

    async def _readable(
        self, message: CallbackMessage, claims: Claims, order: Order
    ) -> CallbackResult:
        """Return what a callback says, fit to be recorded; raises as ``results`` does."""
        message = await results.redact_fault(message, claims, order, self._context)
        said = self._to_returned(message, claims, order)
        if decisions.status_of(order, said) not in {StepStatus.OUT, StepStatus.WAITS}:
            return said
        message = await results.offload_result(message, order, self._context)
        return self._to_returned(message, claims, order)

    def _to_returned(
        self, message: CallbackMessage, claims: Claims, order: Order
    ) -> CallbackResult:
        return codec.to_returned(message, claims, self._agents(order, claims))

    async def _act(
        self, said: CallbackResult, claims: Claims, own_id: str
    ) -> tuple[ApplyResult, StepStatus, datetime]:
        """Let a callback count; return also how its step stood, and since when."""
        status, since = StepStatus.CLOSED, self._context.clock.now()

        def decide(order: Order, now: datetime) -> Decision | None:
            nonlocal status, since
            claims.check_order(order)  # it may have been purged, and its id used, since
            status = decisions.status_of(order, said)
            if status is StepStatus.CLOSED:
                return None
            step = order.steps[said.step]
            since = step.since
            tracing.about(step=step.name, epoch=step.epoch)
            if status is not StepStatus.OUT:
                return None
            _check_time(claims, now)
            workflow, urgent = self._business.workflow_of(order), order.details.urgent
            rules = self._context.rules.of(workflow, now, urgent=urgent)
            return decisions.decide(order, said, rules, now=now, instance=self._context.instance)

        source = Source(cause_of(self._context.queues.callbacks, own_id), "callback")
        await self._context.rules.refresh()
        result = await self._runner.apply(said.order_id, source, decide)
        return result, status, since

    def _lane(self, order: Order) -> str:
        """Return the queue of an order's callbacks: whoever sends to one knows no lanes."""
        return lane(self._context.queues.callbacks, urgent=order.details.urgent)

    def _agents(self, order: Order, claims: Claims) -> Sequence[str]:
        """Return the agents of a step by route, where the token names one that is not its first."""
        if claims.alternative is None or order.rejected:
            return ()
        return self._business.workflow_of(order).steps[claims.step].agents

    async def _put_back(
        self, queue: str, claims: Claims, delivery: Delivery, since: datetime
    ) -> None:
        """Let a callback come again once its step may be out: the longer it has not been, the
        later; within the token's time.

        Raises:
            MalformedError: that is over.
        """
        now = self._context.clock.now()
        _check_time(claims, now)
        at = min(now + min(max(now - since, AGAIN_MIN), AGAIN_MAX), claims.expires_at + CLOCK_SKEW)
        digest = hashlib.sha256(f"{delivery.message_id}|{key_time(at)}".encode()).hexdigest()
        own_id = f"callback/again/{digest[:32]}"
        await self._context.bus.send([Message(queue, own_id, delivery.body, scheduled_at=at)])
        log.info("a callback waits for order %s step %d", claims.order_id, claims.step)


def _since(order: Order, claims: Claims, now: datetime) -> datetime:
    """Return since when a callback's step is as it is."""
    return order.steps[claims.step].since if 0 <= claims.step < len(order.steps) else now


def _check_time(claims: Claims, now: datetime) -> None:
    """Refuse what comes too late, by whichever clock of ours the endpoint took it in time."""
    if claims.expires_at + CLOCK_SKEW <= now:
        raise MalformedError(Reason.EXPIRED, _expired(claims))


def _expired(claims: Claims) -> str:
    return f"the token expired at {claims.expires_at.isoformat()}: it allows nothing any more"
