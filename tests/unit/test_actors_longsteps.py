"""Steps that outlast a call: looked at again and again, given time, silent past it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.domain.workflow import TIME_ALLOWED_MAX, OnFailure, Step, Undo, Workflow
from sas.features.call_limit import lease_name
from sas.ports import AwaitCallback, BusUnavailableError, Message, RefusedError, StillRunning
from sas.testing.bus import BusFault
from sas.testing.clock import START
from tests.unit.actors_kit import ALLOWED, QUEUES, Kit, agent_actor, command, kit

STOCK = QUEUES.agent("stock")
HOUR = timedelta(hours=1)


async def dispatched(*script: Any, **policy: Any) -> Kit:
    """Return a kit whose first step is with its agent, which plays the script."""
    system = kit(**policy)
    await system.submit()
    await system.step(QUEUES.scheduler)
    system.agents["stock"].then(*script)
    return system


def requests_put_back(system: Kit) -> list[Message]:
    return [queued.message for queued in system.bus.queues[STOCK].waiting]


def looked(system: Kit) -> int:
    return len(system.agents["stock"].calls)


async def test_a_step_of_hours_is_looked_at_again_until_it_ends_with_one_key() -> None:
    system = await dispatched(StillRunning(HOUR), StillRunning(HOUR, "nearly"), {"at": "the door"})
    await system.drain()
    assert system.states() == ["Processing", "Pending"]
    assert system.bus.messages(STOCK) == []  # nothing is held meanwhile
    for _ in range(2):
        await system.later(3600)
        assert await system.sweep() == {}
        await system.drain()
    assert system.state() == "Processed"
    assert [call.key for _, call in system.agents["stock"].calls] == ["O-1/reserve"] * 3
    assert system.order().steps[0].failure_count == 0
    assert system.agents["payment"].calls[0][1].results == {"reserve": {"at": "the door"}}
    assert system.words()[1:4] == ["claimed", "progress", "progress"]


async def test_it_is_given_the_time_until_its_next_look_and_its_time_allowed_from_then() -> None:
    system = await dispatched(StillRunning(HOUR, "on the road"), {})
    await system.drain()
    step = system.order().steps[0]
    assert step.complete_by == START + HOUR + ALLOWED
    assert step.call.called_until == START + HOUR + ALLOWED
    assert (step.note, step.epoch) == ("on the road", 1)
    await system.later(3600)
    await system.drain()
    assert system.agents["stock"].calls[1][1].complete_by == START + HOUR + ALLOWED
    assert system.order().steps[0].note is None


async def test_a_look_that_was_put_back_comes_at_its_time_and_outlives_its_complete_by() -> None:
    system = await dispatched(StillRunning(HOUR))
    await system.step(STOCK)
    (message,) = requests_put_back(system)
    assert message.scheduled_at == START + HOUR
    assert message.time_to_live is None
    request = internal.decode(message.body, RequestMessage)
    assert (request.checks, request.complete_by) == (1, START + HOUR + ALLOWED)


async def test_a_redelivery_sends_and_puts_back_the_same_under_the_same_ids() -> None:
    system = await dispatched(*[StillRunning(HOUR)] * 3)
    message = system.bus.take(STOCK)
    assert message is not None
    system.bus.fail_next(BusFault.LOST_ANSWER)
    with pytest.raises(BusUnavailableError):
        await system.hand(message)
    await system.hand(message)
    assert system.ids(QUEUES.scheduler) == ["O-1/00/do/1/0"] * 2
    (copy,) = requests_put_back(system)
    await system.hand(message)
    message_ids = [request.message_id for request in requests_put_back(system)]
    assert message_ids == [copy.message_id] * 2


async def test_a_look_whose_grant_is_under_way_waits_for_it_and_makes_no_call() -> None:
    system = await dispatched(StillRunning(HOUR), {"ok": 1})
    await system.step(STOCK)
    await system.later(3600)
    for _ in range(3):
        await system.step(STOCK)  # the progress message was not read yet
        await system.later(3)
    assert looked(system) == 1
    await system.step(QUEUES.scheduler)
    assert system.order().steps[0].complete_by == START + HOUR + ALLOWED
    await system.drain()
    assert system.state() == "Processed"
    assert system.order().steps[0].epoch == 1


async def test_a_look_whose_progress_was_lost_falls_silent_and_the_step_is_tried_anew() -> None:
    system = await dispatched(StillRunning(HOUR), {"ok": 1})
    await system.step(STOCK)
    assert system.bus.take(QUEUES.scheduler) is not None  # lost
    await system.later(40)
    assert await system.sweep() == {"step reset": 1}
    await system.drain()
    assert system.state() == "Processed"
    assert system.order().steps[0].epoch == 2
    calls = looked(system)
    await system.later(3600)
    await system.drain()
    assert looked(system) == calls
    assert {call.key for _, call in system.agents["stock"].calls} == {"O-1/reserve"}


async def test_progress_that_comes_after_the_reset_gives_the_old_dispatch_no_time() -> None:
    system = await dispatched(StillRunning(HOUR), {"ok": 1})
    await system.step(STOCK)
    progress = system.bus.take(QUEUES.scheduler)
    assert progress is not None
    await system.later(40)
    await system.sweep()
    await system.step(QUEUES.scheduler)
    before = system.order()
    await system.hand(progress)
    assert system.order() == before


async def test_a_look_that_finds_no_slot_in_all_its_time_counts_a_failure() -> None:
    """Its call went out before, so it may have had its effect."""
    system = await dispatched(StillRunning(HOUR))
    system.actors["stock"] = agent_actor(system.context, "stock", system.agents["stock"], limit=1)
    await system.drain()
    taken_until = system.clock.now() + 2 * HOUR
    slot = lease_name("stock", 0)
    assert await system.store.acquire_lease(slot, "another", taken_until, system.clock.now())
    await system.later(3600)
    for _ in range(40):
        await system.drain()
        await system.later(1)
    await system.sweep()
    assert (looked(system), system.order().steps[0].failure_count) == (1, 1)


async def test_often_looked_at_it_asks_for_time_only_when_little_is_left() -> None:
    system = await dispatched(*[StillRunning(timedelta(seconds=1), "going")] * 120, {"ok": 1})
    await system.drain()
    for _ in range(130):
        await system.later(1)
        await system.drain()
    assert looked(system) == 121
    assert system.state() == "Processed"
    entries = [entry for entry in system.journal() if entry.what == "progress"]
    assert 120 / 30 <= len(entries) <= 120 / 20 + 1


async def test_an_undo_may_take_its_time_too() -> None:
    system = await dispatched({"ok": 1}, StillRunning(HOUR, "on its way back"), None)
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.drain()
    assert system.states() == ["Compensating", "Compensated"]
    assert system.order().steps[0].note == "on its way back"
    await system.later(3600)
    await system.drain()
    assert system.state() == "Compensated"
    assert [verb for verb, _ in system.agents["stock"].calls] == ["do", "undo", "undo"]


async def test_a_step_that_awaits_a_callback_is_not_looked_at_and_fails_when_none_comes() -> None:
    system = await dispatched(AwaitCallback(HOUR, "for Ann to approve"), {"ok": 1})
    await system.drain()
    assert requests_put_back(system) == []
    step = system.order().steps[0]
    assert (step.complete_by, step.note) == (START + HOUR, "for Ann to approve")
    assert step.call.called_until == START + ALLOWED  # its undo need not wait: no call is out
    await system.later(3601)
    assert await system.sweep() == {"step failed, undo decided": 1}
    await system.drain()
    assert system.state() == "Compensated"


async def test_a_look_that_comes_twice_makes_no_call_once_a_callback_is_awaited() -> None:
    system = await dispatched(StillRunning(HOUR), AwaitCallback(HOUR), {"ok": 1})
    await system.drain()
    (look,) = requests_put_back(system)
    await system.later(3600)
    await system.drain()
    assert looked(system) == 2
    await system.later(40)
    await system.hand(look)
    assert looked(system) == 2
    assert system.states()[0] == "Processing"


async def edit(system: Kit, *script: Any) -> None:
    """Resubmit the step with other input. Its agent plays the script."""
    system.agents["stock"].calls.clear()
    system.agents["stock"].then(*script)
    message = command("resubmit", system.order().seq, f"w-{system.order().seq}")
    body = message.body.replace(b'"seq"', b'"input":{"lines":[]},"seq"')
    await system.hand(Message(message.queue, message.message_id, body))
    await system.drain()


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("later", [StillRunning(ALLOWED, "busy"), AwaitCallback(HOUR, "busy")])
async def test_an_older_key_whose_undo_goes_on_is_waited_for_before_the_newer_is_used(
    later: StillRunning | AwaitCallback, generation: int
) -> None:
    step = Step("reserve", agent="stock", time_allowed=ALLOWED, undo=Undo(ALLOWED))
    system = kit(Workflow("chain", version=1, steps=(step,), on_failure=OnFailure.HOLD))
    await system.submit()
    refusal, calls = RefusedError("sold-out", "none left"), system.agents["stock"].calls
    system.agents["stock"].then(refusal)
    await system.drain()
    if generation == 2:
        await edit(system, None, refusal)
    older = [("undo", "O-1/reserve"), ("undo", "O-1/reserve/1")][:generation]
    await edit(system, *[None] * (generation - 1), later, *[None] * generation, {"ok": 1})
    assert [(verb, call.key) for verb, call in calls] == older
    assert system.order().steps[0].note == "busy"
    calls.clear()
    await system.later(31)
    await system.drain()
    expected = [*older, ("do", f"O-1/reserve/{generation}")]
    assert [(verb, call.key) for verb, call in calls] == expected
    assert system.state() == "Processed"


async def test_a_look_after_the_longest_time_still_has_time_for_its_call() -> None:
    system = await dispatched(StillRunning(TIME_ALLOWED_MAX), {"ok": 1})
    await system.drain()
    assert system.order().steps[0].complete_by == START + TIME_ALLOWED_MAX
    await system.later((TIME_ALLOWED_MAX - ALLOWED / 2).total_seconds())
    await system.drain()
    assert system.state() == "Processed"


@pytest.mark.parametrize("span", [timedelta(0), -HOUR, TIME_ALLOWED_MAX + timedelta(seconds=1)])
async def test_a_span_that_cannot_be_is_refused_where_it_is_written(span: timedelta) -> None:
    with pytest.raises(ValueError, match="check_after="):
        StillRunning(span)
    with pytest.raises(ValueError, match="within="):
        AwaitCallback(span)


async def test_a_note_is_kept_short_and_in_whole_characters() -> None:
    system = await dispatched(StillRunning(HOUR, "\ud800" + "x" * 500))
    await system.drain()
    assert system.order().steps[0].note == "?" + "x" * 198 + "…"
    assert system.rejected() == []


async def test_a_step_without_further_progress_keeps_its_note() -> None:
    system = await dispatched(StillRunning(HOUR, "on the road"), StillRunning(HOUR))
    await system.drain()
    await system.later(3600)
    await system.drain()
    assert system.order().steps[0].note == "on the road"
