"""The ports and features that every actor uses. ``sas.bootstrap`` puts them together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sas.codec.external import AlertMessage
from sas.domain.change import Change, Incident
from sas.domain.ids import cause_of, digest_id, key_time, reply_id
from sas.domain.messages import AlertKind
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.engine.external import ExternalSender
from sas.engine.hooks import (
    ContentStore,
    Incidents,
    RuntimeRules,
    SweepTask,
    VersionCheck,
)
from sas.engine.kept_orders import KeptOrders
from sas.engine.messages import Addresses, alert
from sas.engine.outbox import Outbox
from sas.engine.rejections import Rejections
from sas.engine.run_on import RunOn
from sas.ports import (
    Clock,
    ConflictError,
    CorruptOrderError,
    DecodingError,
    MessageBus,
    PayloadCodec,
    QueueRefusesError,
    StateStore,
    StoreMismatchError,
    UnreadableError,
)
from sas.telemetry import metrics
from sas.telemetry.tracing import logger

log = logger(__name__)
MISMATCH_SEEN_AGAIN = timedelta(minutes=5)
"""A message that was put back because of a wrong deploy comes again within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The ports, the addresses, this instance's name (it becomes LockedBy), and the features."""

    store: StateStore
    bus: MessageBus
    clock: Clock
    to: Addresses
    instance: str
    external: ExternalSender
    outbox: Outbox
    rejections: Rejections
    content: ContentStore
    codec: PayloadCodec | None
    versions: VersionCheck
    incidents: Incidents
    rules: RuntimeRules
    sweep_tasks: tuple[SweepTask, ...]
    kept_orders: KeptOrders
    run_on: RunOn

    @property
    def queues(self) -> Queues:
        """The names of the queues."""
        return self.to.queues

    def reply_cause(self, order_id: str, step: int, direction: str, epoch: int) -> str:
        """Return the cause that the journal records for the reply to one dispatch of a step."""
        return cause_of(self.queues.scheduler, reply_id(order_id, step, direction, epoch))

    async def load(self, order_id: str) -> Order | None:
        """Return an order whose workflow version was checked; None if it does not exist.

        Raises:
            StoreUnavailableError, StoreMismatchError: it could not be read, or must not be used.
        """
        order = await self.store.load(order_id)
        if order is not None:
            await self.versions.check(order)
        return order

    async def commit(self, change: Change) -> Order:
        """Commit a change, keep the order and count; raises as ``StateStore.commit`` does."""
        await self.versions.check(change.after)
        self.kept_orders.forget(change.after.order_id)
        try:
            after = await self.store.commit(change)
        except ConflictError:
            metrics.conflict()
            raise
        self.kept_orders.keep(after)
        metrics.committed(change)
        return after

    async def report_mismatch(
        self, error: StoreMismatchError | QueueRefusesError, *order_ids: str
    ) -> None:
        """Alert the operator of a deploy that does not fit the state store, or lacks a queue.

        With another number of shards the store keeps nothing, not even an incident. Then each call
        sends one alert, and duplicate detection drops all but the first of a day.

        Raises:
            StoreUnavailableError, BusUnavailableError: no alert was sent; report it again.
            UndeliverableError: no queue takes it.
        """
        now = self.clock.now()
        text = f"{error}. Until then its messages are put back, and nothing is lost."
        until = now + MISMATCH_SEEN_AGAIN
        alert_kind = AlertKind.NOT_RUNNABLE
        if isinstance(error, CorruptOrderError):
            alert_kind = AlertKind.UNREADABLE
        elif isinstance(error, QueueRefusesError):
            alert_kind = AlertKind.QUEUE_DELAY
        incident = Incident(kind=alert_kind, scope=error.scope, text=text, since=now, until=until)
        try:
            await self.incidents.report(incident, *order_ids)
        except StoreMismatchError:
            alert_id = f"not-runnable/{digest_id(error.scope, now.date().isoformat())}"
            body = AlertMessage(
                kind=alert_kind.value, at=key_time(now), text=text, id=alert_id, scope=error.scope
            )
            await self.bus.send([alert(body, self.to)])

    async def report_unreadable(
        self, error: UnreadableError, body: AlertMessage, again_after: timedelta
    ) -> None:
        """Alert the operator that content of an order cannot be read.

        A missing key of the codec concerns many orders, so it is reported as one incident.

        Raises:
            StoreUnavailableError, BusUnavailableError: no alert was sent; report it again.
        """
        log.warning("order %s waits: %s", body.order_id, error)
        if isinstance(error, DecodingError):
            now = self.clock.now()
            text = f"Content of orders cannot be decoded: {error}. Their steps wait for it."
            incident = Incident(
                kind=AlertKind.UNREADABLE,
                scope="payload codec",
                text=text,
                since=now,
                until=now + again_after,
            )
            await self.incidents.report(incident, body.order_id or "")
        else:
            await self.external.send([alert(body, self.to)], body.order_id or "")
