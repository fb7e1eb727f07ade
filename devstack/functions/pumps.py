"""Receive from Service Bus queues and settle: single messages, batches, or sessions.

Theory of operation
===================

Service Bus gives a message to one receiver, under a lock, and keeps it until that receiver
completes it. A message that is not completed is delivered again: at once if the receiver abandons
it, and otherwise when its lock ends or its session closes. Abandoned messages and expired locks
are counted. When the count reaches MaxDeliveryCount, the message goes to the dead letters. So a
pump loses nothing as long as it keeps one rule: **complete a message only after its function has
returned and its outputs are sent**. No failure below breaks this rule. The price is that a
function may see a message twice, as in Azure.

A `MessagePump` or a `BatchPump` is one task. Only this task uses the receiver, for one operation
at a time. The reason is a lock in the async SDK: while the SDK waits for a frame, it holds the
lock of its socket for up to 0.2 s. A settlement beside a waiting receive would wait for that lock,
and each message would take 0.2 to 0.4 s longer (measured). The functions of a `MessagePump` run in
tasks of their own. They do not use the receiver: they leave notes, which the pump carries out.

A `MessagePump` repeats a cycle:

1. **Settle.** The pump carries out the notes in `_notes`: complete, abandon, or renew a lock. If
   this fails, because the connection broke or the lock is lost, the pump logs the error and goes
   on. If Service Bus did not settle the message, it delivers the message again when the lock ends.
2. **Wait for a slot** while `maxConcurrentCalls` functions run. Meanwhile other messages stay in
   the queue, where other processes can take them. (With `prefetchCount`, some of them wait in the
   buffer of this receiver, locked.)
3. **Receive** one message. A new note cancels the receive. A message that arrives at that moment
   is not lost: either the next receive returns it, or the SDK releases it. A released message goes
   back to the queue, and this delivery is not counted.
4. **Start** the function in a task, and plan the first renewal of its lock.
5. **The function ends.** Its task notes "complete" if the handler returned True, and "abandon" if
   the function raised an exception or its outputs were not sent. (With `autoCompleteMessages`
   off it notes nothing after a success.) It frees its slot and wakes the pump.
6. **A slow function** keeps its message: at half of the remaining lock time a timer notes
   "renew". After `maxAutoLockRenewalDuration`, or when a renewal fails, no other is planned. Then
   the lock ends, and another receiver may get the message while the function still runs here.
   The settlement in step 1 fails with a lost lock, and the second delivery decides.
7. **A broken connection** raises an error in step 3. The pump logs it, pauses, and begins the next
   cycle; the SDK opens the link again. Each failure in a row makes the pause longer, up to 5 s. A
   note that arrives during the pause ends it, and is carried out at once.
8. **A drain** (`stop`) cancels the receive. From then on the pump takes no message, carries out
   notes as functions end, and returns when no function runs and no note is left.
9. **The end of the drain, or a crash.** After `drain_s` the host cancels the pump. The pump then
   cancels async functions. Sync functions go on, but nobody waits for them. None of their messages
   is settled, and after `kill -9` none is settled either. In both cases the locks end, and the
   messages are delivered again: to this host after its restart, or to another.

`BatchPump` has the same cycle, but waits for the function within it: receive a batch, call, settle
the whole batch.

`SessionPump` runs `maxConcurrentSessions` tasks. Each accepts the next free session (10), and then
receives, calls and settles in turn (11), so that the messages of a session are handled in order.
It renews the session's lock while it waits, and while a function works on one message (12). Any
error of Service Bus ends the session (13): closing the receiver frees it, and the next receiver of
this session gets the unsettled message first. So such an error does not change the order. Only one
case does: with `prefetchCount`, a message whose function failed comes again after the messages in
the buffer. A drain ends each session after the messages that its function works on.

Who writes and who reads what the tasks share: function tasks and timers add to `_notes`, the pump
empties it. The pump adds to `_running`; a function's task removes itself. `_wake` is set by a
function that ends, by a renewal timer and by `stop`, and cleared by the pump. `_waits` holds the
tasks that `stop` can cancel: a receive, or the wait for a free session.
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
"""The pause after the first failure in a row, the second, and so on; the last one repeats."""
_GRACE_S = 0.002
"""How long a settlement waits for the receive to end by itself, before it cancels the receive."""
_RENEWAL_S_MIN = 0.5
_BATCH_BUFFER_S = 0.05
"""How long to wait for the rest of a batch when `prefetchCount` fills a buffer."""
_SESSION_BACKOFF_S = 1.0
_SESSION_LOCK_S = 30.0
"""The remaining lock time that is assumed when the broker does not tell it."""
_NEEDS_SESSIONS = "requires sessions"
_OPERATIONS = {
    "complete": "complete_message",
    "abandon": "abandon_message",
    "renew": "renew_message_lock",
}
"""For each note that a task can leave, the method of the SDK's receiver that carries it out."""

