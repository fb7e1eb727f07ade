"""One queue's receiver: one connection, on which everything happens in turn.

The async SDK guards its socket with one lock and holds it while it waits for a frame, up
to 0.2 s. A settlement sent beside a waiting receive therefore stands in line for it, and
each hop of a workflow costs 0.2 to 0.4 s (measured). So a single task owns the receiver:
it settles and renews what is due, then receives one message, and a receive that waits is
cancelled when there is something to settle (the SDK cancels it itself every 0.2 s, so that
is a path it walks all the time). At most one credit is outstanding, so a cancelled receive
can have at most one message handed back, uncounted. A settlement waits `_GRACE_S` for a
receive to end by itself: under load it does, and nothing is ever cancelled.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

_log = logging.getLogger("devstack.functions")
_GRACE_S = 0.002
_RECEIVE_S = 60.0
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SHORTEST_RENEWAL_S = 0.5

_PAST = {"complete": "completed", "abandon": "abandoned", "renew": "renewed"}

Handler = Callable[[ServiceBusReceivedMessage], Awaitable[bool]]
"""Handles a message; True completes it, False abandons it. Must not raise."""


@dataclass(eq=False)
class Lease:
    """A message in hand: its lock, and when to stop renewing it (loop time, seconds)."""

    message: ServiceBusReceivedMessage
    renew_until: float
    timer: asyncio.TimerHandle | None = None
    done: bool = False


@dataclass
class PumpOptions:
    """What host.json says about receiving; `renewal_s` 0 renews nothing."""

    slots: int
    renewal_s: float
    auto_complete: bool = True


@dataclass
class _State:
    due: deque[tuple[str, Lease]] = field(default_factory=deque)
    running: set[asyncio.Task[None]] = field(default_factory=set)
    receiving: "asyncio.Task[list[ServiceBusReceivedMessage]] | None" = None
    stopping: bool = False
    poke: asyncio.TimerHandle | None = None


class QueuePump:
    """Receives from one queue and calls the handler, up to `slots` at a time."""

    def __init__(
        self, name: str, receiver: ServiceBusReceiver, handler: Handler, options: PumpOptions
    ) -> None:
        """`name` is for the log. The receiver is the pump's own: it opens and closes it."""
        self._name = name
        self._receiver = receiver
        self._handler = handler
        self._options = options
        self._state = _State()
        self._wake = asyncio.Event()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the link is open for the first time, or with why it cannot be opened."""

    async def run(self) -> None:
        """Receive until `stop`; then settle what is in hand, and close the receiver.

        Errors of the connection are logged and tried again: they never end the pump.
        """
        failures = 0
        try:
            while not self._over():
                try:
                    await self._turn()
                    failures = 0
                except Exception as error:  # noqa: BLE001  # a pump never gives up its queue
                    if not self.opened.done():
                        self.opened.set_exception(error)
                        return
                    failures += 1
                    await self._wait_after(error, failures)
        finally:
            self._forget()
            if not self.opened.done():
                self.opened.cancel()
            with contextlib.suppress(ServiceBusError, OSError):
                await self._receiver.close()

    def stop(self) -> None:
        """Receive no more; `run` returns when everything in hand is settled."""
        self._state.stopping = True
        self._poke()

    @property
    def in_hand(self) -> int:
        """How many messages are being handled now."""
        return len(self._state.running)

    def _over(self) -> bool:
        state = self._state
        return state.stopping and not state.running and not state.due

    async def _turn(self) -> None:
        if not self.opened.done():
            await self._receiver.__aenter__()
            self.opened.set_result(None)
        self._wake.clear()
        while self._state.due:
            await self._settle(*self._state.due.popleft())
        if self._over():
            return
        if self._state.stopping or len(self._state.running) >= self._options.slots:
            await self._wake.wait()
            return
        for message in await self._receive():
            self._begin(message)

    async def _receive(self) -> list[ServiceBusReceivedMessage]:
        task = asyncio.ensure_future(self._receiver.receive_messages(1, max_wait_time=_RECEIVE_S))
        self._state.receiving = task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # the pump itself is being ended
            task.cancel()
            raise
        finally:
            self._state.receiving = None
        return [] if task.cancelled() else task.result()

    def _begin(self, message: ServiceBusReceivedMessage) -> None:
        loop = asyncio.get_running_loop()
        lease = Lease(message, loop.time() + self._options.renewal_s)
        self._plan_renewal(lease)
        self._state.running.add(loop.create_task(self._handle(lease)))

    async def _handle(self, lease: Lease) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        success = await self._handler(lease.message)
        lease.done = True
        if lease.timer is not None:
            lease.timer.cancel()
        if success and self._options.auto_complete:
            self._state.due.append(("complete", lease))
        elif not success:
            self._state.due.append(("abandon", lease))
        # Before the poke: the pump must see the slot free when it wakes.
        self._state.running.discard(task)
        self._poke_soon()

    async def _settle(self, action: str, lease: Lease) -> None:
        """Errors are logged only: the broker will deliver again what was not settled."""
        message = lease.message
        try:
            if action == "complete":
                await self._receiver.complete_message(message)
            elif action == "abandon":
                await self._receiver.abandon_message(message)
            elif not lease.done:
                await self._receiver.renew_message_lock(message)
                self._plan_renewal(lease)
        except (ServiceBusError, ValueError) as error:
            _log.warning(
                "%s: message %s could not be %s (%s: %s); it comes again when its lock ends",
                self._name,
                message.message_id,
                _PAST[action],
                type(error).__name__,
                error,
            )

    def _plan_renewal(self, lease: Lease) -> None:
        until = lease.message.locked_until_utc
        if until is None or not self._options.renewal_s:
            return
        loop = asyncio.get_running_loop()
        left_s = (until - datetime.now(UTC)).total_seconds()
        delay_s = max(_SHORTEST_RENEWAL_S, left_s / 2)
        if loop.time() + delay_s < lease.renew_until:
            lease.timer = loop.call_later(delay_s, self._renewal_due, lease)

    def _renewal_due(self, lease: Lease) -> None:
        if not lease.done:
            self._state.due.append(("renew", lease))
            self._poke()

    def _poke_soon(self) -> None:
        self._wake.set()
        if self._state.poke is None:
            loop = asyncio.get_running_loop()
            self._state.poke = loop.call_later(_GRACE_S, self._poke)

    def _poke(self) -> None:
        """Let the owner see what is due, out of a waiting receive if it must be."""
        if self._state.poke is not None:
            self._state.poke.cancel()
            self._state.poke = None
        self._wake.set()
        if self._state.receiving is not None and (self._state.due or self._state.stopping):
            self._state.receiving.cancel()

    async def _wait_after(self, error: Exception, failures: int) -> None:
        delay_s = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]
        _log.warning(
            "%s: receiving failed (%s: %s); next attempt in %g s",
            self._name,
            type(error).__name__,
            error,
            delay_s,
        )
        self._wake.clear()
        if not self._state.stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), delay_s)

    def _forget(self) -> None:
        if self._state.poke is not None:
            self._state.poke.cancel()
        for task in list(self._state.running):
            task.cancel()
