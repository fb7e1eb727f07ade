"""An order runs on: what is handed over in the process, what travels, and what a crash leaves.

This is the specification of ``sas.engine.run_on`` and of the walk of ``TransitionRunner.repeat``.
First come a process of handlers without any meaning, and then the actors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sas.domain.calls import CallState
from sas.domain.ids import cause_of, digest_id, message_id, reply_id
from sas.domain.messages import JournalEntry, Notify, Request, Wake
from sas.domain.queues import Queues, lane
from sas.domain.workflow import Workflow
from sas.engine.delivery import AGAIN, EXTERNAL_SENT, FIRST_ID, Delivery
from sas.engine.external import ExternalSender
from sas.engine.in_flight import CALL_STATE
from sas.engine.messages import Addresses
from sas.engine.receiver import Receiver
from sas.engine.run_on import CALL_TIME, CALLS_MAX, CHAIN_TIME, HAND_OVERS_MAX, RunOn
from sas.features.call_limit import CallLimit, lease_name
from sas.features.incidents.board import IncidentBoard
from sas.ports import AgentCall, Message, RefusedError, StoreUnavailableError, TransientError
from sas.testing.bus import BusFault, MemoryBus
from sas.testing.clock import START, VirtualClock
from sas.testing.store import MemoryStore
from sas.testing.world import CrashError
from tests.unit.actors_kit import (
    AGENTS,
    CARE,
    CHAIN,
    QUEUES,
    SHOP,
    Kit,
    command,
    delivery,
    kit,
    letter,
    order,
)

ROOT = Message("orders", "root", b"{}")
OWN, QUICK, ELSEWHERE = "scheduler", "agent-quick", "agent-slow"
FUNCTION = timedelta(minutes=9)


def own(name: str, queue: str = OWN) -> Message:
    """Return a message for an actor of the process."""
    return Message(queue, name, b"{}")


class Process:
    """One process. Its handlers send what ``following`` has for the id of a message.

    Before that they do what ``behaviour`` has for it.
    """

    def __init__(self, function_time: timedelta = FUNCTION) -> None:
        self.clock = VirtualClock()
        self.bus = MemoryBus(self.clock)
        own_queues, inline = (OWN, lane(OWN, urgent=True)), (QUICK, lane(QUICK, urgent=True))
        self.bus.declare(ROOT.queue, *own_queues, *inline, ELSEWHERE)
        self.run_on = RunOn(bus=self.bus, clock=self.clock, inline=frozenset(inline))
        self.run_on.handlers = dict.fromkeys(own_queues + inline, self.handle)
        external = ExternalSender(MemoryStore(), self.bus, self.clock)
        addresses = Addresses(Queues(), "test")
        self.receiver = Receiver(
            bus=self.bus,
            clock=self.clock,
            function_time=function_time,
            external=external,
            report_mismatch=self.reported,
            incidents=IncidentBoard(MemoryStore(), external, clock=self.clock, to=addresses),
            run_on=self.run_on,
            dead_letters="dead-letters",
            reject=AsyncMock(),
        )
        self.following: dict[str, list[Message]] = {}
        self.behaviour: dict[str, Callable[[], Awaitable[object]]] = {}
        self.deliveries: list[Delivery] = []
        self.began: dict[str, datetime] = {}
        self.calls_most = 0

    async def reported(self, error: Exception) -> None:
        """No test has a mismatch."""

    async def handle(self, message: Delivery) -> str:
        self.deliveries.append(message)
        self.began[message.message_id] = self.clock.now()
        self.calls_most = max(self.calls_most, self.run_on.calls)
        if behave := self.behaviour.get(message.message_id):
            await behave()
        await self.run_on.send(self.following.get(message.message_id, []))
        return "handled"

    def fails(self, name: str, *errors: BaseException) -> None:
        """Let the handler of a message fail, once with each error."""
        faults = list(errors)

        async def fail() -> None:
            if faults:
                raise faults.pop(0)

        self.behaviour[name] = fail

    def takes(self, name: str, seconds: float) -> None:
        """Let the handler of a message take so long."""
        self.behaviour[name] = lambda: self.clock.sleep(seconds)

    async def receive(self, message: Message = ROOT, **changes: Any) -> object:
        work = self.receiver.receive(self.handle, delivery(message, **changes))
        return await self.clock.run(work)

    @property
    def handled(self) -> list[str]:
        return [delivery.message_id for delivery in self.deliveries]

    def waiting(self, queue: str) -> list[str]:
        return [queued.message.message_id for queued in self.bus.queues[queue].waiting]

    def chain(self, length: int, queue: str = OWN) -> list[str]:
        """Let messages follow one another; return their ids."""
        names = [f"m-{number:03d}" for number in range(length)]
        for before, name in zip([ROOT.message_id, *names], names, strict=False):
            self.following[before] = [own(name, queue)]
        return names


# What is handed over, and what travels


async def test_a_message_for_an_actor_of_this_process_is_handed_over_and_others_are_sent() -> None:
    process = Process()
    process.following["root"] = [own("wake"), own("request", ELSEWHERE)]
    assert await process.receive() == "handled"
    assert process.handled == ["root", "wake"]
    assert (process.waiting(OWN), process.waiting(ELSEWHERE)) == ([], ["request"])


async def test_what_follows_from_a_handed_over_message_is_handed_over_next() -> None:
    process = Process()
    names = process.chain(5)
    await process.receive()
    assert process.handled == ["root", *names]
    assert process.bus.meter.messages == 0


async def test_a_message_is_handed_over_only_when_the_handler_before_it_has_returned() -> None:
    """Its messages are recorded, and its spans ended."""
    process = Process()
    process.following["root"] = [own("wake")]
    returned: list[str] = []

    async def handle(message: Delivery) -> None:
        await process.handle(message)
        assert process.handled == ["root"]
        returned.append(message.message_id)

    await process.clock.run(process.receiver.receive(handle, delivery(ROOT)))
    assert (returned, process.handled) == (["root"], ["root", "wake"])


async def test_a_handed_over_message_looks_like_a_first_delivery_that_took_no_time() -> None:
    process = Process()
    message = Message(lane(OWN, urgent=True), "wake", b"body", properties={"sas_x": "y"})
    process.following["root"] = [message]
    await process.receive()
    (_, handed) = process.deliveries
    assert (handed.body, handed.message_id, handed.queue) == (b"body", "wake", message.queue)
    assert (handed.count, handed.is_first, handed.source_queue) == (1, True, None)
    assert handed.enqueued_at == START
    assert handed.properties["sas_x"] == "y"


async def test_a_message_of_an_urgent_lane_stays_urgent_and_of_its_lane() -> None:
    process = Process()
    urgent_lane = lane(OWN, urgent=True)
    process.following["root"] = [Message(urgent_lane, "fast", b""), own("plain")]
    process.fails("fast", LookupError("a bug"))
    await process.receive()
    assert {d.message_id: d.urgent for d in process.deliveries[1:]} == {
        "fast": True,
        "plain": False,
    }
    assert process.waiting(urgent_lane) == ["fast"]


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 2},
        {"properties": {AGAIN: "yes"}},
    ],
    ids=["a redelivery", "a message that was put back, redriven, or sent by a redelivery"],
)
async def test_only_a_first_delivery_runs_on(changes: Mapping[str, Any]) -> None:
    """What came before it may have been a crash that a message of the chain caused."""
    process = Process()
    process.chain(3)
    assert await process.receive(**changes) == "handled"
    assert process.handled == ["root"]
    assert process.waiting(OWN) == ["m-000"]


async def test_a_delivery_whose_host_tells_no_count_runs_on() -> None:
    process = Process()
    process.chain(1)
    await process.receive(count=None)
    assert process.handled == ["root", "m-000"]


async def test_outside_of_a_delivery_all_messages_are_sent() -> None:
    """A timer, and what the actors of another process record."""
    process = Process()
    await process.run_on.send([own("wake")])
    assert process.waiting(OWN) == ["wake"]


# A message that fails


async def test_a_message_whose_handler_has_a_bug_travels_with_its_own_id() -> None:
    """There it is redelivered, counted, and becomes a dead letter, and the root does not."""
    process = Process()
    names = process.chain(3)
    process.fails(names[1], LookupError("a bug"))
    assert await process.receive() == "handled"
    assert process.handled == ["root", *names[:2]]
    (queued,) = process.bus.queues[OWN].waiting
    assert (queued.message.message_id, queued.deliveries) == (names[1], 0)


async def test_what_a_failed_handler_had_collected_is_not_handed_over() -> None:
    """Its message comes again, and records the same once more."""
    process = Process()
    process.following["root"] = [own("wake")]

    async def collect_and_fail() -> None:
        await process.run_on.send([own("request", QUICK)])
        raise LookupError("a bug")

    process.behaviour["wake"] = collect_and_fail
    await process.receive()
    assert process.handled == ["root", "wake"]
    assert (process.waiting(OWN), process.waiting(QUICK)) == (["wake"], [])


async def test_what_is_recorded_at_a_second_attempt_in_the_same_function_is_sent() -> None:
    process = Process()
    process.following["root"] = [own("wake")]
    outages = [BusFault.UNAVAILABLE, None]

    async def fail_first() -> None:
        outage = outages.pop(0)
        process.bus.plan = lambda _message: outage
        if outage:
            raise StoreUnavailableError("away")

    process.behaviour["root"] = fail_first
    assert await process.receive() == "handled"
    assert (process.handled, process.waiting(OWN)) == (["root", "root"], ["wake"])


async def test_an_outage_in_a_handed_over_message_puts_back_that_message_and_not_the_root() -> None:
    process = Process()
    names = process.chain(3)
    process.fails(names[1], StoreUnavailableError("away"))
    assert await process.receive() == "handled"
    await process.clock.advance(1)
    copy = process.bus.take(OWN)
    assert copy is not None
    assert copy.properties[FIRST_ID] == names[1]
    assert process.waiting(ROOT.queue) == []
    await process.receive(copy)
    assert process.handled == ["root", names[0], names[1], names[1]]
    assert process.waiting(OWN) == [names[2]]


@pytest.mark.parametrize("refused", [False, True], ids=["away", "no right"])
async def test_a_root_is_put_back_if_a_message_was_neither_handled_nor_sent(refused: bool) -> None:
    process = Process()
    process.following["root"] = [own("wake")]
    process.fails("wake", LookupError("a bug"))
    process.bus.plan = lambda m: BusFault.UNAVAILABLE if m.queue == OWN else None
    process.bus.queues[OWN].forbids = refused
    assert await process.receive() is None
    await process.clock.advance(1)
    copy = process.bus.take(ROOT.queue)
    assert copy is not None
    assert copy.properties[FIRST_ID] == "root"
    process.bus.plan = lambda _: None
    process.bus.queues[OWN].forbids = False
    assert await process.receive(copy) == "handled"
    assert process.waiting(OWN) == ["wake"]


async def test_a_death_in_a_handed_over_message_is_the_death_of_the_function() -> None:
    process = Process()
    process.following["root"] = [own("left"), own("right")]
    process.fails("left", CrashError())
    with pytest.raises(CrashError):
        await process.receive()
    assert process.bus.meter.messages == 0


# Side by side


async def test_parallel_messages_go_on_side_by_side_each_with_what_follows_from_it() -> None:
    process = Process()
    process.following |= {
        "root": [own("left"), own("right")],
        "left": [own("left-2")],
        "right": [own("right-2")],
    }
    for name in ("left", "right", "left-2", "right-2"):
        process.takes(name, 5)
    await process.receive()
    assert process.clock.now() - START == timedelta(seconds=10)
    assert {process.began["left-2"], process.began["right-2"]} == {START + timedelta(seconds=5)}


async def test_a_branch_that_fails_holds_up_no_other_branch() -> None:
    process = Process()
    process.following |= {"root": [own("left"), own("right")], "right": [own("right-2")]}
    process.fails("left", LookupError("a bug"))
    process.takes("right", 5)
    assert await process.receive() == "handled"
    assert process.handled == ["root", "left", "right", "right-2"]
    assert process.waiting(OWN) == ["left"]


async def test_a_root_waits_for_all_its_branches_before_it_is_put_back() -> None:
    process = Process()
    process.following["root"] = [own("left"), own("right")]
    process.fails("left", LookupError("a bug"))
    process.takes("right", 5)
    process.bus.fail_next(BusFault.UNAVAILABLE)
    assert await process.receive() is None
    assert process.handled == ["root", "left", "right"]
    assert process.clock.now() - START == timedelta(seconds=5)
    assert len(process.waiting(ROOT.queue)) == 1


# The bounds of a chain


async def test_a_chain_hands_nothing_over_after_its_time_and_sends_the_next_message() -> None:
    process = Process()
    names = process.chain(9)
    for name in names:
        process.takes(name, CHAIN_TIME.total_seconds() / 3)
    assert await process.receive() == "handled"
    assert process.handled == ["root", *names[:3]]
    assert process.waiting(OWN) == [names[3]]


async def test_a_chain_ends_after_half_the_time_that_its_function_has_left() -> None:
    process = Process(function_time=timedelta(seconds=20))
    names = process.chain(9)
    for name in names:
        process.takes(name, 4)
    await process.receive()
    assert process.handled == ["root", *names[:3]]
    assert process.waiting(OWN) == [names[3]]


async def test_the_time_of_a_chain_begins_when_its_root_was_handled() -> None:
    process = Process()
    process.chain(1)
    process.takes("root", 60)
    await process.receive()
    assert process.handled == ["root", "m-000"]


@pytest.mark.parametrize("queue", [OWN, QUICK])
async def test_a_chain_hands_over_so_many_messages_and_sends_the_next(queue: str) -> None:
    process = Process()
    names = process.chain(HAND_OVERS_MAX + 2, queue)
    await process.receive()
    assert process.handled == ["root", *names[:HAND_OVERS_MAX]]
    assert process.waiting(queue) == [names[HAND_OVERS_MAX]]


async def test_a_message_sent_at_a_bound_begins_a_chain_of_its_own() -> None:
    process = Process()
    names = process.chain(HAND_OVERS_MAX + 2)
    await process.receive()
    message = process.bus.take(OWN)
    assert message is not None
    await process.receive(message)
    assert process.handled == ["root", *names]


# Calls


async def test_a_call_has_its_own_short_time_and_other_messages_that_of_the_function() -> None:
    process = Process()
    process.following["root"] = [own("wake"), own("call", QUICK)]
    await process.receive()
    ends = {delivery.message_id: delivery.ends_at for delivery in process.deliveries}
    assert ends == {"root": START + FUNCTION, "wake": START + FUNCTION, "call": START + CALL_TIME}


async def test_a_call_never_outlasts_its_function() -> None:
    process = Process(function_time=timedelta(seconds=10))
    process.following |= {"root": [own("wake")], "wake": [own("call", QUICK)]}
    process.takes("root", 9)
    await process.receive()
    assert process.deliveries[-1].ends_at == START + timedelta(seconds=10)


@pytest.mark.parametrize("queue", [QUICK, lane(QUICK, urgent=True)])
async def test_only_so_many_calls_run_on_at_once_and_the_next_requests_travel(queue: str) -> None:
    process = Process()
    roots = [Message(ROOT.queue, f"root-{number}", b"{}") for number in range(CALLS_MAX + 2)]
    for root in roots:
        process.following[root.message_id] = [own(f"call-{root.message_id}", queue)]
        process.takes(f"call-{root.message_id}", 1)
    receiving = [process.receiver.receive(process.handle, delivery(root)) for root in roots]
    await process.clock.run(asyncio.gather(*receiving))
    assert process.calls_most == CALLS_MAX
    assert process.waiting(queue) == [f"call-root-{number}" for number in range(CALLS_MAX, 10)]
    calls = [each for each in process.deliveries if each.queue == queue]
    assert {call.ends_at for call in calls} == {START + CALL_TIME}


@pytest.mark.parametrize(
    "error", [LookupError("a bug"), StoreUnavailableError("away"), CrashError()], ids=repr
)
async def test_a_call_that_ends_in_any_way_makes_room_for_the_next(error: BaseException) -> None:
    process = Process()
    process.following["root"] = [own("call", QUICK)]
    process.fails("call", *[error] * CALLS_MAX)
    for _ in range(CALLS_MAX):
        await asyncio.gather(process.receive(), return_exceptions=True)
    process.bus.queues[QUICK].waiting.clear()
    await process.receive()
    assert (process.handled.count("call"), process.waiting(QUICK)) == (CALLS_MAX + 1, [])


async def test_an_inline_call_without_a_free_slot_waits_no_longer_than_a_call_may_take() -> None:
    system = kit(inline=AGENTS)
    system.actors["stock"]._attempts._guards = (CallLimit(system.context, "stock", 1),)
    began = system.clock.now()
    taken_until = began + timedelta(minutes=1)
    assert await system.store.acquire_lease(lease_name("stock", 0), "other", taken_until, began)
    await system.receive(ORDER)
    assert system.clock.now() - began <= CALL_TIME
    assert system.agents["stock"].calls == []
    (queued,) = system.bus.queues[QUEUES.agent("stock")].waiting
    assert queued.message.properties[CALL_STATE] == CallState.WAITING.value


async def test_wakes_and_replies_run_on_however_many_calls_there_are() -> None:
    process = Process()
    process.run_on.calls = CALLS_MAX
    process.following["root"] = [own("wake"), own("call", QUICK)]
    await process.receive()
    assert process.handled == ["root", "wake"]
    assert process.waiting(QUICK) == ["call"]


# Orders


ORDER = Message(QUEUES.orders, "m-1", order())
UNDO = command("undo", 4)
"""The order was completed in four rows."""
INLINE = {"no agent": (), "the second": ("payment",), "all agents": AGENTS}
INTERNAL = {
    lane(queue, urgent=urgent)
    for queue in (QUEUES.scheduler, *map(QUEUES.agent, AGENTS))
    for urgent in (False, True)
}


def sent_by(system: Kit) -> list[Message]:
    """Return a list to which each message is added that a queue takes from now on."""
    sends: list[Message] = []
    system.bus.on_sent = sends.append
    return sends


def internals(sends: list[Message]) -> list[str]:
    """Return the ids of the messages to actors."""
    return [message.message_id for message in sends if message.queue in INTERNAL]


@pytest.mark.parametrize("workflow", ["chain", "care"])
async def test_an_order_of_inline_agents_is_complete_within_one_delivery(workflow: str) -> None:
    system = kit(inline=AGENTS)
    sends = sent_by(system)
    await system.receive(Message(QUEUES.orders, "m-1", order(workflow=workflow)))
    assert system.state() == "Processed"
    assert internals(sends) == []
    assert system.notices() == ["received", *["step-completed"] * 2, "completed"]


async def test_requests_to_agents_that_are_not_inline_travel_and_all_else_runs_on() -> None:
    system = kit()
    sends = sent_by(system)
    await system.receive(ORDER)
    for agent in AGENTS:
        (request,) = system.bus.messages(QUEUES.agent(agent))
        system.bus.take(QUEUES.agent(agent))
        await system.receive(request)
    assert {message.queue for message in sends} == {*map(QUEUES.agent, AGENTS), SHOP}
    assert system.state() == "Processed"


async def test_an_undo_of_inline_agents_runs_on_too() -> None:
    system = kit(inline=AGENTS)
    system.agents["payment"].then(RefusedError("declined", "no"))
    sends = sent_by(system)
    await system.receive(ORDER)
    assert system.state() == "Compensated"
    assert internals(sends) == []


async def test_an_urgent_order_runs_on_and_its_requests_travel_in_the_urgent_lane() -> None:
    system = kit(inline=("payment",))
    sends = sent_by(system)
    await system.receive(Message(lane(QUEUES.orders, urgent=True), "m-1", order()))
    urgent_lane = QUEUES.agent("stock", urgent=True)
    assert [m.queue for m in sends if m.queue in INTERNAL] == [urgent_lane]
    request = system.bus.take(urgent_lane)
    assert request is not None
    await system.receive(request)
    assert system.state() == "Processed"


async def test_an_order_runs_on_while_the_schedulers_queue_is_away() -> None:
    """What is handed over needs no queue."""
    system = kit(inline=AGENTS)
    system.bus.cut(QUEUES.scheduler)
    await system.receive(ORDER)
    assert system.state() == "Processed"


@pytest.mark.parametrize("urgent", [False, True])
async def test_an_inline_call_is_cut_off_at_its_time_and_its_request_waits_in_its_queue(
    caplog: pytest.LogCaptureFixture, urgent: bool
) -> None:
    system = kit(inline=AGENTS)

    async def slow(_: AgentCall) -> str:
        await system.clock.sleep(20)
        return "late"

    system.agents["stock"].then(slow)
    began = system.clock.now()
    await system.receive(replace(ORDER, queue=lane(QUEUES.orders, urgent=urgent)))
    assert system.clock.now() - began == CALL_TIME
    (queued,) = system.bus.queues[QUEUES.agent("stock", urgent=urgent)].waiting
    assert CALL_STATE not in queued.message.properties, "it gets its time anew"
    assert system.notices() == ["received"]
    assert "an inline call was too slow: agent-stock" in caplog.text
    await system.later(2)
    await system.drain()
    assert system.state() == "Processed"
    assert {call.key for _, call in system.agents["stock"].calls} == {"O-1/reserve"}


# A crash anywhere, and what the next delivery sends


CRASHES_MAX = 99


class Crashes:
    """Ends the function of a kit at one of its steps: before a read, a write, a send or a call."""

    def __init__(self, system: Kit, at: int) -> None:
        self.left, self.struck = at, False
        system.store.plan = lambda _operation, _key: self.passes()
        system.bus.plan = lambda _message: self.passes()
        for agent in system.agents.values():
            agent.then(*[self.calls] * 9)

    def passes(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.struck = True
            raise CrashError

    async def calls(self, call: AgentCall) -> dict[str, str]:
        self.passes()
        return {"by": call.key}


async def crashed(
    at: int, *workflows: Workflow, root: str = QUEUES.orders, **rules: Any
) -> tuple[Kit, bool]:
    """Let the process die at one step of a delivery. Return the next process, and if it died.

    ``root`` is the queue of the message that is delivered.
    """
    system = kit(*workflows, **rules)
    if root != QUEUES.orders:
        await system.receive(ORDER)
    crashes = Crashes(system, at)
    try:
        await system.receive(root_of(system, root))
    except CrashError:
        assert crashes.struck
    system.store.plan = lambda _operation, _key: None
    system.bus.plan = lambda _message: None
    for agent in system.agents.values():
        agent.script.clear()
    return kit(*workflows, beside=system, **rules), crashes.struck


async def crashed_anywhere(*workflows: Workflow, **options: Any) -> AsyncIterator[Kit]:
    """Yield the process after a crash at each step of a delivery, and at last after none."""
    for at in range(CRASHES_MAX):
        system, struck = await crashed(at, *workflows, **options)
        yield system
        if not struck:
            assert at > 3
            return
    raise AssertionError("the delivery never ends")


def root_of(system: Kit, queue: str) -> Message:
    """Return the order, an operator's undo of it, or the request that waits for an agent."""
    roots = {QUEUES.orders: ORDER, QUEUES.scheduler: UNDO}
    return roots[queue] if queue in roots else system.bus.messages(queue)[0]


