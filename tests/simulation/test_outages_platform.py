"""The simulated platform has the limits of the deployed one: infra/queues.json and host.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

import pytest

from sas.ports import BusUnavailableError, Message
from sas.testing.bus import DEAD_LETTERS, MemoryBus, Queued, QueueRules
from sas.testing.clock import VirtualClock
from sas.testing.plan import Faults
from sas.testing.platform import QUEUES, HostRules
from sas.testing.store import MemoryStore
from sas.testing.world import Handler, Instance, World
from tests.simulation.system import AGENTS, deployed_host, deployed_queues

MINUTE = timedelta(minutes=1)
QUEUE = QUEUES.scheduler
LETTERS = QUEUES.dead_letters
END = LETTERS + DEAD_LETTERS


class Plain:
    """Functions that a test writes itself."""

    def __init__(self, **handlers: Handler) -> None:
        self.handlers: Mapping[str, Handler] = {
            name.replace("_", "-"): handler for name, handler in handlers.items()
        }
        self.starts = self.sweeps = 0

    def start(self) -> None:
        self.starts += 1

    async def sweep(self) -> None:
        self.sweeps += 1


class Rig:
    """A world with the deployed queues and limits, and functions that count their deliveries."""

    def __init__(self, instances: int = 1, rules: HostRules | None = None) -> None:
        self.clock = VirtualClock()
        self.bus = MemoryBus(self.clock)
        for name, queue in deployed_queues().items():
            self.bus.declare(name, rules=queue)
        self.deliveries: list[Queued] = []
        self.work: Callable[[Queued], Awaitable[object]] = self.nothing
        self.functions = [Plain(scheduler=self.handle) for _ in range(instances)]
        rules = rules or deployed_host()
        self.world = World(
            seed=1,
            clock=self.clock,
            store=MemoryStore(),
            memory_bus=self.bus,
            faults=Faults(),
            rules=rules,
        )
        self.world.instances = [Instance(functions=plain) for plain in self.functions]

    async def nothing(self, _queued: Queued) -> None:
        return

    async def fail(self, _queued: Queued) -> None:
        raise ValueError("poison")

    async def long(self, _queued: Queued) -> None:
        await self.clock.sleep(3600)

    async def handle(self, queued: Queued) -> None:
        self.deliveries.append(queued)
        await self.work(queued)

    def send(self, number: int = 1) -> None:
        for _ in range(number):
            self.bus._enqueue(Message(QUEUE, f"m-{self.bus.meter.messages}", b"{}"))

    async def play(self, seconds: float) -> None:
        """Run for this long, even if work is left."""
        with pytest.raises(TimeoutError):
            await self.world.run(lambda: False, seconds / 3600)

    @property
    def counts(self) -> list[int]:
        return [queued.deliveries for queued in self.deliveries]


def test_every_queue_has_the_rules_of_the_infrastructure() -> None:
    queues = deployed_queues()
    assert set(queues) >= {*QUEUES.on_the_way(AGENTS), LETTERS, QUEUES.alerts, QUEUES.rejected}
    assert queues[QUEUE] == QueueRules(
        lock_time=MINUTE / 2,
        deliveries_max=5,
        duplicate_window=10 * MINUTE,
        time_to_live=timedelta(days=14),
        dead_letters_expired=True,
        forwards_dead_letters_to=LETTERS,
    )
    assert queues[QUEUES.orders].duplicate_window is None
    assert not queues[QUEUES.agent("payment")].dead_letters_expired
    assert queues[LETTERS].deliveries_max == 10
    assert queues[END].deliveries_max is None
    assert deployed_host() == HostRules(10 * MINUTE, 10 * MINUTE, 16)


async def test_a_failing_function_burns_all_deliveries_within_a_second() -> None:
    rig = Rig()
    rig.work = rig.fail
    rig.send()
    began = rig.clock.now()
    await rig.world.run(rig.world.idle)
    assert rig.counts == [1, 2, 3, 4, 5]
    assert rig.clock.now() - began < timedelta(seconds=1)
    (letter,) = rig.bus.queues[LETTERS].waiting
    assert letter.source == QUEUE
    assert letter.message.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


async def test_an_expired_message_is_a_dead_letter_if_the_queue_is_configured_so() -> None:
    rig = Rig()
    for queue in (QUEUE, QUEUES.agent("payment")):
        rig.bus._enqueue(Message(queue, "m-1", b"{}", time_to_live=MINUTE))
    await rig.clock.advance(60)
    assert rig.bus.take(QUEUE) is None
    assert rig.bus.take(QUEUES.agent("payment")) is None
    (letter,) = rig.bus.queues[LETTERS].waiting
    assert letter.message.properties["DeadLetterReason"] == "TTLExpiredException"
    assert len(rig.bus.queues[QUEUES.agent("payment")].expired) == 1


async def test_no_instance_runs_more_of_a_function_than_the_host_allows() -> None:
    rig = Rig(instances=2)
    rig.work = rig.long
    rig.send(40)
    await rig.play(10)
    assert len(rig.deliveries) == 32
    assert [instance.calls[QUEUE] for instance in rig.world.instances] == [16, 16]
    await rig.world.close()


async def test_a_function_past_its_time_takes_all_others_of_its_instance_along() -> None:
    rig = Rig()

    async def slow_first(queued: Queued) -> None:
        if queued.message.message_id == "m-0":
            await rig.long(queued)
        await rig.clock.sleep(400)

    rig.work = slow_first
    rig.send()
    await rig.play(300)
    rig.send(15)
    await rig.play(301)
    assert rig.world.timed_out == 1
    assert rig.functions[0].starts == 1
    assert Counter(rig.counts) == {1: 16, 2: 16}
    await rig.world.close()


@pytest.mark.parametrize("names", [(), (QUEUE,)])
async def test_while_a_queue_is_away_the_locks_of_what_is_in_flight_end(
    names: tuple[str, ...],
) -> None:
    rig = Rig()

    async def work(_queued: Queued) -> None:
        await rig.clock.sleep(10)

    rig.work = work
    rig.send()
    await rig.play(1)
    rig.bus.cut(*names)
    with pytest.raises(BusUnavailableError):
        await rig.bus.send([Message(QUEUE, "m-9", b"{}")])
    with pytest.raises(BusUnavailableError):
        await rig.bus.peek(QUEUE, 1)
    await rig.play(600)
    assert rig.counts == [1]
    rig.bus.mend(*names)
    await rig.world.run(rig.world.idle)
    assert rig.counts == [1, 2]


async def test_what_a_dead_worker_held_comes_at_once_and_of_a_dead_host_within_its_lock() -> None:
    waits = []
    for with_host in (False, True):
        rig = Rig()
        rig.work = rig.long
        rig.send()
        await rig.play(1)
        rig.work = rig.nothing
        began = rig.clock.now()
        rig.world.kill(rig.world.instances[0], with_host=with_host)
        await rig.world.run(rig.world.idle)
        assert rig.counts == [1, 2]
        waits.append(rig.clock.now() - began)
    assert waits[0] < timedelta(seconds=1) < waits[1] <= MINUTE
