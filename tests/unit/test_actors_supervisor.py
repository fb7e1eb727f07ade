"""The supervisor: what has expired is found and recovered; one order's trouble stays its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sas.actors import supervisor as module
from sas.actors.supervisor import ROWS_AT_ONCE, SHARD_DUE_MAX, Supervisor
from sas.domain.change import Due, OtherDue, OutDue
from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import shard_of
from sas.domain.messages import Request
from sas.domain.workflow import Rules, Workflow
from sas.features.queue_delay.excuses import QueueExcuses
from sas.ports import (
    BusUnavailableError,
    Message,
    RefusedError,
    StoreMismatchError,
    StoreUnavailableError,
    TransientError,
)
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault, _due_key
from tests.unit.actors_kit import CARE, CHAIN, QUEUES, SHOP, Kit, delivery, done, kit, order


async def running(workflow: str = "chain", *, alive: bool = False, **options: Any) -> Kit:
    """Return an order whose first steps are out. Unless ``alive``, its agents died with them."""
    made = kit(**options)
    await made.submit(order(workflow=workflow))
    await made.step(QUEUES.scheduler)
    if not alive:
        made.agents_die()
    return made


async def test_nothing_due_is_nothing_done() -> None:
    made = await running()
    before = made.order()
    assert await made.sweep() == {}
    assert made.order() == before


async def test_a_step_past_its_complete_by_is_counted_unlocked_and_woken() -> None:
    made = await running()
    await made.later(30)
    assert await made.sweep() == {"step reset": 1}
    step = made.order().steps[0]
    assert made.states() == ["Pending", "Pending"]
    assert step.failure_count == made.order().failure_count == 1
    assert step.locked_by is None
    assert made.journal()[-1].by == "supervisor host-1"
    assert made.journal()[-1].cause is None
    assert made.ids(QUEUES.scheduler) == ["O-1/3/0"]
    assert made.alerts() == []


async def test_a_step_that_was_reset_is_run_again_under_a_new_epoch_and_the_old_key() -> None:
    made = await running()
    made.bus.take(QUEUES.agent("stock"))  # the agent dies with it
    await made.later(30)
    await made.sweep()
    await made.drain()
    assert made.state() == "Processed"
    assert made.order().steps[0].epoch == 2
    assert made.order().steps[0].failure_count == 0
    assert made.agents["stock"].calls[0][1].key == "O-1/reserve"


async def expire_past_the_threshold(made: Kit) -> list[dict[str, int]]:
    swept = []
    for _ in range(2):  # failures_max is 1
        made.agents_die()
        await made.later(30)
        swept.append(await made.sweep())
        while made.bus.messages(QUEUES.scheduler):
            await made.step(QUEUES.scheduler)
    return swept


async def test_past_the_threshold_a_workflow_that_holds_fails_with_an_alert() -> None:
    made = await running("care")
    await made.hand(done(step=1))
    swept = await expire_past_the_threshold(made)
    assert swept == [{"step reset": 1}, {"step failed": 1}]
    assert made.states() == ["Error", "Processed"]
    step = made.order().steps[0]
    assert step.failure_count == 2
    assert step.locked_by is None
    assert step.error is not None
    assert step.error.code == "timed-out"
    assert [(a.kind, a.step) for a in made.alerts()] == [("step-failed", "reserve")]
    assert made.told()[-1] == "failed"


async def test_past_the_threshold_a_workflow_that_undoes_is_undone() -> None:
    made = await running()
    swept = await expire_past_the_threshold(made)
    assert swept == [{"step reset": 1}, {"step failed, undo decided": 1}]
    for queue in [QUEUES.agent("stock")]:
        while message := made.bus.take(queue):
            if b'"undo"' in message.body:
                await made.hand(message)
    await made.drain()
    assert made.state() == "Compensated"
    assert made.told() == ["received", "failed", "undone"]
    assert [verb for verb, _ in made.agents["stock"].calls] == ["undo"]
    assert made.agents["payment"].calls == []


async def test_one_step_expires_beside_another_that_goes_on() -> None:
    made = await running("care")
    await made.hand(done(step=1))
    await made.later(30)
    await made.sweep()
    assert made.states() == ["Pending", "Processed"]


async def test_a_pending_step_nobody_picked_up_is_woken_again_and_never_failed() -> None:
    made = kit()
    await made.submit()
    made.bus.take(QUEUES.scheduler)
    for _ in range(12):  # a scheduler outage of over an hour
        await made.later(400)
        await made.sweep()
        assert made.states() == ["Pending", "Pending"]
        assert made.order().steps[0].failure_count == 0
    assert set(made.words()) == {"submitted", "woken again"}
    kinds = Counter(alert.kind for alert in made.alerts())
    assert set(kinds) == {"not-picked-up"}
    ids = made.ids(QUEUES.scheduler)
    assert len(ids) == len(set(ids)) > 3
    await made.drain()
    assert made.state() == "Processed"


async def test_what_a_sweep_wants_sent_has_an_out_row_until_it_is_sent() -> None:
    made = await running()
    await made.later(30)
    made.bus.plan = lambda _message: BusFault.UNAVAILABLE
    await made.sweep()
    assert made.words()[-1] == "step reset"
    assert made.ids(QUEUES.scheduler) == []
    assert made.outs() == 1
    await made.later(29)
    made.bus.plan = lambda _message: None
    assert await made.sweep() == {}
    await made.later(2)
    assert (await made.sweep())["sent again"] == 1
    assert "O-1/3/0" in made.ids(QUEUES.scheduler)
    assert made.outs() == 0


async def test_an_out_row_stays_while_the_bus_is_down() -> None:
    made = await running()
    await made.later(30)
    made.bus.plan = lambda _message: BusFault.UNAVAILABLE
    await made.sweep()
    for _ in range(3):
        await made.later(40)
        await made.sweep()
        assert made.outs() >= 1
    made.bus.plan = lambda _message: None
    await made.later(40)
    await made.sweep()
    assert made.outs() == 0
    await made.drain()
    assert made.state() == "Processed"


async def test_after_a_sweep_whose_sends_went_well_no_out_row_is_left() -> None:
    made = await running()
    await made.later(30)
    await made.sweep()
    assert made.outs() == 0


async def test_a_supervisor_that_dies_after_its_commit_is_followed_up_by_the_next() -> None:
    made = await running()
    await made.later(30)
    made.bus.plan = _die
    with pytest.raises(_Died):
        await made.sweep()
    made.bus.plan = lambda _message: None
    assert made.words()[-1] == "step reset"
    await made.later(61)
    other = kit(beside=made, instance="host-2")
    assert (await other.sweep())["sent again"] == 1
    assert "O-1/3/0" in made.ids(QUEUES.scheduler)
    await other.drain()
    assert made.state() == "Processed"


async def test_an_out_row_is_forgotten_where_the_order_is_gone() -> None:
    made = await running()
    gone = OutDue(made.clock.now(), "O-9", 3)
    made.store._due_of("O-9")[_due_key(gone)] = gone
    await made.sweep()
    assert made.outs() == 0
    assert made.bus.meter.messages == len(made.ids(SHOP)) + 2  # the wake and the request of O-1


async def test_when_the_instance_that_swept_is_killed_another_sweeps_at_the_second_firing() -> None:
    made = await running()
    other = kit(beside=made, instance="host-2")
    await made.later(30 - 5)
    assert (await made.run(made.supervisor.sweep())).led
    await made.later(7)  # it swept until a moment ago
    assert not (await made.run(other.supervisor.sweep())).led
    assert made.words()[-1] == "claimed"
    await made.later(10)
    swept = await made.run(other.supervisor.sweep())
    assert swept.led
    assert swept.done == {"step reset": 1}


async def test_a_lease_that_cannot_be_read_stops_no_sweep() -> None:
    made = await running()
    await made.later(30)
    made.store.fail_next("acquire_lease", StoreFault.UNAVAILABLE)
    assert await made.sweep() == {"step reset": 1}


async def test_a_sweep_that_takes_long_keeps_its_lease() -> None:
    made = kit()
    await many(made, 8)
    other = kit(beside=made, instance="host-2")
    load, led = made.store.load, []

    async def slow(order_id: str) -> Any:
        await made.clock.sleep(3)
        return await load(order_id)

    async def others() -> None:
        for _ in range(2):
            await made.clock.sleep(10)
            led.append((await other.supervisor.sweep()).led)

    made.store.load = slow  # type: ignore[method-assign]
    await made.run(asyncio.gather(made.supervisor.sweep(), others()))
    assert led == [False] * 2


async def test_two_supervisors_sweeping_at_once_reset_a_step_once() -> None:
    made = await running()
    other = kit(beside=made, instance="host-2")
    await made.later(30)

    async def always(*_: object) -> bool:
        return True

    made.store.acquire_lease = always  # type: ignore[method-assign,assignment]
    await made.run(asyncio.gather(made.supervisor.sweep(), other.supervisor.sweep()))
    assert made.words() == ["submitted", "claimed", "step reset"]
    assert made.order().steps[0].failure_count == 1
    assert made.ids(QUEUES.scheduler) == ["O-1/3/0"]


async def test_a_reply_that_wins_the_race_against_the_supervisor_counts() -> None:
    made = await running()
    await made.later(30)
    replied = iter([True])
    real = made.store.commit

    async def commit(change: Any) -> Any:
        if next(replied, False):
            reply = done()
            await made.scheduler.handle_reply(delivery(reply))
        return await real(change)

    made.store.commit = commit  # type: ignore[method-assign]
    await made.sweep()
    assert made.words() == ["submitted", "claimed", "step processed"]
    assert made.order().steps[0].failure_count == 0


async def test_one_bad_order_does_not_stop_the_sweep_of_the_others() -> None:
    made = kit()
    names = [f"O-{n}" for n in range(6)]
    for name in names:
        await made.submit(order(name))
    while made.bus.messages(QUEUES.scheduler):
        await made.step(QUEUES.scheduler)
    real = made.business.workflows.rules

    def rules_of(name: str, version: int) -> Rules:
        rules = real(name, version)
        calls.append(name)
        if len(calls) == 3:
            raise ZeroDivisionError("a bug that one order finds")
        return rules

    calls: list[str] = []
    while made.bus.take(QUEUES.agent("stock")):
        """Its agent dies."""
    excuses = QueueExcuses(made.context, made.business.workflows, callbacks=True)
    supervisor = Supervisor(made.context, rules_of, excuses, timedelta(minutes=1))
    await made.later(30)
    swept = await made.run(supervisor.sweep())
    assert swept.failed == 1
    assert swept.done == {"step reset": 5}


async def test_an_order_that_the_store_does_not_give_waits_for_the_next_sweep() -> None:
    made = await running()
    await made.later(30)
    made.store.fail_next("load", StoreFault.UNAVAILABLE)
    swept = await made.run(made.supervisor.sweep())
    assert (swept.failed, swept.done) == (1, {})
    assert await made.sweep() == {"step reset": 1}


async def test_a_lost_answer_to_its_commit_leaves_an_out_row_that_sends_the_wake() -> None:
    made = await running()
    await made.later(30)
    made.store.fail_next("commit", StoreFault.LOST_ANSWER)
    await made.sweep()
    assert made.words()[-1] == "step reset"
    assert made.ids(QUEUES.scheduler) == []
    await made.later(31)
    await made.sweep()
    assert "O-1/3/0" in made.ids(QUEUES.scheduler)


async def test_the_store_being_down_fails_the_sweep() -> None:
    made = await running()
    made.store.fail_next("due", *[StoreFault.UNAVAILABLE] * len(made.store.shards))
    with pytest.raises(StoreUnavailableError):
        await made.sweep()


async def test_an_order_of_an_unknown_workflow_is_postponed_with_an_alert_and_kept() -> None:
    made = await running()
    other = kit(Workflow("other", version=1, steps=CHAIN.steps), beside=made)
    before = made.order()
    await made.later(DEPLOY_TIME.total_seconds() + 30)
    assert await other.sweep() == {"postponed": 1}
    (alert,) = made.alerts()
    assert alert.kind == "not-runnable"
    assert "chain" in alert.text
    after = made.order()
    assert [s.process_state for s in after.steps] == [s.process_state for s in before.steps]
    assert after.steps[0].failure_count == 0
    await made.later(60)
    assert await other.sweep() == {}  # it does not stand before all others for ever
    await made.later(15 * 60)
    assert await made.sweep() == {"step reset": 1}  # it was deployed again
    await made.drain()
    assert made.state() == "Processed"


async def test_a_sweep_takes_no_more_from_a_shard_than_its_bound_and_the_oldest_first() -> None:
    made = kit()
    shard = made.store.shards[5]
    for number in range(SHARD_DUE_MAX + 30):
        row = OutDue(made.clock.now() + timedelta(milliseconds=number), f"gone-{number:03d}", 1)
        made.store._due[shard][f"{number:04d}"] = row
    await made.later(5)
    removed: list[str] = []

    async def remove(row: OutDue) -> None:
        removed.append(row.order_id)

    made.store.remove_due = remove  # type: ignore[method-assign,assignment]
    swept = await made.run(made.supervisor.sweep())
    assert swept.looked_at == SHARD_DUE_MAX
    assert sorted(removed) == [f"gone-{number:03d}" for number in range(SHARD_DUE_MAX)]


async def test_a_sweep_is_bounded_and_reads_every_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SWEEP_DUE_MAX", 6)
    monkeypatch.setattr(module, "SHARD_DUE_MAX", 3)
    made = kit()
    seen: Counter[str] = Counter()

    async def due(shard: str, _until: datetime, limit: int) -> list[Due]:
        seen[shard] += 1
        return [OutDue(made.clock.now(), f"gone-{shard}-{n}", 1) for n in range(limit)]

    made.store.due = due  # type: ignore[method-assign,assignment]
    for _ in range(40):
        swept = await made.run(made.supervisor.sweep())
        assert swept.looked_at == 6
        await made.later(10)  # the schedule of local.settings.json
    assert set(seen) == set(made.store.shards)


@pytest.mark.long
async def test_a_thousand_orders_due_at_once_are_all_helped_by_a_few_sweeps() -> None:
    made = kit(CARE)
    for number in range(1000):
        await made.submit(order(f"O-{number}", workflow="care"), f"m-{number}")
    while message := made.bus.take(QUEUES.scheduler):
        await made.scheduler.handle(delivery(message))
    made.agents_die()
    await made.later(30)
    sweeps = 0
    while (await made.run(made.supervisor.sweep())).looked_at:
        sweeps += 1
        made.bus.queues[QUEUES.scheduler].waiting.clear()  # a longer queue than is read excuses
    assert sweeps <= 3
    assert {tuple(made.states(f"O-{n}")) for n in range(1000)} == {("Pending", "Pending")}


async def test_the_supervisor_sends_no_requests_itself() -> None:
    made = await running()
    await expire_past_the_threshold(made)
    own = [e for e in made.journal() if e.by.startswith("supervisor")]
    assert own
    assert not any(isinstance(m, Request) for e in own for m in e.messages)


async def test_an_undo_without_answer_is_tried_again_then_an_error_with_an_alert() -> None:
    made = await running(alive=True)
    made.agents["stock"].then({"ok": 1}, *[TransientError("down")] * 10_000)
    made.agents["payment"].then(RefusedError("declined", "no"))
    await made.drain()
    words = made.words()
    assert words[-1] == "step undone"
    assert made.states() == ["Compensating", "Compensated"]
    for _ in range(2):
        await made.later(30)
        await made.sweep()
        await made.drain()
    assert made.words()[len(words) :] == ["undo reset", "claimed", "undo failed"]
    assert made.state() == "Error"
    assert [alert.kind for alert in made.alerts()] == ["undo-failed"]
    assert made.events()[-1].data.awaits == "operator"
    verbs = {(verb, call.key) for verb, call in made.agents["stock"].calls[1:]}
    assert verbs == {("undo", "O-1/reserve")}


async def test_a_wake_that_the_bus_lost_is_made_good_by_the_next_due_row() -> None:
    made = await running()
    await made.hand(done())
    made.bus.take(QUEUES.agent("payment"))  # the request of the second step is lost
    made.bus.take(QUEUES.agent("stock"))
    await made.later(30)
    await made.sweep()
    await made.drain()
    assert made.state() == "Processed"


async def test_clocks_apart_by_seconds_delay_and_never_break() -> None:
    made = await running()
    made.clock.set(made.clock.now() - timedelta(seconds=5))  # the supervisor's clock is behind
    assert await made.sweep() == {}
    made.clock.set(made.clock.now() + timedelta(seconds=38))  # and now ahead of the agent's
    assert await made.sweep() == {"step reset": 1}
    await made.hand(done(epoch=1))
    assert made.states()[0] == "Pending"
    await made.drain()
    assert made.state() == "Processed"


async def test_every_order_has_its_due_rows_in_its_own_shard() -> None:
    made = await running()
    for shard in made.store.shards:
        rows = await made.run(made.store.due(shard, made.clock.now() + timedelta(days=1), 10))
        assert bool(rows) is (shard == shard_of("O-1", len(made.store.shards)))


class _Died(BaseException):
    """The process ended here."""


def _die(_message: Message) -> BusFault | None:
    raise _Died


async def test_rows_of_a_full_response_queue_do_not_block_rows_that_are_due() -> None:
    made = kit()
    made.bus.declare("responses-full", length_max=0)
    names = [f"F-{n}" for n in range(SHARD_DUE_MAX * 20)]
    full = [one for one in names if shard_of(one, 16) == shard_of("O-1", 16)][:SHARD_DUE_MAX]
    for one in full:
        await made.submit(order(one, reply_queue="responses-full"), one)
    await made.later(60)
    await made.submit()
    made.bus.queues[QUEUES.scheduler].waiting.clear()
    for _ in range(10):
        await made.later(31)
        await made.sweep()
    assert "woken again" in made.words("O-1")
    assert made.outs() >= SHARD_DUE_MAX


async def test_a_sweep_does_not_try_a_full_response_queue_for_each_of_its_rows() -> None:
    """A sweep over hundreds of rows would be over long after its function's time."""
    made = kit()
    made.bus.declare("responses-full", length_max=0)
    for number in range(50):
        await made.submit(order(f"F-{number}", reply_queue="responses-full"), f"m-{number}")
    await made.later(60)
    tried = 0

    def count(message: Message) -> None:
        nonlocal tried
        tried += message.queue == "responses-full"

    made.bus.plan = count
    await made.sweep()
    assert 1 <= tried <= ROWS_AT_ONCE
    assert made.outs() == 50
    made.bus.queues["responses-full"].length_max = None
    await made.later(60)
    await made.sweep()
    assert made.outs() == 0
    assert len(made.bus.messages("responses-full")) == 50


