"""One alert covers all orders of an incident, also when sending it fails."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.queues import lane
from sas.domain.workflow import ExtendedWait, Step, Workflow
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.features.incidents.board import IncidentBoard, active_incidents
from sas.ports import BusUnavailableError, Message, StoreUnavailableError
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.long import seeds
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


async def test_the_end_of_an_incident_is_reported_once() -> None:
    system = await waiting(5)
    await sweeps(system, 20)
    start = system.alerts()[0]
    await system.drain()
    assert system.state("O-3") == "Processed"
    await sweeps(system, 60)
    assert alerts_sent(system)[-1] == "cleared"
    assert alerts_sent(system).count("cleared") == 1
    end = system.alerts()[-1]
    assert (end.cleared, end.scope, end.since) == ("not-picked-up", start.scope, start.since)


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


async def test_the_incident_of_steps_that_rest_ends_with_the_last_rest() -> None:
    system = await resting(3)
    assert alerts_sent(system) == ["waiting"]
    while system.state("O-1") != "Processed":
        await sweeps(system, 0.5)
        await system.drain()
    assert alerts_sent(system) == ["waiting"], "O-2 still rests"
    while system.state("O-2") != "Processed":
        await sweeps(system, 0.5)
        await system.drain()
    assert alerts_sent(system) == ["waiting", "cleared"]


async def open_circuit(system: Kit, *, is_open: bool = True) -> None:
    now = system.clock.now()
    state = BreakerState.OPEN if is_open else BreakerState.CLOSED
    await keep_breaker(system.store, Breaker(state=state, since=now, until=now, why="down"))
    await sweeps(system, 1.5)


async def test_steps_that_rest_while_a_circuit_is_open_are_named_by_its_incident_alone() -> None:
    system = await resting(0)
    await open_circuit(system)
    for number in range(3):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
    system.agents_die()
    await sweeps(system, 18)
    assert alerts_sent(system) == ["breaker-open"] * 2
    text = system.alerts()[-1].text
    assert "Waits behind it so far: 3, of orders such as “O-" in text
    await open_circuit(system, is_open=False)
    assert alerts_sent(system)[-1] == "cleared"


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


async def test_what_waited_behind_a_circuit_does_not_open_its_incident_again() -> None:
    """This instance writes what it saw after another one ended the incident."""
    system = kit()
    here, other = board(system), board(kit(beside=system, instance="host-2"))
    circuit = replace(incident_of(system), kind=AlertKind.BREAKER_OPEN, scope="agent stock")
    rest = replace(incident_of(system), kind=AlertKind.WAITING, scope="step", agent="stock")
    await system.run(here.report(circuit))
    await system.run(here.report(rest, "A"))
    await system.run(other.end(circuit.kind, circuit.scope))
    await system.later(61)
    await system.run(here.note())
    assert alerts_sent(system) == ["breaker-open", "cleared"]


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


async def test_an_alert_that_could_not_be_sent_is_raised_and_sent_the_next_time() -> None:
    system = kit(duplicate_window=WINDOW)
    incidents = board(system)
    system.bus.plan = lambda _message: BusFault.UNAVAILABLE
    system.store.fail_next("hold", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await system.run(incidents.report(incident_of(system), "A"))
    system.bus.plan = lambda _message: None
    await system.later(3)
    system.store.fail_next("write_shared", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await system.run(incidents.report(incident_of(system), "B"))
    await system.run(incidents.report(incident_of(system), "C"))
    assert set(alerts_sent(system)) == {"not-picked-up"}
    assert "first seen by order “A”, “B”, “C”" in system.alerts()[-1].text


async def test_two_instances_at_once_send_one_alert() -> None:
    system = kit(duplicate_window=WINDOW)
    other = kit(beside=system, instance="host-2")
    incident = incident_of(system)
    for here in (system, other, system, other):
        await system.run(board(here).report(incident, "A"))
        await system.run(board(here).note())
    assert alerts_sent(system) == ["not-picked-up"]


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


@pytest.mark.parametrize("seed", seeds(5, 60))
async def test_each_incident_is_reported_at_its_beginning_and_at_its_end(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311  a seed, to repeat it
    system = kit(duplicate_window=WINDOW)
    instances = [system, kit(beside=system, instance="host-2")]

    def plan(_message: object) -> BusFault | None:
        return dice.choice([None, None, BusFault.UNAVAILABLE])

    def trouble() -> None:
        for operation in ("read_shared", "write_shared", "shared_values"):
            if dice.random() < 0.3:
                system.store.fail_next(operation, StoreFault.UNAVAILABLE)

    system.bus.plan = plan
    is_reported = False
    for number in range(40):
        trouble()
        here = dice.choice(instances)
        if dice.random() < 0.1:  # the process dies, with what it only remembers
            instances[instances.index(here)] = kit(beside=system, instance=f"host-{number + 3}")
        try:
            await system.run(board(here).report(incident_of(system), f"O-{number}"))
            is_reported = True
        except (BusUnavailableError, StoreUnavailableError):
            pass
        held_kinds = [json.loads(message.body)["kind"] for message in system.held()]
        assert ("not-picked-up" in [*alerts_sent(system), *held_kinds]) >= is_reported
        await system.run(board(here).note())
        await system.later(dice.choice([1, 30, 200]))
    system.bus.plan = lambda _message: None
    for _ in range(4):
        await system.later(400)
        for here in instances:
            await system.run(board(here).note())
            await system.run(board(here).note())
        await system.sweep()  # alerts that were held
    alerts = {alert.id: alert for alert in system.alerts()}
    ends = {alert.since for alert in alerts.values() if alert.kind == "cleared"}
    starts = {alert.since for alert in alerts.values() if alert.kind == "not-picked-up"}
    assert is_reported
    assert ends == starts
    assert len(alerts) < 20
