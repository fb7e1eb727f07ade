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
from sas.features.claim_check import ClaimCheck
from sas.ports import RefusedError, StoreUnavailableError
from sas.testing.store import StoreFault
from tests.unit.actors_kit import QUEUES, Kit, kit, letter, order

LARGE = {"text": "é" * 20_000}
RESULT = "y" * 500_000


async def processed(**changes: Any) -> Kit:
    made = kit()
    await made.submit(order(**changes))
    await made.drain()
    return made


def sizes(made: Kit) -> list[int]:
    """Return the bytes of every message that any queue holds or held."""
    return [len(m.body) for queue in made.bus.queues for m in made.bus.messages(queue)]


async def test_a_large_order_is_offloaded_and_reaches_its_agents_whole() -> None:
    made = await processed(order=LARGE)
    assert made.state() == "Processed"
    payload = made.order().details.payload
    assert isinstance(payload, PayloadRef)
    for agent in made.agents.values():
        assert [call.order for _, call in agent.calls] == [LARGE]


@pytest.mark.parametrize(("more", "apart"), [(0, False), (1, True)])
async def test_an_order_is_offloaded_from_one_byte_past_the_bound_on(
    more: int, apart: bool
) -> None:
    room = PAYLOAD_INLINE_BYTES_MAX - len(json.dumps({"t": ""}))
    made = await processed(order={"t": "x" * (room + more)})
    assert isinstance(made.order().details.payload, PayloadRef) is apart
    assert bool(made.store.payloads) is apart


async def test_a_small_order_asks_the_store_for_nothing_more() -> None:
    made = kit()
    asked: list[str] = []
    made.store.plan = lambda operation, _key: asked.append(operation)
    await made.submit()
    await made.drain()
    assert asked == ["read_shared", "write_shared", *["commit"] * 4]  # the workflow's version
    assert made.state() == "Processed"


async def test_a_large_result_travels_as_a_reference_to_the_next_agent_and_to_the_undo() -> None:
    made = kit()
    made.agents["stock"].then({"said": RESULT})
    made.agents["payment"].then(RefusedError("declined", "no"))
    await made.submit()
    most = 0
    queues = [QUEUES.scheduler, QUEUES.agent("stock"), QUEUES.replies, QUEUES.agent("payment")]
    while any(made.bus.messages(queue) for queue in queues):
        most = max(most, *sizes(made))
        for queue in queues:
            if made.bus.messages(queue):
                await made.step(queue)
    assert most < 4_000
    assert isinstance(made.order().steps[0].result, PayloadRef)
    assert made.agents["payment"].calls[0][1].results == {"reserve": {"said": RESULT}}
    verb, call = made.agents["stock"].calls[-1]
    assert (verb, call.own_result) == ("undo", {"said": RESULT})


@pytest.mark.parametrize(
    ("size", "told"), [(RESULT_INLINE_BYTES_MAX + 1, True), (70_000, False), (900_000, False)]
)
async def test_a_notification_has_a_large_result_or_says_that_it_is_left_out(
    size: int, told: bool
) -> None:
    made = kit()
    text = "x" * (size - 2)
    made.agents["stock"].then(text)
    made.agents["payment"].then(None)
    await made.submit()
    await made.drain()
    first, second, completed = [event.data for event in made.events()][1:]
    assert second.result == msgspec.Raw(b"null")
    for data in (first, completed):
        assert data.results_omitted is not told
    if told:
        assert json.loads(internal.text_of(first.result) or "") == text
        assert completed.results is not None
        assert msgspec.json.decode(completed.results["reserve"]) == text
    else:
        assert (first.result, completed.results) == (msgspec.UNSET, None)


async def test_a_result_past_the_bound_is_refused_and_not_kept() -> None:
    made = kit()
    made.agents["stock"].then("x" * (RESULT_BYTES_MAX - 1))
    await made.submit()
    await made.drain()
    assert made.state() == "Compensated"
    assert made.store.payloads == {}


@pytest.mark.parametrize("fault", [StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER])
async def test_a_submission_whose_content_could_not_be_kept_comes_again(fault: StoreFault) -> None:
    made = kit()
    made.store.fail_next("put_payload", fault)
    with pytest.raises(StoreUnavailableError):
        await made.submit(order(order=LARGE))
    assert made.store.orders == {}
    await made.submit(order(order=LARGE))
    await made.drain()
    assert made.state() == "Processed"
    assert len(made.store.payloads["O-1"]) == 1


