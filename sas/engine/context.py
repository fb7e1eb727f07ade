"""What every actor is wired to, put together once in ``sas.bootstrap``."""

from __future__ import annotations

from dataclasses import dataclass, field

from sas.domain.change import Change
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.engine.messages import Addresses
from sas.engine.outbox import Outbox
from sas.engine.rejections import Rejections
from sas.features.callbacks.codec import NO_KEYS, CallbackKeys
from sas.features.field_encryption.encryption import FieldEncryption
from sas.features.incidents.board import IncidentBoard
from sas.features.queue_delay.delays import QueueDelays
from sas.ports import Clock, ConflictError, MessageBus, StateStore
from sas.telemetry import metrics


@dataclass(frozen=True, slots=True)
class Context:
    """The ports, the addresses, this instance's name (it becomes LockedBy), and the keys that
    callbacks' tokens are made with.
    """

    store: StateStore
    bus: MessageBus
    clock: Clock
    to: Addresses
    instance: str
    outbox: Outbox
    rejections: Rejections
    conditions: IncidentBoard
    lags: QueueDelays
    callback_keys: CallbackKeys = NO_KEYS
    privacy: FieldEncryption = field(default_factory=FieldEncryption)

    @property
    def queues(self) -> Queues:
        """Return the names of the queues."""
        return self.to.queues

    async def commit(self, change: Change) -> Order:
        """Commit a change and tell what came of it; raises as ``StateStore.commit`` does."""
        try:
            after = await self.store.commit(change)
        except ConflictError:
            metrics.conflict()
            raise
        metrics.committed(change)
        return after

    @classmethod
    def of(
        cls,
        store: StateStore,
        bus: MessageBus,
        clock: Clock,
        to: Addresses,
        instance: str,
        callback_keys: CallbackKeys = NO_KEYS,
    ) -> Context:
        """Return a context with its outbox and the like over the given ports."""
        rejections = Rejections(bus, clock, to)
        outbox = Outbox(store, bus, clock, to, rejections)
        conditions = IncidentBoard(store, bus, clock, to)
        lags = QueueDelays(store, clock)
        parts = (outbox, rejections, conditions, lags)
        return cls(store, bus, clock, to, instance, *parts, callback_keys)
