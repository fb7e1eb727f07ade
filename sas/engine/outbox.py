"""Outbox: sends the messages that journal rows record. Every message is recorded before it is sent.

A transition commits its messages in the same transaction as the order: as descriptors in its
journal row (``sas.engine.transition``). The outbox is what happens next.

1. **Compose.** The messages are made from the journal row and the order. This is a pure function of
   stored rows, so a second composition gives the same messages with the same ids. Requests are the
   exception: one whose step has a newer epoch by then is left out, because its reply would not
   count.
2. **Send the internal messages**: wakes to schedulers, and requests to agents. Their queues belong
   to this system. If one of them does not take a message, nothing else makes the order go on. So
   the error is raised in the end (5).
3. **Send the external messages**: alerts to operators, notifications to applications. Other people
   own those queues, so an order never waits for one. A message that its queue does not take now is
   held (``sas.engine.external``). A notification that its queue will never take is given up,
   and counted in an incident of that queue. Either way it counts as sent. The external messages
   are sent even if 2 failed: their readers need not wait for an internal queue. They are not sent
   if an earlier delivery sent them (``external`` is False).
4. **Raise the error of 2.** The trigger message is put back, with the property ``EXTERNAL_SENT``,
   so that the next delivery does not repeat 3. A transition with an out row raises before 3,
   because the next sweep sends all of its messages again.
5. **Remove the out row**, if the transition has one. From then on nothing is left to send.

Who sends, and who repeats it if the sender dies:

* The handler that committed sends at once. Its trigger message is completed only after the sends.
  If the handler dies before that, Service Bus redelivers the message. The redelivery finds the
  cause recorded, and sends the messages of that journal row again.
* The supervisor's trigger is a timer, which nobody redelivers. So its transitions write an out row
  as well (``OutDue``). The row is removed at 4, and a later sweep sends what an out row names. With
  an out row, step 3 waits until 2 succeeds: that row repeats all of it, and nothing is lost.
* The supervisor alone sends a held message, and removes it afterwards (``sas.engine.held``).

So each receiver gets each message **at least once**. It acts **once**, because a repeated message
has the same id. A scheduler finds the cause row of that id. An agent's service recognises the
idempotency key. The queues ``operator-alerts`` and ``responses-...`` drop a repeated MessageId for
a while, and after that a reader recognises the ``id`` in the body.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sas.domain.change import OutDue
from sas.domain.content import PayloadRef
from sas.domain.messages import JournalEntry, Notify
from sas.domain.order import Order
from sas.domain.workflow import Workflow
from sas.engine.delivery import EXTERNAL_SENT
from sas.engine.external import ExternalSender
from sas.engine.hooks import ContentStore
from sas.engine.messages import Addresses, compose, results_fit, results_to_notify
from sas.engine.rejections import Rejections
from sas.engine.run_on import RunOn
from sas.ports import (
    BusUnavailableError,
    LostContentError,
    Message,
    QueueRefusesError,
    StateStore,
    UndeliverableError,
)
from sas.telemetry.tracing import logger

log = logger(__name__)


class Outbox:
    """Sends the messages of journal rows. The numbers are those of the module's text."""

    def __init__(
        self,
        store: StateStore,
        run_on: RunOn,
        to: Addresses,
        external: ExternalSender,
        rejections: Rejections,
        content: ContentStore,
    ) -> None:
        self._store = store
        self._run_on = run_on
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
        handled: Collection[str] | None = None,
    ) -> None:
        """Send the messages of a journal row. Its out row, if it has one, is removed afterwards.

        ``external`` is False if the alerts and notifications were sent before. ``handled`` is not
        None if the row was recorded by an earlier delivery: the ids of the internal messages that
        were handled since. The others may still be on the way, so they do not run on.

        Raises:
            BusUnavailableError, StoreUnavailableError: an internal message could not be sent, or
                a result could not be read. Put the trigger message back.
        """
        # 1. Compose.
        fetched = await self._fetched(order, entry)
        internals, externals = compose(
            order, entry, workflow=workflow, to=self._to, fetched=fetched
        )
        send = self._run_on.send
        if handled is not None:
            internals = [message for message in internals if message.message_id not in handled]
            send = self._run_on.send_again
        # 2. Send the internal messages.
        outage: BusUnavailableError | None = None
        try:
            if internals:
                await send(internals)
        except UndeliverableError as error:
            outage = QueueRefusesError(error)
        except BusUnavailableError as error:
            outage = error
        if outage is not None and out is not None:
            raise outage  # 4, before 3: the out row stays.
        # 3. Send the external messages.
        if external:
            await self.send_external(externals, order)
        # 4. Raise the error of 2.
        if outage is not None:
            outage.put_back_with[EXTERNAL_SENT] = "yes"
            raise outage
        # 5. Remove the out row.
        if out is not None:
            await self._store.remove_due(out)

    async def send_external(self, messages: Sequence[Message], order: Order) -> None:
        """Send or hold messages that leave the system; raises StoreUnavailableError."""
        by_queue: dict[str, list[Message]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message)
        for batch in by_queue.values():
            await self._send_to_one_queue(batch, order)

    async def _send_to_one_queue(self, batch: list[Message], order: Order) -> None:
        """Send or hold messages to one queue. Those that it will never take are given up.

        After a refusal the others are sent again, with the same ids: that is harmless.
        """
        while batch:
            try:
                if await self._external.send(batch, order.order_id):
                    await self._rejections.delivered(batch[0].queue)
            except UndeliverableError as error:
                await self._rejections.undeliverable(
                    error, order.order_id, order.details.correlation_id
                )
                batch = [message for message in batch if message is not error.undelivered]
            else:
                return

    async def _fetched(self, order: Order, entry: JournalEntry) -> Mapping[PayloadRef, str]:
        """Return the text of the offloaded results that the notifications of a row carry."""
        texts: dict[PayloadRef, str] = {}
        for item in entry.messages:
            results = results_to_notify(order, item) if isinstance(item, Notify) else {}
            refs = [result for result in results.values() if isinstance(result, PayloadRef)]
            for ref in refs if results_fit(results) else ():
                try:
                    texts[ref] = await self._content.fetch(order.order_id, ref)
                except LostContentError as error:  # the notification leaves it out
                    log.error("%s", error)  # noqa: TRY400  a traceback adds nothing
        return texts
