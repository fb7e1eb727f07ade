"""Alerts operators of incidents: one alert for all the orders that an incident affects.

An incident is a shared value, written with its token. Its alert is sent before it is recorded as
sent, and before the order that reports it is committed. After a crash in between, the alert is sent
again with the same id. The number of orders affected is written only now and then, so a crash may
lose a part of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sas.codec.external import AlertMessage
from sas.domain.change import Incident
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.domain.queues import scope_of
from sas.engine.external import ExternalSender
from sas.engine.messages import Addresses, alert
from sas.engine.shared_values import SharedValues
from sas.features.incidents import rules
from sas.features.incidents.rules import ActiveIncident, Sightings
from sas.ports import (
    Clock,
    ConflictError,
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
"""Shortest time between two writes of an instance, apart from the beginning of an incident."""

RESPONSE_QUEUES_MAX = 100
"""Most response queues with an incident of their own."""
LOOK_AGAIN_AFTER = timedelta(seconds=5)
"""Shortest time between two reads that find an incident over: each success may ask to end it."""

Name = tuple[AlertKind, str]
"""The kind and the scope of an incident."""
Explained = dict[str, str]
"""Incidents that another one explains, by name, with the end of their last text."""
HealthCheck = Callable[[], Awaitable[tuple[Sequence[Incident], Sequence[Name]]]]
"""Returns the incidents of one part of the system: those that are active and those that are over.

