"""Run on: an order goes as far as it can within one function, and queues only where it waits.

Most messages of an order are for an actor of the process that sends them. Such a message need not
travel. The function that holds the cause's message hands it to its actor itself:

1. **The root.** A host delivers a message: the root of a chain. Its handler commits, and records
   what is to be sent (``sas.engine.transition``).
2. **Collect.** What is recorded for an actor of this process is collected, in place of being sent.
   All else is sent, as ever: what waits for an agent elsewhere, for a pause, or for a slot.
3. **Hand over.** When the handler has returned, each collected message is handled as if its queue
   had delivered it. What its handler records in turn is handed over next. Parallel steps go on side
   by side.
4. **Send what cannot run on.** If its handler fails, or the chain is at one of its bounds, a
   message is sent to its queue, with its own id. There it waits, like any other.
5. **Complete.** The host completes the root only now: when all that was recorded since is handled
   or sent.

A hand-over is a delivery that took no time. Causes, epochs, idempotency keys and ETags are the same
as with a queue between.

**Only a first delivery runs on.** A redelivery may follow a crash that a message of the chain
caused. So it sends what was recorded, and each message has deliveries of its own again.

Why a crash anywhere loses nothing: the root was not completed, so it comes again. Its cause is
recorded, or nothing happened at all. From its journal row the runner walks the whole chain. A wake
was handled if its cause is recorded, and a request was answered if the cause of its reply is. The
walk goes on in the row with that cause. Whatever was not handled is sent now, with its own id, and
so are the notifications of each row (``TransitionRunner.repeat``). If the root became a dead
letter, ``sas.actors.dead_letters`` does the same walk.

Whatever ends a call without a trace hides whether it went out. So a request that travels after its
handler failed, or after a crash of its chain, carries ``TRIED``, as if it was redelivered. So does
the copy of a root that was put back, because a message that follows was neither handled nor sent.

A call of an agent runs on only if the business says that its agent is quick (``inline``). Even
then it holds the function for ``CALL_TIME`` at most, and only ``CALLS_MAX`` such calls are under
way in a process. So a service that became slow never holds up all submissions.
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
from sas.engine.delivery import Delivery
from sas.engine.in_flight import carrying
from sas.ports import (
    Clock,
    Message,
    MessageBus,
    QueueRefusesError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry.tracing import carried, logger

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logger(__name__)
CHAIN_TIME = timedelta(seconds=30)
"""A chain hands nothing over after this time, so that other orders get the function."""
HAND_OVERS_MAX = 100
"""Most messages that one chain hands over."""
CALL_TIME = timedelta(seconds=2)
"""An agent's call that was handed over ends after this time. Then its request waits in a queue."""
CALLS_MAX = 8
"""Most agents' calls that one process makes within the functions of other messages: half of the
slots that a function has by default.
"""

TRIED = carrying(CallState.TRIED)
"""Properties of a request whose call may have gone out."""

Handler = Callable[[Delivery], Awaitable[object]]
_collected: ContextVar[list[Message] | None] = ContextVar("collected", default=None)
"""What the handler of the current message has recorded for actors of this process."""
_sends_again: ContextVar[bool] = ContextVar("sends_again", default=False)
"""Whether the messages that are sent may have been handed over before."""


@contextmanager
def collecting() -> Iterator[list[Message]]:
    """Collect what a handler sends to actors of this process."""
    messages: list[Message] = []
    token = _collected.set(messages)
    try:
        yield messages
    finally:
        _collected.reset(token)


@contextmanager
def sending() -> Iterator[None]:
    """Send all messages by their queues: they may have been handed over before."""
    token, again = _collected.set(None), _sends_again.set(True)
    try:
        yield
    finally:
        _sends_again.reset(again)
        _collected.reset(token)


@dataclass
class _Chain:
    """The messages that follow from one root. ``ends_at`` is when the last one is handed over."""

    ends_at: datetime
    hand_overs: int = 0


@dataclass(kw_only=True)
class RunOn:
    """Hands recorded messages to actors of this process. The numbers are those of the text.

    ``handlers`` has the actors of this process, by queue. ``inline`` are the queues of the agents
    that are quick. ``handlers`` is filled after the actors are made, because they send by this.
    """

    bus: MessageBus
    clock: Clock
    inline: frozenset[str]
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    calls: int = 0

    async def send(self, messages: Sequence[Message]) -> None:
        """Collect messages that can run on (2), and send the others; raises as ``MessageBus``."""
        collected = _collected.get()
        if collected is None:
            again = _sends_again.get()
            await self.bus.send([*map(self._tried, messages)] if again else messages)
            return
        others = [message for message in messages if message.queue not in self.handlers]
        if others:
            await self.bus.send(others)
        collected += [message for message in messages if message.queue in self.handlers]

    async def follow(
        self,
        messages: list[Message],
        root: Delivery,
        receive: Callable[[Handler, Delivery], Awaitable[list[Message]]],
    ) -> None:
        """Hand over messages, and all that follows from them.

        ``root`` is the delivery that the function holds. ``receive`` handles one delivery, and
        returns what it recorded.

        Raises:
            UnavailableError: a message was neither handled nor sent. Put the root back.
        """
        now = self.clock.now()
        ends_at = now + CHAIN_TIME
        if root.ends_at is not None:
            ends_at = min(ends_at, now + (root.ends_at - now) / 2)
        try:
            await self._follow(messages, root, chain=_Chain(ends_at), receive=receive)
        except UnavailableError as error:
            outage = error
        except UndeliverableError as error:
            outage = QueueRefusesError(error)
        else:
            return
        outage.put_back_with |= TRIED
        raise outage

    async def _follow(
        self,
        messages: list[Message],
        root: Delivery,
        *,
        chain: _Chain,
        receive: Callable[[Handler, Delivery], Awaitable[list[Message]]],
    ) -> None:
        while len(messages) == 1:
            messages = await self._hand_over(messages[0], root, chain=chain, receive=receive)
        branches = (
            self._follow([message], root, chain=chain, receive=receive) for message in messages
        )
        for outcome in await asyncio.gather(*branches, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _hand_over(
        self,
        message: Message,
        root: Delivery,
        *,
        chain: _Chain,
        receive: Callable[[Handler, Delivery], Awaitable[list[Message]]],
    ) -> list[Message]:
        """Have a message handled (3), or send it (4); return what follows from it."""
        now, is_call = self.clock.now(), message.queue in self.inline
        chain.hand_overs += 1
        too_much = chain.hand_overs > HAND_OVERS_MAX or (is_call and self.calls >= CALLS_MAX)
        if now >= chain.ends_at or too_much:
            await self.bus.send([message])
            return []
        ends_at = now + CALL_TIME if is_call else root.ends_at
        if root.ends_at is not None and ends_at is not None:
            ends_at = min(ends_at, root.ends_at)
        delivery = Delivery(
            body=message.body,
            message_id=message.message_id,
            queue=message.queue,
            urgent=message.queue.endswith(URGENT_SUFFIX),
            properties={**message.properties, **carried()},
            count=1,
            enqueued_at=now,
            ends_at=ends_at,
        )
        self.calls += is_call
        try:
            return await receive(self.handlers[message.queue], delivery)
        except Exception as error:  # noqa: BLE001  its queue delivers it, and counts
            log.warning("a message of queue %s travels: %r", message.queue, error)
            await self.bus.send([self._tried(message)])
            return []
        finally:
            self.calls -= is_call

    def _tried(self, message: Message) -> Message:
        """Return a message that may have been handed over before, as its queue is to deliver it."""
        if message.queue not in self.inline:
            return message
        return replace(message, properties={**message.properties, **TRIED})
