"""The commands of an operator: what they would do, how they are sent, and what became of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace

import msgspec
import pytest

from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.domain.command import decide as decide_command
from sas.domain.messages import Command, Verb
from sas.domain.order import Dispatched, Fault, Order, OrderState
from sas.engine.command_answers import REASON_LENGTH_MAX, REASONS_MAX, CommandAnswers, slot_of
from sas.operate import commands
from sas.operate.commands import (
    ActPlan,
    ActRun,
    CommandRefusal,
    Effect,
    Intent,
    OrderAct,
    act_on,
    plan_many,
    plan_one,
)
from sas.operate.errors import NotPossibleError, ServiceUnavailableError
from sas.operate.finding import OrderQuery
from sas.ports import BusUnavailableError, Message, OtherVersionError, RefusedError
from sas.testing.store import MemoryStore, StoreFault
from tests.contract import cases
from tests.contract.cases import NOW
from tests.unit.actors_kit import CARE, QUEUES, Kit, break_row, command, kit, letter, order
from tests.unit.domain_cases import story
from tests.unit.line_kit import OperatorLine
from tests.unit.orders_in_states import ORDERS, RULES, wish

DECLINED = RefusedError("card-declined", "the card was declined")
LIMIT = RefusedError("over-limit", "the card is over its limit")
IN_ERROR = OrderQuery(state="error", limit=1000)

# -- What a command would do, in each state of an order ---------------------------------------


def test_a_command_is_refused_here_exactly_where_it_would_be_there() -> None:
    assert {order.process_state for order in ORDERS.values()} == set(OrderState)
    steps = (None, "step-0", "step-1")
    for name, verb, step, at_once in product(ORDERS, Verb, steps, (False, True)):
        order = ORDERS[name]
        act = act_on(order, wish(verb, step=step, at_once=at_once))
        command = Command(
            command_id="c", order_id="o", verb=act.verb, seq=order.seq, by="ann", step=step
        )
        decision = (
            None if order.rejected else decide_command(order, command, RULES, now=NOW, instance="s")
        )
        is_possible = decision is not None
        wishes = (name, verb, step, at_once)
        assert (act.effect is not None, bool(act.would)) == (is_possible, is_possible), wishes
        assert (act.refusal is None, act.problem == "") == (is_possible, is_possible), wishes


RESULT = '{"amount":80}'
DEAR = Fault("too-dear", "50 is the most")
RESUBMIT, SKIP, UNDO, CALLBACK = Verb.RESUBMIT, Verb.SKIP, Verb.UNDO, Verb.CALLBACK
FAILED = "step-1 (“out-of-stock: none left of article 11”)"
UNDO_OF = "undo of step-1 (“shut: no”)"
GIVEN, WITH = " with the given input", f", with the result {RESULT}"
NULL = "; later steps will see null"
NO_STEP, NO_WAY_BACK = "start no new step, ", "undo the order (there is no way back); "
BEGAN = "these steps began and are undone in this order, if they have an undo: "
CALLS_RUN = "it is Compensating, and waits for the calls that run (--now does not wait for them)"
THEN = (
    "(too-dear: 50 is the most); the order is then undone, or waits in Error, as its workflow says"
)
NOTED = "that it is in Error; nothing else changes"
IN_ERR, AWAITS, UNDO_FAILED = "in error", "awaiting a callback", "undo failed"
EFFECTS = [
    (IN_ERR, wish(RESUBMIT), Effect.RUN_AGAIN, f"run again: {FAILED}"),
    (IN_ERR, wish(RESUBMIT, input="{}"), Effect.RUN_AGAIN, f"run again{GIVEN}: {FAILED}"),
    (IN_ERR, wish(SKIP), Effect.COUNT_AS_DONE, f"count as done{NULL}: {FAILED}"),
    (IN_ERR, wish(SKIP, input=RESULT), Effect.COUNT_AS_DONE, f"count as done{WITH}: {FAILED}"),
    (UNDO_FAILED, wish(RESUBMIT), Effect.RUN_AGAIN, f"run again: {UNDO_OF}"),
    (UNDO_FAILED, wish(SKIP), Effect.COUNT_AS_UNDONE, f"count as undone by hand: {UNDO_OF}"),
    (IN_ERR, wish(UNDO), Effect.UNDO, f"{NO_WAY_BACK}{BEGAN}step-1, step-0"),
    ("pending", wish(UNDO), Effect.CANCEL, f"{NO_STEP}then {NO_WAY_BACK}no step ever began"),
    (
        "processing",
        wish(UNDO),
        Effect.CANCEL,
        f"{NO_STEP}wait for step-0, then {NO_WAY_BACK}{BEGAN}step-0",
    ),
    ("processing", wish(UNDO, at_once=True), Effect.UNDO, f"{NO_WAY_BACK}{BEGAN}step-0"),
    (AWAITS, wish(UNDO), Effect.CANCEL, f"{NO_STEP}then {NO_WAY_BACK}{BEGAN}step-0"),
    (AWAITS, wish(SKIP, input=RESULT), Effect.END_AS_DONE, f"end step-0 as done{WITH}"),
    (AWAITS, wish(CALLBACK), Effect.END_AS_DONE, "end step-0 as done, with the result null"),
    (AWAITS, wish(CALLBACK, fault=DEAR), Effect.END_AS_REFUSED, f"end step-0 as refused {THEN}"),
    (IN_ERR, wish(Verb.ACKNOWLEDGE), Effect.ACKNOWLEDGE, f"note that you have seen {NOTED}"),
]
REFUSALS = [
    (
        IN_ERR,
        wish(SKIP, step="fly"),
        CommandRefusal.NO_SUCH_STEP,
        "it has no step 'fly', only step-0, ",
    ),
    (
        IN_ERR,
        wish(RESUBMIT, step="step-0"),
        CommandRefusal.STEP_NOT_IN_ERROR,
        "the step must be in Error",
    ),
    (
        "cancelled",
        wish(UNDO),
        CommandRefusal.WRONG_STATE,
        f"its undo is decided already: {CALLS_RUN}",
    ),
    (
        "rejected",
        wish(UNDO),
        CommandRefusal.REJECTED,
        "it was rejected, and no step began: submit it",
    ),
]


def test_the_effect_of_a_command_or_why_it_is_not_possible_is_one_sentence() -> None:
    for name, intent, effect, sentence in EFFECTS:
        act = act_on(ORDERS[name], intent)
        assert (act.effect, act.would) == (effect, sentence), (name, intent)
    for name, intent, refusal, sentence in REFUSALS:
        act = act_on(ORDERS[name], intent)
        assert (act.refusal, act.problem[: len(sentence)]) == (refusal, sentence), (name, intent)


def test_a_skip_is_for_the_step_that_failed_and_a_step_that_waits_for_a_callback_is_named() -> None:
    both = story("two beside each other")
    both.claim()
    both.refused("a")
    waiting = both.step("b")
    assert isinstance(waiting.turn, Dispatched)
    waiting = replace(waiting, turn=replace(waiting.turn, awaits=True))
    order = replace(both.order, steps=(both.step("a"), waiting))
    for step, verb, effect in [
        (None, Verb.SKIP, Effect.COUNT_AS_DONE),
        ("a", Verb.SKIP, Effect.COUNT_AS_DONE),
        ("b", Verb.CALLBACK, Effect.END_AS_DONE),
    ]:
        act = act_on(order, wish(Verb.SKIP, step=step))
        assert (act.verb, act.effect) == (verb, effect), step


# -- Many orders ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def poll_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "JOURNAL_POLL_S", 0.01)


async def failed(*order_ids: str) -> Kit:
    """The actors, with orders of which the payment was declined."""
    system = kit(CARE)
    for order_id in order_ids:
        system.agents["payment"].then(DECLINED)
        await system.submit(order(order_id, workflow="care"), f"m-{order_id}")
        await system.drain()
    return system


def resubmit(step: str | None = None) -> Intent:
    return Intent(verb=Verb.RESUBMIT, by="ann", step=step)


@dataclass(kw_only=True)
class Line(OperatorLine):
    """The bus is down after ``up_for`` messages."""

    up_for: int = 10**6

    async def send(self, messages: Sequence[Message]) -> None:
        if len(self.sent_messages) >= self.up_for:
            raise BusUnavailableError("The bus is down.")
        await super().send(messages)

    @property
    def sent(self) -> list[CommandMessage]:
        return [internal.decode(message.body, CommandMessage) for message in self.sent_messages]


async def carried_out(line: Line, plan: ActPlan, wait_s: float = 0.1) -> list[OrderAct]:
    run = ActRun(plan, line.system.store, QUEUES)
    await run.send(line)
    return await run.follow(wait_s)


async def test_each_order_has_its_result_and_those_that_failed_again_say_how() -> None:
    system = await failed("A", "B", "C")
    system.agents["payment"].then({"ok": 1}, LIMIT, {"ok": 1})
    plan = await plan_many(system.store, IN_ERROR, resubmit())
    assert plan.counts == "3 pay/card-declined"
    done: list[int] = []
    run = ActRun(plan, system.store, QUEUES)
    await run.send(Line(system=system))
    results = await run.follow(5, done.append)
    assert [(result.order_id, result.carried_out, result.failed_again) for result in results] == [
        ("A", True, False),
        ("B", True, True),
        ("C", True, False),
    ]
    assert [result.process_state for result in results] == ["Processed", "Error", "Processed"]
    assert results[1].problem == "pay (“over-limit: the card is over its limit”)"
    assert (results[0].row, results[0].what) == (5, "resubmitted")
    assert (run.sent, done[-1]) == (3, 3)


async def test_a_plan_that_is_sent_again_carries_nothing_out_twice_and_alerts_nobody() -> None:
    """Ctrl-C after the commands were sent, and the same command again before they arrived."""
    system = await failed("A", "B")
    line = Line(system=system)
    line.runs = False
    first = await plan_many(system.store, IN_ERROR, resubmit())
    await ActRun(first, system.store, QUEUES).send(line)
    again = await plan_many(system.store, IN_ERROR, resubmit())
    assert [act.command for act in again.acts] == [act.command for act in first.acts]
    alerts, line.runs = len(system.alerts()), True
    await ActRun(first, system.store, QUEUES).send(line)  # the first commands arrive
    results = await carried_out(line, again)
    assert [result.process_state for result in results] == ["Processed", "Processed"]
    assert system.words("A").count("resubmitted") == 1
    assert len(system.alerts()) == alerts
    third = await plan_many(system.store, IN_ERROR, resubmit())
    assert third.acts == []  # none is in Error any more


async def test_the_same_command_after_a_new_failure_is_another_one() -> None:
    system = await failed("A")
    system.agents["payment"].then(LIMIT, {"ok": 1})
    for state in ("Error", "Processed"):  # under the same id nothing would be carried out
        plan = await plan_many(system.store, IN_ERROR, resubmit())
        (result,) = await carried_out(Line(system=system), plan)
        assert (result.carried_out, result.process_state) == (True, state)


async def test_every_step_that_is_run_again_has_its_result() -> None:
    system = kit(CARE)
    system.agents["stock"].then(DECLINED)
    system.agents["payment"].then(DECLINED, LIMIT)
    await system.submit(order("A", workflow="care"))
    await system.drain()
    run = ActRun(await plan_one(system.store, "A", resubmit()), system.store, QUEUES)
    await system.hand(run.message(run.plan.acts[0]))
    for queue in ("scheduler", "agent-stock", "scheduler"):  # its wake, and one of two steps
        await system.step(queue)
    assert system.states("A") == ["Processed", "Processing"]
    await run.follow(0.01)
    assert run.done == 0, "the second step still runs"
    await system.drain()
    (result,) = await run.follow(5)
    assert (run.done, result.failed_again) == (1, True)
    assert result.problem == "pay (“over-limit: the card is over its limit”)"


async def test_of_many_the_urgent_are_sent_first_in_their_lane() -> None:
    system = await failed("A", "B", "C")
    plan = await plan_many(system.store, IN_ERROR, resubmit())
    plan.acts[1] = msgspec.structs.replace(plan.acts[1], urgent=True)
    line = Line(system=system)
    await carried_out(line, plan)
    assert [message.order_id for message in line.sent] == ["B", "A", "C"]
    assert [message.queue for message in line.sent_messages] == [
        "scheduler-urgent",
        "scheduler",
        "scheduler",
    ]


async def test_a_command_for_a_fingerprint_changes_only_that_step() -> None:
    """Skipping a payment made by hand must not skip, unseen, a reservation that failed besides."""
    system = kit(CARE)
    system.agents["stock"].then(RefusedError("none-left", "none left"))
    system.agents["payment"].then(DECLINED)
    await system.submit(order("A", workflow="care"))
    await system.drain()
    query = replace(IN_ERROR, fingerprint="pay/card-declined")
    plan = await plan_many(system.store, query, Intent(verb=Verb.SKIP, by="ann"))
    assert plan.acts[0].failed == ("pay/card-declined",)
    line = Line(system=system)
    await carried_out(line, plan)
    assert line.sent[0].step == "pay"
    assert system.states("A") == ["Error", "Processed"]
    plan = await plan_many(system.store, query, resubmit("reserve"))
    assert plan.intent.step == "reserve"


async def test_orders_that_do_not_allow_it_are_left_out_with_the_reason() -> None:
    system = await failed("A", "B")
    plan = await plan_many(system.store, IN_ERROR, resubmit("reserve"))
    assert plan.acts == []
    assert [act.refusal for act in plan.others] == [CommandRefusal.STEP_NOT_IN_ERROR] * 2
    plan = await plan_many(system.store, replace(IN_ERROR, limit=2), resubmit("reserve"))
    assert plan.limited, "there may be more, although these are left out"


@pytest.mark.parametrize("error", [None, OtherVersionError("row order|B has format 9")])
async def test_an_order_that_cannot_be_read_is_left_out_with_the_reason_and_stops_no_other(
    error: OtherVersionError | None,
) -> None:
    system = await failed("A", "B", "C", "D")
    reason = break_row(system, "B", error)
    break_row(system, "D")
    query = replace(IN_ERROR, fingerprint="pay/card-declined")
    plan = await plan_many(system.store, query, resubmit())
    assert [act.order_id for act in plan.acts] == ["A", "C"]
    other, last = sorted(plan.others, key=lambda act: act.order_id)
    assert (last.order_id, last.refusal) == ("D", CommandRefusal.UNREADABLE)
    assert (other.order_id, other.refusal) == ("B", CommandRefusal.UNREADABLE)
    assert other.problem == f"it cannot be read: {reason}"
    assert (other.process_state, other.since) == (None, None)
    results = await carried_out(Line(system=system), plan)
    assert [result.carried_out for result in results] == [True, True]


async def test_an_order_that_changes_while_orders_are_read_gets_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = await failed("A", "B")

    async def each(*_arguments: object) -> AsyncIterator[Order]:
        for order_id in ("A", "B", "A"):
            yield system.order(order_id)

    monkeypatch.setattr("sas.operate.finding.each", each)
    plan = await plan_many(system.store, IN_ERROR, resubmit())
    assert [act.order_id for act in plan.acts] == ["A", "B"]


async def test_all_that_was_processed_since_a_moment_can_be_undone_at_once() -> None:
    """A price was wrong all morning."""
    store, rules = MemoryStore(), cases.rules_of(1)
    for number, seconds in enumerate((0, 10, 20)):
        order = await store.commit(cases.submitted(f"P-{number}", rules))
        order = await store.commit(cases.claimed(order, rules))
        at = NOW + seconds * cases.SECOND
        await store.commit(cases.answered(order, 0, rules, at=at))
    await store.commit(cases.rejected("R", at=NOW + 15 * cases.SECOND))
    query = OrderQuery(state="processed", workflow="order", since=NOW + 10 * cases.SECOND, limit=2)
    plan = await plan_many(store, query, Intent(verb=Verb.UNDO, by="ann"))
    assert [(act.order_id, act.verb) for act in plan.acts] == [
        ("P-1", Verb.UNDO),
        ("P-2", Verb.UNDO),
    ]
    assert [(act.seq, act.any_seq) for act in plan.acts] == [(3, False)] * 2
    assert plan.limited  # there may be more


async def test_if_the_bus_fails_half_way_the_number_of_sent_commands_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "SEND_COMMANDS_MAX", 2)
    system = await failed("A", "B", "C")
    plan = await plan_many(system.store, IN_ERROR, resubmit())
    for count in (0, 2):
        line = Line(system=system)
        line.up_for = count
        run = ActRun(plan, system.store, QUEUES)
        with pytest.raises(ServiceUnavailableError, match=f"bus is down. {count} of 3 commands"):
            await run.send(line)
        assert run.sent == count


async def test_a_command_that_never_gets_its_result_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "LOOKS_AT_ONCE", 1)
    system = await failed("A", "B", "C")
    plan = await plan_many(system.store, IN_ERROR, resubmit())
    line = Line(system=system)
    line.runs = False
    run = ActRun(plan, system.store, QUEUES)
    await run.send(line)
    line.runs = True
    await line.send([run.message(act) for act in plan.acts[1:]])
    results = await run.follow(0.05)
    assert [result.carried_out for result in results] == [None, True, True]
    assert [result.refusal for result in results] == [CommandRefusal.WAITING, None, None]
    assert results[0].problem == (
        "not carried out within 0.05 s: check that the function app runs, and look on "
        f"operator-alerts for refused/{plan.acts[0].command}; it may still be carried out later"
    )


class SlowRun(ActRun):
    """Each look takes 5 ms. Of each order the command is carried out at a later look."""

    def __init__(self, plan: ActPlan, system: Kit, at_look: dict[str, int]) -> None:
        super().__init__(plan, system.store, QUEUES)
        self.system, self.at_look = system, at_look
        self.now_s, self.looks = 0.0, Counter[str]()

    async def _look(self, act: OrderAct) -> bool:
        self.now_s += 0.005
        self.looks[act.order_id] += 1
        if self.looks[act.order_id] == self.at_look[act.order_id]:
            await self.system.hand(self.message(act))
            await self.system.drain()
        return await super()._look(act)


async def test_commands_are_followed_as_long_as_each_result_comes_soon_after_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "LOOKS_AT_ONCE", 1)
    system = await failed("A", "B", "C")
    plan = await plan_many(system.store, IN_ERROR, resubmit())
    run = SlowRun(plan, system, {"A": 2, "B": 4, "C": 6})
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: run.now_s))
    results = await run.follow(0.025)
    assert [result.carried_out for result in results] == [True] * 3
    assert run.now_s > 2 * 0.025


# -- What became of one command ---------------------------------------------------------------


async def test_a_command_that_lost_a_race_says_what_changed_and_does_nothing() -> None:
    system = await failed("A")
    seq = system.order("A").seq
    plan = await plan_one(system.store, "A", Intent(verb=Verb.UNDO, by="ann"))
    await system.hand(command("acknowledge", seq, "w-bob", "A"))
    (result,) = await carried_out(Line(system=system), plan, 5)
    assert (result.carried_out, result.refusal) == (False, CommandRefusal.CHANGED)
    assert result.problem == (
        f"not carried out: you saw seq {seq}, but the order is at seq {seq + 1} (Error); since "
        f"then: {seq + 1} acknowledged by operator ann. Look at it again."
    )
    assert system.state("A") == "Error"
    with pytest.raises(NotPossibleError, match=f"nothing was sent: you saw seq {seq}, but"):
        await plan_one(system.store, "A", resubmit(), seq=seq)
    with pytest.raises(NotPossibleError, match="check which seq you saw"):
        await plan_one(system.store, "A", resubmit(), seq=99)


async def test_an_undo_of_an_order_under_way_is_meant_even_if_the_order_has_changed() -> None:
    store = MemoryStore()
    pending = await store.commit(cases.submitted("P"))
    intent = Intent(verb=Verb.UNDO, by="ann")
    assert (await plan_one(store, "P", intent)).acts[0].any_seq
    assert not (await plan_one(store, "P", intent, seq=pending.seq)).acts[0].any_seq
    now = replace(intent, at_once=True)
    assert not (await plan_one(store, "P", now)).acts[0].any_seq


async def test_an_undo_of_an_order_that_has_changed_waits_for_the_schedulers_word() -> None:
    system = await failed("A")
    await system.hand(command("resubmit", system.order("A").seq, "w-1", "A"))
    plan = await plan_one(system.store, "A", Intent(verb=Verb.UNDO, by="ann"))
    await system.drain()
    line = Line(system=system)
    line.runs = False
    (result,) = await carried_out(line, plan, 0.01)
    assert (result.carried_out, result.refusal) == (None, CommandRefusal.WAITING)
    line.runs = True
    (result,) = await carried_out(line, plan, 5)
    assert (result.carried_out, result.refusal) == (False, CommandRefusal.REFUSED)
    assert "this is Processed" in result.problem


async def test_why_the_scheduler_refused_is_told_at_once() -> None:
    system = await failed("A")
    plan = await plan_one(system.store, "A", replace(resubmit(), input='"no object"'))
    line = Line(system=system)
    line.runs = False
    await CommandAnswers(system.store).record(plan.acts[0].command, "Expected `object`")
    (result,) = await carried_out(line, plan, 30)
    assert (result.carried_out, result.refusal) == (False, CommandRefusal.REFUSED)
    assert result.problem == "not carried out: Expected `object`."


@pytest.mark.parametrize("verb", [Verb.RESUBMIT, Verb.CANCEL])
async def test_a_command_that_became_a_dead_letter_was_not_carried_out(verb: Verb) -> None:
    system = await failed("A")
    plan = await plan_one(system.store, "A", Intent(verb=verb, by="ann"))
    line = Line(system=system)
    line.runs = False
    run = ActRun(plan, system.store, QUEUES)
    await run.send(line)
    dead_letter = letter(run.message(plan.acts[0]))
    await system.run(system.dead_letters.handle(dead_letter))
    (result,) = await run.follow(30)
    assert (result.carried_out, result.refusal) == (False, CommandRefusal.DEAD_LETTERED)
    assert system.state("A") == "Error"


@pytest.mark.parametrize("verb", [Verb.UNDO, Verb.CANCEL])
async def test_an_order_that_was_purged_meanwhile_is_told_as_gone(verb: Verb) -> None:
    system = await failed("A")
    plan = await plan_one(system.store, "A", Intent(verb=verb, by="ann"))
    line = Line(system=system)
    line.runs = False
    system.store.orders.clear()
    (result,) = await carried_out(line, plan, 30)
    assert (result.carried_out, result.refusal) == (False, CommandRefusal.GONE)


# -- Why the scheduler refused: kept for the sender -------------------------------------------


async def test_the_scheduler_keeps_why_it_refused_and_the_order_stays_as_it_was() -> None:
    system = kit(CARE)
    await system.submit(order(workflow="care"))
    before = system.order()
    other = next(f"w-{n}" for n in range(10, 9999) if slot_of(f"w-{n}") == slot_of("w-9"))
    await CommandAnswers(system.store).record(other, "another one")
    system.store.fail_next("write_shared", StoreFault.CONFLICT, StoreFault.CONFLICT)
    await system.hand(command("acknowledge", before.seq, "w-9"))
    reason = "only an order in Error needs to be acknowledged, and this is Pending"
    assert await CommandAnswers(system.store).reason("w-9") == reason
    assert system.order() == before
    assert reason in system.alerts()[-1].text


async def test_of_many_refusals_the_last_few_are_kept() -> None:
    store = MemoryStore()
    refusals = CommandAnswers(store)
    slot_ids = [f"w-{n}" for n in range(9999) if slot_of(f"w-{n}") == "00"][:12]
    for command_id in slot_ids:
        await refusals.record(command_id, f"why {command_id}")
    command_ids = [command_id for command_id in slot_ids if await refusals.reason(command_id)]
    assert command_ids == slot_ids[-REASONS_MAX:]
    for command_id in (command_ids[0], slot_ids[0]):  # the first one is the newest again
        await refusals.record(command_id, f"why {command_id}")
    assert await refusals.reason(command_ids[0])
    assert await refusals.reason(command_ids[1]) == ""
    assert store.meter.writes == len(slot_ids) + 2
    assert await refusals.reason(slot_ids[-1]) == f"why {slot_ids[-1]}"
    for command_id in slot_ids:
        await refusals.record(command_id, "x" * 5000)
    entry = await store.read_shared("refused|00")
    assert entry is not None
    assert len(entry.value) < REASONS_MAX * (REASON_LENGTH_MAX + 100)
    assert len(json.loads(entry.value)) == REASONS_MAX


async def test_a_refusal_that_a_later_version_recorded_is_unknown_and_gives_way() -> None:
    store = MemoryStore()
    refusals = CommandAnswers(store)
    command_id = next(f"w-{n}" for n in range(9999) if slot_of(f"w-{n}") == "00")
    await store.write_shared("refused|00", '[{"of": "a later version"}]', None)
    assert await refusals.reason(command_id) == ""
    await refusals.record(command_id, "it is too late")
    assert await refusals.reason(command_id) == "it is too late"