Messages = list[ServiceBusReceivedMessage]
Handler = Callable[[Sequence[ServiceBusReceivedMessage]], Awaitable[bool]]
"""Handles messages; returns True for a success, and False to abandon them. It must not raise."""


@dataclass(eq=False, kw_only=True)
class Pump(ABC):
    """Receives from one queue until `stop`; after a connection error it logs and tries again."""

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
        """Done when the queue is open for the first time, or with the error that prevents it."""

    @abstractmethod
    async def run(self) -> None:
        """Receive until `stop`; then wait for running functions, settle and close."""

    def stop(self) -> None:
        """Receive no more messages; `run` returns when the earlier ones are settled."""
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

    async def _receive(
        self, receiver: ServiceBusReceiver, count_max: int, wait_s: float
    ) -> Messages:
        work = receiver.receive_messages(count_max, max_wait_time=wait_s)
        return await self._unless_interrupted(work) or []

    async def _receive_batch(self, receiver: ServiceBusReceiver, wait_s: float) -> Messages:
        """Wait for a message, then for the rest of its batch as long as host.json allows.

        With a buffer (`prefetchCount`) the first message is received alone, because the SDK would
        wait for the whole `wait_s` if the buffer has fewer messages than requested.
        """
        size_max = self.options.max_message_batch_size
        clock = asyncio.get_running_loop().time
        buffered = self.options.prefetch_count > 0
        batch = await self._receive(receiver, 1 if buffered else size_max, wait_s)
        if batch and buffered and size_max > 1:
            batch += await self._receive(receiver, size_max - 1, _BATCH_BUFFER_S)
        deadline = clock() + self.options.max_batch_wait_time_s
        while batch and len(batch) < self.options.min_message_batch_size and clock() < deadline:
            rest = await self._receive(receiver, size_max - len(batch), deadline - clock())
            if not rest:
                break
            batch += rest
        return batch


@dataclass(eq=False, kw_only=True)
class _Delivery:
    """A message that this process received; its lock is renewed until `renew_until` (loop time)."""

    message: ServiceBusReceivedMessage
    renew_until: float
    timer: asyncio.TimerHandle | None = None
    """Fires when the next renewal is due."""
    done: bool = False
    """Whether the function has ended: from then on the lock is not renewed."""


