"""The purge beside live work: old orders go whole, younger ones and those undone meanwhile stay.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.actors.purge import Purger
from sas.domain.order import FINISHED, Order, OrderState
from sas.testing.plan import Faults
from tests.long import Seeds, ranges
from tests.simulation.system import System, build, check_end

RETENTION = timedelta(hours=1)
OLD, FRESH = 8, 4
FAULTS = Faults(
    crash=0.01,
    lock_lost=0.03,
    duplicate=0.03,
    store_down=0.02,
    store_conflict=0.03,
    store_lost_answer=0.02,
    bus_down=0.02,
)


SERVICES = {"transient": 0.1, "refused": 0.1, "hangs": 0.05}


class Purging:
    """Orders that are old by now; at every tick a purge, and at some a hand that undoes one."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.removed: dict[str, Order] = {}
        self.old = [f"O-{number}" for number in range(OLD)]
        self.undoing: set[str] = set()
        self._purger = Purger(system.context, RETENTION, timedelta(minutes=9))
        self._purge = system.context.store.purge
        system.context.store.purge = self._noted  # type: ignore[method-assign]
        self._sweep = system.world.timer

    async def _noted(self, *orders: Order) -> set[str]:
        self.removed |= {order.order_id: order for order in orders}
        return await self._purge(*orders)

    async def prepare(self) -> None:
        """Bring orders to their end, and let an age pass."""
        for number, order_id in enumerate(self.old):
            self.system.submit(order_id, "order" if number % 2 else "order-with-care")
        await self.system.world.run(self.system.at_rest)
        check_end(self.system)
        await self.system.world.clock.advance(2 * RETENTION.total_seconds())
        self.system.world.timer = self.tick

    async def tick(self) -> None:
        rng = self.system.world.rng
        if rng.random() < 0.5:
            self._undo(rng.choice(self.old))
        await self._purger.run()
        assert self._sweep is not None
        await self._sweep()

    def _undo(self, order_id: str) -> None:
        stored = self.system.store.orders.get(order_id)
        if stored is not None and order_id not in self.undoing:
            self.undoing.add(order_id)
            self.system.put_command(order_id, "undo", stored.order.seq)

    def gone(self) -> list[str]:
        return [order_id for order_id in self.old if order_id not in self.system.store.orders]

    def done(self) -> bool:
        """Whether all live orders are at rest and all old ones that may go are gone."""
        orders = self.system.store.orders
        before = self.system.world.clock.now() - RETENTION
        for order_id in self.gone():
            self.system.submitted.pop(order_id, None)
        old_orders = [orders[o].order for o in self.old if o in orders]
        may_go = [o for o in old_orders if o.process_state in FINISHED and o.stopped_at]
        return self.system.at_rest() and all((o.stopped_at or before) > before for o in may_go)


async def run(seed: int, faults: Faults) -> Purging:
    system = build(seed, Faults(**SERVICES))
    purging = Purging(system)
    try:
        await purging.prepare()
        system.world.faults = replace(faults, **SERVICES)
        for number in range(FRESH):
            system.submit(f"F-{number}", "order" if number % 2 else "order-with-care")
        await system.world.run(purging.done)
    finally:
        await system.close()
    return purging


def check_gone(purging: Purging) -> None:
    """Assert that each order that went had ended, and nothing undid it by half."""
    for order_id in purging.gone():
        order = purging.removed[order_id]
        where = f"seed {purging.system.world.seed} order {order_id}"
        assert order.process_state in {OrderState.PROCESSED, OrderState.COMPENSATED}, where
        for step in order.steps:
            there = purging.system.ledger.of(f"{order_id}/{step.name}").in_force
            assert there == (order.process_state is OrderState.PROCESSED), f"{where}: {step.name}"


@pytest.mark.parametrize("seeds", ranges(2, 30))
async def test_old_orders_go_whole_beside_live_ones_and_beside_an_operator_who_undoes_them(
    seeds: Seeds,
) -> None:
    for seed in seeds:
        purging = await run(seed, FAULTS)
        check_gone(purging)
        check_end(purging.system)
        stayed = set(purging.old) - set(purging.gone())
        for order_id in stayed:
            state = purging.system.states()[order_id]
            assert order_id in purging.undoing or state is OrderState.ERROR, (seed, order_id, state)
