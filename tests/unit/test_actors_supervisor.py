"""The supervisor: what has expired is found and recovered; one order's trouble stays its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from sas.actors import supervisor as module
from sas.actors.supervisor import BUS_PAUSE, ROWS_AT_ONCE, SHARD_DUE_MAX, Supervisor
from sas.domain.change import OUT_AGAIN_AFTER, Due, OtherDue, OutDue, StepDue
from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import shard_of
from sas.domain.messages import Request
from sas.domain.workflow import OnFailure, Rules, Workflow
from sas.features.incidents.board import active_incidents
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
from tests.unit.actors_kit import (
    CHAIN,
    QUEUES,
    SHOP,
    Kit,
    done,
    kit,
    order,
    running,
)


async def test_a_step_past_its_complete_by_is_counted_unlocked_and_woken() -> None:
    system = await running()
    await system.later(30)
    assert await system.sweep() == {"step reset": 1}
    step = system.order().steps[0]
    assert system.states() == ["Pending", "Pending"]
    assert step.failure_count == system.order().failure_count == 1
    assert step.locked_by is None
    assert system.journal()[-1].by == "supervisor host-1"
    assert system.journal()[-1].cause is None
    assert system.ids(QUEUES.scheduler) == ["O-1/3/0"]
    assert system.alerts() == []


async def test_a_step_that_was_reset_is_run_again_under_a_new_epoch_and_the_old_key() -> None:
    system = await running()
    system.bus.take(QUEUES.agent("stock"))  # the agent dies with it
    await system.later(30)
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"
    assert system.order().steps[0].epoch == 2
    assert system.order().steps[0].failure_count == 0
    assert system.agents["stock"].calls[0][1].key == "O-1/reserve"


async def expire_past_the_threshold(system: Kit) -> list[dict[str, int]]:
    sweeps = []
    for _ in range(2):  # failures_max is 1
        system.agents_die()
        await system.later(30)
        sweeps.append(await system.sweep())
        for _ in system.bus.messages(QUEUES.scheduler):
            await system.step(QUEUES.scheduler)
    return sweeps


async def test_past_the_threshold_a_workflow_that_holds_fails_with_an_alert() -> None:
    system = await running("care")
    await system.hand(done(step=1))
    sweeps = await expire_past_the_threshold(system)
    assert sweeps == [{"step reset": 1}, {"step failed": 1}]
    assert system.states() == ["Error", "Processed"]
    step = system.order().steps[0]
    assert step.failure_count == 2
    assert step.locked_by is None
    assert step.error is not None
    assert step.error.code == "timed-out"
    assert [(a.kind, a.step) for a in system.alerts()] == [("step-failed", "reserve")]
    assert system.notices()[-1] == "failed"


async def test_past_the_threshold_a_workflow_that_undoes_is_undone() -> None:
    system = await running()
    sweeps = await expire_past_the_threshold(system)
    assert sweeps == [{"step reset": 1}, {"step failed, undo decided": 1}]
    for message in system.taken(QUEUES.agent("stock")):
        if b'"undo"' in message.body:
            await system.hand(message)
    await system.drain()
    assert system.state() == "Compensated"
    assert system.notices() == ["received", "failed", "undone"]
    assert [verb for verb, _ in system.agents["stock"].calls] == ["undo"]
    assert system.agents["payment"].calls == []


async def test_a_pending_step_nobody_picked_up_is_woken_again_and_never_failed() -> None:
    system = kit()
    await system.submit()
    system.bus.take(QUEUES.scheduler)
    for _ in range(12):  # a scheduler outage of over an hour
        await system.later(400)
        await system.sweep()
        assert system.states() == ["Pending", "Pending"]
        assert system.order().steps[0].failure_count == 0
    assert set(system.words()) == {"submitted", "woken again"}
    kinds = Counter(alert.kind for alert in system.alerts())
    assert set(kinds) == {"not-picked-up"}
    ids = system.ids(QUEUES.scheduler)
    assert len(ids) == len(set(ids)) > 3
    await system.drain()
    assert system.state() == "Processed"


async def test_what_a_sweep_wants_sent_has_an_out_row_until_it_is_sent() -> None:
    system = await running()
    await system.later(30)
    system.bus.plan = lambda _message: BusFault.UNAVAILABLE
    await system.sweep()
    assert system.words()[-1] == "step reset"
    assert system.ids(QUEUES.scheduler) == []
    assert system.outs() == 1
    await system.later(29)
    system.bus.plan = lambda _message: None
    assert await system.sweep() == {}
    await system.later(2)
    assert (await system.sweep())["sent again"] == 1
    assert "O-1/3/0" in system.ids(QUEUES.scheduler)
    assert system.outs() == 0


async def test_what_a_sweep_wants_sent_goes_out_together_once_every_queue_takes_it() -> None:
    system = kit(replace(CHAIN, deadline=timedelta(seconds=5), on_failure=OnFailure.UNDO))
    await system.submit()
    await system.later(5)
    system.bus.cut(QUEUES.scheduler)
    await system.sweep()
    assert (system.words()[-1], system.notices()) == ("overdue, undo decided", ["received"])
    system.bus.mend(QUEUES.scheduler)
    await system.later(OUT_AGAIN_AFTER.total_seconds())
    await system.sweep()
    assert system.notices().count("failed") == 1


async def test_a_supervisor_that_dies_after_its_commit_is_followed_up_by_the_next() -> None:
    system = await running()
    await system.later(30)
    system.bus.plan = _die
    with pytest.raises(_Died):
        await system.sweep()
    system.bus.plan = lambda _message: None
    assert system.words()[-1] == "step reset"
    await system.later(61)
    other = kit(beside=system, instance="host-2")
    assert (await other.sweep())["sent again"] == 1
    assert "O-1/3/0" in system.ids(QUEUES.scheduler)
    await other.drain()
    assert system.state() == "Processed"


async def test_an_out_row_is_forgotten_where_the_order_is_gone() -> None:
    system = await running()
    orphan = OutDue(system.clock.now(), "O-9", 3)
    system.store._due_of("O-9")[_due_key(orphan)] = orphan
    await system.sweep()
    assert system.outs() == 0
    assert system.bus.meter.messages == len(system.ids(SHOP)) + 2  # the wake and the request of O-1


async def test_when_the_instance_that_swept_is_killed_another_sweeps_at_the_second_firing() -> None:
    system = await running()
    other = kit(beside=system, instance="host-2")
    await system.later(30 - 5)
    assert (await system.run(system.supervisor.sweep())).led
    await system.later(7)  # it swept until a moment ago
    assert not (await system.run(other.supervisor.sweep())).led
    assert system.words()[-1] == "claimed"
    await system.later(10)
    report = await system.run(other.supervisor.sweep())
    assert report.led
    assert report.done == {"step reset": 1}


async def test_a_sweep_that_takes_long_keeps_its_lease() -> None:
    system = kit()
    await many(system, 8)
    other = kit(beside=system, instance="host-2")
    load, leads = system.store.load, []

    async def slow(order_id: str) -> Any:
        await system.clock.sleep(3)
        return await load(order_id)

    async def others() -> None:
        for _ in range(2):
            await system.clock.sleep(10)
            leads.append((await other.supervisor.sweep()).led)

    system.store.load = slow  # type: ignore[method-assign]
    await system.run(asyncio.gather(system.supervisor.sweep(), others()))
    assert leads == [False] * 2


async def test_two_supervisors_sweeping_at_once_reset_a_step_once() -> None:
    system = await running()
    other = kit(beside=system, instance="host-2")
    await system.later(30)

    async def always(*_: object) -> bool:
        return True

    system.store.acquire_lease = always  # type: ignore[method-assign,assignment]
    await system.run(asyncio.gather(system.supervisor.sweep(), other.supervisor.sweep()))
    assert system.words() == ["submitted", "claimed", "step reset"]
    assert system.order().steps[0].failure_count == 1
    assert system.ids(QUEUES.scheduler) == ["O-1/3/0"]


async def test_one_bad_order_does_not_stop_the_sweep_of_the_others() -> None:
    system = kit()
    for number in range(6):
        await system.submit(order(f"O-{number}"))
        await system.step(QUEUES.scheduler)
    system.agents_die()
    original = system.business.workflows.rules

    def rules_of(name: str, version: int) -> Rules:
        rules = original(name, version)
        calls.append(name)
        if len(calls) == 3:
            raise ZeroDivisionError("a bug that one order finds")
        return rules

    calls: list[str] = []
    excuses = QueueExcuses(system.context, system.business.workflows, timedelta(minutes=5))
    supervisor = Supervisor(
        system.context,
        rules_of,
        excuses,
        timedelta(minutes=1),
        held_messages=system.supervisor._held,
    )
    await system.later(30)
    report = await system.run(supervisor.sweep())
    assert report.failed == 1
    assert report.done == {"step reset": 5}


async def test_an_order_that_the_store_does_not_give_waits_for_the_next_sweep() -> None:
    system = await running()
    await system.later(30)
    system.store.fail_next("load", StoreFault.UNAVAILABLE)
    report = await system.run(system.supervisor.sweep())
    assert (report.failed, report.done) == (1, {})
    assert await system.sweep() == {"step reset": 1}


async def test_the_store_being_down_fails_the_sweep() -> None:
    system = await running()
    system.store.fail_next("due", *[StoreFault.UNAVAILABLE] * len(system.store.shards))
    with pytest.raises(StoreUnavailableError):
        await system.sweep()


async def test_an_order_of_an_unknown_workflow_is_postponed_with_an_alert_and_kept() -> None:
    system = await running()
    other = kit(Workflow("other", version=1, steps=CHAIN.steps), beside=system)
    before = system.order()
    await system.later(DEPLOY_TIME.total_seconds() + 30)
    assert await other.sweep() == {"postponed": 1}
    (alert,) = system.alerts()
    assert alert.kind == "not-runnable"
    assert "chain" in alert.text
    after = system.order()
    assert [s.process_state for s in after.steps] == [s.process_state for s in before.steps]
    assert after.steps[0].failure_count == 0
    await system.later(60)
    assert await other.sweep() == {}  # it does not stand before all others for ever
    await system.later(15 * 60)
    assert await system.sweep() == {"step reset": 1}  # it was deployed again
    await system.drain()
    assert system.state() == "Processed"


async def test_a_deadline_that_passes_while_its_workflow_is_missing_is_reported_once() -> None:
    system = kit(replace(CHAIN, deadline=timedelta(seconds=5)))
    await system.submit()
    other = kit(Workflow("other", version=1, steps=CHAIN.steps), beside=system)
    await system.later(DEPLOY_TIME.total_seconds() - 1)
    report = await system.run(other.supervisor.sweep())
    assert (report.done, report.left_to_others) == ({}, 2)
    await system.later(DEPLOY_TIME.total_seconds())
    assert await other.sweep() == {"postponed": 2}
    assert sorted(alert.kind for alert in system.alerts()) == ["not-runnable", "overdue"]
    await system.later(60)
    assert await other.sweep() == {}


async def test_a_due_row_of_a_step_that_is_not_there_changes_nothing() -> None:
    system = await running()
    before = system.order()
    row = StepDue(at=system.clock.now(), order_id="O-1", step=9, epoch=1)
    system.store._due[system.store.shards[0]]["gone"] = row
    report = await system.run(system.supervisor.sweep())
    assert (report.done, report.failed) == ({}, 0)
    assert system.order() == before


async def test_a_sweep_takes_no_more_from_a_shard_than_its_bound_and_the_oldest_first() -> None:
    system = kit()
    shard = system.store.shards[5]
    for number in range(SHARD_DUE_MAX + 30):
        row = OutDue(system.clock.now() + timedelta(milliseconds=number), f"gone-{number:03d}", 1)
        system.store._due[shard][f"{number:04d}"] = row
    await system.later(5)
    removed: list[str] = []

    async def remove(row: OutDue) -> None:
        removed.append(row.order_id)

    system.store.remove_due = remove  # type: ignore[method-assign,assignment]
    report = await system.run(system.supervisor.sweep())
    assert (report.looked_at, report.shards_read) == (SHARD_DUE_MAX, len(system.store.shards))
    assert sorted(removed) == [f"gone-{number:03d}" for number in range(SHARD_DUE_MAX)]


async def test_a_sweep_is_bounded_and_reads_every_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SWEEP_DUE_MAX", 6)
    monkeypatch.setattr(module, "SHARD_DUE_MAX", 3)
    system = kit()
    reads: Counter[str] = Counter()

    async def due(shard: str, _until: datetime, limit: int) -> list[Due]:
        reads[shard] += 1
        return [OutDue(system.clock.now(), f"gone-{shard}-{n}", 1) for n in range(limit)]

    system.store.due = due  # type: ignore[method-assign,assignment]
    for _ in range(40):
        report = await system.run(system.supervisor.sweep())
        assert report.looked_at == 6
        await system.later(10)  # the schedule of local.settings.json
    assert set(reads) == set(system.store.shards)


async def test_the_supervisor_sends_no_requests_itself() -> None:
    system = await running()
    await expire_past_the_threshold(system)
    entries = [e for e in system.journal() if e.by.startswith("supervisor")]
    assert entries
    assert not any(isinstance(m, Request) for e in entries for m in e.messages)


async def test_an_undo_without_answer_is_tried_again_then_an_error_with_an_alert() -> None:
    system = await running(alive=True)
    system.agents["stock"].then({"ok": 1}, *[TransientError("down")] * 10_000)
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.drain()
    words = system.words()
    assert words[-1] == "step undone"
    assert system.states() == ["Compensating", "Compensated"]
    for _ in range(2):
        await system.later(30)
        await system.sweep()
        await system.drain()
    assert system.words()[len(words) :] == ["undo reset", "claimed", "undo failed"]
    assert system.state() == "Error"
    assert [alert.kind for alert in system.alerts()] == ["undo-failed"]
    assert system.events()[-1].data.awaits == "operator"
    verbs = {(verb, call.key) for verb, call in system.agents["stock"].calls[1:]}
    assert verbs == {("undo", "O-1/reserve")}


async def test_clocks_apart_by_seconds_delay_and_never_break() -> None:
    system = await running()
    system.clock.set(system.clock.now() - timedelta(seconds=5))  # the supervisor's clock is behind
    assert await system.sweep() == {}
    system.clock.set(system.clock.now() + timedelta(seconds=38))  # and now ahead of the agent's
    assert await system.sweep() == {"step reset": 1}
    await system.hand(done(epoch=1))
    assert system.states()[0] == "Pending"
    await system.drain()
    assert system.state() == "Processed"


async def test_every_order_has_its_due_rows_in_its_own_shard() -> None:
    system = await running()
    for shard in system.store.shards:
        rows = await system.run(system.store.due(shard, system.clock.now() + timedelta(days=1), 10))
        assert bool(rows) is (shard == shard_of("O-1", len(system.store.shards)))


class _Died(BaseException):
    """The process ended here."""


def _die(_message: Message) -> BusFault | None:
    raise _Died


async def test_rows_of_a_full_response_queue_do_not_block_rows_that_are_due() -> None:
    system = kit()
    system.bus.declare("responses-full", length_max=0)
    names = [f"F-{n}" for n in range(SHARD_DUE_MAX * 20)]
    same_shard = [name for name in names if shard_of(name, 16) == shard_of("O-1", 16)]
    for order_id in same_shard[:SHARD_DUE_MAX]:
        await system.submit(order(order_id, reply_queue="responses-full"), order_id)
    await system.later(60)
    await system.submit()
    system.bus.queues[QUEUES.scheduler].waiting.clear()
    for _ in range(10):
        await system.later(31)
        await system.sweep()
    assert "woken again" in system.words("O-1")
    assert system.outs() >= SHARD_DUE_MAX


async def test_a_sweep_does_not_try_a_full_response_queue_for_each_of_its_rows() -> None:
    """A sweep over hundreds of rows would be over long after its function's time."""
    system = kit()
    system.bus.declare("responses-full", length_max=0)
    for number in range(50):
        await system.submit(order(f"F-{number}", reply_queue="responses-full"), f"m-{number}")
    await system.later(60)
    attempts = 0

    def count(message: Message) -> None:
        nonlocal attempts
        attempts += message.queue == "responses-full"

    system.bus.plan = count
    await system.sweep()
    assert 1 <= attempts <= ROWS_AT_ONCE
    assert system.outs() == 50
    system.bus.queues["responses-full"].length_max = None
    await system.later(60)
    await system.sweep()
    assert system.outs() == 0
    assert len(system.bus.messages("responses-full")) == 50


