"""The agent: retries within CompleteBy, silence past it, and what it answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from sas.actors.agent import KEEP_ERROR_SECONDS
from sas.bounds import RESULT_BYTES_MAX
from sas.codec import internal
from sas.codec.internal import INLINE_BYTES_MAX, ReplyMessage, RequestMessage
from sas.codec.record import record_of
from sas.domain.order import AttemptError
from sas.domain.workflow import Step, Workflow
from sas.engine.retry import RetryPolicy
from sas.operate.why import attempt_error
from sas.ports import (
    AgentCall,
    BusUnavailableError,
    Message,
    RefusedError,
    StillRunning,
    StoreUnavailableError,
    TransientError,
)
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    ALLOWED,
    CARE,
    HOLDING,
    QUEUES,
    UNDO,
    Kit,
    ScriptedAgent,
    agent_actor,
    command,
    delivery,
    kit,
    order,
)

STOCK = QUEUES.agent("stock")


async def requested(**changes: Any) -> tuple[Kit, Message]:
    """Return a kit and the request that its scheduler sent to the first agent."""
    system = kit()
    await system.submit(order(**changes))
    await system.step(QUEUES.scheduler)
    message = system.bus.take(STOCK)
    assert message is not None
    return system, message


def replies(system: Kit) -> list[ReplyMessage]:
    return [internal.decode(m.body, ReplyMessage) for m in system.bus.messages(QUEUES.scheduler)]


def takes(seconds: float, system: Kit, result: Any = None) -> Callable[[AgentCall], Awaitable[Any]]:
    async def work(_call: AgentCall) -> Any:
        await system.clock.sleep(seconds)
        return result

    return work


async def test_an_agent_is_given_the_order_the_key_and_its_complete_by() -> None:
    system, message = await requested(order={"lines": [1], "note": "é"})
    await system.hand(message)
    ((verb, call),) = system.agents["stock"].calls
    assert verb == "do"
    assert call.order == {"lines": [1], "note": "é"}
    assert call.order_id == "O-1"
    assert call.step == "reserve"
    assert call.key == "O-1/reserve"
    assert call.complete_by == START + ALLOWED
    assert call.results == {}


async def test_the_reply_names_the_dispatch_and_carries_the_result() -> None:
    system, message = await requested()
    system.agents["stock"].then({"reservation": [1, None, "é"]})
    await system.hand(message)
    (reply,) = replies(system)
    assert (reply.order_id, reply.step, reply.direction, reply.epoch) == ("O-1", 0, "do", 1)
    assert reply.outcome == "done"
    assert json.loads(internal.text_of(reply.result) or "") == {"reservation": [1, None, "é"]}


async def test_a_request_delivered_twice_is_answered_under_one_message_id() -> None:
    system, message = await requested()
    await system.hand(message)
    await system.hand(message)
    assert system.ids(QUEUES.scheduler) == ["O-1/00/do/1"] * 2
    assert {call.key for _, call in system.agents["stock"].calls} == {"O-1/reserve"}


async def test_every_retry_carries_the_same_key() -> None:
    system, message = await requested()
    system.agents["stock"].then(TransientError("503"), TransientError("reset"), {"ok": 1})
    await system.hand(message)
    assert [call.key for _, call in system.agents["stock"].calls] == ["O-1/reserve"] * 3
    assert [reply.outcome for reply in replies(system)] == ["done"]


async def test_what_a_service_asks_for_with_retry_after_is_waited_for() -> None:
    system, message = await requested()
    system.agents["stock"].then(*(TransientError("429", timedelta(seconds=s)) for s in (7, 5)))
    await system.hand(message)
    waited = (system.clock.now() - START).total_seconds()
    assert 12.0 <= waited <= 12.6
    assert len(replies(system)) == 1


async def test_delays_grow_up_to_their_bound_and_never_overflow() -> None:
    policy = RetryPolicy(first_delay=0.2, delay_max=2.0)
    for attempt in (0, 1, 2, 3, 10, 1_023, 1_024, 100_000):
        ceiling = 2.0 if attempt >= 4 else 0.2 * 2**attempt
        delays = [policy.delay(attempt, None) for _ in range(50)]
        assert 0 <= min(delays) <= max(delays) <= ceiling
    assert max(policy.delay(3, None) for _ in range(200)) > 0.4
    assert policy.delay(0, timedelta(seconds=30)) >= 30


@pytest.mark.parametrize(
    ("retry_after", "pause_s"),
    [(timedelta.max, 86_400.0), (timedelta.min, 0.0), (timedelta(days=-1), 0.0)],
)
async def test_a_retry_after_that_an_agent_parsed_itself_may_be_anything(
    retry_after: timedelta, pause_s: float
) -> None:
    for attempt in (0, 9):
        assert 0 <= RetryPolicy(0.2, 0.2).delay(attempt, retry_after) - pause_s <= 0.2
    system = kit()
    system.agents["stock"].then(TransientError("busy", retry_after))
    await system.submit()
    await system.drain()  # no error leaves the agent: its message would become a dead letter
    assert system.state("O-1") in {"Processing", "Processed"}


async def test_a_retry_after_beyond_complete_by_is_silence_at_once() -> None:
    system, message = await requested()
    system.agents["stock"].then(TransientError("429", timedelta(seconds=60)))
    await system.hand(message)
    assert system.clock.now() == START
    assert len(system.agents["stock"].calls) == 1
    assert replies(system) == []


async def test_a_retry_that_its_function_does_not_live_to_see_is_left_to_another_delivery() -> None:
    system, message = await requested()
    system.agents["stock"].then(TransientError("503"), TransientError("429", timedelta(seconds=7)))
    handled = delivery(message, ends_at=START + timedelta(seconds=5))
    await system.run(system.actors["stock"].handle(handled))
    assert system.clock.now() < START + timedelta(seconds=1)
    (again,) = system.bus.queues[STOCK].waiting
    assert again.message.scheduled_at is not None
    assert again.message.scheduled_at >= START + timedelta(seconds=7)


async def test_a_service_that_is_down_for_long_is_tried_until_complete_by_then_silence() -> None:
    system, message = await requested()
    system.agents["stock"].then(*[TransientError("down")] * 1000)
    await system.hand(message)
    assert len(system.agents["stock"].calls) > 15
    assert system.clock.now() <= START + ALLOWED
    assert replies(system) == []
    assert system.rejected() == []
    assert system.alerts() == []


async def test_a_call_is_cut_off_at_complete_by_and_sends_no_reply() -> None:
    system, message = await requested()
    cancellations: list[bool] = []

    async def hangs(_call: AgentCall) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancellations.append(True)
            raise

    system.agents["stock"].then(hangs)
    await system.hand(message)
    assert cancellations == [True]
    assert system.clock.now() == START + ALLOWED
    assert replies(system) == []


async def test_a_request_found_past_its_complete_by_calls_nothing_before_it_has_more_time() -> None:
    system, message = await requested()
    await system.later(ALLOWED.total_seconds())
    await system.hand(message)
    await system.later(2)
    (second_request,) = system.bus.messages(QUEUES.agent("stock"))
    await system.hand(second_request)
    assert system.agents["stock"].calls == []  # the scheduler has not granted it
    await system.step(QUEUES.scheduler)
    assert system.words()[-1] == "progress"
    await system.later(2)
    await system.drain()
    assert system.state() == "Processed"
    assert system.order().steps[0].epoch == 1


async def test_an_answer_just_within_complete_by_is_sent() -> None:
    system, message = await requested()
    system.agents["stock"].then(takes(29.9, system, {"ok": 1}))
    await system.hand(message)
    assert len(replies(system)) == 1


@pytest.mark.parametrize("answer", [RefusedError("late", "too late"), StillRunning(ALLOWED)])
async def test_an_answer_that_comes_as_complete_by_passes_is_not_sent(
    answer: RefusedError | StillRunning,
) -> None:
    system, message = await requested()

    async def answers_late(_call: AgentCall) -> StillRunning:
        system.clock.set(START + ALLOWED)
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    system.agents["stock"].then(answers_late)
    await system.hand(message)
    assert system.bus.messages(QUEUES.scheduler) == []


async def test_a_refusal_for_good_is_not_retried_and_is_the_reply() -> None:
    system, message = await requested()
    system.agents["stock"].then(RefusedError("out-of-stock", "none of 7 left"))
    await system.hand(message)
    assert len(system.agents["stock"].calls) == 1
    (reply,) = replies(system)
    assert reply.outcome == "refused"
    assert reply.error is not None
    assert (reply.error.code, reply.error.message) == ("out-of-stock", "none of 7 left")


async def test_a_refusal_as_long_as_a_book_is_cut_to_what_is_kept() -> None:
    system, message = await requested()
    system.agents["stock"].then(RefusedError("c" * 500, "m" * 100_000))
    await system.hand(message)
    error = replies(system)[0].error
    assert error is not None
    assert (len(error.code), len(error.message)) == (100, 1000)


async def test_a_refusal_in_halves_of_characters_is_still_a_reply() -> None:
    system, message = await requested()
    system.agents["stock"].then(RefusedError("x\ud800", "half a character: \udfff"))
    await system.hand(message)
    assert [reply.outcome for reply in replies(system)] == ["refused"]


async def held(system: Kit) -> str:
    """Return why the first step waits for a deploy. Nothing is undone."""
    record = await system.context.load("O-1")
    assert record is not None
    error = record.steps[0].last_error
    assert error is not None
    assert error.kind == "held"
    assert system.states() == ["Processing", "Pending"]
    return error.message


@pytest.mark.parametrize(
    ("junk", "why"),
    [
        ({"price": float("nan")}, "not JSON compliant"),
        ({"when": START}, "Object of type datetime is not JSON serializable"),
        ({"seats": {1, 2}}, "Object of type set is not JSON serializable"),
        ({(1, 2): "pair"}, "not tuple"),
    ],
)
async def test_a_result_that_is_not_json_holds_the_step_and_says_what_to_return(
    junk: Any, why: str
) -> None:
    system, message = await requested()
    system.agents["stock"].then(junk)
    await system.hand(message)
    text = await held(system)
    assert text.startswith("agent stock returned what JSON cannot hold")
    assert why in text


async def test_a_result_that_is_too_large_holds_the_step_and_says_what_to_do() -> None:
    system, message = await requested()
    system.agents["stock"].then("é" * RESULT_BYTES_MAX)
    await system.hand(message)
    text = await held(system)
    assert text.startswith("agent stock returned ")
    assert text.endswith("at most 1,048,576 are kept: return a reference instead")


async def test_a_result_as_large_as_is_kept_reaches_the_next_agent_and_the_application() -> None:
    system, message = await requested()
    text = "x" * (RESULT_BYTES_MAX - 2)
    system.agents["stock"].then(text)
    await system.hand(message)
    await system.drain()
    assert system.agents["payment"].calls[0][1].results == {"reserve": text}
    assert system.state() == "Processed"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [29, 30, 100_000])
async def test_a_result_however_deep_reaches_the_next_agent_or_holds_the_step(depth: int) -> None:
    system, message = await requested()
    system.agents["stock"].then(nested(depth))
    await system.hand(message)
    await system.drain()
    assert system.rejected() == []
    if system.state() == "Processed":
        assert system.agents["payment"].calls[0][1].results == {"reserve": nested(depth)}
    else:
        assert depth > 29
        assert "nests deeper than 30 levels" in await held(system)


async def test_no_result_at_all_is_a_result() -> None:
    system, message = await requested()
    system.agents["stock"].then(takes(0, system))
    await system.hand(message)
    await system.drain()
    assert system.state() == "Processed"
    assert system.order().steps[0].result == "null"
    assert system.agents["payment"].calls[0][1].results == {"reserve": None}


async def test_an_undo_is_given_what_its_own_do_returned() -> None:
    system, message = await requested()
    system.agents["stock"].then({"reservation_id": 7})
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.hand(message)
    await system.drain()
    verb, call = system.agents["stock"].calls[-1]
    assert verb == "undo"
    assert call.own_result == {"reservation_id": 7}
    assert (call.workflow, call.key) == ("chain", "O-1/reserve")
    assert system.order().steps[0].result == '{"reservation_id":7}', "an undo returns nothing"


@pytest.mark.parametrize("size", [160 * 1024, 250_000])
async def test_an_order_of_any_size_reaches_its_agents_whole(size: int) -> None:
    system, message = await requested(order={"text": "x" * size})
    assert len(message.body) < INLINE_BYTES_MAX + 1
    await system.hand(message)
    await system.drain()
    assert system.state() == "Processed"
    for agent in system.agents.values():
        assert [call.order for _, call in agent.calls] == [{"text": "x" * size}]
    assert system.agents["payment"].calls[0][1].results == {"reserve": {"by": "O-1/reserve"}}


async def test_an_undo_of_a_large_order_is_given_its_own_result_too() -> None:
    system, message = await requested(order={"text": "x" * 200_000})
    system.agents["stock"].then({"reservation_id": 7})
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.hand(message)
    await system.drain()
    assert system.state() == "Compensated"
    assert system.agents["stock"].calls[-1][1].own_result == {"reservation_id": 7}


@pytest.mark.parametrize(
    ("workflow", "results"), [("care", {}), ("chain", {"reserve": {"by": "O-1/reserve"}})]
)
async def test_an_agent_of_a_large_order_is_given_the_results_before_its_step_only(
    workflow: str, results: dict[str, Any]
) -> None:
    """A small order gives the same results: a step that ran in parallel is not among them."""
    system = kit()
    await system.submit(order(workflow=workflow, order={"text": "x" * 200_000}))
    await system.step(QUEUES.scheduler)
    await system.step(STOCK)
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("payment"))
    assert system.agents["payment"].calls[0][1].results == results


def offloaded(message: Message) -> Message:
    """Return a request as it is where all together was too large to travel."""
    request = internal.decode(message.body, RequestMessage)
    body = internal.encode(msgspec.structs.replace(request, order=msgspec.UNSET, order_ref=None))
    return replace(message, body=body)


@pytest.mark.parametrize("size", [60_000, 70_000], ids=["inline", "as a payload of its own"])
async def test_what_all_together_is_too_large_to_travel_is_read_from_the_order(size: int) -> None:
    large = {"text": "x" * size}
    steps = [Step(f"s{n}", agent="stock", time_allowed=ALLOWED, after=()) for n in range(4)]
    after = ("s0", "s1", "s2", "s3")
    last = Step("last", agent="payment", time_allowed=ALLOWED, after=after, undo=UNDO)
    system = kit(Workflow("wide", version=1, steps=(*steps, last)))
    system.agents["stock"].then(*["y" * 45_000] * 4)
    system.agents["payment"].then({"paid": 1})
    await system.submit(order(workflow="wide", order=large))
    await system.drain()
    await system.hand(command("undo", system.order().seq))
    await system.drain()
    (_, call), (verb, undo) = system.agents["payment"].calls
    assert (call.order, call.own_result) == (large, None)
    assert call.results == {f"s{n}": "y" * 45_000 for n in range(4)}
    assert (verb, undo.order, undo.own_result) == ("undo", large, {"paid": 1})
    assert undo.results == call.results


async def test_an_edited_input_is_read_from_the_order_too_by_its_own_step_only() -> None:
    system = kit(HOLDING)
    system.agents["stock"].then(RefusedError("no", "no"))
    await system.submit(order(order={"amount": 2}))
    await system.drain()
    edit = command("resubmit", system.order().seq, step="reserve", input={"amount": 1})
    await system.hand(edit)
    for verb, amounts in (("do", {"stock": 1, "payment": 2}), ("undo", {"payment": 2, "stock": 1})):
        if verb == "undo":
            await system.step(QUEUES.scheduler)
            await system.hand(command("undo", system.order().seq, "w-2"))
        for agent, amount in amounts.items():
            await system.step(QUEUES.scheduler)
            message = system.bus.take(QUEUES.agent(agent))
            assert message is not None
            await system.hand(offloaded(message))
            call_verb, call = system.agents[agent].calls[-1]
            assert (call_verb, call.order) == (verb, {"amount": amount})


async def test_a_claim_check_of_an_order_no_longer_stored_is_refused() -> None:
    system, message = await requested(order={"text": "x" * 200_000})
    system.store.orders.clear()
    system.store.payloads.clear()
    await system.hand(message)
    (reply,) = replies(system)
    assert reply.error is not None
    assert reply.error.code == "unknown-order"
    assert system.agents["stock"].calls == []


async def test_the_store_being_down_for_a_claim_check_lets_the_request_come_again() -> None:
    for text, operation in (("x" * 200_000, "get_payload"), ("x", "load")):
        system, message = await requested(order={"text": text})
        message = message if operation == "get_payload" else offloaded(message)
        system.store.fail_next(operation, StoreFault.UNAVAILABLE)
        with pytest.raises(StoreUnavailableError):
            await system.hand(message)
        await system.hand(message)
        assert len(replies(system)) == 1


async def test_a_reply_that_the_bus_does_not_take_lets_the_request_come_again() -> None:
    system, message = await requested()
    system.bus.fail_next(BusFault.LOST_ANSWER)
    with pytest.raises(BusUnavailableError):
        await system.hand(message)
    await system.hand(message)
    assert system.ids(QUEUES.scheduler) == ["O-1/00/do/1"] * 2
    assert {call.key for _, call in system.agents["stock"].calls} == {"O-1/reserve"}


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"\x00",
        lambda body: body[:-1],
        lambda body: body.replace(b'"kind":"request"', b'"kind":"wake"'),
        lambda body: body.replace(b'"epoch":1', b'"epoch":"1"'),
        lambda body: body.replace(b'"direction":"do"', b'"direction":"redo"'),
        lambda body: body.replace(b'"O-1"', b'"O#1"'),
        lambda body: body.replace(b'"format":1', b'"format":0'),
        lambda body: body.replace(b'"complete_by":"', b'"complete_by":"x'),
        lambda body: body.replace(b"+00:00", b"").replace(b'Z"', b'"'),
    ],
)
async def test_poison_on_an_agents_queue_is_put_aside_with_an_alert(
    change: Callable[[bytes], bytes],
) -> None:
    system, message = await requested()
    poison = change(message.body)
    assert poison != message.body
    await system.hand(Message(STOCK, "m-9", poison))
    (rejection,) = system.rejected()
    assert rejection.body.encode() == poison
    assert rejection.source_queue == STOCK
    assert [alert.kind for alert in system.alerts()] == ["rejected"]
    assert system.agents["stock"].calls == []


async def test_a_late_call_that_lands_after_the_undo_does_not_move_the_order() -> None:
    """An agent hangs past CompleteBy, the order is undone, then its answer arrives."""
    system, message = await requested()
    slow = ScriptedAgent()
    slow.then(takes(29, system, {"late": 1}))
    actor = agent_actor(system.context, "stock", slow)
    await system.run(actor.handle(delivery(message, message_id="m")))
    late_reply = system.bus.take(QUEUES.scheduler)
    assert late_reply is not None
    system.agents["stock"].then(*[TransientError("down")] * 1000)
    for _ in range(6):
        await system.later(31)
        await system.sweep()
        await system.drain()
        system.agents["stock"].script.clear()
    state = system.order()
    await system.hand(late_reply)
    assert system.order() == state


async def test_a_result_in_halves_of_characters_is_kept_in_whole_ones() -> None:
    system, message = await requested()
    system.agents["stock"].then({"name": "x\ud800", "face": "\U0001f600"})
    await system.hand(message)
    await system.step(QUEUES.scheduler)
    assert system.rejected() == []
    assert json.loads(str(system.order().steps[0].result)) == {"name": "x?", "face": "\U0001f600"}


async def test_an_undo_is_confirmed_however_much_its_service_answers() -> None:
    system, message = await requested()
    await system.hand(message)
    await system.step(QUEUES.scheduler)
    system.agents["payment"].then(RefusedError("declined", "no"))
    system.agents["stock"].then("x" * (RESULT_BYTES_MAX + 1))
    await system.drain()
    assert system.states() == ["Compensated", "Compensated"]


# The last error of its attempts


def answered_500(text: str = "hotel answered 500: out of memory") -> TransientError:
    return TransientError(text, kind="http-500", error_answer=True)


async def last_error(system: Kit) -> AttemptError | None:
    stored = await system.run(system.store.load("O-1"))
    assert stored is not None
    return stored.steps[0].last_error


def kept_errors(system: Kit, monkeypatch: pytest.MonkeyPatch) -> list[AttemptError]:
    """Return a list that takes every error that the store is asked to keep."""
    errors: list[AttemptError] = []
    keep = system.store.keep_error

    async def listed(order_id: str, step: int, error: AttemptError) -> None:
        errors.append(error)
        await keep(order_id, step, error)

    monkeypatch.setattr(system.store, "keep_error", listed)
    return errors


async def test_the_error_of_a_failed_attempt_is_kept_and_reported_when_its_step_times_out() -> None:
    system = kit(replace(CARE, steps=tuple(replace(step, failures_max=0) for step in CARE.steps)))
    system.agents["stock"].then(*[answered_500()] * 1000)
    await system.submit(order(workflow="care"))
    await system.drain()
    error = await last_error(system)
    assert error is not None
    assert (error.epoch, error.attempt, error.kind) == (1, 1, "http-500")
    await system.later(31)
    await system.sweep()
    sentence = "Last error: “http-500: hotel answered 500: out of memory”"
    (alert,) = system.alerts()
    (fault,) = [e.data.error for e in system.events() if e.data.error]
    assert 'Last error: "http-500: hotel answered 500: out of memory"”' in alert.text
    assert fault.message.endswith(sentence)
    stored = await system.run(system.store.load("O-1"))
    assert stored is not None
    kept_error = attempt_error(stored.steps[0])
    assert kept_error is not None
    assert (kept_error.epoch, kept_error.attempt) == (1, 1)
    (first, _) = record_of(stored, [], content=False)["Steps"]
    assert first["LastError"]["Message"] == "hotel answered 500: out of memory"


async def test_without_a_failed_attempt_the_store_is_asked_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, message = await requested()
    errors, before = kept_errors(system, monkeypatch), system.store.requests
    await system.hand(message)
    assert (errors, system.store.requests) == ([], before)


async def test_an_error_that_stays_the_same_is_kept_once_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, message = await requested()
    errors = kept_errors(system, monkeypatch)
    system.agents["stock"].then(*[answered_500()] * 1000)
    await system.hand(message)
    assert len(system.agents["stock"].calls) > 15
    assert [error.attempt for error in errors] == [1]


async def test_errors_that_change_are_kept_every_few_seconds_and_the_last_one_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, message = await requested()
    errors = kept_errors(system, monkeypatch)
    system.agents["stock"].then(*[answered_500(f"error {number}") for number in range(1000)])
    await system.hand(message)
    calls = len(system.agents["stock"].calls)
    gaps = [later.at - earlier.at for earlier, later in pairwise(errors)]
    assert 3 <= len(errors) <= 7
    assert all(gap >= timedelta(seconds=5) for gap in gaps[:-1])
    assert errors[-1].message == f"error {calls - 1}"
    assert errors[-1].at < START + ALLOWED


async def test_a_bug_in_an_agent_is_kept_as_the_error_of_its_step() -> None:
    system, message = await requested()
    system.agents["stock"].then(KeyError("room"))
    await system.hand(message)
    error = await last_error(system)
    assert error is not None
    assert error.kind == "agent-bug"
    assert error.message.startswith("KeyError: “'room'” (tests/unit/actors_kit.py:")
    assert error.message.endswith(" in _next)")


async def test_an_error_as_long_as_a_book_in_halves_of_characters_is_cut_to_what_is_kept() -> None:
    system, message = await requested()
    system.agents["stock"].then(TransientError("\ud800" + "m" * 100_000, kind="k" * 500))
    await system.hand(message)
    error = await last_error(system)
    assert error is not None
    assert (len(error.kind), len(error.message)) == (100, 500)
    error.message.encode()


@pytest.mark.parametrize("fault", [StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER])
async def test_a_store_that_is_away_costs_only_the_text_of_an_error(fault: StoreFault) -> None:
    system, message = await requested()
    system.store.fail_next("keep_error", *[fault] * 10)
    system.agents["stock"].then(answered_500(), answered_500(), {"ok": 1})
    await system.hand(message)
    assert [reply.outcome for reply in replies(system)] == ["done"]


async def test_a_store_that_does_not_answer_delays_the_next_attempt_by_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, message = await requested()

    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(system.store, "keep_error", hangs)
    system.agents["stock"].then(answered_500(), {"ok": 1})
    await system.hand(message)
    assert [reply.outcome for reply in replies(system)] == ["done"]
    assert system.clock.now() < START + timedelta(seconds=KEEP_ERROR_SECONDS + 1)


async def test_the_clock_alone_says_how_long_the_store_may_take_to_keep_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, message = await requested()
    keep, records = system.store.keep_error, []

    async def on_a_busy_machine(*arguments: Any) -> None:
        time.sleep(0.002)  # noqa: ASYNC251  the whole process is late
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await keep(*arguments)
        records.append(arguments)

    monkeypatch.setattr(system.store, "keep_error", on_a_busy_machine)
    monkeypatch.setattr("sas.actors.agent.KEEP_ERROR_SECONDS", 0.001)
    system.agents["stock"].then(answered_500(), {"ok": 1})
    await system.hand(message)
    assert len(records) == 1


async def test_a_refusal_and_an_attempt_past_complete_by_keep_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, message = await requested()
    errors = kept_errors(system, monkeypatch)

    async def fails_late(_call: AgentCall) -> None:
        system.clock.set(START + ALLOWED)
        raise answered_500()

    system.agents["stock"].then(RefusedError("none", "none left"), fails_late)
    await system.hand(message)
    await system.hand(message)
    assert errors == []
