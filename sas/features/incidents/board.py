"""Tells the operator of incidents: one alert for all the orders that meet one, not one each.

An incident is a shared value, written with its token. Its alert is sent before it is noted as sent,
and before the order that met it is committed: after a crash in between it comes again under the
same id. How many orders met it, and which, is written now and then: a crash may lose some of that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from sas.codec.outward import AlertMessage
from sas.domain.change import Incident
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.engine.hooks import Incidents
from sas.engine.messages import Addresses, alert
from sas.engine.shared_values import SharedValues
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
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9 ,._-]")
NOTED_EVERY = timedelta(minutes=1)
"""How often at most an instance writes what it saw, apart from the beginning of an incident."""

Name = tuple[AlertKind, str]
"""The kind and the scope of an incident."""
HealthCheck = Callable[[], Awaitable[tuple[Sequence[Incident], Sequence[Name]]]]
"""Looks at one part of the system: returns the incidents that are active and those that are over.

Raises StoreUnavailableError where it cannot look.
"""


def active_incidents(store: StateStore) -> SharedValues[ActiveIncident | None]:
    """Return the incidents that all instances share; None stands for one that is over."""
    return SharedValues(store, "incident|", ActiveIncident | None)


def name_of(kind: AlertKind, scope: str) -> str:
    """Return the name under which an incident is shared."""
    return f"{kind.value}|{_NOT_IN_KEYS.sub('_', scope)}"


class IncidentBoard(Incidents):
    """What this instance saw of incidents, and what it knows was told."""

    def __init__(
        self,
        store: StateStore,
        bus: MessageBus,
        clock: Clock,
        to: Addresses,
        checks: Sequence[HealthCheck] = (),
    ) -> None:
        self._shared = active_incidents(store)
        self._bus = bus
        self._clock = clock
        self._to = to
        self._checks = checks
        self._seen: dict[str, Sightings] = {}
        self._active: dict[str, ActiveIncident | None] = {}
        self._noted_at: datetime | None = None
        self._turn = asyncio.Lock()

    async def report(self, incident: Incident, *order_ids: str) -> None:
        """See ``Incidents.report``: where it begins, the operator is told before this returns."""
        name = self._saw(incident, *order_ids)
        async with self._turn:
            for _ in range(_TRIES):
                if self._is_told(name):
                    break
                with suppress(ConflictError):  # a rival reported it: then it may be told
                    await self._update(name, await self._shared.read(name))
        if not self._noted_lately:
            await self.note()

    async def end(self, kind: AlertKind, scope: str) -> None:
        """See ``Incidents.end``."""
        name = name_of(kind, scope)
        async with self._turn:
            with suppress(ConflictError):  # a rival is at it
                await self._update(name, await self._shared.read(name), ended=True)

    async def check_health(self) -> None:
        """Look for what is wrong with the system, and write what was seen; once a minute at most.

        Where the store or the bus is down it waits for the next time.
        """
        if self._noted_lately and not self._seen:
            return
        ended: list[Name] = []
        for check in self._checks:
            try:
                active, over = await check()
            except StoreUnavailableError as down:
                log.warning("a health check waits: %s", down)
                return
            for incident in active:
                self._saw(incident)
            ended += over
        await self.note(ended)

    async def note(self, ended: Iterable[Name] = ()) -> None:
        """Write what was seen, tell again what lasts, and tell what is over.

        An incident is over by its time, or because it is among ``ended``. Where the store or the
        bus is down it waits for the next time.
        """
        over = {name_of(*one) for one in ended}
        async with self._turn:
            self._noted_at = self._clock.now()
            try:
                values = await self._shared.all()
                for name in sorted({*values, *self._seen}):
                    with suppress(ConflictError):  # a rival is at it; what was seen is kept
                        await self._update(name, values.get(name), ended=name in over)
            except (StoreUnavailableError, BusUnavailableError) as down:
                log.warning("incidents are told later: %s", down)

    @property
    def _noted_lately(self) -> bool:
        return self._noted_at is not None and self._clock.now() - self._noted_at < NOTED_EVERY

    async def _update(
        self, name: str, value: SharedValue[ActiveIncident | None] | None, *, ended: bool = False
    ) -> None:
        """Bring one incident up to date: write what was seen of it, send what alert is due."""
        now = self._clock.now()
        active = value.value if value else None
        if active is not None and (ended or rules.is_over(active, now)):
            if active.alerts_sent:
                await self._send(_over(active, now))
            active = None
        seen = self._seen.pop(name, None)
        if ended:  # what was seen before is over as well
            seen = None
        try:
            if seen is not None:
                active = rules.seen(active, seen, now)
            if active is not None and not active.alerts_sent:
                # Its beginning is written first: later alerts are about the same incident.
                value, seen = await self._written(name, active, value), None
            if active is not None and rules.next_alert_at(active) <= now:
                await self._send(_alert(active, now))
                active = rules.alert_sent(active, now)
            if active is not None or value is not None:
                await self._written(name, active, value)
        except (ConflictError, StoreUnavailableError, BusUnavailableError):
            if seen is not None:
                self._remember(name, seen)
            raise
        self._active[name] = active

    async def _written(
        self, name: str, active: ActiveIncident | None, value: SharedValue[Any] | None
    ) -> SharedValue[ActiveIncident | None]:
        if value is not None and value.value == active:
            return value
        return await self._shared.write(name, active, value)

    def _saw(self, incident: Incident, *order_ids: str) -> str:
        name = name_of(incident.kind, incident.scope)
        self._remember(name, Sightings(incident, 1, order_ids))
        return name

    def _remember(self, name: str, seen: Sightings) -> None:
        before = self._seen.get(name)
        self._seen[name] = before.and_then(seen) if before else seen

    def _is_told(self, name: str) -> bool:
        active = self._active.get(name)
        return active is not None and not rules.is_over(active, self._clock.now())

    async def _send(self, body: AlertMessage) -> None:
        log.warning("%s: %s", body.kind, body.text)
        try:
            await self._bus.send([alert(body, self._to)])
        except UndeliverableError as refused:
            log.error("no queue takes the alert %r: %s", body.text, refused)  # noqa: TRY400


def _alert(active: ActiveIncident, now: datetime) -> AlertMessage:
    return AlertMessage(
        kind=active.kind.value,
        at=key_time(now),
        text=rules.alert_text(active, now),
        id=f"{_id_of(active)}/{active.alerts_sent + 1}",
        scope=active.scope,
        since=key_time(active.since),
    )


def _over(active: ActiveIncident, now: datetime) -> AlertMessage:
    return AlertMessage(
        kind=AlertKind.CLEARED.value,
        at=key_time(now),
        text=rules.over_text(active),
        id=f"{_id_of(active)}/over",
        cleared=active.kind.value,
        scope=active.scope,
        since=key_time(active.since),
    )


def _id_of(active: ActiveIncident) -> str:
    began = f"{active.scope}/{key_time(active.since)}"
    return f"{active.kind.value}/{digest_id(began)}"
