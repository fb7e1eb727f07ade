"""How far queues are behind, as all instances tell each other through the store.

Nothing is written while nobody is late. Who takes up a late message says so, every few seconds
at most; who gives steps their time, or judges that it was not kept, looks as seldom.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from sas.features.queue_delay import rules
from sas.features.queue_delay.rules import QueueDelay
from sas.ports import Clock, ConflictError, SharedValue, StateStore, StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)


EVERY = timedelta(seconds=3)
"""How often at most an instance notes the lag of one queue, and looks at all of them."""


class QueueDelays:
    """What this instance knows of them."""

    def __init__(self, store: StateStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, QueueDelay] = {}
        self._looked_at: datetime | None = None
        self._noted_at: dict[str, datetime] = {}

    async def took_up(
        self, queue: str, enqueued_at: datetime | None, delivery_count: int | None
    ) -> None:
        """Note that a message of a queue is taken up now, for the first time, if it is late.

        Where the store is away, or a rival says the same, nothing is noted: it is said again.
        """
        if enqueued_at is None or (delivery_count or 1) > 1:
            return
        now = self._clock.now()
        found = QueueDelay(now - enqueued_at.replace(tzinfo=enqueued_at.tzinfo or UTC), now)
        if found.delay < rules.LATE or self._within(self._noted_at.get(queue), now):
            return
        self._noted_at[queue] = now
        try:
            cell = await self._store.read_shared(cell_name(queue))
            said = from_cell(cell)
            if said and self._within(said.at, now) and said.delay >= found.delay / 2:
                return
            token = cell.token if cell else None
            await self._store.write_shared(cell_name(queue), to_value(found), token)
        except (ConflictError, StoreUnavailableError) as failed:
            log.debug("the lag of %s was not noted: %s", queue, failed)

    async def look(self) -> None:
        """Read what is known, where the last look is not some seconds ago; else do nothing."""
        now = self._clock.now()
        if self._within(self._looked_at, now):
            return
        self._looked_at = now
        try:
            cells = await self._store.shared_values(CELLS)
        except StoreUnavailableError as down:
            log.warning("lags could not be read: %s", down)
            return
        found = {name.removeprefix(CELLS): from_cell(cell) for name, cell in cells.items()}
        self._known = {queue: lag for queue, lag in found.items() if lag is not None}

    def behind(self, queue: str) -> timedelta:
        """Return how far a queue is behind, as far as is known."""
        known = [self._known[queue]] if queue in self._known else []
        return rules.longest(known, self._clock.now())

    @property
    def worst(self) -> timedelta:
        """How far the slowest queue of all is behind, as far as is known."""
        return rules.longest(self._known.values(), self._clock.now())

    @property
    def fresh(self) -> Mapping[str, QueueDelay]:
        """Every queue that is behind, as far as is known."""
        now = self._clock.now()
        return {queue: one for queue, one in self._known.items() if now - one.at <= rules.FRESH}

    @staticmethod
    def _within(then: datetime | None, now: datetime) -> bool:
        return then is not None and now - then < EVERY


CELLS = "lag|"
"""What the names of all these cells begin with."""


def cell_name(queue: str) -> str:
    """Return the name under which a queue's lag is kept."""
    return f"{CELLS}{queue}"


def from_cell(cell: SharedValue[str] | None) -> QueueDelay | None:
    """Return the lag that a cell holds; None where there is none."""
    return msgspec.json.decode(cell.value, type=QueueDelay) if cell else None


def to_value(lag: QueueDelay) -> str:
    """Return a lag as the value of its cell."""
    return msgspec.json.encode(lag).decode()
