"""The ledger of a remote service, without HTTP: effects, tombstones and doubles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples.services.ledger import KeyState, Ledger, LedgerFullError

NOW = datetime(2012, 7, 4, 12, 0, tzinfo=UTC)


def test_a_key_is_new_then_a_replay_then_undone() -> None:
    ledger = Ledger("R")
    assert ledger.state_of("a/stock", "content") is KeyState.NEW
    ledger.execute("a/stock", "a", "content", NOW)
    assert ledger.state_of("a/stock", "content") is KeyState.REPLAY
    assert ledger.state_of("a/stock", "other content") is KeyState.REUSED
    assert ledger.undo("a/stock", NOW) == (True, False)
    assert ledger.state_of("a/stock", "content") is KeyState.UNDONE
    assert ledger.state_of("a/stock", "other content") is KeyState.UNDONE


def test_undo_before_do_answers_that_there_was_nothing_and_leaves_a_tombstone() -> None:
    ledger = Ledger("R")
    assert ledger.undo("a/stock", NOW) == (False, False)
    assert ledger.state_of("a/stock", "content") is KeyState.UNDONE


def test_a_repeated_undo_is_answered_as_the_first_was_and_keeps_its_time() -> None:
    ledger = Ledger("R")
    ledger.execute("a/stock", "a", "content", NOW)
    ledger.undo("a/stock", NOW + timedelta(seconds=1))
    assert ledger.undo("a/stock", NOW + timedelta(seconds=2)) == (True, True)
    assert ledger.effects()[0]["undone_at"] == "2012-07-04T12:00:01.000000+00:00"


def test_two_keys_for_one_order_are_doubled_until_one_is_undone() -> None:
    ledger = Ledger("C")
    ledger.execute("a/payment", "a", "content", NOW)
    ledger.execute("b/payment", "b", "content", NOW)
    assert ledger.doubled() == []
    ledger.execute("a/payment/made-up", "a", "content", NOW)
    ledger.execute("a/payment/made-up-again", "a", "content", NOW)
    assert ledger.doubled() == ["a"]
    ledger.undo("a/payment", NOW)
    assert ledger.doubled() == ["a"]
    ledger.undo("a/payment/made-up", NOW)
    assert ledger.doubled() == []


def test_a_replay_is_counted_and_makes_no_second_effect() -> None:
    ledger = Ledger("S")
    first = ledger.execute("a/shipping", "a", "content", NOW)
    assert ledger.replay("a/shipping").number == first.number == "S-000001"
    assert ledger.effects() == [
        {
            "order_id": "a",
            "key": "a/shipping",
            "number": "S-000001",
            "at": "2012-07-04T12:00:00.000000+00:00",
            "undone_at": None,
            "replays": 1,
        }
    ]


def test_a_full_ledger_refuses_new_keys_and_still_serves_the_old() -> None:
    ledger = Ledger("R", records_max=2)
    ledger.execute("a/stock", "a", "content", NOW)
    ledger.undo("b/stock", NOW)
    with pytest.raises(LedgerFullError, match=r"full \(2 keys\)"):
        ledger.state_of("c/stock", "content")
    with pytest.raises(LedgerFullError):
        ledger.undo("c/stock", NOW)
    assert ledger.state_of("a/stock", "content") is KeyState.REPLAY
    assert ledger.undo("a/stock", NOW) == (True, False)


CALLS = st.lists(st.tuples(st.sampled_from(["do", "undo"]), st.sampled_from(["a", "b", "c"])))


@given(CALLS)
def test_whatever_the_order_of_calls_no_key_has_two_effects_and_none_outlives_its_undo(
    calls: list[tuple[str, str]],
) -> None:
    ledger = Ledger("R")
    for verb, order_id in calls:
        key = f"{order_id}/stock"
        if verb == "undo":
            ledger.undo(key, NOW)
        elif ledger.state_of(key, "content") is KeyState.NEW:
            ledger.execute(key, order_id, "content", NOW)
    keys = [effect["key"] for effect in ledger.effects()]
    in_force = {e["order_id"] for e in ledger.effects() if e["undone_at"] is None}
    order_ids = {order_id for verb, order_id in calls if verb == "do"}
    undone = {order_id for verb, order_id in calls if verb == "undo"}
    assert len(keys) == len(set(keys))
    assert in_force == order_ids - undone
    assert ledger.doubled() == []


def test_a_ledger_with_a_file_outlives_its_process_even_when_the_last_line_was_cut(
    tmp_path: Path,
) -> None:
    file = tmp_path / "stock.jsonl"
    first = Ledger("R", file=file)
    first.execute("a/stock", "a", "content", NOW)
    first.execute("b/stock", "b", "content", NOW)
    first.undo("a/stock", NOW + timedelta(seconds=1))
    first.undo("never/done", NOW)
    with file.open("ab") as stream:
        stream.write(b'["do","c/stock"')
    second = Ledger("R", file=file)
    assert second.effects() == first.effects()
    assert second.state_of("a/stock", "content") is KeyState.UNDONE
    assert second.state_of("never/done", "content") is KeyState.UNDONE
    assert second.state_of("b/stock", "other") is KeyState.REUSED
    assert second.execute("d/stock", "d", "content", NOW).number == "R-000003"
    second.close()
    first.close()
    third = Ledger("R", file=file)
    third.close()
    assert third.effects()[-1]["key"] == "d/stock"