def rows_of(system: Kit, cause: str) -> list[JournalEntry]:
    """Return the row that a cause led to and all later rows; none if it is not recorded."""
    stored = system.store.orders.get("O-1")
    first = stored.causes.get(digest_id(cause)) if stored else None
    return stored.journal[first - 1 :] if stored and first else []


def unhandled(system: Kit, rows: list[JournalEntry]) -> list[str]:
    """Return the ids of the wakes and requests of some rows that led to no row."""
    causes = system.store.orders["O-1"].causes if rows else {}
    ids = []
    for entry in rows:
        for index, item in enumerate(entry.messages):
            own_id = message_id("O-1", entry.seq, index)
            match item:
                case Wake():
                    cause = cause_of(QUEUES.scheduler, own_id)
                case Request():
                    reply = reply_id("O-1", item.step, item.direction.value, item.epoch)
                    cause = cause_of(QUEUES.scheduler, reply)
                case _:
                    continue
            if digest_id(cause) not in causes:
                ids.append(own_id)
    return ids


def notifications(rows: list[JournalEntry]) -> list[str]:
    """Return the ids of the notifications of some rows."""
    return [
        message_id("O-1", entry.seq, index)
        for entry in rows
        for index, item in enumerate(entry.messages)
        if isinstance(item, Notify)
    ]


