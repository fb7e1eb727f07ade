"""One message as a function receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sas.codec.outward import Rejection
from sas.codec.strict import MalformedError


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, and what its queue says of it.

    ``queue`` is the queue that it came by, ``urgent`` whether that is the lane of urgent orders.
    ``properties`` are its application properties: they carry its trace. ``count`` is the number
    of this delivery, from 1; None where the host does not say. ``enqueued_at`` is when it became
    visible in its queue. A dead letter names its ``source_queue``, where that is known.

    Only ``body`` is trusted. The host lets a JSON body override the rest.
    """

    body: bytes
    message_id: str
    queue: str
    urgent: bool = False
    properties: Mapping[str, object] = field(default_factory=dict)
    count: int | None = None
    enqueued_at: datetime | None = None
    source_queue: str | None = None

    def rejected(
        self,
        wrong: MalformedError,
        order_id: str | None = None,
        correlation_id: str | None = None,
    ) -> Rejection:
        """Return what is kept of this message, because it cannot be processed."""
        return Rejection(
            body=self.body,
            reason=wrong.reason,
            description=wrong.description,
            source_queue=self.queue,
            message_id=self.message_id,
            order_id=order_id,
            correlation_id=correlation_id,
        )
