"""Receive from Service Bus queues and settle: single messages, batches, or sessions.

The async SDK guards its socket with one lock and holds it while it waits for a frame, up to
0.2 s. A settlement beside a waiting receive would wait for this lock, and each step of a workflow
would take 0.2 to 0.4 s longer (measured). So one task owns a receiver and uses it for one
operation at a time.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from devstack.functions.hostjson import ServiceBusOptions

T = TypeVar("T")
_log = logging.getLogger("devstack.functions")
_RECEIVE_S = 60.0
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_GRACE_S = 0.002
_RENEWAL_S_MIN = 0.5
_BATCH_BUFFER_S = 0.05
_SESSION_BACKOFF_S = 1.0
_SESSION_LOCK_S = 30.0
_NEEDS_SESSIONS = "requires sessions"
_ACTIONS = {n: f"{n}_message" for n in ("complete", "abandon")} | {"renew": "renew_message_lock"}

Messages = list[ServiceBusReceivedMessage]
Handler = Callable[[Sequence[ServiceBusReceivedMessage]], Awaitable[bool]]
"""Handles messages; True completes all of them, False abandons all. It must not raise."""


@dataclass(eq=False, kw_only=True)
class Pump(ABC):
    """Receives from one queue until `stop`; connection errors are logged and retried."""

    name: str
    """The name in log lines."""
    handler: Handler
    options: ServiceBusOptions
    auto_complete: bool
    """Whether messages of a successful function are completed."""

    def __post_init__(self) -> None:
        self._stopping = asyncio.Event()
        self._waits: set[asyncio.Task[Any]] = set()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the link is open for the first time, or with the error that prevents it."""

    @abstractmethod
    async def run(self) -> None:
        """Receive until `stop`; then settle the messages in work and close the receivers."""

    def stop(self) -> None:
        """Receive no more messages; `run` returns when those in work are settled."""
        self._stopping.set()
        self._interrupt()

    def _interrupt(self) -> None:
        for task in self._waits:
            task.cancel()

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await `work`; return None if `_interrupt` or `stop` cancels it."""
        if self._stopping.is_set():
            work.close()
            return None
        task = asyncio.ensure_future(work)
        self._waits.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._waits.discard(task)
            if not task.done():  # the pump itself is cancelled
                task.cancel()
                await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    async def _receive(self, receiver: ServiceBusReceiver, most: int, wait_s: float) -> Messages:
        work = receiver.receive_messages(most, max_wait_time=wait_s)
        return await self._unless_interrupted(work) or []

    async def _receive_batch(self, receiver: ServiceBusReceiver, wait_s: float) -> Messages:
        """Wait for a message, then for the rest of its batch as long as host.json allows.

        With a buffer (`prefetchCount`) the first message is received alone: when the buffer has
        fewer messages than requested, the SDK waits its whole time before it returns any.
        """
        most, now = self.options.max_message_batch_size, asyncio.get_running_loop().time
        buffered = self.options.prefetch_count > 0
        batch = await self._receive(receiver, 1 if buffered else most, wait_s)
        if batch and buffered and most > 1:
            batch += await self._receive(receiver, most - 1, _BATCH_BUFFER_S)
        end = now() + self.options.max_batch_wait_time_s
        while batch and len(batch) < self.options.min_message_batch_size and now() < end:
            more = await self._receive(receiver, most - len(batch), end - now())
            if not more:
                break
            batch += more
        return batch


@dataclass(eq=False, kw_only=True)
class _Locked:
    """A message in work; its lock is renewed until `renew_until` (loop time)."""

    message: ServiceBusReceivedMessage
    renew_until: float
    timer: asyncio.TimerHandle | None = None
    done: bool = False


@dataclass(eq=False)
class _QueuePump(Pump):
    """Receives through one receiver, which it opens and closes; the base without sessions."""

    receiver: ServiceBusReceiver

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wake = asyncio.Event()
        self._due: deque[tuple[str, _Locked]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._interrupt_soon: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        failures = 0
        try:
            while not self._finished():
                try:
                    if not self.opened.done():
                        await self.receiver.__aenter__()
                        self.opened.set_result(None)
                    await self._turn()
                    failures = 0
                except Exception as error:  # noqa: BLE001  # retried as long as the host runs
                    if not self.opened.done():
                        self.opened.set_exception(error)
                        return
                    failures += 1
                    await self._pause(error, _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1])
        finally:
            if self._interrupt_soon is not None:
                self._interrupt_soon.cancel()
            for task in self._running:
                task.cancel()
            if not self.opened.done():
                self.opened.cancel()
            with contextlib.suppress(ServiceBusError, OSError):
                await self.receiver.close()

    @abstractmethod
    async def _turn(self) -> None:
        """Settle what is due and receive once."""

    def _finished(self) -> bool:
        return self._stopping.is_set() and not self._running and not self._due

    def _interrupt(self) -> None:
        if self._interrupt_soon is not None:
            self._interrupt_soon.cancel()
            self._interrupt_soon = None
        self._wake.set()
        if self._due or self._stopping.is_set():
            super()._interrupt()

    async def _pause(self, error: Exception, delay_s: float) -> None:
        _log.warning("%s: receiving failed (%r); retry in %g s", self.name, error, delay_s)
        self._wake.clear()
        if not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), delay_s)

    async def _settle(self, action: str, message: ServiceBusReceivedMessage) -> bool:
        """Return whether it succeeded; Service Bus redelivers a message that was not settled."""
        try:
            await getattr(self.receiver, _ACTIONS[action])(message)
        except (ServiceBusError, ValueError) as error:
            text = "%s: %s failed for message %s (%r); it is redelivered when its lock ends"
            _log.warning(text, self.name, action, message.message_id, error)
            return False
        return True


class BatchPump(_QueuePump):
    """Receives batches, one at a time, and settles each as a whole (cardinality many).

    As in the Azure extension: one batch per process, and no lock renewal. A slow batch can lose
    its locks here as in Azure.
    """

    async def _turn(self) -> None:
        batch = await self._receive_batch(self.receiver, _RECEIVE_S)
        if not batch:
            return
        success = await self.handler(batch)
        if success and not self.auto_complete:
            return
        for message in batch:
            await self._settle("complete" if success else "abandon", message)


class MessagePump(_QueuePump):
    """Receives single messages and handles up to `maxConcurrentCalls` at a time.

    A waiting receive is cancelled when there is something to settle. The SDK does the same every
    0.2 s, so this is safe: one credit is outstanding, so at most one message is handed back, and
    its delivery is not counted. A settlement first waits `_GRACE_S` for the receive to end by
    itself; under load it does, and no receive is cancelled.
    """

    async def _turn(self) -> None:
        self._wake.clear()
        while self._due:
            action, locked = self._due.popleft()
            if action == "renew" and locked.done:
                continue
            if await self._settle(action, locked.message) and action == "renew":
                self._plan_renewal(locked)
        if self._finished():
            return
        if self._stopping.is_set() or len(self._running) >= self.options.max_concurrent_calls:
            await self._wake.wait()
            return
        loop = asyncio.get_running_loop()
        for message in await self._receive(self.receiver, 1, _RECEIVE_S):
            end = loop.time() + self.options.max_auto_lock_renewal_duration_s
            locked = _Locked(message=message, renew_until=end)
            self._plan_renewal(locked)
            task = loop.create_task(self._handle(locked))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, locked: _Locked) -> None:
        success = await self.handler([locked.message])
        locked.done = True
        if locked.timer is not None:
            locked.timer.cancel()
        if not success or self.auto_complete:
            self._due.append(("complete" if success else "abandon", locked))
        # Free the slot before the pump wakes.
        if (task := asyncio.current_task()) is not None:
            self._running.discard(task)
        self._wake.set()
        if self._interrupt_soon is None:
            loop = asyncio.get_running_loop()
            self._interrupt_soon = loop.call_later(_GRACE_S, self._interrupt)

    def _plan_renewal(self, locked: _Locked) -> None:
        until = locked.message.locked_until_utc
        if until is None or not self.options.max_auto_lock_renewal_duration_s:
            return
        loop = asyncio.get_running_loop()
        delay_s = max(_RENEWAL_S_MIN, (until - datetime.now(UTC)).total_seconds() / 2)
        if loop.time() + delay_s < locked.renew_until:
            locked.timer = loop.call_later(delay_s, self._renew, locked)

    def _renew(self, locked: _Locked) -> None:
        if not locked.done:
            self._due.append(("renew", locked))
            self._interrupt()


@dataclass(eq=False)
class SessionPump(Pump):
    """Receives from a queue with sessions: several sessions at a time, each in its order.

    Up to `maxConcurrentSessions` receivers hold one session each. A session without a message for
    `sessionIdleTimeout` is released. Its lock is renewed while the receiver waits and while a
    function works on one message, up to `maxAutoLockRenewalDuration`; not for a batch, as in
    Azure.
    """

    accept: Callable[[], ServiceBusReceiver]
    """Makes a receiver for the next free session."""
    without_session: Callable[[], ServiceBusReceiver]
    """Makes a plain receiver, which a queue with sessions refuses."""
    batch: bool

    async def run(self) -> None:
        """Serve sessions until `stop`; end at once if the queue has no sessions."""
        try:
            await self._check_queue()
        except ServiceBusError as error:
            self.opened.set_exception(error)
            return
        self.opened.set_result(None)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.options.max_concurrent_sessions):
                group.create_task(self._serve_sessions())

    async def _check_queue(self) -> None:
        """Raise ServiceBusError unless the queue exists and requires sessions.

        A receiver for the next session would see this error only when a session is free.
        """
        receiver = self.without_session()
        try:
            await receiver.__aenter__()
        except ServiceBusError as error:
            if _NEEDS_SESSIONS in str(error):
                return
            raise
        finally:
            await receiver.close()
        raise ServiceBusError(
            "the queue does not require sessions, but the trigger says is_sessions_enabled"
        )

    async def _serve_sessions(self) -> None:
        while not self._stopping.is_set():
            receiver = self.accept()
            try:
                if await self._unless_interrupted(receiver.__aenter__()) is not None:
                    await self._serve(receiver)
            except OperationTimeoutError:
                continue  # no session is free: ask again
            except ServiceBusError as error:
                _log.warning("%s: a session failed: %r", self.name, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _SESSION_BACKOFF_S)
            finally:
                with contextlib.suppress(ServiceBusError, OSError):
                    await receiver.close()

    async def _serve(self, receiver: ServiceBusReceiver) -> None:
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        while not self._stopping.is_set():
            left_s = self.options.session_idle_timeout_s - (loop.time() - idle_since)
            if left_s <= 0:
                return
            wait_s = max(_RENEWAL_S_MIN, min(left_s, _lock_left_s(receiver) / 2))
            if self.batch:
                messages = await self._receive_batch(receiver, wait_s)
            else:
                messages = await self._receive(receiver, 1, wait_s)
            if messages:
                await self._handle(receiver, messages)
                idle_since = loop.time()
            if _lock_left_s(receiver) < wait_s * 2:
                await receiver.session.renew_lock()

    async def _handle(self, receiver: ServiceBusReceiver, messages: Messages) -> None:
        """An error here ends the session, so that its order is kept."""
        renewing = asyncio.ensure_future(self._renew(receiver))
        try:
            success = await self.handler(messages)
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
        for message in messages:
            if not success:
                await receiver.abandon_message(message)
            elif self.auto_complete:
                await receiver.complete_message(message)

    async def _renew(self, receiver: ServiceBusReceiver) -> None:
        """Renew the lock while the function runs; nothing else uses the receiver then."""
        if self.batch:
            return
        now = asyncio.get_running_loop().time
        end = now() + self.options.max_auto_lock_renewal_duration_s
        while True:
            await asyncio.sleep(max(_RENEWAL_S_MIN, _lock_left_s(receiver) / 2))
            if now() >= end:
                return
            await receiver.session.renew_lock()


def _lock_left_s(receiver: ServiceBusReceiver) -> float:
    until = receiver.session.locked_until_utc
    return (until - datetime.now(UTC)).total_seconds() if until else _SESSION_LOCK_S
