"""One message as a function receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sas.codec.external import Rejection
from sas.codec.strict import MalformedError
from sas.domain.ids import key_time, own_or_digest, parse_key_time
from sas.domain.order import CLOCK_SKEW
from sas.ports import UnavailableError

LEFT_SINCE = "sas_left_since"
"""Property: when the message was first left to an instance of another version.

``sas show`` reads it.
"""
BUG = "sas_failing_check"
"""Property of a message that waits for a mended version: the error and its line.

``sas show`` reads it.
"""
BUG_LENGTH_MAX = 250
"""Longest explanation of an error in ``BUG``, with its line at the end."""
DEPLOY_WAIT = timedelta(minutes=1)
"""How long an order or a command whose workflow this instance lacks is left to other instances."""

ORDER_ID = "sas_order_id"
"""Property of a notification: its order."""
FIRST_ID = "sas_first_id"
"""Property: the MessageId that its sender gave a message that was put back."""
EXTERNAL_SENT = "sas_external_sent"
"""Property of a message that was put back after its alerts and notifications were sent."""
AGAIN = "sas_again"
"""Property of a message that somebody may have handled before, or may still hold: it was put back,
was redriven, or was sent by a redelivery.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message, and its properties in its queue.

    ``urgent`` says whether ``queue`` is an urgent lane. ``properties`` are the application
    properties: they carry the trace. ``count`` is the number of this delivery, from 1; None if the
    host does not tell. ``enqueued_at`` is when the message became visible in its queue.
    ``source_queue`` is the queue that a dead letter comes from, if known. ``ends_at`` is when the
    function must end: nothing inside it waits or retries beyond that. ``is_handed_over``: it took
    no queue (``sas.engine.run_on``).

    Only ``body`` is trusted. The Functions host lets a JSON body override the other members.
    ``dead_letters`` believes ``source_queue`` after it has looked for that in the body.
    """

    body: bytes
    message_id: str
    queue: str
    urgent: bool = False
    properties: Mapping[str, object] = field(default_factory=dict)
    count: int | None = None
    enqueued_at: datetime | None = None
    source_queue: str | None = None
    ends_at: datetime | None = None
    is_handed_over: bool = False

    def __post_init__(self) -> None:
        """Make ``message_id`` and ``enqueued_at`` usable.

        A message may come without an id, or with one that a body forged. azure-functions may give
        the time in UTC without a time zone.
        """
        own_id = own_or_digest(self.message_id, self.body)
        object.__setattr__(self, "message_id", own_id)
        at = self.enqueued_at
        if at is not None and at.tzinfo is None:
            object.__setattr__(self, "enqueued_at", at.replace(tzinfo=UTC))

    @property
    def is_first(self) -> bool:
        """Whether nobody handled the message before: see ``AGAIN``."""
        return (self.count or 1) == 1 and AGAIN not in self.properties

    @property
    def external_sent(self) -> bool:
        """Whether the alerts and notifications of this message's transition were sent before."""
        return EXTERNAL_SENT in self.properties

    def on_bus(self, moment: datetime, now: datetime) -> datetime:
        """Return a moment of this instance's clock by the clock of the bus, as far as it is known.

        The bus is ahead if it enqueued the message in this instance's future. Without this, a copy
        that a slow clock schedules would come back at once, again and again.
        """
        ahead = self.enqueued_at - now if self.enqueued_at is not None else timedelta(0)
        return moment + min(max(ahead, timedelta(0)), CLOCK_SKEW)

    def leave_to_others(self, error: Exception, now: datetime, deploy_wait: timedelta) -> None:
        """Leave the message to an instance that has its workflow; return after ``deploy_wait``.

        Raises:
            UnavailableError: put the message back. Such an instance may run beside this one.
        """
        try:
            since = min(parse_key_time(str(self.properties.get(LEFT_SINCE))), now)
        except ValueError:
            since = now
        if now - since < deploy_wait:
            put_back = UnavailableError(f"{error}. An instance that has it takes the message")
            put_back.put_back_with = {LEFT_SINCE: key_time(since)}
            put_back.delay_max_s = deploy_wait.total_seconds() / 6
            raise put_back

    def rejected(
        self,
        error: MalformedError,
        order_id: str | None = None,
        correlation_id: str | None = None,
    ) -> Rejection:
        """Return this message as it is kept on the rejected queue."""
        return Rejection(
            body=self.body,
            reason=error.reason,
            description=error.description,
            source_queue=self.queue,
            message_id=self.message_id,
            order_id=order_id,
            correlation_id=correlation_id,
        )
