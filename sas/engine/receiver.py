"""Receives messages. One that cannot be handled now is put back, and uses up no delivery.

A function that raises gets its message again at once, and after five deliveries the message is a
dead letter. So while the state store does not answer, or after a bad release, all healthy messages
would be rejected within seconds. Therefore this module stands between the host and every handler.
One delivery goes like this:

1. **Restore.** The message may be the copy of an earlier delivery (see 4). Then its properties say
   which MessageId its sender gave it, and from which queue a dead letter came. So the handler sees
   the same message in every delivery, and derives the same cause from it. It sees none but
   ``PROPERTIES``. A sender may forge them: that changes only how its own message is handled.
2. **Handle.** The handler runs. What a first delivery records for this process is handed over next,
   each message as its queue would deliver it (``sas.engine.run_on``). If all of that returns, the
   host completes the message. Otherwise the delivery goes on at 3. An error is an *outage* if it
   says "something is away" (``UnavailableError``), or is an ``UndeliverableError``, because a right
   to send may be missing for a few minutes after a deploy. Any other error is a *failure*: the app
   has a bug, or the message is poison, and no attempt can handle it. A message that was handed over
   does not fail here: it travels, and fails in its queue.
3. **Report.** A failure is an incident at once, one for each line of code that fails. So a bad
   release can be taken back while its messages wait. An outage ends by itself, unless the deploy
   does not fit the state store, or lacks a queue or a right: then it is an incident too. A message
   that is left to an instance of another version is reported only when it has waited for longer
   than a deploy takes.
4. **Put back.** A scheduled copy of the message goes to its own queue, and the function returns. So
   the host completes the message, and no delivery was used up. The pauses grow: from one second to
   30 s as a rule, and after failures to five minutes. The copy has the same body, and what the
   handler asked for (``put_back_with``): an agent's request carries the state of its call there.
   After ``FAILURES_MAX`` failures the message is poison: it goes to ``dead-letters``, with the
   error. A dead letter that fails is put back until it is handled. The copy of an order that is
   allowed fits its queue. A message whose copy is too large is rejected at once (``reject``).
5. **Wait here.** If the queue does not take the copy now, the bus is away. After an outage the
   function pauses, and goes back to 2 with the message that it still holds.
6. **Hold.** If the queue is full, or the function must end before its next attempt, or failed, the
   copy is written to the state store, and the supervisor sends it later (``sas.engine.held``).
7. **Give back.** If the store is away too, or a message cannot be rejected, the error is raised,
   and the host redelivers. Only this way uses up a delivery. After an outage, each one lasts a
   whole function time: an outage of everything must last for about 42 minutes before a message of
   it is dead.
8. **Cut off.** A handler that still runs ``CUT_AFTER`` after its function should have ended is
   cancelled, and goes on at 3. For the order this is the same as a crash of the worker. Without it
   the host would kill the worker, with all the other functions in it.

What can go wrong, and why nothing is lost:

* A crash in 2, 3 or 5: the message was not completed. Its lock ends, and it is redelivered. A
  message that kills its process each time is a dead letter after five deliveries.
* A crash after 4 or 6, before the host completes the message: the message and its copy both exist.
  The redelivery makes a copy with the same id, and most queues drop it (duplicate detection). Where
  two copies stay, they have one cause. The second one finds it recorded and decides nothing
  (``sas.engine.transition``).
* A copy comes behind younger messages. The order as it is stored decides, and no message's place.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeGuard, TypeVar

from sas.codec.orders import salvage
from sas.domain.calls import CallState
from sas.domain.change import Incident
from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import (
    MESSAGE_ID_LENGTH_MAX,
    ORDER_ID_LENGTH_MAX,
    InvalidIdError,
    check_order_id,
    digest_id,
    key_time,
)
from sas.domain.messages import AlertKind
from sas.domain.order import AttemptError
from sas.domain.texts import quoted, shortened
from sas.engine.delivery import (
    AGAIN,
    BUG,
    BUG_LENGTH_MAX,
    EXTERNAL_SENT,
    FIRST_ID,
    LEFT_SINCE,
    ORDER_ID,
    Delivery,
)
from sas.engine.explained import explained, line_of
from sas.engine.external import ExternalSender
from sas.engine.hooks import Incidents
from sas.engine.in_flight import AGENT_FAILURES, CALL_STATE, carrying
from sas.engine.run_on import Handler, RunOn, collecting
from sas.ports import (
    Clock,
    Message,
    MessageBus,
    OtherVersionError,
    QueueFullError,
    QueueRefusesError,
    StoreMismatchError,
    TooLargeForQueueError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry import metrics, tracing
from sas.telemetry.tracing import logger

log = logger(__name__)
TIMES = "sas_put_back"
"""Property: how often a message was put back."""
FAILURES = "sas_failures"
"""Property: how often the handling of a message failed. Outages do not count."""
FIRST_AT = "sas_first_at"
"""Property: when a message that was put back was first enqueued."""
SOURCE = "sas_dead_letter_source"
"""Property: the queue that a dead letter comes from. A copy has no DeadLetterSource."""
FIRST_DELAY_S = 1.0
"""Longest pause before a message is handled for the second time. It doubles each time."""
DELAY_MAX_S = UnavailableError.delay_max_s
"""Longest pause before a message is handled again after an outage."""
FAILURES_MAX = 7
"""After so many failures a message is poison. Its pauses are 4, 16, 64, 256, 300 and 300 s at most,
and half of that at least: together 8 to 16 minutes. Within that time a bad release can be taken
back: its alert comes at the first failure, and a rollback takes two minutes.
"""
FAILURE_DELAY_MAX_S = AttemptError.PAUSE_MAX.total_seconds()
"""Longest pause before a message is handled again after a failure."""
LETTER_DELAY_MAX_S = 3600.0
"""Longest pause before a dead letter is handled again that failed. A repair may take days."""
DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
"""The properties in which Service Bus says why it gave a message up."""
DESCRIPTION_LENGTH_MAX = 700
PROPERTIES: Mapping[str, int] = {
    **tracing.CARRIED,
    TIMES: 8,
    FAILURES: 8,
    FIRST_AT: 27,
    FIRST_ID: 4 * MESSAGE_ID_LENGTH_MAX,
    SOURCE: 260,
    ORDER_ID: 4 * ORDER_ID_LENGTH_MAX,
    LEFT_SINCE: 27,
    EXTERNAL_SENT: 8,
    AGAIN: 8,
    CALL_STATE: 16,
    AGENT_FAILURES: 8,
    BUG: 500,
    DEAD_LETTER_REASON: 100,
    DEAD_LETTER_DESCRIPTION: DESCRIPTION_LENGTH_MAX,
}
"""The properties that this system reads, and the longest value of each, in bytes of UTF-8.

