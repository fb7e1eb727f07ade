"""Held messages: each is sent when its queue takes it, and none stands in the way of an order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from sas.domain.change import DeferredDue
from sas.domain.ids import digest_id, shard_of
from sas.engine import held as module
from sas.engine.delivery import FIRST_ID
from sas.engine.external import QUEUE_PAUSE
from sas.engine.held import (
    HELD_FOR,
    PAGE,
    QUEUES_AT_ONCE,
    REPORTED_AFTER,
    ROUND_AFTER,
    TURNS_TIME,
)
from sas.engine.receiver import DEAD_LETTER_REASON, SOURCE
from sas.ports import CorruptOrderError, HeldMessage, Message
from sas.testing.bus import MESSAGE_BYTES_MAX
from sas.testing.store import StoreFault, _due_key
from tests.unit.actors_kit import QUEUES, SHOP, Kit, kit, order, running
from tests.unit.callbacks_kit import awaiting, post

OTHER = "responses-other"
AGAIN_S = (ROUND_AFTER + timedelta(seconds=1)).total_seconds()
LATE_S = (REPORTED_AFTER + timedelta(seconds=1)).total_seconds()


async def hold(system: Kit, queue: str, count: int = 1, **options: object) -> None:
    """Hold messages since some moment ago, the oldest first."""
    for number in range(count):
        message = Message(queue, f"m-{number}", b"{}", properties=options.get("properties", {}))  # type: ignore[arg-type]
        since = system.clock.now() + timedelta(milliseconds=number)
        await system.store.hold(
            HeldMessage(message=message, since=since, order_id=f"O-{number + 10}")
        )


def sends(system: Kit) -> Counter[str]:
    """Count by queue what is tried to be sent from now on."""
    tries: Counter[str] = Counter()
    send = system.bus.send

    async def counted(messages: Sequence[Message]) -> None:
        tries.update(message.queue for message in messages)
        await send(messages)

    system.bus.send = counted  # type: ignore[method-assign]
    return tries


def slow(system: Kit, seconds: float) -> None:
    """Let each send take so long from now on."""
    send = system.bus.send

    async def slowly(messages: Sequence[Message]) -> None:
        await system.clock.sleep(seconds)
        await send(messages)

    system.bus.send = slowly  # type: ignore[method-assign]


def kinds(system: Kit) -> list[str]:
    return [alert.kind for alert in system.alerts()]


async def test_thousands_of_held_messages_delay_no_expired_step() -> None:
    system = await running()
    await hold(system, SHOP, 5_000)
    system.bus.queues[SHOP].refuses = True
    await system.later(30)
    assert await system.sweep() == {"step reset": 1}
    assert len(system.held()) == 5_000


async def test_a_queue_that_refused_is_left_alone_for_a_moment() -> None:
    system = kit()
    queues = (SHOP, QUEUES.alerts)
    for queue in queues:
        system.bus.queues[queue].refuses = True
    tries = sends(system)
    for times in (1, 2):
        for queue in queues * 3:
            assert not await system.context.external.send([Message(queue, "m", b"{}")], "O-1")
            await system.later(QUEUE_PAUSE.total_seconds() / 9)
        assert tries == dict.fromkeys(queues, times)
        await system.later(QUEUE_PAUSE.total_seconds())


async def test_a_queue_that_refuses_costs_one_send_in_half_a_minute_however_much_waits() -> None:
    system = kit()
    await hold(system, SHOP, 3_000)
    system.bus.queues[SHOP].refuses = True
    tries, before = sends(system), system.store.meter.now()
    for _ in range(30):
        await system.sweep()
        await system.later(10)
    assert tries == {SHOP: 10}
    assert (system.store.meter - before).writes < 40
    assert len(system.held()) == 3_000


async def test_no_queue_takes_the_turn_of_another_and_the_next_sweep_goes_on_behind_the_last() -> (
    None
):
    system = kit()
    queues = [f"responses-{number:02d}" for number in range(20)]
    for queue in queues:
        system.bus.declare(queue)
        await hold(system, queue, 40)
    slow(system, 0.9)
    began = system.clock.now()
    await system.sweep()
    assert system.clock.now() - began <= TURNS_TIME + timedelta(seconds=1)
    for _ in range(2):
        await system.sweep()
    assert all(system.ids(queue) for queue in queues)
    counts = [len(system.ids(queue)) for queue in queues]
    assert max(counts) - min(counts) <= PAGE
    for _ in range(40):
        await system.later(10)
        await system.sweep()
    assert system.held() == []


async def test_a_queue_whose_turn_ended_with_a_sweeps_time_goes_on_in_the_next_one() -> None:
    system = kit()
    await hold(system, SHOP, PAGE)
    slow(system, 0.9)
    for count in (6, 12, 18):
        await system.sweep()
        assert len(system.ids(SHOP)) == count


async def test_a_sweep_gives_up_no_more_than_its_time_allows() -> None:
    system = kit()
    await hold(system, SHOP, 20 * PAGE)
    await system.later(HELD_FOR.total_seconds() + 1)
    system.bus.queues[SHOP].refuses = True

    async def pause(operation: str, _key: str) -> None:
        await system.clock.sleep(0.9 if operation == "release" else 0)

    system.store.pause = pause
    for count in (14, 8, 2):
        began = system.clock.now()
        await system.sweep()
        assert system.clock.now() - began <= TURNS_TIME + timedelta(seconds=1)
        assert len(system.held()) == count * PAGE
        await system.later(AGAIN_S)


async def test_slow_queues_keep_none_behind_them_waiting_for_ever() -> None:
    system = kit()
    queues = [f"responses-{number:02d}" for number in range(20)]
    for queue in queues:
        system.bus.declare(queue)
        system.bus.queues[queue].refuses = True
        await hold(system, queue)
    await hold(system, SHOP)
    send, hanging, hanging_most = system.bus.send, 0, 0

    async def hang(messages: Sequence[Message]) -> None:
        nonlocal hanging, hanging_most
        if messages[0].queue != SHOP:
            hanging += 1
            hanging_most = max(hanging_most, hanging)
            await system.clock.sleep(10)
            hanging -= 1
        await send(messages)

    system.bus.send = hang  # type: ignore[method-assign]
    for _ in range(3):
        await system.sweep()
    assert system.ids(SHOP) == ["m-0"]
    assert hanging_most == QUEUES_AT_ONCE


async def test_an_operator_hears_of_a_queue_that_takes_nothing_for_ten_minutes_and_of_its_end() -> (
    None
):
    system = kit()
    await hold(system, SHOP, 3)
    system.bus.queues[SHOP].refuses = True
    await system.later(LATE_S - 10)
    await system.sweep()
    assert kinds(system) == []
    for _ in range(3):
        await system.later(AGAIN_S)
        await system.sweep()
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope) == ("undeliverable", f"queue {SHOP}")
    assert f"Queue “{SHOP}” takes no messages since 20" in alert.text
    system.bus.queues[SHOP].refuses = False
    await system.later(AGAIN_S)
    await system.sweep()
    assert len(system.ids(SHOP)) == 3
    await system.later(360)
    await system.sweep()
    assert kinds(system) == ["undeliverable", "cleared"]


async def test_a_queue_of_alerts_that_takes_none_is_logged_and_makes_no_alert(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 1)
    system = kit()
    await hold(system, QUEUES.alerts, 2)
    system.bus.queues[QUEUES.alerts].refuses = True
    await system.later(LATE_S)
    await system.sweep()
    assert "has taken no alert since" in caplog.text
    assert "an alert is given up, because its queue takes none: m-0" in caplog.text
    assert len(system.held()) == 1
    await system.later(HELD_FOR.total_seconds())
    await system.sweep()
    assert "an alert is given up, because its queue takes none: m-1" in caplog.text
    assert system.held() == []


async def test_beyond_a_bound_the_oldest_notifications_and_orders_of_a_queue_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An application that keeps its queue full had each of its waiting orders held for 14 days."""
    monkeypatch.setattr(module, "HELD_MAX", 40)
    system = kit()
    await hold(system, SHOP, 75)
    for queue in (QUEUES.orders, QUEUES.scheduler):
        await hold(system, queue, 75, properties={FIRST_ID: "m"})
    for queue in (SHOP, QUEUES.orders, QUEUES.scheduler):
        system.bus.queues[queue].refuses = True
    await system.later(LATE_S)
    await system.sweep()
    counts = Counter(message.queue for message in system.held())
    assert counts == {SHOP: 40, QUEUES.orders: 40, QUEUES.scheduler: 75}
    assert len(system.bus.messages(QUEUES.dead_letters)) == 35
    assert [item.message.message_id for item in await system.store.held(SHOP, 1)] == ["m-35"]


