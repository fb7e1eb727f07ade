"""Agent: wraps one remote service, retries what may pass, falls silent past CompleteBy.

"The Agent encapsulates calls to remote services, handles errors, retries." Every attempt
carries the same idempotency key. What is left unknown at CompleteBy is left unsaid: no
reply, no error, no recovery; that is the supervisor's.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from opentelemetry.trace import SpanKind

from sas.actors.results import result_of, whole
from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.codec.outward import AlertMessage, Rejection
from sas.codec.strict import MalformedError, parse
from sas.domain.change import Incident
from sas.domain.content import Content
from sas.domain.ids import digest_id, idempotency_key, key_time
from sas.domain.messages import AlertKind, Outcome, Reply
from sas.domain.order import Direction, Fault, Order
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.engine.hooks import MustWaitError, SilentError
from sas.engine.messages import alert
from sas.features.call_limit import CallLimit
from sas.features.circuit_breaker.guard import CircuitBreaker
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.features.claim_check import fetch
from sas.features.field_encryption.redaction import RedactingAgent
from sas.features.long_steps.deadline import CallDeadline
from sas.features.long_steps.steps import LongSteps
from sas.ports import (
    Agent,
    AwaitCallback,
    Call,
    Clock,
    KeyMissingError,
    Later,
    Message,
    RefusedError,
    StateStore,
    StillRunning,
    TransientError,
    UnreadableError,
)
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)

PUT_BACK = "put-back/"
"""How the MessageId begins of a request that was put back."""

CALLED = "sas_called"
"""The property of one for which a call may have gone out before it was put back."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of the queue. ``count`` says how often it was handed out, where that is known."""

    body: bytes
    message_id: str
    properties: Mapping[str, object]
    count: int | None

    @property
    def called_before(self) -> bool:
        """Whether a call may have gone out for its request before this delivery."""
        return (self.count or 1) > 1 or CALLED in self.properties


