"""Reads the response queue in one task. Only this task uses the link."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from sas.client.inbox import KEPT_MAX, Fate, Inbox, Unsettled
from sas.client.links import (
    CLOSE_S,
    LinkError,
    LockLostError,
    bytes_of,
    close_link,
    receive,
    release,
    renew,
    settle,
)
from sas.codec import external
from sas.codec.strict import MalformedError, Reason

RECEIVE_MAX = 50
"""Messages on their way at once, and notifications that may wait for a slow follower."""
LINGER_S = 5.0
"""How long the queue is read after the last follower left, in seconds: another may come."""
OTHERS_FIRST_S = 0.6
"""Longest time for which messages that were given back are left to other readers, in seconds."""
PAUSE_S = 0.01
"""Pause while a slow follower has enough to read, in seconds."""

Message = ServiceBusReceivedMessage


class Receiving:
    """The task that receives and settles the messages of an inbox while a loop follows."""

    def __init__(
        self, client: ServiceBusClient, queue: str, patience_s: float, inbox: Inbox[Message]
    ) -> None:
        self.read_at = 0.0
        """When the queue was last read, in the loop's time."""
        self._client = client
        self._queue = queue
        self._patience_s = patience_s
        self._inbox = inbox
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Read the queue, if it is not read already.

        Raises:
            LinkError: the client is closed.
        """
        if self._stopping:
            raise LinkError("the client is closed: make a new one.")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End every follower, and give back what was not handed out."""
        self._stopping = True
        self._inbox.fail(LinkError("the client was closed: make a new one to follow on."))
        if self._task is not None and not self._task.done():
            # A link that is cancelled in the middle of a frame is broken: let the read end first.
            await asyncio.wait({self._task}, timeout=CLOSE_S)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while self._inbox.followers and not self._stopping:
            receiver = self._client.get_queue_receiver(self._queue)
            try:
                await self._read(receiver)
            except Exception as failed:  # noqa: BLE001  a follower must not wait for ever
                self._inbox.fail(failed)
            finally:
                await self._put_back(receiver)

    async def _read(self, receiver: ServiceBusReceiver) -> None:
        loop = asyncio.get_running_loop()
        followed_at = loop.time()
        while not self._stopping:
            if self._inbox.followers:
                followed_at = loop.time()
            elif loop.time() - followed_at >= LINGER_S:
                return
            kept = self._inbox.kept()
            if kept >= KEPT_MAX:
                raise LinkError(
                    f"{kept:,} notifications that no loop follows block the queue. Read them with "
                    "events(), follow their orders, or use a response queue of your own."
                )
            if self._inbox.unread() < RECEIVE_MAX:
                for message in await receive(receiver, RECEIVE_MAX, self._patience_s):
                    await self._take(receiver, message)
                self.read_at = loop.time()
            else:
                await asyncio.sleep(PAUSE_S)
            self._inbox.wake()
            await asyncio.sleep(0)  # the followers read
            await self._decide(receiver)
            await self._give_back(receiver)

    async def _take(self, receiver: ServiceBusReceiver, message: Message) -> None:
        try:
            event = external.decode_notification(bytes_of(message))
        except MalformedError as wrong:
            reason = Reason.NOT_A_NOTIFICATION.value
            put_aside = partial(receiver.dead_letter_message, message, reason=reason)
            act = partial(put_aside, error_description=str(wrong))
            await settle(receiver, act, self._patience_s)
            return
        until = message.locked_until_utc
        self._inbox.arrived(
            message.sequence_number or 0,
            message,
            event,
            now=asyncio.get_running_loop().time(),
            lock_s=(until - datetime.now(UTC)).total_seconds() if until else 0.0,
            before=message.delivery_count or 0,
        )

    async def _decide(self, receiver: ServiceBusReceiver) -> None:
        """Settle each message that is ready, or renew its lock.

        Each settlement waits for the service's answer. What arrives meanwhile is handed out first.
        """
        loop = asyncio.get_running_loop()
        for one in list(self._inbox.unsettled.values()):
            match self._inbox.fate(one, loop.time()):
                case Fate.COMPLETE:
                    self._inbox.drop(one)
                    done = partial(receiver.complete_message, one.message)
                    await settle(receiver, done, self._patience_s)
                case Fate.RENEW:
                    await self._renew(receiver, one, loop.time())
                case _:
                    continue

    async def _give_back(self, receiver: ServiceBusReceiver) -> None:
        """Give back what no loop follows, and wait so that other readers of the queue can take it.

        The wait is random: two readers that wait equally long would take each other's messages.
        """
        back = self._inbox.given_back(asyncio.get_running_loop().time())
        if not back:
            return
        for one in back:
            self._inbox.drop(one)
            if not await release(receiver, one.message):
                one.keeps_lock = True
                self._inbox.keep(one)
        await asyncio.sleep(random.uniform(0.1, OTHERS_FIRST_S))  # noqa: S311

    async def _renew(
        self, receiver: ServiceBusReceiver, one: Unsettled[Message], now: float
    ) -> None:
        try:
            await renew(receiver, one.message, self._patience_s)
        except LockLostError:
            self._inbox.drop(one)
        one.decide_at = now + one.wait_s

    async def _put_back(self, receiver: ServiceBusReceiver) -> None:
        """Complete what was handed out, give the rest back, and close the link.

        Where that fails, the locks expire, and the messages are delivered again.
        """
        unsettled = list(self._inbox.unsettled.values())
        self._inbox.unsettled.clear()
        with suppress(LinkError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for one in unsettled:
                    if self._inbox.fate(one, 0.0) is Fate.COMPLETE:
                        done = partial(receiver.complete_message, one.message)
                        await settle(receiver, done, self._patience_s)
                    else:
                        await release(receiver, one.message)
        await close_link(receiver)