async def test_an_order_that_is_held_for_too_long_is_a_dead_letter_of_its_queue() -> None:
    system = kit()
    copy = Message(QUEUES.orders, "again/1", order(), properties={FIRST_ID: "m-1"})
    since = system.clock.now() - HELD_FOR
    await system.store.hold(HeldMessage(message=copy, since=since, order_id="again/1"))
    system.bus.queues[QUEUES.orders].refuses = True
    system.bus.queues[QUEUES.dead_letters].refuses = True
    await system.sweep()
    assert system.held() == [copy]
    system.bus.queues[QUEUES.dead_letters].refuses = False
    await system.later(AGAIN_S)
    await system.sweep()
    assert system.held() == []
    (letter,) = system.bus.messages(QUEUES.dead_letters)
    assert letter.body == copy.body
    assert letter.properties[FIRST_ID] == "m-1"
    assert letter.properties[SOURCE] == QUEUES.orders
    assert letter.properties[DEAD_LETTER_REASON] == "TTLExpiredException"


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_what_is_too_large_for_its_queue_is_put_aside_and_never_held_again(
    *, is_given_up: bool
) -> None:
    """So is what its queue refused for too long, and is too large for a dead letter."""
    system = kit()
    system.bus.queues[QUEUES.orders].forbids = is_given_up
    since = system.clock.now() - (HELD_FOR if is_given_up else timedelta(0))
    members = {"order_id": "O-1", "reply_queue": SHOP, "note": "x" * MESSAGE_BYTES_MAX}
    body = json.dumps(members).encode()
    copy = Message(QUEUES.orders, "again/1", body, properties={FIRST_ID: "m-1"})
    await system.store.hold(HeldMessage(message=copy, since=since, order_id="again/1"))
    tries = sends(system)
    for _ in range(5):
        await system.sweep()
        await system.later(AGAIN_S)
    assert system.held() == []
    assert tries[QUEUES.orders] == 1
    assert system.rejected()[0].source_queue == QUEUES.orders
    assert system.notices() == ["rejected"]