class AgentActor:
    """Handles one agent's request queue."""

    def __init__(
        self,
        context: Context,
        name: str,
        agent: Agent,
        policy: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
        limit: int = 0,
    ) -> None:
        self._context = context
        self._name = name
        self._agent = RedactingAgent(name, agent)
        guard = CircuitBreaker(context, name, breaker or BreakerPolicy(0))
        slots = CallLimit(context, name, limit)
        self._attempts = Attempts(name, context.clock, policy or RetryPolicy(), guard, slots)
        self._long = LongSteps(context, name)

    async def handle(
        self,
        body: bytes,
        message_id: str,
        properties: Mapping[str, object] | None = None,
        *,
        delivery_count: int | None = None,
        enqueued_at: datetime | None = None,
        urgent: bool = False,
    ) -> Reply | None:
        """Take one request; return the reply that was sent, None where there was none to send.

        ``properties`` are the message's application properties: they carry its trace. After the
        first delivery (``delivery_count`` from 1; None: not known) a call may have gone out.
        ``enqueued_at`` tells how long its queue is. ``urgent`` says that it came by that lane.

        Raises:
            StoreUnavailableError, BusUnavailableError: let the message come again. So does
            whatever the agent raises that is neither refused nor transient (a bug in it).
        """
        with tracing.received(f"agent {self._name}", "agent", properties):
            queue = self._context.queues.agent(self._name, urgent=urgent)
            await self._context.lags.took_up(queue, enqueued_at, delivery_count)
            try:
                request = internal.decode(body, RequestMessage)
            except MalformedError as wrong:
                await self._put_aside(body, message_id, queue, wrong)
                return None
            delivery = Delivery(body, message_id, properties or {}, delivery_count)
            return await self._handle(request, delivery)

    async def _put_aside(
        self, body: bytes, message_id: str, queue: str, wrong: MalformedError
    ) -> None:
        rejection = Rejection(body, wrong.reason, wrong.description, queue, message_id)
        await self._context.rejections.put_aside(rejection, AlertKind.REJECTED)

    async def _handle(self, request: RequestMessage, delivery: Delivery) -> Reply | None:
        tracing.about(
            f"agent {self._name} {request.direction}",
            order_id=request.order_id,
            step=request.step_name,
            epoch=request.epoch,
            workflow=request.workflow,
        )
        found = await self._answer(request, delivery)
        if found is None:
            return None
        term, answer = found
        if answer is None or term.left() <= 0:
            log.info(
                "silent past CompleteBy: order %s step %s %s epoch %d",
                request.order_id, request.step_name, request.direction, request.epoch,
            )  # fmt: skip
            return None
        if not isinstance(answer, Reply):
            await self._long.go_on(term.request, answer)
            return None
        message = internal.from_reply(answer)
        queue = lane(self._context.queues.replies, urgent=request.urgent)
        sent = Message(queue, message.id, internal.encode(message))
        await self._context.bus.send([sent])
        return answer

    async def _answer(
        self, request: RequestMessage, delivery: Delivery
    ) -> tuple[CallDeadline, Reply | Later | None] | None:
        """Return the time that a request was granted, and what came of it; None where it was put
        back.
        """
        again = request.checks > 0 or delivery.message_id.startswith(PUT_BACK)
        term = CallDeadline(self._context, request)
        try:
            granted = await self._long.granted(request)
            if granted is None:
                return term, None
            term = CallDeadline(self._context, granted, fresh=not again)
            return term, await self._work(term)
        except MustWaitError as wait:
            called = wait.called or request.checks > 0 or delivery.called_before
            if term.is_near(wait.until):
                log.info("agent %s: order %s waits no longer", self._name, request.order_id)
                return term, None if called else _reply(request, Outcome.WAITED)
            if term.moved:  # what it comes back with is to be read anew
                request = msgspec.structs.replace(term.request, checks=request.checks + 1)
                delivery = replace(delivery, body=internal.encode(request))
            await self._put_back(request, delivery, wait.until, called=called)
            return None

    async def _work(self, term: CallDeadline) -> Reply | Later | None:
        request = term.request
        if term.left() <= 0:
            return None
        try:
            asked = await call_of(request, self._context)
            giver = self._long.callbacks_of(request, request.generation)
            call = replace(asked, callbacks=giver, beats=term.beat)
            result = await self._called(call, term)
        except RefusedError as refused:
            fault = Fault(whole(refused.code), whole(str(refused)))
            return _reply(request, Outcome.REFUSED, fault=fault)
        except SilentError:
            return None
        if isinstance(result, StillRunning | AwaitCallback):
            return replace(result, note=whole(result.note))
        content = await result_of(result, self._name, request.order_id, self._context.store)
        if isinstance(content, Fault):
            return _reply(request, Outcome.REFUSED, fault=content)
        return _reply(request, Outcome.DONE, result=content)

    async def _called(self, call: Call, term: CallDeadline) -> Any:
        """Return the result of a do, None of an undo; or a ``Later`` of either."""
        # A call under an older key may be on its way still: close those keys first.
        later = await self._undo_older(call, term)
        if later is not None:
            return later
        if term.request.direction == Direction.DO.value:
            return await self._attempts.make(lambda: self._agent.do(call), term)
        result = await self._attempts.make(lambda: self._agent.undo(call), term)
        # An undo is confirmed, whatever its answer holds.
        return result if isinstance(result, StillRunning | AwaitCallback) else None

    async def _undo_older(self, call: Call, term: CallDeadline) -> Later | None:
        """Undo under the keys of earlier generations: any of them may have had its effect.

        A callback is about the newest key alone: what is awaited for an older one is asked for
        again instead.
        """
        request = term.request
        for generation in range(request.generation):
            key = idempotency_key(
                request.order_id, request.step_name, generation, request.alternative
            )
            one = replace(call, key=key, callbacks=self._long.callbacks_of(request, generation))
            result = await self._attempts.make(functools.partial(self._agent.undo, one), term)
            if isinstance(result, AwaitCallback):
                return StillRunning(timedelta(seconds=request.time_allowed), result.note)
            if isinstance(result, StillRunning):
                return result
        return None

    async def _put_back(
        self, request: RequestMessage, delivery: Delivery, until: datetime, *, called: bool
    ) -> None:
        """Let a request come again when it may be worked upon, within its CompleteBy.

        No attempt is burnt. Its id follows from that of the message handled: the same for a
        redelivery, another one for what comes back too early (clocks are apart), or duplicate
        detection would swallow it.
        """
        own_id = digest_id(request.id, delivery.message_id, key_time(until))
        again = Message(
            self._context.queues.agent(self._name, urgent=request.urgent),
            f"{PUT_BACK}{own_id}",
            delivery.body,
            time_to_live=request.complete_by - until,
            scheduled_at=until,
            properties={CALLED: "yes"} if called else {},
        )
        await self._context.bus.send([again])