async def test_a_full_queue_of_alerts_keeps_no_news_from_the_application() -> None:
    system = kit(duplicate_window=timedelta(minutes=10))
    system.agents["stock"].then(RefusedError("out-of-stock", "there is none left"))
    await system.submit(order(workflow="care"))
    system.bus.queues[QUEUES.alerts].length_max = 0
    await system.drain()
    assert system.notices()[-2:] == ["failed", "step-completed"]
    assert system.outs() == 1
    system.bus.queues[QUEUES.alerts].length_max = None
    await system.later(60)
    await system.sweep()
    assert [alert.kind for alert in system.alerts()] == ["step-failed"]
    assert (system.outs(), system.notices().count("failed")) == (0, 1)


async def test_orders_that_cannot_be_supervised_do_not_block_rows_that_are_due() -> None:
    """A deployment that changed a workflow under its version: no order of it can be read."""
    system = kit()
    names = [f"F-{n}" for n in range(SHARD_DUE_MAX * 40)]
    broken = [order_id for order_id in names if shard_of(order_id, 16) == shard_of("O-1", 16)]
    broken = broken[: 2 * SHARD_DUE_MAX]
    for order_id in broken:
        await system.submit(order(order_id), order_id)
    await system.later(1)
    await system.submit()
    system.bus.queues[QUEUES.scheduler].waiting.clear()
    load = system.store.load

    async def refuse(order_id: str) -> Any:
        if order_id in broken:
            raise StoreMismatchError("it is defined otherwise than when its orders were begun")
        return await load(order_id)

    system.store.load = refuse  # type: ignore[method-assign]
    await system.later(30)
    failed = 0
    for _ in range(3):
        failed += (await system.run(system.supervisor.sweep())).failed
        await system.later(10)
    assert "woken again" in system.words("O-1")
    assert failed == len(broken)
    (incident,) = (await active_incidents(system.store).all()).values()
    assert incident.value is not None
    assert incident.value.times == failed
    system.store.load = load  # type: ignore[method-assign]
    await system.later(300)
    assert (await system.sweep())["woken again"] >= SHARD_DUE_MAX


