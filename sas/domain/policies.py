"""How failures are met, as data; and ``Rules``, all that decisions know of a workflow.

Rules say what comes before what and how patient each step is. They know neither business nor
agents: the supervisor "shouldn't have knowledge of the actual business operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

TIME_ALLOWED_MIN = timedelta(milliseconds=100)
TIME_ALLOWED_MAX = timedelta(days=30)


class OnFailure(Enum):
    """What follows when a step failed past recovery."""

    HOLD = "hold"
    """The order stays in Error until an operator resubmits or undoes it."""
    UNDO = "undo"
    """Every step that may have had an effect is undone: the whole fails as one."""


@dataclass(frozen=True, slots=True)
class Undo:
    """How a step is undone: by the same agent, within a time of its own.

    ``call_limit`` is for a remote service that cannot refuse a do after its undo (it leaves no
    tombstone): how long after CompleteBy a call may still land. The undo waits that out.
    """

    time_allowed: timedelta = timedelta(seconds=60)
    call_limit: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a step that timed out rests before it is tried again: growing, up to ``most``."""

    first: timedelta = timedelta(0)
    factor: float = 2.0
    most: timedelta = timedelta(minutes=15)

    def delay(self, failures: int) -> timedelta:
        """Return the rest after so many failures (from 1)."""
        if not self.first:
            return self.first
        grown = self.first.total_seconds() * self.factor ** min(failures - 1, 64)
        return timedelta(seconds=min(grown, self.most.total_seconds()))


NO_BACKOFF = Backoff()
"""Again at once."""


@dataclass(frozen=True, slots=True)
class ExtendedWait:
    """Past the threshold, wait so long "in the expectation that the fault is resolved", then try
    again, at most ``times`` times; only then is the step failed.
    """

    time: timedelta
    times: int = 1


@dataclass(frozen=True, slots=True)
class StepRules:
    """What decisions know of a step: numbers of its predecessors, times, threshold, how many
    agents can do it.
    """

    name: str
    after: tuple[int, ...]
    time_allowed: timedelta
    undo_time_allowed: timedelta | None
    failures_max: int
    call_limit: timedelta | None = None
    backoff: Backoff = NO_BACKOFF
    extended_wait: ExtendedWait | None = None
    routes: int = 1


@dataclass(frozen=True, slots=True)
class Rules:
    """What decisions know of a workflow. ``pickup`` is how long a ready step may lie unclaimed
    before it is woken again; ``alert_after`` from what age on an operator is told of it.

    A step's routes are its agents by number, in order of preference. Of the moment are ``shut``,
    those (step, route) that are not to be had right now; and ``slack``, how much longer than the
    time allowed a request to one of them is given, for its queue is long.
    """

    steps: tuple[StepRules, ...]
    on_failure: OnFailure
    notify_steps: bool
    pickup: timedelta
    alert_after: timedelta
    deadline: timedelta | None = None
    shut: frozenset[tuple[int, int]] = frozenset()
    slack: Mapping[tuple[int, int], timedelta] = field(default_factory=dict, hash=False)

    def predecessors(self, number: int) -> tuple[int, ...]:
        """Return every step that comes before step ``number``, directly or through others."""
        found = set(self.steps[number].after)
        for earlier in range(number - 1, -1, -1):
            if earlier in found:
                found.update(self.steps[earlier].after)
        return tuple(sorted(found))

    def dependents(self, number: int) -> tuple[int, ...]:
        """Return every step that comes after step ``number``, directly or through others."""
        found = {number}
        for later in range(number + 1, len(self.steps)):
            if found.intersection(self.steps[later].after):
                found.add(later)
        return tuple(sorted(found - {number}))
