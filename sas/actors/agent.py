"""Agent: wraps one remote service, retries what may pass, falls silent past CompleteBy.

"The Agent encapsulates calls to remote services, handles errors, retries." Every attempt
carries the same idempotency key. What is left unknown at CompleteBy is left unsaid: no
reply, no error, no recovery; that is the supervisor's.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from sas.actors.attempts import Attempts, MustWaitError, RetryPolicy, SilentError
from sas.actors.breakers import BreakerGuard
from sas.actors.calls import call_of
from sas.actors.context import Context
from sas.actors.discretion import Discreet
from sas.actors.longsteps import LongSteps
from sas.actors.results import result_of, whole
from sas.actors.slots import Slots
from sas.actors.term import Term
from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.codec.outward import Rejection
from sas.codec.strict import MalformedError
from sas.domain.blobs import Content
from sas.domain.breaker import BreakerPolicy
from sas.domain.ids import idempotency_key, key_time
from sas.domain.messages import AlertKind, Outcome, Reply
from sas.domain.model import Direction, Fault
from sas.domain.queues import lane
from sas.ports import Agent, AwaitCallback, Call, Later, Message, RefusedError, StillRunning
from sas.telemetry import tracing
from sas.telemetry.logs import logger

__all__ = ["AgentActor", "RetryPolicy"]

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
        self._agent = Discreet(name, agent)
        guard = BreakerGuard(context, name, breaker or BreakerPolicy(0))
        slots = Slots(context, name, limit)
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
    ) -> tuple[Term, Reply | Later | None] | None:
        """Return the time that a request was granted, and what came of it; None where it was put
        back.

        Where it may be handed back uncalled, only its first delivery calls: a later one might do
        so while the first, slow one, says that nothing was called.
        """
        again = request.checks > 0 or delivery.message_id.startswith(PUT_BACK)
        returnable = request.may_return and not again and delivery.count is not None
        if returnable and delivery.count != 1:
            return Term(self._context, request), _reply(request, Outcome.INTERRUPTED)
        term = Term(self._context, request)
        try:
            granted = await self._long.granted(request)
            if granted is None:
                return term, None
            term = Term(self._context, granted, fresh=not again)
            return term, await self._work(term)
        except MustWaitError as wait:
            if returnable and not wait.stays:
                return term, _reply(request, Outcome.UNAVAILABLE)
            called = wait.called or request.checks > 0 or delivery.called_before
            if term.is_near(wait.until):
                log.info("agent %s: order %s waits no longer", self._name, request.order_id)
                return term, None if called else _reply(request, Outcome.WAITED)
            if term.moved:  # what it comes back with is to be read anew
                request = msgspec.structs.replace(term.request, checks=request.checks + 1)
                delivery = replace(delivery, body=internal.encode(request))
            await self._put_back(request, delivery, wait.until, called=called)
            return None

    async def _work(self, term: Term) -> Reply | Later | None:
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

    async def _called(self, call: Call, term: Term) -> Any:
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

    async def _undo_older(self, call: Call, term: Term) -> Later | None:
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
        named = f"{request.id}|{delivery.message_id}|{key_time(until)}"
        own_id = hashlib.sha256(named.encode())
        again = Message(
            self._context.queues.agent(self._name, urgent=request.urgent),
            f"{PUT_BACK}{own_id.hexdigest()[:32]}",
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