async def test_an_operator_is_alerted_although_the_applications_queue_is_full() -> None:
    system = await running("care", alive=True)
    system.bus.queues[SHOP].length_max = 0
    system.agents["stock"].then(RefusedError("sold-out", "there is none left"))
    await system.drain()
    assert system.states() == ["Error", "Processed"]
    assert [alert.kind for alert in system.alerts()] == ["step-failed"]


async def many(system: Kit, number: int = 40, beside: Sequence[str] = ()) -> None:
    """Let the steps of many orders be past their CompleteBy, over all shards."""
    for order_id in (*(f"O-{index}" for index in range(number)), *beside):
        await system.submit(order(order_id), f"m-{order_id}")
        await system.step(QUEUES.scheduler)
    system.agents_die()
    await system.later(30)


async def test_a_due_row_that_cannot_be_read_stops_nothing_and_is_reported_once() -> None:
    system = kit(duplicate_window=timedelta(minutes=10))
    await many(system)
    start = datetime.min.replace(tzinfo=UTC)
    for shard in system.store.shards:
        system.store._due[shard]["broken"] = OtherDue(start, "", f"due|{shard}|by hand")
    report = await system.run(system.supervisor.sweep())
    assert report.done == {"step reset": 40}
    assert report.failed == len(system.store.shards)
    assert report.oldest is not None
    assert report.oldest > start
    for _ in range(5):
        await system.later(301)
        await system.sweep()
    unreadable = [alert for alert in system.alerts() if alert.kind == "unreadable"]
    (first, *_), scopes = unreadable, {alert.scope for alert in unreadable}
    assert (first.scope, len(scopes)) == ("supervisor, ValueError", 1)
    assert "and skips it" in first.text
    assert "|by hand" in first.text, "it names the rows"
    assert len(unreadable) <= 2  # it lasts for 25 minutes


