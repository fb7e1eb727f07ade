"""Agent: calls one remote service, retries transient errors, and is silent when time is over.

"The Agent encapsulates calls to remote services, handles errors, retries." How one request goes:

1. **Receive.** The message is decoded. What cannot be decoded is put aside, because no retry would
   help. The message also carries the state in which its last delivery ended
   (``sas.domain.calls``).
2. **Time.** The long steps say until when this request may call. A request that waited too long in
   its queue asks the scheduler for time and comes again. A request for which its step no longer
   waits is superseded, and ends here.
3. **Content.** The order and the results of earlier steps are fetched and decoded.
4. **Admit.** Every guard (circuit breaker, call limit) must admit the call. If one of them does
   not, the request is put back: a copy of its message comes again at the time that the guard gave.
   That uses up no delivery, and nothing counts as a failure. If that time is too close to
   CompleteBy, time is over (7).
5. **Call.** The call goes out with the idempotency key of the step. The key is the same in every
   attempt, delivery and dispatch, so the service has one effect at most. The call races three
   moments: CompleteBy, the end of the function, and for a probe the last moment for a reply.
6. **Retry.** A transient error is retried after a growing pause, until CompleteBy. A pause that
   would outlast the function becomes a put-back. Any other error is a bug of the agent, and so is a
   result that cannot be stored: the step waits until a deploy mends it
   (``sas.engine.failing_agent``).
7. **Answer or be silent.** A reply (done or refused) goes to the scheduler while there is time.
   Time is over when CompleteBy has passed, whatever the service answered meanwhile, because the
   supervisor recovers the step then. Time is over, too, when no further call may begin before
   CompleteBy. The state tells what follows:

   * CUT_OFF, a call went out: its outcome may be unknown, and the agent is silent;
   * NOT_BEGUN, no call counts: the agent says that the step waited, and no failure is counted. If
     CompleteBy has passed already, the message is put back, and asks for more time at 2 when it
     comes again.

What can go wrong, and why nothing is lost: a crash at any point leaves the message in its queue.
It is redelivered, and the service recognises the key. If the crash came after the reply was sent,
the second reply has the same id and changes nothing. If no delivery ever ends well, CompleteBy
passes, and the supervisor finds the step by its due row. While the store or a queue does not
answer, ``sas.engine.receiver`` puts the message back, with the state that the request has reached
by then.

The reply is handed to the scheduler, and the order runs on in this function
(``sas.engine.run_on``). So a handler may not be alone with a request: another one may have replied
and died, or may be about to reply. A redelivery first looks whether the reply is recorded. One that
ends without a reply fences the reply (``_let_go``). In both cases what follows from a reply that is
recorded is sent.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.trace import SpanKind

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.codec.results import encode_result, whole_text
from sas.codec.strict import MalformedError
from sas.domain.calls import CallEvent, CallState
from sas.domain.change import Decision, Trigger, fence
from sas.domain.claim import is_out
from sas.domain.content import Content
from sas.domain.ids import digest_id, idempotency_key, key_time
from sas.domain.messages import Outcome, Reply
from sas.domain.order import AttemptError, Direction, Fault, Order
from sas.domain.queues import lane
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.failing_agent import FailingAgent, FailingAgentError
from sas.engine.hooks import Admission, CallbackIssuer, CallEnd, CallGuard, LongSteps
from sas.engine.in_flight import InFlightRequest, MustWaitError, carrying
from sas.engine.request_content import RequestContent
from sas.engine.retry import RetryPolicy
from sas.engine.transition import TransitionRunner
from sas.ports import (
    Agent,
    AgentCall,
    AwaitCallback,
    Later,
    Message,
    OtherVersionError,
    QueueRefusesError,
    RefusedError,
    StillRunning,
    TransientError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
CALL_AGAIN_AFTER = timedelta(seconds=1)
"""Pause before a call that its function cut off is made again."""
KEEP_ERROR_SECONDS = 2.0
"""Longest wait for the store when it keeps the error of an attempt."""
KEEP_ERROR_AGAIN_AFTER = timedelta(seconds=5)
"""Shortest time between two errors that are kept for one request."""


class AgentActor:
    """Handles one agent's request queue. The numbers are those of the module's text."""

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
        runner: TransitionRunner,
    ) -> None:
        self._context = context
        self._runner = runner
        self._name = name
        self._agent = agent
        self._attempts = Attempts(name, context, policy, guards)
        self._failing = FailingAgent(context, name)
        self._content = RequestContent(context, name)
        self._long_steps = long_steps
        self._callbacks = callbacks
        self._workflows = workflows

    async def handle(self, delivery: Delivery) -> Reply | None:
        """Handle one request; return the reply that was sent, or None.

        Raises:
            UnavailableError: put the message back (``sas.engine.receiver``).
        """
        with tracing.received(f"agent {self._name}", "agent", delivery.properties):
            # 1. Receive.
            try:
                request = internal.decode(delivery.body, RequestMessage)
            except MalformedError as error:
                rejection = delivery.rejected(error)
                await self._context.rejections.put_aside(rejection)
                return None
            tracing.about(
                f"agent {self._name} {request.direction}",
                order_id=request.order_id,
                step=request.step_name,
                epoch=request.epoch,
                workflow=request.workflow,
            )
            call = InFlightRequest(request, delivery, self._context.clock)
            try:
                if not call.is_first and await self._is_replied(request):
                    return None
                reply = await self._handle(call, delivery)
            except UnavailableError as error:
                error.put_back_with |= call.interrupt()
                raise
            if call.state is CallState.SUPERSEDED or (
                call.state is CallState.CUT_OFF and not call.is_first
            ):
                try:
                    await self._let_go(request)
                except UnavailableError as error:
                    error.put_back_with |= carrying(CallState.TRIED)
                    raise
            return reply

    async def _handle(self, call: InFlightRequest, delivery: Delivery) -> Reply | None:
        # 2. Time.
        request = await self._long_steps.granted(call, delivery)
        if request is None:
            self._log_end(call)
            return None
        call.request = request
        answer: Reply | Later | None = None
        try:
            # 3 to 6. Content, admit, call, retry.
            answer = await self._work(call)
        except MustWaitError as wait:
            if call.failures and call.state is CallState.GOES_ON:  # it still waits for its agent
                pause = max(wait.until - self._context.clock.now(), CALL_AGAIN_AFTER)
                return await self._answer(StillRunning(pause), call)
            if not call.is_close(wait.until):
                await self._put_back(call, delivery, wait.until)
                return None
        except FailingAgentError as error:
            await self._failing.report(call, error)
            return await self._answer(StillRunning(error.pause), call)
        else:
            await self._failing.ended_well(call)
        # 7. Answer or be silent.
        if answer is None or call.is_late():
            call.move(CallEvent.TIME_OVER)
            self._log_end(call)
            if call.state is CallState.CUT_OFF:
                return None
            if call.is_late():
                raise UnavailableError(
                    f"order {request.order_id}: no call could begin before CompleteBy"
                )
            answer = _reply(request, Outcome.WAITED)
        return await self._answer(answer, call)

    async def _is_replied(self, request: RequestMessage) -> bool:
        """Return whether another handler replied. Then what follows from its reply is sent.

        That handler may have run on from its reply, and died before it completed its message.

        Raises:
            OtherVersionError: this instance lacks the workflow, so it cannot send the requests.
        """
        cause = self._reply_cause(request)
        return await self._runner.repeat(request.order_id, cause, whole=True)

    async def _let_go(self, request: RequestMessage) -> None:
        """End a request without a reply. Another handler that still has it cannot reply any more.

        Without the fence it could record its reply after this message was completed, run on, and
        die: no message would be left from which the order goes on. If it has replied already, what
        follows from that is sent.
        """

        def decide(order: Order | None, _now: datetime) -> Decision | None:
            direction = Direction(request.direction)
            if order is None or not is_out(order, request.step, direction, request.epoch):
                return None
            return fence(order)

        trigger = Trigger(by=f"agent {self._name}", cause=self._reply_cause(request))
        await self._runner.run(request.order_id, trigger, decide)

    def _reply_cause(self, request: RequestMessage) -> str:
        return self._context.reply_cause(
            request.order_id, request.step, request.direction, request.epoch
        )

    async def _answer(self, answer: Reply | Later, call: InFlightRequest) -> Reply | None:
        """Send the answer to a request; return the reply, None if its step goes on."""
        request = call.request
        if not isinstance(answer, Reply):
            await self._long_steps.go_on(call, answer)
            call.move(CallEvent.CONTINUED)
            return None
        message = internal.from_reply(answer, request.seq)
        queue = lane(self._context.queues.scheduler, urgent=request.urgent)
        try:
            await self._context.run_on.send([Message(queue, message.id, internal.encode(message))])
        except UndeliverableError as error:  # a right may be missing for a while: put back
            raise QueueRefusesError(error) from error
        call.move(CallEvent.REPLIED)
        return answer

    async def _work(self, call: InFlightRequest) -> Reply | Later:
        """Return the answer to a request.

        Raises:
            MustWaitError: no call may go out before a time, perhaps because CompleteBy has passed.
            FailingAgentError: the agent has a bug.
        """
        request = call.request
        if call.is_late():
            raise MustWaitError(request.complete_by)
        try:  # without the workflow, its steps are not known here
            self._workflows.find(request.workflow)
        except UnknownWorkflowError as error:
            text = f"order {request.order_id} waits for a deploy: {error}"
            raise OtherVersionError(text) from None
        try:
            content = await self._content.call_of(request)
            issuer = self._callbacks(request, request.generation)
            result = await self._make_calls(replace(content, callbacks=issuer), call)
        except RefusedError as refusal:
            fault = Fault(whole_text(refusal.code), whole_text(str(refusal)))
            return _reply(request, Outcome.REFUSED, fault=fault)
        if isinstance(result, Later):
            return replace(result, note=whole_text(result.note))
        stored = await self._context.content.offload_result(request.order_id, result)
        return _reply(request, Outcome.DONE, result=stored)

    async def _make_calls(self, content: AgentCall, call: InFlightRequest) -> Any:
        """Return the result of a do or an undo as it is stored; or a ``Later`` of either."""
        # A call under an older key may still arrive: undo under those keys first.
        later = await self._undo_older(content, call)
        if later is not None:
            return later
        if call.request.direction == Direction.DO.value:
            return await self._attempts.make(functools.partial(self._do, content), call)
        result = await self._attempts.make(functools.partial(self._agent.undo, content), call)
        # A result of an undo is ignored.
        return result if isinstance(result, Later) else "null"

    async def _do(self, content: AgentCall) -> str | Later:
        """Make one attempt of a do. A result that cannot be stored fails it, as a bug does."""
        result: Any = await self._agent.do(content)
        if isinstance(result, Later):
            return result
        return encode_result(result, self._name, self._context.codec)

    async def _undo_older(self, content: AgentCall, call: InFlightRequest) -> Later | None:
        """Undo under the keys of earlier generations: each may have had its effect.

        A callback counts only for the newest key. So an agent that awaits one for an older key is
        called again later.
        """
        request = call.request
        for generation in range(request.generation):
            key = idempotency_key(request.order_id, request.step_name, generation)
            older = replace(content, key=key, callbacks=self._callbacks(request, generation))
            try:
                result = await self._attempts.make(functools.partial(self._agent.undo, older), call)
            except RefusedError as refusal:
                text = f"an earlier call (key {key}) could not be undone: {refusal}"
                raise RefusedError(refusal.code, text) from None
            if isinstance(result, AwaitCallback):
                return StillRunning(timedelta(seconds=request.time_allowed), result.note)
            if isinstance(result, StillRunning):
                return result
        return None

    async def _put_back(self, call: InFlightRequest, delivery: Delivery, until: datetime) -> None:
        """Put a request back until ``until``, within its CompleteBy. This uses up no delivery.

        The new id follows from the id of the message handled. A redelivery makes the same id. A
        message that comes back too early (clocks differ) makes another id, or duplicate detection
        would drop it.
        """
        request = call.request
        call.move(CallEvent.PUT_BACK)
        # A call that was handed over had two seconds only. From its queue it gets its time anew.
        hurried = delivery.is_handed_over and call.state is CallState.TRIED
        state = CallState.QUEUED if hurried else call.state
        again = Message(
            self._context.queues.agent(self._name, urgent=request.urgent),
            f"put-back/{digest_id(request.id, delivery.message_id, key_time(until))}",
            delivery.body,
            scheduled_at=delivery.on_bus(until, self._context.clock.now()),
            properties=call.coming_again(state),
        )
        await self._context.bus.send([again])

    def _log_end(self, call: InFlightRequest) -> None:
        request = call.request
        log.info(
            "%s: order %s step %s %s epoch %d",
            "silent" if call.state is CallState.CUT_OFF else call.state.value,
            request.order_id, request.step_name, request.direction, request.epoch,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ending:
    """How one call ended: what it means for its request, and what for its remote service.

    ``why`` explains a failure of the service to people.
    """

    event: CallEvent
    service: CallEnd
    why: str = ""


class _CutOffError(MustWaitError):
    """A call was cut off: by CompleteBy, by the end of its function, or as a probe."""

    def __init__(self, until: datetime, *, ending: Ending, fault: str) -> None:
        super().__init__(until)
        self.ending = ending
        self.fault = fault


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

    async def make(self, work: Callable[[], Awaitable[Any]], call: InFlightRequest) -> Any:
        """Make attempts until the work is done, refused, or out of time.

        Raises:
            RefusedError: the remote service refused for good.
            MustWaitError: no call may go out before a time.
            FailingAgentError: the work raised any other error: the agent has a bug.
        """
        number = 0
        newest: AttemptError | None = None  # as it is kept beside the order
        while True:
            await self._admit(call)
            number += 1
            try:
                return await self._traced(work, call, number)
            except TransientError as error:
                attempt_error = self._error(call, number, error.kind, str(error))
                delay = self._policy.delay(number - 1, error.retry_after)
            except (RefusedError, MustWaitError, UnavailableError):
                raise
            except Exception as error:
                call.failures += 1
                bug = FailingAgentError(error, call.failures)
                await self._keep(call, self._error(call, call.failures, bug.kind, str(bug)))
                raise bug from error
            # 6. Retry. The text of the service is not logged: it may quote the order.
            log.info(
                "attempt %d: order %s step %s %s: %s; again in %.1f s",
                number, call.request.order_id, call.request.step_name,
                call.request.direction, metrics.code(attempt_error.kind), delay,
            )  # fmt: skip
            is_last = delay >= call.seconds_to_complete_by()
            if _is_news(attempt_error, newest, is_last=is_last):
                await self._keep(call, attempt_error)
                newest = attempt_error
            again_at = self._clock.now() + timedelta(seconds=delay)
            if is_last or call.outlasts_function(again_at):
                raise MustWaitError(again_at)
            await self._clock.sleep(delay)

    def _error(self, call: InFlightRequest, number: int, kind: str, text: str) -> AttemptError:
        return AttemptError(
            epoch=call.request.epoch,
            attempt=number,
            kind=whole_text(kind),
            message=whole_text(text),
            at=self._clock.now(),
        )

    async def _keep(self, call: InFlightRequest, error: AttemptError) -> None:
        """Keep an error with its step. If the store does not answer soon, only the text is lost."""
        request = call.request
        seconds = min(KEEP_ERROR_SECONDS, call.seconds_to_complete_by())
        if seconds <= 0:
            return
        try:
            async with self._clock.timeout(seconds):
                await self._store.keep_error(request.order_id, request.step, error)
        except (UnavailableError, TimeoutError) as down:
            log.warning("order %s: the error of an attempt was not kept: %s",
                        request.order_id, type(down).__name__)  # fmt: skip

    async def _admit(self, call: InFlightRequest) -> None:
        """Have every guard admit a call, or raise MustWaitError.

        A guard may wait before it answers. So every guard is asked twice: one that admitted the
        call may refuse it after the wait of another one.
        """
        # 4. Admit.
        admissions: set[Admission] = set()
        until: datetime | None = None
        try:
            for guard in (*self._guards, *self._guards):
                answer = await guard.admit(call)
                if isinstance(answer, datetime):
                    until = answer
                    break
                admissions.add(answer)
        except BaseException:
            await self._tell_guards(call, CallEnd.UNKNOWN)
            raise
        if until is None and call.is_late():
            until = call.request.complete_by
        if until is not None:
            await self._tell_guards(call, CallEnd.UNKNOWN)
            raise MustWaitError(until)
        call.move(CallEvent.PROBED if Admission.PROBE in admissions else CallEvent.CALLED)

    async def _traced(
        self, work: Callable[[], Awaitable[Any]], call: InFlightRequest, number: int
    ) -> Any:
        """Make one attempt in its own span, and count its outcome."""
        request = call.request
        with tracing.span(f"agent {self._agent} attempt", kind=SpanKind.CLIENT) as span:
            outcome, fault = "transient", "agent-bug"
            span.set_attribute("sas.attempt", number)
            try:
                result = await self._attempt(work, call)
                outcome, fault = ("later" if isinstance(result, Later) else "done"), ""
            except TransientError as error:
                fault = error.kind
                raise
            except RefusedError as refusal:
                outcome, fault = "refused", refusal.code
                raise
            except _CutOffError as cut_off:
                outcome, fault = "silent", cut_off.fault
                raise
            finally:
                step, direction = request.step_name, request.direction
                metrics.attempt(
                    self._agent, step, direction=direction, outcome=outcome, fault=fault
                )
                span.set_attribute("sas.outcome", outcome)
                span.set_attribute("sas.fault", metrics.code(fault))
            return result

    async def _attempt(self, work: Callable[[], Awaitable[Any]], call: InFlightRequest) -> Any:
        """Make one attempt; move the request and tell the guards as it ended."""
        # 5. Call.
        ending = Ending(CallEvent.ENDED, CallEnd.UNKNOWN)  # an agent with a bug, or a crash
        try:
            result = await self._race(work, call)
            ending = Ending(CallEvent.ENDED, CallEnd.ANSWERED)
        except RefusedError:
            ending = Ending(CallEvent.ENDED, CallEnd.ANSWERED)
            raise
        except TransientError as error:
            ending = ending_of(error)
            raise
        except _CutOffError as cut_off:
            ending = cut_off.ending
            raise
        else:
            return result
        finally:
            call.move(ending.event)
            await self._tell_guards(call, ending.service, ending.why)

    async def _race(self, work: Callable[[], Awaitable[Any]], call: InFlightRequest) -> Any:
        """Return what the work returns; raise _CutOffError if one of three moments comes first."""
        began, complete_by = self._clock.now(), call.request.complete_by
        last_reply = call.last_reply if call.state is CallState.PROBING else None
        result = asyncio.ensure_future(work())
        complete = asyncio.ensure_future(self._reached(complete_by))
        function_end = asyncio.ensure_future(self._reached(call.function_ends_at))
        probe_end = asyncio.ensure_future(self._reached(last_reply))
        tasks = (result, complete, function_end, probe_end)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            now = self._clock.now()
            if function_end.done() and not complete.done():
                ending = Ending(CallEvent.ENDED, CallEnd.UNKNOWN)
                raise _CutOffError(now + CALL_AGAIN_AFTER, ending=ending, fault="function-end")
            probed = call.state is CallState.PROBING
            event = CallEvent.SERVICE_AWAY if probed else CallEvent.ENDED
            # A call that was cut off early says nothing about the service.
            fair = now - began >= call.fair_share
            ending = Ending(event, CallEnd.UNKNOWN)
            if fair:
                ending = Ending(event, CallEnd.FAILED, "no answer until CompleteBy")
            raise _CutOffError(complete_by, ending=ending, fault="complete-by")
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

    async def _tell_guards(self, call: InFlightRequest, end: CallEnd, why: str = "") -> None:
        for guard in self._guards:
            await guard.ended(call, end, why)


def ending_of(error: TransientError) -> Ending:
    """Return what a transient error says.

    A service that answers "try again later" is there: a probe that ends so was a call like others.
    """
    if error.answered:
        return Ending(CallEvent.ENDED, CallEnd.ANSWERED)
    end = CallEnd.ERROR_ANSWER if error.error_answer else CallEnd.FAILED
    return Ending(CallEvent.SERVICE_AWAY, end, str(error))


def _is_news(error: AttemptError, newest: AttemptError | None, *, is_last: bool) -> bool:
    """Return whether an error is to be kept: the first, and then another text, now and then."""
    if newest is None:
        return True
    changed = (error.kind, error.message) != (newest.kind, newest.message)
    return changed and (is_last or error.at >= newest.at + KEEP_ERROR_AGAIN_AFTER)


def _reply(
    request: RequestMessage,
    outcome: Outcome,
    *,
    result: Content | None = None,
    fault: Fault | None = None,
) -> Reply:
    return Reply(
        order_id=request.order_id,
        step=request.step,
        direction=Direction(request.direction),
        epoch=request.epoch,
        outcome=outcome,
        result=result,
        fault=fault,
    )
