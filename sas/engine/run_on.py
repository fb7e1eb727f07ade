"""Run on: an order goes as far as it can within one function, and queues only where it waits.

Most messages of an order are for an actor of the process that records them. Such a message need not
travel. The function that holds the message that was the cause hands it to that actor:

1. **The root.** A host delivers a message for the first time: the root of a chain. Its handler
   commits a transition, which records what is to be sent (``sas.engine.transition``).
2. **Collect.** A recorded message for an actor of this process is collected, and not sent: a wake,
   a reply, or a request to an agent that the business declares ``inline``. Every other message is
   sent at once: alerts and notifications, and what waits, such as a request to an agent that is not
   inline, or a pause.
3. **Hand over.** When the handler has returned, each collected message is handled as if its queue
   had delivered it. What its handler records is handed over next. Parallel steps go side by side.
4. **Send what cannot run on.** If its handler fails, or the chain is at one of its bounds, a
   message is sent to its queue under its own id. There it waits like any other. If its handler
   finds a dependency away, the receiver puts back this message, and not the root.
5. **Complete.** The host completes the root only now: everything that was recorded since is handled
   or sent.

A hand-over is a delivery that took no time. Journal, causes, epochs, idempotency keys and ETags are
those of a queue in between. A function that dies in a chain loses nothing:

a. **The root comes again**, because it was not completed. Either its cause is not recorded, and the
   order is as it was. Or the redelivery finds it, and walks the journal from there
   (``TransitionRunner.repeat``). A wake has led to another row if its cause is recorded, a request
   if the cause of its reply is. The walk goes on in that row, to the end of the chain.
b. **What has led to no row is sent now**, with its own id, and so are the notifications of each row
   of the walk. Perhaps it was sent before, or put back: then it comes twice, as after any crash. If
   the root became a dead letter, its function does the same walk.
c. **The first handler may still live**, because only its lock was lost. Then two handlers have the
   same message. If both decide something, both commit the same cause, so one of them wins, and the
   other finds the cause and walks.
d. **If the second one decides nothing and completes the message**, the first one might still record
   the cause, run on, and die: no message would be left from which the order goes on. So whoever may
   not be alone with a message (``AGAIN``) and ends it without a trace fences it: it records the
   cause, and nobody else can. A request has the cause of its reply, because an agent commits
   nothing. See ``sas.actors.agent``, ``sas.actors.scheduler`` and ``sas.actors.dead_letters``. A
   reply that finds nothing needs no fence: its epoch is over, so it finds nothing later either.

**Only a first delivery runs on.** A redelivery may follow a crash that a message of the chain
caused. So it sends what it records, and each message has its own deliveries again.

A call of an ``inline`` agent ends after ``CALL_TIME``, and only ``CALLS_MAX`` such calls are under
way in a process. Any further request travels. So a service that became slow never holds up all
submissions, because a function has more slots than that (``maxConcurrentCalls``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sas.domain.calls import CallState
from sas.domain.ids import URGENT_SUFFIX
from sas.engine.delivery import AGAIN, Delivery
from sas.engine.in_flight import carrying
from sas.ports import (
    Clock,
    Message,
    MessageBus,
    QueueRefusesError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry.tracing import carried, logger, within

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logger(__name__)
CHAIN_TIME = timedelta(seconds=30)
"""A chain hands nothing over after this time, or after half of the time that its function has left.
So other orders get the function.
"""
HAND_OVERS_MAX = 100
"""Most messages that one chain hands over."""
CALL_TIME = timedelta(seconds=2)
"""An agent's call that was handed over ends after this time. Then its request waits in a queue."""
CALLS_MAX = 8
"""Most agents' calls that one process makes within the functions of other messages: half of the
slots that a function has by default.
"""

_TRIED = carrying(CallState.TRIED)
Handler = Callable[[Delivery], Awaitable[object]]
Receive = Callable[[Handler, Delivery], Awaitable[list[Message]]]
"""Has a handler handle one delivery; returns what it collected, nothing if it was put back."""
_collected: ContextVar[list[Message] | None] = ContextVar("collected", default=None)
"""What the handler of the current delivery has collected; None if it must send everything."""