async def test_a_full_queue_of_alerts_keeps_no_news_from_the_application() -> None:
    made = kit(duplicate_window=timedelta(minutes=10))
    made.agents["stock"].then(RefusedError("out-of-stock", "there is none left"))
    await made.submit(order(workflow="care"))
    made.bus.queues[QUEUES.alerts].length_max = 0
    await made.drain()
    assert made.told()[-2:] == ["failed", "step-completed"]
    assert made.outs() == 1
    made.bus.queues[QUEUES.alerts].length_max = None
    await made.later(60)
    await made.sweep()
    assert [one.kind for one in made.alerts()] == ["step-failed"]
    assert (made.outs(), made.told().count("failed")) == (0, 1)


async def test_orders_that_cannot_be_supervised_do_not_block_rows_that_are_due() -> None:
    """A deployment that changed a workflow under its version: no order of it can be read."""
    made = kit()
    names = [f"F-{n}" for n in range(SHARD_DUE_MAX * 40)]
    broken = [one for one in names if shard_of(one, 16) == shard_of("O-1", 16)]
    broken = broken[: 2 * SHARD_DUE_MAX]
    for one in broken:
        await made.submit(order(one), one)
    await made.later(1)
    await made.submit()
    made.bus.queues[QUEUES.scheduler].waiting.clear()
    load = made.store.load

    async def refuse(order_id: str) -> Any:
        if order_id in broken:
            raise StoreMismatchError("it is defined otherwise than when its orders were begun")
        return await load(order_id)

    made.store.load = refuse  # type: ignore[method-assign]
    await made.later(30)
    failed = 0
    for _ in range(3):
        failed += (await made.run(made.supervisor.sweep())).failed
        await made.later(10)
    assert "woken again" in made.words("O-1")
    assert failed == len(broken)
    made.store.load = load  # type: ignore[method-assign]
    await made.later(300)
    assert (await made.sweep())["woken again"] >= SHARD_DUE_MAX


