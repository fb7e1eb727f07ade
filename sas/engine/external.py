"""Messages that leave the system: alerts to operators, notifications to applications.

Other people own their queues. A queue that is full or disabled for days must block no order, and
its reader must get each message once. So a message that its queue does not take now is held in the
store. From then on only the supervisor sends it.

A callback by HTTP is held in the same way, because HTTP has no redelivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sas.domain.ids import InvalidIdError, check_order_id, digest_id
from sas.ports import BusUnavailableError, Clock, Message, MessageBus, StateStore
from sas.telemetry.tracing import carried, logger

log = logger(__name__)
DEFERRED_AGAIN_AFTER = timedelta(seconds=30)
"""Pause before a message that is held is sent again."""
QUEUE_PAUSE = timedelta(seconds=2)
"""Pause before retrying a queue that refused a message."""


class ExternalSender:
    """Sends messages that leave the system, or holds them."""

    def __init__(self, store: StateStore, bus: MessageBus, clock: Clock) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._paused_until: dict[str, datetime] = {}

    async def send(
        self, messages: Sequence[Message], order_id: str, deferred_since: datetime | None = None
    ) -> None:
        """Send messages to one queue. Those that it does not take now are held.

        ``order_id`` names the order that they are about, or another subject. ``deferred_since`` is
        the time in the due row of a message that is deferred already.

        Raises:
            UndeliverableError: the queue will never take the first message.
            StoreUnavailableError: a message could be neither sent nor held.
        """
        queue, now = messages[0].queue, self._clock.now()
        if self._paused_until.get(queue, now) <= now:
            try:
                await self._bus.send(messages)
            except BusUnavailableError as away:
                self._paused_until[queue] = now + QUEUE_PAUSE
                log.warning("messages about %s are held: %s", order_id, away)
            else:
                self._paused_until.pop(queue, None)
                return
        await self.defer(messages, order_id, deferred_since or now)

    async def defer(self, messages: Sequence[Message], order_id: str, since: datetime) -> None:
        """Have the supervisor send messages to one queue later; raises StoreUnavailableError."""
        # Several supervisors may send the same message: all of them write the same new row.
        at = _next(since, self._clock.now())
        for message in messages:
            traced = replace(message, properties={**message.properties, **carried()})
            await self._store.defer(_key(order_id), traced, at)


def _next(since: datetime, now: datetime) -> datetime:
    """Return the first time after ``now`` at which a message is sent again."""
    return since + DEFERRED_AGAIN_AFTER * max((now - since) // DEFERRED_AGAIN_AFTER + 1, 1)


def _key(order_id: str) -> str:
    """Return an order id, or for any other text an id that can be part of a key."""
    try:
        return check_order_id(order_id)
    except InvalidIdError:
        return digest_id(order_id)
