"""Tells the operator of conditions: one alert for all the orders that meet one, not one each.

What stands is a cell of the store that all instances share, written with its token. An alert goes
out before it is noted as sent, and before the order that met the condition is committed: after a
crash in between it comes again under the same id, and is never only in memory. How many orders
met it, and which, is gathered and written now and then: a crash may lose some of that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from sas.codec.outward import AlertMessage
from sas.domain.change import Incident
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.engine.messages import Addresses, alert
from sas.features.incidents import rules
from sas.features.incidents.rules import ActiveIncident, Sightings
from sas.ports import (
    BusUnavailableError,
    Clock,
    ConflictError,
    MessageBus,
    SharedValue,
    StateStore,
    StoreUnavailableError,
    UndeliverableError,
)
from sas.telemetry.tracing import logger

log = logger(__name__)


_TRIES = 4


NOTED_EVERY = timedelta(minutes=1)
"""How often at most an actor without sweeps notes what it saw, and a sweep that met nothing."""


class IncidentBoard:
    """What this instance saw, and what it knows to be told."""

    def __init__(self, store: StateStore, bus: MessageBus, clock: Clock, to: Addresses) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._to = to
        self._found: dict[str, Sightings] = {}
        self._standing: dict[str, ActiveIncident | None] = {}
        self._noted_at: datetime | None = None
        self._turn = asyncio.Lock()

    def saw(self, condition: Incident, *order_ids: str) -> None:
        """Remember that a condition was met, by orders or by itself, for the next ``note``."""
        name = cell_name(condition.kind, condition.scope)
        self._remember(name, Sightings(condition, 1, order_ids))

    async def met(self, condition: Incident, *order_ids: str) -> None:
        """Remember it; where the condition begins the operator is told of it before this returns.
        To be called before the commit that has the order looked at later.

        Raises:
            StoreUnavailableError, BusUnavailableError: nobody was told; let it be met again.
        """
        self.saw(condition, *order_ids)
        name = cell_name(condition.kind, condition.scope)
        async with self._turn:
            for _ in range(_TRIES):
                if self._is_told(name):
                    return
                with suppress(ConflictError):  # a rival met it: then it may be told
                    await self._look_at(name, await self._store.read_shared(name))

    async def over(self, kind: AlertKind, scope: str) -> None:
        """Tell that a condition is over, where it stood and was told.

        Raises:
            StoreUnavailableError, BusUnavailableError: nobody was told.
        """
        name = cell_name(kind, scope)
        async with self._turn:
            with suppress(ConflictError):  # a rival is at it
                await self._look_at(name, await self._store.read_shared(name), ended=True)

    @property
    def seen_any(self) -> bool:
        """Whether anything was seen that is yet to be noted."""
        return bool(self._found)

    @property
    def noted_lately(self) -> bool:
        """Whether this instance noted what it saw within the last minute."""
        return self._noted_at is not None and self._clock.now() - self._noted_at < NOTED_EVERY

    async def note_now_and_then(self) -> None:
        """See ``note``; does nothing within a minute of the last time."""
        if not self.noted_lately:
            await self.note()

    async def note(self, ended: Iterable[tuple[AlertKind, str]] = ()) -> None:
        """Write down what was seen, tell again what lasts, and tell what is over: by its time, or
        because it is among ``ended`` (kinds and scopes).

        Where the store or the bus is down it waits for the next time.
        """
        past = {cell_name(*one) for one in ended}
        async with self._turn:
            self._noted_at = self._clock.now()
            try:
                cells = await self._store.shared_values(CELLS)
                for name in sorted({*cells, *self._found}):
                    with suppress(ConflictError):  # a rival is at it; what was seen is kept
                        await self._look_at(name, cells.get(name), ended=name in past)
            except (StoreUnavailableError, BusUnavailableError) as down:
                log.warning("conditions are told later: %s", down)

    async def _look_at(
        self, name: str, cell: SharedValue[str] | None, *, ended: bool = False
    ) -> None:
        now = self._clock.now()
        standing = from_cell(cell)
        if standing is not None and (ended or rules.is_over(standing, now)):
            if standing.told:
                await self._tell(_over(standing, now))
            standing = None
        found = self._found.pop(name, None)
        if ended:  # what was seen before is over, too
            found = None
        try:
            if found is not None:
                standing = rules.seen(standing, found, now)
            if standing is not None and not standing.told:
                # First its beginning is kept: what is said of it later is about the same one.
                cell, found = await self._written(name, standing, cell), None
            if standing is not None and rules.tell_at(standing) <= now:
                await self._tell(_stands(standing, now))
                standing = rules.told(standing, now)
            if standing is not None or cell is not None:
                await self._written(name, standing, cell)
        except (ConflictError, StoreUnavailableError, BusUnavailableError):
            if found is not None:
                self._remember(name, found)
            raise
        self._standing[name] = standing

    async def _written(
        self, name: str, standing: ActiveIncident | None, cell: SharedValue[str] | None
    ) -> SharedValue[str]:
        if cell is not None and from_cell(cell) == standing:
            return cell
        token = cell.token if cell else None
        return await self._store.write_shared(name, to_value(standing), token)

    def _remember(self, name: str, met: Sightings) -> None:
        before = self._found.get(name)
        self._found[name] = before.and_then(met) if before else met

    def _is_told(self, name: str) -> bool:
        standing = self._standing.get(name)
        return standing is not None and not rules.is_over(standing, self._clock.now())

    async def _tell(self, body: AlertMessage) -> None:
        log.warning("%s: %s", body.kind, body.text)
        try:
            await self._bus.send([alert(body, self._to)])
        except UndeliverableError as refused:
            log.error("no queue takes the alert %r: %s", body.text, refused)  # noqa: TRY400


def _stands(standing: ActiveIncident, now: datetime) -> AlertMessage:
    return AlertMessage(
        kind=standing.kind.value,
        at=key_time(now),
        text=rules.text_of(standing, now),
        id=f"{_id_of(standing)}/{standing.told + 1}",
        scope=standing.scope,
        since=key_time(standing.since),
    )


def _over(standing: ActiveIncident, now: datetime) -> AlertMessage:
    return AlertMessage(
        kind=AlertKind.CLEARED.value,
        at=key_time(now),
        text=rules.over_text_of(standing),
        id=f"{_id_of(standing)}/over",
        cleared=standing.kind.value,
        scope=standing.scope,
        since=key_time(standing.since),
    )


def _id_of(standing: ActiveIncident) -> str:
    began = f"{standing.scope}/{key_time(standing.since)}"
    return f"{standing.kind.value}/{digest_id(began)}"


_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9 ,._-]")


CELLS = "condition|"
"""What the names of all these cells begin with."""


def cell_name(kind: AlertKind, scope: str) -> str:
    """Return the name under which a condition is kept."""
    return f"{CELLS}{kind.value}|{_NOT_IN_KEYS.sub('_', scope)}"


def from_cell(cell: SharedValue[str] | None) -> ActiveIncident | None:
    """Return the condition that a cell holds; None where it is over, or never was."""
    return msgspec.json.decode(cell.value, type=ActiveIncident | None) if cell else None


def to_value(standing: ActiveIncident | None) -> str:
    """Return a condition, or that it is over, as the value of its cell."""
    return msgspec.json.encode(standing).decode()
