"""What every actor is wired to, put together once in ``sas.bootstrap``."""

from __future__ import annotations

from dataclasses import dataclass, field

from sas.actors.compose import Addresses
from sas.actors.conditions import Conditions
from sas.actors.lags import Lags
from sas.actors.outbox import Outbox
from sas.actors.privacy import Privacy
from sas.actors.rejections import Rejections
from sas.codec.callbacks import NO_KEYS, CallbackKeys
from sas.domain.changes import Change
from sas.domain.model import Order
from sas.domain.queues import Queues
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
    conditions: Conditions
    lags: Lags
    callback_keys: CallbackKeys = NO_KEYS
    privacy: Privacy = field(default_factory=Privacy)

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
        conditions = Conditions(store, bus, clock, to)
        lags = Lags(store, clock)
        parts = (outbox, rejections, conditions, lags)
        return cls(store, bus, clock, to, instance, *parts, callback_keys)