async def test_a_callback_that_its_queue_will_never_take_is_put_aside() -> None:
    system = kit()
    await hold(system, QUEUES.scheduler)
    system.bus.queues[QUEUES.scheduler].forbids = True
    await system.sweep()
    (rejection,) = system.rejected()
    assert (rejection.reason, rejection.source_queue) == ("undeliverable", QUEUES.scheduler)
    assert system.held() == []


async def test_a_row_changed_by_hand_is_reported_and_stops_no_other_queue() -> None:
    system = kit()
    system.bus.declare(OTHER)
    await hold(system, OTHER)
    await hold(system, SHOP)
    read = system.store.held

    async def broken(queue: str, limit: int) -> list[HeldMessage]:
        if queue == OTHER:
            raise CorruptOrderError("O-1", "row held|responses-other cannot be read")
        return await read(queue, limit)

    system.store.held = broken  # type: ignore[method-assign]
    await system.sweep()
    assert system.ids(SHOP) == ["m-0"]
    assert kinds(system) == ["unreadable"]


async def test_a_store_that_does_not_answer_costs_a_sweep_nothing_but_time() -> None:
    for operation in ("held_queue", "held", "release"):
        system = await running()
        await hold(system, SHOP)
        await system.later(30)
        system.store.fail_next(operation, *[StoreFault.UNAVAILABLE] * 2)
        assert await system.sweep() == {"step reset": 1}
        for _ in range(2):
            await system.later(AGAIN_S)
            await system.sweep()
        assert system.held() == []
        assert "m-0" in system.ids(SHOP)


async def test_what_the_version_before_held_is_moved_and_sent() -> None:
    system = kit()
    message = Message(SHOP, "m-1", b"{}")
    due = DeferredDue(system.clock.now(), "O-1", digest_id(SHOP, "m-1"))
    system.store.deferred[due] = message
    system.store._due[shard_of("O-1", len(system.store.shards))][_due_key(due)] = due
    assert await system.sweep() == {"held": 1}
    assert system.held() == [message]
    await system.later(10)
    assert await system.sweep() == {}
    assert (system.held(), system.ids(SHOP)) == ([], ["m-1"])


async def test_a_token_holds_one_message_however_often_it_is_used_while_its_queue_is_away() -> None:
    system, callback = await awaiting()
    system.bus.cut(QUEUES.scheduler)
    for number in range(60):
        await post(system, callback.token, {"outcome": "done", "result": {"n": number}})
    assert len(system.held()) == 1


async def test_an_instance_forgets_the_names_of_queues_that_applications_made_up() -> None:
    system = kit()
    system.bus.is_away = True
    for number in range(50):
        message = Message(f"responses-{number}", "m-1", b"{}")
        assert not await system.run(system.context.external.send([message], "O-1"))
        await system.later(3)
    assert len(system.context.external._paused_until) == 1
