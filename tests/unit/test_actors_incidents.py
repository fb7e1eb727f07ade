"""One alert covers all orders of an incident, also when sending it fails."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.queues import lane
from sas.domain.workflow import ExtendedWait, Step, Workflow
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.features.incidents.board import IncidentBoard, active_incidents
from sas.ports import Message
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.unit.actors_kit import ALLOWED, QUEUES, UNDO, Kit, keep_breaker, kit, order

WINDOW = timedelta(minutes=10)


async def waiting(count: int, **options: object) -> Kit:
    """Return orders that no scheduler picks up."""
    system = kit(duplicate_window=WINDOW)
    for number in range(count):
        await system.submit(order(f"O-{number}"), f"m-{number}")
    while system.bus.take(QUEUES.scheduler):
        pass
    return system


async def sweeps(system: Kit, minutes: float, interval_s: float = 30) -> None:
    """Let time pass with a sweep each half minute."""
    for _ in range(int(minutes * 60 / interval_s)):
        await system.later(interval_s)
        await system.sweep()


def alerts_sent(system: Kit) -> list[str]:
    return [alert.kind for alert in system.alerts()]


def board(system: Kit) -> IncidentBoard:
    assert isinstance(system.context.incidents, IncidentBoard)
    return system.context.incidents


def incident_of(system: Kit, minutes: float = 5, scope: str = "ordinary orders") -> Incident:
    now: datetime = system.clock.now()
    until = now + timedelta(minutes=minutes)
    return Incident(
        kind=AlertKind.NOT_PICKED_UP, scope=scope, text="Nobody works.", since=now, until=until
    )


async def test_a_scheduler_away_for_three_hours_is_reported_three_times_for_all_orders() -> None:
    system = await waiting(40)
    await sweeps(system, 180)
    assert system.words("O-7").count("woken again") > 10
    assert alerts_sent(system) == ["not-picked-up"] * 3
    first, second, _ = system.alerts()
    assert first.scope == "ordinary orders"
    assert first.order_id is None
    assert "first seen by order “O-" in first.text
    count = re.search(r"seen (\d+) times so far", second.text)
    assert count is not None
    assert int(count[1]) >= 39
    assert len({alert.id for alert in system.alerts()}) == 3


async def test_urgent_and_ordinary_orders_are_reported_apart() -> None:
    system = await waiting(2)
    urgent = lane(QUEUES.orders, urgent=True)
    await system.hand(Message(urgent, "m-u", order("U-1")))
    while system.bus.take(lane(QUEUES.scheduler, urgent=True)):
        pass
    await sweeps(system, 18)
    assert {alert.scope for alert in system.alerts()} == {"ordinary orders", "urgent orders"}
    assert len(system.alerts()) == 2


async def test_a_missing_workflow_version_is_reported_once_for_all_its_orders() -> None:
    system = await waiting(30)
    other = kit(
        Workflow("other", version=1, steps=(Step("reserve", agent="stock", time_allowed=ALLOWED),)),
        beside=system,
    )
    await sweeps(other, 12)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("not-runnable", "chain version 1")
    assert "Deploy that version again" in alert.text


async def test_steps_that_rest_for_the_same_service_are_reported_once() -> None:
    system = await resting(0)
    for number in range(25):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
    system.agents_die()
    await sweeps(system, 10)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("waiting", "chain version 1, step reserve")
    assert alert.command == "sas list --state running --workflow chain"
    assert (alert.workflow, alert.agent) == ("chain", "stock")
    assert system.words("O-24")[-1] == "extended wait"


async def resting(count: int) -> Kit:
    """Return orders whose first step times out past its threshold, each a minute after another."""
    rest = ExtendedWait(timedelta(minutes=10))
    step = Step(
        "reserve",
        agent="stock",
        time_allowed=ALLOWED,
        undo=UNDO,
        failures_max=0,
        extended_wait=rest,
    )
    system = kit(Workflow("chain", version=1, steps=(step,)))
    for number in range(count):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
        system.agents_die()
        await sweeps(system, 1)
    return system


async def resumed(system: Kit, order_id: str) -> None:
    """Let the supervisor sweep until an order is processed."""
    for _ in range(1000):
        if system.state(order_id) == "Processed":
            return
        await sweeps(system, 0.5)
        await system.drain()
    raise AssertionError(f"{order_id} is never processed")


async def test_the_incident_of_steps_that_rest_ends_with_the_last_rest() -> None:
    system = await resting(3)
    assert alerts_sent(system) == ["waiting"]
    await resumed(system, "O-1")
    assert alerts_sent(system) == ["waiting"], "O-2 still rests"
    await resumed(system, "O-2")
    assert alerts_sent(system) == ["waiting", "cleared"]


async def open_circuit(system: Kit, *, is_open: bool = True) -> None:
    now = system.clock.now()
    state = BreakerState.OPEN if is_open else BreakerState.CLOSED
    await keep_breaker(system.store, Breaker(state=state, since=now, until=now, why="down"))
    await sweeps(system, 1.5)


async def test_an_incident_becomes_part_of_a_later_one_that_explains_it() -> None:
    system = await resting(2)
    await open_circuit(system)
    assert alerts_sent(system) == ["waiting", "breaker-open", "cleared"]
    end = system.alerts()[-1]
    assert end.text.endswith("Its steps rest behind breaker-open, agent stock.")
    values = (await active_incidents(system.store).all()).values()
    (circuit,) = (entry.value for entry in values if entry.value)
    assert (circuit.kind, circuit.times) == (AlertKind.BREAKER_OPEN, 2)
    assert set(circuit.orders) <= {"O-0", "O-1"}


async def test_the_alert_is_sent_before_the_order_is_committed() -> None:
    system = await waiting(1)
    await sweeps(system, 9)
    words = system.words("O-0")
    system.bus.plan = lambda _message: BusFault.UNAVAILABLE
    system.store.plan = lambda operation, _key: (
        StoreFault.UNAVAILABLE if operation == "hold" else None
    )
    await system.later(600)
    await system.sweep()
    assert system.words("O-0") == words  # its due row brings it back, with the alert
    system.bus.plan, system.store.plan = (lambda _message: None), (lambda _what, _key: None)
    await system.later(3)
    await system.sweep()
    assert alerts_sent(system) == ["not-picked-up"]
    assert len(system.words("O-0")) == len(words) + 1


async def test_an_active_incident_costs_another_order_no_storage_and_no_message() -> None:
    system = kit()
    await system.run(board(system).report(incident_of(system), "A"))
    system.store.fail_next("read_shared", StoreFault.UNAVAILABLE)
    system.bus.plan = lambda _message: BusFault.UNAVAILABLE
    for number in range(100):
        await system.run(board(system).report(incident_of(system), f"O-{number}"))
    assert len(system.alerts()) == 1


async def test_a_sweep_goes_on_if_incidents_cannot_be_recorded() -> None:
    system = await waiting(1)
    system.store.fail_next("shared_values", *[StoreFault.UNAVAILABLE] * 100)
    await sweeps(system, 16)
    assert "woken again" in system.words("O-0")
    assert alerts_sent(system) == ["not-picked-up"]
