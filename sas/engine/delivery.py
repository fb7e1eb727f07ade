"""One message as a function receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sas.codec.outward import Rejection
from sas.codec.strict import MalformedError

OUTSIDE_SENT = "sas_outside_sent"
"""Property of a message that was put back after its alerts and notifications were sent."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, and its properties in its queue.

    ``urgent`` says whether ``queue`` is an urgent lane. ``properties`` are the application
    properties: they carry the trace. ``count`` is the number of this delivery, from 1; None if the
    host does not tell. ``enqueued_at`` is when the message became visible in its queue.
    ``source_queue`` is the queue that a dead letter comes from, if known. ``ends_at`` is when the
    function must end: nothing inside it waits or retries beyond that.

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

    @property
    def outside_sent(self) -> bool:
        """Whether the alerts and notifications of this message's transition were sent before."""
        return OUTSIDE_SENT in self.properties

    def rejected(
        self,
        wrong: MalformedError,
        order_id: str | None = None,
        correlation_id: str | None = None,
    ) -> Rejection:
        """Return this message as it is kept on the rejected queue."""
        return Rejection(
            body=self.body,
            reason=wrong.reason,
            description=wrong.description,
            source_queue=self.queue,
            message_id=self.message_id,
            order_id=order_id,
            correlation_id=correlation_id,
        )
