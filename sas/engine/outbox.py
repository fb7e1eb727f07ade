"""Sends the messages of journal rows: internal ones, then alerts and notifications.

A message to send is never only in memory. The journal row is committed before. If an internal
message cannot be sent, the trigger message is put back, or an out row is found by the next sweep.
An alert or a notification that cannot be sent is held (``sas.engine.external``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from sas.domain.change import DeferredDue, OutDue
from sas.domain.content import PayloadRef
from sas.domain.messages import JournalEntry, Notify
from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.engine.delivery import EXTERNAL_SENT
from sas.engine.external import ExternalSender
from sas.engine.hooks import ContentStore
from sas.engine.messages import Addresses, compose, results_fit, results_to_notify
from sas.engine.receiver import is_copy
from sas.engine.rejections import Rejections
from sas.ports import (
    BusUnavailableError,
    LostContentError,
    Message,
    MessageBus,
    QueueRefusesError,
    StateStore,
    UndeliverableError,
)
from sas.telemetry import tracing
from sas.telemetry.tracing import logger

log = logger(__name__)


class Outbox:
    """Sends the messages of journal rows."""

    def __init__(
        self,
        store: StateStore,
        bus: MessageBus,
        to: Addresses,
        external: ExternalSender,
        rejections: Rejections,
        content: ContentStore,
    ) -> None:
        self._store = store
        self._bus = bus
        self._to = to
        self._external = external
        self._rejections = rejections
        self._content = content

    async def send(
        self,
        order: Order,
        entry: JournalEntry,
        workflow: Workflow | None,
        out: OutDue | None = None,
        *,
        external: bool = True,
    ) -> None:
        """Send the messages of a journal row. Its out row, if it has one, is removed afterwards.

        If an internal message cannot be sent, alerts and notifications are still sent: their
        readers need not wait for an internal queue. ``external`` is False if they were sent before.
        With an out row they wait, because that row sends all of them again.

        Raises:
            BusUnavailableError, StoreUnavailableError: an internal message could not be sent, or
                a result could not be read. Put the trigger message back.
        """
        fetched = await self._fetched(order, entry)
        internals, others = compose(order, entry, workflow=workflow, to=self._to, fetched=fetched)
        failed: BusUnavailableError | None = None
        try:
            if internals:
                await self._bus.send(internals)
        except UndeliverableError as refused:
            failed = QueueRefusesError(refused)
        except BusUnavailableError as away:
            failed = away
        if failed is not None and out is not None:
            raise failed
        if external:
            await self.send_external(others, order)
        if failed is not None:
            failed.put_back_with[EXTERNAL_SENT] = "yes"
            raise failed
        if out is not None:
            await self._store.remove_due(out)

    async def send_external(self, messages: list[Message], order: Order) -> None:
        """Send or hold messages that leave the system; raises StoreUnavailableError."""
        for _, group in groupby(messages, key=lambda message: message.queue):
            left = list(group)
            while left:
                try:
                    await self._external.send(left, order.order_id)
                except UndeliverableError as refused:
                    left = await self._put_aside(refused, left, order)
                else:
                    break

    async def resend(self, due: DeferredDue) -> None:
        """Send a message that is held, or hold it again; raises StoreUnavailableError."""
        message = await self._store.deferred(due)
        if message is not None:
            trace = message.properties.get("traceparent")
            with tracing.of_order("supervisor send", trace, order_id=due.order_id):
                await self._send_deferred(message, due)
        await self._store.remove_due(due)

    async def _send_deferred(self, message: Message, due: DeferredDue) -> None:
        try:
            await self._external.send([message], due.order_id, due.at)
        except UndeliverableError as refused:
            if is_copy(message):  # the receiver waits for the right to send, and so does its copy
                log.warning("a message of queue %s is still held: %s", message.queue, refused)
                await self._external.defer([message], due.order_id, due.at)
                return
            about = (due.order_id, message.correlation_id)
            await self._rejections.undeliverable(refused, *about)

    async def _put_aside(
        self, refused: UndeliverableError, messages: list[Message], order: Order
    ) -> list[Message]:
        """Put an undeliverable message aside; return the others.

        Messages before it may be sent twice, with the same ids: that is harmless.
        """
        about = (order.order_id, order.details.correlation_id)
        await self._rejections.undeliverable(refused, *about)
        return [message for message in messages if message is not refused.undelivered]

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
