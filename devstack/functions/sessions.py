"""Queues with sessions: several sessions at a time, each one's messages in their order.

Up to `maxConcurrentSessions` receivers each hold one session. A session without a message
for `sessionIdleTimeout` is let go, so that another can have its turn. Its lock is renewed
by whoever waits or works on it, up to `maxAutoLockRenewalDuration` an invocation; not
while a batch is worked on, as in Azure.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from devstack.functions.batches import BatchHandler, take_batch
from devstack.functions.options import ServiceBusOptions

_log = logging.getLogger("devstack.functions")
_BACKOFF_S = 1.0
_SHORTEST_S = 0.5
_NEEDS_SESSIONS = "requires sessions"


class SessionPump:
    """Serves the sessions of one queue."""

    def __init__(
        self,
        name: str,
        accept: Callable[[], ServiceBusReceiver],
        without: Callable[[], ServiceBusReceiver],
        handler: BatchHandler,
        options: ServiceBusOptions,
        *,
        batch: bool = False,
        auto_complete: bool = True,
    ) -> None:
        """`accept` makes a receiver for the next free session, not yet opened.

        `without` makes one without a session, to see that the queue refuses it. The handler is
        given one message at a time, unless `batch`.
        """
        self._name = name
        self._accept = accept
        self._without = without
        self._handler = handler
        self._options = options
        self._batch = batch
        self._auto_complete = auto_complete
        self._stopping = asyncio.Event()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.in_hand = 0

    def stop(self) -> None:
        """Take no more messages; `run` returns when those in hand are settled."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve sessions until `stop`; not at all where the queue has none to give."""
        try:
            await self._check()
        except ServiceBusError as error:
            self.opened.set_exception(error)
            return
        self.opened.set_result(None)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.max_concurrent_sessions):
                group.create_task(self._serve_sessions())

    async def _check(self) -> None:
        """Raise ServiceBusError unless the queue is there and requires sessions.

        A receiver that asks for the next session would not hear of it until one is free.
        """
        receiver = self._without()
        try:
            await receiver.__aenter__()
        except ServiceBusError as error:
            if _NEEDS_SESSIONS in str(error):
                return
            raise
        finally:
            await receiver.close()
        raise ServiceBusError(
            "it does not require sessions, and the trigger says is_sessions_enabled"
        )

    async def _serve_sessions(self) -> None:
        while not self._stopping.is_set():
            receiver = self._accept()
            try:
                if await self._until_stopped(receiver.__aenter__()):
                    await self._serve(receiver)
            except OperationTimeoutError:
                continue  # no session is free: ask again
            except ServiceBusError as error:
                _log.warning("%s: session: %s: %s", self._name, type(error).__name__, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _BACKOFF_S)
            finally:
                with contextlib.suppress(ServiceBusError, OSError):
                    await receiver.close()

    async def _serve(self, receiver: ServiceBusReceiver) -> None:
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        while not self._stopping.is_set():
            left_s = self._options.session_idle_s - (loop.time() - idle_since)
            if left_s <= 0:
                return
            wait_s = max(_SHORTEST_S, min(left_s, _lock_left_s(receiver) / 2))
            messages = await self._take(receiver, wait_s)
            if messages:
                await self._handle(receiver, messages)
                idle_since = loop.time()
            if _lock_left_s(receiver) < wait_s * 2:
                await receiver.session.renew_lock()

    async def _take(
        self, receiver: ServiceBusReceiver, wait_s: float
    ) -> list[ServiceBusReceivedMessage]:
        async def receive(most: int, seconds: float) -> list[ServiceBusReceivedMessage]:
            found: list[ServiceBusReceivedMessage] = []
            work = receiver.receive_messages(most, max_wait_time=seconds)
            await self._until_stopped(work, found)
            return found

        if self._batch:
            return await take_batch(receive, self._options, wait_s)
        return await receive(1, wait_s)

    async def _handle(
        self, receiver: ServiceBusReceiver, messages: Sequence[ServiceBusReceivedMessage]
    ) -> None:
        renewing = asyncio.ensure_future(self._renew(receiver))
        self.in_hand += len(messages)
        try:
            success = await self._handler(messages)
        finally:
            self.in_hand -= len(messages)
            renewing.cancel()
            await asyncio.wait([renewing])
        for message in messages:
            if not success:
                await receiver.abandon_message(message)
            elif self._auto_complete:
                await receiver.complete_message(message)

    async def _renew(self, receiver: ServiceBusReceiver) -> None:
        """Nobody else uses the connection while the function runs, so this may."""
        if self._batch:
            return
        end = asyncio.get_running_loop().time() + self._options.max_auto_lock_renewal_s
        while True:
            await asyncio.sleep(max(_SHORTEST_S, _lock_left_s(receiver) / 2))
            if asyncio.get_running_loop().time() >= end:
                return
            await receiver.session.renew_lock()

    async def _until_stopped(
        self,
        work: Coroutine[Any, Any, object],
        into: list[ServiceBusReceivedMessage] | None = None,
    ) -> bool:
        """Await `work` unless `stop` comes first; False then."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            return False
        result = task.result()
        if into is not None and isinstance(result, list):
            into.extend(result)
        return True


def _lock_left_s(receiver: ServiceBusReceiver) -> float:
    until = receiver.session.locked_until_utc
    return (until - datetime.now(UTC)).total_seconds() if until else 30.0
