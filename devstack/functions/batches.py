"""Cardinality many: batches, one at a time, settled together and never renewed.

That is how the extension runs them (a concurrency of one a process, no lock renewal), so
a slow batch can lose its locks here as in Azure.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from devstack.functions.options import ServiceBusOptions

_log = logging.getLogger("devstack.functions")
_RECEIVE_S = 60.0
_BUFFER_S = 0.05
_BACKOFF_S = 1.0

BatchHandler = Callable[[Sequence[ServiceBusReceivedMessage]], Awaitable[bool]]
"""Handles a batch; True completes all of it, False abandons all of it. Must not raise."""
Receive = Callable[[int, float], Awaitable[list[ServiceBusReceivedMessage]]]
"""Receives so many messages at most, waiting so many seconds; [] also when it was stopped."""


async def take_batch(
    receive: Receive, options: ServiceBusOptions, wait_s: float
) -> list[ServiceBusReceivedMessage]:
    """Wait `wait_s` for a message, and for its batch as long as host.json says.

    With a buffer the first is taken apart: where the buffer holds some but fewer than were asked
    for, the SDK waits its whole time for the rest before it gives any.
    """
    most, now = options.max_message_batch_size, asyncio.get_running_loop().time
    batch = await receive(1 if options.prefetch_count else most, wait_s)
    if batch and options.prefetch_count and most > 1:
        batch += await receive(most - 1, _BUFFER_S)
    end = now() + options.max_batch_wait_s
    while batch and len(batch) < options.min_message_batch_size and now() < end:
        more = await receive(most - len(batch), end - now())
        if not more:
            break
        batch += more
    return batch


class BatchPump:
    """Receives batches from one queue."""

    def __init__(
        self,
        name: str,
        receiver: ServiceBusReceiver,
        handler: BatchHandler,
        options: ServiceBusOptions,
        *,
        auto_complete: bool = True,
    ) -> None:
        self._name = name
        self._receiver = receiver
        self._handler = handler
        self._options = options
        self._auto_complete = auto_complete
        self._receiving: asyncio.Task[list[ServiceBusReceivedMessage]] | None = None
        self._stopping = asyncio.Event()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.in_hand = 0

    def stop(self) -> None:
        """Receive no more; `run` returns when the batch in hand is settled."""
        self._stopping.set()
        if self._receiving is not None:
            self._receiving.cancel()

    async def run(self) -> None:
        """Receive until `stop`, then close the receiver. Errors are logged and tried again."""
        try:
            while not self._stopping.is_set():
                try:
                    await self._turn()
                except Exception as error:  # noqa: BLE001  # a pump never gives up its queue
                    if not self.opened.done():
                        self.opened.set_exception(error)
                        return
                    _log.warning(
                        "%s: receiving failed (%s: %s)", self._name, type(error).__name__, error
                    )
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), _BACKOFF_S)
        finally:
            if not self.opened.done():
                self.opened.cancel()
            with contextlib.suppress(ServiceBusError, OSError):
                await self._receiver.close()

    async def _turn(self) -> None:
        if not self.opened.done():
            await self._receiver.__aenter__()
            self.opened.set_result(None)
        batch = await take_batch(self._receive, self._options, _RECEIVE_S)
        if not batch:
            return
        self.in_hand = len(batch)
        success = await self._handler(batch)
        for message in batch:
            await self._settle(message, success=success)
        self.in_hand = 0

    async def _receive(self, most: int, wait_s: float) -> list[ServiceBusReceivedMessage]:
        if self._stopping.is_set():
            return []
        self._receiving = asyncio.ensure_future(
            self._receiver.receive_messages(most, max_wait_time=wait_s)
        )
        try:
            await asyncio.wait([self._receiving])
            return [] if self._receiving.cancelled() else self._receiving.result()
        except asyncio.CancelledError:
            self._receiving.cancel()
            raise
        finally:
            self._receiving = None

    async def _settle(self, message: ServiceBusReceivedMessage, *, success: bool) -> None:
        try:
            if not success:
                await self._receiver.abandon_message(message)
            elif self._auto_complete:
                await self._receiver.complete_message(message)
        except (ServiceBusError, ValueError) as error:
            _log.warning(
                "%s: message %s could not be settled (%s: %s); it comes again",
                self._name,
                message.message_id,
                type(error).__name__,
                error,
            )
