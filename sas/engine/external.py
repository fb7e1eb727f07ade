"""External messages: alerts to operators, notifications to applications. They leave the system.

Other people own their queues. Such a queue may be full or disabled for days. That must block no
order, and still its reader must get each message. So a message is sent like this:

1. **Send it**, unless its queue refused a message within the last two seconds. During that pause
   this instance does not try, because each try may last ten seconds.
2. **Hold it**, if the queue does not take it now. The message is written to the state store. Then
   it counts as sent: the actor goes on, and its trigger message is completed. From then on only
   the supervisor sends it (``sas.engine.held``).
3. **Never.** If the queue will never take a message (it does not exist, or the message is too
   large), the caller is told with ``UndeliverableError`` (``Rejections.undeliverable``).

Two other senders have messages held here: a callback by HTTP, because HTTP has no redelivery, and
the receiver, for a copy that no queue takes (``sas.engine.receiver``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sas.ports import BusUnavailableError, Clock, HeldMessage, Message, MessageBus, StateStore
from sas.telemetry.tracing import carried, logger

log = logger(__name__)
QUEUE_PAUSE = timedelta(seconds=2)
"""Pause before retrying a queue that refused a message."""


class ExternalSender:
    """Sends external messages, or has them held. The numbers are those of the module's text.

    ``_paused_until`` is this instance's own: for each queue that refused a message, when to try it
    again.
    """

    def __init__(self, store: StateStore, bus: MessageBus, clock: Clock) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._paused_until: dict[str, datetime] = {}

    async def send(self, messages: Sequence[Message], order_id: str) -> bool:
        """Send messages to one queue; False if they are held, because it takes none now.

        ``order_id`` names the order that they are about, or another subject.

        Raises:
            UndeliverableError: the queue will never take the first message.
            StoreUnavailableError: a message could be neither sent nor held.
        """
        queue, now = messages[0].queue, self._clock.now()
        # 1. Send it.
        if self._paused_until.get(queue, now) <= now:
            try:
                await self._bus.send(messages)
            except BusUnavailableError as error:
                # Applications choose the names of their queues: old ones are forgotten.
                paused = {name: at for name, at in self._paused_until.items() if at > now}
                self._paused_until = {**paused, queue: now + QUEUE_PAUSE}
                log.warning("messages about %s are held: %s", order_id, error)
            else:
                self._paused_until.pop(queue, None)
                return True
        await self.hold(messages, order_id)  # 2. Hold it.
        return False

    async def hold(self, messages: Sequence[Message], order_id: str) -> None:
        """Have the supervisor send messages to one queue later; raises StoreUnavailableError."""
        now = self._clock.now()
        for message in messages:
            traced = replace(message, properties={**message.properties, **carried()})
            await self._store.hold(HeldMessage(message=traced, since=now, order_id=order_id))
