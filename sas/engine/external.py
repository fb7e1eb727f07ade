"""External messages: alerts to operators, notifications to applications. They leave the system.

Other people own their queues. Such a queue may be full or disabled for days. That must block no
order, and still its reader must get each message. So a message is sent like this:

1. **Send it**, unless its queue refused a message within the last two seconds. During that pause
   this instance does not try, because each try may last ten seconds.
2. **Defer it**, if the queue does not take it now. The message is written to the state store with a
   due row (``DeferredDue``). When that is written, the message counts as sent: the actor goes on,
   and its trigger message is completed.
3. **Send it later.** From then on only the supervisor sends it: every 30 s a sweep finds the due
   row. If the queue still does not take the message, it is deferred again with a later due row. The
   old row is removed after that. So at every moment there is a due row, or the message was sent.
4. **Never.** If the queue will never take a message (it does not exist, or the message is too
   large), the caller is told with ``UndeliverableError`` (``Rejections.undeliverable``).

A crash between the send and the removal of the due row sends the message once more, with the same
id. Several supervisors that defer one message write the same row, because the time of the next row
follows from the time of the last one.

Two other senders defer messages here: a callback by HTTP, because HTTP has no redelivery, and the
receiver, for a copy that no queue takes (``sas.engine.receiver``).
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
"""Pause before a deferred message is sent again."""
QUEUE_PAUSE = timedelta(seconds=2)
"""Pause before retrying a queue that refused a message."""


class ExternalSender:
    """Sends external messages, or defers them. The numbers are those of the module's text.

    ``_paused_until`` is this instance's own: for each queue that refused a message, when to try it
    again.
    """

    def __init__(self, store: StateStore, bus: MessageBus, clock: Clock) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._paused_until: dict[str, datetime] = {}

    async def send(
        self, messages: Sequence[Message], order_id: str, deferred_since: datetime | None = None
    ) -> bool:
        """Send messages to one queue; False if they were deferred, because it takes none now.

        ``order_id`` names the order that they are about, or another subject. ``deferred_since`` is
        the time in the due row of a message that is deferred already.

        Raises:
            UndeliverableError: the queue will never take the first message.
            StoreUnavailableError: a message could be neither sent nor deferred.
        """
        queue, now = messages[0].queue, self._clock.now()
        # 1. Send it.
        if self._paused_until.get(queue, now) <= now:
            try:
                await self._bus.send(messages)
            except BusUnavailableError as error:
                self._paused_until[queue] = now + QUEUE_PAUSE
                log.warning("messages about %s are deferred: %s", order_id, error)
            else:
                self._paused_until.pop(queue, None)
                return True
        await self.defer(messages, order_id, deferred_since or now)  # 2. Defer it.
        return False

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