@pytest.mark.parametrize("broken", [False, True])
async def test_a_shard_that_cannot_be_read_does_not_stop_the_others(broken: bool) -> None:
    system = kit()
    await many(system)
    broken_shard = shard_of("O-1", len(system.store.shards))
    due = system.store.due

    async def throttled(shard: str, until: datetime, limit: int) -> list[Due]:
        if shard == broken_shard:
            raise ValueError("no page") if broken else StoreUnavailableError("throttled")
        return await due(shard, until, limit)

    system.store.due = throttled  # type: ignore[method-assign]
    report = await system.run(system.supervisor.sweep())
    numbers = [n for n in range(40) if shard_of(f"O-{n}", len(system.store.shards)) != broken_shard]
    assert report.done == {"step reset": len(numbers)}
    assert [alert.kind for alert in system.alerts()] == ["unreadable"] * broken
    system.store.due = due  # type: ignore[method-assign]
    assert await system.sweep() == {"step reset": 40 - len(numbers)}


async def test_a_sweep_ends_with_its_functions_time_and_the_next_one_goes_on() -> None:
    system = kit()
    crowd = [f"N-{n}" for n in range(999) if shard_of(f"N-{n}", 16) == shard_of("O-0", 16)][:40]
    await many(system, 24, crowd)
    load = system.store.load

    async def slow(order_id: str) -> Any:
        await system.clock.sleep(20)
        return await load(order_id)

    system.store.load = slow  # type: ignore[method-assign]
    resets: list[int] = []
    for _ in range(40):
        start = system.clock.now()
        resets.append((await system.sweep()).get("step reset", 0))
        assert system.clock.now() - start < timedelta(minutes=2)
        if sum(resets) == 64:
            break
    assert sum(resets) == 64
    assert len(resets) > 3
    ids = system.store.orders
    assert {system.order(order_id).steps[0].failure_count for order_id in ids} == {1}


