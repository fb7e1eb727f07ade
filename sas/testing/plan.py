"""What happens in one simulation: orders, commands of operators, and faults.

A test writes its plan, or a seed draws a plan. A plan is a list of items. A part of the list is a
plan too, so a plan that fails can be made shorter until nothing can be left out: see
``sas.testing.shrink``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sas.domain.messages import Verb
from sas.domain.workflow import Workflows
from sas.testing.platform import QUEUES, REPLIES_TO

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
VERBS = (Verb.RESUBMIT, *(verb for verb in Verb if verb is not Verb.CALLBACK))
_OUTAGES_S = (
    (1.0, 20.0),
    (20.0, 3 * MINUTE),
    (3 * MINUTE, 40 * MINUTE),
    (HOUR, 8 * HOUR),
    (DAY, 3 * DAY),
)
_OUTAGE_WEIGHTS = (60, 80, 50, 4, 1)
COPIES_S = 60.0
_COPYING = frozenset({"crash", "duplicate", "late", "given_up", "lock_lost", "bus_lost_answer"})
"""Faults after which a message that is put back may leave a copy on ``orders``. This queue has no
duplicate detection, and every copy is put back too. The faults of a simulation are so frequent that
in an outage longer than ``COPIES_S`` the copies would multiply without end. In Azure they are rare,
and the copies do not multiply (docs/adr/0024).
"""
NO_WORKFLOW = "of-nobody"
"""The workflow of an order that must be rejected."""
_STAGE_SECONDS = 180.0
"""Orders arrive, and outages and kills begin, within this time. Operators act within four times as
long."""


@dataclass(slots=True, kw_only=True)
class Faults:
    """What happens by chance: shares of operations, deliveries or calls, from 0 to 1.

    Faults of the platform: a handler that ``stalls`` waits for up to ``stall_seconds_max``, and
    then goes on. A ``store_throttled`` operation waits for up to twelve seconds, and fails if the
    real adapter would have given up by then. A message is ``given_up`` while its handler goes on.
    A message that comes ``late`` comes again within ``late_seconds_max``, although its handler may
    have completed it, because the queue lost the completion.

    Faults of remote services: a call with a ``lost_answer`` has had its effect. A call that ends
    ``later`` returns ``StillRunning``, and a later call has the effect, after ``look_seconds_max``
    at most. A call takes up to ``seconds_max``.
    """

    crash: float = 0.0
    stalls: float = 0.0
    stall_seconds_max: float = 180.0
    lock_lost: float = 0.0
    given_up: float = 0.0
    duplicate: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    late_seconds_max: float = 120.0
    store_down: float = 0.0
    store_throttled: float = 0.0
    store_lost_answer: float = 0.0
    store_conflict: float = 0.0
    bus_down: float = 0.0
    bus_lost_answer: float = 0.0
    transient: float = 0.0
    lost_answer: float = 0.0
    hangs: float = 0.0
    refused: float = 0.0
    undo_refused: float = 0.0
    later: float = 0.0
    seconds_max: float = 2.0
    look_seconds_max: float = 120.0

    def happens(self, fault: str, rng: random.Random) -> bool:
        """Return whether a fault happens now."""
        share: float = getattr(self, fault)
        return share > 0 and rng.random() < share

    def stop(self) -> None:
        """End every fault that could keep an order from its end.

        Refusals stay, because a service that refused a call refuses it for ever. Work that ends
        ``later`` stays too, because it ends.
        """
        for name in _SHARES:
            if name not in {"refused", "undo_refused", "later"}:
                setattr(self, name, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """An application sends an order, perhaps more than once."""

    at_s: float
    order_id: str
    workflow: str
    urgent: bool = False
    times: int = 1

    def __str__(self) -> str:
        times = f", {self.times} times" if self.times > 1 else ""
        return f"order {self.order_id} of {self.workflow} is submitted{times}"


@dataclass(frozen=True, slots=True)
class Away:
    """A dependency is away for a while. ``what`` is one of ``dependencies``, or ``OTHERS``."""

    at_s: float
    lasts_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.what} is away for {timedelta(seconds=self.lasts_s)}"


@dataclass(frozen=True, slots=True)
class Kill:
    """Instances are killed and start again: one of them, or all (None)."""

    at_s: float
    instance: int | None = None
    with_host: bool = False

    def __str__(self) -> str:
        who = "every instance" if self.instance is None else f"instance {self.instance}"
        return f"{who} is killed and starts again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """An operator gives a command, two times if ``twice`` is set.

    A ``stale`` command is based on the order before its last change. A callback by hand says that
    its step is done, or refused if the operator ``refuses``.
    """

    at_s: float
    order_id: str
    verb: Verb
    stale: bool = False
    edited: bool = False
    twice: bool = False
    refuses: bool = False

    def __str__(self) -> str:
        names = ["stale", "edited", "twice", *(["refuses"] if self.verb is Verb.CALLBACK else [])]
        marks = [name for name in names if getattr(self, name)]
        how = f" ({', '.join(marks)})" if marks else ""
        return f"an operator gives the command {self.verb.value} for order {self.order_id}{how}"


@dataclass(frozen=True, slots=True)
class Forge:
    """Another system dead-letters what looks like a reply to a request of an order."""

    at_s: float
    order_id: str


@dataclass(frozen=True, slots=True)
class Redrive:
    """An operator resends the rejected messages, as soon as there are any.

    ``back``: the operator uses ``--to``, so messages that only the system itself sends go back too,
    each to the queue that gave it up. ``twice``: the command dies after its send and before its
    removal, and the operator gives it again.
    """

    at_s: float
    back: bool
    twice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unforwarded:
    """Queues keep their dead letters in their subqueues. An operator redrives them each minute.

    ``queue`` names a queue, which then means its urgent lane too; None means every queue.
    ``at_once``: the queue gives a message up after its first delivery. ``twice``: two operators
    give the command at the same time. In the first ``die`` minutes with dead letters the commands
    die after their send and before their removal.
    """

    from_s: float
    queue: str | None
    at_once: bool
    twice: bool
    die: int


@dataclass(frozen=True, slots=True)
class Deploy:
    """Instances start with a newer version of every workflow, one after the other."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Chance:
    """A fault that happens by chance: the name of a field of ``Faults``, and its share."""

    name: str
    share: float

    def __str__(self) -> str:
        return f"by chance: {self.name.replace('_', ' ')}, {self.share:.3%}"