async def test_an_operator_is_alerted_although_the_applications_queue_is_full() -> None:
    made = await running("care", alive=True)
    made.bus.queues[SHOP].length_max = 0
    made.agents["stock"].then(RefusedError("sold-out", "there is none left"))
    await made.drain()
    assert made.states() == ["Error", "Processed"]
    assert [alert.kind for alert in made.alerts()] == ["step-failed"]


async def many(made: Kit, number: int = 40) -> None:
    """Let the steps of many orders be past their CompleteBy, over all shards."""
    for one in range(number):
        await made.submit(order(f"O-{one}"), f"m-{one}")
        await made.step(QUEUES.scheduler)
    made.agents_die()
    await made.later(30)


async def test_a_due_row_that_cannot_be_read_stops_nothing_and_is_reported_once() -> None:
    made = kit(duplicate_window=timedelta(minutes=10))
    await many(made)
    start = datetime.min.replace(tzinfo=UTC)
    for shard in made.store.shards:
        made.store._due[shard]["broken"] = OtherDue(start, "", f"due|{shard}|by hand")
    swept = await made.run(made.supervisor.sweep())
    assert swept.done == {"step reset": 40}
    assert swept.failed == len(made.store.shards)
    assert swept.oldest is not None
    assert swept.oldest > start
    for _ in range(5):
        await made.later(301)
        await made.sweep()
    unreadable = [alert for alert in made.alerts() if alert.kind == "unreadable"]
    (first, *_), scopes = unreadable, {alert.scope for alert in unreadable}
    assert (first.scope, len(scopes)) == ("supervisor, ValueError", 1)
    assert "and skips it" in first.text
    assert len(unreadable) <= 2  # it lasts for 25 minutes


