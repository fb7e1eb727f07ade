"""Receives messages: a message whose dependency is away is put back, and uses up no delivery.

A queue dead-letters a message after a few deliveries. That limit is for poison: a message that no
attempt can handle. While the state store or a queue is away, a delivery ends in one of two ways:

* A scheduled copy of the message goes to its own queue, with a growing delay, and the delivery is
  completed. The body stays the same, and with it the cause.
* If the queue does not take the copy either, the function waits and handles the message again.
  Shortly before it must end, the copy is held in the store, and the supervisor sends it later.

A handler that is not done when the function must end is cancelled, and its message is put back. For
the order this is the same as a crash. Otherwise the host would kill the worker with all its other
functions.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeGuard

from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import digest_id, key_time
from sas.engine.delivery import Delivery
from sas.engine.external import ExternalSender
from sas.ports import (
    Clock,
    Message,
    MessageBus,
    OtherVersionError,
    QueueRefusesError,
    StoreMismatchError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry import metrics
from sas.telemetry.tracing import logger

log = logger(__name__)
TIMES = "sas_put_back"
"""Property: how often a message was put back."""
FIRST_ID = "sas_first_id"
"""Property: the MessageId that its sender gave a message that was put back."""
FIRST_AT = "sas_first_at"
"""Property: when a message that was put back was first enqueued."""
SOURCE = "sas_dead_letter_source"
"""Property: the queue that a dead letter comes from. A copy has no DeadLetterSource."""
MESSAGE_ID_LENGTH_MAX = 128
"""Longest MessageId that Service Bus takes."""
READ = ("sas_", "trace", "DeadLetter")
"""The properties that this system reads begin with this. A copy carries no others: those of the
sender may be so large that the copy would not fit its queue.
"""
FIRST_DELAY_S = 1.0
"""Longest pause before a message is handled for the second time. It doubles each time."""
DELAY_MAX_S = UnavailableError.delay_max_s
"""Longest pause before a message is handled again after an outage."""
CUT_AFTER = timedelta(seconds=20)
"""A handler that still runs this long after its ``ends_at`` is cancelled."""

Handler = Callable[[Delivery], Awaitable[object]]
Mismatch = StoreMismatchError | QueueRefusesError


class GivenUpError(UnavailableError):
    """A message that its queue gave up fails again. The pauses between its attempts grow to an
    hour, because a repair of the code may take long and each attempt logs an error.
    """

    delay_max_s = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Hands messages to their handlers. ``function_time`` is the time that one function has.

    ``external`` holds what no queue takes. ``report_mismatch`` tells the operator of a deploy that
    puts messages back, because it does not fit the state store or lacks a queue or a right.
    """

    bus: MessageBus
    clock: Clock
    function_time: timedelta
    external: ExternalSender
    report_mismatch: Callable[[Mismatch], Awaitable[None]]

    async def receive(self, handler: Handler, delivery: Delivery) -> object:
        """Return what the handler returns; None if the message was put back.

        Raises:
            UnavailableError: the function must end, and the message could be neither put back nor
                held. The host redelivers it.
            Exception: the handler has a bug, or the message is poison. The host redelivers it.
        """
        delivery = _as_first_sent(delivery)
        ends_at = self.clock.now() + self.function_time
        delivery = replace(delivery, ends_at=ends_at)
        times = _times(delivery)
        while True:
            try:
                return await self.within_time(handler(delivery), ends_at)
            except UnavailableError as failed:
                away = failed
            except UndeliverableError as refused:  # a right to send may be missing for a while
                away = QueueRefusesError(refused)
            except Exception:
                # The host may not export its own log of it (docs/telemetry.md).
                log.exception("a message of queue %s failed and comes again", delivery.queue)
                raise
            if isinstance(away, Mismatch):
                await self._report(away)
            elif isinstance(away, OtherVersionError) and self._waits_long(delivery):
                await self._report(StoreMismatchError(str(away), "newer version"))
            delay = delay_s(times, away.delay_max_s)
            times += 1
            delivery = _with(delivery, away.put_back_with)
            copy = self._copy(delivery, times, delay)
            if await self._put_back(copy, delay, away):
                return None
            delay = min(delay, DELAY_MAX_S)
            if self.clock.now() + timedelta(seconds=delay) >= ends_at:
                await self._hold(copy, away)
                return None
            await self.clock.sleep(delay)

    async def within_time(self, work: Awaitable[object], ends_at: datetime | None = None) -> object:
        """Return the result of ``work``, which must end with its function.

        ``ends_at`` is when it must end; None: after the time of one function.

        Raises:
            UnavailableError: it did not end, and was cancelled.
        """
        now = self.clock.now()
        left = (ends_at or now + self.function_time) + CUT_AFTER - now
        try:
            async with self.clock.timeout(left.total_seconds()) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise UnavailableError("its function ran out of time") from None
            raise

    def _waits_long(self, delivery: Delivery) -> bool:
        """Return whether a message was put back for longer than a deploy takes."""
        first_at = delivery.properties.get(FIRST_AT)
        return _is_text(first_at) and first_at < key_time(self.clock.now() - DEPLOY_TIME)

    async def _report(self, wrong: Mismatch) -> None:
        try:
            await self.report_mismatch(wrong)
        except (UnavailableError, UndeliverableError) as down:
            log.warning("a wrong deploy is reported later: %s", down)

    def _copy(self, delivery: Delivery, times: int, delay: float) -> Message:
        """Return a message as it comes again, ``delay`` seconds from now."""
        now = self.clock.now()
        properties = {
            key: text
            for key, text in delivery.properties.items()
            if key.startswith(READ) and _is_text(text)
        }
        first_at = properties.get(FIRST_AT) or key_time(delivery.enqueued_at or now)
        properties |= {TIMES: str(times), FIRST_ID: delivery.message_id, FIRST_AT: first_at}
        if delivery.source_queue:
            properties[SOURCE] = delivery.source_queue
        return Message(
            delivery.queue,
            # A new id, or duplicate detection drops the copy. A redelivery makes the same id.
            f"again/{digest_id(delivery.queue, delivery.message_id, str(times))}",
            delivery.body,
            scheduled_at=delivery.on_bus(now + timedelta(seconds=delay), now),
            properties=properties,
        )

    async def _put_back(self, copy: Message, delay: float, away: UnavailableError) -> bool:
        """Send the copy of a message to its own queue; False if that is away too."""
        try:
            await self.bus.send([copy])
        except (UnavailableError, UndeliverableError) as full:
            log.warning("a message of queue %s waits: %s; %s", copy.queue, away, full)
            return False
        metrics.put_back(copy.queue)
        log.warning("a message of queue %s is put back for %.0f s: %s", copy.queue, delay, away)
        return True

    async def _hold(self, copy: Message, away: UnavailableError) -> None:
        """Have the supervisor send a copy that no queue takes; raises ``away`` if that fails."""
        try:
            await self.external.defer([copy], copy.message_id, self.clock.now())
        except UnavailableError as down:
            log.warning("a message of queue %s is given back: %s", copy.queue, down)
            raise away from down
        log.warning("a message of queue %s is held until the queue takes it: %s", copy.queue, away)


