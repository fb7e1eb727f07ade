"""The attempts of one remote call: retried while they may succeed, never past CompleteBy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.trace import SpanKind

from sas.actors.breakers import BreakerGuard
from sas.actors.slots import Slots
from sas.actors.term import Term
from sas.ports import AwaitCallback, Clock, RefusedError, StillRunning, TransientError
from sas.telemetry import metrics, tracing
from sas.telemetry.logs import logger

log = logger(__name__)
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


class SilentError(Exception):
    """Time is up: say nothing."""


class MustWaitError(Exception):
    """No call may go out before ``until``: the breaker is open, no slot is free, or what the
    request refers to cannot be read.

    ``called`` says whether one may have gone out before, so that its outcome is unknown;
    ``stays`` that it must be this request that calls, for it is the breaker's probe.
    """

    def __init__(self, until: datetime, *, called: bool, stays: bool = False) -> None:
        super().__init__(until)
        self.until = until
        self.called = called
        self.stays = stays or called


class Attempts:
    """Makes the attempts of one agent."""

    def __init__(
        self, agent: str, clock: Clock, policy: RetryPolicy, guard: BreakerGuard, slots: Slots
    ) -> None:
        self._agent = agent
        self._slots = slots
        self._clock = clock
        self._policy = policy
        self._guard = guard

    async def make(self, attempt: Attempt, term: Term) -> Any:
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
                probes = self._guard.probes(request.id)
                again_at = self._slots.again_at(request)
                raise MustWaitError(again_at, called=number > 0, stays=probes)
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

    async def _told(self, attempt: Attempt, term: Term, slot: int, number: int) -> Any:
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

    async def _guarded(self, attempt: Attempt, term: Term, slot: int) -> Any:
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
    async def _begun(attempt: Attempt, term: Term) -> Any:
        await term.begin()
        return await attempt()

    async def _within(self, work: Awaitable[Any], term: Term, slot: int) -> Any:
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