Raises StoreUnavailableError if it cannot read its part.
"""


def active_incidents(store: StateStore) -> SharedValues[ActiveIncident | None]:
    """Return the incidents that all instances share. The value of one that is over is None."""
    return SharedValues(store, "incident|", ActiveIncident | None)


def name_of(kind: AlertKind, scope: str) -> str:
    """Return the name under which an incident is shared."""
    return f"{kind.value}|{_NOT_IN_KEYS.sub('_', scope)}"


class IncidentBoard:
    """What this instance saw of incidents, and the alerts that it knows of.

    See ``sas.engine.hooks.Incidents``.
    """

    def __init__(
        self,
        store: StateStore,
        external: ExternalSender,
        clock: Clock,
        to: Addresses,
        checks: Sequence[HealthCheck] = (),
    ) -> None:
        self._shared = active_incidents(store)
        self._external = external
        self._clock = clock
        self._to = to
        self._checks = checks
        self._seen: dict[str, Sightings] = {}
        self._behind: dict[str, Sightings] = {}
        self._active: dict[str, ActiveIncident | None] = {}
        self._looked_at: dict[str, datetime] = {}
        self._noted_at: datetime | None = None
        self._turn = asyncio.Lock()

    async def report(self, incident: Incident, *order_ids: str) -> None:
        """See ``Incidents.report``. The first alert is sent before this returns.

        An incident that an active one explains is added to that one.
        """
        if not await self._is_explained(incident, order_ids):
            name = self._saw(self._bounded(incident), *order_ids)
            async with self._turn:
                for _ in range(_TRIES):
                    if self._is_known(name):
                        break
                    with suppress(ConflictError):  # a rival reported it
                        await self._update(name, await self._shared.read(name))
        if not self._noted_lately:
            await self.note()

    async def end(self, kind: AlertKind, scope: str) -> None:
        """See ``Incidents.end``."""
        name, now = name_of(kind, scope), self._clock.now()
        async with self._turn:
            looked_at, active = self._looked_at.get(name), self._active.get(name)
            is_new = looked_at is not None and now - looked_at < LOOK_AGAIN_AFTER
            if (is_new and active is None) or self._rests(name, active):
                return
            value = await self._shared.read(name)
            if value is not None and self._rests(name, value.value):
                return
            with suppress(ConflictError):  # a rival ends it
                await self._update(name, value, ended="")

    async def check_health(self) -> None:
        """Run the health checks and write what was seen, at most once a minute.

        If the store is down, the next sweep does it.
        """
        if self._noted_lately and not self._seen:
            return
        ended: list[Name] = []
        for check in self._checks:
            try:
                active, over = await check()
            except StoreUnavailableError as error:
                log.warning("a health check waits: %s", error)
                return
            for incident in active:
                self._saw(incident)
            ended += over
        await self.note(ended)

    async def note(self, ended: Iterable[Name] = ()) -> None:
        """Write what was seen, and send the alerts that are due.

        An incident is over if it is among ``ended``, or was not seen for some minutes. If the store
        is down, the next sweep does it.
        """
        over = {name_of(kind, scope): "" for kind, scope in ended}
        async with self._turn:
            self._noted_at = self._clock.now()
            try:
                values = await self._shared.all()
                over |= self._explained(values)
                for name in sorted({*values, *self._seen}):
                    with suppress(ConflictError):  # a rival writes it; what was seen is kept
                        await self._update(name, values.get(name), ended=over.get(name))
            except StoreUnavailableError as error:
                log.warning("alerts of incidents are sent later: %s", error)

    @property
    def _noted_lately(self) -> bool:
        return self._noted_at is not None and self._clock.now() - self._noted_at < NOTED_EVERY

    async def _update(
        self,
        name: str,
        value: SharedValue[ActiveIncident | None] | None,
        *,
        ended: str | None = None,
    ) -> None:
        """Update one incident: write what was seen of it, and send the alert that is due.

        ``ended`` is not None if it is over, and may say why.
        """
        now = self._clock.now()
        active = await self._still_active(value.value if value else None, ended)
        sightings, behind = self._seen.pop(name, None), self._behind.pop(name, None)
        if ended is not None:  # what was seen before is over as well
            sightings = None
        try:
            if active is not None and behind is not None:  # it begins no incident
                active = rules.seen(active, behind, now)
            if sightings is not None:
                active = rules.seen(active, sightings, now)
            if active is not None and not active.alerts_sent:
                # Its beginning is written before its first alert: it is part of the alert's id.
                value = await self._written(name, active, value)
                sightings = behind = None
            if active is not None and rules.is_alert_due(active, now):
                await self._send(_alert(active, now))
                active = rules.alert_sent(active, now)
            if active is not None or value is not None:
                await self._written(name, active, value)
        except (ConflictError, StoreUnavailableError) as error:
            if sightings is not None:
                _remember(self._seen, name, sightings)
            if behind is not None and isinstance(error, ConflictError):
                _remember(self._behind, name, behind)
            raise
        self._active[name] = active
        self._looked_at[name] = now

    async def _still_active(
        self, active: ActiveIncident | None, ended: str | None
    ) -> ActiveIncident | None:
        """Return an incident that goes on. The end of another one is alerted."""
        now = self._clock.now()
        if active is None or (ended is None and not rules.is_over(active, now)):
            return active
        if active.alerts_sent:
            await self._send(_over(active, now, ended or ""))
        return None

    async def _written(
        self, name: str, active: ActiveIncident | None, value: SharedValue[Any] | None
    ) -> SharedValue[ActiveIncident | None]:
        if value is not None and value.value == active:
            return value
        return await self._shared.write(name, active, value)

    def _bounded(self, incident: Incident) -> Incident:
        """Return an incident of a response queue under a name that all share, past a bound.

        Applications choose the names of these queues, and the row of an incident stays for ever.
        Queues of bound applications keep their own: others do not choose these.
        """
        name, queues = name_of(incident.kind, incident.scope), self._to.queues
        if incident.kind is not AlertKind.UNDELIVERABLE or name in self._active:
            return incident
        bound = map(queues.response_of, queues.applications)
        if incident.scope in set(map(scope_of, bound)):
            return incident
        count = sum(name.startswith(incident.kind.value) for name in self._active)
        is_bound = count >= RESPONSE_QUEUES_MAX
        return replace(incident, scope="other response queues") if is_bound else incident

    def _saw(self, incident: Incident, *order_ids: str) -> str:
        name = name_of(incident.kind, incident.scope)
        _remember(self._seen, name, Sightings(incident, len(order_ids), order_ids))
        return name

    async def _is_explained(self, incident: Incident, order_ids: tuple[str, ...]) -> bool:
        """Add what was seen to the active incident that explains it; False if there is none."""
        explanation = rules.explained_by(incident)
        if explanation is None:
            return False
        name = name_of(*explanation)
        value = await self._shared.read(name)  # what this instance knows of it may be old
        active = value.value if value else None
        if active is None or rules.is_over(active, self._clock.now()):
            return False
        _remember(self._behind, name, rules.behind(active, len(order_ids), order_ids))
        return True

    def _explained(self, values: Mapping[str, SharedValue[ActiveIncident | None]]) -> Explained:
        """Add each incident to the one that explains it; return those that are over by that."""
        explained: Explained = {}
        now = self._clock.now()
        for name, value in values.items():
            active = value.value
            explanation = rules.explained_by(active) if active else None
            if active is None or explanation is None:
                continue
            reason = values.get(name_of(*explanation))
            if reason is not None and reason.value and not rules.is_over(reason.value, now):
                sightings = rules.behind(reason.value, active.times, active.orders)
                _remember(self._behind, name_of(*explanation), sightings)
                kind, scope = explanation
                explained[name] = f" Its steps rest behind {kind.value}, {scope}."
        return explained

    def _rests(self, name: str, active: ActiveIncident | None) -> bool:
        now = self._clock.now()
        return active is not None and rules.rests(active, self._seen.get(name), now)

    def _is_known(self, name: str) -> bool:
        active = self._active.get(name)
        return active is not None and not rules.is_over(active, self._clock.now())

    async def _send(self, body: AlertMessage) -> None:
        # The text is not logged: it may quote the error of a service or an agent.
        log.warning("alert %s: %s", body.kind, body.scope)
        try:
            await self._external.send([alert(body, self._to)], "incident")
        except UndeliverableError as error:
            log.error("no queue takes the alert %s: %s", body.id, error)  # noqa: TRY400


def _remember(memory: dict[str, Sightings], name: str, sightings: Sightings) -> None:
    before = memory.get(name)
    memory[name] = before.and_then(sightings) if before else sightings


def _alert(active: ActiveIncident, now: datetime) -> AlertMessage:
    return AlertMessage(
        kind=active.kind.value,
        at=key_time(now),
        text=rules.alert_text(active, now),
        id=f"{_id_of(active)}/{active.alerts_sent + 1}",
        workflow=active.workflow,
        agent=active.agent,
        scope=active.scope,
        since=key_time(active.since),
    )


def _over(active: ActiveIncident, now: datetime, why: str) -> AlertMessage:
    return AlertMessage(
        kind=AlertKind.CLEARED.value,
        at=key_time(now),
        text=rules.over_text(active, why),
        id=f"{_id_of(active)}/over",
        cleared=active.kind.value,
        workflow=active.workflow,
        agent=active.agent,
        scope=active.scope,
        since=key_time(active.since),
    )


def _id_of(active: ActiveIncident) -> str:
    return f"{active.kind.value}/{digest_id(active.scope, key_time(active.since))}"