async def assert_completes(system: Kit) -> None:
    """Assert that an order ends whole, and that its application hears each thing under one id."""
    await system.drain()
    assert system.state() == "Processed"
    for agent, step in zip(AGENTS, ("reserve", "pay"), strict=True):
        assert {call.key for _, call in system.agents[agent].calls} == {f"O-1/{step}"}
    assert system.words().count("step processed") == 2
    messages = system.bus.messages(SHOP)
    assert len({m.body for m in messages}) == len(set(system.ids(SHOP))) == 4


@pytest.mark.parametrize("dead", [False, True], ids=["redelivered", "dead letter"])
@pytest.mark.parametrize("inline", INLINE.values(), ids=INLINE)
@pytest.mark.parametrize("workflow", [CHAIN, CARE], ids=["one by one", "parallel"])
async def test_after_a_crash_anywhere_an_order_sends_what_was_not_handled_with_the_same_ids(
    workflow: Workflow, inline: tuple[str, ...], dead: bool
) -> None:
    """And each notification again. Nothing is decided a second time."""
    async for system in crashed_anywhere(replace(workflow, name="chain"), inline=inline):
        rows = rows_of(system, cause_of(QUEUES.orders, "m-1"))
        expected, notified = unhandled(system, rows), notifications(rows)
        journal = list(rows)
        sends = sent_by(system)
        if not dead:
            await system.receive(ORDER, count=2)
        else:
            arrival = letter(order(), QUEUES.orders)
            await system.run(system.receiver.receive(system.dead_letters.handle, arrival))
            if not rows:
                assert [rejection.order_id for rejection in system.rejected()] == ["O-1"]
                continue
        if not rows:
            expected, notified = ["O-1/1/0"], ["O-1/1/1"]
            journal = system.journal()
        assert sorted(internals(sends)) == sorted(expected)
        assert sorted(m.message_id for m in sends if m.queue == SHOP) == sorted(notified)
        assert system.journal() == journal
        await assert_completes(system)