def _reply(
    request: RequestMessage,
    outcome: Outcome,
    *,
    result: Content | None = None,
    fault: Fault | None = None,
) -> Reply:
    return Reply(
        request.order_id,
        request.step,
        Direction(request.direction),
        request.epoch,
        outcome,
        result,
        fault,
    )


Attempt = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, within CompleteBy. Seconds."""

    first_delay: float = 0.2
    delay_max: float = 10.0

    def delay(self, attempt: int, retry_after: timedelta | None) -> float:
        """Return how long to wait after a failed attempt (from 0): at least what was asked for."""
        ceiling = min(self.first_delay * 2.0 ** min(attempt, 60), self.delay_max)
        asked = retry_after.total_seconds() if retry_after else 0.0
        return asked + random.uniform(0, ceiling)  # noqa: S311  jitter, no secret


class Attempts:
    """Makes the attempts of one agent."""

    def __init__(
        self, agent: str, clock: Clock, policy: RetryPolicy, guard: CircuitBreaker, slots: CallLimit
    ) -> None:
        self._agent = agent
        self._slots = slots
        self._clock = clock
        self._policy = policy
        self._guard = guard

    async def make(self, attempt: Attempt, term: CallDeadline) -> Any:
        """Try until done, refused, or out of time.

        Raises:
            RefusedError: by the remote service, for good.
            SilentError: time is up.
            MustWaitError: the breaker is open, or as many calls are out as may be.
        """
        number = 0
        while True:
            request = term.request
            until = await self._guard.wait_of(request.id)
            if until is not None:
                raise MustWaitError(until, called=number > 0)
            slot = await self._slots.take(request)
            if slot is None:
                raise MustWaitError(self._slots.again_at(request), called=number > 0)
            try:
                if term.left() <= 0:  # breaker and slot may have taken their time
                    raise SilentError
                until = await self._guard.wait_of(request.id)  # it may have opened meanwhile
                if until is not None:
                    raise MustWaitError(until, called=number > 0)
                number += 1
                return await self._told(attempt, term, slot, number)
            except TransientError as failed:
                delay = self._policy.delay(number - 1, failed.retry_after)
                # Not what the service said: it may quote what it was sent.
                log.info(
                    "attempt %d: order %s step %s %s: %s; again in %.1f s",
                    number, request.order_id, request.step_name, request.direction,
                    metrics.code(failed.kind), delay,
                )  # fmt: skip
            finally:
                await self._slots.give_back(slot, request)
            if delay >= term.left():
                raise SilentError
            await self._clock.sleep(delay)

    async def _told(self, attempt: Attempt, term: CallDeadline, slot: int, number: int) -> Any:
        """Make one attempt as a span of its own, and tell its outcome."""
        request = term.request
        with tracing.span(f"agent {self._agent} attempt", kind=SpanKind.CLIENT) as span:
            outcome, fault = "transient", "agent-bug"
            span.set_attribute("sas.attempt", number)
            try:
                result = await self._guarded(attempt, term, slot)
                later = isinstance(result, StillRunning | AwaitCallback)
                outcome, fault = ("later" if later else "done"), ""
            except TransientError as failed:
                fault = failed.kind
                raise
            except RefusedError as refused:
                outcome, fault = "refused", refused.code
                raise
            except SilentError:
                outcome, fault = "silent", "complete-by"
                raise
            finally:
                step, direction = request.step_name, request.direction
                metrics.attempt(self._agent, step, direction, outcome, fault)
                span.set_attribute("sas.outcome", outcome)
                span.set_attribute("sas.fault", metrics.code(fault))
            return result

    async def _guarded(self, attempt: Attempt, term: CallDeadline, slot: int) -> Any:
        """Make one attempt and tell the breaker how it went: refused, or asked to wait for its
        own sake, is an answer, too; silence of a call that was cut off soon says nothing.
        """
        began = self._clock.now()
        try:
            result = await self._within(self._begun(attempt, term), term, slot)
        except TransientError as failed:
            if failed.answered:
                await self._guard.succeeded()
            else:
                await self._guard.failed(str(failed))
            raise
        except SilentError:
            if not term.over.is_set() and self._clock.now() - began >= term.fair:
                await self._guard.failed("no answer until CompleteBy")
            else:
                await self._guard.found_nothing_out(term.request.id)
            raise
        except RefusedError:
            await self._guard.succeeded()
            raise
        await self._guard.succeeded()
        return result

    @staticmethod
    async def _begun(attempt: Attempt, term: CallDeadline) -> Any:
        await term.begin()
        return await attempt()

    async def _within(self, work: Awaitable[Any], term: CallDeadline, slot: int) -> Any:
        """Return what ``work`` returns unless its time is up first; with its heartbeats time, and
        the slot it holds, go on.
        """
        task = asyncio.ensure_future(work)
        over = asyncio.ensure_future(term.over.wait())
        more = asyncio.ensure_future(term.more())
        try:
            while True:
                await asyncio.wait({task, over, more}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if over.done() or not more.result():
                    raise SilentError
                await self._slots.extend(slot, term.request)
                more = asyncio.ensure_future(term.more())
        finally:
            for pending in (task, over, more):
                pending.cancel()
            await asyncio.gather(task, over, more, return_exceptions=True)


READ_AGAIN_AFTER = timedelta(seconds=12)
"""When what cannot be read is tried again."""


async def call_of(request: RequestMessage, context: Context) -> Call:
    """Return the call that a request asks for; what it refers to is read from the store, what is
    encrypted in its order is opened.

    Raises:
        RefusedError: its order is no longer stored.
        MustWaitError: what it refers to cannot be read; the operator was told.
        StoreUnavailableError, BusUnavailableError: let the message come again.
    """
    try:
        return await _read(request, context)
    except UnreadableError as wrong:
        await _known(request, context.store)
        await _tell_unreadable(request, context, wrong)
        raise MustWaitError(context.clock.now() + READ_AGAIN_AFTER, called=True) from wrong


async def _read(request: RequestMessage, context: Context) -> Call:
    if request.order is msgspec.UNSET and request.order_ref is None:
        return await _claimed(request, context)
    order = internal.content_of(request.order, request.order_ref)
    results: dict[str, Content] = {name: _text_of(raw) for name, raw in request.results.items()}
    results |= {name: internal.from_ref_body(kept) for name, kept in request.result_refs.items()}
    own = internal.content_of(request.own_result, request.own_result_ref)
    return await _call_with(request, context, order, results, own)


async def _known(request: RequestMessage, store: StateStore) -> Order:
    order = await store.load(request.order_id)
    if order is None:
        raise RefusedError("unknown-order", f"order {request.order_id} is no longer stored")
    return order


async def _tell_unreadable(
    request: RequestMessage, context: Context, wrong: UnreadableError
) -> None:
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
        id=f"unreadable/{digest_id(request.id)}",
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
    condition = Incident(AlertKind.KEY_MISSING, scope, text, now, now + again_after)
    await context.conditions.met(condition, order_id)
    await context.conditions.note_now_and_then()


async def _claimed(request: RequestMessage, context: Context) -> Call:
    """Redeem a claim check: all together was too large to travel, so read the order."""
    order = await _known(request, context.store)
    results = {step.name: step.result for step in order.steps if step.result is not None}
    edited = order.steps[request.step].edited if request.step < len(order.steps) else None
    named = {name: result for name, result in results.items() if name in request.results}
    own = named.pop(request.step_name, None)
    return await _call_with(request, context, edited or order.details.payload, named, own)


async def _call_with(
    request: RequestMessage,
    context: Context,
    order: Content | None,
    results: dict[str, Content],
    own_result: Content | None,
) -> Call:
    async def value(content: Content | None) -> Any:
        if content is None:
            return None
        return parse((await fetch(context.store, request.order_id, content)).encode())

    opened, secrets = context.privacy.decrypt(
        request.workflow, request.order_id, await value(order)
    )

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


def _text_of(raw: msgspec.Raw) -> str:
    """Return the text of a raw part of a message."""
    return bytes(raw).decode()
