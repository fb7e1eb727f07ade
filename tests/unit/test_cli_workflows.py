"""``sas workflows check``, over a store in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from sas.cli.main import main
from sas.domain.change import Change
from sas.domain.workflow import Step, Workflow, Workflows
from sas.features.version_check import Versions
from sas.ports import Business
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.unit.actors_kit import ScriptedAgent
from tests.unit.cli_kit import store

__all__ = ["store"]  # a fixture of the tests here

NAMES = ("step-0", "step-1", "step-2")
Check = Callable[..., int]


def workflow(version: int = 2, names: tuple[str, ...] = NAMES, agent: str = "a") -> Workflow:
    return Workflow(
        "order", version=version, steps=tuple(Step(name, agent=agent) for name in names)
    )


def business_of(workflows: Workflows) -> Business:
    return Business(
        workflows=workflows, agents={name: ScriptedAgent() for name in workflows.agents()}
    )


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def run(*defined: Workflow) -> int:
        module = ModuleType("an_app_of_this_test")
        module.__dict__["business"] = lambda: business_of(Workflows(defined))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return main(["workflows", "check", "--app", "an_app_of_this_test:business"])

    return run


async def in_flight(store: MemoryStore, count: int = 2) -> None:
    """Orders of version 2, the first in Error; its definition remembered."""
    first = await store.commit(cases.submitted("o-0"))
    first = await store.commit(cases.claimed(first))
    await store.commit(cases.refused(first, 0))
    for number in range(1, count):
        await store.commit(cases.submitted(f"o-{number}"))
    await Versions(store, [workflow()]).check(first)


async def finished(store: MemoryStore) -> None:
    await Versions(store, [workflow()]).check(cases.submitted("x").after)
    change: Change = cases.rejected("done", at=NOW - SECOND)
    await store.commit(change)


def run_in_thread(call: Callable[[], int]) -> int:
    """``main`` runs a loop of its own: not inside the test's."""
    import threading  # noqa: PLC0415

    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(call()))
    thread.start()
    thread.join(60)
    return codes[0]


async def test_definitions_as_they_were_are_fine(
    store: MemoryStore, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    await in_flight(store)
    assert run_in_thread(lambda: check(workflow(), workflow(3))) == 0
    assert capsys.readouterr().out.splitlines() == [
        "order version 2: 2 orders in flight (o-1, o-0); unchanged",
        "order version 3: no order in flight; not used yet",
    ]


async def test_a_version_that_orders_in_flight_use_may_not_go(
    store: MemoryStore, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    await in_flight(store, 5)
    assert run_in_thread(lambda: check(workflow(3))) == 1
    assert "order version 2: 5 orders in flight (" in (text := capsys.readouterr().out)
    assert "missing: keep this version until its orders have ended" in text


@pytest.mark.parametrize("changed", [workflow(agent="b"), workflow(names=("step-0", "step-2"))])
async def test_a_version_that_orders_in_flight_use_may_not_change(
    store: MemoryStore, check: Check, capsys: pytest.CaptureFixture[str], changed: Workflow
) -> None:
    await in_flight(store)
    assert run_in_thread(lambda: check(changed)) == 1
    streams = capsys.readouterr()
    assert "changed: give the new definition a version of its own" in streams.out
    assert run_in_thread(lambda: check(workflow())) == 0


async def test_other_steps_are_found_where_nothing_was_remembered(
    store: MemoryStore, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    await store.commit(cases.submitted("o-0"))
    assert run_in_thread(lambda: check(workflow(names=("step-0", "step-2")))) == 1
    assert "changed: orders in flight have other steps" in capsys.readouterr().out


async def test_a_version_that_only_finished_orders_used_may_not_change_either(
    store: MemoryStore, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    await finished(store)
    assert run_in_thread(lambda: check(workflow(agent="b"))) == 1
    assert "changed: give the new definition a version of its own" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("./orders", "is no module"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("json:x", "has no attribute 'x'"),
        ("json:__name__", "is str: give a module or a saga"),
        ("tests.business:business", "TESTS_STOCK_URL"),
    ],
)
def test_an_app_that_is_none_is_bad_usage(
    store: MemoryStore, app: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workflows", "check", "--app", app]) == 2
    assert sentence in capsys.readouterr().err


def test_the_business_of_this_repository_can_be_checked(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workflows", "check", "--app", "tests.business:workflows"]) == 0
    assert "order version 1: no order in flight; not used yet" in capsys.readouterr().out