async def test_after_a_crash_anywhere_an_undo_sends_what_was_not_handled_with_the_same_ids() -> (
    None
):
    async for system in crashed_anywhere(root=QUEUES.scheduler, inline=AGENTS):
        rows = rows_of(system, cause_of(QUEUES.scheduler, UNDO.message_id))
        expected, notified = unhandled(system, rows), notifications(rows)
        sends = sent_by(system)
        await system.receive(UNDO, count=2)
        if rows:
            assert internals(sends) == expected
            assert [m.message_id for m in sends if m.queue == SHOP] == notified
        await system.drain()
        assert system.state() == "Compensated"
        assert system.words().count("step undone") == 2
        messages = system.bus.messages(SHOP)
        assert len({m.body for m in messages}) == len(set(system.ids(SHOP)))
        assert "undone" in system.notices()


@pytest.mark.parametrize("inline", [(), ("payment",)], ids=["no agent", "the next agent"])
async def test_after_a_crash_anywhere_a_request_sends_what_follows_from_its_reply(
    inline: tuple[str, ...],
) -> None:
    """If its reply was not handled, its agent is asked again under the same key."""
    async for system in crashed_anywhere(root=QUEUES.agent("stock"), inline=inline):
        rows = rows_of(system, cause_of(QUEUES.scheduler, "O-1/00/do/1"))
        expected = unhandled(system, rows) if rows else ["O-1/00/do/1"]
        calls = len(system.agents["stock"].calls)
        sends = sent_by(system)
        await system.receive(root_of(system, QUEUES.agent("stock")), count=2)
        assert internals(sends) == expected
        assert [m.message_id for m in sends if m.queue == SHOP] == notifications(rows)
        assert len(system.agents["stock"].calls) == calls + (not rows)
        system.bus.take(QUEUES.agent("stock"))
        await assert_completes(system)


