"""Rows of an order that somebody changed by hand: the error names the row and the column, messages
wait, and all other orders go on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lab.fuzz.rows import edited
from lab.fuzz.scene import BESIDE, Scene, World, scene
from sas.codec.external import AlertMessage
from sas.codec.strict import convert
from sas.ports import CorruptOrderError, StoreMismatchError
from sas.testing.platform import QUEUES

ORDER = "O-answered"
STATE, DETAILS, STEP = (
    f"order|{ORDER}|a|state",
    f"order|{ORDER}|a|details",
    f"order|{ORDER}|a|step|00",
)
JOURNAL = f"order|{ORDER}|b|journal|0000000002"


async def changed(row_key: str, column: str, value: Any) -> tuple[Scene, World]:
    """Return a world in which one column of the order was changed."""
    scene_before = await scene()
    (partition,) = {part for part, key in scene_before.rows if key == row_key}
    return scene_before, edited(scene_before, [[partition, row_key, column, value]])


@pytest.mark.parametrize(
    ("row_key", "column", "value", "sentence"),
    [
        (STATE, "Steps", None, "column Steps is missing"),
        (STATE, "Steps", "3", "column Steps is '3', not a number"),
        (STATE, "Steps", 2**31, "column Steps is 'EntityProperty(value=2147483648"),
        (STATE, "Steps", 31, "column Steps is 31"),
        (STATE, "Seq", -1, "column Seq is '-1', not a number"),
        (STATE, "Rejected", "yes", "column Rejected is 'yes', not true or false"),
        (DETAILS, "SubmittedAt", "yesterday", "Invalid isoformat string: 'yesterday'"),
        (DETAILS, "ReplyQueue", b"x", "column ReplyQueue is \"b'x'\", not text"),
        (DETAILS, "ContentHash", "x" * 9000, "column ContentHash has 9,000 characters"),
        (DETAILS, "OrderID", "O-other", "column OrderID is 'O-other'"),
        (STEP, "Number", 1, "column Number is 1, and not 0"),
        (STEP, "Name", None, "column Name is missing"),
        (STEP, "ResultSha256", "ab", "column ResultBytes is missing"),
        (STEP, "LockedBy", None, "ProcessState Processing of step reserve does not fit LockedBy"),
        (STEP, "CompleteBy", None, "ProcessState Processing of step reserve does not fit"),
        (STEP, "Undo", "undone", "LockedBy and CompleteBy (Dispatched), or Undo (undone)"),
    ],
)
async def test_the_error_for_an_order_that_cannot_be_read_names_the_row_and_column_to_repair(
    row_key: str, column: str, value: Any, sentence: str
) -> None:
    _, world = await changed(row_key, column, value)
    with pytest.raises(CorruptOrderError) as error:
        await world.app.context.store.load(ORDER)
    assert str(error.value).startswith(f"order “{ORDER}”: row “{row_key}” cannot be read: ")
    assert sentence in str(error.value)
    assert "Repair it, or restore it" in str(error.value)


@pytest.mark.parametrize(
    ("column", "value"),
    [("Name", "pay"), ("Route", 3)],
)
async def test_steps_that_do_not_fit_the_workflow_are_not_acted_on(column: str, value: Any) -> None:
    _, world = await changed(STEP, column, value)
    with pytest.raises(CorruptOrderError, match="Name or Route of step 0 does not fit"):
        await world.app.context.load(ORDER)


async def test_an_order_with_fewer_steps_than_its_workflow_is_not_acted_on() -> None:
    _, world = await changed(STATE, "Steps", 2)
    with pytest.raises(CorruptOrderError, match="it has 2 steps, and its workflow 3"):
        await world.app.context.load(ORDER)


async def test_a_step_with_more_inputs_than_transitions_is_not_acted_on() -> None:
    """Otherwise its agent would first undo every older input, for hours."""
    _, world = await changed(STEP, "Generation", 1000)
    with pytest.raises(CorruptOrderError, match="column Generation of step 0 is 1000"):
        await world.app.context.load(ORDER)


async def test_a_journal_row_whose_request_has_a_time_without_zone_is_named() -> None:
    request = '[{"k":"request","step":0,"direction":"do","epoch":1,"generation":0'
    messages = f'{request},"complete_by":"2026-01-01T00:10:00"}}]'
    _, world = await changed(JOURNAL, "Messages00", messages)
    with pytest.raises(CorruptOrderError, match="has no time zone"):
        await world.app.context.store.journal(ORDER)


@pytest.mark.parametrize("column", ["At", "Seq", "By"])
async def test_a_journal_row_that_cannot_be_read_is_named(column: str) -> None:
    _, world = await changed(JOURNAL, column, None)
    with pytest.raises(CorruptOrderError, match=f"column {column} is missing"):
        await world.app.context.store.journal(ORDER)


async def test_a_journal_row_without_its_commit_id_counts_as_another_instances() -> None:
    scene_before, world = await changed(JOURNAL, "CommitId", None)
    (body,) = [body for body in scene_before.valid["orders"] if b'"O-answered"' in body]
    world.send(QUEUES.orders, "again", body)
    await world.pump()
    assert world.errors == []


async def test_messages_of_an_order_that_cannot_be_read_wait_with_one_alert_and_others_go_on() -> (
    None
):
    scene_before, world = await changed(STATE, "Steps", None)
    (body,) = [body for body in scene_before.valid["scheduler"] if b'"O-answered/00/do/1"' in body]
    world.send(QUEUES.scheduler, "reply", body)
    world.submit(BESIDE, "beside")
    await world.pump()
    assert world.errors == []
    assert world.state_of(BESIDE) == "Processed"
    (waiting,) = world.bus.queues[QUEUES.scheduler].waiting
    assert waiting.message.body == body
    assert timedelta(0) < waiting.visible_at - world.clock.now() <= timedelta(seconds=1)
    alerts = [convert(message.body, AlertMessage) for message in world.bus.messages(QUEUES.alerts)]
    (alert,) = [alert for alert in alerts if alert.scope == "rows changed by hand"]
    assert alert.kind == "unreadable"
    assert f"row “{STATE}” cannot be read: column Steps is missing" in alert.text


async def test_a_reply_counts_as_soon_as_its_order_is_repaired() -> None:
    scene_before, world = await changed(STATE, "Steps", None)
    (body,) = [body for body in scene_before.valid["scheduler"] if b'"O-answered/00/do/1"' in body]
    world.send(QUEUES.scheduler, "reply", body)
    await world.pump()
    for key, row in scene_before.rows.items():
        if key[1] == STATE:
            world.table.entities[key] = row
    await world.clock.advance(2)
    await world.pump()
    assert world.errors == []
    assert world.state_of(ORDER) == "Processed"


async def test_a_lease_row_that_cannot_be_read_stops_no_sweep() -> None:
    scene_before = await scene()
    world = edited(scene_before, [["meta", "lease|supervisor", "Until", "soon"]])
    swept = await world.app.supervisor.sweep()
    assert swept.led


async def test_a_broken_number_of_shards_is_reported() -> None:
    scene_before = await scene()
    world = edited(scene_before, [["meta", "meta", "Shards", None]])
    with pytest.raises(StoreMismatchError, match="created with None shards"):
        await world.app.context.store.read_shared("x")


async def test_a_shared_value_row_without_its_value_is_read_as_empty() -> None:
    scene_before = await scene()
    world = edited(scene_before, [["meta", "shared|x", "Newer", "y"]])
    value = await world.app.context.store.read_shared("x")
    assert value is not None
    assert value.value == ""
