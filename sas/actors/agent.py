"""Agent: calls one remote service, retries transient errors, and is silent past CompleteBy.

"The Agent encapsulates calls to remote services, handles errors, retries." Every attempt carries
the same idempotency key. If the outcome is unknown at CompleteBy, the agent sends neither a reply
nor an error. Recovery is the supervisor's.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from opentelemetry.trace import SpanKind

from sas.codec import internal
from sas.codec.external import AlertMessage
from sas.codec.internal import RequestMessage
from sas.codec.payloads import decode_content
from sas.codec.results import encode_result, whole_text
from sas.codec.strict import MalformedError, parse
from sas.domain.content import Content
from sas.domain.ids import digest_id, idempotency_key, key_time
from sas.domain.messages import AlertKind, Outcome, Reply
from sas.domain.order import AttemptError, Direction, Fault, FaultCode, Order
from sas.domain.queues import lane
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.hooks import (
    CALLED,
    PUT_BACK,
    CallAttempt,
    CallbackIssuer,
    CallDeadline,
    CallEnd,
    CallGuard,
    LongSteps,
    MustWaitError,
    SilentError,
    called_before,
)
from sas.ports import (
    Agent,
    AwaitCallback,
    Call,
    DecodingError,
    Later,
    Message,
    OtherVersionError,
    QueueRefusesError,
    RefusedError,
    StillRunning,
    TransientError,
    UnavailableError,
    UndeliverableError,
    UnreadableError,
)
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
CALL_AGAIN_AFTER = timedelta(seconds=1)
"""Pause before a call that its function cut off is made again."""
READ_AGAIN_AFTER = timedelta(seconds=12)
"""Pause before content that cannot be read is read again."""
KEEP_ERROR_SECONDS = 2.0
"""Longest wait for the store when it keeps the error of an attempt."""
KEEP_ERROR_AGAIN_AFTER = timedelta(seconds=5)
"""Shortest time between two errors that are kept for one request."""
_NO_BUG = (RefusedError, SilentError, MustWaitError, UnavailableError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, within CompleteBy. In seconds.

    The loop is our own, because retries end at CompleteBy: a moment on the clock port, which the
    simulation moves. Retry libraries use the process's clock.
    """

    first_delay: float = 0.2
    delay_max: float = 10.0

    def delay(self, attempt: int, retry_after: timedelta | None) -> float:
        """Return the pause after a failed attempt (from 0): at least what the service asked for."""
        ceiling = min(self.first_delay * 2.0 ** min(attempt, 60), self.delay_max)
        asked = retry_after.total_seconds() if retry_after else 0.0
        return asked + random.uniform(0, ceiling)  # noqa: S311  jitter, no secret


