"""The faults of a run as data, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle

CLOCK_S_MAX = 4.0


class Kind(Enum):
    """What can fail. The value is what the report says."""

    KILL_HOST = "kill -9 of host"
    KILL_HOSTS = "kill -9 of every host"
    KILL_BROKER = "kill -9 of the broker"
    KILL_AZURITE = "kill -9 of Azurite"
    KILL_ALL = "kill -9 of everything"
    PAUSE_HOST = "SIGSTOP of host"
    QUEUE_DISABLED = "disabled queue"
    QUEUE_SEND_DISABLED = "send-disabled queue"
    QUEUE_RECEIVE_DISABLED = "receive-disabled queue"
    STORE_REFUSED = "table refuses connections"
    STORE_BUSY = "table answers 503"
    STORE_ANSWERS_LOST = "table's answers lost"
    STORE_SILENT = "table does not answer"
    CONNECTIONS_CUT = "connections to the broker cut"
    LOCKS_EXPIRED = "locks expired"
    ACKNOWLEDGEMENTS_LOST = "acknowledgements lost"
    BROKER_BUSY = "broker busy"
    DELIVERED_TWICE = "completed messages delivered again"
    CLOCK = "clock jump of host"


SECONDS: Mapping[Kind, tuple[float, float]] = {
    Kind.KILL_HOST: (0, 5),
    Kind.KILL_HOSTS: (0, 4),
    Kind.KILL_BROKER: (0, 5),
    Kind.KILL_AZURITE: (0, 3),
    Kind.KILL_ALL: (0, 3),
    Kind.PAUSE_HOST: (8, 14),
    Kind.QUEUE_DISABLED: (3, 12),
    Kind.QUEUE_SEND_DISABLED: (3, 12),
    Kind.QUEUE_RECEIVE_DISABLED: (3, 12),
    Kind.STORE_REFUSED: (1, 10),
    Kind.STORE_BUSY: (1, 10),
    Kind.STORE_ANSWERS_LOST: (1, 4),
    Kind.STORE_SILENT: (3, 8),
}
"""Shortest and longest time of a fault. A pause of a host is at least as long as locks (5 s) and
leases (8 s)."""
COUNTS: Mapping[Kind, tuple[int, int]] = {
    Kind.ACKNOWLEDGEMENTS_LOST: (1, 10),
    Kind.BROKER_BUSY: (5, 60),
    Kind.DELIVERED_TWICE: (1, 20),
}
"""The broker repeats a fault that it was armed with at least, and at most, so often."""
DECK: Mapping[Kind, int] = {
    Kind.KILL_HOST: 4,
    Kind.PAUSE_HOST: 3,
    Kind.QUEUE_DISABLED: 3,
    Kind.KILL_BROKER: 2,
    Kind.QUEUE_SEND_DISABLED: 2,
    Kind.STORE_REFUSED: 2,
    Kind.STORE_BUSY: 2,
    Kind.STORE_ANSWERS_LOST: 2,
    Kind.CONNECTIONS_CUT: 2,
    Kind.ACKNOWLEDGEMENTS_LOST: 2,
    Kind.CLOCK: 2,
    Kind.KILL_HOSTS: 1,
    Kind.KILL_AZURITE: 1,
    Kind.KILL_ALL: 1,
    Kind.QUEUE_RECEIVE_DISABLED: 1,
    Kind.STORE_SILENT: 1,
    Kind.LOCKS_EXPIRED: 1,
    Kind.BROKER_BUSY: 1,
    Kind.DELIVERED_TWICE: 1,
}
"""How many of each kind there are in 34 faults."""
OUTAGES: Mapping[Kind, int] = {
    Kind.BROKER_BUSY: 1,
    Kind.STORE_REFUSED: 1,
    Kind.STORE_BUSY: 1,
    Kind.CONNECTIONS_CUT: 1,
    Kind.STORE_ANSWERS_LOST: 1,
    Kind.QUEUE_DISABLED: 1,
    Kind.ACKNOWLEDGEMENTS_LOST: 1,
}
"""The faults of a soak. A worker must survive them, and its memory must not grow. Nothing is
killed, because a soak keeps all data in memory."""
QUEUES = (
    "agent-inventory",
    "agent-payment",
    "agent-shipping",
    "scheduler",
    "responses-web-shop",
    "responses-wholesale",
    "operator-alerts",
    "orders",
    "scheduler-urgent",
)
HOST_KINDS = frozenset({Kind.KILL_HOST, Kind.PAUSE_HOST, Kind.CLOCK})
QUEUE_KINDS = frozenset(
    {Kind.QUEUE_DISABLED, Kind.QUEUE_SEND_DISABLED, Kind.QUEUE_RECEIVE_DISABLED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. ``target`` is the group of a host, or a queue. ``shift_s`` is for a clock.

    After it the run pauses for ``pause_s``.
    """

    kind: Kind
    target: str = ""
    seconds: float = 0.0
    count: int = 0
    shift_s: float = 0.0
    pause_s: float = 0.0

    def __str__(self) -> str:
        """Return it in words."""
        parts = [self.kind.value, self.target]
        if self.seconds:
            parts.append(f"for {self.seconds:.1f} s")
        if self.count:
            parts.append(f"{self.count} times")
        if self.kind is Kind.CLOCK:
            parts.append(f"to {self.shift_s:+.1f} s")
        return " ".join(filter(None, parts))


def draw(
    count: int, chance: random.Random, hosts: Sequence[str], deck: Mapping[Kind, int] = DECK
) -> list[Fault]:
    """Return ``count`` faults. Every kind comes as often as the deck says."""
    cards = [kind for kind, number in deck.items() for _ in range(number)]
    queues = cycle(chance.sample(QUEUES, len(QUEUES)))
    faults: list[Fault] = []
    while len(faults) < count:
        chance.shuffle(cards)
        faults += [_fault(kind, chance, hosts, queues) for kind in cards]
    return faults[:count]


def _fault(kind: Kind, chance: random.Random, hosts: Sequence[str], queues: Iterator[str]) -> Fault:
    target = ""
    if kind in HOST_KINDS:
        target = chance.choice(hosts)
    elif kind in QUEUE_KINDS:
        target = next(queues)
    return Fault(
        kind=kind,
        target=target,
        seconds=round(chance.uniform(*SECONDS.get(kind, (0, 0))), 1),
        count=chance.randint(*COUNTS.get(kind, (0, 0))),
        shift_s=round(chance.uniform(-CLOCK_S_MAX, CLOCK_S_MAX), 1) if kind is Kind.CLOCK else 0.0,
        pause_s=chance.uniform(0.5, 2.5),
    )
