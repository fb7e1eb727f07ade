"""The claim check from end to end in memory: large content is offloaded and fetched."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sas.bounds import PAYLOAD_INLINE_BYTES_MAX, RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.codec import internal
from sas.codec.record import record_of
from sas.config import read_config
from sas.domain.content import PayloadRef
from sas.domain.workflow import Step, Workflow
from sas.features.claim_check import ClaimCheck
from sas.ports import RefusedError, StoreUnavailableError
from sas.testing.store import StoreFault
from tests.unit.actors_kit import ALLOWED, QUEUES, Kit, kit, letter, order

LARGE = {"text": "é" * 20_000}
RESULT = "y" * 500_000


async def processed(**changes: Any) -> Kit:
    system = kit()
    await system.submit(order(**changes))
    await system.drain()
    return system


def sizes(system: Kit) -> list[int]:
    """Return the bytes of every message that any queue holds or held."""
    return [len(m.body) for queue in system.bus.queues for m in system.bus.messages(queue)]


async def test_a_large_order_is_offloaded_and_reaches_its_agents_whole() -> None:
    system = await processed(order=LARGE)
    assert system.state() == "Processed"
    payload = system.order().details.payload
    assert isinstance(payload, PayloadRef)
    for agent in system.agents.values():
        assert [call.order for _, call in agent.calls] == [LARGE]


@pytest.mark.parametrize(("extra_bytes", "apart"), [(0, False), (1, True)])
async def test_an_order_is_offloaded_from_one_byte_past_the_bound_on(
    extra_bytes: int, apart: bool
) -> None:
    room = PAYLOAD_INLINE_BYTES_MAX - len(json.dumps({"t": ""}))
    system = await processed(order={"t": "x" * (room + extra_bytes)})
    assert isinstance(system.order().details.payload, PayloadRef) is apart
    assert bool(system.store.payloads) is apart


async def test_a_large_result_travels_as_a_reference_to_the_next_agent_and_to_the_undo() -> None:
    system = kit()
    system.agents["stock"].then({"said": RESULT})
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.submit()
    largest = 0
    queues = [QUEUES.scheduler, QUEUES.agent("stock"), QUEUES.agent("payment")]
    for _ in range(100):
        largest = max(largest, *sizes(system))
        if not any(system.bus.messages(queue) for queue in queues):
            break
        for queue in queues:
            if system.bus.messages(queue):
                await system.step(queue)
    assert largest < 4_000
    assert isinstance(system.order().steps[0].result, PayloadRef)
    assert system.agents["payment"].calls[0][1].results == {"reserve": {"said": RESULT}}
    verb, call = system.agents["stock"].calls[-1]
    assert (verb, call.own_result) == ("undo", {"said": RESULT})


async def test_a_large_order_under_the_id_of_a_rejected_one_is_offloaded_too() -> None:
    system = kit()
    await system.run(system.dead_letters.handle(letter(order(), QUEUES.orders)))
    await system.submit(order(order=LARGE), "m-2")
    await system.drain()
    assert system.state() == "Processed"
    assert isinstance(system.order().details.payload, PayloadRef)
    assert system.agents["stock"].calls[0][1].order == LARGE


async def test_small_and_large_results_reach_the_next_agent_together() -> None:
    first = [Step(f"s{n}", agent="stock", time_allowed=ALLOWED, after=()) for n in range(2)]
    last = Step("last", agent="payment", time_allowed=ALLOWED, after=("s0", "s1"))
    system = kit(Workflow("chain", version=1, steps=(*first, last)))
    system.agents["stock"].then("small", RESULT)
    await system.submit()
    await system.drain()
    ((_, call),) = system.agents["payment"].calls
    assert call.results == {"s0": "small", "s1": RESULT}


@pytest.mark.parametrize(
    ("size", "has_results"),
    [(RESULT_INLINE_BYTES_MAX + 1, True), (70_000, False), (900_000, False)],
)
async def test_a_notification_has_a_large_result_or_says_that_it_is_left_out(
    size: int, has_results: bool
) -> None:
    system = kit()
    text = "x" * (size - 2)
    system.agents["stock"].then(text)
    system.agents["payment"].then(None)
    await system.submit()
    await system.drain()
    first, second, completed = [event.data for event in system.events()][1:]
    assert second.result == msgspec.Raw(b"null")
    for data in (first, completed):
        assert data.results_omitted is not has_results
    if has_results:
        assert json.loads(internal.text_of(first.result) or "") == text
        assert completed.results is not None
        assert msgspec.json.decode(completed.results["reserve"]) == text
    else:
        assert (first.result, completed.results) == (msgspec.UNSET, None)


async def test_results_that_fit_alone_but_not_together_are_left_out_at_the_end() -> None:
    system = kit()
    for agent in system.agents.values():
        agent.then("x" * 40_000)
    await system.submit()
    await system.drain()
    omitted = [event.data.results_omitted for event in system.events()]
    assert omitted == [False, False, False, True]


async def test_a_notification_without_one_of_its_results_has_none_of_them() -> None:
    system = kit()
    system.agents["stock"].then("x" * RESULT_INLINE_BYTES_MAX)
    await system.submit(order(workflow="care"))
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    await system.step(QUEUES.scheduler)
    system.store.payloads.clear()
    await system.drain()
    completed = system.events()[-1].data
    assert completed.state == "Processed"
    assert (completed.results, completed.results_omitted) == (None, True)


async def test_a_result_past_the_bound_is_not_kept() -> None:
    system = kit()
    system.agents["stock"].then("x" * (RESULT_BYTES_MAX - 1))
    await system.submit()
    await system.drain()
    assert system.state() == "Processing"
    assert system.store.payloads == {}


@pytest.mark.parametrize("fault", [StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER])
async def test_a_submission_whose_content_could_not_be_kept_comes_again(fault: StoreFault) -> None:
    system = kit()
    system.store.fail_next("put_payload", fault)
    with pytest.raises(StoreUnavailableError):
        await system.submit(order(order=LARGE))
    assert system.store.orders == {}
    await system.submit(order(order=LARGE))
    await system.drain()
    assert system.state() == "Processed"
    assert len(system.store.payloads["O-1"]) == 1


async def test_an_order_id_that_is_taken_keeps_nothing_of_the_second_order() -> None:
    system = await processed()
    await system.submit(order(order=LARGE), "m-2")
    assert system.notices()[-1] == "rejected"
    assert system.store.payloads == {}


async def test_a_dead_letter_under_an_id_that_is_taken_keeps_nothing_either() -> None:
    system = await processed()
    dead = letter(order(order=LARGE, submission_id="s-2"), "orders", "m-2")
    await system.run(system.dead_letters.handle(dead))
    assert system.words()[-1] == "fenced"
    assert system.store.payloads == {}


async def test_a_repeat_of_a_large_order_is_notified_and_stores_nothing_more() -> None:
    system = await processed(order=LARGE)
    before = system.store.requests
    await system.submit(order(order=LARGE), "m-2")
    assert system.events()[-1].data.duplicate
    assert len(system.store.payloads["O-1"]) == 1
    assert system.store.requests - before == 2


async def test_a_large_order_that_was_given_up_keeps_its_place_and_is_revived() -> None:
    system = kit()
    await system.run(system.dead_letters.handle(letter(order(order=LARGE), "orders", "m-1")))
    assert system.state() == "Rejected"
    assert isinstance(system.order().details.payload, PayloadRef)
    await system.submit(order(order=LARGE, submission_id="again"), "m-2")
    await system.drain()
    assert system.state() == "Processed"
    assert system.agents["stock"].calls[0][1].order == LARGE


async def test_a_purge_between_keeping_and_committing_takes_nothing_that_counts() -> None:
    system = kit()
    body = order(order=LARGE, submission_id="again")
    await system.run(system.dead_letters.handle(letter(order(order=LARGE), "orders", "m-1")))

    def purged(operation: str, _key: str) -> None:
        if operation == "commit":
            system.store.orders.clear()
            system.store.payloads.clear()
            system.store.plan = lambda _operation, _key: None

    system.store.plan = purged
    await system.submit(body)  # its first transaction fails; the second is written with its content
    assert system.words() == ["submitted"]
    await system.drain()
    assert system.state() == "Processed"
    assert system.agents["stock"].calls[0][1].order == LARGE


async def test_lost_content_is_reported_once_and_its_step_waits_until_it_is_back() -> None:
    system = kit()
    await system.submit(order(order=LARGE))
    await system.step(QUEUES.scheduler)
    payload = system.store.payloads.pop("O-1")
    for _ in range(2):
        await system.step(QUEUES.agent("stock"))
        assert system.agents["stock"].calls == []
        await system.later(12)
    system.store.payloads["O-1"] = payload
    await system.drain()
    assert system.state() == "Processed"
    first, second = system.alerts()
    assert (first.kind, first.step, first.id) == ("unreadable", "reserve", second.id)
    assert "cannot be read" in first.text


async def test_a_step_whose_content_stays_lost_waits_without_a_failure_and_goes_on_then() -> None:
    system = kit()
    await system.submit(order(order=LARGE))
    await system.step(QUEUES.scheduler)
    payload = system.store.payloads.pop("O-1")
    for _ in range(8):
        await system.drain()
        await system.later(12)
        await system.sweep()
    ids = {alert.id for alert in system.alerts() if alert.kind == "unreadable"}
    assert len(ids) == system.order().steps[0].epoch > 1  # one alert for each dispatch
    assert system.order().steps[0].failure_count == 0
    assert [agent.calls for agent in system.agents.values()] == [[], []]
    system.store.payloads["O-1"] = payload
    for _ in range(4):
        await system.drain()
        await system.later(12)
        await system.sweep()
    assert system.state() == "Processed"


async def test_content_that_is_lost_is_exported_as_lost_and_never_stops_an_export() -> None:
    system = await processed(order=LARGE)
    system.store.payloads.clear()
    read = await system.run(ClaimCheck(system.store).fetch_all(system.order()))
    record = record_of(read, system.journal(), content=True)
    ref = system.order().details.payload
    assert isinstance(ref, PayloadRef)
    assert record["Payload"] == {"Lost": True, "Sha256": ref.sha256, "Bytes": ref.size}


def test_the_largest_order_message_may_be_four_megabytes() -> None:
    env = {"ServiceBus": "Endpoint=sb://x", "SAS_TABLES": "UseDevelopmentStorage=true"}
    assert read_config(env).order_bytes_max == 258_048
    env["SAS_MESSAGE_BYTES_MAX"] = "5242880"
    assert read_config(env).order_bytes_max == 4_194_304