@dataclass(eq=False)
class _QueuePump(Pump):
    """Receives through one receiver; the base of the two pumps without sessions."""

    receiver: ServiceBusReceiver

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wake = asyncio.Event()
        self._notes: deque[tuple[str, _Delivery]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._interrupt_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        failures = 0
        try:
            while not self._finished():
                try:
                    if not self.opened.done():
                        await self.receiver.__aenter__()
                        self.opened.set_result(None)
                    await self._cycle()
                    failures = 0
                except Exception as error:  # noqa: BLE001  # retried as long as the host runs
                    # 7. The connection broke, or could not be opened at the start.
                    if not self.opened.done():
                        self.opened.set_exception(error)
                        return
                    failures += 1
                    await self._pause(error, _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1])
        finally:
            if self._interrupt_timer is not None:
                self._interrupt_timer.cancel()
            # 9. Only a cancelled pump has running functions here. Their messages stay unsettled.
            for task in self._running:
                task.cancel()
            if not self.opened.done():
                self.opened.cancel()
            with contextlib.suppress(ServiceBusError, OSError):
                await self.receiver.close()

    @abstractmethod
    async def _cycle(self) -> None:
        """Receive once and settle what is due."""

    def _finished(self) -> bool:
        # 8. A drain is over when no function runs and no note is left.
        return self._stopping.is_set() and not self._running and not self._notes

    def _interrupt(self) -> None:
        """Wake the pump, and cancel its receive if there is a note or the host stops."""
        if self._interrupt_timer is not None:
            self._interrupt_timer.cancel()
            self._interrupt_timer = None
        self._wake.set()
        if self._notes or self._stopping.is_set():
            super()._interrupt()

    async def _pause(self, error: Exception, delay_s: float) -> None:
        _log.warning("%s: receiving failed (%r); retry in %g s", self.name, error, delay_s)
        self._wake.clear()
        if not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), delay_s)

    async def _settle(self, action: str, message: ServiceBusReceivedMessage) -> bool:
        """Carry out a note; return whether that succeeded."""
        try:
            await getattr(self.receiver, _OPERATIONS[action])(message)
        except (ServiceBusError, ValueError) as error:
            text = "%s: %s failed for message %s (%r); it is redelivered when its lock ends"
            _log.warning(text, self.name, action, message.message_id, error)
            return False
        return True


