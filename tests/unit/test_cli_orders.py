"""``sas list`` and ``sas show`` at the terminal: tables, texts, refusals and files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sas.operate.errors import UNAVAILABLE, USAGE
from sas.ports import RefusedError
from tests.unit.actors_kit import break_row
from tests.unit.cli_kit import Night, store_away

DECLINED = RefusedError("card-declined", "the card was declined")


# -- sas list ---------------------------------------------------------------------------------


def test_a_list_ends_with_what_else_there_is(night: Night) -> None:
    assert night.sas("list").lines == ["no order in Error"]
    night.fail("A", DECLINED)
    night.awaits("W")
    night.submit("C")
    others = "1 under way, 1 finished in the last hour: sas list --all"
    assert night.sas("list").lines[-1] == others
    running = night.sas("list", "--state", "running").lines
    assert running[-1].startswith("1 in Error, 1 finished in the last hour")
    assert "(the first 1; --limit shows more)" in night.sas("list", "--limit", "1").lines[2]


def test_all_listed_orders_are_acknowledged_with_one_command(night: Night) -> None:
    for order_id in ("A", "B"):
        night.fail(order_id, DECLINED)
    assert night.sas("show", "A", "--acknowledge").err == (
        "ann has seen 1 order in Error: it is in the journal\n"
    )
    result = night.sas("list", "--acknowledge", "--by", "bob")
    assert (result.code, len(night.sent_messages)) == (0, 2)
    assert "bob has seen 1 order in Error" in result.err
    records = night.sas("list", "--json").json
    assert [record["AcknowledgedBy"] for record in records] == ["ann", "bob"]
    night.submit("C")
    result = night.sas("show", "C", "--acknowledge")
    assert (result.code, len(night.sent_messages)) == (1, 2)
    assert "order C is not possible" in result.err
    for order_id in ("D", "E"):
        night.fail(order_id, DECLINED)
    reason = break_row(night.system, "D")
    result = night.sas("list", "--acknowledge", "--by", "eve")
    assert result.code == 1
    assert f"sas: order D: it cannot be read: {reason}" in result.err
    assert "eve has seen 1 order in Error" in result.err


def test_finished_orders_are_written_to_a_file_that_only_its_owner_can_read(
    night: Night, tmp_path: Path
) -> None:
    for order_id in ("A", "B"):
        night.submit(order_id)
    night.fail("C", DECLINED)
    file = tmp_path / "finished.jsonl"
    assert night.sas("list", "--to", str(file), "--older-than", "1").err == "exported no order\n"
    assert night.sas("list", "--to", str(file)).err == "exported 2 orders\n"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["OrderID"] for record in records] == ["A", "B"]
    assert all(record["Journal"] and record["Payload"] for record in records)
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert len(night.sas("list", "--to", "-").json) == 2
    night.sas("list", "--to", str(tmp_path / "nowhere" / "x")).refused(USAGE, "cannot write")


def test_an_export_does_not_write_into_a_file_that_somebody_put_there(
    night: Night, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    (tmp_path / f"finished.jsonl.{os.getpid()}.part").symlink_to(others)
    export = night.sas("list", "--to", str(tmp_path / "finished.jsonl"))
    export.refused(USAGE, "finished.jsonl: File exists")
    assert not others.exists()


# -- sas show ---------------------------------------------------------------------------------


def test_the_json_of_an_order_has_its_content_only_if_that_is_asked_for(night: Night) -> None:
    night.fail("A", DECLINED)
    (record,) = night.sas("show", "A", "--json").json
    assert record["Waits"]["Kind"] == "you"
    assert record["Waits"]["LastError"]["Message"] == "the card was declined"
    assert "Payload" not in record
    (record,) = night.sas("show", "A", "--json", "--content").json
    assert record["Payload"] == {"amount": 12.5}


def test_orders_that_are_only_in_a_queue_are_shown_and_a_missing_one_is_refused(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.play(night.system.submit(b'{"workflow": "nosuch", "order_id": "bad"}', "m-bad"))
    (record,) = night.sas("show", "bad", "--json").json
    assert (record["ProcessState"], record["Waits"]["Kind"]) == ("Rejected", "nothing")
    night.sas("show", "gone").refused(1, "there is no order 'gone' here")
    night.forbidden = {"orders-rejected"}
    night.sas("show", "bad").refused(UNAVAILABLE, "whether it was rejected is not known")
    monkeypatch.delenv("ServiceBus")
    night.sas("show", "bad").refused(1, "there is no order 'bad' here")
    store_away(monkeypatch)
    night.sas("show", "A").refused(UNAVAILABLE, "you have no right")


def test_an_order_of_an_application_is_looked_for_in_the_queue_of_its_own(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAS_APPLICATIONS", "desk")
    night.put("orders-desk", b'{"order_id": "desk-1"}')
    (record,) = night.sas("show", "desk-1", "--json").json
    assert record["Waits"]["Message"]["Queue"] == "orders-desk"
