"""The rules of queue delay: which queue excuses a step, and when a delay is an incident."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sas.domain.expire import Excuse
from sas.domain.order import Dispatched, LastCall, StepRecord, StepState, UndoStatus
from sas.features.queue_delay import rules
from sas.features.queue_delay.rules import MOVES_WITHIN, SCHEDULED_MAX, Scan, Seen
from tests.unit.domain_cases import SECOND, T0

MINE, OTHER = ("O-1", 0, 1), ("O-2", 0, 1)
BEFORE = T0 - timedelta(seconds=30)
DOING = StepRecord(
    number=0,
    name="a",
    process_state=StepState.PROCESSING,
    since=T0,
    turn=Dispatched(locked_by="s", complete_by=T0),
    epoch=1,
    call=LastCall(called_until=T0),
)
AWAITS = replace(DOING, turn=Dispatched(locked_by="s", complete_by=T0, awaits=True))
UNDOING = replace(
    DOING,
    process_state=StepState.COMPENSATING,
    call=LastCall(route=1, called_until=T0),
    undo=UndoStatus.UNDOING,
)


def scan(
    *, moves: bool = False, full: bool = False, put_back: bool = False, **oldest: datetime
) -> Scan:
    """Return a scan with messages of ``mine`` and of ``other``, since these moments."""
    owners = {"mine": MINE, "other": OTHER}
    return Scan(
        at=T0,
        oldest={owners[name]: since for name, since in oldest.items()},
        put_back=frozenset(owners[name] for name in oldest if put_back),
        full=full,
        moved_at=T0 if moves else None,
    )


AWAY = Scan(at=T0, oldest={}, away_since=BEFORE)


@pytest.mark.parametrize(
    ("scan", "excuse", "since"),
    [
        (scan(), None, None),
        (scan(other=BEFORE, moves=True), None, None),
        (scan(mine=BEFORE), Excuse.STUCK, BEFORE),
        (scan(mine=BEFORE, moves=True), Excuse.WAITS, BEFORE),
        (scan(mine=T0, moves=True), Excuse.STUCK, T0),
        (scan(mine=BEFORE, put_back=True, moves=True), Excuse.AWAY, BEFORE),
        (scan(full=True), Excuse.STUCK, T0),
        (scan(other=BEFORE, full=True, moves=True), Excuse.WAITS, BEFORE),
        (scan(other=BEFORE, full=True, put_back=True), Excuse.AWAY, BEFORE),
        (AWAY, Excuse.AWAY, BEFORE),
    ],
    ids=[
        "nothing waits",
        "a message of another order waits",
        "its message waits, and nothing leaves the queue",
        "its message waits, and the queue moves",
        "its message was enqueued just now",
        "its message was put back",
        "all that was read belongs to no order",
        "its message may lie behind others, and the queue moves",
        "its message may lie behind others that were put back",
        "the queue is away",
    ],
)
def test_a_queue_excuses_a_step_by_what_was_read(
    scan: Scan, excuse: Excuse | None, since: datetime | None
) -> None:
    assert (rules.excuse_of(scan, MINE), rules.waits_since(scan, MINE)) == (excuse, since)


@pytest.mark.parametrize(
    ("scan", "decided"),
    [
        (scan(mine=BEFORE), True),
        (AWAY, True),
        (scan(mine=T0 + SECOND), False),  # it is put back for a moment: a reply may come first
        (scan(full=True), False),
        (scan(), False),
    ],
)
def test_the_queue_of_the_agent_decides_alone_while_it_has_the_request_or_is_away(
    scan: Scan, decided: bool
) -> None:
    assert rules.is_decided(scan, MINE) is decided


def test_a_queue_that_moves_wins_then_one_that_is_away_then_a_stuck_one() -> None:
    assert rules.best_of([None, *Excuse]) is Excuse.WAITS
    assert rules.best_of([Excuse.STUCK, None, Excuse.AWAY]) is Excuse.AWAY
    assert rules.best_of([None, Excuse.STUCK]) is Excuse.STUCK
    assert rules.best_of([None]) is None


def test_a_queue_moves_for_some_minutes_after_a_message_was_seen_to_leave_it() -> None:
    first, second = (
        Seen(message_id=name, enqueued_at=BEFORE, owner=MINE) for name in ("m-1", "m-2")
    )
    later = Seen(
        message_id="m-3", enqueued_at=T0 + SECOND, owner=MINE
    )  # scheduled: it does not leave the queue when it is due
    before = rules.scan_of([first, second, later], None, T0, full=False)
    assert not before.moves
    unchanged = rules.scan_of([first, second], before, T0 + SECOND, full=False)
    assert not unchanged.moves
    moved = rules.scan_of([second], unchanged, T0 + SECOND, full=False)
    assert moved.moves
    for waited, moves in ((MOVES_WITHIN, True), (MOVES_WITHIN + SECOND, False)):
        last_scan = rules.scan_of([second], moved, T0 + SECOND + waited, full=False)
        assert last_scan.moves is moves


def test_a_scan_has_the_oldest_message_of_each_owner_and_not_what_comes_much_later() -> None:
    messages = [
        Seen(message_id="m-1", enqueued_at=T0, owner=MINE),
        Seen(message_id="m-2", enqueued_at=BEFORE, owner=MINE, put_back=True),
        Seen(message_id="m-3", enqueued_at=T0 + SCHEDULED_MAX, owner=OTHER),
        Seen(
            message_id="m-4",
            enqueued_at=T0 + SCHEDULED_MAX + SECOND,
            owner=("O-3", None, None),
        ),
        Seen(message_id="m-5", enqueued_at=BEFORE, owner=None, put_back=True),
    ]
    scan = rules.scan_of(messages, None, T0, full=True)
    assert scan.oldest == {MINE: BEFORE, OTHER: T0 + SCHEDULED_MAX}
    assert scan.put_back == {MINE}
    assert scan.ids == {"m-1", "m-2", "m-5"}
    assert scan.full


def test_a_message_that_was_put_back_waits_however_late_it_comes() -> None:
    at = T0 + 5 * SCHEDULED_MAX
    messages = [Seen(message_id="m-1", enqueued_at=at, owner=MINE, put_back=True)]
    scan = rules.scan_of(messages, None, T0, full=False)
    assert rules.excuse_of(scan, MINE) is Excuse.AWAY


def test_a_queue_is_away_since_the_first_scan_that_failed() -> None:
    first = rules.away_scan(scan(mine=BEFORE), T0)
    assert first.away_since == T0
    assert rules.away_scan(first, T0 + SECOND).away_since == T0
