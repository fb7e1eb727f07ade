"""Reads the response queue in one task, and settles its messages as the inbox decides.

Theory of operation
-------------------
All loops of a client (``client.follow``) share one receiver. The SDK does not promise that two
tasks may use a receiver at once, and two receivers of one process would take each other's messages.
So one task owns the receiver: it alone reads, settles and closes. The loops never use the link.
They take notifications out of the inbox, and tell the inbox when their caller is done with one.
``inbox.py`` says which loop gets what, and when a message is settled; ``links.py`` says how one
operation survives an outage.

1. *Start.* The first loop starts the task, and a later one finds it running. The task opens a
   receiver and repeats a round, steps 2 to 6, while loops follow.
2. *Too many messages that nobody follows?* If the inbox is full of messages that no loop follows,
   the messages that the loops wait for may never be reached. So every loop ends with an error that
   says what to do.
3. *Enough to read?* If a loop has 50 notifications to read, the round reads nothing. So with a slow
   caller the other messages stay on the queue, unlocked, and not in memory.
4. *Read* the next message, for a quarter of a second at most, and put it into the inbox. One that
   is no notification goes to the dead-letter queue, because it would come again for ever.
5. *Let the loops read*, before anything is settled, because each settlement waits for an answer
   of the service. So a notification reaches its caller within milliseconds.
6. *Settle*: complete, renew the lock, or give back, as the inbox decides. After it gave messages
   back, the task pauses for a random time up to 0.6 s, so that another process on this queue can
   take them. With equal pauses two processes would keep taking each other's messages.
7. *Linger.* After the last loop has ended, the task reads on for five seconds. Applications often
   follow one order after another, and opening a link takes about a second.
8. *End.* Messages that were handed out are completed, all others are given back, and the link is
   closed. If a loop has begun meanwhile, the task starts again with a new receiver.

What can go wrong, and why nothing is lost:

- *Service Bus is away.* Each operation tries again for ``patience_s`` (``links.py``). The loops
  only wait. After that, or after a refusal such as a missing queue, every loop ends with
  ``FollowError``. All messages are still on the queue, and to follow again starts a new task.
- *The lock of a message expires meanwhile.* Service Bus delivers it again (``inbox.py``, step 1).
- *Ending fails too.* The task settles for five seconds at most. A message that it could not give
  back stays locked until its lock expires. Then it is delivered again.
- *The task is cancelled in the middle of a frame.* That would break the link. So ``stop`` waits up
  to five seconds for the read in progress before it cancels the task.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from sas.client.inbox import UNFOLLOWED_MAX, Fate, Inbox, Unsettled
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

BACKLOG_MAX = 50
"""Notifications that may wait for a slow follower."""
LINGER_S = 5.0
"""How long the queue is read after the last follower left, in seconds. Another may come."""
OTHERS_FIRST_S = 0.6
"""Longest pause after messages were given back, in seconds. Other readers take them meanwhile."""
FULL_PAUSE_S = 0.01
"""Pause of a round that reads nothing, because a slow follower has enough to read, in seconds."""


class Receiving:
    """The task that receives and settles the messages of an inbox while a loop follows."""

    def __init__(
        self,
        client: ServiceBusClient,
        queue: str,
        patience_s: float,
        inbox: Inbox[ServiceBusReceivedMessage],
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
        # 1. Start.
        if self._stopping:
            raise LinkError("the client is closed: make a new one.")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End every follower, and give back what was not handed out."""
        self._stopping = True
        self._inbox.fail(LinkError("the client was closed: make a new one to follow on."))
        if self._task is not None and not self._task.done():
            # Cancelling in the middle of a frame breaks the link, so wait for the read to end.
            await asyncio.wait({self._task}, timeout=CLOSE_S)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while self._inbox.followers and not self._stopping:
            receiver = self._client.get_queue_receiver(self._queue)
            try:
                await self._read(receiver)
            except Exception as error:  # noqa: BLE001  a follower must not wait for ever
                self._inbox.fail(error)
            finally:
                await self._end(receiver)

    async def _read(self, receiver: ServiceBusReceiver) -> None:
        loop = asyncio.get_running_loop()
        followed_at = loop.time()
        while not self._stopping:
            if self._inbox.followers:
                followed_at = loop.time()
            elif loop.time() - followed_at >= LINGER_S:  # 7. Linger.
                return
            unfollowed = self._inbox.unfollowed()
            if unfollowed >= UNFOLLOWED_MAX:  # 2. Too many that nobody follows.
                raise LinkError(
                    f"{unfollowed:,} notifications that no loop follows block the queue. Read them "
                    "with events(), follow their orders, or use a response queue of your own."
                )
            if self._inbox.backlog() < BACKLOG_MAX:
                # 4. Read.
                for message in await receive(receiver, self._patience_s):
                    await self._take(receiver, message)
                self.read_at = loop.time()
            else:  # 3. There is enough to read.
                await asyncio.sleep(FULL_PAUSE_S)
            self._inbox.wake()
            await asyncio.sleep(0)  # 5. Let the loops read.
            await self._settle(receiver)
            await self._give_back(receiver)

    async def _take(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        """Put a message into the inbox, or dead-letter it if it is no notification."""
        try:
            event = external.decode_notification(bytes_of(message))
        except MalformedError as error:
            dead_letter = partial(
                receiver.dead_letter_message,
                message,
                reason=Reason.NOT_A_NOTIFICATION.value,
                error_description=str(error),
            )
            await settle(receiver, dead_letter, self._patience_s)
            return
        until = message.locked_until_utc
        self._inbox.arrived(
            message.sequence_number or 0,
            message,
            event,
            now=asyncio.get_running_loop().time(),
            lock_s=(until - datetime.now(UTC)).total_seconds() if until else 0.0,
            delivery_count=message.delivery_count or 0,
        )

    async def _settle(self, receiver: ServiceBusReceiver) -> None:
        """Complete each message that is ready, and renew the locks that need it."""
        # 6. Settle.
        loop = asyncio.get_running_loop()
        for entry in list(self._inbox.unsettled.values()):
            match self._inbox.fate(entry, loop.time()):
                case Fate.COMPLETE:
                    self._inbox.drop(entry)
                    await self._complete(receiver, entry)
                case Fate.RENEW:
                    await self._renew(receiver, entry, loop.time())
                case Fate.WAIT | Fate.GIVE_BACK:
                    continue

    async def _complete(
        self, receiver: ServiceBusReceiver, entry: Unsettled[ServiceBusReceivedMessage]
    ) -> None:
        complete = partial(receiver.complete_message, entry.message)
        await settle(receiver, complete, self._patience_s)

    async def _renew(
        self, receiver: ServiceBusReceiver, entry: Unsettled[ServiceBusReceivedMessage], now: float
    ) -> None:
        try:
            await renew(receiver, entry.message, self._patience_s)
        except LockLostError:
            self._inbox.drop(entry)
        entry.decide_at = now + entry.wait_s

    async def _give_back(self, receiver: ServiceBusReceiver) -> None:
        """Give back what no loop follows, and wait so that other readers of the queue can take it.

        The wait is random, because two readers with equal waits would take each other's messages.
        """
        entries = self._inbox.to_give_back(asyncio.get_running_loop().time())
        if not entries:
            return
        for entry in entries:
            self._inbox.drop(entry)
            if not await release(receiver, entry.message):
                entry.keeps_lock = True
                self._inbox.add(entry)
        await asyncio.sleep(random.uniform(0.1, OTHERS_FIRST_S))  # noqa: S311

    async def _end(self, receiver: ServiceBusReceiver) -> None:
        """Complete the messages that were handed out, give the others back, and close the link.

        If that fails, the locks expire, and the messages are delivered again.
        """
        # 8. End.
        entries = list(self._inbox.unsettled.values())
        self._inbox.unsettled.clear()
        with suppress(LinkError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for entry in entries:
                    if self._inbox.fate(entry, 0.0) is Fate.COMPLETE:
                        await self._complete(receiver, entry)
                    else:
                        await release(receiver, entry.message)
        await close_link(receiver)
