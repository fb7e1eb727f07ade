"""Typed shared values: one type, one prefix, and a token against lost updates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from sas.engine.shared_values import SharedValues
from sas.ports import ConflictError
from sas.simulation.store import MemoryStore


@dataclass(frozen=True)
class Note:
    text: str
    at: datetime


NOTE = Note("late", datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_value_is_read_back_as_its_type_and_by_its_name_without_the_prefix() -> None:
    notes = SharedValues[Note](store := MemoryStore(), "note|", Note)
    assert await notes.read("a") is None
    written = await notes.write("a", NOTE, None)
    await store.write_shared("other|b", "1", None)
    assert await notes.read("a") == written
    assert await notes.all() == {"a": written}
    assert written.value == NOTE


async def test_a_value_that_another_instance_changed_is_not_overwritten() -> None:
    notes = SharedValues[Note | None](MemoryStore(), "note|", Note | None)
    first = await notes.write("a", NOTE, None)
    await notes.write("a", None, first)
    with pytest.raises(ConflictError):
        await notes.write("a", NOTE, first)
    found = await notes.read("a")
    assert found is not None
    assert found.value is None


async def test_a_value_that_cannot_be_decoded_raises_or_is_replaced() -> None:
    store = MemoryStore()
    await store.write_shared("note|a", '{"a": "later version"}', None)
    with pytest.raises(msgspec.DecodeError):
        await SharedValues[Note](store, "note|", Note).read("a")
    lenient = SharedValues[Note](store, "note|", Note, unreadable=NOTE)
    found = await lenient.read("a")
    assert found is not None
    assert found.value == NOTE
    await lenient.write("a", Note("new", NOTE.at), found)
