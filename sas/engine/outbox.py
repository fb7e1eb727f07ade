"""Sends the messages of journal rows: internal ones first, then alerts and notifications.

A message to send is never only in memory. The journal row is committed before. If sending fails,
the trigger message is redelivered, or an out row is found by the next sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import groupby

from sas.domain.change import OutDue
from sas.domain.content import PayloadRef
from sas.domain.messages import JournalEntry, Notify
from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.engine.hooks import ContentStore
from sas.engine.messages import Addresses, compose, results_fit, results_to_notify
from sas.engine.rejections import Rejections
from sas.ports import (
    BusUnavailableError,
    Clock,
    LostContentError,
    Message,
    MessageBus,
    StateStore,
    UndeliverableError,
)
from sas.telemetry.tracing import logger

log = logger(__name__)
OUT_AGAIN_AFTER = timedelta(seconds=30)
"""Pause before the messages of an out row are sent again."""
QUEUE_PAUSE = timedelta(seconds=2)
"""Pause before retrying a response queue that refused a message."""


class Outbox:
    """Sends the messages of journal rows."""

    def __init__(
        self,
        store: StateStore,
        bus: MessageBus,
        clock: Clock,
        to: Addresses,
        rejections: Rejections,
        content: ContentStore,
    ) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._to = to
        self._rejections = rejections
        self._content = content
        self._paused_until: dict[str, datetime] = {}

    async def send(
        self,
        order: Order,
        entry: JournalEntry,
        workflow: Workflow | None,
        out: OutDue | None = None,
    ) -> None:
        """Send the messages of a journal row. Its out row, if it has one, is removed afterwards.

        A notification that fails transiently leaves an out row. One that can never be delivered
        goes to the rejected queue with an alert, and counts as sent.

        Raises:
            BusUnavailableError, StoreUnavailableError: an internal message could not be sent, or
                a result could not be read. Redeliver the trigger message.
        """
        fetched = await self._fetched(order, entry)
        internals, others = compose(order, entry, workflow, self._to, fetched)
        await self.send_all(internals, order)
        failed = await self._send_outside(others, order)
        if failed is not None:
            log.warning("order %s: notifications wait in an out row: %s", order.order_id, failed)
            # A later row, because a row that always fails must not stay the first of each sweep.
            again = OutDue(self._clock.now() + OUT_AGAIN_AFTER, order.order_id, entry.seq)
            await self._store.add_out(again)
            if out in {None, again}:
                return
        if out is not None:
            await self._store.remove_out(out)

    async def send_all(self, messages: list[Message], order: Order) -> None:
        """Send in order. An undeliverable message is put aside with an alert; the rest is sent."""
        left = messages
        while left:
            try:
                await self._bus.send(left)
            except UndeliverableError as refused:
                await self._rejections.undeliverable(refused, order)
                # Messages before it may be sent twice, with the same ids: that is harmless.
                left = [message for message in left if message is not refused.undelivered]
            else:
                return

    async def _send_outside(
        self, messages: list[Message], order: Order
    ) -> BusUnavailableError | None:
        """Send the messages that leave the system, queue by queue, and return the last failure.

        One full queue must neither block the others nor slow down every order.
        """
        failed: BusUnavailableError | None = None
        for queue, group in groupby(messages, key=lambda message: message.queue):
            now = self._clock.now()
            if self._paused_until.get(queue, now) > now:
                failed = BusUnavailableError(f"queue {queue} refused a message a moment ago")
                continue
            try:
                await self.send_all(list(group), order)
            except BusUnavailableError as refused:
                failed = refused
                self._paused_until[queue] = self._clock.now() + QUEUE_PAUSE
            else:
                self._paused_until.pop(queue, None)
        return failed

    async def _fetched(self, order: Order, entry: JournalEntry) -> Mapping[PayloadRef, str]:
        """Return the text of the offloaded results that the notifications of a row carry."""
        found: dict[PayloadRef, str] = {}
        for item in entry.messages:
            results = results_to_notify(order, item) if isinstance(item, Notify) else {}
            refs = [result for result in results.values() if isinstance(result, PayloadRef)]
            for ref in refs if results_fit(results) else ():
                try:
                    found[ref] = await self._content.fetch(order.order_id, ref)
                except LostContentError as lost:  # the notification leaves it out
                    log.error("%s", lost)  # noqa: TRY400  a traceback adds nothing
        return found
