"""Incidents as a sequence: two instances report what they see, and each alert comes once.

The model follows ``sas.features.incidents``: one alert when an incident begins, more at growing
intervals while it lasts, and one when it is over. No trouble of the store loses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sas.domain.change import Incident
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind
from sas.domain.queues import Queues
from sas.engine.messages import Addresses
from sas.features.incidents.board import IncidentBoard, Name, active_incidents, name_of
from sas.ports import ConflictError, Message, StoreUnavailableError
from sas.testing.clock import VirtualClock
from tests.simulation.machines.contested_store import ContestedStore
from tests.simulation.machines.kit import AsyncMachine

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
PAUSES = [15 * MINUTE, 60 * MINUTE, 240 * MINUTE, 1440 * MINUTE]
BREAKER, RESTS = (AlertKind.BREAKER_OPEN, "agent stock"), (AlertKind.WAITING, "a step")
FAILING, WAITS = (AlertKind.AGENT_FAILING, "agent stock"), (AlertKind.NOT_PICKED_UP, "all")
INSTANCES = (0, 1)
Act = tuple[str, int, int, str]
"""A verb, which incident, for how many minutes it lasts at least, and the order that met it."""
ACTS = st.tuples(
    st.sampled_from(["report", "report", "report", "end", "end", "note", "check"]),
    st.integers(0, 1),
    st.sampled_from([1, 5, 20]),
    st.sampled_from([f"O-{number}" for number in range(7)]),
)
TROUBLE = st.tuples(
    st.integers(0, 1), st.sampled_from([None, None, None, "store away", "no alert"]) | ACTS
)
"""Which write meets it, and what it is: an act is one of the other instance."""


def incident_of(name: Name, minutes: int, now: datetime) -> Incident:
    (kind, scope), until = name, now + minutes * MINUTE
    agent = "stock" if kind is AlertKind.WAITING else None
    return Incident(kind=kind, scope=scope, text="x", since=now, until=until, agent=agent)


@dataclass
class Alerts:
    """The alerts that were sent, by their ids; a queue drops a second one with the same id."""

    by_id: dict[str, str] = field(default_factory=dict)
    is_away: bool = False

    async def send(self, messages: Sequence[Message], _about: str) -> bool:
        self.note(messages[0].message_id)
        return True

    def note(self, id_: str) -> None:
        if self.is_away:
            raise StoreUnavailableError("an alert could be neither sent nor held")
        self.by_id[id_] = id_


@dataclass(frozen=True)
class Seen:
    """What was seen of an incident, by the model: since its last write, or since it began."""

    since: datetime
    until: datetime
    times: int
    orders: tuple[str, ...]

    def plus(self, later: Seen) -> Seen:
        return Seen(
            min(self.since, later.since),
            max(self.until, later.until),
            self.times + later.times,
            tuple(dict.fromkeys(self.orders + later.orders))[:5],
        )


@dataclass(frozen=True)
class Episode:
    """An incident from its beginning to its end, by the model."""

    sightings: Seen
    last_seen: datetime
    alerts: int = 0
    last_alert_at: datetime | None = None


@dataclass
class Memory:
    """What an instance of the model only remembers."""

    sightings: dict[Name, Seen] = field(default_factory=dict)
    behind: dict[Name, Seen] = field(default_factory=dict)
    active: dict[Name, Episode | None] = field(default_factory=dict)
    looked_at: dict[Name, datetime] = field(default_factory=dict)
    noted_at: datetime | None = None

    def saw(self, name: Name, sighting: Seen) -> None:
        self.sightings[name] = (
            self.sightings[name].plus(sighting) if name in self.sightings else sighting
        )

    def saw_behind(self, name: Name, sighting: Seen) -> None:
        before = self.behind.get(name)
        self.behind[name] = before.plus(sighting) if before else sighting


class Model:
    """All incidents, as the instances should share them."""

    def __init__(self, names: tuple[Name, Name], alerts: Alerts) -> None:
        self.shared: dict[Name, Episode | None] = {}
        self.names, self.alerts = names, alerts
        self.trouble: list[Any] = []
        self.is_open = False

    def act(self, memory: Memory, act: Act, now: datetime) -> None:
        verb, number, minutes, order = act
        name = self.names[number]
        if verb == "end":
            self._end(memory, name, now)
        elif verb == "note":
            self._note(memory, now)
        elif verb == "check" and (memory.sightings or not self._noted(memory, now)):
            if self.is_open:
                memory.saw(BREAKER, Seen(now, now + 20 * MINUTE, 0, ()))
            self._note(memory, now, ended=not self.is_open)
        elif verb == "report":
            sighting = Seen(now, now + minutes * MINUTE, 1, (order,))
            circuit = self.shared.get(BREAKER)
            if name == RESTS and circuit and not over(BREAKER, circuit, now):
                memory.saw_behind(BREAKER, replace(circuit.sightings, times=1, orders=(order,)))
            else:
                memory.saw(name, sighting)
                for _ in range(3):
                    active = memory.active.get(name)
                    if active is None or over(name, active, now):
                        self._update(memory, name, now)
            if not self._noted(memory, now):
                self._note(memory, now)

    def _noted(self, memory: Memory, now: datetime) -> bool:
        return memory.noted_at is not None and now - memory.noted_at < MINUTE

    def _end(self, memory: Memory, name: Name, now: datetime) -> None:
        cached, looked_at = memory.active.get(name), memory.looked_at.get(name)
        if cached is None and looked_at is not None and now - looked_at < 5 * SECOND:
            return
        for active in (cached, self.shared.get(name)):  # a step of it still rests
            until = [
                s.until for s in (active and active.sightings, memory.sightings.get(name)) if s
            ]
            if active and name == RESTS and now < max(until):
                return
        self._update(memory, name, now, ended=True)

    def _note(self, memory: Memory, now: datetime, *, ended: bool = False) -> None:
        memory.noted_at = now
        over_now = {BREAKER} if ended else set()
        rest, circuit = self.shared.get(RESTS), self.shared.get(BREAKER)
        if rest and circuit and not over(BREAKER, circuit, now):  # the circuit explains it
            sighting = replace(
                circuit.sightings, times=rest.sightings.times, orders=rest.sightings.orders
            )
            memory.saw_behind(BREAKER, sighting)
            over_now.add(RESTS)
        read = dict(self.shared)
        try:
            for name in sorted({*read, *memory.sightings}, key=lambda name: name_of(*name)):
                self._update(memory, name, now, ended=name in over_now, read=read)
        except StoreUnavailableError:
            pass  # the next sweep does it

    def _update(
        self,
        memory: Memory,
        name: Name,
        now: datetime,
        *,
        ended: bool = False,
        read: dict[Name, Episode | None] | None = None,
    ) -> None:
        values = self.shared if read is None else read
        exists, before = name in values, values.get(name)
        active = self._goes_on(name, before, now, ended=ended)
        sightings, behind = memory.sightings.pop(name, None), memory.behind.pop(name, None)
        for sighting in (behind if active else None, None if ended else sightings):
            if sighting:
                orders = active.sightings if active else None
                total = replace(orders.plus(sighting), since=orders.since) if orders else sighting
                active = replace(active or Episode(total, now), sightings=total, last_seen=now)
        is_kept = sightings is not None and not ended
        try:
            if active and not active.alerts:
                before, is_kept = self._write(name, active, before), False
                behind = None
            if active and alert_due(name, active, now):
                self.alerts.note(id_of(name, active, str(active.alerts + 1)))
                total = replace(active.sightings, orders=())
                active = Episode(total, active.last_seen, active.alerts + 1, now)
            if active or exists:
                self._write(name, active, before)
        except (ConflictError, StoreUnavailableError) as error:
            if is_kept and sightings:
                memory.saw(name, sightings)
            if isinstance(error, ConflictError):
                if behind:
                    memory.saw_behind(name, behind)
                return
            raise
        memory.active[name], memory.looked_at[name] = active, now

    def _goes_on(
        self, name: Name, active: Episode | None, now: datetime, *, ended: bool
    ) -> Episode | None:
        if active is None or not (ended or over(name, active, now)):
            return active
        if active.alerts:
            self.alerts.note(id_of(name, active, "over"))
        return None

    def _write(self, name: Name, active: Episode | None, before: Episode | None) -> Episode | None:
        if active == before and name in self.shared:
            return active
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble:
            trouble()
        if self.shared.get(name) != before:
            raise ConflictError("a rival wrote it")
        self.shared[name] = active
        return active


def over(name: Name, active: Episode, now: datetime) -> bool:
    after = 2 if name[0] is AlertKind.AGENT_FAILING else 5
    return now > active.sightings.until + after * MINUTE


def alert_due(name: Name, active: Episode, now: datetime) -> bool:
    if active.last_alert_at is None:
        return True
    at = active.last_alert_at + PAUSES[min(active.alerts, 4) - 1]
    is_new = active.last_seen >= at or name[0] is not AlertKind.AGENT_FAILING
    return is_new and at <= now


def id_of(name: Name, active: Episode, number: str) -> str:
    return f"{name[0].value}/{digest_id(name[1], key_time(active.sightings.since))}/{number}"


class IncidentMachine(AsyncMachine):
    """Instances report, note and end incidents, while time passes and processes die."""

    @initialize(names=st.sampled_from([(BREAKER, RESTS), (RESTS, BREAKER), (FAILING, WAITS)]))
    def begin(self, names: tuple[Name, Name]) -> None:
        self.clock, self.store, self.alerts = VirtualClock(), ContestedStore(), Alerts()
        self.names, self.model = names, Model(names, Alerts())
        self.boards: dict[int, IncidentBoard] = {}
        self.memories: dict[int, Memory] = {}
        for instance in INSTANCES:
            self.starts(instance)

    def starts(self, instance: int) -> None:
        sender: Any = self.alerts
        to = Addresses(Queues(), "test")
        self.boards[instance] = IncidentBoard(
            self.store, sender, clock=self.clock, to=to, checks=[self.health]
        )
        self.memories[instance] = Memory()

    @rule(
        seconds=st.sampled_from([1, 4, 6, 61, 61, 130, 400, 3600, 90_000]),
        dies=st.sampled_from([None, None, None, 0, 1]),
        is_open=st.booleans(),
    )
    def passes(self, seconds: int, dies: int | None = None, is_open: bool | None = None) -> None:
        """Time passes, a process dies with what it remembers, or a circuit opens or closes."""
        self.clock.set(self.clock.now() + seconds * SECOND)
        if dies is not None:
            self.starts(dies)
        if is_open is not None:
            self.model.is_open = is_open

    @rule(number=st.integers(0, 1), minutes=st.sampled_from([0, 2, 5]), seconds=st.integers(-1, 1))
    def is_hardly_over(self, number: int, minutes: int, seconds: int) -> None:
        """It is seen again, or not, at the moment when it would end by itself."""
        active = self.model.shared.get(self.names[number])
        if active:
            at = active.sightings.until + minutes * MINUTE + seconds * SECOND
            self.clock.set(max(at, self.clock.now()))

    @rule(instance=st.sampled_from(INSTANCES), act=ACTS, trouble=TROUBLE)
    def acts(self, instance: int, act: Act, trouble: tuple[int, Any]) -> None:
        position, event = trouble
        rival = 1 - instance
        self.alerts.is_away = self.model.alerts.is_away = event == "no alert"
        if event == "store away":
            self.store.before_writes.extend([None] * position + [self.fails])
            self.model.trouble = [None] * position + [self.fails_at_once]
        elif isinstance(event, tuple):
            self.store.before_writes.extend([None] * position + [lambda: self.played(rival, event)])
            self.model.trouble = [None] * position + [lambda: self.expected(rival, event)]
        result = self.run(self.played(instance, act))
        assert result == self.expected(instance, act)
        self.store.calm()
        self.model.trouble = []
        self.alerts.is_away = self.model.alerts.is_away = False

    @rule(
        instance=st.sampled_from(INSTANCES),
        minutes=st.sampled_from([1, 14, 16, 61]),
        times=st.integers(2, 6),
    )
    def lasts(self, instance: int, minutes: int, times: int) -> None:
        """An incident is seen again and again."""
        for number in range(times):
            self.acts(instance, ("report", 0, 20, f"O-{number}"), (0, None))
            self.passes(60 * minutes)
            self.acts(1 - instance, ("note", 0, 20, ""), (0, None))

    @rule(instance=st.sampled_from(INSTANCES), number=st.integers(0, 1), is_new=st.booleans())
    def a_step_of_it_succeeds(self, instance: int, number: int, is_new: bool) -> None:
        """The instance knows nothing of the incident yet, or has not written all that it saw."""
        if is_new:
            self.starts(instance)
        else:
            for minutes in (1, 5):
                self.acts(instance, ("report", number, minutes, "O-1"), (0, None))
            self.passes(61)
        self.acts(instance, ("end", number, 1, ""), (0, None))

    @precondition(lambda self: BREAKER in self.names)
    @rule(instance=st.sampled_from(INSTANCES), seconds=st.sampled_from([1, 61]))
    def waits_behind_what_a_rival_writes(self, instance: int, seconds: int) -> None:
        """Steps rest behind an open circuit. Both instances write that incident at once."""
        circuit, rest = self.names.index(BREAKER), self.names.index(RESTS)
        for order in ("O-1", "O-2"):
            self.acts(1 - instance, ("report", circuit, 20, order), (0, None))
            self.acts(instance, ("report", rest, 5, order), (0, None))
        for number in range(2):
            self.passes(seconds)
            self.acts(instance, ("note", 0, 1, ""), (number, ("note", 0, 1, "")))

    async def health(self) -> tuple[list[Incident], list[Name]]:
        incident = incident_of(BREAKER, 20, self.clock.now())
        return ([incident], []) if self.model.is_open else ([], [BREAKER])

    async def fails(self) -> None:
        self.fails_at_once()

    def fails_at_once(self) -> None:
        raise StoreUnavailableError("away")

    async def played(self, instance: int, act: Act) -> str:
        board, (verb, number, minutes, order) = self.boards[instance], act
        name = self.names[number]
        try:
            if verb == "report":
                await board.report(incident_of(name, minutes, self.clock.now()), order)
            elif verb == "end":
                await board.end(*name)
            elif verb == "note":
                await board.note()
            else:
                await board.check_health()
        except StoreUnavailableError:
            return "store away"
        return "done"

    def expected(self, instance: int, act: Act) -> str:
        try:
            self.model.act(self.memories[instance], act, self.clock.now())
        except StoreUnavailableError:
            return "store away"
        return "done"

    @invariant()
    def all_share_the_incidents_of_the_model(self) -> None:
        stored = self.run(active_incidents(self.store).all())
        episodes = {
            name: Episode(
                Seen(value.since, value.until, value.times, value.orders),
                value.last_seen,
                value.alerts_sent,
                value.last_alert_at,
            )
            if (value := shared.value)
            else None
            for name, shared in stored.items()
        }
        assert episodes == {name_of(*name): active for name, active in self.model.shared.items()}
        assert list(self.alerts.by_id) == list(self.model.alerts.by_id)


IncidentMachine.TestCase.settings = settings(stateful_step_count=40)
TestIncidents = IncidentMachine.TestCase