@pytest.mark.parametrize("inline", [(), ("payment",)], ids=["no agent", "the next agent"])
async def test_after_a_crash_anywhere_a_dead_lettered_request_is_finished_or_its_reply_fenced(
    inline: tuple[str, ...],
) -> None:
    async for system in crashed_anywhere(root=QUEUES.agent("stock"), inline=inline):
        request = system.bus.take(QUEUES.agent("stock"))
        assert request is not None
        rows = rows_of(system, cause_of(QUEUES.scheduler, "O-1/00/do/1"))
        expected = unhandled(system, rows)
        sends = sent_by(system)
        await system.run(system.receiver.receive(system.dead_letters.handle, letter(request)))
        assert internals(sends) == expected
        assert [m.message_id for m in sends if m.queue == SHOP] == notifications(rows)
        assert (len(system.rejected()), system.words().count("fenced")) == (
            (0, 0) if rows else (1, 1)
        )
        if rows:
            await assert_completes(system)


async def test_the_reply_of_a_dead_lettered_request_no_longer_counts() -> None:
    """Its slow handler would run on from it, and nobody would repeat what it leaves."""
    system = kit(inline=("payment",))
    await system.receive(ORDER)
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None

    async def meanwhile(_: AgentCall) -> dict[str, bool]:
        await system.dead_letters.handle(letter(request))
        return {"late": True}

    system.agents["stock"].then(meanwhile)
    await system.receive(request)
    assert system.words()[-1] == "fenced"
    assert system.states() == ["Processing", "Pending"]
    assert system.agents["payment"].calls == []
    await system.later(31)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"


