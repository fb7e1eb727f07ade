"""Keeps messages that cannot be processed, and informs their sender and the operator.

1. **The application first.** It is notified of a refused order, whatever becomes of the message.
2. **Keep the message** on ``orders-rejected``: one from inside the system whole, of one from an
   application 64 KB at most. If that queue is full or disabled, a refused order is not kept if its
   application was notified; an incident counts it, and what is too large to wait. All other
   messages are put back and wait.
3. **Inform the operator.** Applications choose how many messages are refused. So those of one
   queue and one reason are one incident. A message from inside the system has an alert of its own.

A notification is never kept. What it tells follows from its order, which goes on. That its
application does not get it is the application's matter, so all of them are one incident of the
response queue, with their number. One that its queue refuses goes to ``dead-letters`` first, as one
that expires does: if this app has lost the right to send, that queue refuses it too, and the
message that led to it is put back. A crash may lose those that an instance counted in its last
minute, and a redelivery may count one twice.
"""

from __future__ import annotations

from datetime import timedelta

from sas.codec import external
from sas.codec.external import Rejection
from sas.codec.orders import Salvage
from sas.codec.strict import MalformedError, Reason, convert
from sas.domain.change import Incident
from sas.domain.ids import URGENT_SUFFIX, digest_id, key_time
from sas.domain.messages import AlertKind, Notice
from sas.domain.order import OrderState
from sas.domain.queues import SCOPE_LENGTH_MAX, ForbiddenReplyQueueError, scope_of
from sas.domain.texts import quoted
from sas.engine.external import ExternalSender
from sas.engine.hooks import Incidents
from sas.engine.messages import Addresses, alert, notification
from sas.engine.receiver import REFUSED, dead_letter
from sas.ports import (
    Clock,
    Message,
    MessageBus,
    QueueFullError,
    QueueRefusesError,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry import metrics
from sas.telemetry.tracing import logger

log = logger(__name__)
REFUSED_AGAIN = timedelta(hours=1)
"""The incident of a queue's refused messages is over if none was refused for this time."""
FULL_DELAY_MAX_S = 600.0
"""Longest pause in seconds of a message that waits for room where it is to be kept."""
GIVEN_UP_AGAIN = timedelta(days=1)
"""The incident of a response queue is over if no notification was given up for this time. Nobody
but its application may read the queue, so nothing shows earlier that it is read again.
"""
REFUSING_MAX = 100
"""Most refusing queues that an instance remembers: applications choose their names."""
_REASON = ", reason "
"""Stands in the scope of an incident between the queue of refused messages and their reason."""
_STATE_MISSED = (
    "The orders go on; the notifications are not kept. An application that sends an order again, "
    "unchanged and with a new submission_id, gets its present state."
)


class Rejections:
    """Puts messages aside on ``orders-rejected``. Notifications that are given up are counted."""

    def __init__(
        self,
        bus: MessageBus,
        clock: Clock,
        to: Addresses,
        *,
        external: ExternalSender,
        incidents: Incidents,
    ) -> None:
        self._bus = bus
        self._external = external
        self._clock = clock
        self._to = to
        self._incidents = incidents
        self._refusing: set[str] = set()

    async def order(
        self, rejection: Rejection, sender: Salvage, *, is_expendable: bool = False
    ) -> None:
        """Notify the application of a refused order, if it named a reply queue; put it aside.

        It is expendable (``put_aside``) also if its application was notified.

        Raises:
            BusUnavailableError, StoreUnavailableError: put the message back; every id stays the
                same.
        """
        notice = self._notification(rejection, sender)
        order_id = sender.order_id or _base_id(rejection)
        refusal: UndeliverableError | None = None
        if notice is not None:  # 1. The application first.
            try:
                await self._external.send([notice], order_id)
            except UndeliverableError as error:
                refusal = error
        is_notified = notice is not None and refusal is None
        await self.put_aside(rejection, is_expendable=is_expendable or is_notified)
        if refusal is not None:
            await self.undeliverable(refusal, order_id, sender.correlation_id)

    async def put_aside(self, rejection: Rejection, *, is_expendable: bool = False) -> None:
        """Keep a message on the rejected queue and inform the operator.

        An expendable message is only counted if the queue is full or disabled.

        Raises:
            BusUnavailableError, StoreUnavailableError: as ``order``.
        """
        is_kept = True
        try:
            await self.keep(rejection)  # 2. Keep the message.
        except QueueFullError as error:
            if not is_expendable:
                raise
            metrics.rejected(rejection.reason)
            log.warning("a refused message is not kept: %s", error)
            is_kept = False
        # 3. Inform the operator.
        if self._is_internal(rejection.source_queue):
            await self._alert(rejection)
        else:
            await self._report(rejection, is_kept=is_kept)

    def _is_internal(self, queue: str) -> bool:
        """Return whether no application sends to a queue.

        What lies on ``dead-letters`` may be an application's.
        """
        queues, ordinary = self._to.queues, queue.removesuffix(URGENT_SUFFIX)
        return ordinary == queues.scheduler or ordinary.startswith(queues.agent_prefix)

    async def _report(self, rejection: Rejection, *, is_kept: bool) -> None:
        """Report the incident of the refused messages of a queue."""
        queue, now = rejection.source_queue, self._clock.now()
        last = f"The last one: {quoted(rejection.description)}."
        if is_kept:
            scope = f"{scope_of(queue)}{_REASON}{rejection.reason}"[:SCOPE_LENGTH_MAX]
            text = (
                f"Messages of queue {queue} are put on {self._to.queues.rejected} "
                f"({rejection.reason}). Read them there, and inform their sender or repair the "
                f"cause. {last}"
            )
        else:
            scope = scope_of(self._to.queues.rejected)
            text = (
                f"Queue {self._to.queues.rejected} is full or disabled: refused messages are not "
                "kept, but the applications of refused orders are notified. Read the queue and "
                f"remove what you do not need, or enable it. {last}"
            )
        incident = Incident(
            kind=AlertKind.REJECTED,
            scope=scope,
            text=text,
            since=now,
            until=now + REFUSED_AGAIN,
        )
        await self._incidents.report(incident, rejection.order_id or _kept_id(rejection))

    async def _alert(self, rejection: Rejection) -> None:
        """Alert the operator of one message from inside the system."""
        base, is_letter = _base_id(rejection), rejection.reason == Reason.DEAD_LETTERED
        text = (
            f"A message of queue {rejection.source_queue} was put on {self._to.queues.rejected}: "
            f"{quoted(rejection.description)}"
        )
        body = external.AlertMessage(
            kind=(AlertKind.DEAD_LETTERED if is_letter else AlertKind.REJECTED).value,
            at=key_time(self._clock.now()),
            text=text,
            id=f"{base}/alert",
            order_id=rejection.order_id,
            fingerprint=f"{rejection.source_queue}/{rejection.reason}",
        )
        try:
            await self._external.send([alert(body, self._to)], rejection.order_id or base)
        except UndeliverableError as refused:  # the message itself is kept
            log.error("no queue takes the alert %s: %s", body.id, refused)  # noqa: TRY400  a traceback adds nothing

    async def keep(self, rejection: Rejection) -> None:
        """Keep a message on the rejected queue, without an alert: whole, or as much as fits."""
        base = _base_id(rejection)
        is_internal = self._is_internal(rejection.source_queue)
        bytes_max = external.WHOLE_BYTES_MAX if is_internal else external.KEPT_BYTES_MAX
        message = external.rejected_message(
            rejection, at=self._clock.now(), own_id=_kept_id(rejection), bytes_max=bytes_max
        )
        await self._send(self._kept(message, message.id, external.encode(message)))
        metrics.rejected(rejection.reason)
        # The description may quote the sender's text, so it is kept with the message only.
        log.warning("put aside a message: %s; kept as %s", metrics.code(rejection.reason), base)

    async def keep_on(self, rejection: Rejection) -> None:
        """Put a message that expired on the rejected queue back there, unchanged.

        Wrapping it again would double its size each time. It needs a new id, or duplicate detection
        might drop it. A redelivery makes the same id.
        """
        try:
            part = convert(rejection.body, external.RejectedMessage)
        except MalformedError:
            await self.keep(rejection)
            return
        again = digest_id(rejection.message_id)
        await self._send(self._kept(part, f"rejected/again/{again}", rejection.body))

    async def _send(self, message: Message) -> None:
        """Send to a queue of this system. There is no other place for what it refuses.

        Raises:
            QueueRefusesError: put the message back. A right may be missing for a while.
        """
        try:
            await self._bus.send([message])
        except QueueFullError as error:
            error.delay_max_s = FULL_DELAY_MAX_S
            raise
        except UndeliverableError as refused:
            raise QueueRefusesError(refused) from refused

    def _kept(self, part: external.RejectedMessage, own_id: str, body: bytes) -> Message:
        return Message(
            self._to.queues.rejected,
            own_id,
            body,
            correlation_id=part.correlation_id,
            properties={"sas_reason": part.reason, "sas_source_queue": part.source_queue},
        )

    async def undeliverable(
        self, refused: UndeliverableError, order_id: str, correlation_id: str | None
    ) -> None:
        """Give up a notification that its queue refuses, or put another message aside.

        It counts as sent and blocks no order.

        Raises:
            BusUnavailableError, StoreUnavailableError: put the message that led to it back.
        """
        message = refused.undelivered
        if message.queue == self._to.queues.rejected:
            raise QueueRefusesError(refused) from refused  # as in _send
        if message.queue == self._to.queues.alerts:
            log.error("no queue takes the alert %s: %s", message.message_id, refused)
            return
        if self._to.queues.is_response(message.queue):
            if len(self._refusing) < REFUSING_MAX:
                self._refusing.add(message.queue)
            letter = dead_letter(self._to.queues.dead_letters, message, REFUSED, str(refused))
            await self._send(letter)
            return
        rejection = Rejection(
            body=message.body,
            reason=Reason.UNDELIVERABLE,
            description=f"queue {message.queue} does not take it: {refused}",
            source_queue=message.queue,
            message_id=message.message_id,
            order_id=order_id,
            correlation_id=correlation_id,
        )
        await self.put_aside(rejection)

    async def give_up_notification(self, queue: str, order_id: str, why: str) -> None:
        """Count a notification that its application does not get: one incident for each queue.

        ``why`` goes on "Queue “NAME” ", and says what to do.

        Raises:
            BusUnavailableError, StoreUnavailableError: it was not counted; put the message back.
        """
        now = self._clock.now()
        incident = Incident(
            kind=AlertKind.UNDELIVERABLE,
            scope=scope_of(queue),
            text=f"Queue {quoted(queue)} {why}. {_STATE_MISSED}",
            since=now,
            until=now + GIVEN_UP_AGAIN,
        )
        await self._incidents.report(incident, order_id)

    async def delivered(self, queue: str) -> None:
        """End the incident of a response queue that refused this instance, and now took a message.

        If that fails, the next message that it takes does it.
        """
        if queue not in self._refusing:
            return
        try:
            await self._incidents.end(AlertKind.UNDELIVERABLE, scope_of(queue))
        except UnavailableError as error:
            log.warning("the incident of queue %s ends later: %s", queue, error)
        else:
            self._refusing.discard(queue)

    def _notification(self, rejection: Rejection, sender: Salvage) -> Message | None:
        """Return what the application of a refused order is told; None if it cannot be told."""
        try:
            reply_queue = self._to.queues.check_reply_queue(
                sender.reply_queue or "", rejection.source_queue
            )
        except ForbiddenReplyQueueError:
            return None
        data = external.NotificationData(
            order_id=sender.order_id or "",
            state=OrderState.REJECTED.value,
            correlation_id=sender.correlation_id,
            error=external.Error(rejection.reason, rejection.description),
        )
        return notification(
            Notice.REJECTED,
            data,
            own_id=f"{_base_id(rejection)}/notification",
            reply_queue=reply_queue,
            at=self._clock.now(),
            to=self._to,
        )


def is_of_refused(kind: AlertKind, scope: str) -> bool:
    """Return whether an incident is about messages that lie on the rejected queue."""
    return kind is AlertKind.REJECTED and _REASON in scope


def _kept_id(rejection: Rejection) -> str:
    return f"{_base_id(rejection)}/1"


def _base_id(rejection: Rejection) -> str:
    """Return an id that is the same for every redelivery of one message."""
    parts = (rejection.source_queue, rejection.message_id, rejection.reason)
    return f"rejected/{digest_id(rejection.body, *parts)}"
