"""Rows hold what they were given: properties over arbitrary texts, ids, records and messages."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.adapters.tables import keys, rows
from sas.adapters.tables.operations import (
    KINDS,
    entry_from,
    journal_row,
    messages_from_json,
    messages_to_json,
)
from sas.bounds import utf16_units
from sas.domain.change import DeadlineDue, DeferredDue, Due, OtherDue, OutDue, StepDue
from sas.domain.ids import check_order_id, key_time
from sas.domain.messages import (
    Alert,
    AlertKind,
    JournalEntry,
    JournalWord,
    Notice,
    Notify,
    Outgoing,
    Request,
    StepChange,
    Wake,
)
from sas.domain.order import (
    STEP_FORMS,
    AttemptError,
    Details,
    Direction,
    Dispatched,
    Failures,
    Fault,
    LastCall,
    Order,
    Ready,
    Resting,
    StepRecord,
    StepState,
    Turn,
    UndoStatus,
)
from sas.ports import FORMAT, CorruptOrderError, OtherVersionError
from tests.each import each

NOW = datetime(2026, 3, 1, 12, 0, 0, 7, tzinfo=UTC)
CHARACTER = st.sampled_from(["a", "é", "注", "🛒", '"', "\\", "\n", "\x00"])


def _can_be_id(text: str) -> bool:
    try:
        check_order_id(text)
    except ValueError:
        return False
    return True


ORDER_ID = st.text(min_size=1, max_size=30).filter(_can_be_id)
MOMENT = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001  # hypothesis adds the zone
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=-30))]),
)


@given(st.lists(st.tuples(CHARACTER, st.integers(1, 33_000)), max_size=6))
def test_a_text_in_chunks_comes_back_and_no_chunk_is_too_large(runs: list[tuple[str, int]]) -> None:
    text = "".join(character * count for character, count in runs)
    chunked = rows.chunked("Payload", text)
    assert rows.joined("Payload", chunked) == text
    assert all(utf16_units(part) <= rows.CHUNK_UNITS for part in chunked.values())
    for part in chunked.values():
        part.encode("utf-8")  # no surrogate pair was cut
    least = -(-utf16_units(text) // rows.CHUNK_UNITS)
    assert len(chunked) <= max(1, least * 2 + 1)


def test_a_text_that_utf8_cannot_hold_is_changed_and_not_refused() -> None:
    broken = "before \ud800 after \udc00\ud83d end 🛒"
    assert rows.joined("Payload", rows.chunked("Payload", broken)) == (
        "before \ufffd after \ufffd\ufffd end 🛒"
    )


@given(ORDER_ID)
def test_an_order_id_comes_back_from_its_key_and_needs_no_quoting(order_id: str) -> None:
    escaped = keys.escape(order_id)
    assert keys.unescape(escaped) == order_id
    assert not re.search(r"[%+'/\\#?|]", escaped)


@given(ORDER_ID, ORDER_ID)
def test_different_orders_have_different_keys_and_ranges_apart(first: str, other: str) -> None:
    if first == other:
        return
    low, high = keys.aggregate(first)
    for key in (keys.state(other), keys.details(other), keys.step(other, 7), keys.result(other, 7)):
        assert not low <= key < high
    low, high = keys.journals(first)
    assert not low <= keys.journal(other, 3) < high


@given(ORDER_ID, st.integers(0, 29), st.integers(1, 10**9))
def test_an_orders_aggregate_is_one_range_without_journal_and_causes(
    order_id: str, step: int, seq: int
) -> None:
    low, high = keys.aggregate(order_id)
    inside = [keys.details(order_id), keys.state(order_id)]
    inside += [keys.step(order_id, step), keys.error(order_id, step), keys.result(order_id, step)]
    assert [key for key in inside if keys.is_error(key)] == [keys.error(order_id, step)]
    outside = [keys.journal(order_id, seq), keys.cause(order_id, "orders:1")]
    assert inside == sorted(inside)
    assert all(low <= key < high for key in inside)
    assert not any(low <= key < high for key in outside)
    assert all(utf16_units(key) <= 512 for key in (*inside, *outside))


@given(MOMENT, ORDER_ID, st.integers(0, 29), st.integers(0, 2**31 - 1))
def test_a_due_row_has_everything_in_its_key(
    at: datetime, order_id: str, step: int, number: int
) -> None:
    due: tuple[Due, ...] = (
        StepDue(at=at, order_id=order_id, step=step, epoch=number),
        OutDue(at, order_id, number),
        DeferredDue(at, order_id, f"{number:032x}"),
        DeadlineDue(at, order_id),
        OtherDue(at, order_id, f"due|{key_time(at)}|{keys.escape(order_id)}|newer|{number}"),
    )
    assert {type(row) for row in due} == set(get_args(Due))
    for row in due:
        assert keys.parse_due(keys.due(row)) == row


@given(MOMENT, MOMENT, ORDER_ID)
def test_what_is_due_at_or_before_a_moment_is_in_its_range_and_nothing_else(
    at: datetime, until: datetime, order_id: str
) -> None:
    low, high = keys.between("due", until=until)
    for row in (
        StepDue(at=at, order_id=order_id, step=0, epoch=1),
        OutDue(at, order_id, 1),
        DeadlineDue(at, order_id),
    ):
        assert (low <= keys.due(row) < high) == (at <= until)
        assert keys.between("due")[0] <= keys.due(row) < keys.between("due")[1]


def test_the_longest_key_stays_below_what_azurite_and_the_service_allow() -> None:
    longest = "%" * 100
    longest_keys = [
        keys.due(StepDue(at=NOW, order_id=longest, step=29, epoch=2**31)),
        keys.result(longest, 29),
        keys.cause(longest, "x" * 10_000),
    ]
    assert max(map(utf16_units, longest_keys)) < 512


STEP = StepRecord(
    number=1,
    name="pay",
    process_state=StepState.PROCESSING,
    since=NOW,
    turn=Dispatched(
        locked_by="one",
        complete_by=NOW + timedelta(seconds=1),
        note="the van is at stop 3 of 9",
        excused=7,
        awaits=True,
    ),
    epoch=4,
    failures=Failures(3, 6),
    call=LastCall(
        route=2, called_until=NOW + timedelta(seconds=2), generation=5, edited='{"amount":1}'
    ),
    result='{"paid":true}',
    error=Fault("declined", "card 'declined' 🛒"),
    undo=UndoStatus.TO_BE_UNDONE,
    last_error=AttemptError(epoch=4, attempt=3, kind="http-500", message="it's out of 🛒", at=NOW),
)
DETAILS = Details(
    order_id="o'1",
    workflow="order",
    version=7,
    payload="{}",
    content_hash="hash",
    reply_queue="responses-a",
    correlation_id="corr",
    submitted_at=NOW,
    traceparent="00-1-1-01",
    urgent=True,
)


ORDER = Order(
    details=DETAILS,
    steps=(replace(STEP, number=0, name="reserve"), STEP),
    seq=9,
    stopped_at=NOW,
    rejected=True,
    deadline=NOW + timedelta(days=1),
    acknowledged_by="operator 'ü'",
    undone_because="operator 'ü': a reason",
    token="etag",
)


@each([STEP, STEP.turn, STEP.failures, STEP.call, STEP.last_error, DETAILS, ORDER])
def test_the_records_of_these_tests_leave_no_field_at_its_default(record: Any) -> None:
    empty = (None, False, 0, (), UndoStatus.NOT_DECIDED)
    assert [f.name for f in fields(record) if getattr(record, f.name) in empty] == []


def stored(*entities: rows.Entity) -> dict[str, rows.Entity]:
    """Return rows by their key, as the table has them."""
    return {row["RowKey"]: rows.stored("00", row) for row in entities}


def rows_of(order: Order) -> dict[str, rows.Entity]:
    order_id = order.order_id
    entities = [rows.details_row(order), rows.state_row(order, "commit")]
    return stored(*entities, *(rows.step_row(order_id, step) for step in order.steps))


def bare(step: StepRecord) -> StepRecord:
    return StepRecord(
        number=step.number, name=step.name, process_state=StepState.PENDING, since=NOW
    )


@each([ORDER, Order(details=DETAILS, steps=(bare(ORDER.steps[0]), bare(ORDER.steps[1])), seq=1)])
def test_no_field_of_an_order_is_lost_in_its_rows(order: Order) -> None:
    entities = [rows.details_row(order), rows.state_row(order, "commit")]
    entities += [rows.step_row("o'1", step) for step in order.steps]
    entities += [
        rows.error_row("o'1", step.number, step.last_error)
        for step in order.steps
        if step.last_error is not None
    ]
    by_key = stored(*entities)
    read = rows.order_from("o'1", by_key, "etag")
    assert read == order
    assert [step.last_error for step in read.steps] == [step.last_error for step in order.steps]
    assert read.token == "etag"


TURNS = (None, Ready(NOW), Resting(NOW), Dispatched(locked_by="one", complete_by=NOW))
FORMS = [
    (state, turn, status)
    for state, (kinds, statuses) in STEP_FORMS.items()
    for turn, status in product(TURNS, statuses)
    if type(turn) in kinds
]


@each(FORMS)
def test_every_form_of_a_step_is_read_as_written(
    state: StepState, turn: Turn, status: UndoStatus
) -> None:
    step = replace(STEP, number=0, process_state=state, turn=turn, undo=status)
    order = replace(ORDER, steps=(step,))
    entities = [
        rows.details_row(order),
        rows.state_row(order, "commit"),
        rows.step_row("o'1", step),
    ]
    row = entities[-1]
    assert (row["LockedBy"], row["CompleteBy"] is None) == (step.locked_by, turn is None)
    assert rows.order_from("o'1", stored(*entities), "etag").steps == (step,)


def test_a_step_with_one_agent_and_an_order_that_is_not_urgent_fill_no_column_for_it() -> None:
    """So that rows of workflows without alternatives stay as they were."""
    details = replace(DETAILS, urgent=False)
    step = rows.step_row("o'1", bare(STEP))
    assert step["Route"] is None
    assert rows.details_row(Order(details=details, steps=(), seq=1))["Urgent"] is None


@each([keys.state("o'1"), keys.details("o'1"), keys.step("o'1", 0), keys.result("o'1", 0)])
def test_an_order_with_a_row_missing_is_refused_not_guessed(key: str) -> None:
    step = replace(STEP, number=0, result="x" * 20_000)
    order = Order(details=DETAILS, steps=(step,), seq=9)
    entities = [rows.details_row(order), rows.state_row(order, "commit")]
    entities += [rows.step_row("o'1", step), rows.result_row("o'1", step)]
    by_key = stored(*entities)
    assert rows.order_from("o'1", by_key, "etag") == order
    del by_key[key]
    with pytest.raises(CorruptOrderError, match=r"order “o'1”: .*missing"):
        rows.order_from("o'1", by_key, "etag")


MESSAGES: tuple[Outgoing, ...] = (
    Wake(),
    Request(step=29, direction=Direction.UNDO, epoch=3, generation=2, complete_by=NOW),
    Request(
        step=0,
        direction=Direction.DO,
        epoch=1,
        generation=0,
        complete_by=NOW.astimezone(timezone(timedelta(hours=5))),
    ),
    *(Notify(notice) for notice in Notice),
    replace(Notify(Notice.FAILED, step=0, fault=Fault("code", 'said "no" 🛒')), undoing=True),
    *(Alert(kind, None, "é") for kind in AlertKind),
    Alert(AlertKind.STEP_FAILED, 0, ""),
)


def test_every_message_comes_back_from_the_journal() -> None:
    assert messages_from_json(messages_to_json(MESSAGES)) == MESSAGES
    entry = JournalEntry(
        seq=3,
        at=NOW,
        what=JournalWord.CLAIMED,
        by="me",
        commit_id="commit",
        cause=None,
        messages=MESSAGES,
    )
    assert entry_from(rows.stored("00", journal_row("order-1", entry))) == entry


def test_what_changed_comes_back_from_the_journal() -> None:
    changes = (
        StepChange(step=0, before=StepState.ERROR, after=StepState.PENDING, edited=True),
        StepChange(step=12, before=StepState.PENDING, after=StepState.PENDING, edited=True),
        *(
            StepChange(step=1, before=before, after=after)
            for before in StepState
            for after in StepState
        ),
    )
    entry = JournalEntry(
        seq=3,
        at=NOW,
        what=JournalWord.CLAIMED,
        by="me",
        commit_id="c",
        cause=None,
        messages=(),
        reason="why",
        changes=changes,
    )
    assert entry_from(rows.stored("00", journal_row("o", entry))) == entry


def test_every_kind_of_message_has_its_word_in_the_journal() -> None:
    assert set(KINDS.values()) == set(get_args(Outgoing))
    assert {type(message) for message in MESSAGES} == set(get_args(Outgoing))


def test_a_journal_row_of_thirty_requests_is_spread_over_properties_and_comes_back() -> None:
    alerts = tuple(Alert(AlertKind.STEP_FAILED, n, "x" * 1900) for n in range(30))
    entry = JournalEntry(
        seq=1,
        at=NOW,
        what=JournalWord.CLAIMED,
        by="me",
        commit_id="commit",
        cause="orders:1",
        messages=alerts,
    )
    row = rows.stored("00", journal_row("order-1", entry))
    assert "Messages01" in row
    assert entry_from(row) == entry


WRONG_COLUMNS: tuple[tuple[str, rows.Entity], ...] = (
    ("Seq", {"Seq": None}),
    ("Format", {"Format": None}),
    ("the format number is '0'", {"Format": 0}),
    ("Surname", {"Surname": "of nobody"}),
    ("Steps", {"Steps": "2"}),
)
WRONG_STEP: tuple[tuple[str, rows.Entity], ...] = (
    ("Teleported", {"ProcessState": "Teleported"}),
    ("Teleported", {"Undo": "Teleported"}),
    ("Name", {"Name": None}),
    ("ErrorMessage", {"ErrorMessage": None}),
    ("Surname", {"Surname": 1}),
)


@each(
    [
        *((keys.state("o'1"), *case) for case in WRONG_COLUMNS),
        *((keys.step("o'1", 1), *case) for case in WRONG_STEP),
        (keys.details("o'1"), "Payload00", {"Payload00": None}),
    ]
)
def test_a_column_that_is_missing_unknown_or_wrong_makes_the_order_unreadable(
    key: str, text: str, columns: rows.Entity
) -> None:
    by_key = rows_of(ORDER)
    row = by_key[key] | columns
    by_key[key] = {name: value for name, value in row.items() if value is not None}
    with pytest.raises(CorruptOrderError, match=text):
        rows.order_from("o'1", by_key, "etag")


@each(
    [
        {"What": "teleported"},
        {"Changes": "1:Error>Sleeping"},
        {"Changes": "1:Error"},
        {"Changes": "1:Pending>Error:twice"},
        {"Messages00": None},
        {"Messages00": '[{"k":"telegram"}]'},
        {"Messages00": '[{"k":["wake"]}]'},
        {"Messages00": '[{"k":"wake","newly":1}]'},
        {"Messages00": '[{"k":"notify","notice":"completed"}]'},
        {"Messages00": '[{"k":"alert","alert":"teleported","step":null,"text":""}]'},
        {"Format": None},
    ]
)
def test_a_journal_row_that_is_not_as_it_was_written_is_refused(columns: rows.Entity) -> None:
    entry = JournalEntry(
        seq=1, at=NOW, what=JournalWord.CLAIMED, by="me", commit_id="c", cause=None, messages=()
    )
    row = rows.stored("00", journal_row("o", entry)) | columns
    with pytest.raises(CorruptOrderError, match=r"order “o”: row .* cannot be read"):
        entry_from({name: value for name, value in row.items() if value is not None})


def test_a_row_of_a_newer_format_is_left_to_a_newer_instance_whatever_else_it_holds() -> None:
    by_key = rows_of(ORDER)
    newer = {"Format": FORMAT + 1, "RowKey": keys.state("o'1"), "Newly": b"x"}
    with pytest.raises(OtherVersionError, match="has format 2, and this version knows up to 1"):
        rows.order_from("o'1", {keys.state("o'1"): newer}, "etag")
    by_key[keys.step("o'1", 0)] = newer
    with pytest.raises(OtherVersionError):
        rows.order_from("o'1", by_key, "etag")
    with pytest.raises(OtherVersionError):
        entry_from(newer)


def test_a_due_row_of_an_unknown_kind_keeps_its_key() -> None:
    at = key_time(NOW)
    for key in (f"due|{at}|o|teleport|1", f"due|{at}|o|7", f"due|{at}|o|1|2|3"):
        assert keys.parse_due(key) == OtherDue(NOW, "o", key)
        assert keys.due(keys.parse_due(key)) == key