async def test_a_message_sent_twice_does_not_run_on_from_what_its_first_copy_recorded() -> None:
    """The second copy is a first delivery too. The handler of the first one may still be at it."""
    system = kit(inline=AGENTS)
    system.agents["stock"].then(CrashError())
    with pytest.raises(CrashError):
        await system.receive(ORDER)
    system = kit(beside=system, inline=AGENTS)
    await system.receive(ORDER)
    assert len(system.agents["stock"].calls) == 1
    assert system.ids(QUEUES.agent("stock")) == ["O-1/2/0"]


async def test_a_repeat_whose_notifications_were_sent_repeats_only_those_of_later_rows() -> None:
    system = kit(inline=AGENTS)
    await system.receive(ORDER)
    sends = sent_by(system)
    await system.receive(ORDER, count=2, properties={EXTERNAL_SENT: "yes"})
    rows = rows_of(system, cause_of(QUEUES.orders, "m-1"))
    assert [message.message_id for message in sends] == notifications(rows[1:])


async def test_a_walk_ends_though_rows_that_were_changed_by_hand_lead_back() -> None:
    system = kit(inline=AGENTS)
    await system.receive(ORDER)
    system.store.orders["O-1"].causes[digest_id(cause_of(QUEUES.scheduler, "O-1/1/0"))] = 1
    sends = sent_by(system)
    await system.receive(ORDER, count=2)
    assert [message.message_id for message in sends] == ["O-1/1/1"]


