"""The nights of docs/operating.md: the cause is named, the act is safe, and all ends well.

Each test plays a fault over the actors in memory. It asks and acts only through ``sas.operate``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from sas.domain.messages import Verb
from sas.domain.queues import DEAD_LETTER_SUBQUEUE
from sas.domain.workflow import OnFailure, Workflow
from sas.engine.delivery import Delivery
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.operate import commands, finding, letters, lists, messages, orders, redriving, status
from sas.operate.commands import ActRun, Intent
from sas.operate.finding import OrderQuery
from sas.operate.messages import MessageGroup, MessageList
from sas.operate.orders import OrderStory
from sas.operate.status import Problem, SystemStatus
from sas.ports import CorruptOrderError, Message, RefusedError, TransientError
from sas.testing.bus import QueueRules
from tests.unit.actors_kit import (
    AGENTS,
    CARE,
    CHAIN,
    QUEUES,
    SHOP,
    Kit,
    break_row,
    delivery,
    kit,
    order,
)

T = TypeVar("T")
HOLD = replace(CHAIN, on_failure=OnFailure.HOLD)
DECLINED = RefusedError("card-declined", "the card was declined")
PAYMENT = QUEUES.agent("payment")
RULES = QueueRules(
    deliveries_max=10, dead_letters_expired=True, forwards_dead_letters_to=QUEUES.dead_letters
)
THREE = ("O-1", "O-2", "O-3")


@dataclass(kw_only=True)
class OnCall:
    """The system of a night, and what the person on call reads and does."""

    system: Kit

    async def run(self, work: Awaitable[T]) -> T:
        return await self.system.run(work)

    async def submit(self, *order_ids: str) -> None:
        bodies = {order_id: order(order_id) for order_id in order_ids}
        await self.system.bus.send(
            [Message(QUEUES.orders, f"m-{name}", body) for name, body in bodies.items()]
        )

    async def works(self, app: Kit | None = None) -> None:
        """Let the functions take what lies in their queues, and the supervisor look."""
        app, bus = app or self.system, self.system.bus
        await app.sweep()
        for queue in QUEUES.on_the_way(AGENTS):
            for _ in bus.messages(queue):
                if (queued := bus.receive(queue)) is None:
                    break  # it is disabled
                await app.receive(queued.message)
                bus.complete(queued)
        bus.messages(SHOP)  # those that expired become dead letters
        for _ in bus.messages(QUEUES.dead_letters):
            if (queued := bus.receive(QUEUES.dead_letters)) is None:
                break
            dead = delivery(queued.message, source_queue=queued.source)
            await self.run(app.receiver.receive(app.dead_letters.handle, dead))
            bus.complete(queued)

    async def passes(self, minutes: float, app: Kit | None = None) -> None:
        """Let time pass with all functions at work, or with those of another deploy."""
        for _ in range(int(minutes * 6)):
            await self.system.later(10)
            await self.works(app)

    async def status(self) -> SystemStatus:
        """Return what ``sas status`` shows."""
        now = self.system.clock.now()
        reading = await self.run(status.read_system(self.system.store, now))
        names = status.queue_names(QUEUES, AGENTS)
        look_at = partial(messages.joined, self.system.store, queues=QUEUES)
        counts = await self.run(status.queue_counts(self.system.bus, names, QUEUES, look_at))
        return status.status_of(reading, now, counts)

    async def problem(self) -> Problem:
        """Return the only problem."""
        (problem,) = (await self.status()).problems
        return problem

    async def show(self, order_id: str = "O-1") -> OrderStory:
        """Return what ``sas show`` shows."""
        loaded = await self.run(finding.load(self.system.store, order_id))
        return await self.run(
            orders.explain(
                self.system.store,
                self.system.bus,
                loaded,
                await self.system.store.journal(order_id),
                queues=QUEUES,
                now=self.system.clock.now(),
                workflows=self.system.business.workflows,
            )
        )

    async def messages(self, place: str) -> MessageList:
        """Return what ``sas messages list`` shows."""
        paths = messages.paths_of(place, QUEUES, AGENTS, [SHOP])
        contents = await self.run(letters.read(self.system.bus, paths, QUEUES))
        return await self.run(messages.joined(self.system.store, contents, QUEUES))

    async def alert(self) -> MessageGroup:
        """Return the alerts of the only cause that is not over."""
        (group,) = (await self.messages(messages.ALERTS)).groups
        return group

    async def act(self, verb: Verb, query: OrderQuery) -> None:
        """Carry a command out for all orders of a query."""
        intent = Intent(verb=verb, by="ann")
        plan = await self.run(commands.plan_many(self.system.store, query, intent))
        assert plan.acts
        assert not plan.others
        await self.run(ActRun(plan, self.system.store, QUEUES).send(self.system.bus))
        await self.works()

    async def ends(self, state: str, *order_ids: str) -> None:
        """Check that the orders ended, that nothing is wrong any more, and no alert is left."""
        assert {self.system.state(order_id) for order_id in order_ids} == {state}
        assert (await self.status()).problems == ()
        assert (await self.messages(messages.ALERTS)).groups == ()

    async def until_in(self, queue: str) -> Message:
        """Let the functions work by one message after another, until this queue has one."""
        bus = self.system.bus
        for _ in range(1000):
            if waiting := bus.messages(queue):
                return waiting[0]
            name = next(name for name in QUEUES.on_the_way(AGENTS) if bus.messages(name))
            await self.system.step(name)
        raise AssertionError(f"no message comes into {queue}")

    async def remove_repaired(self) -> None:
        """Remove the alerts and the rejected messages that need nothing any more."""
        bus = self.system.bus
        contents = await self.run(letters.read(bus, [QUEUES.rejected, QUEUES.alerts], QUEUES))
        plan = await self.run(redriving.plan_removal(self.system.store, contents, QUEUES, None))
        for move in plan.moves:
            bus.take(move.path)

    def calls(self, agent: str, verb: str = "do") -> list[str]:
        """Return the orders for which an agent was called, in the end."""
        return [call.order_id for word, call in self.system.agents[agent].calls if word == verb]


def on_call(*workflows: Workflow, circuit: BreakerPolicy | None = None) -> OnCall:
    """Return a system whose queues have the rules of the deployed ones."""
    system = kit(*workflows, duplicate_window=timedelta(minutes=10), circuit=circuit)
    names = (SHOP, *status.queue_names(QUEUES, AGENTS))
    system.bus.declare(*(name + DEAD_LETTER_SUBQUEUE for name in names))
    system.bus.declare(SHOP, *QUEUES.on_the_way(AGENTS), rules=RULES)
    return OnCall(system=system)


IN_ERROR = OrderQuery(state="error", limit=1000)


async def test_refusals_are_one_cause_and_resubmitted_together() -> None:
    night = on_call(HOLD)
    night.system.agents["payment"].then(*[DECLINED] * 3)
    await night.submit(*THREE)
    await night.passes(1)
    problem = await night.problem()
    text = "3 orders are in Error: 3 “pay/card-declined”."
    assert (problem.kind, problem.text) == ("error", text)
    group = await night.alert()
    assert (group.newest.kind, group.count) == ("step-failed", 3)
    assert "the card was declined" in group.newest.cause
    story = await night.show()
    assert story.story == "It stopped at pay: “the card was declined”."
    assert [act.verb for act in story.acts if not act.final] == ["resubmit", "skip", "acknowledge"]
    await night.act(Verb.RESUBMIT, replace(IN_ERROR, fingerprint="pay/card-declined"))
    await night.passes(1)
    assert night.calls("stock") == list(THREE)
    await night.ends("Processed", *THREE)


async def test_an_outage_is_one_cause_and_needs_no_act() -> None:
    night = on_call(CHAIN, circuit=BreakerPolicy(failures_max=3))
    outage = TransientError("payment could not be reached")
    night.system.agents["payment"].then(*[outage] * 1000)
    await night.submit(*THREE)
    await night.passes(2)
    problem = await night.problem()
    assert (problem.kind, problem.needs_you) == ("breaker-open", False)
    assert "payment could not be reached" in problem.text
    waits = (await night.show()).waits
    assert waits.awaited.startswith("The service of agent payment: its circuit is ")
    assert not waits.needs_you
    assert (await night.alert()).newest.kind == "breaker-open"
    night.system.agents["payment"].script.clear()
    await night.passes(3)
    assert set(night.calls("stock", "undo")) == set()
    await night.ends("Processed", *THREE)


async def test_a_bad_release_is_one_cause_and_the_release_before_it_goes_on_with_all() -> None:
    night = on_call(CHAIN)
    bad = kit(CHAIN, instance="bad", beside=night.system)
    bad.submitter.handle = broken  # type: ignore[method-assign, assignment]
    bad.actors["payment"].handle = broken  # type: ignore[method-assign, assignment]
    await night.submit("O-0")
    await night.until_in(PAYMENT)
    await night.submit(*THREE)
    await night.passes(3, bad)
    problem = await night.problem()
    assert (problem.kind, problem.needs_you) == ("agent-failing", True)
    assert "fail: KeyError: “'amount'” (tests/unit/test_nights.py:" in problem.text
    assert problem.todo.startswith("If a release brought it, deploy the one before: ")
    assert (await night.alert()).count == 1
    queued_order = await night.run(orders.queued(night.system.bus, QUEUES, "O-1"))
    assert queued_order.waits.awaited.startswith("A deploy that mends a bug: “KeyError: ")
    await night.passes(15)
    assert (await night.messages(messages.REJECTED)).rows == ()
    assert sorted(night.calls("payment")) == ["O-0", *THREE]
    assert "step reset" not in night.system.words("O-0")
    await night.ends("Processed", "O-0", *THREE)


async def broken(_delivery: Delivery) -> None:
    raise KeyError("amount")


async def test_a_poison_message_names_what_became_of_it_and_its_order_goes_on() -> None:
    night = on_call(CHAIN)
    await night.submit("O-1")
    request = await night.until_in(PAYMENT)
    night.system.bus.give_up_first(PAYMENT)
    await night.works()
    problem = await night.problem()
    assert problem.kind == "rejected"
    assert "its process was killed" in problem.text
    assert (await night.alert()).newest.kind == "dead-lettered"
    (row,) = (await night.messages(messages.REJECTED)).rows
    assert row.order_id == "O-1"
    assert "its process was killed" in row.cause
    assert row.todo.startswith("nothing while its order goes on: ")
    assert row.command == f"sas messages resend {row.message_id} --to {PAYMENT}"
    await night.passes(3)  # the supervisor asks for the step again
    assert night.system.state() == "Processed"
    assert request.message_id not in night.system.ids(PAYMENT)
    await night.ends("Processed", "O-1")
    await night.remove_repaired()
    assert (await night.messages(messages.REJECTED)).rows == ()


async def test_a_killed_host_is_named_and_its_orders_go_on_with_it() -> None:
    night = on_call(CHAIN)
    await night.submit("O-1")
    await night.until_in(PAYMENT)
    await night.submit("O-2")
    await night.system.later(120)
    problem = await night.problem()
    assert problem.kind == "late"
    assert "messages wait in orders" in problem.text
    assert "has not looked at order “O-1”" in problem.text
    assert problem.todo.startswith("Check that it runs.")
    assert "function app runs" in (await night.show()).waits.todo
    waiting = await night.run(orders.queued(night.system.bus, QUEUES, "O-2"))
    assert waiting.waits.awaited == "The function app, to take its message."
    await night.passes(3)
    assert night.calls("stock") == ["O-1", "O-2"]
    assert sorted(night.calls("payment")) == ["O-1", "O-2"]
    await night.ends("Processed", "O-1", "O-2")


async def test_a_failed_undo_says_that_the_order_is_partly_undone() -> None:
    night = on_call(CHAIN)
    night.system.agents["payment"].then(DECLINED)
    night.system.agents["stock"].then({"ok": True}, RefusedError("gone", "it was sent already"))
    await night.submit("O-1")
    await night.passes(1)
    problem = await night.problem()
    assert problem.kind == "undo-failed"
    assert problem.text == "1 order is partly undone, because an undo failed: 1 “reserve/gone”."
    story = await night.show()
    assert story.story.startswith("It is partly undone: the undo of reserve failed: “it was sent")
    assert [act.verb for act in story.acts] == ["resubmit", "skip", "acknowledge"]
    assert (await night.alert()).newest.kind == "undo-failed"
    await night.act(Verb.RESUBMIT, IN_ERROR)
    await night.passes(1)
    await night.ends("Compensated", "O-1")


async def test_a_disabled_queue_is_named_and_nothing_fails_meanwhile() -> None:
    night = on_call(CHAIN)
    await night.submit("O-1")
    await night.until_in(PAYMENT)
    night.system.bus.cut(PAYMENT)
    await night.passes(5)
    problem = (await night.status()).problems[0]
    assert (problem.kind, problem.about) == ("queue", PAYMENT)
    assert (await night.alert()).newest.kind == "queue-delay"
    waits = (await night.show()).waits
    assert waits.message is not None
    assert PAYMENT in waits.message.text
    assert [step.failure_count for step in night.system.order().steps] == [0, 0]
    night.system.bus.mend(PAYMENT)
    await night.passes(10)
    assert (night.calls("stock"), night.calls("payment")) == (["O-1"], ["O-1"])
    await night.ends("Processed", "O-1")


async def test_a_row_changed_by_hand_is_named_and_stops_no_other_order() -> None:
    night = on_call(CHAIN)
    await night.submit("O-1", "O-2")
    await night.until_in(PAYMENT)
    load = night.system.store.load
    row = break_row(night.system, "O-1").removesuffix(" Repair it, or restore it from a backup")
    restarted = kit(CHAIN, beside=night.system)  # the instance before it had the order in memory
    await night.passes(3, restarted)
    assert night.system.state("O-2") == "Processed"
    problem = (await night.status()).problems[0]
    assert problem.kind == "unreadable"
    assert row in problem.text
    assert "Repair it" in problem.todo
    with pytest.raises(CorruptOrderError, match="is not a valid StepState"):
        await night.show()
    rows = await night.run(
        lists.list_of(
            night.system.store,
            night.system.bus,
            OrderQuery(state="all", limit=10),
            queues=QUEUES,
            now=night.system.clock.now(),
        )
    )
    assert {row.order_id for row in rows.rows} == {"O-1", "O-2"}
    assert row in (await night.alert()).newest.cause
    night.system.store.load = load  # type: ignore[method-assign]
    await night.passes(40, restarted)
    assert night.calls("stock") == ["O-1", "O-2"]
    await night.ends("Processed", "O-1", "O-2")


async def test_a_workflow_taken_away_is_named_within_minutes_and_a_deploy_brings_all_back() -> None:
    night = on_call(CHAIN)
    await night.submit("O-1")
    await night.until_in(PAYMENT)
    deployed = kit(CARE, beside=night.system)
    await night.passes(3, deployed)
    problem = await night.problem()
    assert problem.kind == "not-runnable"
    assert "O-1" in problem.text
    assert "Deploy it again" in problem.todo
    waits = (await night.show()).waits
    assert waits.awaited == "A deploy that has chain version 1."
    await night.passes(15, deployed)
    assert (await night.problem()).kind == "not-runnable"
    assert (await night.alert()).newest.kind == "not-runnable"
    await night.passes(45)
    assert (night.calls("stock"), night.calls("payment")) == (["O-1"], ["O-1"])
    await night.ends("Processed", "O-1")


async def test_an_application_that_does_not_read_is_one_incident_and_no_order_stops() -> None:
    night = on_call(CHAIN)
    responses = night.system.bus.queues[SHOP]
    responses.rules = replace(responses.rules, time_to_live=timedelta(seconds=30))
    await night.submit(*THREE)
    await night.passes(5)
    problem = await night.problem()
    assert (problem.kind, problem.about) == ("undeliverable", f"queue {SHOP}")
    assert "is not read" in problem.text
    assert (await night.alert()).count == 1
    assert (await night.messages(messages.REJECTED)).rows == ()
    responses.rules = replace(responses.rules, time_to_live=None)
    await night.system.later(25 * 3600)
    await night.works()
    await night.ends("Processed", *THREE)


def test_each_night_of_the_page_has_a_test() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    nights = re.findall(r"^\| ([A-Z][\w ]+) \| .+? \|", guide, re.MULTILINE)
    names = [f"test_{night.lower().replace(' ', '_')}_" for night in nights]
    tests = [name for name in globals() if name.startswith("test_") and "of_the_page" not in name]
    assert [[test for test in tests if test.startswith(name)] for name in names] == [
        [test] for test in tests
    ]
