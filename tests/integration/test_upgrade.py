"""Orders that an earlier version left under way come to their end with this one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from devstack.azurite import Azurite
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.codec.outward import decode_notification, notice_of
from sas.codec.record import record_of
from sas.domain.messages import JournalWord
from sas.domain.order import Order
from sas.ports import Message
from tests.integration.upgrade_kit import (
    AGENTS,
    CASES,
    QUEUES,
    RECORDED,
    SHOP,
    System,
    play,
    record,
)

RECORDINGS = sorted(RECORDED.glob("*.json"), key=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem, scope="module")
def recording(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


@pytest.fixture
async def system(recording: Mapping[str, Any]) -> AsyncIterator[System]:
    """The present code, where a recording was loaded and worked on until nothing was left."""
    with Azurite() as azurite:
        played = await play(azurite.connection_string, recording)
        yield played
        await played.app.close()


async def order(system: System, name: str) -> Order:
    found = await system.store.load(name)
    assert found is not None, name
    return found


async def test_every_order_that_was_under_way_ends_whole_and_its_application_is_notified(
    system: System,
) -> None:
    await resubmitted(system, "held")
    for name in CASES:
        await ended_whole(system, name)
    told = [decode_notification(one.body) for one in system.bus.messages(SHOP)]
    ended = [one.data.order_id for one in told if notice_of(one.type) in {"completed", "undone"}]
    assert sorted(ended) == sorted(CASES)
    for queue in (*QUEUES.on_the_way(AGENTS), QUEUES.rejected):
        assert system.bus.is_empty(queue), queue
    system.later(timedelta(days=31))
    await system.app.purger.run()
    assert [name for name in CASES if await system.store.load(name) is not None] == []


async def resubmitted(system: System, name: str) -> None:
    """Do what an operator does with an order that was held before the upgrade."""
    found = await order(system, name)
    assert found.process_state.value == "Error"
    command = CommandMessage(id="c-2", order_id=name, verb="resubmit", seq=found.seq, by="ann")
    await system.bus.send([Message(QUEUES.scheduler, command.id, internal.encode(command))])
    await system.work()


async def ended_whole(system: System, name: str) -> None:
    """Check one order: its state, its effects, its journal, and what operators read of it."""
    case, found = CASES[name], await order(system, name)
    assert found.process_state.value == case.ends, name
    wanted = {f"{name}/{step.name}" for step in found.steps} if case.ends == "Processed" else set()
    in_force = {key for key, how in system.remote.effects.items() if how == "done"}
    mine = {key for key in in_force if key.startswith(f"{name}/")}
    assert mine == wanted - {"asking/ship"}, name  # a callback ended that one
    journal = await system.store.journal(name)
    assert [entry.seq for entry in journal] == list(range(1, found.seq + 1)), name
    shown = record_of(found, journal, content=True)
    assert shown["Journal"][0]["What"] == JournalWord.SUBMITTED.value


def test_the_last_version_is_recorded_and_each_recording_holds_what_can_be_under_way(
    recording: dict[str, Any],
) -> None:
    kinds = {"".join(_kind(str(row["RowKey"]))) for row in recording["rows"]}
    assert kinds >= {
        *("details", "state", "step", "result", "journal", "cause", "payload"),
        *("due", "attention", "done", "meta"),
    }
    bodies = [json.loads(one["body"]) for one in recording["messages"]]
    internal_kinds = {body["kind"] for body in bodies if "kind" in body}
    assert internal_kinds >= {"wake", "command", "request", "reply", "progress"}
    assert {one["queue"] for one in recording["messages"]} >= {QUEUES.orders, QUEUES.callbacks}


async def test_this_version_still_stores_and_sends_what_its_recording_holds() -> None:
    """A changed format needs a recording of its own: see docs/upgrading.md."""
    with Azurite() as azurite:
        now = await record(azurite.connection_string)
    before = read(RECORDINGS[-1])
    assert _format(now) == _format(before)


def _kind(row_key: str) -> str:
    parts = row_key.split("|")
    if parts[0] != "order":
        return parts[0]
    return parts[-1] if parts[-1] in {"details", "state", "result", "error"} else parts[3]


def _format(recording: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the columns of each kind of row, and the members of each kind of message."""
    found: dict[str, set[str]] = {}
    for row in recording["rows"]:
        found.setdefault(f"row {_kind(str(row['RowKey']))}", set()).update(row)
    for message in recording["messages"]:
        body = json.loads(message["body"])
        kind = body.get("kind") or body.get("type") or message["queue"]
        found.setdefault(f"message {kind}", set()).update(body)
    return {kind: sorted(names) for kind, names in sorted(found.items())}
