"""What a deploy may change under a version that orders in flight use, change by change."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from sas.cli.main import main
from sas.domain.workflow import Backoff, OnFailure, Step, Undo, Workflow, Workflows
from sas.features.version_check import Versions
from sas.ports import Business, StoreMismatchError
from sas.testing.store import MemoryStore
from tests.unit.actors_kit import Kit, ScriptedAgent, command, kit, order
from tests.unit.test_cli_workflows import run_in_thread
from tests.unit.test_cli_workflows import store as store  # noqa: PLC0414  a fixture

Capture = pytest.CaptureFixture[str]
MINUTE = timedelta(minutes=1)
STEPS = (
    Step("reserve", agent="stock", time_allowed=MINUTE, undo=Undo(MINUTE)),
    Step("pay", agent="payment", time_allowed=MINUTE, undo=Undo(MINUTE), alternatives=("stock",)),
)
CHAIN = Workflow("chain", version=1, steps=STEPS, on_failure=OnFailure.HOLD)
SECRET = {"chain": ("card",)}
Check = Callable[..., int]


def with_step(number: int, **changes: Any) -> Workflow:
    steps = list(STEPS)
    steps[number] = replace(steps[number], **changes)
    return replace(CHAIN, steps=tuple(steps))


FINE = {
    "nothing": CHAIN,
    "a time allowed": with_step(0, time_allowed=2 * MINUTE),
    "the time of an undo": with_step(0, undo=Undo(2 * MINUTE, drain_time=MINUTE)),
    "a threshold": with_step(0, failures_max=9),
    "a backoff": with_step(0, backoff=Backoff(MINUTE)),
    "a deadline": replace(CHAIN, deadline=timedelta(days=1)),
    "notifications": replace(CHAIN, notify_steps=True),
    "when it is told": replace(CHAIN, alert_after=MINUTE, pickup=MINUTE),
}
BREAKING = {
    "a step's name": with_step(0, name="take"),
    "a step more": replace(CHAIN, steps=(*STEPS, Step("ship", agent="stock"))),
    "a step less": replace(CHAIN, steps=STEPS[:1]),
    "their order": replace(CHAIN, steps=STEPS[::-1]),
    "what comes before": with_step(1, after=()),
    "an agent's name": with_step(0, agent="store"),
    "an alternative less": with_step(1, alternatives=()),
    "an alternative more": with_step(0, alternatives=("store",)),
    "which agent comes first": with_step(1, agent="stock", alternatives=("payment",)),
    "an undo less": with_step(0, undo=None),
    "what follows a failure": replace(CHAIN, on_failure=OnFailure.UNDO),
}


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def run(
        *defined: Workflow,
        options: tuple[str, ...] = (),
    ) -> int:
        workflows = Workflows(defined)
        agents = {name: ScriptedAgent() for name in workflows.agents()}
        module = ModuleType("an_app_of_this_test")
        new_business = Business(workflows=workflows, agents=agents)
        module.__dict__["business"] = lambda: new_business
        monkeypatch.setitem(sys.modules, module.__name__, module)
        app = ("--app", f"{module.__name__}:business")
        return run_in_thread(lambda: main(["workflows", "check", *app, *options]))

    return run


async def in_flight(store: MemoryStore, *ids: str) -> Kit:
    """Submit orders of version 1, its definition remembered."""
    system = kit(CHAIN)
    system.store.orders, system.store._due = store.orders, store._due
    for order_id in ids or ("o-1",):
        await system.submit(order(order_id, order={"card": "4111-1111", "n": 1}), order_id)
    await Versions(store, [CHAIN]).check(system.order((ids or ("o-1",))[0]))
    return system


@pytest.mark.parametrize("change", FINE)
async def test_what_may_be_tuned_passes(store: MemoryStore, check: Check, change: str) -> None:
    await in_flight(store)
    assert check(FINE[change]) == 0


@pytest.mark.parametrize("change", BREAKING)
async def test_what_would_break_an_order_in_flight_is_refused_and_the_order_named(
    store: MemoryStore, check: Check, change: str, capsys: Capture
) -> None:
    await in_flight(store)
    assert check(BREAKING[change]) == 1
    text = capsys.readouterr().out
    assert text == (
        "chain version 1: 1 order in flight (o-1); changed: give the new definition a version of "
        "its own and keep the old one\n"
    )
    newer = replace(BREAKING[change], version=2)
    assert check(CHAIN, newer) == 0
    assert check(newer) == 1
    assert "chain version 1: 1 order in flight (o-1); missing: keep" in capsys.readouterr().out


async def test_as_json_every_order_in_flight_is_named(
    store: MemoryStore, check: Check, capsys: Capture
) -> None:
    ids = [f"o-{number}" for number in range(7)]
    await in_flight(store, *ids)
    newer = replace(CHAIN, version=2)
    assert check(newer, options=("--json",)) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["Version"], record["Defined"]) for record in records] == [(1, False), (2, True)]
    assert sorted(records[0]["InFlight"]) == ids
    assert records[0]["Trouble"].startswith("missing: ")
    assert (records[1]["InFlight"], records[1]["Trouble"]) == ([], None)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KeyError("PATH_OF_US"), "cannot be loaded: KeyError: 'PATH_OF_US'"),
        (RuntimeError("no"), "cannot be loaded: RuntimeError: no"),
        (ValueError("give a version"), "cannot be loaded: give a version"),
    ],
)
def test_an_app_that_fails_as_it_is_loaded_is_one_sentence(
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    error: Exception,
    sentence: str,
) -> None:
    def business() -> Business:
        raise error

    module = ModuleType("an_app_of_this_test")
    module.__dict__["business"] = business
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert main(["workflows", "check", "--app", "an_app_of_this_test:business"]) == 2
    assert capsys.readouterr().err == f"sas: --app an_app_of_this_test:business {sentence}\n"


# Where it was deployed all the same


async def test_an_order_is_never_undone_by_the_steps_of_another_definition() -> None:
    """It ended, and its version was given away all the same; an operator undoes it."""
    system = kit(CHAIN)
    await system.submit()
    await system.drain()
    before = system.order()
    after = replace(CHAIN, steps=(STEPS[0], Step("mail", agent="payment", undo=Undo(MINUTE))))
    later = kit(after, beside=system)
    with pytest.raises(StoreMismatchError, match="version 1 was redefined since its orders began"):
        await later.hand(command("undo", before.seq))
    assert later.order() == before


async def test_a_command_for_an_order_whose_version_is_gone_is_refused_with_what_to_do() -> None:
    system = kit(CHAIN)
    await system.submit()
    before = system.order()
    later = kit(replace(CHAIN, version=2), beside=system)
    await later.hand(command("cancel", before.seq))
    assert later.order() == before
    assert "has no version 1: known are 2; deploy it again as it was" in later.alerts()[-1].text
