"""Services that go down and come back, again and again."""

from __future__ import annotations

from sas.testing.plan import Away, Faults
from tests.simulation.system import System

FAULTS = Faults(crash=0.01, lock_lost=0.03, duplicate=0.03, store_lost_answer=0.02, bus_down=0.01)


def flapping(system: System) -> list[Away]:
    """Return outages of every service: a few of some seconds each, one after the other."""
    rng = system.world.rng
    return [
        Away(40.0 * turn + rng.uniform(0, 15), rng.uniform(5, 25), f"service {name}")
        for name in sorted(system.agents)
        for turn in range(6)
        if rng.random() < 0.6
    ]