class AgentActor:
    """Handles one agent's request queue."""

    def __init__(  # noqa: PLR0913  one for each part that takes part in a call
        self,
        context: Context,
        name: str,
        agent: Agent,
        policy: RetryPolicy,
        *,
        guards: Sequence[CallGuard],
        long_steps: LongSteps,
        callbacks: CallbackIssuer,
        workflows: Workflows,
    ) -> None:
        self._context = context
        self._name = name
        self._agent = agent
        self._attempts = Attempts(name, context, policy, guards)
        self._long_steps = long_steps
        self._callbacks = callbacks
        self._workflows = workflows

    async def handle(self, delivery: Delivery) -> Reply | None:
        """Handle one request; return the reply that was sent, or None.

        Raises:
            UnavailableError: put the message back (``sas.engine.receiver``).
            Exception: the agent has a bug: it raised neither a refusal nor a transient error.
                Redeliver the message.
        """
        with tracing.received(f"agent {self._name}", "agent", delivery.properties):
            try:
                request = internal.decode(delivery.body, RequestMessage)
            except MalformedError as wrong:
                rejection = delivery.rejected(wrong)
                await self._context.rejections.put_aside(rejection, AlertKind.REJECTED)
                return None
            tracing.about(
                f"agent {self._name} {request.direction}",
                order_id=request.order_id,
                step=request.step_name,
                epoch=request.epoch,
                workflow=request.workflow,
            )
            return await self._handle(request, delivery)

    async def _handle(self, request: RequestMessage, delivery: Delivery) -> Reply | None:
        deadline = CallDeadline(self._context.clock, request, delivery.ends_at)
        try:
            granted = await self._long_steps.granted(request, delivery)
            if granted is None:
                return await self._send(None, deadline)
            deadline.request = granted
            answer = await self._work(deadline)
            if answer is None:
                _check_begun(deadline, delivery)
            return await self._send(answer, deadline)
        except MustWaitError as wait:
            called = wait.called or called_before(delivery)
            if not deadline.is_close(wait.until):
                await self._put_back(deadline, delivery, wait.until, called=called)
                return None
            log.info("order %s: the wait would pass CompleteBy", request.order_id)
            return await self._send(None if called else _reply(request, Outcome.WAITED), deadline)
        except UnavailableError as away:
            if deadline.called:
                away.put_back_with[CALLED] = "yes"
            raise

    async def _send(self, answer: Reply | Later | None, deadline: CallDeadline) -> Reply | None:
        """Send the answer to a request, unless its time is over; return the reply that was sent."""
        request = deadline.request
        if answer is None or deadline.left() <= 0:
            log.info(
                "silent: order %s step %s %s epoch %d",
                request.order_id, request.step_name, request.direction, request.epoch,
            )  # fmt: skip
            return None
        if not isinstance(answer, Reply):
            await self._long_steps.go_on(request, answer)
            return None
        message = internal.from_reply(answer, request.seq)
        queue = lane(self._context.queues.replies, urgent=request.urgent)
        try:
            await self._context.bus.send([Message(queue, message.id, internal.encode(message))])
        except UndeliverableError as refused:  # a right may be missing for a while: put back
            raise QueueRefusesError(refused) from refused
        return answer

    async def _work(self, deadline: CallDeadline) -> Reply | Later | None:
        """Return the answer to a request; None if its time is over."""
        request = deadline.request
        if deadline.left() <= 0:
            return None
        try:  # without the workflow, its steps are not known here
            self._workflows.find(request.workflow)
        except UnknownWorkflowError as lacks:
            text = f"order {request.order_id} waits for a deploy: {lacks}"
            raise OtherVersionError(text) from None
        try:
            call = replace(
                await self._call_of(request),
                callbacks=self._callbacks(request, request.generation),
            )
            result = await self._make_calls(call, deadline)
        except RefusedError as refused:
            fault = Fault(whole_text(refused.code), whole_text(str(refused)))
            return _reply(request, Outcome.REFUSED, fault=fault)
        except SilentError:
            return None
        if isinstance(result, Later):
            return replace(result, note=whole_text(result.note))
        encoded = encode_result(result, self._name, self._context.codec)
        if isinstance(encoded, Fault):
            return _reply(request, Outcome.REFUSED, fault=encoded)
        content = await self._context.content.offload_result(request.order_id, encoded)
        return _reply(request, Outcome.DONE, result=content)

    async def _make_calls(self, call: Call, deadline: CallDeadline) -> Any:
        """Return the result of a do, None for an undo; or a ``Later`` of either."""
        # A call under an older key may still arrive: undo under those keys first.
        later = await self._undo_older(call, deadline)
        if later is not None:
            return later
        if deadline.request.direction == Direction.DO.value:
            return await self._attempts.make(lambda: self._agent.do(call), deadline)
        result = await self._attempts.make(lambda: self._agent.undo(call), deadline)
        # A result of an undo is ignored.
        return result if isinstance(result, Later) else None

    async def _undo_older(self, call: Call, deadline: CallDeadline) -> Later | None:
        """Undo under the keys of earlier generations: each may have had its effect.

        A callback counts only for the newest key. So an agent that awaits one for an older key is
        called again later.
        """
        request = deadline.request
        for generation in range(request.generation):
            key = idempotency_key(request.order_id, request.step_name, generation)
            older = replace(call, key=key, callbacks=self._callbacks(request, generation))
            undo = functools.partial(self._agent.undo, older)
            try:
                result = await self._attempts.make(undo, deadline)
            except RefusedError as refused:
                text = f"an earlier call (key {key}) could not be undone: {refused}"
                raise RefusedError(refused.code, text) from None
            if isinstance(result, AwaitCallback):
                return StillRunning(timedelta(seconds=request.time_allowed), result.note)
            if isinstance(result, StillRunning):
                return result
        return None

    async def _put_back(
        self, deadline: CallDeadline, delivery: Delivery, until: datetime, *, called: bool
    ) -> None:
        """Put a request back until ``until``, within its CompleteBy. This uses up no delivery.

        The new id follows from the id of the message handled. A redelivery makes the same id. A
        message that comes back too early (clocks differ) makes another id, or duplicate detection
        would drop it.
        """
        request = deadline.request
        again = Message(
            self._context.queues.agent(self._name, urgent=request.urgent),
            PUT_BACK + digest_id(request.id, delivery.message_id, key_time(until)),
            delivery.body,
            scheduled_at=delivery.on_bus(until, self._context.clock.now()),
            properties={CALLED: "yes"} if called else {},
        )
        await self._context.bus.send([again])

    async def _call_of(self, request: RequestMessage) -> Call:
        """Return the call that a request asks for, with its content fetched and decoded.

        Raises:
            RefusedError: its order is no longer stored.
            MustWaitError: content cannot be read now; the operator was alerted.
            StoreUnavailableError, BusUnavailableError: put the message back.
        """
        try:
            order, results, own_result = await self._content_of(request)
            return Call(
                order_id=request.order_id,
                step=request.step_name,
                key=request.idempotency_key,
                complete_by=request.complete_by,
                order=await self._value(request, order),
                results={k: await self._value(request, one) for k, one in results.items()},
                own_result=await self._value(request, own_result),
            )
        except UnreadableError as wrong:
            await self._stored(request)
            await self._report_unreadable(request, wrong)
            again_at = self._context.clock.now() + READ_AGAIN_AFTER
            raise MustWaitError(again_at, called=False) from wrong

    async def _content_of(
        self, request: RequestMessage
    ) -> tuple[Content | None, dict[str, Content], Content | None]:
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
        stored = await self._stored(request)
        results = {
            step.name: step.result
            for step in stored.steps
            if step.result is not None and step.name in request.results
        }
        known = request.step < len(stored.steps)
        edited = stored.steps[request.step].call.edited if known else None
        own_result = results.pop(request.step_name, None)
        return edited or stored.details.payload, results, own_result

    async def _stored(self, request: RequestMessage) -> Order:
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
        except MalformedError as wrong:
            raise DecodingError(f"its content is not JSON: {wrong.description}") from wrong

    async def _report_unreadable(self, request: RequestMessage, wrong: UnreadableError) -> None:
        """Alert the operator, once for each dispatch of a step."""
        body = AlertMessage(
            kind=AlertKind.UNREADABLE.value,
            at=key_time(self._context.clock.now()),
            text=f"Step {request.step_name} of order {request.order_id} waits: {wrong}. It is "
            "tried again automatically, and no failure is counted.",
            id=f"unreadable/{digest_id(request.id)}",
            order_id=request.order_id,
            step=request.step_name,
            workflow=request.workflow,
            agent=self._name,
            attempts=request.epoch,
        )
        await self._context.report_unreadable(wrong, body, READ_AGAIN_AFTER)