@contextmanager
def collecting() -> Iterator[list[Message]]:
    """Collect what a handler sends to actors of this process."""
    messages: list[Message] = []
    token = _collected.set(messages)
    try:
        yield messages
    finally:
        _collected.reset(token)


@dataclass(kw_only=True)
class _Chain:
    """What follows from one root. Its function ends at ``ends_at``."""

    receive: Receive
    ends_at: datetime
    last_hand_over_at: datetime
    hand_overs: int = 0


@dataclass(kw_only=True)
class RunOn:
    """Hands recorded messages to actors of this process. The numbers are those of the text.

    ``inline`` are the queues of the agents that are called inline. ``handlers`` has the actors to
    which messages are handed over, by queue. It is filled later than the rest, because the actors
    send by this object.
    """

    bus: MessageBus
    clock: Clock
    inline: frozenset[str]
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    calls: int = 0
    """How many inline calls are under way."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages, except those that can run on (2); raises as ``MessageBus.send``."""
        collected = _collected.get()
        handlers = self.handlers if collected is not None else {}
        others = [message for message in messages if message.queue not in handlers]
        if others:
            await self.bus.send(others)
        if collected is not None:
            trace = carried()  # the span that sends a message has ended when it is handed over
            collected += [
                replace(message, properties={**message.properties, **trace})
                for message in messages
                if message.queue in handlers
            ]

    async def send_again(self, messages: Sequence[Message]) -> None:
        """Send messages that another handler may still have (c); raises as ``MessageBus.send``.

        A request begins anew, even if its call went out: a crash in a chain counts no failure of a
        step whose request no queue held.
        """
        marked = [
            replace(message, properties={**message.properties, AGAIN: "yes"})
            for message in messages
        ]
        await self.bus.send(marked)

    async def follow(self, messages: list[Message], ends_at: datetime, receive: Receive) -> None:
        """Hand over the messages of a root, and all that follows; its function ends at ``ends_at``.

        Raises:
            UnavailableError: a message was neither handled nor sent. Put the root back.
        """
        now = self.clock.now()
        last_hand_over_at = min(now + CHAIN_TIME, now + (ends_at - now) / 2)
        chain = _Chain(receive=receive, ends_at=ends_at, last_hand_over_at=last_hand_over_at)
        try:
            await self._follow(messages, chain)
        except (UnavailableError, UndeliverableError) as error:
            outage = error if isinstance(error, UnavailableError) else QueueRefusesError(error)
            outage.put_back_with |= _TRIED  # if the root is a request, it was called
            raise outage from error

    async def _follow(self, messages: list[Message], chain: _Chain) -> None:
        while len(messages) == 1:
            messages = await self._hand_over(messages[0], chain)
        branches = (self._follow([message], chain) for message in messages)
        for outcome in await asyncio.gather(*branches, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _hand_over(self, message: Message, chain: _Chain) -> list[Message]:
        """Have a message handled (3), or send it (4); return what follows from it."""
        now, is_call = self.clock.now(), message.queue in self.inline
        is_full = is_call and self.calls >= CALLS_MAX
        if is_full or now >= chain.last_hand_over_at or chain.hand_overs >= HAND_OVERS_MAX:
            with within(message.properties):
                await self.bus.send([message])
            return []
        delivery = Delivery(
            body=message.body,
            message_id=message.message_id,
            queue=message.queue,
            urgent=message.queue.endswith(URGENT_SUFFIX),
            properties=message.properties,
            count=1,
            enqueued_at=now,
            ends_at=min(now + CALL_TIME, chain.ends_at) if is_call else chain.ends_at,
            is_handed_over=True,
        )
        chain.hand_overs += 1
        self.calls += is_call
        try:
            return await chain.receive(self.handlers[message.queue], delivery)
        except Exception as error:  # noqa: BLE001  its queue delivers it, and counts
            log.warning("a message of queue %s travels: %r", message.queue, error)
            tried = replace(message, properties={**message.properties, **_TRIED})
            with within(message.properties):
                await self.send_again([tried])
            return []
        finally:
            self.calls -= is_call
            if is_call and self.clock.now() - now >= CALL_TIME:
                log.warning("an inline call was too slow: %s. Is its agent quick?", message.queue)
