"""What a deploy would break, version by version: definitions, and the types of stored content."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from sas import Saga
from sas.adapters.payload_codec import FernetCodec
from sas.domain.content import PayloadRef
from sas.domain.workflow import Backoff, OnFailure, Step, Undo, Workflow, Workflows
from sas.operate.finding import under_way
from sas.operate.versions import Break, WorkflowVersion, versions
from sas.ports import CorruptOrderError, PayloadCodec, RefusedError, StateStore, StoreMismatchError
from sas.saga import business_of
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.unit.actors_kit import Kit, command, kit, order
from tests.unit.claims_kit import OLD, ORDER, RESULT, Moved, Scan, claims

MINUTE = timedelta(minutes=1)
STEPS = (
    Step("reserve", agent="stock", time_allowed=MINUTE, undo=Undo(MINUTE)),
    Step("pay", agent="payment", time_allowed=MINUTE, undo=Undo(MINUTE), alternatives=("stock",)),
)
CHAIN = Workflow("chain", version=1, steps=STEPS, on_failure=OnFailure.HOLD)


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


async def check(store: StateStore, *defined: Workflow) -> dict[int, WorkflowVersion]:
    """Return each version of the workflow, as an application that defines these would find it."""
    return {each.version: each for each in await versions(store, Workflows(defined), None)}


async def in_flight(*ids: str) -> Kit:
    """Submit orders of version 1; the table remembers its definition."""
    system = kit(CHAIN)
    for order_id in ids:
        await system.submit(order(order_id), order_id)
    return system


async def test_what_may_be_tuned_passes() -> None:
    system = await in_flight("o-1")
    for change, workflow in FINE.items():
        version = (await check(system.store, workflow))[1]
        assert (version.breaks, version.trouble, version.in_flight) == (None, None, ["o-1"]), change


async def test_what_would_break_an_order_in_flight_is_refused() -> None:
    system = await in_flight("o-1")
    for change, workflow in BREAKING.items():
        newer = replace(workflow, version=2)
        version = (await check(system.store, workflow))[1]
        assert (version.breaks, version.changed) == (Break.CHANGED, True), change
        beside = (await check(system.store, CHAIN, newer)).values()
        assert [each.breaks for each in beside] == [None, None], change
        assert (await check(system.store, newer))[1].breaks is Break.MISSING, change


async def test_every_order_in_flight_is_named_also_one_in_error() -> None:
    ids = [f"o-{number}" for number in range(7)]
    system = await in_flight(*ids)
    system.agents["stock"].then(RefusedError("sold-out", "none left"))
    await system.drain()
    assert system.state("o-0") == "Error"
    await system.submit(order("o-7"), "o-7")
    (first, second) = (await check(system.store, replace(CHAIN, version=2))).values()
    assert (first.defined, first.recorded, first.in_flight) == (False, True, ["o-7", "o-0"])
    assert (second.defined, second.recorded, second.in_flight) == (True, False, [])
    assert (await check(system.store, BREAKING["a step less"]))[1].changed


async def test_other_steps_are_found_where_nothing_was_remembered() -> None:
    store = MemoryStore()
    await store.commit(cases.submitted("o-1"))
    other = Workflow("order", version=2, steps=(Step("step-0", agent="a"),))
    assert (await check(store, other))[2].breaks is Break.OTHER_STEPS


async def test_a_finished_order_whose_messages_may_be_unsent_is_not_in_flight() -> None:
    store, rules = MemoryStore(), cases.rules_of(1)
    order = await store.commit(cases.submitted("done", rules))
    order = await store.commit(cases.claimed(order, rules))
    await store.commit(replace(cases.answered(order, 0, rules), out_at=cases.NOW))
    assert await under_way(store) == ["done"]
    (chain, *others) = await versions(store, Workflows([CHAIN]), None)
    assert (chain.in_flight, others) == ([], [])


# -- The types of stored content --------------------------------------------------------------


async def held(*ids: str, result: Any, codec: PayloadCodec | None = None) -> Kit:
    """Put orders in flight: scan has returned this result, and pay is in Error."""
    system = kit(OLD.workflow, codec=codec)
    for order_id in ids:
        system.agents["stock"].then(result)
        system.agents["payment"].then(RefusedError("no-account", "there is no such account"))
        body = order(order_id, workflow="claim", order=ORDER)
        await system.submit(body, order_id)
        await system.drain()
        assert system.states(order_id) == ["Processed", "Error"]
    return system


Later = msgspec.defstruct(
    "Later", [("total", int), ("page", str | None, None), ("currency", str, "CHF")]
)
Needy = msgspec.defstruct("Needy", [("total", int), ("currency", str)])
Narrow = msgspec.defstruct("Narrow", [("total", int)], forbid_unknown_fields=True)
Words = msgspec.defstruct("Words", [("total", str)])


async def misfits(
    store: StateStore, saga: Saga[Any], codec: PayloadCodec | None = None
) -> list[str]:
    """Return what no longer fits the types of an application with this saga."""
    (version,) = await versions(store, business_of([saga]), codec)
    assert bool(version.trouble) == bool(version.misfits)
    return version.misfits


async def test_what_an_order_in_flight_holds_must_fit_the_types_of_the_app() -> None:
    system = await held("o-1", result=RESULT)
    for new, misfit in (
        (claims(result_shape=Later), ""),
        (claims(result_shape=Scan | None), ""),
        (
            claims(result_shape=Needy),
            "the result of scan does not fit Needy: Object missing required field `currency`",
        ),
        (
            claims(result_shape=Words),
            "the result of scan does not fit Words: Expected `str`, got `int` - at `$.total`",
        ),
        (
            claims(order_shape=Moved),
            "the order does not fit Moved: Object missing required field `street` - at `$.home`",
        ),
    ):
        assert await misfits(system.store, new) == [f"order o-1: {misfit}"] * bool(misfit)


async def test_the_trouble_names_the_first_misfit_and_how_many_more_there_are() -> None:
    system = await held("o-1", "o-2", result=RESULT)
    (version,) = await versions(system.store, business_of([claims(result_shape=Needy)]), None)
    assert [text.partition(":")[0] for text in version.misfits] == ["order o-1", "order o-2"]
    assert version.breaks is Break.MISFIT
    assert str(version.trouble).startswith(f"{version.misfits[0]} (and 1 more): a step that reads")


async def test_a_large_result_is_read_from_its_own_row() -> None:
    system = await held("o-1", result={"total": 3, "page": "7" * 100_000})
    assert isinstance(system.order("o-1").steps[0].result, PayloadRef)
    assert not await misfits(system.store, OLD)
    assert await misfits(system.store, claims(result_shape=Narrow))


async def test_a_result_that_a_skip_left_out_is_missing_unless_the_order_is_undone() -> None:
    system = await held("o-1", result=None)
    assert "the result of scan does not fit Scan: " in (await misfits(system.store, OLD))[0]
    system.agents["stock"].then(RefusedError("no", "no"))
    await system.hand(command("undo", system.order("o-1").seq, order_id="o-1"))
    await system.drain()
    assert system.state("o-1") == "Error"
    assert not await misfits(system.store, OLD)


async def test_encoded_content_is_compared_only_with_its_codec() -> None:
    codec = FernetCodec(["A" * 43 + "="])
    system = await held("o-1", result=RESULT, codec=codec)
    assert not await misfits(system.store, claims(result_shape=Needy))
    assert await misfits(system.store, claims(result_shape=Needy), codec)
    assert not await misfits(system.store, claims(result_shape=Later), codec)
    business = business_of([claims(result_shape=Needy)], codec)
    (version,) = await versions(system.store, business, FernetCodec(["B" * 43 + "="]))
    assert version.breaks is Break.MISFIT, "the codec of the application is the right one"


# -- Where it was deployed all the same -------------------------------------------------------


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


async def test_an_order_that_lost_a_step_by_hand_is_not_acted_on() -> None:
    system = kit()
    await system.submit()
    system.context.kept_orders.forget("O-1")
    whole = system.order()
    system.store.orders["O-1"].order = replace(whole, steps=whole.steps[:1])
    with pytest.raises(CorruptOrderError, match="it has 1 steps, and its workflow 2"):
        await system.context.load("O-1")