async def test_a_request_whose_step_no_longer_waits_for_it_is_not_repeated() -> None:
    """The supervisor has recovered the step while the process was dead."""
    system = kit()
    await system.receive(ORDER)
    system.agents_die()
    await system.later(31)
    await system.sweep()
    sends = sent_by(system)
    await system.receive(ORDER, count=2)
    assert internals(sends) == []


# What is known of the calls of a request that ran on


async def test_a_request_whose_handler_has_a_bug_travels_as_one_that_was_tried() -> None:
    system = kit(inline=AGENTS)

    async def handle(_: Delivery) -> None:
        raise LookupError("a bug")

    queue = QUEUES.agent("stock")
    system.context.run_on.handlers = {**system.context.run_on.handlers, queue: handle}
    await system.receive(ORDER)
    (request,) = system.bus.messages(QUEUES.agent("stock"))
    assert request.properties == {AGAIN: "yes", CALL_STATE: CallState.TRIED.value}


@pytest.mark.parametrize("inline", [(), AGENTS], ids=["queued", "inline"])
async def test_a_crash_in_a_chain_counts_no_failure_of_the_step_whose_request_it_held_up(
    inline: tuple[str, ...],
) -> None:
    """Its request comes 21 of 30 seconds late, and its call takes 12: it gets time anew."""
    system = kit(inline=inline)

    async def dies(_: Delivery) -> None:
        raise CrashError

    def dies_sending(message: Message) -> None:
        if message.queue == QUEUES.agent("stock"):
            raise CrashError

    system.context.run_on.handlers = {
        **system.context.run_on.handlers,
        QUEUES.agent("stock"): dies,
    }
    if not inline:
        system.context.run_on.handlers = {QUEUES.scheduler: system.scheduler.handle}
        system.bus.plan = dies_sending
    with pytest.raises(CrashError):
        await system.receive(ORDER)
    system.bus.plan = lambda _: None
    system = kit(beside=system, inline=inline)
    await system.later(21)

    async def slow(_: AgentCall) -> dict[str, str]:
        await system.clock.sleep(12)
        return {}

    system.agents["stock"].then(slow)
    await system.receive(ORDER, count=2)
    await system.drain()
    await system.later(10)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"
    assert "step reset" not in system.words()


async def test_an_instance_without_the_workflow_leaves_the_rest_of_a_chain_to_others() -> None:
    system = kit(inline=("payment",))
    await system.receive(ORDER)
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None
    system.agents["payment"].then(CrashError())
    with pytest.raises(CrashError):
        await system.receive(request)
    older = kit(CARE, beside=system, inline=("payment",))
    await older.receive(request, count=2)
    (copy,) = system.bus.queues[QUEUES.agent("stock")].waiting
    assert copy.message.properties[FIRST_ID] == request.message_id
    await system.later(2)
    await assert_completes(kit(beside=system, inline=("payment",)))