class BatchPump(_QueuePump):
    """Receives batches, one at a time, and settles each as a whole (cardinality many).

    As in the Azure extension, it handles one batch at a time and renews no lock. So a slow batch
    can lose its locks, and its messages are delivered again while its function still runs.
    """

    async def _cycle(self) -> None:
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

    It is safe to cancel a waiting receive. The SDK itself gives up its wait for a frame every 0.2 s
    in the same way. Without a buffer, at most one message can arrive meanwhile, because the link
    has one credit. If the pump stops then, closing the receiver gives the message back without a
    count. A settlement first waits `_GRACE_S` for the receive to end by itself. Under load the
    receive does end, and is not cancelled.
    """

    async def _cycle(self) -> None:
        # 1. Settle. `_wake` is cleared first, so that any later note ends the wait of step 2.
        self._wake.clear()
        while self._notes:
            action, delivery = self._notes.popleft()
            if action == "renew" and delivery.done:
                continue
            if await self._settle(action, delivery.message) and action == "renew":
                self._plan_renewal(delivery)
        if self._finished():
            return
        # 2. Wait for a free slot. During a drain (8), wait until the next function ends.
        if self._stopping.is_set() or len(self._running) >= self.options.max_concurrent_calls:
            await self._wake.wait()
            return
        # 3. Receive.
        loop = asyncio.get_running_loop()
        for message in await self._receive(self.receiver, 1, _RECEIVE_S):
            # 4. Start the function.
            renew_until = loop.time() + self.options.max_auto_lock_renewal_duration_s
            delivery = _Delivery(message=message, renew_until=renew_until)
            self._plan_renewal(delivery)
            task = loop.create_task(self._handle(delivery))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, delivery: _Delivery) -> None:
        success = await self.handler([delivery.message])
        # 5. The function has ended: note what to do with its message.
        delivery.done = True
        if delivery.timer is not None:
            delivery.timer.cancel()
        if not success or self.auto_complete:
            self._notes.append(("complete" if success else "abandon", delivery))
        # Free the slot before the pump wakes.
        if (task := asyncio.current_task()) is not None:
            self._running.discard(task)
        self._wake.set()
        if self._interrupt_timer is None:
            loop = asyncio.get_running_loop()
            self._interrupt_timer = loop.call_later(_GRACE_S, self._interrupt)

    def _plan_renewal(self, delivery: _Delivery) -> None:
        # 6. At half of the remaining time, so that one slow renewal does not lose the lock.
        until = delivery.message.locked_until_utc
        if until is None or not self.options.max_auto_lock_renewal_duration_s:
            return
        loop = asyncio.get_running_loop()
        delay_s = max(_RENEWAL_S_MIN, (until - datetime.now(UTC)).total_seconds() / 2)
        if loop.time() + delay_s < delivery.renew_until:
            delivery.timer = loop.call_later(delay_s, self._renew, delivery)

    def _renew(self, delivery: _Delivery) -> None:
        if not delivery.done:
            self._notes.append(("renew", delivery))
            self._interrupt()


@dataclass(eq=False)
class SessionPump(Pump):
    """Receives from a queue with sessions: several sessions at a time, each in its order.

    Up to `maxConcurrentSessions` receivers hold one session each. A session without a message for
    `sessionIdleTimeout` is released. The lock of a session is renewed while the receiver waits,
    and while a function works on one message, up to `maxAutoLockRenewalDuration`. While a function
    works on a batch the lock is not renewed, as in Azure.
    """

    accept: Callable[[], ServiceBusReceiver]
    """Makes a receiver for the next free session."""
    without_session: Callable[[], ServiceBusReceiver]
    """Makes a plain receiver, which a queue with sessions refuses."""
    batch: bool

    async def run(self) -> None:
        """Serve sessions until `stop`; end at once if the queue does not require sessions."""
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

        A receiver for the next free session gets such an error only when a session is free.
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
                # 10. Accept the next free session.
                if await self._unless_interrupted(receiver.__aenter__()) is not None:
                    await self._serve(receiver)
            except OperationTimeoutError:
                continue  # no session is free: ask again
            except ServiceBusError as error:
                # 13. End the session. Its unsettled messages come again, in order.
                _log.warning("%s: a session failed: %r", self.name, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _SESSION_BACKOFF_S)
            finally:
                with contextlib.suppress(ServiceBusError, OSError):
                    await receiver.close()

    async def _serve(self, receiver: ServiceBusReceiver) -> None:
        """Handle the messages of one session until it is idle or the pump stops."""
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        while not self._stopping.is_set():
            idle_s = self.options.session_idle_timeout_s - (loop.time() - idle_since)
            if idle_s <= 0:
                return
            # 11. Receive, call, settle. A wait takes at most half of the lock time that is left.
            wait_s = max(_RENEWAL_S_MIN, min(idle_s, _remaining_lock_s(receiver) / 2))
            if self.batch:
                messages = await self._receive_batch(receiver, wait_s)
            else:
                messages = await self._receive(receiver, 1, wait_s)
            if messages:
                await self._handle(receiver, messages)
                idle_since = loop.time()
            # 12. Renew between two waits. `_renew` renews while a function runs.
            if _remaining_lock_s(receiver) < wait_s * 2:
                await receiver.session.renew_lock()

    async def _handle(self, receiver: ServiceBusReceiver, messages: Messages) -> None:
        """Call the function and settle. An error ends the session (13), which keeps the order."""
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
        """Renew the lock while the function runs. Nothing else uses the receiver meanwhile."""
        if self.batch:
            return
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.options.max_auto_lock_renewal_duration_s
        while True:
            await asyncio.sleep(max(_RENEWAL_S_MIN, _remaining_lock_s(receiver) / 2))
            if clock() >= deadline:
                return
            await receiver.session.renew_lock()


def _remaining_lock_s(receiver: ServiceBusReceiver) -> float:
    until = receiver.session.locked_until_utc
    return (until - datetime.now(UTC)).total_seconds() if until else _SESSION_LOCK_S