class Attempts:
    """Makes the calls of one agent, and retries them within CompleteBy."""

    def __init__(
        self, agent: str, context: Context, policy: RetryPolicy, guards: Sequence[CallGuard]
    ) -> None:
        self._agent = agent
        self._store = context.store
        self._clock = context.clock
        self._policy = policy
        self._guards = guards

    async def make(self, call: Callable[[], Awaitable[Any]], deadline: CallDeadline) -> Any:
        """Make attempts until the call is done, refused, or out of time.

        Raises:
            RefusedError: the remote service refused for good.
            SilentError: the time is over.
            MustWaitError: a guard admits no call now.
        """
        number = 0
        tried = False
        kept: AttemptError | None = None
        while True:
            attempt = CallAttempt(deadline)
            try:
                await self._admit(attempt)
                number += 1
                return await self._traced(call, attempt, number)
            except TransientError as failed:
                error = self._error(deadline, number, failed.kind, str(failed))
                delay = self._policy.delay(number - 1, failed.retry_after)
                # The text of the service is not logged: it may quote the order.
                log.info(
                    "attempt %d: order %s step %s %s: %s; again in %.1f s",
                    number, attempt.request.order_id, attempt.request.step_name,
                    attempt.request.direction, metrics.code(failed.kind), delay,
                )  # fmt: skip
            except MustWaitError as wait:
                wait.called = wait.called or tried
                raise
            except _NO_BUG:
                raise
            except Exception as bug:
                text = f"{type(bug).__name__}: {bug}"
                await self._keep(deadline, self._error(deadline, number, "agent-bug", text))
                raise
            over = delay >= deadline.left()
            if _is_news(error, kept, over=over):
                await self._keep(deadline, error)
                kept = error
            tried = tried or not attempt.excused
            if over and tried:
                raise SilentError
            again_at = self._clock.now() + timedelta(seconds=delay)
            if over or deadline.outlasts_function(again_at):
                raise MustWaitError(again_at, called=tried)
            await self._clock.sleep(delay)

    def _error(self, deadline: CallDeadline, number: int, kind: str, text: str) -> AttemptError:
        epoch, now = deadline.request.epoch, self._clock.now()
        return AttemptError(
            epoch=epoch, attempt=number, kind=whole_text(kind), message=whole_text(text), at=now
        )

    async def _keep(self, deadline: CallDeadline, error: AttemptError) -> None:
        """Keep an error with its step. If the store does not answer soon, only the text is lost."""
        request = deadline.request
        seconds = min(KEEP_ERROR_SECONDS, deadline.left())
        if seconds <= 0:
            return
        try:
            async with self._clock.timeout(seconds):
                await self._store.keep_error(request.order_id, request.step, error)
        except (UnavailableError, TimeoutError) as down:
            log.warning("order %s: the error of an attempt was not kept: %s",
                        request.order_id, type(down).__name__)  # fmt: skip

    async def _admit(self, attempt: CallAttempt) -> None:
        """Have every guard admit an attempt, or raise.

        A guard may wait before it answers. So every guard is asked twice: one that admitted the
        attempt may refuse it after the wait of another one.
        """
        until: datetime | None = None
        try:
            for guard in (*self._guards, *self._guards):
                until = until or await guard.admit(attempt)
        except BaseException:
            await self._ended(attempt, CallEnd.UNKNOWN)
            raise
        if until is None and attempt.deadline.left() > 0:
            return
        await self._ended(attempt, CallEnd.UNKNOWN)
        if until is None:
            raise SilentError
        raise MustWaitError(until, called=False)

    async def _traced(
        self, call: Callable[[], Awaitable[Any]], attempt: CallAttempt, number: int
    ) -> Any:
        """Make one attempt in its own span, and count its outcome."""
        request = attempt.request
        with tracing.span(f"agent {self._agent} attempt", kind=SpanKind.CLIENT) as span:
            outcome, fault = "transient", "agent-bug"
            span.set_attribute("sas.attempt", number)
            try:
                result = await self._guarded(call, attempt)
                later = isinstance(result, Later)
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
            except MustWaitError as wait:
                outcome, fault = "silent", "function-end" if wait.called else "complete-by"
                raise
            finally:
                step, direction = request.step_name, request.direction
                metrics.attempt(
                    self._agent, step, direction=direction, outcome=outcome, fault=fault
                )
                span.set_attribute("sas.outcome", outcome)
                span.set_attribute("sas.fault", metrics.code(fault))
            return result

    async def _guarded(self, call: Callable[[], Awaitable[Any]], attempt: CallAttempt) -> Any:
        """Make one attempt, and tell the guards how it ended.

        A refusal is an answer, and so is a request to wait. A call that was cut off early says
        nothing about the service.
        """
        deadline = attempt.deadline
        began, before = self._clock.now(), deadline.called
        end, why = CallEnd.UNKNOWN, ""
        try:
            result = await self._within(call, attempt)
        except TransientError as failed:
            end, why = CallEnd.FAILED, str(failed)
            if failed.answered:
                end = CallEnd.ANSWERED
            elif failed.error_answer:
                end = CallEnd.ERROR_ANSWER
            raise
        except RefusedError:
            end = CallEnd.ANSWERED
            raise
        except (SilentError, MustWaitError) as cut_off:
            took = self._clock.now() - began
            by_host = isinstance(cut_off, MustWaitError) and cut_off.called
            if took >= deadline.fair_share and not by_host:
                end, why = CallEnd.FAILED, "no answer until CompleteBy"
            raise
        else:
            end = CallEnd.ANSWERED
            return result
        finally:
            try:
                await self._ended(attempt, end, why)
            finally:
                if attempt.excused:
                    deadline.called = before

    async def _within(self, call: Callable[[], Awaitable[Any]], attempt: CallAttempt) -> Any:
        """Return what ``call`` returns.

        Raises:
            SilentError: the time of the request is over first.
            MustWaitError: the function must end first: the call is made again, with the same key.
                Or a probe has no answer shortly before CompleteBy: no failure is counted for it.
        """
        deadline = attempt.deadline
        deadline.called = True
        work = asyncio.ensure_future(call())
        over = asyncio.ensure_future(self._reached(deadline.request.complete_by))
        ends = asyncio.ensure_future(self._reached(deadline.function_ends_at))
        late = asyncio.ensure_future(self._reached(deadline.last_reply if attempt.probes else None))
        tasks = (work, over, ends, late)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if over.done():
                raise SilentError
            if ends.done():
                raise MustWaitError(self._clock.now() + CALL_AGAIN_AFTER, called=True)
            raise MustWaitError(deadline.request.complete_by, called=False)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reached(self, moment: datetime | None) -> None:
        """Return at a moment; None: never."""
        if moment is None:
            await asyncio.Event().wait()
        else:
            await self._clock.sleep(max((moment - self._clock.now()).total_seconds(), 0.0))

    async def _ended(self, attempt: CallAttempt, end: CallEnd, why: str = "") -> None:
        for guard in self._guards:
            await guard.ended(attempt, end, why)


def _is_news(error: AttemptError, kept: AttemptError | None, *, over: bool) -> bool:
    """Return whether an error is to be kept: the first, and then another text, now and then."""
    if kept is None:
        return True
    changed = (error.kind, error.message) != (kept.kind, kept.message)
    return changed and (over or error.at >= kept.at + KEEP_ERROR_AGAIN_AFTER)


def _check_begun(deadline: CallDeadline, delivery: Delivery) -> None:
    """Raise UnavailableError if the time of a request is over before any call went out.

    The store was slow, and nothing was tried. So the request is put back, and asks for more time
    when it comes again.
    """
    if not (deadline.called or called_before(delivery)):
        raise UnavailableError(
            f"order {deadline.request.order_id}: no call could begin before CompleteBy"
        )


def _reply(
    request: RequestMessage,
    outcome: Outcome,
    *,
    result: Content | None = None,
    fault: Fault | None = None,
) -> Reply:
    direction = Direction(request.direction)
    epoch = request.epoch
    return Reply(
        order_id=request.order_id,
        step=request.step,
        direction=direction,
        epoch=epoch,
        outcome=outcome,
        result=result,
        fault=fault,
    )