@pytest.mark.parametrize("moment", ["before its call", "after its call"])
async def test_a_redelivered_request_keeps_its_state_while_the_store_is_away(moment: str) -> None:
    """It looks for its reply, or fences it. A call went out before, so it may not say it waited."""
    system = kit()
    await system.receive(ORDER)
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None

    def away(_operation: str, _key: str) -> None:
        raise StoreUnavailableError("away")

    async def busy(_: AgentCall) -> None:
        system.store.plan = away
        raise BUSY

    system.agents["stock"].then(busy)
    if moment == "before its call":
        system.store.plan = away
    await system.receive(request, count=2)
    (copy,) = system.bus.queues[QUEUES.agent("stock")].waiting
    state = CallState.GOES_ON if moment == "before its call" else CallState.TRIED
    assert copy.message.properties[CALL_STATE] == state.value


async def test_a_request_whose_reply_was_neither_handled_nor_sent_comes_again_as_tried() -> None:
    system = kit()
    await system.receive(ORDER)
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None
    handlers = dict(system.context.run_on.handlers)

    async def fails(_: Delivery) -> None:
        raise LookupError("a bug")

    system.context.run_on.handlers = handlers | {QUEUES.scheduler: fails}
    system.bus.plan = lambda m: BusFault.UNAVAILABLE if m.queue == QUEUES.scheduler else None
    assert await system.receive(request) is None
    (copy,) = system.bus.queues[QUEUES.agent("stock")].waiting
    assert copy.message.properties[FIRST_ID] == request.message_id
    assert copy.message.properties.get(CALL_STATE) in {"tried", "goes-on"}


# Who is not alone with a request


BUSY = TransientError("busy", retry_after=timedelta(hours=1))
"""No further call can begin before CompleteBy: the agent is silent at once."""


@pytest.mark.parametrize("undoes", [False, True])
async def test_a_redelivered_request_that_ends_in_silence_fences_its_reply(undoes: bool) -> None:
    """Its first handler would run on from the reply, and nobody would repeat what it leaves."""
    system, name = kit(), "payment" if undoes else "stock"
    await system.receive(ORDER)
    if undoes:
        await system.drain()
        await system.hand(command("undo", system.order().seq))
        await system.step(QUEUES.scheduler)
    (request,), states = system.bus.messages(QUEUES.agent(name)), system.states()

    async def meanwhile(_: AgentCall) -> dict[str, bool]:
        await system.actors[name].handle(delivery(request, count=2))
        return {"late": True}

    system.agents[name].then(meanwhile, BUSY)
    await system.receive(request)
    assert (system.words()[-1], system.states()) == ("fenced", states)


async def test_a_request_that_a_redelivery_sent_fences_its_reply_in_silence_too() -> None:
    """The one that was handed over may still be at work, although its root was redelivered."""
    system = kit(inline=AGENTS)
    system.agents["stock"].then(CrashError(), BUSY)
    with pytest.raises(CrashError):
        await system.receive(ORDER)
    await system.receive(ORDER, count=2)
    (request,) = system.bus.messages(QUEUES.agent("stock"))
    await system.receive(request)
    assert system.words()[-1] == "fenced"


async def test_a_redelivered_wake_that_finds_nothing_is_fenced() -> None:
    """Another handler that still has it would claim the step by it, if the step is reset later."""
    system = kit()
    await system.submit()
    (wake,) = system.bus.messages(QUEUES.scheduler)
    newer = wake.body.replace(b"O-1/1/0", b"O-1/1/9")
    await system.receive(replace(wake, message_id="another", body=newer))
    assert system.words() == ["submitted", "claimed"]
    await system.receive(wake)
    assert system.words() == ["submitted", "claimed"]
    await system.receive(wake, count=2)
    await system.receive(wake, count=3)
    assert system.words() == ["submitted", "claimed", "fenced"]


async def test_a_first_delivery_that_ends_in_silence_writes_nothing() -> None:
    system = kit()
    await system.receive(ORDER)
    journal = list(system.journal())
    system.agents["stock"].then(BUSY)
    await system.receive(system.bus.messages(QUEUES.agent("stock"))[0])
    assert system.journal() == journal
    assert system.bus.messages(QUEUES.scheduler) == []


async def test_a_superseded_request_sends_what_its_reply_left() -> None:
    """It was sent twice, and the process that answered the other one died before it sent."""
    async for system in crashed_anywhere(root=QUEUES.agent("stock")):
        expected = unhandled(system, rows_of(system, cause_of(QUEUES.scheduler, "O-1/00/do/1")))
        if expected:
            break
    await system.later(20)  # too late for a call, so the order is read
    sends = sent_by(system)
    await system.receive(root_of(system, QUEUES.agent("stock")))
    assert internals(sends) == expected
