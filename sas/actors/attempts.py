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
from sas.codec.internal import RequestMessage
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

    ``called`` says whether one went out before, so that its outcome is unknown.
    """

    def __init__(self, until: datetime, *, called: bool) -> None:
        super().__init__(until)
        self.until = until
        self.called = called


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

    async def make(self, attempt: Attempt, request: RequestMessage) -> Any:
        """Try until done, refused, or out of time.

        Raises:
            RefusedError: by the remote service, for good.
            SilentError: time is up.
            MustWaitError: the breaker is open, or as many calls are out as may be.
        """
        number = 0
        while True:
            until = await self._guard.wait_of(request.id)
            if until is not None:
                raise MustWaitError(until, called=number > 0)
            slot = await self._slots.take(request)
            if slot is None:
                raise MustWaitError(self._slots.again_at(request), called=number > 0)
            number += 1
            try:
                return await self._told(attempt, request, number)
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
            if delay >= left(request, self._clock):
                raise SilentError
            await self._clock.sleep(delay)

    async def _told(self, attempt: Attempt, request: RequestMessage, number: int) -> Any:
        """Make one attempt as a span of its own, and tell its outcome."""
        with tracing.span(f"agent {self._agent} attempt", kind=SpanKind.CLIENT) as span:
            outcome, fault = "transient", "agent-bug"
            span.set_attribute("sas.attempt", number)
            try:
                result = await self._guarded(attempt, request)
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

    async def _guarded(self, attempt: Attempt, request: RequestMessage) -> Any:
        """Make one attempt and tell the breaker how it went: refused, or asked to wait for its
        own sake, is an answer, too.
        """
        try:
            result = await _within(attempt(), left(request, self._clock), self._clock)
        except TransientError as failed:
            if failed.answered:
                await self._guard.succeeded()
            else:
                await self._guard.failed(str(failed))
            raise
        except SilentError:
            await self._guard.failed("no answer until CompleteBy")
            raise
        except RefusedError:
            await self._guard.succeeded()
            raise
        await self._guard.succeeded()
        return result


def left(request: RequestMessage, clock: Clock) -> float:
    """Return the seconds until CompleteBy."""
    return (request.complete_by - clock.now()).total_seconds()


async def _within(work: Awaitable[Any], seconds: float, clock: Clock) -> Any:
    """Return what ``work`` returns unless the clock says that its time is up first."""
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise SilentError
    finally:
        for pending in (task, alarm):
            pending.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)