@dataclass(frozen=True, slots=True)
class Apart:
    """The clock of an instance is some seconds ahead of the others."""

    instance: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outside:
    """The work of an agent happens outside of the system, and ends with a callback."""

    agent: str


Item = (
    Submit | Away | Kill | Press | Forge | Redrive | Unforwarded | Deploy | Chance | Apart | Outside
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The items of one simulation, and the seed of everything that is left to chance."""

    seed: int
    instances: int
    items: tuple[Item, ...]

    def of(self, *kinds: type[Item]) -> list[Item]:
        """Return the items of some kinds."""
        return [item for item in self.items if isinstance(item, kinds)]


OTHERS = ("table throttled", "every instance", "clock ahead", "clock behind")
"""What only a test takes away. The table is throttled; every instance dies and cannot start; the
clock of one instance is wrong. ``drawn`` never draws them.
"""


def dependencies(agents: Sequence[str]) -> list[str]:
    """Return everything that may be away."""
    inner = [QUEUES.orders, QUEUES.scheduler, *map(QUEUES.agent, agents)]
    outer = [REPLIES_TO, QUEUES.alerts, QUEUES.rejected, QUEUES.dead_letters]
    return [
        "table",
        "one shard of the table",
        "namespace",
        *(f"queue {name} disabled" for name in (*inner, *outer)),
        *(f"queue {name} takes nothing" for name in (*inner, *outer[:2])),
        *(f"service {name}" for name in agents),
    ]


def drawn(seed: int, workflows: Workflows, orders: int = 6) -> Plan:
    """Return the plan of a seed: up to ``orders`` orders, and some of the things that can happen.

    The order of the draws is part of each seed's story: see "Why a seed repeats itself" in
    ``sas.testing.world``. A new kind of item therefore draws from a generator of its own, as
    ``_redrives`` does. Otherwise every seed would tell another story from then on.
    """
    rng = random.Random(seed)  # noqa: S311  a simulation repeats itself
    names = sorted({workflow.name for workflow in workflows})
    agents = sorted(workflows.agents())
    instances = rng.randint(1, 3)
    items: list[Item] = [
        Submit(
            at_s=_moment(rng),
            order_id=f"O-{number}",
            workflow=NO_WORKFLOW if rng.random() < 0.03 else rng.choice(names),
            urgent=rng.random() < 0.2,
            times=1 + (rng.random() < 0.2),
        )
        for number in range(rng.randint(1, orders))
    ]
    submits = [item for item in items if isinstance(item, Submit)]
    mood = rng.choice(list(_MOODS))
    items += _chances(rng, mood)
    items += [Apart(n, rng.uniform(-4, 4)) for n in range(instances) if rng.random() < 0.3]
    items += [Outside(agent) for agent in agents if rng.random() < 0.08]
    items += [_away(rng, agents) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    if mood == "services":
        flapping = f"service {rng.choice(agents)}"
        items += [
            Away(_moment(rng), round(rng.uniform(2, 30), 1), flapping)
            for _ in range(rng.randint(1, 5))
        ]
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        instance = None if rng.random() < 0.4 else rng.randrange(instances)
        items.append(Kill(_moment(rng), instance, rng.random() < 0.3))
    for _ in range(rng.choice((4, 6, 8) if mood == "operator" else (0, 0, 1, 3, 6))):
        items.append(_press(rng, rng.choice(submits)))
    if mood == "letters":
        items += [Forge(*_soon_after(rng, rng.choice(submits))) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.1:
        items.append(Deploy(_moment(rng)))
    items += _callbacks(random.Random(f"callbacks of {seed}"), submits)  # noqa: S311  as below
    items += _redrives(random.Random(f"redrives of {seed}"))  # noqa: S311  it repeats itself
    if unforwarded := _unforwarded(random.Random(f"subqueues of {seed}"), agents):  # noqa: S311  as above
        items = [item for item in items if not (isinstance(item, Chance) and item.name == "crash")]
        items += unforwarded
    if any(isinstance(item, Away) and item.lasts_s > COPIES_S for item in items):
        items = [item for item in items if not (isinstance(item, Chance) and item.name in _COPYING)]
    return Plan(seed, instances, tuple(items))


def _press(rng: random.Random, order: Submit) -> Press:
    at_s, order_id = _soon_after(rng, order)
    if rng.random() < 0.5:
        at_s = _moment(rng, 4)
    stale, edited, twice = (rng.random() < share for share in (0.15, 0.4, 0.2))
    verb = rng.choice(VERBS)
    return Press(at_s=at_s, order_id=order_id, verb=verb, stale=stale, edited=edited, twice=twice)


def _callbacks(rng: random.Random, submits: Sequence[Submit]) -> list[Item]:
    """Draw callbacks by hand, from a generator of their own like ``_redrives``."""
    return [
        Press(
            at_s=_moment(rng, 4),
            order_id=rng.choice(submits).order_id,
            verb=Verb.CALLBACK,
            refuses=rng.random() < 0.4,
            twice=rng.random() < 0.2,
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]


def _redrives(rng: random.Random) -> list[Item]:
    """Draw redrives from a generator of their own, so that the rest of each seed stays the same."""
    count = rng.choice((0, 0, 0, 1, 2, 3))
    return [Redrive(_moment(rng, 4), rng.random() < 0.5, rng.random() < 0.3) for _ in range(count)]


def _unforwarded(rng: random.Random, agents: Sequence[str]) -> list[Item]:
    """Draw queues that keep their dead letters, from a generator of their own too.

    Functions usually die more often in such a simulation, so that there is something to redrive.
    """
    if rng.random() < 0.7:
        return []
    inner = (QUEUES.orders, QUEUES.scheduler, *map(QUEUES.agent, agents))
    queue = None if rng.random() < 0.6 else rng.choice((*inner, QUEUES.dead_letters))
    at_once, twice = rng.random() < 0.8, rng.random() < 0.3
    item = Unforwarded(
        from_s=_moment(rng, 4),
        queue=queue,
        at_once=at_once,
        twice=twice,
        die=rng.choice((0, 0, 1, 2)),
    )
    return [item, Chance("crash", round(0.05 * rng.random(), 5))]


def _soon_after(rng: random.Random, order: Submit) -> tuple[float, str]:
    return round(order.at_s + rng.uniform(0, 20), 1), order.order_id


def _moment(rng: random.Random, times: float = 1.0) -> float:
    return round(rng.uniform(0, _STAGE_SECONDS * times * rng.random()), 1)


def _away(rng: random.Random, agents: Sequence[str]) -> Away:
    ((shortest, longest),) = rng.choices(_OUTAGES_S, _OUTAGE_WEIGHTS)
    at_s, lasts_s = _moment(rng), round(rng.uniform(shortest, longest), 1)
    return Away(at_s, lasts_s, what=rng.choice(dependencies(agents)))


_SHARES = {
    "crash": 0.02,
    "stalls": 0.004,
    "lock_lost": 0.05,
    "given_up": 0.02,
    "late": 0.05,
    "duplicate": 0.08,
    "store_down": 0.03,
    "store_throttled": 0.05,
    "store_lost_answer": 0.05,
    "store_conflict": 0.08,
    "bus_down": 0.03,
    "bus_lost_answer": 0.05,
    "transient": 0.3,
    "lost_answer": 0.2,
    "hangs": 0.2,
    "refused": 0.15,
    "undo_refused": 0.1,
    "later": 0.2,
}
"""The largest share of each fault."""
_MOODS: dict[str, dict[str, float]] = {
    "mixed": {},
    "services": {"lost_answer": 1.0, "transient": 0.6, "hangs": 0.6, "stalls": 0.03},
    "operator": {"refused": 0.8, "lost_answer": 1.0, "undo_refused": 0.5},
    "letters": {"given_up": 0.2, "late": 0.3, "stalls": 0.05, "store_throttled": 0.3},
}
"""In each mood some faults have a larger share, so that rare faults happen together."""


def _chances(rng: random.Random, mood: str) -> list[Item]:
    items: list[Item] = []
    larger = _MOODS[mood]
    for name, share_max in (_SHARES | larger).items():
        if name in larger or rng.random() < 0.35:
            exponent = 1 if name in larger else 2
            items.append(Chance(name, round(share_max * rng.random() ** exponent, 5)))
    return items
