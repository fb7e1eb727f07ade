"""The page of one order: what stands on it, and the one sentence of what to do next."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.cli import look
from sas.codec.record import record_of, to_line
from sas.domain.messages import (
    Alert,
    AlertKind,
    JournalEntry,
    JournalWord,
    Notice,
    Notify,
    Request,
    Wake,
)
from sas.domain.order import Direction, Dispatched, Fault, LastCall, Resting
from tests.contract import cases
from tests.contract.cases import NOW, SECOND
from tests.unit.test_cli_intent import ORDERS

HOSTILE = "one\x1b[2J\ntwo\u202e"
JOURNAL = [
    JournalEntry(
        seq=1,
        at=NOW,
        what=JournalWord.SUBMITTED,
        by="host-1",
        commit_id="c",
        cause="orders:1",
        messages=(Wake(), Notify(Notice.RECEIVED)),
    ),
    JournalEntry(
        seq=2,
        at=NOW + SECOND,
        what=JournalWord.STEP_FAILED,
        by="agent payment",
        commit_id="d",
        cause=None,
        messages=(
            Request(step=0, direction=Direction.DO, epoch=3, generation=0, complete_by=NOW),
            Notify(Notice.FAILED, step=1, fault=Fault("shut", "no")),
            Alert(AlertKind.STEP_FAILED, 1, HOSTILE),
        ),
    ),
]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("pending", "step-0 is ready; a scheduler claims it by 2026-"),
        ("processing", "step-0 is with its agent, to be done by 2026-"),
        ("in error", "repair what the error of step-1 says, then `sas resubmit o`"),
        ("in error", "`sas skip o --step step-1 --input RESULT` (later steps read RESULT)"),
        ("undo failed", "`sas skip o --step step-1` after you undid it by hand"),
        ("processed", "nothing to do; `sas undo o` would undo the whole order"),
        ("compensated", "nothing to do: the whole order is undone"),
        ("rejected", "the application corrects the order and submits it again"),
    ],
)
def test_what_to_do_next_follows_from_the_state(name: str, advice: str) -> None:
    assert advice in look.advice(ORDERS[name], NOW)
    assert look.advice(ORDERS[name], NOW).count(". ") == 0


def test_a_step_past_its_time_says_that_the_supervisor_is_missing() -> None:
    advice = look.advice(ORDERS["processing"], NOW + timedelta(hours=1))
    assert "the supervisor has not looked at it yet" in advice


def test_the_last_progress_note_of_a_step_is_one_line_below_it() -> None:
    order = ORDERS["processing"]
    step = replace(
        order.steps[0], turn=Dispatched(locked_by="host-1", complete_by=NOW, note=HOSTILE)
    )
    order = replace(order, steps=(step, *order.steps[1:]))
    lines = list(look.page(order, [], NOW))
    place = next(n for n, line in enumerate(lines) if line.startswith("step-0"))
    assert lines[place + 1].strip().startswith("one")
    assert not set("\x1b\n\u202e") & set(lines[place + 1])
    assert record_of(order, [], content=False)["Steps"][0]["Note"] == HOSTILE


def test_a_step_that_rests_says_until_when() -> None:
    order = ORDERS["pending"]
    resting_order = replace(
        order, steps=(replace(order.steps[0], turn=Resting(NOW)), *order.steps[1:])
    )
    assert "step-0 rests until" in look.advice(resting_order, NOW)


def test_the_page_shows_the_five_fields_the_undo_and_the_journal() -> None:
    text = "\n".join(look.page(ORDERS["undo failed"], JOURNAL, NOW))
    for part in (
        "order o  Error  (seq ",
        *("LockedBy", "CompleteBy", "FailureCount", "ProcessState"),
        "undo failed",
        "    shut: no",
        "   1  2026-03-01 12:00:00.123Z  submitted        by host-1",
        "-> wake a scheduler",
        "-> request: do step-0, epoch 3, by 2026-03-01 12:00:00Z",
        "-> notify the application: failed step-1 (shut)",
        "-> alert step-failed: ",
        "next: the undo of step-1 failed",
    ):
        assert part in text, part


def test_the_page_names_which_of_several_agents_has_a_step() -> None:
    order = ORDERS["in error"]
    done = replace(order.steps[0], call=LastCall(route=2))
    details = replace(order.details, urgent=True)
    routed_order = replace(order, steps=(done, *order.steps[1:]), details=details)
    request = Request(step=0, direction=Direction.UNDO, epoch=4, generation=0, complete_by=NOW)
    journal = [
        JournalEntry(
            seq=3,
            at=NOW,
            what=JournalWord.CLAIMED,
            by="host-1",
            commit_id="c",
            cause=None,
            messages=(request,),
        )
    ]
    text = "\n".join(look.page(routed_order, journal, NOW))
    assert "    with agent number 3 of the step\n" in text
    assert "undo step-0, epoch 4" in text
    assert "version 2, urgent" in text


def test_foreign_text_can_neither_break_the_page_nor_drive_the_terminal() -> None:
    order = ORDERS["in error"]
    step = replace(order.steps[1], error=Fault(HOSTILE, HOSTILE))
    out = replace(
        ORDERS["processing"].steps[0], turn=Dispatched(locked_by=HOSTILE, complete_by=NOW)
    )
    details = replace(order.details, correlation_id=HOSTILE, reply_queue=HOSTILE)
    order = replace(order, details=details, steps=(out, step), acknowledged_by=HOSTILE)
    for line in look.page(order, JOURNAL, NOW):
        assert not set(line) & set("\x1b\n\u202e"), line


def test_a_journal_whose_beginning_was_removed_is_marked() -> None:
    text = "\n".join(look.page(ORDERS["processed"], JOURNAL[1:], NOW))
    assert "(journal rows 1 to 1 were removed)" in text


def test_the_record_keeps_the_patterns_names_and_leaves_the_content_out_unless_asked() -> None:
    order = cases.every_field_set(ORDERS["in error"])
    record = record_of(order, JOURNAL, content=False)
    step = record["Steps"][0]
    for name in ("LockedBy", "CompleteBy", "ProcessState", "FailureCount"):
        assert name in record
        assert name in step
    assert step["Undo"] == "to be undone"
    assert step["Error"]["Code"] == "code"
    assert record["Journal"][1]["Sent"][0] == {
        "kind": "request",
        "step": 0,
        "direction": "do",
        "epoch": 3,
        "generation": 0,
        "complete_by": NOW.isoformat().replace("+00:00", "Z"),
    }
    line = to_line(record)
    assert "\n" not in line
    assert '"Payload"' not in line
    assert '"Result"' not in line
    full_record = json.loads(to_line(record_of(order, (), content=True)))
    assert full_record["Payload"] == {"lines": []}
    assert full_record["Steps"][0]["Result"] == "done"


def test_content_that_is_not_json_is_recorded_as_text() -> None:
    assert record_of(ORDERS["rejected"], (), content=True)["Payload"] == "what came"