async def test_an_order_id_that_is_taken_keeps_nothing_of_the_second_order() -> None:
    made = await processed()
    await made.submit(order(order=LARGE), "m-2")
    assert made.told()[-1] == "rejected"
    assert made.store.payloads == {}


async def test_a_dead_letter_under_an_id_that_is_taken_keeps_nothing_either() -> None:
    made = await processed()
    dead = letter(order(order=LARGE, submission_id="s-2"), "orders", "m-2")
    await made.run(made.dead_letters.handle(dead))
    assert made.words()[-1] == "fenced"
    assert made.store.payloads == {}


async def test_a_repeat_of_a_large_order_is_notified_and_stores_nothing_more() -> None:
    made = await processed(order=LARGE)
    before = made.store.requests
    await made.submit(order(order=LARGE), "m-2")
    assert made.events()[-1].data.duplicate
    assert len(made.store.payloads["O-1"]) == 1
    assert made.store.requests - before == 2


async def test_a_large_order_that_was_given_up_keeps_its_place_and_is_revived() -> None:
    made = kit()
    await made.run(made.dead_letters.handle(letter(order(order=LARGE), "orders", "m-1")))
    assert made.state() == "Rejected"
    assert isinstance(made.order().details.payload, PayloadRef)
    await made.submit(order(order=LARGE, submission_id="again"), "m-2")
    await made.drain()
    assert made.state() == "Processed"
    assert made.agents["stock"].calls[0][1].order == LARGE


async def test_a_purge_between_keeping_and_committing_takes_nothing_that_counts() -> None:
    made = kit()
    body = order(order=LARGE, submission_id="again")
    await made.run(made.dead_letters.handle(letter(order(order=LARGE), "orders", "m-1")))

    def purged(operation: str, _key: str) -> None:
        if operation == "commit":
            made.store.orders.clear()
            made.store.payloads.clear()
            made.store.plan = lambda _operation, _key: None

    made.store.plan = purged
    await made.submit(body)  # its first transaction fails; the second is written with its content
    assert made.words() == ["submitted"]
    await made.drain()
    assert made.state() == "Processed"
    assert made.agents["stock"].calls[0][1].order == LARGE


async def test_lost_content_is_reported_once_and_its_step_waits_until_it_is_back() -> None:
    made = kit()
    await made.submit(order(order=LARGE))
    await made.step(QUEUES.scheduler)
    kept = made.store.payloads.pop("O-1")
    for _ in range(2):
        await made.step(QUEUES.agent("stock"))
        assert made.agents["stock"].calls == []
        await made.later(12)
    made.store.payloads["O-1"] = kept
    await made.drain()
    assert made.state() == "Processed"
    first, again = made.alerts()
    assert (first.kind, first.step, first.id) == ("unreadable", "reserve", again.id)
    assert "cannot be read" in first.text


async def test_a_step_whose_content_stays_lost_waits_without_a_failure_and_goes_on_then() -> None:
    made = kit()
    await made.submit(order(order=LARGE))
    await made.step(QUEUES.scheduler)
    kept = made.store.payloads.pop("O-1")
    for _ in range(3):
        await made.drain()
        await made.later(12)
    await made.sweep()
    assert made.order().steps[0].failure_count == 0
    assert [agent.calls for agent in made.agents.values()] == [[], []]
    made.store.payloads["O-1"] = kept
    for _ in range(4):
        await made.drain()
        await made.later(12)
        await made.sweep()
    assert made.state() == "Processed"


async def test_content_that_is_lost_is_exported_as_lost_and_never_stops_an_export() -> None:
    made = await processed(order=LARGE)
    made.store.payloads.clear()
    read = await made.run(ClaimCheck(made.store).fetch_all(made.order()))
    record = record_of(read, made.journal(), content=True)
    ref = made.order().details.payload
    assert isinstance(ref, PayloadRef)
    assert record["Payload"] == {"Lost": True, "Sha256": ref.sha256, "Bytes": ref.size}


def test_the_largest_order_message_may_be_four_megabytes() -> None:
    env = {"ServiceBus": "Endpoint=sb://x", "SAS_TABLES": "UseDevelopmentStorage=true"}
    assert read_config(env).order_bytes_max == 258_048
    env["SAS_MESSAGE_BYTES_MAX"] = "5242880"
    assert read_config(env).order_bytes_max == 4_194_304
