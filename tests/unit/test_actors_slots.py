"""At most N calls in flight for one remote service, over all instances."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sas.bootstrap import assemble
from sas.codec.internal import RequestMessage, encode
from sas.domain.workflow import Workflows
from sas.features.call_limit import CALL_MAX, LOOKS_MAX, WAIT_HERE, pauses, put_back_for
from sas.ports import AgentCall, Business, TransientError, UnavailableError
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from sas.testing.settings import settings
from sas.testing.store import MemoryStore
from tests.unit.actors_kit import AGENTS, CHAIN, QUEUES, agent_actor, received

QUEUE, REPLIES = "agent-stock", "scheduler"
LIMIT = 3


class Remote:
    """A remote service that counts its calls in flight. Each takes a second."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.seconds = 1.0
        self.now = self.most = self.calls = 0
        self.faults: list[Exception] = []

    async def do(self, call: AgentCall) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        self.calls += 1
        try:
            await self.clock.sleep(self.seconds)
        finally:
            self.now -= 1
        if self.faults:
            raise self.faults.pop()
        return {}

    async def undo(self, call: AgentCall) -> Any:
        return await self.do(call)

    async def close(self) -> None:
        """There is no connection."""


class Rig:
    """Instances of one agent over the same store and bus."""

    def __init__(self, limit: int = LIMIT, instances: int = 2) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.bus = MemoryBus(self.clock)
        self.bus.declare(QUEUE, f"{QUEUE}-urgent", REPLIES, f"{REPLIES}-urgent", "operator-alerts")
        self.remote = Remote(self.clock)
        business = Business(workflows=Workflows([CHAIN]), agents=dict.fromkeys(AGENTS, self.remote))
        contexts = [
            assemble(
                self.store,
                self.bus,
                clock=self.clock,
                business=business,
                settings=settings(f"host-{n}"),
            ).context
            for n in range(instances)
        ]
        self.actors = [
            agent_actor(context, "stock", self.remote, limit=limit) for context in contexts
        ]

    def handling(self, number: int, *, urgent: bool = False, seconds: float = 60) -> Any:
        body = encode(
            RequestMessage(
                id=f"O-{number}/2/0", order_id=f"O-{number}", workflow="order", step=0,
                step_name="reserve", direction="do", epoch=1,
                complete_by=self.clock.now() + timedelta(seconds=seconds),
                idempotency_key=f"O-{number}/reserve", order=msgspec.Raw(b"{}"), urgent=urgent,
                submission="s", time_allowed=seconds, seq=1,
            )
        )  # fmt: skip
        return self.actors[number % len(self.actors)].handle(
            received(QUEUES.agent("stock"), f"m-{number}", body, urgent=urgent)
        )

    async def all(self, *handling: Any) -> list[Any]:
        return await self.clock.run(asyncio.gather(*handling))


@pytest.mark.parametrize("limit", [LIMIT, LOOKS_MAX + 3])
async def test_as_many_calls_as_the_limit_are_in_flight_over_all_instances(limit: int) -> None:
    random.seed(1)
    rig = Rig(limit)
    replies = await rig.all(*(rig.handling(number) for number in range(3 * limit)))
    assert rig.remote.most == limit
    assert sum(reply is not None for reply in replies) == 3 * limit
    assert len(rig.bus.messages(REPLIES)) == 3 * limit


async def test_without_a_limit_the_store_gets_no_request() -> None:
    rig = Rig(limit=0)
    await rig.all(*(rig.handling(number) for number in range(12)))
    assert rig.remote.most == 12
    assert rig.store.requests == 0


async def test_a_request_that_finds_no_slot_is_put_back_and_no_call_is_counted() -> None:
    rig = Rig(limit=1)
    rig.remote.seconds = 30
    await rig.all(rig.handling(0), rig.handling(1))
    assert rig.remote.calls == 1
    (waiting,) = [entry.message for entry in rig.bus.queues[QUEUE].waiting]
    assert waiting.message_id.startswith("put-back/")
    assert waiting.scheduled_at is not None


async def test_a_slot_is_given_back_after_a_failed_call_too() -> None:
    rig = Rig(limit=1, instances=1)
    rig.remote.faults = [TransientError("busy")]
    await rig.all(rig.handling(0))
    assert rig.remote.calls == 2
    assert await rig.store.acquire_lease(
        "slot|stock|0", "somebody else", rig.clock.now() + WAIT_HERE, rig.clock.now()
    )


def test_the_function_timeout_ends_every_call_within_call_max() -> None:
    host = json.loads((Path(__file__).parents[2] / "host.json").read_text())
    hours, minutes, seconds = map(int, host["functionTimeout"].split(":"))
    assert timedelta(hours=hours, minutes=minutes, seconds=seconds) <= CALL_MAX


async def test_no_call_goes_out_if_its_slot_came_after_complete_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store was slow, and the supervisor may undo the step by then."""
    rig = Rig(limit=1, instances=1)
    acquire = rig.store.acquire_lease

    async def slow(name: str, holder: str, until: Any, now: Any) -> bool:
        await rig.clock.sleep(8)
        return await acquire(name, holder, until, now)

    monkeypatch.setattr(rig.store, "acquire_lease", slow)
    with pytest.raises(
        UnavailableError, match="no call could begin"
    ):  # it is put back, and asks for time
        await rig.all(rig.handling(0, seconds=7))
    assert rig.remote.calls == 0
    assert rig.bus.messages(REPLIES) == []
    now = rig.clock.now()
    assert await acquire("slot|stock|0", "another", now + WAIT_HERE, now), "it was given back"


@pytest.mark.parametrize(("urgent", "requests_max"), [(False, 50), (True, 140)])
async def test_a_request_that_waits_for_a_slot_makes_few_requests_to_the_store(
    urgent: bool, requests_max: int
) -> None:
    rig = Rig(limit=5, instances=1)
    now = rig.clock.now()
    for slot in range(5):
        await rig.store.acquire_lease(f"slot|stock|{slot}", "x", now + 20 * WAIT_HERE, now)
    before = rig.store.requests
    await rig.all(rig.handling(0, urgent=urgent))
    assert 15 < rig.store.requests - before <= requests_max


async def test_an_urgent_request_looks_for_a_slot_more_often_and_comes_again_sooner() -> None:
    random.seed(1)
    rig = Rig(limit=1, instances=1)
    now = rig.clock.now()
    assert await rig.store.acquire_lease("slot|stock|0", "another", now + 20 * WAIT_HERE, now)
    looks = []
    for number, urgent in enumerate((False, True)):
        before = rig.store.requests
        await rig.all(rig.handling(number, urgent=urgent))
        looks.append(rig.store.requests - before)
    assert looks[1] >= 2 * looks[0] >= 8
    waits = [
        (entry.message.scheduled_at or now) - entry.enqueued_at
        for queue in (QUEUE, f"{QUEUE}-urgent")
        for entry in rig.bus.queues[queue].waiting
    ]
    assert waits[1] < timedelta(seconds=1) <= waits[0]


def test_the_pauses_before_looks_for_a_slot_grow_to_three_times_the_first() -> None:
    ordinary, urgent = (list(islice(pauses(urgent=urgency), 8)) for urgency in (False, True))
    assert (ordinary[0], urgent[0]) == ((0.2, 0.5), (0.05, 0.15))
    assert ordinary == sorted(ordinary)
    assert ordinary[-1] == pytest.approx((0.6, 1.5))
    assert urgent[-1] == pytest.approx((0.15, 0.45))
    assert put_back_for(urgent=True) < put_back_for(urgent=False)