Nothing else travels, so a copy of the largest order always fits its queue (``PUT_BACK_BYTES``).
"""
_FOR_PEOPLE = {BUG, DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION}
"""Of these properties a value that is too long is cut. Of all others it is left out."""
FAILED = "FunctionFailed"
"""The DeadLetterReason of a message that is given up here. Its description is the last error."""
REFUSED = "QueueRefuses"
"""The DeadLetterReason of a notification that its queue refuses. Its description is why."""
CUT_AFTER = timedelta(seconds=20)
"""A handler that still runs this long after its ``ends_at`` is cancelled."""

Mismatch = StoreMismatchError | QueueRefusesError
T = TypeVar("T")


class FailedError(UnavailableError):
    """The handling of a message failed. The text leaves out that of the error: it may quote the
    order.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Hands messages to their handlers. ``function_time`` is the time that one function has.

    The numbers are those of the module's text. ``external`` holds the copies that no queue takes.
    ``report_mismatch`` tells the operator of a deploy that puts messages back, because it does not
    fit the state store or lacks a queue or a right. ``incidents`` tells the operator of failures.
    ``dead_letters`` is the queue of that name. ``reject`` puts a message aside that is too large
    to be put back.
    """

    bus: MessageBus
    clock: Clock
    function_time: timedelta
    external: ExternalSender
    report_mismatch: Callable[[Mismatch], Awaitable[None]]
    incidents: Incidents
    run_on: RunOn
    dead_letters: str
    reject: Callable[[Delivery], Awaitable[None]]

    async def receive(self, handler: Handler, delivery: Delivery) -> object:
        """Handle a message, and all that follows from it in this process.

        Returns what the handler returns; None if the message was put back, or was given up here.

        Raises:
            UnavailableError: the message could be neither put back nor held. The host
                redelivers it.
        """
        delivery = _as_first_sent(delivery)  # 1. Restore.
        ends_at = self.clock.now() + self.function_time
        delivery = replace(delivery, ends_at=ends_at)

        async def handle_and_follow(delivery: Delivery) -> object:
            result, messages = await _handled(handler, delivery)
            await self.run_on.follow(messages, ends_at, self._handed_over)
            return result

        try:
            try:
                return await self._received(handle_and_follow, delivery)
            except (UnavailableError, TooLargeForQueueError):
                raise
            except Exception as error:  # noqa: BLE001  a bug raises anything
                await self._failed(delivery, error)
        except TooLargeForQueueError as error:
            log.warning("a message of queue %s is rejected: %s", delivery.queue, error)
            await self.reject(delivery)  # 4., or 7. if that fails.
        return None

    async def _handed_over(self, handler: Handler, delivery: Delivery) -> list[Message]:
        """Handle a message that was handed over; return what it recorded for this process.

        If it was put back, its copy sends what it recorded.
        """

        async def handle(delivery: Delivery) -> list[Message]:
            _, messages = await _handled(handler, delivery)
            return messages

        return await self._received(handle, delivery) or []

    async def _received(
        self, handler: Callable[[Delivery], Awaitable[T]], delivery: Delivery
    ) -> T | None:
        """Handle a message, or put it back; raises as ``receive``, and TooLargeForQueueError."""
        ends_at = delivery.ends_at or self.clock.now() + self.function_time
        times = _number(delivery, TIMES)
        while True:
            try:
                return await self.within_time(handler(delivery), ends_at)  # 2. Handle.
            except UnavailableError as error:
                outage = error
            except UndeliverableError as error:  # a right to send may be missing for a while
                outage = QueueRefusesError(error)
            except Exception:
                log.exception("a message of queue %s failed", delivery.queue)
                raise
            # 3. Report.
            if isinstance(outage, Mismatch):
                await self._report(outage)
            elif isinstance(outage, OtherVersionError) and self._waits_long(delivery):
                text = f"{outage}. Deploy it again"
                await self._report(StoreMismatchError(text, outage.scope))
            # 4. Put back.
            if isinstance(outage, OtherVersionError) and LEFT_SINCE not in delivery.properties:
                outage.put_back_with.setdefault(LEFT_SINCE, key_time(self.clock.now()))
            delay = delay_s(times, outage.delay_max_s)
            times += 1
            delivery = _with(delivery, {**outage.put_back_with, AGAIN: "yes"})
            copy = self._copy(delivery, times, delay)
            if await self._put_back(copy, delay, outage):
                return None
            # 5. Wait here.
            delay = min(delay, DELAY_MAX_S)
            if self.clock.now() + timedelta(seconds=delay) >= ends_at:
                await self._hold(copy, outage)  # 6. Hold.
                return None
            await self.clock.sleep(delay)

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        """Put a message back whose handling failed, or give it up; raises as ``_received``."""
        failures = _number(delivery, FAILURES) + 1
        is_letter = delivery.queue == self.dead_letters
        delay = delay_s(2 * failures, LETTER_DELAY_MAX_S if is_letter else FAILURE_DELAY_MAX_S)
        why = FailedError(f"its handling failed {failures} times, now with {type(error).__name__}")
        await self._report_failure(delivery, error, delay)  # 3. Report.
        if failures < FAILURES_MAX or is_letter:  # 4. Put back.
            changes = {FAILURES: str(failures), BUG: explained(error, BUG_LENGTH_MAX), AGAIN: "yes"}
            changes |= carrying(CallState.GOES_ON)  # if it is a request, a call may have gone out
            copy = self._copy(_with(delivery, changes), _number(delivery, TIMES) + 1, delay)
            is_away = not await self._put_back(copy, delay, why)
        else:
            copy = self._poison(delivery, error)
            is_away = not await self._is_sent(copy, why)
        if is_away:
            await self._hold(copy, why)  # 6. Hold.

    async def _report_failure(self, delivery: Delivery, error: Exception, delay: float) -> None:
        """Report the incident of a failure. If that fails, the next failure does it."""
        now = self.clock.now()
        then = (
            f"tried {FAILURES_MAX} times within 8 to 16 minutes, and then put on orders-rejected. "
            "This incident ends some 8 minutes after the last failure"
        )
        if delivery.queue == self.dead_letters:
            then = (
                "tried again at least every hour. This incident ends some minutes after a try that "
                "works"
            )
        incident = Incident(
            kind=AlertKind.AGENT_FAILING,
            scope=f"{type(error).__name__} at {line_of(error)}",
            text=f"Messages of queue {delivery.queue} fail: {explained(error)}. "
            "If a release brought it, deploy the one before: `sas azd deploy` with the zip that "
            f"you kept. Otherwise deploy a mended version. Each message is {then}.",
            since=now,
            # Messages that failed a moment before may come later than this one.
            until=now + timedelta(seconds=max(delay, FAILURE_DELAY_MAX_S)),
        )
        try:
            await self.incidents.report(incident, *_order_ids(delivery))
        except Exception as problem:  # noqa: BLE001  a bad release may break this too
            log.warning("a failure is reported later: %s", type(problem).__name__)

    def _poison(self, delivery: Delivery, error: Exception) -> Message:
        properties = bounded(delivery.properties)
        message = Message(delivery.queue, delivery.message_id, delivery.body, properties=properties)
        return dead_letter(self.dead_letters, message, FAILED, explained(error))

    async def within_time(self, work: Awaitable[T], ends_at: datetime | None = None) -> T:
        """Return the result of ``work``, which must end with its function.

        ``ends_at`` is when it must end; None: after the time of one function.

        Raises:
            UnavailableError: it did not end, and was cancelled.
        """
        now = self.clock.now()
        time_left = (ends_at or now + self.function_time) + CUT_AFTER - now
        try:
            async with self.clock.timeout(time_left.total_seconds()) as limit:  # 8. Cut off.
                return await work
        except TimeoutError:
            if limit.expired():
                raise UnavailableError("its function ran out of time") from None
            raise

    def _waits_long(self, delivery: Delivery) -> bool:
        """Return whether a message was put back for longer than a deploy takes."""
        first_at = delivery.properties.get(FIRST_AT)
        return _is_text(first_at) and first_at < key_time(self.clock.now() - DEPLOY_TIME)

    async def _report(self, mismatch: Mismatch) -> None:
        try:
            await self.report_mismatch(mismatch)
        except (UnavailableError, UndeliverableError) as error:
            log.warning("a wrong deploy is reported later: %s", error)

    def _copy(self, delivery: Delivery, times: int, delay: float) -> Message:
        """Return a message as it comes again, ``delay`` seconds from now."""
        now = self.clock.now()
        ours = {
            TIMES: str(times),
            FIRST_ID: delivery.message_id,
            FIRST_AT: delivery.properties.get(FIRST_AT) or key_time(delivery.enqueued_at or now),
            SOURCE: delivery.source_queue,
        }
        return Message(
            delivery.queue,
            # A new id, or duplicate detection drops the copy. A redelivery makes the same id.
            f"again/{digest_id(delivery.queue, delivery.message_id, str(times))}",
            delivery.body,
            scheduled_at=delivery.on_bus(now + timedelta(seconds=delay), now),
            properties=bounded({**delivery.properties, **ours}),
        )

    async def _put_back(self, copy: Message, delay: float, outage: UnavailableError) -> bool:
        """Send the copy of a message to its own queue; False if that is away too."""
        if not await self._is_sent(copy, outage):
            return False
        metrics.put_back(copy.queue)
        log.warning("a message of queue %s is put back for %.0f s: %s", copy.queue, delay, outage)
        return True

    async def _is_sent(self, message: Message, outage: UnavailableError) -> bool:
        try:
            await self.bus.send([message])
        except TooLargeForQueueError:
            raise
        except QueueFullError as full:  # for how long, its senders decide: no slot waits for it
            with suppress(UnavailableError):
                await self._hold(message, full)  # 6. Hold.
                return True
            return False
        except (UnavailableError, UndeliverableError) as error:
            log.warning("a message for queue %s waits: %s; %s", message.queue, outage, error)
            return False
        return True

    async def _hold(self, copy: Message, outage: UnavailableError) -> None:
        """Have the supervisor send a copy that no queue takes; raises ``outage`` if that fails."""
        try:
            await self.external.hold([copy], copy.message_id)
        except UnavailableError as error:
            log.warning("a message of queue %s is given back: %s", copy.queue, error)
            raise outage from error  # 7. Give back.
        log.warning("a message of queue %s is held until it takes it: %s", copy.queue, outage)


async def _handled(handler: Handler, delivery: Delivery) -> tuple[object, list[Message]]:
    """Return the result of a handler, and the messages that can run on (``sas.engine.run_on``)."""
    if not delivery.is_first:
        return await handler(delivery), []
    with collecting() as messages:
        return await handler(delivery), messages


def delay_s(times: int, delay_max_s: float = DELAY_MAX_S) -> float:
    """Return the pause in seconds after a message was put back ``times`` times: it grows."""
    ceiling = min(FIRST_DELAY_S * 2.0 ** min(times, 30), delay_max_s)
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311  jitter, no secret


def dead_letter(queue: str, message: Message, reason: str, description: str) -> Message:
    """Return a message as Service Bus would dead-letter it from its queue to ``queue``.

    Only this system may send to that queue, so its source is believed. It counts its own failures.
    """
    first_id = message.properties.get(FIRST_ID, message.message_id)
    ours = {
        FIRST_ID: first_id,
        SOURCE: message.queue,
        DEAD_LETTER_REASON: reason,
        DEAD_LETTER_DESCRIPTION: description,
    }
    properties = bounded({**message.properties, **ours})
    return Message(
        queue,
        f"given-up/{digest_id(message.queue, first_id)}",
        message.body,
        properties={name: properties[name] for name in properties if name not in {FAILURES, BUG}},
    )


def bounded(properties: Mapping[str, object]) -> dict[str, str]:
    """Return those properties of a message that travel with its copies: see ``PROPERTIES``."""
    texts = {}
    for name, bytes_max in PROPERTIES.items():
        value = properties.get(name)
        # A forged text may hold half a character: it becomes a question mark.
        data = value.encode(errors="replace") if isinstance(value, str) else b""
        if name in _FOR_PEOPLE and len(data) > bytes_max:
            whole = data[: bytes_max - len("…".encode())].decode(errors="ignore")
            data = shortened(data.decode(), len(whole) + 1).encode()
        if 0 < len(data) <= bytes_max:
            texts[name] = data.decode()
    return texts


def why_given_up(properties: Mapping[str, object]) -> str:
    """Return why a queue gave a message up, by the properties of the dead letter.

    Whoever receives from a queue may have written them.
    """
    reason = properties.get(DEAD_LETTER_REASON)
    description = properties.get(DEAD_LETTER_DESCRIPTION)
    why = quoted(str(description), DESCRIPTION_LENGTH_MAX)
    if reason == FAILED:
        return f"its function did not handle it, and failed in the end with {why}"
    if reason == REFUSED:
        return f"its queue refuses it: {why}"
    if reason == "MaxDeliveryCountExceeded":
        return (
            "its function ended each time without an answer or an error: its process was killed, "
            "or ran out of time or memory, or all that it needs was away"
        )
    if reason == "TTLExpiredException":
        return "nobody received it before it expired"
    texts = [str(text) for text in (reason, description) if text]
    why = quoted(": ".join(texts), DESCRIPTION_LENGTH_MAX)
    return f"its queue gave it up: {why}" if reason else "its queue gave it up"


def _as_first_sent(delivery: Delivery) -> Delivery:
    properties = bounded(delivery.properties)
    return replace(
        delivery,
        properties=properties,
        message_id=properties.get(FIRST_ID) or delivery.message_id,
        # What Service Bus says goes first: an application could set the property on an order.
        source_queue=delivery.source_queue or properties.get(SOURCE),
    )


def _number(delivery: Delivery, name: str) -> int:
    text = delivery.properties.get(name)
    return int(text) if _is_text(text) and text.isdecimal() and len(text) < 9 else 0


def _order_ids(delivery: Delivery) -> Iterator[str]:
    """Yield the order that a message is about, if its body names one."""
    with suppress(InvalidIdError):
        yield check_order_id(salvage(delivery.body).order_id or "")


def _with(delivery: Delivery, properties: dict[str, str]) -> Delivery:
    return replace(delivery, properties={**delivery.properties, **properties})


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)