@pytest.mark.parametrize("broken", [False, True])
async def test_a_shard_that_cannot_be_read_does_not_stop_the_others(broken: bool) -> None:
    made = kit()
    await many(made)
    away = shard_of("O-1", len(made.store.shards))
    due = made.store.due

    async def throttled(shard: str, until: datetime, limit: int) -> list[Due]:
        if shard == away:
            raise ValueError("no page") if broken else StoreUnavailableError("throttled")
        return await due(shard, until, limit)

    made.store.due = throttled  # type: ignore[method-assign]
    swept = await made.run(made.supervisor.sweep())
    there = [n for n in range(40) if shard_of(f"O-{n}", len(made.store.shards)) != away]
    assert swept.done == {"step reset": len(there)}
    assert [alert.kind for alert in made.alerts()] == ["unreadable"] * broken
    made.store.due = due  # type: ignore[method-assign]
    assert await made.sweep() == {"step reset": 40 - len(there)}


async def test_a_sweep_ends_with_its_functions_time_and_the_next_one_goes_on() -> None:
    made = kit()
    await many(made, 64)
    load = made.store.load

    async def slow(order_id: str) -> Any:
        await made.clock.sleep(20)
        return await load(order_id)

    made.store.load = slow  # type: ignore[method-assign]
    reset, sweeps = 0, 0
    while reset < 64:
        began = made.clock.now()
        reset += (await made.sweep()).get("step reset", 0)
        assert made.clock.now() - began < timedelta(minutes=2)
        sweeps += 1
    assert 3 < sweeps < 40
    assert {made.order(f"O-{n}").steps[0].failure_count for n in range(64)} == {1}


async def test_a_sweep_ends_early_when_the_bus_does_not_answer_and_skips_no_shard() -> None:
    made = kit()
    await many(made, 64)
    answers = made.bus.send

    async def hangs(_messages: object) -> None:
        await made.clock.sleep(10)
        raise BusUnavailableError("no answer within 10 s")

    made.bus.send = hangs  # type: ignore[method-assign,assignment]
    for _ in range(20):
        began = made.clock.now()
        await made.sweep()
        assert made.clock.now() - began <= timedelta(seconds=20)
    seen = {n for n in range(64) if made.order(f"O-{n}").steps[0].failure_count}
    assert {shard_of(f"O-{n}", 16) for n in seen} == {shard_of(f"O-{n}", 16) for n in range(64)}
    made.bus.send = answers  # type: ignore[method-assign]
    for _ in range(4):
        await made.later(31)
        await made.sweep()
    await made.drain()
    assert {made.state(f"O-{n}") for n in range(64)} == {"Processed"}