def delay_s(times: int, delay_max_s: float = DELAY_MAX_S) -> float:
    """Return the pause in seconds after a message was put back ``times`` times: it grows."""
    most = min(FIRST_DELAY_S * 2.0 ** min(times, 30), delay_max_s)
    return most * random.uniform(0.5, 1.0)  # noqa: S311  jitter, no secret


def is_copy(message: Message) -> bool:
    """Return whether a message is the copy of one that was put back."""
    return FIRST_ID in message.properties


def _as_first_sent(delivery: Delivery) -> Delivery:
    first_id, source = delivery.properties.get(FIRST_ID), delivery.properties.get(SOURCE)
    return replace(
        delivery,
        message_id=first_id if _is_id(first_id) else delivery.message_id,
        # What Service Bus says goes first: an application could set the property on an order.
        source_queue=delivery.source_queue or (source if _is_text(source) else None),
    )


def _times(delivery: Delivery) -> int:
    text = delivery.properties.get(TIMES)
    return int(text) if _is_text(text) and text.isdecimal() and len(text) < 9 else 0


def _with(delivery: Delivery, properties: dict[str, str]) -> Delivery:
    return replace(delivery, properties={**delivery.properties, **properties})


def _is_id(value: object) -> TypeGuard[str]:
    """Return whether a text can be a MessageId: an application could set the property."""
    return _is_text(value) and 0 < len(value) <= MESSAGE_ID_LENGTH_MAX


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)
