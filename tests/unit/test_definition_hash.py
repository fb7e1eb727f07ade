"""The hash of a definition: what changes it, and what may be tuned at any time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow
from sas.features.version_check import Versions, definition_hash, value_name
from sas.ports import CorruptOrderError, StoreMismatchError
from sas.testing.store import MemoryStore
from tests.each import each
from tests.simulation.machines.contested_store import ContestedStore
from tests.unit.domain_cases import story

STEPS = (
    Step("reserve", agent="stock", undo=Undo()),
    Step("pay", agent="payment", after=(), undo=Undo()),
    Step("ship", agent="shipping"),
)
BASE = Workflow("order", version=1, steps=STEPS)


def with_step(number: int, **changes: Any) -> Workflow:
    steps = list(STEPS)
    steps[number] = replace(steps[number], **changes)
    return replace(BASE, steps=tuple(steps))


def test_a_definition_written_again_has_the_same_fingerprint() -> None:
    copy = Workflow("order", version=1, steps=tuple(replace(step) for step in STEPS))
    assert definition_hash(copy) == definition_hash(BASE)
    assert len(definition_hash(BASE)) == 64


def test_it_is_the_same_in_every_process_and_version_of_this_code() -> None:
    assert definition_hash(BASE).startswith("fb6493ce9544f88c")


@each(
    [
        replace(BASE, name="orders"),
        replace(BASE, version=2),
        replace(BASE, on_failure=OnFailure.UNDO),
        replace(BASE, steps=STEPS[:2]),
        replace(BASE, steps=(STEPS[1], STEPS[0], STEPS[2])),
        with_step(0, name="hold"),
        with_step(0, agent="inventory"),
        with_step(0, undo=None),
        with_step(2, undo=Undo()),
        with_step(2, after=("reserve",)),
        with_step(0, alternatives=("warehouse",)),
    ]
)
def test_what_orders_in_flight_rely_on_changes_it(changed: Workflow) -> None:
    assert definition_hash(changed) != definition_hash(BASE)


def test_each_step_that_a_step_comes_after_changes_it() -> None:
    afters = ((), ("pay",), ("reserve",), ("reserve", "pay"))
    assert len({definition_hash(with_step(2, after=after)) for after in afters}) == len(afters)


async def test_of_two_definitions_that_are_first_used_at_once_the_second_one_is_refused() -> None:
    tale, store = story("two in a row"), ContestedStore()
    first = Versions(store, [replace(tale.workflow, on_failure=OnFailure.HOLD)])
    store.before_writes.append(lambda: first.check(tale.order))
    second = Versions(store, [replace(tale.workflow, on_failure=OnFailure.UNDO)])
    for _ in range(2):
        with pytest.raises(StoreMismatchError):
            await second.check(tale.order)


def test_which_alternatives_a_step_has_and_in_which_order_changes_it() -> None:
    workflows = [
        with_step(0, alternatives=("one", "two")),
        with_step(0, alternatives=("two", "one")),
        with_step(0, alternatives=("one",)),
        with_step(0, agent="one", alternatives=("stock",)),
        with_step(1, alternatives=("one",)),
        BASE,
    ]
    assert len({definition_hash(workflow) for workflow in workflows}) == len(workflows)


@each(
    [
        with_step(0, time_allowed=timedelta(seconds=5)),
        with_step(0, failures_max=9),
        with_step(0, backoff=Backoff(timedelta(seconds=1))),
        with_step(0, extended_wait=ExtendedWait(timedelta(minutes=1))),
        with_step(0, undo=Undo(timedelta(seconds=5), drain_time=timedelta(seconds=1))),
        with_step(2, after=("pay",)),  # what None means there
        replace(BASE, notify_steps=True),
        replace(BASE, pickup=timedelta(seconds=5)),
        replace(BASE, deadline=timedelta(hours=1)),
        replace(BASE, alert_after=timedelta(hours=1)),
    ]
)
def test_what_may_be_tuned_at_any_time_does_not(tuned: Workflow) -> None:
    assert definition_hash(tuned) == definition_hash(BASE)


def test_each_version_has_a_shared_value_of_its_own() -> None:
    cells = {value_name(name, version) for name in ("a", "a-1", "b") for version in (1, 2, 11)}
    assert len(cells) == 9


async def test_an_order_whose_rows_were_changed_to_other_steps_or_agents_is_refused() -> None:
    tale = story("two in a row")
    versions = Versions(MemoryStore(), [tale.workflow])
    await versions.check(tale.order)
    first, second = tale.order.steps
    for steps in (
        (first,),
        (replace(first, name="c"), second),
        (replace(first, call=replace(first.call, route=1)), second),
    ):
        with pytest.raises(CorruptOrderError):
            await versions.check(replace(tale.order, steps=steps))
