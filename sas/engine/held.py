"""Held messages: sends what its queue did not take, when that queue takes messages again.

Such messages lie in the state store, in the order of their queues and times. A sweep of the
supervisor runs this at its end, for ``TURNS_TIME`` at most. Only what is held for schedulers it
sends at its beginning, because a step whose answer came in time has not failed.

1. **Give each queue a turn** of ``PAGE`` messages. The next sweep goes on behind the last queue.
   After the last of all, the next round begins ``ROUND_AFTER`` later. So no queue waits for all the
   messages of another one, and one that refuses costs one send in each round.
2. **Go on with those that took all of their turns**, until the next round. A message is removed
   after it was sent. A crash in between sends it once more, with the same id.
3. **Tell the operator** of a queue whose oldest message is held for longer than ``REPORTED_AFTER``:
   an incident of the queue, which ends some minutes after it takes messages again.
   ``operator-alerts`` is logged only.
4. **Give up** what such a queue would not have kept for longer either (``HELD_FOR``): a
   notification is counted, an alert is logged, and any other message goes on as a dead letter of
   its queue. So do the oldest beyond ``HELD_MAX`` for a queue of responses, orders or alerts.
   Dead letters themselves are never given up.
5. **Never again.** A message that its queue will never take is given up at once, or put aside. The
   copy of a message that was put back waits for a right to send, as the receiver does. If it is too
   large, it is rejected, as the receiver rejects it.

Several instances may send the same messages at once. That is harmless: each has its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import compress

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.queues import lane, scope_of
from sas.domain.texts import quoted
from sas.engine.context import Context
from sas.engine.delivery import FIRST_ID, Delivery
from sas.engine.receiver import dead_letter
from sas.ports import (
    BusUnavailableError,
    HeldMessage,
    Message,
    QueueRefusesError,
    StoreMismatchError,
    TooLargeForQueueError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
TURNS_TIME = timedelta(seconds=5)
"""After this time of a sweep no message is begun. A send may take ten seconds."""
ROUND_AFTER = timedelta(seconds=30)
QUEUES_AT_ONCE = 8
PAGE = 20
REPORTED_AFTER = timedelta(minutes=10)
HELD_FOR = timedelta(days=14)
HELD_MAX = 10_000
"""Most messages held for a queue of applications, counted when the operator is told of it."""
EXPIRED = "TTLExpiredException"
"""The DeadLetterReason of Service Bus for a message that its queue does not keep any longer."""


class HeldMessages:
    """Sends held messages. The numbers are those of the module's text.

    ``reject`` puts a message aside that is too large for its queue, and tells its sender.
    """

    def __init__(self, context: Context, reject: Callable[[Delivery], Awaitable[None]]) -> None:
        self._context = context
        self._reject = reject
        self._ends_at = self._next_round_at = datetime.min.replace(tzinfo=UTC)
        self._behind = ""
        self._taking: list[str] = []
        """Queues that may take more, in the order of their turns."""

    async def send_answers(self) -> bool:
        """Send what is held for schedulers: do this before steps are judged.

        Returns whether any message is held; if there is none, ``send`` has nothing to do.
        """
        self._ends_at = self._context.clock.now() + TURNS_TIME
        try:
            if await self._context.store.held_queue("") is None:
                return False
        except UnavailableError as error:
            log.warning("held messages wait for the next sweep: %s", error)
            return False
        scheduler = self._context.queues.scheduler
        queues = [scheduler, lane(scheduler, urgent=True)]
        while queues and not self._is_over():
            queues = await self._give_turns(queues)
        return True

    async def send(self) -> None:
        """Give queues with held messages their turns. What fails is tried again later."""
        self._ends_at = self._context.clock.now() + TURNS_TIME
        try:
            while not self._is_over() and (queues := await self._next_queues()):
                taking = await self._give_turns(queues)
                self._taking += [queue for queue in taking if queue not in self._taking]
        except UnavailableError as error:
            log.warning("held messages wait for the next sweep: %s", error)

    def _is_over(self) -> bool:
        return self._context.clock.now() >= self._ends_at

    async def _next_queues(self) -> list[str]:
        """Return the next queues of this round; behind the last one, those that may take more."""
        now = self._context.clock.now()
        queues: list[str] = []
        while now >= self._next_round_at and len(queues) < QUEUES_AT_ONCE:
            queue = await self._context.store.held_queue(self._behind)  # 1. Give each queue a turn.
            self._behind = queue or ""
            if queue is None:
                self._next_round_at = now + ROUND_AFTER
            else:
                queues.append(queue)
        if not queues:  # 2. Go on with those that took all of their turns.
            queues, self._taking = self._taking[:QUEUES_AT_ONCE], self._taking[QUEUES_AT_ONCE:]
        return queues

    async def _give_turns(self, queues: Sequence[str]) -> list[str]:
        """Give some queues a turn each; return those that may take more."""
        return list(compress(queues, await asyncio.gather(*map(self._guarded_turn, queues))))

    async def _guarded_turn(self, queue: str) -> bool:
        """Return whether a queue may take more. One queue's trouble must not stop the others."""
        try:
            return await self._turn(queue)
        except UnavailableError as error:
            log.warning("what is held for queue %s waits: %s", queue, error)
            if isinstance(error, StoreMismatchError):
                await self._context.report_mismatch(error)
        except Exception:
            log.exception("what is held for queue %s could not be sent", queue)
        return False

    async def _turn(self, queue: str) -> bool:
        page = await self._context.store.held(queue, PAGE)
        for item in page:
            if self._is_over():
                return True
            try:
                await self._send(item, item.message)
            except BusUnavailableError as error:
                log.warning("queue %s does not take what is held for it: %s", queue, error)
                await self._waits(item)
                return False
            await self._context.store.release(item)
        return len(page) == PAGE

    async def _send(self, item: HeldMessage, message: Message) -> None:
        """Send a held message, or its dead letter. If its queue will never take it, give it up.

        Raises:
            BusUnavailableError, StoreUnavailableError: it must stay.
        """
        trace = message.properties.get("traceparent")
        with tracing.of_order("supervisor send", trace, order_id=item.order_id):
            try:
                await self._context.bus.send([message])
            except UndeliverableError as error:  # 5. Never again.
                if FIRST_ID not in message.properties:
                    rejections, correlation_id = self._context.rejections, message.correlation_id
                    await rejections.undeliverable(error, item.order_id, correlation_id)
                elif isinstance(error, TooLargeForQueueError):
                    await self._reject(_delivery(item.message))
                else:
                    raise QueueRefusesError(error) from error

    async def _waits(self, oldest: HeldMessage) -> None:
        """Act on a queue that takes none. ``oldest`` waits for it longest."""
        queue, queues, now = oldest.message.queue, self._context.queues, self._context.clock.now()
        if now - oldest.since < REPORTED_AFTER:
            return
        if queue == queues.alerts:  # 3. Tell the operator.
            log.error("queue %s has taken no alert since %s", queue, f"{oldest.since:%F %H:%MZ}")
        else:
            await self._report(queue, oldest.since)
        if queue != queues.dead_letters:  # 4. Give up.
            await self._give_up(queue, now - HELD_FOR)

    async def _report(self, queue: str, since: datetime) -> None:
        is_response, days = self._context.queues.is_response(queue), HELD_FOR.days
        todo = (
            f"Enable it, or see what fills it. What waits for {days} days is a dead letter, and so "
            f"are the oldest of more than {HELD_MAX:,} orders."
        )
        if is_response:
            todo = (
                "Its application's team must read it, or enable it. What waits for "
                f"{days} days, and the oldest of more than {HELD_MAX:,}, is given up and counted "
                "here."
            )
        incident = Incident(
            kind=AlertKind.UNDELIVERABLE if is_response else AlertKind.QUEUE_DELAY,
            scope=scope_of(queue),
            text=f"Queue {quoted(queue)} takes no messages since {since:%Y-%m-%d %H:%MZ}: it is "
            "full or disabled. They wait in the table, and are sent when it takes them. " + todo,
            since=since,
            until=self._context.clock.now() + 2 * ROUND_AFTER,
        )
        await self._context.incidents.report(incident)

    async def _give_up(self, queue: str, until: datetime) -> None:
        """Give up what a queue that takes none has waited for too long, or too much of."""
        store, surplus = self._context.store, 0
        queues = self._context.queues
        is_bounded = (
            queues.is_response(queue) or queue == queues.alerts or queues.takes_orders(queue)
        )
        if is_bounded:
            surplus = await store.held_count(queue, 2 * HELD_MAX) - HELD_MAX
        while not self._is_over():
            page = await store.held(queue, PAGE)
            oldest = [
                item for number, item in enumerate(page) if number < surplus or item.since <= until
            ]
            for item in oldest:
                await self._drop(item)
            await asyncio.gather(*(store.release(item) for item in oldest))
            surplus -= len(oldest)
            if len(oldest) < PAGE:
                return

    async def _drop(self, item: HeldMessage) -> None:
        """Give a message up; raises BusUnavailableError or StoreUnavailableError if it stays."""
        message, queues = item.message, self._context.queues
        if message.queue == queues.alerts:
            log.error("an alert is given up, because its queue takes none: %s", message.message_id)
        elif queues.is_response(message.queue):
            why = "takes no notifications: it is full or disabled. Its application's team must act"
            await self._context.rejections.give_up_notification(message.queue, item.order_id, why)
        else:
            letter = dead_letter(queues.dead_letters, message, EXPIRED, "its queue did not take it")
            await self._send(item, letter)


def _delivery(message: Message) -> Delivery:
    """Return a copy as its message was first sent."""
    return Delivery(
        body=message.body,
        message_id=message.properties.get(FIRST_ID, message.message_id),
        queue=message.queue,
    )
