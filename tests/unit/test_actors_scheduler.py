"""The scheduler: wakes, replies and an operator's commands."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
    system = kit(**options)
    await system.submit(order(workflow=workflow))
    await system.step(QUEUES.scheduler)
    return system


async def in_error() -> Kit:
    """Return an order whose workflow holds, with its first step refused for good."""
    system = await claimed("care")
    system.agents["stock"].then(RefusedError("none", "out of stock"))
    await system.drain()
    assert system.state() == "Error"
    return system


def wake(order_id: str = "O-1", wake_id: str = "O-1/1/0") -> Message:
    body = internal.encode(internal.WakeMessage(id=wake_id, order_id=order_id, seq=0))
    return Message(QUEUES.scheduler, wake_id, body)


async def test_a_wake_claims_what_is_ready_and_records_who_holds_it_until_when() -> None:
    system = await claimed()
    first, second = system.order().steps
    assert system.states() == ["Processing", "Pending"]
    assert first.locked_by == system.order().locked_by == "host-1"
    assert first.complete_by == START + ALLOWED
    assert first.epoch == 1
    assert second.locked_by is None
    (request,) = system.requests("stock")
    assert system.requests("payment") == []
    assert (request.step_name, request.direction, request.epoch) == ("reserve", "do", 1)
    assert request.complete_by == START + ALLOWED
    assert request.idempotency_key == "O-1/reserve"
    assert json.loads(internal.text_of(request.order) or "") == {"lines": [1, 2, 3]}


async def test_a_request_outlives_its_complete_by_in_its_queue() -> None:
    system = await claimed()
    (message,) = system.bus.messages(QUEUES.agent("stock"))
    assert message.time_to_live is None
    await system.later(ALLOWED.total_seconds())
    assert system.bus.messages(QUEUES.agent("stock")) == [message]


async def test_of_two_schedulers_claiming_one_order_only_the_first_wins() -> None:
    host_1 = kit()
    host_2 = kit(beside=host_1, instance="host-2")
    await host_1.submit()
    first, second = await host_1.run(
        asyncio.gather(
            host_1.scheduler.handle(received(QUEUES.scheduler, "w-1", wake(wake_id="w-1").body)),
            host_2.scheduler.handle(received(QUEUES.scheduler, "w-2", wake(wake_id="w-2").body)),
        )
    )
    assert sorted([first.value, second.value]) == ["committed", "nothing"]
    assert host_1.words() == ["submitted", "claimed"]
    assert host_1.order().steps[0].epoch == 1
    assert len(host_1.requests("stock")) == 1


async def test_a_wake_repeated_sends_the_same_requests_with_the_same_ids() -> None:
    system = await claimed()
    (before,) = system.bus.messages(QUEUES.agent("stock"))
    assert (
        await system.run(system.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
        is ApplyResult.REPEATED
    )
    assert system.words() == ["submitted", "claimed"]
    first, second = system.bus.messages(QUEUES.agent("stock"))
    assert first == before == replace(second, properties={})


async def test_a_crash_after_the_claim_is_finished_by_the_wake_coming_again() -> None:
    system = kit()
    await system.submit()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(BusUnavailableError):
        await system.run(system.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
    assert system.requests("stock") == []
    await system.run(system.scheduler.handle(received(QUEUES.scheduler, "m", wake().body)))
    assert system.ids(QUEUES.agent("stock")) == ["O-1/2/0"]
    assert system.words() == ["submitted", "claimed"]


async def test_a_reply_records_the_result_and_starts_what_has_become_possible() -> None:
    system = await claimed()
    await system.hand(done())
    assert system.states() == ["Processed", "Processing"]
    assert system.order().steps[0].result == '{"ok":true}'
    assert system.order().steps[0].locked_by is None
    (request,) = system.requests("payment")
    results = {name: msgspec.json.decode(part) for name, part in request.results.items()}
    assert results == {"reserve": {"ok": True}}
    event = system.events()[-1]
    assert event.type == "sas.order.step-completed.v1"
    assert event.data.step == "reserve"
    assert json.loads(internal.text_of(event.data.result) or "") == {"ok": True}


async def test_at_the_end_the_application_gets_one_notification_with_all_results() -> None:
    system = kit()
    await system.submit()
    await system.drain()
    assert system.state() == "Processed"
    assert system.notices() == ["received", "step-completed", "step-completed", "completed"]
    last = system.events()[-1].data
    assert last.state == "Processed"
    assert last.correlation_id == "c-O-1"
    assert last.results is not None
    assert {name: msgspec.json.decode(part) for name, part in last.results.items()} == {
        "reserve": {"by": "O-1/reserve"},
        "pay": {"by": "O-1/pay"},
    }


async def test_requests_go_out_before_notifications() -> None:
    system = await claimed()
    system.bus.plan = lambda m: BusFault.UNAVAILABLE if m.queue == SHOP else None
    await system.hand(done())
    assert len(system.requests("payment")) == 1
    assert system.outs() == 1


async def test_a_refusal_of_a_workflow_that_undoes_undoes_all_that_was_dispatched() -> None:
    system = await claimed()
    system.agents["payment"].then(RefusedError("declined", "the card was declined"))
    await system.drain()
    assert system.state() == "Compensated"
    assert (system.notices()[0], *system.notices()[-2:]) == ("received", "failed", "undone")
    failed = system.events()[2].data
    assert failed.step == "pay"
    assert failed.awaits == "undo"
    assert failed.error is not None
    assert failed.error.code == "declined"
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do", "undo"]
    assert [verb for verb, _ in system.agents["payment"].calls] == ["do", "undo"]
    assert system.agents["stock"].calls[1][1].own_result == {"by": "O-1/reserve"}


async def test_a_refusal_of_a_workflow_that_holds_is_an_error_with_an_alert() -> None:
    system = await in_error()
    assert system.states() == ["Error", "Processed"]
    (alert,) = system.alerts()
    assert (alert.kind, alert.step, alert.order_id) == ("step-failed", "reserve", "O-1")
    assert alert.error is not None
    assert alert.fingerprint == f"reserve/{alert.error.code}"
    assert "out of stock" in alert.text
    failed = [e.data for e in system.events() if e.type == "sas.order.failed.v1"]
    assert [data.awaits for data in failed] == ["operator"]
    fault = system.order().steps[0].error
    assert fault is not None
    assert fault.code == "none"


async def test_a_duplicate_reply_repeats_what_it_led_to_with_the_same_ids() -> None:
    system = await claimed()
    await system.hand(done())
    before = system.order()
    await system.hand(done())
    assert system.order() == before
    assert system.ids(QUEUES.agent("payment")) == ["O-1/3/0"] * 2


async def test_a_reply_to_another_dispatch_changes_nothing() -> None:
    system = await claimed()
    before = system.order()
    for reply in (
        done(epoch=2),
        done(epoch=0, id="old"),
        done(step=1),
        done(step=9, id="step-9"),
        done(step=-1, id="minus"),
        done(direction="undo", id="other-way"),
    ):
        result = await system.run(system.scheduler.handle(delivery(reply)))
        assert result is ApplyResult.NOTHING
    assert system.order() == before
    assert system.rejected() == []
    assert system.alerts() == []


async def test_a_late_reply_of_an_older_epoch_changes_nothing_after_the_reset() -> None:
    system = await claimed()
    system.agents_die()
    await system.later(31)
    assert await system.sweep() == {"step reset": 1}
    await system.drain()
    assert system.order().steps[0].epoch == 2
    assert system.state() == "Processed"
    before = system.order()
    await system.hand(done(epoch=1))
    assert system.order() == before


async def test_messages_about_an_order_that_never_was_are_put_aside() -> None:
    system = kit()
    await system.hand(wake("O-9", "w-9"))
    await system.hand(done("O-9"))
    assert [rejection.reason for rejection in system.rejected()] == ["unknown-order"] * 2
    assert [rejection.source_queue for rejection in system.rejected()] == [
        QUEUES.scheduler,
        QUEUES.scheduler,
    ]
    assert {alert.kind for alert in system.alerts()} == {"rejected"}


POISON = [
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
]


async def test_poison_is_put_aside_whole_with_an_alert() -> None:
    system = await claimed()
    before = system.order()
    for poison in POISON:
        await system.hand(Message(QUEUES.scheduler, "m-9", poison))
        parts = system.rejected()
        text = "".join(part.body for part in parts)
        if parts[0].encoding == "base64":
            assert msgspec.json.decode(f'"{text}"', type=bytes) == poison
        else:
            assert text.encode() == poison
        assert {part.source_queue for part in parts} == {QUEUES.scheduler}
        assert {alert.kind for alert in system.alerts()} == {"rejected"}
        system.taken(QUEUES.rejected)
        system.taken(QUEUES.alerts)
    assert system.order() == before


async def test_a_request_on_the_scheduler_queue_is_poison() -> None:
    system = await claimed()
    (request,) = system.bus.messages(QUEUES.agent("stock"))
    await system.hand(Message(QUEUES.scheduler, "m-9", request.body))
    assert [rejection.reason for rejection in system.rejected()] == ["invalid"]
    assert system.states()[0] == "Processing"


async def test_a_workflow_this_deployment_does_not_have_has_the_message_put_back() -> None:
    system = await claimed()
    other_system = kit(_renamed("other"), beside=system)
    for message in (wake(wake_id="w-2"), done()):
        with pytest.raises(OtherVersionError, match="order O-1 waits for a deploy: unknown"):
            await other_system.hand(message)
    await system.hand(done())
    assert system.states() == ["Processed", "Processing"]


async def test_an_order_goes_on_with_the_version_it_began_with() -> None:
    system = kit()
    await system.submit()
    newer = Workflow("chain", version=2, steps=CHAIN.steps[:1])
    newer_system = kit(CHAIN, newer, beside=system)
    await newer_system.drain()
    assert newer_system.state() == "Processed"
    assert len(newer_system.order().steps) == 2
    await newer_system.submit(order("O-2"))
    assert newer_system.order("O-2").details.version == 2
    assert len(newer_system.order("O-2").steps) == 1


async def test_an_operator_resubmits_what_failed() -> None:
    system = await in_error()
    await system.hand(command("resubmit", system.order().seq))
    assert system.words()[-1] == "resubmitted"
    assert system.journal()[-1].by == "operator ann"
    assert system.order().steps[0].failure_count == 0
    await system.drain()
    assert system.state() == "Processed"
    assert {call.key for _, call in system.agents["stock"].calls} == {"O-1/reserve"}
    assert system.order().steps[0].epoch == 2


async def test_an_operator_undoes_a_processed_order_in_reverse_order() -> None:
    system = kit()
    await system.submit()
    await system.drain()
    await system.hand(command("undo", system.order().seq))
    await system.step(QUEUES.scheduler)
    assert system.states() == ["Compensating", "Compensating"]
    assert system.requests("stock") == []
    assert [request.direction for request in system.requests("payment")] == ["undo"]
    await system.drain()
    assert system.state() == "Compensated"


async def test_an_order_undone_before_anything_was_dispatched_is_compensated_at_once() -> None:
    system = kit()
    await system.submit()
    await system.hand(command("undo", 1))
    assert system.state() == "Compensated"
    assert system.notices() == ["received", "undone"]
    await system.drain()
    assert system.agents["stock"].calls == []


async def test_a_refusal_repeated_is_the_same_alert() -> None:
    system = await in_error()
    for _ in range(2):
        await system.hand(command("resubmit", 1))
    first, second = system.ids(QUEUES.alerts)[-2:]
    assert first == second


async def test_rivals_are_overtaken_by_loading_and_deciding_again() -> None:
    system = kit()
    await system.submit()
    system.store.fail_next("commit", *[StoreFault.CONFLICT] * 5)
    await system.step(QUEUES.scheduler)
    assert system.words() == ["submitted", "claimed"]
    assert len(system.requests("stock")) == 1


async def test_messages_of_one_order_never_share_an_id() -> None:
    system = kit(duplicate_window=timedelta(minutes=5))
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.submit()
    await system.drain()
    assert system.state() == "Compensated"
    assert len(set(system.ids(SHOP))) == len(system.ids(SHOP)) == 4


async def test_one_transition_makes_one_send_to_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    system = kit(FAN)
    system.agents["payment"].then({"ok": True}, RefusedError("declined", "no"))
    sends: list[dict[str, int]] = []  # of one transition, how many messages by queue
    send = system.bus.send

    async def noted(messages: Sequence[Message]) -> None:
        by_queue = Counter(message.queue for message in messages)
        assert by_queue.keys().isdisjoint(sends[-1])
        sends[-1].update(by_queue)
        await send(messages)

    monkeypatch.setattr(system.bus, "send", noted)
    sends.append({})
    await system.submit(order(workflow="fan"))
    for _ in range(99):
        queues = [name for name in QUEUES.on_the_way(system.agents) if system.bus.messages(name)]
        if not queues:
            break
        sends.append({})
        await system.step(queues[0])
    assert (system.notices()[0], *system.notices()[-2:]) == ("received", "failed", "undone")
    assert {QUEUES.agent("stock"): 2, QUEUES.agent("payment"): 1, SHOP: 1} in sends


async def test_the_end_of_an_order_and_that_of_its_last_step_go_out_in_one_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = await claimed("care")
    await system.hand(done(step=0))
    sends: list[list[str]] = []
    send = system.bus.send

    async def noted(messages: Sequence[Message]) -> None:
        sends.append([message.queue for message in messages])
        await send(messages)

    monkeypatch.setattr(system.bus, "send", noted)
    await system.hand(done(step=1))
    assert sends == [[SHOP, SHOP]]
    assert system.notices()[-2:] == ["step-completed", "completed"]


def _renamed(name: str) -> Workflow:
    return Workflow(name, version=1, steps=CHAIN.steps)
