"""``sas show``: the text of journal rows, and one row for repeated waiting."""

from __future__ import annotations

from datetime import datetime, timedelta

from sas.cli import look
from sas.domain.messages import JournalEntry, JournalWord
from sas.ports import RefusedError
from tests.contract import cases
from tests.contract.cases import NOW
from tests.unit.cli_kit import Night
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

DECLINED = RefusedError("card-declined", "the card was declined")


def row(lines: list[str], word: str) -> str:
    return next(line for line in lines if f"  {word} " in line)


def test_a_row_names_the_step_the_change_the_operator_the_reason_and_an_edited_input(
    night: Night,
) -> None:
    night.fail("A", DECLINED)
    why = ("--reason", "the limit was raised")
    assert night.sas("resubmit", "A", "--yes", "--input", '{"amount": 1}', *why).code == 0
    lines = night.sas("show", "A").lines
    line = row(lines, "resubmitted")
    assert "by operator ann: the limit was raised" in line
    assert line.endswith("pay: Error -> Pending with its input edited")
    assert row(lines, "step failed").endswith("pay: Processing -> Error")
    (record,) = night.sas("show", "A", "--json").json
    (change,) = next(
        entry["Changes"] for entry in record["Journal"] if entry["What"] == "resubmitted"
    )
    assert change == {"Step": 1, "Before": "Error", "After": "Pending", "Edited": True}


def test_why_an_order_was_undone_stays_on_it_and_in_lists(night: Night) -> None:
    night.fail("A", DECLINED)
    assert night.sas("undo", "A", "--yes", "--reason", "the customer asked").code == 0
    night.fail("B", DECLINED)
    night.system.agents["payment"].then(DECLINED)
    night.submit("C", workflow="chain")
    page = night.sas("show", "A").lines
    assert "  undone        operator ann: the customer asked" in page
    result = night.sas("list", "--state", "compensated")
    lines_by_id = {line.split()[2]: line for line in result.lines[1:-1]}
    assert lines_by_id["A"].endswith("Compensated  operator ann: the customer asked")
    assert lines_by_id["C"].endswith("pay failed: card-declined: the card was declined")
    records = night.sas("list", "--state", "finished", "--json").json
    assert {record["OrderID"]: bool(record["UndoneBecause"]) for record in records} == {
        "A": True,
        "C": True,
    }
    (record,) = night.sas("show", "C", "--json").json
    assert record["UndoneBecause"] == "pay failed: card-declined: the card was declined"


def entries(*words: JournalWord, at: datetime = NOW) -> list[JournalEntry]:
    return [
        JournalEntry(
            seq=seq,
            at=at + seq * timedelta(minutes=1),
            what=word,
            by="host-1",
            commit_id=f"c{seq}",
            cause=None,
            messages=(),
        )
        for seq, word in enumerate(words, 1)
    ]


def test_repeated_waiting_is_one_row_with_its_count() -> None:
    waits = (JournalWord.WAITING, JournalWord.RELEASED) * 250
    journal = entries(JournalWord.SUBMITTED, *waits, JournalWord.STEP_PROCESSED)
    page = list(look.page(cases.submitted("o").after, journal, NOW))
    rows = [line for line in page if line[:4].strip().isdecimal()]
    assert len(rows) == 3
    assert rows[1].startswith("   2  2026-")
    assert "500 rows: waiting: no call could begin, released" in rows[1]
    assert rows[1].endswith("to 501, over 8 h 19 min")


def test_only_the_last_rows_are_shown_if_so_asked(night: Night) -> None:
    night.submit("A")
    page = night.sas("show", "A").lines
    lines = night.sas("show", "A", "--last", "2").lines
    count = sum(line[:4].strip().isdecimal() for line in page)
    assert sum(line[:4].strip().isdecimal() for line in lines) == 2
    assert f"(the last 2 of {count} rows; without --last all are shown)" in lines
    (record,) = night.sas("show", "A", "--last", "2", "--json").json
    assert len(record["Journal"]) == 2
    assert night.sas("show", "A", "--last", "0").code == 2
