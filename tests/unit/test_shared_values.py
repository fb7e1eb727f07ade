"""Typed shared values: one type, one prefix, and a token against lost updates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from sas.engine.shared_values import SharedValues
from sas.ports import ConflictError, StoreMismatchError
from sas.testing.store import MemoryStore


@dataclass(frozen=True)
class Note:
    text: str
    at: datetime


NOTE = Note("late", datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_value_is_read_back_as_its_type_and_by_its_name_without_the_prefix() -> None:
    notes = SharedValues[Note](store := MemoryStore(), "note|", Note)
    assert await notes.read("a") is None
    entry = await notes.write("a", NOTE, None)
    await store.write_shared("other|b", "1", None)
    assert await notes.read("a") == entry
    assert await notes.all() == {"a": entry}
    assert entry.value == NOTE


async def test_a_value_that_another_instance_changed_is_not_overwritten() -> None:
    notes = SharedValues[Note | None](MemoryStore(), "note|", Note | None)
    first = await notes.write("a", NOTE, None)
    await notes.write("a", None, first)
    with pytest.raises(ConflictError):
        await notes.write("a", NOTE, first)
    entry = await notes.read("a")
    assert entry is not None
    assert entry.value is None


@pytest.mark.parametrize(
    "text",
    [
        '{"text": 1, "at": "2026-01-01T00:00:00Z"}',
        '{"text": "a"}',
        '{"text": "a", "at": "2026-01-01T00:00:00Z", "newly": [1]}',
        "no JSON",
    ],
)
async def test_a_value_that_cannot_be_read_raises_or_is_replaced_and_hides_no_other(
    text: str,
) -> None:
    store = MemoryStore()
    await store.write_shared("note|a", text, None)
    notes = SharedValues[Note](store, "note|", Note)
    with pytest.raises(StoreMismatchError, match=r"note\|a cannot be read"):
        await notes.read("a")
    await notes.write("b", NOTE, None)
    assert list(await notes.all()) == ["b"]
    lenient = SharedValues[Note](store, "note|", Note, unreadable=NOTE)
    entry = await lenient.read("a")
    assert entry is not None
    assert entry.value == NOTE
    await lenient.write("a", Note("new", NOTE.at), entry)
