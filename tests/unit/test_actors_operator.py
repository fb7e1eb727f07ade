"""The operator's commands, through the scheduler's queue and over the ports in memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import msgspec
import pytest

from sas.bounds import EDITED_UNITS_MAX
from sas.codec import internal
from sas.codec.internal import CommandMessage, FaultBody
from sas.codec.strict import CONTENT_DEPTH_MAX
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow
from sas.engine.command_answers import CommandAnswers
from sas.engine.transition import ApplyResult
from sas.ports import (
    AgentCall,
    AwaitCallback,
    Message,
    RefusedError,
    StoreUnavailableError,
    TransientError,
)
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    ALLOWED,
    CARE,
    HOLDING,
    QUEUES,
    UNDO,
    Kit,
    delivery,
    kit,
    letter,
    order,
)


async def submitted(workflow: Workflow = HOLDING) -> Kit:
    system = kit(workflow)
    await system.submit(order(workflow=workflow.name))
    return system


async def failed(workflow: Workflow = HOLDING) -> Kit:
    """Return an order whose first step was refused for good."""
    system = await submitted(workflow)
    system.agents["stock"].then(RefusedError("none", "out of stock"))
    await system.drain()
    assert system.state() == "Error"
    return system


async def undo_failed() -> Kit:
    """Return an order of which the undo of the last step was refused."""
    system = await submitted()
    await system.drain()
    await tell(system, "undo")
    system.agents["payment"].then(RefusedError("spent", "the money is spent"))
    await system.drain()
    assert system.states() == ["Compensating", "Error"]
    return system


def command(system: Kit, verb: Any, **members: Any) -> Message:
    """Return a command that saw the order as it is now."""
    defaults: dict[str, Any] = {"id": "w-1", "order_id": "O-1", "by": "ann"}
    if "seq" not in members and "O-1" in system.store.orders:
        defaults["seq"] = system.order().seq
    if "input" in members:
        members["input"] = msgspec.Raw(members["input"].encode())
    message = CommandMessage(verb=verb, **(defaults | members))
    return Message(QUEUES.scheduler, message.id, internal.encode(message))


async def tell(system: Kit, verb: str, **members: Any) -> None:
    await system.hand(command(system, verb, **members))


def refusals(system: Kit) -> list[str]:
    return [alert.text for alert in system.alerts() if alert.kind == "command-refused"]


# What is carried out


async def test_edited_input_goes_under_a_new_key_once_the_old_one_is_closed() -> None:
    system = await failed()
    await tell(system, "resubmit", input='{"lines":[1]}', step="reserve")
    await system.drain()
    assert system.state() == "Processed"
    calls = system.agents["stock"].calls
    assert [(verb, call.key, call.order) for verb, call in calls] == [
        ("do", "O-1/reserve", {"lines": [1, 2, 3]}),
        ("undo", "O-1/reserve", {"lines": [1]}),
        ("do", "O-1/reserve/1", {"lines": [1]}),
    ]
    (payment,) = system.agents["payment"].calls
    assert payment[1].order == {"lines": [1, 2, 3]}, "the edit is of one step"


async def test_an_edited_input_after_a_timeout_is_what_an_idempotent_service_does() -> None:
    """Under the old key the service would repeat its result for the old input."""
    once = tuple(replace(step, failures_max=0) for step in HOLDING.steps)
    system = await submitted(replace(HOLDING, steps=once))
    done: dict[str, Any] = {}

    async def idempotent(call: AgentCall) -> Any:
        return done.setdefault(call.key, call.order)

    async def answer_lost(call: AgentCall) -> Any:
        await idempotent(call)
        raise TransientError("the answer was lost")

    system.agents["stock"].then(*[answer_lost] * 100)
    await system.drain()
    await system.later(31)
    await system.sweep()
    assert (system.state(), done) == ("Error", {"O-1/reserve": {"lines": [1, 2, 3]}})
    system.agents["stock"].script.clear()
    system.agents["stock"].then(None, idempotent)
    await tell(system, "resubmit", input='{"lines":[1]}', step="reserve")
    await system.drain()
    last = [(verb, call.key) for verb, call in system.agents["stock"].calls[-2:]]
    assert last == [("undo", "O-1/reserve"), ("do", "O-1/reserve/1")]
    assert json.loads(str(system.order().steps[0].result)) == {"lines": [1]}


async def test_an_older_key_that_cannot_be_undone_fails_the_step_before_its_new_call() -> None:
    system = await failed()
    system.agents["stock"].then(RefusedError("spent", "the parcel has left"))
    await tell(system, "resubmit", input='{"lines":[1]}', step="reserve")
    await system.drain()
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do", "undo"]
    fault = system.order().steps[0].error
    assert fault is not None
    assert (fault.code, fault.message) == (
        "spent",
        "an earlier call (key O-1/reserve) could not be undone: the parcel has left",
    )


async def test_an_edited_input_must_pass_the_check_that_the_order_itself_passed() -> None:
    def check(content: bytes) -> None:
        if "lines" not in json.loads(content):
            raise ValueError("Object missing required field `lines`")

    system = kit(CARE, replace(CARE, version=2), care=check)  # the newer one checks nothing
    await system.submit(order(workflow="care", workflow_version=1))
    system.agents["stock"].then(RefusedError("none", "no"))
    await system.drain()
    await tell(system, "resubmit", input='{"amount":1}', step="reserve")
    assert system.state() == "Error"
    assert (
        "was refused: its input is not accepted: Object missing required field `lines`"
        in system.alerts()[-1].text
    )
    await tell(system, "resubmit", id="w-2", input='{"lines":[1]}', step="reserve")
    await system.drain()
    assert system.state() == "Processed"


async def test_an_edited_input_is_refused_with_the_line_of_a_bug_in_the_check() -> None:
    def check(content: bytes) -> None:
        if b"lines" in content:
            raise KeyError("cake")

    system = kit(CARE, care=check)
    await system.submit(order(workflow="care", order={}))
    system.agents["stock"].then(RefusedError("none", "no"))
    await system.drain()
    await tell(system, "resubmit", input='{"lines":[1]}', step="reserve")
    assert system.state() == "Error"
    line = check.__code__.co_firstlineno + 2
    assert system.alerts()[-1].text == (
        "resubmit of order “O-1” was refused: its input is not accepted: the check of saga care "
        f"fails: KeyError: “'cake'” (tests/unit/test_actors_operator.py:{line} in check). Deploy a "
        "mended version."
    )


async def test_a_step_that_names_no_undo_takes_no_edited_input() -> None:
    bare = replace(HOLDING, steps=tuple(replace(step, undo=None) for step in HOLDING.steps))
    system = await failed(bare)
    await tell(system, "resubmit", input='{"lines":[1]}')
    await system.drain()
    assert system.state() == "Error"
    assert refusals(system) == [
        (
            "resubmit of order “O-1” was refused: its step reserve accepts no input: its earlier "
            "calls cannot be undone at once (no undo, a drain_time, or an undo that failed)."
        )
    ]


async def test_of_several_failed_steps_each_takes_an_edited_input_if_it_can_be_undone_at_once() -> (
    None
):
    steps = (
        Step("reserve", agent="stock", after=()),
        Step("pay", agent="stock", after=(), undo=Undo(ALLOWED, drain_time=ALLOWED)),
        Step("pack", agent="stock", after=(), undo=UNDO),
    )
    system = kit(replace(HOLDING, steps=steps))
    system.agents["stock"].then(*[RefusedError("none", "out of stock")] * 3)
    await system.submit()
    await system.drain()
    for number, step in enumerate(steps):
        await tell(system, "resubmit", id=f"w-{number}", input='{"lines":[1]}', step=step.name)
    assert system.states() == ["Error", "Error", "Pending"]
    assert [step.call.generation for step in system.order().steps] == [0, 0, 1]
    for name, text in zip(("reserve", "pay"), refusals(system), strict=True):
        assert f"its step {name} " in text


async def test_the_undo_of_an_edited_step_covers_every_generation() -> None:
    system = await failed()
    await tell(system, "resubmit", input='{"lines":[1]}')
    await system.drain()
    system.agents["stock"].calls.clear()
    await tell(system, "undo", id="w-2")
    await system.drain()
    assert system.state() == "Compensated"
    undone = [(call.key, call.order) for _, call in system.agents["stock"].calls]
    assert undone == [("O-1/reserve", {"lines": [1]}), ("O-1/reserve/1", {"lines": [1]})]


async def test_an_undo_that_fails_for_one_generation_puts_the_step_in_error() -> None:
    system = await failed()
    await tell(system, "resubmit", input='{"lines":[1]}')
    await system.drain()
    await tell(system, "undo", id="w-2")
    system.agents["stock"].then({"undone": 0}, RefusedError("shipped", "it has left"))
    await system.drain()
    assert system.states() == ["Error", "Compensated"]


async def test_an_edited_input_reaches_an_agent_that_fetches_a_payload_reference() -> None:
    system = kit(HOLDING)
    large = {"note": "x" * internal.INLINE_BYTES_MAX}
    await system.submit(order(order=large))
    system.agents["stock"].then({}, {})
    system.agents["payment"].then(RefusedError("no", "declined"))
    await system.drain()
    await tell(system, "resubmit", input='{"amount":1}')
    await system.drain()
    assert system.state() == "Processed"
    done = [call.order for verb, call in system.agents["payment"].calls if verb == "do"]
    assert done == [large, {"amount": 1}]


async def test_a_skipped_step_is_gone_past_and_its_result_is_what_the_operator_gave() -> None:
    system = await failed()
    await tell(system, "skip", step="reserve", input='{"reserved":"by phone"}')
    await system.drain()
    assert system.state() == "Processed"
    (_, call) = system.agents["payment"].calls[0]
    assert call.results == {"reserve": {"reserved": "by phone"}}
    assert system.notices() == ["received", "failed", "step-completed", "completed"]


async def test_the_result_of_a_skipped_step_must_have_its_type() -> None:
    system = kit(HOLDING, results={"reserve": dict[str, str]})
    await system.submit()
    system.agents["stock"].then(RefusedError("no", "sold out"))
    await system.drain()
    await tell(system, "skip", step="reserve", input='{"reserved":1}', id="w-1")
    await tell(system, "skip", step="reserve", id="w-2")
    first, missing = refusals(system)
    assert "its input is not accepted: Expected `str`, got `int` - at `$[...]`" in first
    assert "step pay needs the result of reserve: give it with --input" in missing
    assert system.states() == ["Error", "Pending"]
    await tell(system, "skip", step="reserve", input='{"reserved":"by phone"}', id="w-3")
    await system.drain()
    assert system.state() == "Processed"


async def test_of_several_skipped_steps_each_whose_result_is_needed_must_have_one() -> None:
    aside = Step("aside", agent="stock", after=())
    reserve = Step("reserve", agent="payment", after=())
    steps = (aside, reserve, Step("pay", agent="stock", after=("aside", "reserve")))
    system = kit(replace(HOLDING, steps=steps), results={"reserve": dict[str, str]})
    for agent in ("stock", "payment"):
        system.agents[agent].then(RefusedError("no", "sold out"))
    await system.submit()
    await system.drain()
    await tell(system, "skip")
    (missing,) = refusals(system)
    assert "step pay needs the result of reserve: give it with --input" in missing
    assert system.states() == ["Error", "Error", "Pending"]
    await tell(system, "skip", id="w-2", step="aside", input="1")
    assert system.states() == ["Processed", "Error", "Pending"], "only its own type counts"


async def test_the_result_of_a_callback_by_hand_must_have_the_type_of_its_step() -> None:
    system = kit(HOLDING, results={"pay": dict[str, str]})
    system.agents["payment"].then(AwaitCallback(timedelta(hours=1)))
    await system.submit()
    await system.drain()
    await tell(system, "callback", step="pay", input='{"by":1}', id="w-1")
    await tell(system, "callback", step="pay", id="w-2")
    first, missing = refusals(system)
    assert "its input is not accepted: Expected `str`, got `int` - at `$[...]`" in first
    assert "its input is not accepted: Expected `object`, got `null`" in missing
    assert system.states() == ["Processed", "Processing"]
    await tell(system, "callback", step="pay", input='{"by":"ann"}', id="w-3")
    await system.drain()
    assert system.state() == "Processed"


async def test_a_callback_by_hand_that_refuses_needs_no_result() -> None:
    system = kit(HOLDING, results={"reserve": dict[str, str]})
    system.agents["stock"].then(AwaitCallback(timedelta(hours=1)))
    await system.submit()
    await system.drain()
    await tell(system, "callback", step="reserve", error=FaultBody("no", "the manager declines"))
    assert refusals(system) == []
    assert system.states() == ["Error", "Pending"]


async def test_a_skipped_step_that_nothing_follows_needs_no_result() -> None:
    system = kit(HOLDING, results={"pay": dict[str, str]})
    await system.submit()
    system.agents["payment"].then(RefusedError("no", "declined"))
    await system.drain()
    await tell(system, "skip", step="pay", input='{"by":1}', id="w-2")
    assert system.states() == ["Processed", "Error"], "but one that is given is checked"
    await tell(system, "skip", step="pay")
    await system.drain()
    assert system.state() == "Processed"


async def test_of_several_skipped_steps_one_that_is_followed_needs_its_result() -> None:
    ship = Step("ship", agent="stock", time_allowed=ALLOWED, after=("pay",))
    steps = tuple(replace(step, after=()) for step in HOLDING.steps)
    workflow = replace(HOLDING, steps=(*steps, ship))
    system = kit(workflow, results={"pay": dict[str, str]})
    await system.submit()
    for agent in system.agents.values():
        agent.then(RefusedError("no", "no"))
    await system.drain()
    assert system.states() == ["Error", "Error", "Pending"]
    await tell(system, "skip")
    assert system.states() == ["Error", "Error", "Pending"]


async def test_a_skipped_undo_is_undone_by_hand_and_needs_no_result() -> None:
    system = kit(HOLDING, results={"reserve": dict[str, str]})
    await system.submit()
    await system.drain()
    await tell(system, "undo")
    system.agents["stock"].then(RefusedError("shipped", "it has left"))
    await system.drain()
    await tell(system, "skip", id="w-2")
    await system.drain()
    assert system.state() == "Compensated"
    records = [step.undo.value for step in system.order().steps]
    assert records == ["undone by hand", "undone"]
    assert system.notices()[-1] == "undone"


async def test_a_cancelled_order_waits_for_its_agent_and_is_undone() -> None:
    system = await submitted()
    await system.step(QUEUES.scheduler)
    await tell(system, "cancel")
    assert system.states() == ["Processing", "Compensated"]
    await system.drain()
    assert system.state() == "Compensated"
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do", "undo"]
    assert system.agents["payment"].calls == []
    assert system.notices() == ["received", "undone"]


async def test_cancel_needs_no_seq_because_it_is_meant_whatever_happened_since() -> None:
    system = await submitted()
    await tell(system, "cancel", seq=None)
    assert (system.state(), refusals(system)) == ("Compensated", [])


async def test_an_acknowledgement_is_kept_with_its_name_and_sends_no_message() -> None:
    system = await failed()
    alert_count = len(system.alerts())
    await tell(system, "acknowledge", by="Ann Ölund")
    assert system.order().acknowledged_by == "Ann Ölund"
    assert system.journal()[-1].by == "operator Ann Ölund"
    assert len(system.alerts()) == alert_count


@pytest.mark.parametrize("verb", ["resubmit", "skip", "undo", "cancel", "acknowledge"])
async def test_any_command_that_comes_twice_at_once_is_carried_out_once(verb: str) -> None:
    system = await failed()
    message = command(system, verb)
    seq = system.order().seq
    results = await system.run(
        asyncio.gather(
            *(system.scheduler.handle(delivery(message, message_id="m")) for _ in range(3))
        )
    )
    assert sorted(outcome.value for outcome in results) == ["committed", "repeated", "repeated"]
    assert system.order().seq == seq + 1
    assert refusals(system) == []


async def test_the_journal_names_who_did_what() -> None:
    system = await failed()
    for number, verb in enumerate(["acknowledge", "resubmit", "cancel"]):
        await tell(system, verb, by=f"person-{number}", id=f"w-{number}")
    entries = [(entry.what, entry.by) for entry in system.journal()[-3:]]
    assert entries == [
        ("acknowledged", "operator person-0"),
        ("resubmitted", "operator person-1"),
        ("cancelled", "operator person-2"),
    ]


# What is refused


async def processed() -> Kit:
    system = await submitted()
    await system.drain()
    return system


async def both_failed() -> Kit:
    system = await submitted(CARE)
    for agent in system.agents.values():
        agent.then(RefusedError("none", "no"))
    await system.drain()
    assert system.states() == ["Error", "Error"]
    return system


async def cancelled() -> Kit:
    system = await submitted()
    await system.step(QUEUES.scheduler)
    await tell(system, "cancel", id="w-0")
    return system


async def second_failed() -> Kit:
    system = await submitted()
    system.agents["payment"].then(RefusedError("none", "declined"))
    await system.drain()
    assert system.states() == ["Processed", "Error"]
    return system


WHOLE = "it is for the whole order: name no step, and give no input."
UNDO_FAILED = (
    "its undo is decided and failed in part: resubmit to try it again, or skip it once it is "
    "undone by hand."
)
REFUSED: list[tuple[Any, str, dict[str, Any], str]] = [
    (
        processed,
        "resubmit",
        {},
        "only an order in Error can be resubmitted, and this is Processed.",
    ),
    (processed, "skip", {}, "only a step in Error can be skipped, and this is Processed."),
    (processed, "cancel", {}, "only an order under way can be cancelled, and this is Processed."),
    (
        processed,
        "acknowledge",
        {},
        "only an order in Error needs to be acknowledged, and this is Processed.",
    ),
    (undo_failed, "undo", {}, UNDO_FAILED),
    (undo_failed, "cancel", {}, UNDO_FAILED),
    (cancelled, "cancel", {}, "its undo is decided already: it is Compensating."),
    (failed, "resubmit", {"step": "ship"}, "it has no step 'ship', only reserve, pay."),
    (failed, "skip", {"step": ""}, "it has no step '', only reserve, pay."),
    (
        second_failed,
        "resubmit",
        {"step": "reserve"},
        "its step reserve is Processed, and only a step in Error can be resubmitted or skipped.",
    ),
    (
        failed,
        "skip",
        {"step": "pay"},
        "its step pay is Pending, and only a step in Error can be resubmitted or skipped.",
    ),
    (failed, "undo", {"step": "reserve"}, WHOLE),
    (failed, "cancel", {"step": "reserve"}, WHOLE),
    (failed, "acknowledge", {"step": "reserve"}, WHOLE),
    (failed, "undo", {"input": "{}"}, WHOLE),
    (
        both_failed,
        "resubmit",
        {"input": "{}"},
        "its steps reserve, pay are in Error: name the one that the input is for.",
    ),
    (
        both_failed,
        "skip",
        {"input": "{}"},
        "its steps reserve, pay are in Error: name the one that the input is for.",
    ),
    (undo_failed, "resubmit", {"input": "{}"}, "it is being undone, and an undo takes no input."),
    (
        undo_failed,
        "skip",
        {"input": "{}", "step": "pay"},
        "it is being undone, and an undo takes no input.",
    ),
]


@pytest.mark.parametrize(
    ("situation", "verb", "members", "why"),
    REFUSED,
    ids=[f"{situation.__name__} {verb} {sorted(m)}" for situation, verb, m, _ in REFUSED],
)
async def test_what_cannot_be_done_is_refused_in_one_sentence_and_changes_nothing(
    situation: Any, verb: str, members: dict[str, Any], why: str
) -> None:
    system = await situation()
    before, wake_count = system.order(), len(system.bus.messages(QUEUES.scheduler))
    await tell(system, verb, **members, id="w-9")
    assert refusals(system) == [f"{verb} of order “O-1” was refused: {why}"]
    assert system.order() == before
    assert len(system.journal()) == before.seq
    assert len(system.bus.messages(QUEUES.scheduler)) == wake_count
    assert system.alerts()[-1].id == "refused/w-9"


async def test_a_stale_page_is_refused_with_what_there_is_now() -> None:
    system = await failed()
    before = system.order()
    for verb, later in product(["resubmit", "skip", "undo", "cancel", "acknowledge"], (-1, 1)):
        seq = before.seq + later
        await tell(system, verb, seq=seq, id=f"{verb}{later}")
        assert refusals(system)[-1] == (
            f"{verb} of order “O-1” was refused: it was meant for seq {seq}, and the order is at "
            f"{before.seq} (Error): look at it again."
        )
    assert system.order() == before


async def test_a_command_that_names_no_seq_is_refused_unless_it_is_to_cancel() -> None:
    system = await failed()
    before = system.order()
    why = f"it names no seq: look at the order, which is at seq {before.seq}, and give that seq."
    for verb in ("resubmit", "skip", "undo", "acknowledge"):
        await tell(system, verb, seq=None, id=verb)
        assert refusals(system)[-1] == f"{verb} of order “O-1” was refused: {why}"
    assert system.order() == before


async def test_a_rejected_order_is_put_to_nothing() -> None:
    system = kit(HOLDING)
    await system.run(system.dead_letters.handle(letter(order(workflow="chain"), QUEUES.orders)))
    assert system.state() == "Rejected"
    before = system.order()
    for number, verb in enumerate(["resubmit", "skip", "undo", "cancel", "acknowledge"]):
        await tell(system, verb, id=f"w-{number}")
    assert len(refusals(system)) == 5
    assert set(refusals(system)) == {
        f"{verb} of order “O-1” was refused: it was rejected before it began: submit it again."
        for verb in ("resubmit", "skip", "undo", "cancel", "acknowledge")
    }
    assert system.order() == before


async def test_a_command_for_an_unknown_order_is_refused_and_creates_none() -> None:
    system = kit(HOLDING)
    await tell(system, "cancel", order_id="O-9", id="w" * 125)
    assert refusals(system) == [
        "cancel of order “O-9” was refused: there is no such order: check its id."
    ]
    assert len(system.alerts()[0].id) <= 128
    assert await CommandAnswers(system.store).reason("w" * 125)
    assert system.store.orders == {}


async def test_a_refusal_whose_alert_cannot_be_sent_is_held_and_sent_later() -> None:
    system = await processed()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    await system.hand(command(system, "cancel"))
    assert refusals(system) == []
    await system.later(31)
    await system.sweep()
    assert len(refusals(system)) == 1


async def test_a_command_that_lost_a_race_is_refused_by_what_the_winner_left() -> None:
    system = await failed()
    rivals = [command(system, "resubmit", id="w-1"), command(system, "cancel", id="w-2")]
    results = await system.run(
        asyncio.gather(*(system.scheduler.handle(delivery(m)) for m in rivals))
    )
    assert sorted(outcome.value for outcome in results) == ["committed", "nothing"]
    assert len(refusals(system)) == 1
    assert "look at it again" in refusals(system)[0]


async def test_a_command_whose_commit_answer_was_lost_is_done_once_when_it_comes_again() -> None:
    system = await failed()
    message = command(system, "resubmit")
    system.store.fail_next("commit", StoreFault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await system.hand(message)
    assert (
        await system.run(system.scheduler.handle(delivery(message, message_id="m")))
        is ApplyResult.REPEATED
    )
    assert system.words().count("resubmitted") == 1
    await system.drain()
    assert system.state() == "Processed"


# What a command may carry


async def test_an_input_as_large_as_its_bound_is_taken_and_a_larger_one_is_put_aside() -> None:
    system = await failed()
    fits = '{"note":"' + "x" * (EDITED_UNITS_MAX - 11) + '"}'
    assert len(fits) == EDITED_UNITS_MAX
    before = system.order()
    await tell(system, "resubmit", input=fits[:-2] + 'x"}')
    assert system.order() == before
    (rejected,) = system.rejected()
    assert rejected.reason == "too-large"
    await tell(system, "resubmit", input=fits)
    assert system.order().steps[0].call.edited == fits
    await system.drain()
    assert system.state() == "Processed"


async def test_an_input_as_deep_as_its_bound_is_taken_and_a_deeper_one_is_put_aside() -> None:
    system = await failed()
    inside = CONTENT_DEPTH_MAX - 1
    fits = '{"deep":' + "[" * inside + "]" * inside + "}"
    before = system.order()
    await tell(system, "resubmit", input=fits.replace("[]", "[[]]"))
    assert system.order() == before
    assert [rejected.reason for rejected in system.rejected()] == ["too-deep"]
    await tell(system, "resubmit", input=fits)
    await system.drain()
    assert system.state() == "Processed"
    assert len(system.rejected()) == 1


# Backoff and extended waits, through the actors


PATIENT = Workflow(
    "patient",
    version=1,
    steps=(
        Step(
            "reserve",
            agent="stock",
            time_allowed=ALLOWED,
            undo=Undo(ALLOWED, drain_time=timedelta(minutes=1)),
            failures_max=1,
            backoff=Backoff(timedelta(seconds=20)),
            extended_wait=ExtendedWait(timedelta(hours=1)),
        ),
        Step("pay", agent="payment", time_allowed=ALLOWED, undo=UNDO),
    ),
    deadline=timedelta(hours=3),
)


def silent(system: Kit) -> None:
    """Let the next request of the first agent be lost."""
    assert system.bus.take(QUEUES.agent("stock")) is not None


async def test_a_service_that_is_away_is_tried_again_after_rests_and_a_long_wait() -> None:
    system = await submitted(PATIENT)
    sweeps: list[dict[str, int]] = []
    for seconds in (30, 20, 30, 3600):
        if system.bus.messages(QUEUES.scheduler):
            await system.step(QUEUES.scheduler)
            silent(system)
        await system.later(seconds)
        sweeps.append(await system.sweep())
    assert sweeps == [
        {"step reset": 1},
        {"released": 1},
        {"extended wait": 1},
        {"released": 1},
    ]
    first, second = system.alerts()  # an hour is longer than it takes to be told again
    assert (first.kind, second.kind) == ("waiting", "waiting")
    assert first.since == second.since
    await system.drain()
    assert system.state() == "Processed"


async def test_an_overdue_order_is_reported_once_however_often_it_is_swept() -> None:
    system = await submitted(replace(PATIENT, deadline=timedelta(seconds=5)))
    await system.step(QUEUES.scheduler)
    await system.later(5)
    assert await system.sweep() == {"overdue": 1}
    for _ in range(3):
        assert await system.sweep() == {}
    assert [alert.kind for alert in system.alerts()] == ["overdue"]
    await system.drain()
    assert system.state() == "Processed"


async def test_an_overdue_order_that_undoes_is_undone() -> None:
    due = replace(PATIENT, deadline=timedelta(seconds=20), on_failure=OnFailure.UNDO)
    system = await submitted(due)
    await system.drain()
    assert system.state() == "Processed"
    await system.submit(order("O-2", workflow="patient"), "m-2")
    await system.step(QUEUES.scheduler)
    silent(system)
    await system.later(20)
    sweep = await system.sweep()
    assert (sweep, system.state()) == ({"overdue, undo decided": 1}, "Processed")
    assert system.order("O-2").steps[0].resting
    await system.later(10 + 5 + 60)
    assert await system.sweep() == {"released": 1}
    await system.drain()
    assert system.state("O-2") == "Compensated"


async def test_a_late_call_within_its_limit_is_undone_though_its_service_knows_no_tombstone() -> (
    None
):
    system = await submitted(PATIENT)
    in_force: set[str] = set()

    async def late(call: AgentCall) -> Any:
        async def land() -> None:
            await system.clock.sleep(ALLOWED.total_seconds() + 55)
            in_force.add(call.key)

        landing.append(asyncio.ensure_future(land()))
        await system.clock.sleep(3600)

    async def undo(call: AgentCall) -> Any:
        in_force.discard(call.key)

    landing: list[asyncio.Task[None]] = []
    system.agents["stock"].then(late, undo)
    await system.step(QUEUES.scheduler)
    request = system.bus.take(QUEUES.agent("stock"))
    assert request is not None
    handling = asyncio.ensure_future(
        system.actors["stock"].handle(delivery(request, message_id="m"))
    )
    await system.later(1)
    await tell(system, "undo")
    await system.step(QUEUES.scheduler)
    await system.later(ALLOWED.total_seconds() + 60)
    assert await handling is None
    assert (await system.sweep(), in_force) == ({}, {"O-1/reserve"})
    assert system.state() == "Compensating", "it waits until no call can land"
    await system.later(4)
    assert await system.sweep() == {"released": 1}
    await system.drain()
    assert (system.state(), in_force) == ("Compensated", set())


async def test_the_reason_of_a_command_is_kept_in_the_journal() -> None:
    system = await failed()
    await tell(system, "resubmit", reason="the card was renewed")
    (entry,) = [entry for entry in system.journal() if entry.what == "resubmitted"]
    assert entry.reason == "the card was renewed"
