"""Large and encoded content through the real actors while everything goes wrong, by seed."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from sas.domain.content import PayloadRef, matches
from sas.domain.order import OrderState
from sas.engine.receiver import SOURCE
from sas.ports import AgentCall, Message
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES
from sas.testing.remote import ModelService
from tests.long import Seeds, ranges
from tests.payload_codec_kit import MARK, CheapCodec
from tests.simulation.system import System, build, check_end
from tests.telemetry_kit import recording

ORDERS = 3
TROUBLE = Faults(
    crash=0.02,
    lock_lost=0.05,
    duplicate=0.05,
    store_down=0.03,
    store_lost_answer=0.05,
    store_conflict=0.03,
    bus_down=0.02,
    bus_lost_answer=0.03,
    transient=0.15,
    lost_answer=0.1,
    hangs=0.05,
    refused=0.1,
)
LARGE = {"lines": ["x" * 70_000]}
CONTENT = {"card": MARK, "lines": [{"note": MARK}]}


class Wordy(ModelService):
    """An agent that is given large orders and returns large results."""

    async def _do(self, call: AgentCall) -> Any:
        assert call.order == LARGE
        for result in call.results.values():
            assert len(result["text"]) == 60_000
        result = await super()._do(call)
        return {**result, "text": "y" * 60_000} if isinstance(result, dict) else result

    async def _undo(self, call: AgentCall) -> Any:
        assert call.own_result is None or len(call.own_result["text"]) == 60_000
        return await super()._undo(call)


class Marked(ModelService):
    """An agent that is given marked content and results, and returns marked results."""

    async def _do(self, call: AgentCall) -> Any:
        assert call.order == CONTENT
        assert all(result["mark"] == MARK for result in call.results.values())
        result = await super()._do(call)
        return {**result, "mark": MARK} if isinstance(result, dict) else result

    async def _undo(self, call: AgentCall) -> Any:
        assert call.own_result is None or call.own_result["mark"] == MARK
        return await super()._undo(call)


async def run(system: System, content: dict[str, Any]) -> System:
    for number in range(ORDERS):
        workflow = "order" if number % 2 else "order-with-care"
        system.submit(f"O-{number}", workflow, times=2, content=content)
    try:
        await system.world.run(system.at_rest)
        check_end(system)
    finally:
        await system.close()
    return system


def refs(system: System) -> list[tuple[str, PayloadRef]]:
    """Return everything that the stored orders refer to."""
    return [
        (order_id, content)
        for order_id, stored in system.store.orders.items()
        for content in (
            stored.order.details.payload,
            *(step.result for step in stored.order.steps),
        )
        if isinstance(content, PayloadRef)
    ]


async def test_without_faults_large_orders_are_processed_and_nothing_is_kept_twice() -> None:
    system = await run(build(1, Faults(), agent=Wordy), LARGE)
    assert set(system.states().values()) == {OrderState.PROCESSED}
    referred = refs(system)
    assert len(referred) == ORDERS * 4  # what was ordered, and what three steps returned
    assert sum(len(payloads) for payloads in system.store.payloads.values()) == len(set(referred))


@pytest.mark.parametrize("seeds", ranges(2, 30))
async def test_what_an_order_refers_to_is_there_whatever_goes_wrong(seeds: Seeds) -> None:
    for seed in seeds:
        system = await run(build(seed, replace(TROUBLE), agent=Wordy), LARGE)
        referred = refs(system)
        assert len(referred) >= ORDERS
        for order_id, ref in referred:
            assert matches(ref, system.store.payloads[order_id][ref.sha256])
        assert system.alerts()["unreadable"] == 0


async def play_encoded(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    system = build(seed, replace(TROUBLE), agent=Marked, codec=CheapCodec())
    traffic: list[Message] = []
    send = system.bus.send

    async def hear(messages: Any) -> None:
        traffic.extend(messages)
        await send(messages)

    system.bus.send = hear  # type: ignore[method-assign]
    with recording() as recorded:
        await run(system, CONTENT)
        texts = [span.to_json() for span in recorded.spans] + [json.dumps(recorded.metrics())]
    texts += [str(sorted(r.__dict__.items(), key=str)) + r.getMessage() for r in caplog.records]
    texts += [repr(stored) for stored in system.store.orders.values()]
    texts += [repr(system.store._shared), repr(system.store._due), repr(system.store.payloads)]
    texts += [repr(message) for message in system.store.held_messages.values()]
    own_queues = {QUEUES.rejected, QUEUES.orders}  # an order that is put back stays as it was sent
    texts += [
        repr(message)
        for message in traffic
        if not {message.queue, message.properties.get(SOURCE)} & own_queues
    ]
    assert len(traffic) > 10 * ORDERS
    assert [text[:200] for text in texts if MARK in text] == []


@pytest.mark.parametrize("seeds", ranges(2, 30))
async def test_with_a_codec_content_is_nowhere_whatever_goes_wrong(
    seeds: Seeds, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in seeds:
        caplog.clear()
        await play_encoded(seed, caplog)
