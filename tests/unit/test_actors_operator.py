"""The operator's commands, through the scheduler's queue and over the ports in memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from sas.bounds import EDITED_UNITS_MAX
from sas.codec import internal
from sas.codec.internal import CommandMessage, WakeMessage
from sas.codec.strict import CONTENT_DEPTH_MAX
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow
from sas.engine.transition import ApplyResult
from sas.ports import (
    Call,
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
    CHAIN,
    QUEUES,
    UNDO,
    Kit,
    delivery,
    kit,
    letter,
    order,
    received,
)

HOLDING = replace(CHAIN, on_failure=OnFailure.HOLD)


async def submitted(workflow: Workflow = HOLDING) -> Kit:
    made = kit(workflow)
    await made.submit(order(workflow=workflow.name))
    return made


async def failed(workflow: Workflow = HOLDING) -> Kit:
    """Return an order whose first step was refused for good."""
    made = await submitted(workflow)
    made.agents["stock"].then(RefusedError("none", "out of stock"))
    await made.drain()
    assert made.state() == "Error"
    return made


async def undo_failed() -> Kit:
    """Return an order of which the undo of the last step was refused."""
    made = await submitted()
    await made.drain()
    await tell(made, "undo")
    made.agents["payment"].then(RefusedError("spent", "the money is spent"))
    await made.drain()
    assert made.states() == ["Compensating", "Error"]
    return made


def command(made: Kit, verb: Any, **members: Any) -> Message:
    """Return a command that saw the order as it is now."""
    defaults: dict[str, Any] = {"id": "w-1", "order_id": "O-1", "by": "ann"}
    if "seq" not in members and "O-1" in made.store.orders:
        defaults["seq"] = made.order().seq
    if "input" in members:
        members["input"] = msgspec.Raw(members["input"].encode())
    message = CommandMessage(verb=verb, **(defaults | members))
    return Message(QUEUES.scheduler, message.id, internal.encode(message))


async def tell(made: Kit, verb: str, **members: Any) -> None:
    await made.hand(command(made, verb, **members))


def refusals(made: Kit) -> list[str]:
    return [alert.text for alert in made.alerts() if alert.kind == "command-refused"]


# What is carried out


async def test_edited_input_goes_under_a_new_key_once_the_old_one_is_closed() -> None:
    made = await failed()
    await tell(made, "resubmit", input='{"lines":[1]}', step="reserve")
    await made.drain()
    assert made.state() == "Processed"
    calls = made.agents["stock"].calls
    assert [(verb, call.key, call.order) for verb, call in calls] == [
        ("do", "O-1/reserve", {"lines": [1, 2, 3]}),
        ("undo", "O-1/reserve", {"lines": [1]}),
        ("do", "O-1/reserve/1", {"lines": [1]}),
    ]
    (payment,) = made.agents["payment"].calls
    assert payment[1].order == {"lines": [1, 2, 3]}, "the edit is of one step"


async def test_an_edited_input_after_a_timeout_is_what_an_idempotent_service_does() -> None:
    """Under the old key the service would repeat its result for the old input."""
    once = tuple(replace(step, failures_max=0) for step in HOLDING.steps)
    made = await submitted(replace(HOLDING, steps=once))
    done: dict[str, Any] = {}

    async def idempotent(call: Call) -> Any:
        return done.setdefault(call.key, call.order)

    async def answer_lost(call: Call) -> Any:
        await idempotent(call)
        raise TransientError("the answer was lost")

    made.agents["stock"].then(*[answer_lost] * 100)
    await made.drain()
    await made.later(31)
    await made.sweep()
    assert (made.state(), done) == ("Error", {"O-1/reserve": {"lines": [1, 2, 3]}})
    made.agents["stock"].script.clear()
    made.agents["stock"].then(None, idempotent)
    await tell(made, "resubmit", input='{"lines":[1]}', step="reserve")
    await made.drain()
    last = [(verb, call.key) for verb, call in made.agents["stock"].calls[-2:]]
    assert last == [("undo", "O-1/reserve"), ("do", "O-1/reserve/1")]
    assert json.loads(str(made.order().steps[0].result)) == {"lines": [1]}


async def test_an_older_key_that_cannot_be_undone_fails_the_step_before_its_new_call() -> None:
    made = await failed()
    made.agents["stock"].then(RefusedError("spent", "the parcel has left"))
    await tell(made, "resubmit", input='{"lines":[1]}', step="reserve")
    await made.drain()
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do", "undo"]
    fault = made.order().steps[0].error
    assert fault is not None
    assert (fault.code, fault.message) == (
        "spent",
        "an earlier call (key O-1/reserve) could not be undone: the parcel has left",
    )


async def test_an_edited_input_must_pass_the_check_that_the_order_itself_passed() -> None:
    def check(content: bytes) -> None:
        if "lines" not in json.loads(content):
            raise ValueError("Object missing required field `lines`")

    made = kit(CARE, care=check)
    await made.submit(order(workflow="care"))
    made.agents["stock"].then(RefusedError("none", "no"))
    await made.drain()
    await tell(made, "resubmit", input='{"amount":1}', step="reserve")
    assert made.state() == "Error"
    assert (
        "was refused: its input is not accepted: Object missing required field `lines`"
        in made.alerts()[-1].text
    )
    await tell(made, "resubmit", id="w-2", input='{"lines":[1]}', step="reserve")
    await made.drain()
    assert made.state() == "Processed"


async def test_a_step_that_names_no_undo_takes_no_edited_input() -> None:
    bare = replace(HOLDING, steps=tuple(replace(step, undo=None) for step in HOLDING.steps))
    made = await failed(bare)
    await tell(made, "resubmit", input='{"lines":[1]}')
    await made.drain()
    assert made.state() == "Error"
    assert refusals(made) == [
        (
            "resubmit of order O-1 was refused: its step reserve accepts no input: its earlier "
            "calls cannot be undone at once (no undo, a drain_time, or an undo that failed)."
        )
    ]


async def test_the_undo_of_an_edited_step_covers_every_generation() -> None:
    made = await failed()
    await tell(made, "resubmit", input='{"lines":[1]}')
    await made.drain()
    made.agents["stock"].calls.clear()
    await tell(made, "undo", id="w-2")
    await made.drain()
    assert made.state() == "Compensated"
    undone = [call.key for verb, call in made.agents["stock"].calls if verb == "undo"]
    assert undone == ["O-1/reserve", "O-1/reserve/1"]


async def test_an_undo_that_fails_for_one_generation_puts_the_step_in_error() -> None:
    made = await failed()
    await tell(made, "resubmit", input='{"lines":[1]}')
    await made.drain()
    await tell(made, "undo", id="w-2")
    made.agents["stock"].then({"undone": 0}, RefusedError("shipped", "it has left"))
    await made.drain()
    assert made.states() == ["Error", "Compensated"]


async def test_an_edited_input_reaches_an_agent_that_fetches_a_payload_reference() -> None:
    made = kit(HOLDING)
    large = {"note": "x" * internal.INLINE_BYTES_MAX}
    await made.submit(order(order=large))
    made.agents["stock"].then({}, {})
    made.agents["payment"].then(RefusedError("no", "declined"))
    await made.drain()
    await tell(made, "resubmit", input='{"amount":1}')
    await made.drain()
    assert made.state() == "Processed"
    done = [call.order for verb, call in made.agents["payment"].calls if verb == "do"]
    assert done == [large, {"amount": 1}]


async def test_a_skipped_step_is_gone_past_and_its_result_is_what_the_operator_gave() -> None:
    made = await failed()
    await tell(made, "skip", step="reserve", input='{"reserved":"by phone"}')
    await made.drain()
    assert made.state() == "Processed"
    (_, call) = made.agents["payment"].calls[0]
    assert call.results == {"reserve": {"reserved": "by phone"}}
    assert made.told() == ["received", "failed", "step-completed", "completed"]


async def test_a_skipped_undo_is_undone_by_hand() -> None:
    made = await undo_failed()
    await tell(made, "skip", id="w-2")
    await made.drain()
    assert made.state() == "Compensated"
    records = [step.undo.value for step in made.order().steps]
    assert records == ["undone", "undone by hand"]
    assert made.told()[-1] == "undone"


async def test_a_cancelled_order_waits_for_its_agent_and_is_undone() -> None:
    made = await submitted()
    await made.step(QUEUES.scheduler)
    await tell(made, "cancel")
    assert made.states() == ["Processing", "Compensated"]
    await made.drain()
    assert made.state() == "Compensated"
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do", "undo"]
    assert made.agents["payment"].calls == []
    assert made.told() == ["received", "undone"]


async def test_a_cancelled_order_whose_agent_stays_silent_is_undone_when_its_time_is_up() -> None:
    made = await submitted()
    await made.step(QUEUES.scheduler)
    made.bus.take(QUEUES.agent("stock"))
    await tell(made, "cancel")
    await made.later(ALLOWED.total_seconds())
    assert await made.sweep() == {"cancelled step ended": 1}
    await made.drain()
    assert made.state() == "Compensated"


async def test_cancel_needs_no_seq_because_it_is_meant_whatever_happened_since() -> None:
    made = await submitted()
    await tell(made, "cancel", seq=None)
    assert (made.state(), refusals(made)) == ("Compensated", [])


async def test_an_acknowledgement_is_kept_with_its_name_and_sends_no_message() -> None:
    made = await failed()
    told = len(made.alerts())
    await tell(made, "acknowledge", by="Ann Ölund")
    assert made.order().acknowledged_by == "Ann Ölund"
    assert made.journal()[-1].by == "operator Ann Ölund"
    assert len(made.alerts()) == told


@pytest.mark.parametrize("verb", ["resubmit", "skip", "undo", "cancel", "acknowledge"])
async def test_any_command_that_comes_twice_at_once_is_carried_out_once(verb: str) -> None:
    made = await failed()
    message = command(made, verb)
    seq = made.order().seq
    results = await made.run(
        asyncio.gather(
            *(made.scheduler.handle(delivery(message, message_id="m")) for _ in range(3))
        )
    )
    assert sorted(one.value for one in results) == ["committed", "repeated", "repeated"]
    assert made.order().seq == seq + 1
    assert refusals(made) == []


async def test_the_journal_names_who_did_what() -> None:
    made = await failed()
    for number, verb in enumerate(["acknowledge", "resubmit", "cancel"]):
        await tell(made, verb, by=f"person-{number}", id=f"w-{number}")
    entries = [(entry.what, entry.by) for entry in made.journal()[-3:]]
    assert entries == [
        ("acknowledged", "operator person-0"),
        ("resubmitted", "operator person-1"),
        ("cancelled", "operator person-2"),
    ]


# What is refused


async def processed() -> Kit:
    made = await submitted()
    await made.drain()
    return made


async def both_failed() -> Kit:
    made = await submitted(CARE)
    for agent in made.agents.values():
        agent.then(RefusedError("none", "no"))
    await made.drain()
    assert made.states() == ["Error", "Error"]
    return made


async def cancelled() -> Kit:
    made = await submitted()
    await made.step(QUEUES.scheduler)
    await tell(made, "cancel", id="w-0")
    return made


async def second_failed() -> Kit:
    made = await submitted()
    made.agents["payment"].then(RefusedError("none", "declined"))
    await made.drain()
    assert made.states() == ["Processed", "Error"]
    return made


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
    ("made_by", "verb", "members", "why"),
    REFUSED,
    ids=[f"{made.__name__} {verb} {sorted(m)}" for made, verb, m, _ in REFUSED],
)
async def test_what_cannot_be_done_is_refused_in_one_sentence_and_changes_nothing(
    made_by: Any, verb: str, members: dict[str, Any], why: str
) -> None:
    made = await made_by()
    before, woken = made.order(), len(made.bus.messages(QUEUES.scheduler))
    await tell(made, verb, **members, id="w-9")
    assert refusals(made) == [f"{verb} of order O-1 was refused: {why}"]
    assert made.order() == before
    assert len(made.journal()) == before.seq
    assert len(made.bus.messages(QUEUES.scheduler)) == woken
    assert made.alerts()[-1].id == "refused/w-9"


@pytest.mark.parametrize("verb", ["resubmit", "skip", "undo", "cancel", "acknowledge"])
async def test_a_stale_page_is_refused_with_what_there_is_now(verb: str) -> None:
    made = await failed()
    before = made.order()
    for number, seq in enumerate((before.seq - 1, before.seq + 1)):
        await tell(made, verb, seq=seq, id=f"w-{number}")
        assert refusals(made)[-1] == (
            f"{verb} of order O-1 was refused: it was meant for seq {seq}, and the order is at "
            f"{before.seq} (Error): look at it again."
        )
    assert made.order() == before


@pytest.mark.parametrize("verb", ["resubmit", "skip", "undo", "acknowledge"])
async def test_a_command_that_names_no_seq_is_refused_unless_it_is_to_cancel(verb: str) -> None:
    made = await failed()
    before = made.order()
    await tell(made, verb, seq=None)
    why = f"it names no seq: look at the order, which is at seq {before.seq}, and give that seq."
    assert refusals(made) == [f"{verb} of order O-1 was refused: {why}"]
    assert made.order() == before


async def test_a_rejected_order_is_put_to_nothing() -> None:
    made = kit(HOLDING)
    await made.run(made.dead_letters.handle(letter(order(workflow="chain"), QUEUES.orders)))
    assert made.state() == "Rejected"
    before = made.order()
    for number, verb in enumerate(["resubmit", "skip", "undo", "cancel", "acknowledge"]):
        await tell(made, verb, id=f"w-{number}")
    assert len(refusals(made)) == 5
    assert set(refusals(made)) == {
        f"{verb} of order O-1 was refused: it was rejected before it began: submit it again."
        for verb in ("resubmit", "skip", "undo", "cancel", "acknowledge")
    }
    assert made.order() == before


async def test_a_command_for_an_unknown_order_is_refused_and_creates_none() -> None:
    made = kit(HOLDING)
    await tell(made, "cancel", order_id="O-9")
    assert refusals(made) == [
        "cancel of order O-9 was refused: there is no such order: check its id."
    ]
    assert made.store.orders == {}


async def test_a_refusal_whose_alert_cannot_be_sent_is_held_and_sent_later() -> None:
    made = await processed()
    made.bus.fail_next(BusFault.UNAVAILABLE)
    await made.hand(command(made, "cancel"))
    assert refusals(made) == []
    await made.later(31)
    await made.sweep()
    assert len(refusals(made)) == 1


async def test_a_command_that_lost_a_race_is_refused_by_what_the_winner_left() -> None:
    made = await failed()
    rivals = [command(made, "resubmit", id="w-1"), command(made, "cancel", id="w-2")]
    results = await made.run(asyncio.gather(*(made.scheduler.handle(delivery(m)) for m in rivals)))
    assert sorted(one.value for one in results) == ["committed", "nothing"]
    assert len(refusals(made)) == 1
    assert "look at it again" in refusals(made)[0]


async def test_a_command_whose_commit_answer_was_lost_is_done_once_when_it_comes_again() -> None:
    made = await failed()
    message = command(made, "resubmit")
    made.store.fail_next("commit", StoreFault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await made.hand(message)
    assert (
        await made.run(made.scheduler.handle(delivery(message, message_id="m")))
        is ApplyResult.REPEATED
    )
    assert made.words().count("resubmitted") == 1
    await made.drain()
    assert made.state() == "Processed"


# What a command may carry


async def test_an_input_as_large_as_its_bound_is_taken_and_a_larger_one_is_put_aside() -> None:
    made = await failed()
    fits = '{"note":"' + "x" * (EDITED_UNITS_MAX - 11) + '"}'
    assert len(fits) == EDITED_UNITS_MAX
    before = made.order()
    await tell(made, "resubmit", input=fits[:-2] + 'x"}')
    assert made.order() == before
    (rejected,) = made.rejected()
    assert rejected.reason == "too-large"
    await tell(made, "resubmit", input=fits)
    assert made.order().steps[0].call.edited == fits
    await made.drain()
    assert made.state() == "Processed"


@pytest.mark.parametrize("verb", ["resubmit", "skip"])
async def test_an_input_as_deep_as_its_bound_reaches_every_agent_and_a_deeper_one_is_put_aside(
    verb: str,
) -> None:
    made = await failed()
    inside = CONTENT_DEPTH_MAX - 1
    fits = '{"deep":' + "[" * inside + "]" * inside + "}"
    before = made.order()
    await tell(made, verb, input=fits.replace("[]", "[[]]"))
    assert made.order() == before
    assert [rejected.reason for rejected in made.rejected()] == ["too-deep"]
    await tell(made, verb, input=fits)
    await made.drain()
    assert made.state() == "Processed"
    assert len(made.rejected()) == 1


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


def silent(made: Kit) -> None:
    """Let the next request of the first agent be lost."""
    assert made.bus.take(QUEUES.agent("stock")) is not None


async def test_a_service_that_is_away_is_tried_again_after_rests_and_a_long_wait() -> None:
    made = await submitted(PATIENT)
    swept: list[dict[str, int]] = []
    for seconds in (30, 20, 30, 3600):
        if made.bus.messages(QUEUES.scheduler):
            await made.step(QUEUES.scheduler)
            silent(made)
        await made.later(seconds)
        swept.append(await made.sweep())
    assert swept == [
        {"step reset": 1},
        {"released": 1},
        {"extended wait": 1},
        {"released": 1},
    ]
    first, again = made.alerts()  # an hour is longer than it takes to be told again
    assert (first.kind, again.kind) == ("waiting", "waiting")
    assert first.since == again.since
    await made.drain()
    assert made.state() == "Processed"


async def test_a_wake_in_an_extended_wait_claims_nothing() -> None:
    made = await submitted(PATIENT)
    for seconds in (30, 20, 30):
        if made.bus.messages(QUEUES.scheduler):
            await made.step(QUEUES.scheduler)
            silent(made)
        await made.later(seconds)
        await made.sweep()
    before = made.order()
    stray = internal.encode(WakeMessage(id="stray", order_id="O-1", seq=0))
    assert (
        await made.run(made.scheduler.handle(received(QUEUES.scheduler, "stray", stray)))
        is ApplyResult.NOTHING
    )
    assert made.order() == before


async def test_an_overdue_order_is_reported_once_however_often_it_is_swept() -> None:
    made = await submitted(replace(PATIENT, deadline=timedelta(seconds=5)))
    await made.step(QUEUES.scheduler)
    await made.later(5)
    assert await made.sweep() == {"overdue": 1}
    for _ in range(3):
        assert await made.sweep() == {}
    assert [alert.kind for alert in made.alerts()] == ["overdue"]
    await made.drain()
    assert made.state() == "Processed"


async def test_an_overdue_order_that_undoes_is_undone() -> None:
    due = replace(PATIENT, deadline=timedelta(seconds=20), on_failure=OnFailure.UNDO)
    made = await submitted(due)
    await made.drain()
    assert made.state() == "Processed"
    await made.submit(order("O-2", workflow="patient"), "m-2")
    await made.step(QUEUES.scheduler)
    silent(made)
    await made.later(20)
    swept = await made.sweep()
    assert (swept, made.state()) == ({"overdue, undo decided": 1}, "Processed")
    assert made.order("O-2").steps[0].resting
    await made.later(10 + 5 + 60)
    assert await made.sweep() == {"released": 1}
    await made.drain()
    assert made.state("O-2") == "Compensated"


async def test_a_late_call_within_its_limit_is_undone_though_its_service_knows_no_tombstone() -> (
    None
):
    made = await submitted(PATIENT)
    in_force: set[str] = set()

    async def late(call: Call) -> Any:
        async def land() -> None:
            await made.clock.sleep(ALLOWED.total_seconds() + 55)
            in_force.add(call.key)

        landing.append(asyncio.ensure_future(land()))
        await made.clock.sleep(3600)

    async def undo(call: Call) -> Any:
        in_force.discard(call.key)

    landing: list[asyncio.Task[None]] = []
    made.agents["stock"].then(late, undo)
    await made.step(QUEUES.scheduler)
    request = made.bus.take(QUEUES.agent("stock"))
    assert request is not None
    handling = asyncio.ensure_future(made.actors["stock"].handle(delivery(request, message_id="m")))
    await made.later(1)
    await tell(made, "undo")
    await made.step(QUEUES.scheduler)
    await made.later(ALLOWED.total_seconds() + 60)
    assert await handling is None
    assert (await made.sweep(), in_force) == ({}, {"O-1/reserve"})
    assert made.state() == "Compensating", "it waits until no call can land"
    await made.later(4)
    assert await made.sweep() == {"released": 1}
    await made.drain()
    assert (made.state(), in_force) == ("Compensated", set())


async def test_the_reason_of_a_command_is_kept_in_the_journal() -> None:
    made = await failed()
    await tell(made, "resubmit", reason="the card was renewed")
    (entry,) = [one for one in made.journal() if one.what == "resubmitted"]
    assert entry.reason == "the card was renewed"
