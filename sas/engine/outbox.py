"""Sending what the journal remembers: internal messages first, then notifications.

Nothing to be sent is ever only in memory: whoever calls this has committed the journal
row before, and a trigger message (or an out row) that brings it here again if it fails.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import groupby

from sas.domain.change import OutDue
from sas.domain.messages import JournalEntry
from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.engine.messages import Addresses, compose
from sas.engine.rejections import Rejections
from sas.features.claim_check import fetch_for_notifications
from sas.ports import (
    BusUnavailableError,
    Clock,
    Message,
    MessageBus,
    StateStore,
    UndeliverableError,
)
from sas.telemetry.tracing import logger

log = logger(__name__)


OUT_AGAIN_AFTER = timedelta(seconds=30)


LEFT_ALONE_FOR = timedelta(seconds=2)
"""How long nothing is sent to a queue outside that did not take a message."""


class Outbox:
    """Sends the messages of journal rows."""

    def __init__(
        self,
        store: StateStore,
        bus: MessageBus,
        clock: Clock,
        to: Addresses,
        rejections: Rejections,
    ) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._to = to
        self._rejections = rejections
        self._away: dict[str, datetime] = {}

    async def send(
        self,
        order: Order,
        entry: JournalEntry,
        workflow: Workflow | None,
        out: OutDue | None = None,
    ) -> None:
        """Send what a journal row remembers; its out row, where there is one, goes afterwards.

        A notification that fails transiently leaves an out row (or moves it on); one that can never
        be delivered goes to the rejected queue with an alert and counts as sent.

        Raises:
            BusUnavailableError, StoreUnavailableError: an internal message could not be sent, or
            what to tell not be read; let the trigger come again.
        """
        apart = await fetch_for_notifications(self._store, order, entry)
        within, outside = compose(order, entry, workflow, self._to, apart)
        await self.send_all(within, order)
        failed = await self._send_outside(outside, order)
        if failed is not None:
            log.warning("order %s: notifications wait in an out row: %s", order.order_id, failed)
            # Behind what is due by then: rows that never go would stand before all others for ever.
            again = OutDue(self._clock.now() + OUT_AGAIN_AFTER, order.order_id, entry.seq)
            await self._store.add_out(again)
            if out in {None, again}:
                return
        if out is not None:
            await self._store.remove_out(out)

    async def _send_outside(
        self, messages: list[Message], order: Order
    ) -> BusUnavailableError | None:
        """Send what leaves the system, each queue's apart: one that is full keeps nothing from the
        others, nor makes every order wait for it anew. Return what failed, if anything did.
        """
        failed: BusUnavailableError | None = None
        for queue, group in groupby(messages, key=lambda message: message.queue):
            now = self._clock.now()
            if self._away.get(queue, now) > now:
                failed = BusUnavailableError(f"queue {queue} did not take a message just now")
                continue
            try:
                await self.send_all(list(group), order)
            except BusUnavailableError as refused:
                failed = refused
                self._away[queue] = self._clock.now() + LEFT_ALONE_FOR
            else:
                self._away.pop(queue, None)
        return failed

    async def send_all(self, messages: list[Message], order: Order) -> None:
        """Send in order; what is undeliverable is put aside with an alert, the rest goes on."""
        left = messages
        while left:
            try:
                await self._bus.send(left)
            except UndeliverableError as refused:
                await self._rejections.undeliverable(refused, order)
                # What stood before it was sent, or goes again under its own id: harmless.
                left = [message for message in left if message is not refused.undelivered]
            else:
                return
