"""The scheduler: wakes, replies and an operator's commands."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from sas.codec import internal
from sas.domain.workflow import OnFailure, Step, Workflow
from sas.engine.transition import ApplyResult
from sas.ports import (
    BusUnavailableError,
    Message,
    OtherVersionError,
    RefusedError,
    StoreUnavailableError,
)
from sas.testing.bus import BusFault
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    ALLOWED,
    CHAIN,
    QUEUES,
    SHOP,
    UNDO,
    Kit,
    command,
    delivery,
    done,
    kit,
    order,
    received,
)

FAN = Workflow(
    "fan",
    version=1,
    steps=(
        Step("first", agent="payment", time_allowed=ALLOWED, undo=UNDO),
        Step("left", agent="stock", time_allowed=ALLOWED, after=("first",), undo=UNDO),
        Step("pay", agent="payment", time_allowed=ALLOWED, after=("first",), undo=UNDO),
        Step("right", agent="stock", time_allowed=ALLOWED, after=("first",), undo=UNDO),
    ),
    on_failure=OnFailure.UNDO,
    notify_steps=True,
)


async def claimed(workflow: str = "chain", **options: Any) -> Kit:
    made = kit(**options)
    await made.submit(order(workflow=workflow))
    await made.step(QUEUES.scheduler)
    return made


async def in_error() -> Kit:
    """Return an order whose workflow holds, with its first step refused for good."""
    made = await claimed("care")
    made.agents["stock"].then(RefusedError("none", "out of stock"))
    await made.drain()
    assert made.state() == "Error"
    return made


def wake(order_id: str = "O-1", wake_id: str = "O-1/1/0") -> Message:
    body = internal.encode(internal.WakeMessage(id=wake_id, order_id=order_id, seq=0))
    return Message(QUEUES.scheduler, wake_id, body)


async def test_a_wake_claims_what_is_ready_and_records_who_holds_it_until_when() -> None:
    made = await claimed()
    first, second = made.order().steps
    assert made.states() == ["Processing", "Pending"]
    assert first.locked_by == made.order().locked_by == "host-1"
    assert first.complete_by == START + ALLOWED
    assert first.epoch == 1
    assert second.locked_by is None
    (request,) = made.requests("stock")
    assert made.requests("payment") == []
    assert (request.step_name, request.direction, request.epoch) == ("reserve", "do", 1)
    assert request.complete_by == START + ALLOWED
    assert request.idempotency_key == "O-1/reserve"
    assert json.loads(internal.text_of(request.order) or "") == {"lines": [1, 2, 3]}


async def test_independent_steps_are_claimed_together() -> None:
    made = await claimed("care")
    assert made.states() == ["Processing", "Processing"]
    assert len(made.requests("stock")) == len(made.requests("payment")) == 1


async def test_a_request_outlives_its_complete_by_in_its_queue() -> None:
    made = await claimed()
    (message,) = made.bus.messages(QUEUES.agent("stock"))
    assert message.time_to_live is None
    await made.later(ALLOWED.total_seconds())
    assert made.bus.messages(QUEUES.agent("stock")) == [message]


async def test_of_two_schedulers_claiming_one_order_only_the_first_wins() -> None:
    one = kit()
    two = kit(beside=one, instance="host-2")
    await one.submit()
    first, second = await one.run(
        asyncio.gather(
            one.scheduler.handle(received(QUEUES.scheduler, "w-1", wake(wake_id="w-1").body)),
            two.scheduler.handle(received(QUEUES.scheduler, "w-2", wake(wake_id="w-2").body)),
        )
    )
    assert sorted([first.value, second.value]) == ["committed", "nothing"]
    assert one.words() == ["submitted", "claimed"]
    assert one.order().steps[0].epoch == 1
    assert len(one.requests("stock")) == 1


async def test_one_wake_in_the_hands_of_two_schedulers_claims_once_with_the_same_requests() -> None:
    one = kit()
    two = kit(beside=one, instance="host-2")
    await one.submit()
    body = wake().body
    await one.run(
        asyncio.gather(
            one.scheduler.handle(received(QUEUES.scheduler, "w", body)),
            two.scheduler.handle(received(QUEUES.scheduler, "w", body)),
        )
    )
    assert one.words() == ["submitted", "claimed"]
    assert set(one.ids(QUEUES.agent("stock"))) == {"O-1/2/0"}


async def test_a_wake_repeated_sends_the_same_requests_with_the_same_ids() -> None:
    made = await claimed()
    before = made.bus.messages(QUEUES.agent("stock"))
    assert (
        await made.run(made.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
        is ApplyResult.REPEATED
    )
    assert made.words() == ["submitted", "claimed"]
    assert made.bus.messages(QUEUES.agent("stock")) == before * 2


async def test_a_stray_wake_changes_nothing() -> None:
    made = await claimed()
    before = made.order()
    stray = wake(wake_id="stray").body
    assert (
        await made.run(made.scheduler.handle(received(QUEUES.scheduler, "m", stray)))
        is ApplyResult.NOTHING
    )
    assert made.order() == before
    assert len(made.requests("stock")) == 1


async def test_a_crash_after_the_claim_is_finished_by_the_wake_coming_again() -> None:
    made = kit()
    await made.submit()
    made.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await made.run(made.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
    assert made.requests("stock") == []
    await made.run(made.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
    assert made.ids(QUEUES.agent("stock")) == ["O-1/2/0"]
    assert made.words() == ["submitted", "claimed"]


async def test_a_claim_whose_answer_was_lost_is_found_again_by_its_cause() -> None:
    made = kit()
    await made.submit()
    made.store.fail_next("commit", StoreFault.LOST_ANSWER)
    with pytest.raises(StoreUnavailableError):
        await made.run(made.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
    await made.run(made.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
    assert made.words() == ["submitted", "claimed"]
    assert made.ids(QUEUES.agent("stock")) == ["O-1/2/0"]


async def test_a_reply_records_the_result_and_starts_what_has_become_possible() -> None:
    made = await claimed()
    await made.hand(done())
    assert made.states() == ["Processed", "Processing"]
    assert made.order().steps[0].result == '{"ok":true}'
    assert made.order().steps[0].locked_by is None
    (request,) = made.requests("payment")
    results = {name: msgspec.json.decode(part) for name, part in request.results.items()}
    assert results == {"reserve": {"ok": True}}
    event = made.events()[-1]
    assert event.type == "sas.order.step-completed.v1"
    assert event.data.step == "reserve"
    assert json.loads(internal.text_of(event.data.result) or "") == {"ok": True}


async def test_at_the_end_the_application_gets_one_notification_with_all_results() -> None:
    made = kit()
    await made.submit()
    await made.drain()
    assert made.state() == "Processed"
    assert made.told() == ["received", "step-completed", "step-completed", "completed"]
    last = made.events()[-1].data
    assert last.state == "Processed"
    assert last.correlation_id == "c-O-1"
    assert last.results is not None
    assert {name: msgspec.json.decode(part) for name, part in last.results.items()} == {
        "reserve": {"by": "O-1/reserve"},
        "pay": {"by": "O-1/pay"},
    }


async def test_requests_go_out_before_notifications() -> None:
    made = await claimed()
    made.bus.plan = lambda m: BusFault.UNAVAILABLE if m.queue == SHOP else None
    await made.hand(done())
    assert len(made.requests("payment")) == 1
    assert made.outs() == 1


async def test_a_refusal_of_a_workflow_that_undoes_undoes_all_that_was_dispatched() -> None:
    made = await claimed()
    made.agents["payment"].then(RefusedError("declined", "the card was declined"))
    await made.drain()
    assert made.state() == "Compensated"
    assert (made.told()[0], *made.told()[-2:]) == ("received", "failed", "undone")
    failed = made.events()[2].data
    assert failed.step == "pay"
    assert failed.awaits == "undo"
    assert failed.error is not None
    assert failed.error.code == "declined"
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do", "undo"]
    assert [verb for verb, _ in made.agents["payment"].calls] == ["do", "undo"]
    assert made.agents["stock"].calls[1][1].own_result == {"by": "O-1/reserve"}


async def test_a_refusal_of_a_workflow_that_holds_is_an_error_with_an_alert() -> None:
    made = await in_error()
    assert made.states() == ["Error", "Processed"]
    (alert,) = made.alerts()
    assert (alert.kind, alert.step, alert.order_id) == ("step-failed", "reserve", "O-1")
    assert "out of stock" in alert.text
    failed = [e.data for e in made.events() if e.type == "sas.order.failed.v1"]
    assert [data.awaits for data in failed] == ["operator"]
    fault = made.order().steps[0].error
    assert fault is not None
    assert fault.code == "none"


async def test_a_duplicate_reply_repeats_what_it_led_to_with_the_same_ids() -> None:
    made = await claimed()
    await made.hand(done())
    before = made.order()
    await made.hand(done())
    assert made.order() == before
    assert made.ids(QUEUES.agent("payment")) == ["O-1/3/0"] * 2


@pytest.mark.parametrize(
    "late",
    [
        done(epoch=2),
        done(epoch=0, id="old"),
        done(step=1),
        done(step=9, id="step-9"),
        done(step=-1, id="minus"),
        done(direction="undo", id="other-way"),
    ],
)
async def test_a_reply_to_another_dispatch_changes_nothing(late: Message) -> None:
    made = await claimed()
    before = made.order()
    result = await made.run(made.scheduler.handle_reply(delivery(late)))
    assert result is ApplyResult.NOTHING
    assert made.order() == before
    assert made.rejected() == []
    assert made.alerts() == []


async def test_a_late_reply_of_an_older_epoch_changes_nothing_after_the_reset() -> None:
    made = await claimed()
    made.agents_die()
    await made.later(31)
    assert await made.sweep() == {"step reset": 1}
    await made.drain()
    assert made.order().steps[0].epoch == 2
    assert made.state() == "Processed"
    before = made.order()
    await made.hand(done(epoch=1))
    assert made.order() == before


async def test_a_reply_after_the_reset_and_before_the_next_claim_changes_nothing() -> None:
    made = await claimed()
    made.agents_die()
    await made.later(31)
    await made.sweep()
    assert made.states()[0] == "Pending"
    await made.hand(done(epoch=1))
    assert made.states()[0] == "Pending"


async def test_messages_about_an_order_that_never_was_are_put_aside() -> None:
    made = kit()
    await made.hand(wake("O-9", "w-9"))
    await made.hand(done("O-9"))
    assert [kept.reason for kept in made.rejected()] == ["unknown-order"] * 2
    assert [kept.source_queue for kept in made.rejected()] == [QUEUES.scheduler, QUEUES.replies]
    assert {alert.kind for alert in made.alerts()} == {"rejected"}


@pytest.mark.parametrize("queue", [QUEUES.scheduler, QUEUES.replies])
@pytest.mark.parametrize(
    "poison",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"kind":"wake"}',
        b'{"kind":"nothing","id":"1","order_id":"O-1"}',
        b'{"kind":"wake","format":0,"id":"1","order_id":"O-1"}',
        b'{"kind":"wake","id":"1","order_id":"a/b"}',
        b'{"kind":"wake","id":"","order_id":"O-1"}',
        b'{"kind":"wake","id":"1","id":"2","order_id":"O-1"}',
        b"[" * 100_000,
    ],
)
async def test_poison_is_put_aside_whole_with_an_alert(queue: str, poison: bytes) -> None:
    made = await claimed()
    before = made.order()
    await made.hand(Message(queue, "m-9", poison))
    kept = made.rejected()
    text = "".join(part.body for part in kept)
    if kept[0].encoding == "base64":
        assert msgspec.json.decode(f'"{text}"', type=bytes) == poison
    else:
        assert text.encode() == poison
    assert {part.source_queue for part in kept} == {queue}
    assert {alert.kind for alert in made.alerts()} == {"rejected"}
    assert made.order() == before


async def test_a_reply_on_the_scheduler_queue_is_poison() -> None:
    made = await claimed()
    await made.hand(Message(QUEUES.scheduler, "m-9", done().body))
    assert [kept.reason for kept in made.rejected()] == ["invalid"]
    assert made.states()[0] == "Processing"


async def test_a_workflow_this_deployment_does_not_have_has_the_message_put_back() -> None:
    made = await claimed()
    without = kit(_renamed("other"), beside=made)
    for message in (wake(wake_id="w-2"), done()):
        with pytest.raises(OtherVersionError, match="order O-1 waits for a deploy: unknown"):
            await without.hand(message)
    await made.hand(done())
    assert made.states() == ["Processed", "Processing"]


async def test_an_order_goes_on_with_the_version_it_began_with() -> None:
    made = kit()
    await made.submit()
    newer = Workflow("chain", version=2, steps=CHAIN.steps[:1])
    both = kit(CHAIN, newer, beside=made)
    await both.drain()
    assert both.state() == "Processed"
    assert len(both.order().steps) == 2
    await both.submit(order("O-2"))
    assert both.order("O-2").details.version == 2
    assert len(both.order("O-2").steps) == 1


async def test_an_operator_resubmits_what_failed() -> None:
    made = await in_error()
    await made.hand(command("resubmit", made.order().seq))
    assert made.words()[-1] == "resubmitted"
    assert made.journal()[-1].by == "operator ann"
    assert made.order().steps[0].failure_count == 0
    await made.drain()
    assert made.state() == "Processed"
    assert {call.key for _, call in made.agents["stock"].calls} == {"O-1/reserve"}
    assert made.order().steps[0].epoch == 2


async def test_an_operator_undoes_an_order_in_error() -> None:
    made = await in_error()
    await made.hand(command("undo", made.order().seq))
    await made.drain()
    assert made.state() == "Compensated"
    assert made.told()[-1] == "undone"
    assert [verb for verb, _ in made.agents["stock"].calls] == ["do", "undo"]


async def test_an_operator_undoes_a_processed_order_in_reverse_order() -> None:
    made = kit()
    await made.submit()
    await made.drain()
    await made.hand(command("undo", made.order().seq))
    await made.step(QUEUES.scheduler)
    assert made.states() == ["Compensating", "Compensating"]
    assert made.requests("stock") == []
    assert [request.direction for request in made.requests("payment")] == ["undo"]
    await made.drain()
    assert made.state() == "Compensated"


async def test_an_order_undone_before_anything_was_dispatched_is_compensated_at_once() -> None:
    made = kit()
    await made.submit()
    await made.hand(command("undo", 1))
    assert made.state() == "Compensated"
    assert made.told() == ["received", "undone"]
    await made.drain()
    assert made.agents["stock"].calls == []


async def test_a_stale_command_is_refused_with_a_sentence_and_changes_nothing() -> None:
    made = await in_error()
    before = made.order()
    await made.hand(command("resubmit", before.seq - 1))
    assert made.order() == before
    refused = made.alerts()[-1]
    assert refused.kind == "command-refused"
    assert refused.order_id == "O-1"
    assert refused.text == (
        f"resubmit of order O-1 was refused: it was meant for seq {before.seq - 1}, and the "
        f"order is at {before.seq} (Error): look at it again."
    )


async def test_a_command_given_twice_at_once_is_done_once() -> None:
    made = await in_error()
    seq = made.order().seq
    await made.run(
        asyncio.gather(
            *(
                made.scheduler.handle(
                    received(QUEUES.scheduler, "m", command("resubmit", seq, f"w-{n}").body)
                )
                for n in range(2)
            )
        )
    )
    assert made.words().count("resubmitted") == 1
    assert [alert.kind for alert in made.alerts()].count("command-refused") == 1


async def test_resubmit_and_undo_at_once_are_decided_for_one_of_them() -> None:
    made = await in_error()
    seq = made.order().seq
    await made.run(
        asyncio.gather(
            made.scheduler.handle(
                received(QUEUES.scheduler, "m", command("resubmit", seq, "w-1").body)
            ),
            made.scheduler.handle(
                received(QUEUES.scheduler, "m", command("undo", seq, "w-2").body)
            ),
        )
    )
    words = made.words()[seq:]
    assert len(words) == 1
    assert words[0] in {"resubmitted", "undo decided"}
    assert made.alerts()[-1].kind == "command-refused"


async def test_a_command_delivered_twice_is_not_refused_as_stale() -> None:
    made = await in_error()
    message = command("resubmit", made.order().seq)
    await made.hand(message)
    await made.hand(message)
    assert made.words().count("resubmitted") == 1
    assert "command-refused" not in [alert.kind for alert in made.alerts()]
    assert len(set(made.ids(QUEUES.scheduler))) == 1


async def test_a_refusal_repeated_is_the_same_alert() -> None:
    made = await in_error()
    for _ in range(2):
        await made.hand(command("resubmit", 1))
    first, second = made.ids(QUEUES.alerts)[-2:]
    assert first == second


async def test_a_command_that_the_state_does_not_allow_is_refused() -> None:
    made = await claimed()
    before = made.order()
    await made.hand(command("resubmit", before.seq))
    assert made.order() == before
    assert "Processing" in made.alerts()[-1].text


async def test_a_command_for_an_order_that_does_not_exist_is_refused() -> None:
    made = kit()
    await made.hand(command("undo", 1, order_id="O-9"))
    (alert,) = made.alerts()
    assert alert.kind == "command-refused"
    assert "there is no such order" in alert.text
    assert made.rejected() == []


async def test_rivals_are_overtaken_by_loading_and_deciding_again() -> None:
    made = kit()
    await made.submit()
    made.store.fail_next("commit", *[StoreFault.CONFLICT] * 5)
    await made.step(QUEUES.scheduler)
    assert made.words() == ["submitted", "claimed"]
    assert len(made.requests("stock")) == 1


async def test_two_replies_at_once_are_both_recorded_and_completed_is_sent_once() -> None:
    made = await claimed("care")
    replies = [done(step=0), done(step=1)]
    await made.run(asyncio.gather(*(made.scheduler.handle_reply(delivery(r)) for r in replies)))
    assert made.state() == "Processed"
    assert made.told().count("completed") == 1


async def test_messages_of_one_order_never_share_an_id() -> None:
    made = kit(duplicate_window=timedelta(minutes=5))
    made.agents["payment"].then(RefusedError("declined", "no"))
    await made.submit()
    await made.drain()
    assert made.state() == "Compensated"
    assert len(set(made.ids(SHOP))) == len(made.ids(SHOP)) == 4


async def test_one_transition_makes_one_send_to_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kit(FAN)
    made.agents["payment"].then({"ok": True}, RefusedError("declined", "no"))
    together: list[dict[str, int]] = []  # of one transition, how many messages by queue
    send = made.bus.send

    async def noted(messages: Sequence[Message]) -> None:
        by_queue = Counter(message.queue for message in messages)
        assert by_queue.keys().isdisjoint(together[-1])
        together[-1].update(by_queue)
        await send(messages)

    monkeypatch.setattr(made.bus, "send", noted)
    together.append({})
    await made.submit(order(workflow="fan"))
    while busy := [name for name in QUEUES.on_the_way(made.agents) if made.bus.messages(name)]:
        together.append({})
        await made.step(busy[0])
    assert (made.told()[0], *made.told()[-2:]) == ("received", "failed", "undone")
    assert {QUEUES.agent("stock"): 2, QUEUES.agent("payment"): 1, SHOP: 1} in together


async def test_the_end_of_an_order_and_that_of_its_last_step_go_out_in_one_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await claimed("care")
    await made.hand(done(step=0))
    sends: list[list[str]] = []
    send = made.bus.send

    async def noted(messages: Sequence[Message]) -> None:
        sends.append([message.queue for message in messages])
        await send(messages)

    monkeypatch.setattr(made.bus, "send", noted)
    await made.hand(done(step=1))
    assert sends == [[SHOP, SHOP]]
    assert made.told()[-2:] == ["step-completed", "completed"]


def _renamed(name: str) -> Workflow:
    return Workflow(name, version=1, steps=CHAIN.steps)
