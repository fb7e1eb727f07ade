"""Callbacks: an event outside ends a step once, whichever attempt of it is out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.bounds import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.codec import external
from sas.codec.internal import FaultBody, raw
from sas.domain.content import PayloadRef
from sas.domain.messages import JournalEntry
from sas.domain.order import Fault, Order
from sas.features.callbacks.codec import CALLBACK_BYTES_MAX, CallbackKeys
from sas.features.callbacks.endpoint import WAIT_MIN
from sas.ports import (
    AgentCall,
    AwaitCallback,
    BusUnavailableError,
    Callback,
    CallbacksOffError,
    Message,
)
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.payload_codec_kit import CheapCodec
from tests.unit.actors_kit import (
    HOLDING,
    KEYS,
    QUEUES,
    Kit,
    command,
    kit,
    letter,
    order,
)
from tests.unit.callbacks_kit import (
    HOUR,
    IssuedCallbacks,
    awaiting,
    callback_message,
    post,
    waiting,
)

# What an agent is given


async def test_an_agent_is_given_a_token_its_address_and_when_it_expires() -> None:
    _, callback = await awaiting()
    assert callback.expires == START + HOUR
    assert callback.url == f"https://app.example/api/callbacks/{callback.token}"
    assert callback.token not in repr(callback)
    claims = KEYS.read(callback.token)
    assert (claims.order_id, claims.step, claims.direction, claims.generation) == (
        "O-1",
        0,
        "do",
        0,
    )


async def test_without_an_address_the_token_is_all() -> None:
    _, callback = await awaiting(callback_keys=CallbackKeys(KEYS.keys))
    assert callback.url is None


async def test_the_address_may_end_with_a_slash() -> None:
    _, callback = await awaiting(callback_keys=CallbackKeys(KEYS.keys, f"{KEYS.url}/"))
    assert callback.url == f"{KEYS.url}/{callback.token}"


async def test_without_a_key_the_error_of_asking_for_a_callback_says_what_to_set() -> None:
    system = kit(callback_keys=CallbackKeys())
    await system.submit()
    system.agents["stock"].then(IssuedCallbacks().awaits())
    await system.drain()
    waiting = await system.context.load("O-1")
    assert waiting is not None
    error = waiting.steps[0].last_error
    assert error is not None
    assert "SAS_CALLBACK_KEY is missing" in error.message
    bare = AgentCall(
        order_id="O-1", step="reserve", key="k", complete_by=START, order={}, results={}
    )
    with pytest.raises(CallbacksOffError):
        bare.callback(HOUR)
    with pytest.raises(ValueError, match="within="):
        bare.callback(timedelta(0))


# On the queue


async def test_a_callback_ends_its_step_and_the_order_goes_on() -> None:
    system, callback = await awaiting()
    await system.hand(callback_message(callback))
    await system.drain()
    assert system.state() == "Processed"
    assert system.agents["payment"].calls[0][1].results == {"reserve": {"signed_by": "Ann"}}
    assert system.journal()[3].by == "callback"
    assert system.rejected() == []


async def test_a_refusal_fails_the_step_with_its_reason() -> None:
    system, callback = await awaiting(HOLDING)
    error = {"code": "declined", "message": "Bob said no"}
    await system.hand(callback_message(callback, outcome="refused", result=None, error=error))
    assert system.state() == "Error"
    fault = system.order().steps[0].error
    assert fault is not None
    assert fault.code == "declined"
    before = system.order()
    await system.hand(
        callback_message(callback, "c-2", outcome="refused", result=None, error=error)
    )
    assert system.order() == before
    assert waiting(system) == []


async def test_a_callback_that_is_redelivered_or_sent_again_counts_once() -> None:
    system, callback = await awaiting()
    await system.hand(callback_message(callback))
    await system.drain()
    before, notices = system.order(), system.notices()
    await system.hand(callback_message(callback))
    await system.hand(callback_message(callback, "c-2"))
    await system.hand(callback_message(callback, "c-3", result={"signed_by": "Bob"}))
    assert (system.order(), system.rejected()) == (before, [])
    ends = {event.id for event in system.events() if external.notice_of(event.type) == "completed"}
    assert len(ends) == notices.count("completed") == 1, "a reader knows a repeat by its id"


async def test_after_a_crash_between_commit_and_send_its_messages_go_all_the_same() -> None:
    system, callback = await awaiting()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await system.hand(callback_message(callback))
    assert system.states() == ["Processed", "Processing"]
    await system.later(3700)  # its token has expired meanwhile
    await system.hand(callback_message(callback))
    assert len(system.requests("payment")) == 1


async def test_without_a_callback_in_its_time_the_step_fails_and_nobody_is_asked_again() -> None:
    system, _ = await awaiting(HOLDING)
    await system.later(3601)
    await system.sweep()
    await system.drain()
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do"]
    error = system.order().steps[0].error
    assert error is not None
    assert (error.code, error.message) == (
        "timed-out",
        "no callback came within the time given for it",
    )


async def test_between_two_attempts_it_waits_and_counts_at_the_next() -> None:
    system, callback = await awaiting(HOLDING)
    error = {"code": "declined", "message": "no"}
    await system.hand(callback_message(callback, outcome="refused", result=None, error=error))
    assert system.state() == "Error"
    # She changes her mind, before anybody has looked.
    await system.hand(callback_message(callback, "c-2"))
    assert system.rejected() == []
    (copy,) = waiting(system)
    assert copy.scheduled_at == START + timedelta(seconds=5)
    await system.later(6)
    await system.drain()  # still in Error: it is put back again, for longer
    (second_copy,) = waiting(system)
    assert second_copy.message_id != copy.message_id
    assert second_copy.scheduled_at is not None
    assert second_copy.scheduled_at >= system.clock.now() + timedelta(seconds=6)
    system.agents["stock"].then(AwaitCallback(HOUR))
    await system.hand(command("resubmit", system.order().seq))
    await system.drain()
    assert system.states()[0] == "Processing"
    await system.later(60)
    await system.drain()
    assert system.state() == "Processed"


async def test_an_outage_past_its_tokens_end_rejects_no_callback_between_two_attempts() -> None:
    system, callback = await awaiting(HOLDING)
    await system.hand(callback_message(callback, outcome="refused", result=None))
    await system.hand(callback_message(callback, "c-2"))
    await system.later(3 * 24 * 3600)  # nothing is received meanwhile
    await system.drain()
    assert (len(waiting(system)), system.rejected()) == (1, [])
    system.agents["stock"].then(AwaitCallback(HOUR))
    await system.hand(command("resubmit", system.order().seq))
    await system.drain()
    await system.later(15 * 60)
    await system.drain()
    assert system.state() == "Processed"


async def test_a_callback_that_waited_long_past_its_tokens_end_is_kept_and_reported() -> None:
    system, callback = await awaiting(HOLDING)
    await system.hand(callback_message(callback, outcome="refused", result=None))
    await system.hand(callback_message(callback, "c-2"))
    await system.later(WAIT_MIN.total_seconds() - 1)
    await system.drain()
    assert len(waiting(system)) == 1
    await system.later(15 * 60)
    await system.drain()
    assert waiting(system) == []
    (rejection,) = system.rejected()
    assert (rejection.reason, rejection.order_id, rejection.source_queue) == (
        "expired",
        "O-1",
        QUEUES.scheduler,
    )
    assert "rejected" in [alert.kind for alert in system.alerts()]


async def test_a_callback_waits_for_its_step_as_long_as_its_token_lasts() -> None:
    system, callback = await awaiting(HOLDING, within=WAIT_MIN + 2 * HOUR)
    await system.hand(callback_message(callback, outcome="refused", result=None))
    await system.hand(callback_message(callback, "c-2"))
    await system.later(WAIT_MIN.total_seconds() + 3600)
    await system.drain()
    assert (len(waiting(system)), system.rejected()) == (1, [])


async def test_a_callback_to_a_step_that_is_being_undone_is_kept_and_reported() -> None:
    system, callback = await awaiting()
    await system.hand(command("undo", system.order().seq))
    await system.hand(callback_message(callback))
    (rejection,) = system.rejected()
    assert rejection.reason == "too-late"
    assert "undo what you did" in rejection.description
    await system.drain()
    assert system.state() == "Compensated"


async def test_a_cancelled_order_waits_for_no_callback_and_one_that_comes_later_is_too_late() -> (
    None
):
    system, callback = await awaiting()
    assert system.order().steps[0].awaits_callback
    await system.hand(command("cancel", system.order().seq))
    await system.drain()
    assert system.clock.now() < START + HOUR
    assert system.state() == "Compensated"
    (_, done), (verb, undone) = system.agents["stock"].calls
    assert (verb, undone.key) == ("undo", done.key)
    assert (await post(system, callback.token)).status == 410
    await system.hand(callback_message(callback))
    assert [rejection.reason for rejection in system.rejected()] == ["too-late"]


# By an operator's hand


async def test_an_operator_ends_a_step_as_its_callback_would_and_the_order_goes_on() -> None:
    system, callback = await awaiting()
    by_hand = command("callback", system.order().seq, input=raw('{"signed_by":"ann"}'))
    await system.hand(by_hand)
    await system.drain()
    assert system.state() == "Processed"
    assert system.agents["payment"].calls[0][1].results == {"reserve": {"signed_by": "ann"}}
    assert (system.journal()[3].what, system.journal()[3].by) == ("step processed", "operator ann")
    assert (await post(system, callback.token)).status == 200
    await system.hand(by_hand)
    assert system.words().count("step processed") == 2


async def test_an_operator_refuses_a_step_and_the_workflow_says_what_follows() -> None:
    fault = FaultBody("too-dear", "50 is the most")
    for workflows, state in (((), "Compensated"), ((HOLDING,), "Error")):
        system, _ = await awaiting(*workflows)
        await system.hand(command("callback", system.order().seq, step="reserve", error=fault))
        await system.drain()
        assert system.state() == state
    assert system.order().steps[0].error == Fault("too-dear", "50 is the most")


async def test_an_operator_ends_no_step_that_waits_for_no_callback() -> None:
    system = kit()
    await system.submit()
    await system.drain()
    seq = system.order().seq
    await system.hand(command("callback", seq))
    assert system.order().seq == seq
    (alert,) = system.alerts()
    assert "only a step that waits for a callback can be ended by one" in alert.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: b"\x00", "not-json"),
        (lambda body: body.replace(b'"done"', b'"perhaps"'), "invalid"),
        (lambda body: body.replace(b"signed_by", b"\xff"), "not-utf-8"),
    ],
)
async def test_a_message_that_is_not_a_callback_is_put_aside_with_an_alert(
    change: Callable[[bytes], bytes], reason: str
) -> None:
    system, callback = await awaiting()
    message = callback_message(callback)
    assert change(message.body) != message.body
    before = system.order()
    await system.hand(Message(QUEUES.scheduler, "c-9", change(message.body)))
    assert [rejection.reason for rejection in system.rejected()] == [reason]
    assert [alert.kind for alert in system.alerts()] == ["rejected"]
    assert system.order() == before


async def test_a_callback_of_an_order_that_was_purged_is_put_aside() -> None:
    system, callback = await awaiting()
    system.store.orders.clear()
    await system.hand(callback_message(callback))
    assert [rejection.reason for rejection in system.rejected()] == ["unknown-order"]


async def test_another_orders_token_ends_that_orders_step_and_no_other() -> None:
    system, callback = await awaiting()
    callbacks = IssuedCallbacks()
    await system.submit(order("O-2"), "m-2")
    system.agents["stock"].then(callbacks.awaits())
    await system.drain()
    await system.hand(callback_message(callbacks[0]))
    await system.drain()
    assert (system.state("O-2"), system.state("O-1")) == ("Processed", "Processing")
    assert callback.token != callbacks[0].token


# By HTTP


async def test_a_posted_callback_is_taken_and_ends_its_step() -> None:
    system, callback = await awaiting()
    answer = await post(system, callback.token, {"outcome": "done", "result": 7})
    assert (answer.status, answer.code) == (202, "accepted")
    assert system.states()[0] == "Processing"
    await system.drain()
    assert system.state() == "Processed"
    assert system.order().steps[0].result == "7"
    second_answer = await post(system, callback.token, {"outcome": "done", "result": 7})
    assert (second_answer.status, second_answer.code) == (200, "already")
    assert waiting(system) == []


async def test_the_header_is_believed_before_the_address() -> None:
    system, callback = await awaiting()
    assert (await post(system, None, header=f"Bearer {callback.token}")).status == 202
    assert (await post(system, "other", header=f"Bearer {callback.token}")).status == 202
    assert (await post(system, callback.token, header="Bearer other")).status == 401
    assert (await post(system, callback.token, header="Basic other")).status == 202


async def test_a_token_that_is_none_is_401_with_a_challenge() -> None:
    system, _ = await awaiting()
    for token in (None, "", "x", "a.b", "e30.e30"):
        answer = await post(system, token)
        assert (answer.status, answer.code) == (401, "forged-token")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert waiting(system) == []


async def test_a_body_that_is_none_is_400_with_a_sentence() -> None:
    system, callback = await awaiting()
    for body, code in (
        (b"", "not-json"),
        (b'{"outcome":"maybe"}', "invalid"),
        (b'{"outcome":"done","result":"' + b"x" * RESULT_BYTES_MAX + b'"}', "result-too-large"),
        (b'{"outcome":"done","result":"' + b"x" * CALLBACK_BYTES_MAX + b'"}', "too-large"),
        (b"[" * 5000, "too-deep"),
    ):
        answer = await post(system, callback.token, body)
        assert (answer.status, answer.code) == (400, code)
        assert answer.message
    assert waiting(system) == []


async def test_a_result_of_another_type_is_400_and_the_step_goes_on_waiting() -> None:
    system, callback = await awaiting(results={"reserve": dict[str, int]})
    refusal = await post(system, callback.token, {"outcome": "done", "result": {"a": "b"}})
    assert (refusal.status, refusal.code) == (400, "invalid")
    assert "its result does not fit: Expected `int`, got `str`" in refusal.message
    missing = await post(system, callback.token, {"outcome": "done"})
    assert (missing.status, missing.code) == (400, "invalid")
    right = await post(system, callback.token, {"outcome": "done", "result": {"a": 1}})
    assert right.status == 202


async def test_a_step_being_undone_is_410_so_that_the_other_side_can_take_it_back() -> None:
    system, callback = await awaiting()
    await system.hand(command("undo", system.order().seq))
    answer = await post(system, callback.token)
    assert (answer.status, answer.code) == (410, "too-late")
    assert "undo what you did" in answer.message


async def test_an_order_that_was_purged_is_404() -> None:
    system, callback = await awaiting()
    system.store.orders.clear()
    assert (await post(system, callback.token)).status == 404


async def test_without_a_key_there_is_no_endpoint() -> None:
    system = kit(callback_keys=CallbackKeys())
    answer = await post(system, "a.b", b"x" * CALLBACK_BYTES_MAX * 2)
    assert (answer.status, answer.code) == (404, "not-found")
    assert "SAS_" not in answer.message


async def test_a_callback_that_cannot_be_sent_is_held_and_counts_later() -> None:
    system, callback = await awaiting()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    assert (await post(system, callback.token)).status == 202
    assert waiting(system) == []
    await system.later(31)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"


async def test_while_the_store_is_down_it_is_503_and_nothing_is_taken() -> None:
    system, callback = await awaiting()
    system.store.fail_next("load", StoreFault.UNAVAILABLE)
    answer = await post(system, callback.token)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert waiting(system) == []
    assert (await post(system, callback.token)).status == 202


POSTED = [{"outcome": "done", "result": f"{number:02d}" + "x" * 900_000} for number in range(20)]


@pytest.mark.parametrize("waits", [False, True])
async def test_one_token_keeps_one_result_at_a_time_however_many_are_posted(waits: bool) -> None:
    """Twenty posts kept twenty results of 0.9 MB."""
    system, callback = await awaiting(HOLDING)
    if waits:
        await post(system, callback.token, {"outcome": "refused"})
        await system.drain()
        assert system.state() == "Error"
    answers = [await post(system, callback.token, body) for body in POSTED]
    assert [answer.status for answer in answers] == [202] + [409] * 19
    assert answers[1].code == "other-result"
    assert len(system.store.payloads["O-1"]) == 1
    assert len(waiting(system)) == 1


async def test_a_token_takes_a_further_result_whenever_the_last_one_was_acted_on() -> None:
    system, callback = await awaiting(HOLDING)
    for number in range(3):
        error = {"code": "no", "message": f"for the {number}th time"}
        answer = await post(system, callback.token, {"outcome": "refused", "error": error})
        assert answer.status == 202
        await system.drain()
        system.agents["stock"].then(AwaitCallback(HOUR))
        await system.hand(command("resubmit", system.order().seq, f"w-{number}"))
        await system.drain()
    assert [system.words().count(word) for word in ("callback accepted", "resubmitted")] == [3, 3]


async def test_of_results_posted_at_once_one_is_kept() -> None:
    system, callback = await awaiting()
    original = system.store.recorded

    async def recorded(order_id: str, cause: str) -> JournalEntry | None:
        stored = await original(order_id, cause)
        await asyncio.sleep(0)  # now all of them have seen that nothing is recorded
        return stored

    system.store.recorded = recorded  # type: ignore[method-assign]
    bodies = [json.dumps(body).encode() for body in POSTED[:8]]
    posts = [system.callbacks.answer(callback.token, None, body) for body in bodies]
    answers = await system.run(asyncio.gather(*posts))
    assert sorted(answer.status for answer in answers) == [202] + [409] * 7
    assert len(system.store.payloads["O-1"]) == 1
    await system.drain()
    assert system.state() == "Processed"


async def test_the_same_result_is_accepted_again_after_an_answer_was_lost() -> None:
    system, callback = await awaiting()
    system.store.fail_next("put_payload", StoreFault.LOST_ANSWER)
    assert (await post(system, callback.token, POSTED[0])).status == 503
    assert (await post(system, callback.token, POSTED[0])).status == 202
    assert (await post(system, callback.token, POSTED[0])).status == 202
    await system.drain()
    assert system.state() == "Processed"
    assert system.words().count("callback accepted") == 1


async def test_no_answer_contains_the_token_or_may_be_kept_by_a_cache() -> None:
    system, callback = await awaiting()
    for token in (callback.token, callback.token + "x"):
        answer = await post(system, token)
        assert callback.token not in answer.body
        assert answer.headers["Cache-Control"] == "no-store"


# Dead letters


async def test_the_token_stays_behind_at_the_endpoint() -> None:
    system, callback = await awaiting()
    await post(system, callback.token)
    (message,) = waiting(system)
    assert callback.token.encode() not in message.body
    assert callback.token not in message.message_id


async def test_a_dead_callback_that_counted_is_finished() -> None:
    system, callback = await awaiting()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await system.hand(callback_message(callback))
    await system.run(system.dead_letters.handle(letter(callback_message(callback))))
    assert len(system.requests("payment")) == 1
    assert system.rejected() == []


async def test_a_dead_callback_that_did_not_count_is_fenced_kept_and_reported() -> None:
    system, callback = await awaiting()
    await system.run(system.dead_letters.handle(letter(callback_message(callback))))
    (rejection,) = system.rejected()
    assert (rejection.reason, rejection.order_id) == ("dead-lettered", "O-1")
    before = system.order()
    await system.hand(callback_message(callback))  # its slow handler, or a copy
    assert system.order() == before


async def test_a_caller_without_a_token_is_refused_before_anything_of_the_body_is_read() -> None:
    system, _ = await awaiting()
    answer = await post(system, "a.b", b"[" * CALLBACK_BYTES_MAX)
    assert (answer.status, answer.code) == (401, "forged-token")


# By the rules of an agent's own replies: a claim check for what is large, no secret in a refusal

LARGE = {"scan": "é" * RESULT_INLINE_BYTES_MAX}


async def test_a_large_result_is_offloaded_and_reaches_the_next_agent_whole() -> None:
    system, callback = await awaiting()
    answer = await post(system, callback.token, {"outcome": "done", "result": LARGE})
    assert (answer.status, answer.code) == (202, "accepted")
    assert len(waiting(system)[0].body) < 2000
    await system.drain()
    result = system.order().steps[0].result
    assert isinstance(result, PayloadRef)
    assert system.agents["payment"].calls[0][1].results == {"reserve": LARGE}
    assert system.state() == "Processed"
    second_answer = await post(system, callback.token, {"outcome": "done", "result": LARGE})
    assert (second_answer.status, second_answer.code) == (200, "already")


async def test_a_large_result_whose_write_fails_is_503_and_nothing_is_taken() -> None:
    system, callback = await awaiting()
    system.store.fail_next("put_payload", StoreFault.UNAVAILABLE)
    answer = await post(system, callback.token, {"outcome": "done", "result": LARGE})
    assert (answer.status, answer.code) == (503, "unavailable")
    assert waiting(system) == []


async def test_a_long_reason_by_http_is_cut_to_what_is_kept_so_that_any_queue_takes_it() -> None:
    system, callback = await awaiting(HOLDING)
    error = {"code": "c" * 300_000, "message": "m" * 300_000}
    assert (
        await post(system, callback.token, {"outcome": "refused", "error": error})
    ).status == 202
    assert len(waiting(system)[0].body) < 3000
    await system.drain()
    assert system.order().steps[0].error == Fault("c" * 100, "m" * 999 + "…")


# An order id that is used again once its order was purged


async def used_again() -> tuple[Kit, Callback]:
    """Return a kit whose order has the id, and the content, of one that was purged."""
    system, callback = await awaiting()
    system.store.orders.clear()
    await system.later(60)
    await system.submit(message_id="m-2")
    system.agents["stock"].then(AwaitCallback(HOUR))
    await system.drain()
    assert system.states()[0] == "Processing"
    return system, callback


async def test_a_token_ends_no_step_of_a_later_order_under_the_same_id() -> None:
    system, callback = await used_again()
    before = system.order()
    answer = await post(system, callback.token)
    assert (answer.status, answer.code) == (404, "unknown-order")
    assert "another order has its id now" in answer.message
    await system.hand(callback_message(callback))
    assert [rejection.reason for rejection in system.rejected()] == ["unknown-order"]
    assert system.order() == before
    await system.run(system.dead_letters.handle(letter(callback_message(callback))))
    assert system.order().steps == before.steps
    assert waiting(system) == []


async def test_an_order_that_takes_its_place_while_a_callback_is_taken_is_left_alone() -> None:
    system, callback = await awaiting()
    load, loads = system.store.load, 0

    async def loaded(order_id: str) -> Order | None:
        nonlocal loads
        loads += 1
        if loads == 2:  # it was found, and is loaded to be decided upon
            stored = system.store.orders[order_id]
            later = replace(stored.order.details, submitted_at=START + HOUR)
            stored.order = replace(stored.order, details=later)
        return await load(order_id)

    system.store.load = loaded  # type: ignore[method-assign]
    await system.hand(callback_message(callback))
    assert system.states()[0] == "Processing"
    assert [rejection.reason for rejection in system.rejected()] == ["unknown-order"]


@pytest.mark.parametrize("codec", [None, CheapCodec()])
async def test_the_same_callback_again_while_its_step_waits_fills_neither_queue_nor_store(
    codec: CheapCodec | None,
) -> None:
    system, callback = await awaiting(HOLDING, codec=codec)
    await post(system, callback.token, {"outcome": "refused"})
    await system.drain()
    assert system.state() == "Error"
    for _ in range(20):
        answer = await post(system, callback.token, {"outcome": "done", "result": "x" * 70_000})
        assert answer.status == 202
    assert len(waiting(system)) == 1
    assert len(system.store.payloads.get("O-1", {})) <= 2
