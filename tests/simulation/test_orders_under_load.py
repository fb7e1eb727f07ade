"""More orders at once than can be worked upon in their time: load alone fails none.

A request (or its reply) then lies in its queue for longer than the time allowed. That says nothing
of a step, and asking for it again only makes the queue longer.
"""

from __future__ import annotations

from collections import Counter

import pytest

from sas.domain.order import OrderState
from sas.features.queue_delay.excuses import QueueExcuses
from sas.testing.plan import Faults
from sas.testing.settings import ENVIRONMENT
from tests.long import Seeds, ranges
from tests.simulation.system import System, build, check_end

BURST = 120
ALLOWED_S = 10.0
OPERATION_S = 0.2


def loaded(seed: int, faults: Faults, operation_s: float = OPERATION_S) -> System:
    """Return a system that takes minutes for a burst: four handlers, each operation of the store
    a fifth of a second.
    """
    system = build(seed, faults, failures_max_seconds=ALLOWED_S, clocks_apart=(0.0, 1.0))
    system.world.at_once = 4
    system.slow_store(operation_s)
    for number in range(BURST):
        system.submit(f"O-{number}", "order")
    return system


async def run(system: System) -> Counter[str]:
    """Run to the end; return what every journal says happened, counted."""
    try:
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    return Counter(row.what for stored in system.store.orders.values() for row in stored.journal)


async def test_a_burst_of_orders_is_processed_whole_and_hardly_any_step_is_asked_for_twice() -> (
    None
):
    system = loaded(0, Faults())
    words = await run(system)
    assert set(system.states().values()) == {OrderState.PROCESSED}
    assert words["step processed"] == 3 * BURST
    assert words["claimed"] < 1.3 * BURST
    assert words["step reset"] < 0.1 * BURST


@pytest.mark.long
async def test_without_excuses_the_same_burst_undoes_orders_that_nothing_was_wrong_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the test above can fail."""

    async def blind(*_what: object) -> None:
        return

    monkeypatch.setattr(QueueExcuses, "of", blind)
    system = loaded(1, Faults())
    words = await run(system)
    assert Counter(system.states().values())[OrderState.COMPENSATED] > 3
    assert words["step reset"] > BURST / 2


@pytest.mark.parametrize("seeds", ranges(1, 6))
async def test_under_load_and_faults_every_order_ends_whole(seeds: Seeds) -> None:
    faults = Faults(
        crash=0.002,
        lock_lost=0.02,
        duplicate=0.02,
        store_conflict=0.01,
        transient=0.1,
        lost_answer=0.05,
        hangs=0.02,
        refused=0.05,
    )
    for seed in seeds:
        system = loaded(seed, faults)
        await run(system)
        states = Counter(system.states().values())
        assert states[OrderState.PROCESSED] > BURST / 2


@pytest.mark.long
async def test_the_operator_gets_one_alert_for_each_queue_with_a_long_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "SAS_QUEUE_DELAY_SECONDS", "60")
    system = loaded(3, Faults(), operation_s=0.5)
    for number in range(BURST // 2):
        system.submit(f"M-{number}", "order")
    await run(system)
    kinds = system.alerts()
    assert 1 <= kinds["queue-delay"] <= 3
    assert set(kinds) <= {"queue-delay", "cleared"}
    assert set(system.states().values()) == {OrderState.PROCESSED}