async def test_a_bus_that_answers_now_and_then_does_not_end_a_sweep() -> None:
    system = kit()
    await many(system, 64)
    number = count()
    system.bus.plan = lambda _message: BusFault.UNAVAILABLE if next(number) % 3 else None
    report = await system.run(system.supervisor.sweep())
    assert (report.failed, report.done) == (42, {"step reset": 22})


async def test_a_row_whose_message_cannot_be_sent_rests_before_it_is_sent_again() -> None:
    system = await running()
    await system.later(30)
    system.bus.plan = lambda _message: BusFault.UNAVAILABLE
    for seconds in (0, OUT_AGAIN_AFTER.total_seconds()):
        await system.later(seconds)
        await system.sweep()
    system.bus.plan = lambda _message: None
    await system.sweep()
    assert system.ids(QUEUES.scheduler) == []
    await system.later(BUS_PAUSE.total_seconds())
    await system.sweep()
    assert system.ids(QUEUES.scheduler) == ["O-1/3/0"]


async def test_a_sweep_measures_by_how_much_the_oldest_row_of_all_shards_is_late() -> None:
    system = kit()
    for number in range(5):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.later(1)
    oldest = system.order("O-0").steps[0].complete_by
    await system.later(60)
    assert (await system.run(system.supervisor.sweep())).oldest == oldest


async def test_a_sweep_ends_early_when_the_bus_does_not_answer_and_skips_no_shard() -> None:
    system = kit()
    await many(system, 64)
    answers = system.bus.send

    async def hangs(_messages: object) -> None:
        await system.clock.sleep(10)
        raise BusUnavailableError("no answer within 10 s")

    system.bus.send = hangs  # type: ignore[method-assign,assignment]
    for _ in range(20):
        start = system.clock.now()
        await system.sweep()
        assert system.clock.now() - start <= timedelta(seconds=20)
    numbers = {n for n in range(64) if system.order(f"O-{n}").steps[0].failure_count}
    assert {shard_of(f"O-{n}", 16) for n in numbers} == {shard_of(f"O-{n}", 16) for n in range(64)}
    system.bus.send = answers  # type: ignore[method-assign]
    for _ in range(4):
        await system.later(31)
        await system.sweep()
    await system.drain()
    assert {system.state(f"O-{n}") for n in range(64)} == {"Processed"}
