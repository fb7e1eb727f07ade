"""The rules of queue delay: which queue excuses a step, and when a delay is an incident."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sas.domain.expire import Excuse
from sas.domain.order import Dispatched, LastCall, StepRecord, StepState, UndoStatus
from sas.features.queue_delay import rules
from sas.features.queue_delay.front import FORGOTTEN_AFTER, QueueFront
from sas.features.queue_delay.rules import (
    MOVES_WITHIN,
    PUT_BACK_MAX,
    SCHEDULED_MAX,
    SENT_WITHIN,
    Scan,
    Seen,
)
from sas.ports import BusUnavailableError, Message
from sas.testing.bus import MemoryBus
from sas.testing.clock import VirtualClock
from tests.unit.domain_cases import SECOND, SHAPES, T0, workflow_of

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
    *,
    moves: bool = False,
    full: bool = False,
    is_long: bool = False,
    put_back: bool = False,
    **oldest: datetime,
) -> Scan:
    """Return a scan with messages of ``mine`` and of ``other``, since these moments."""
    owners = {"mine": MINE, "other": OTHER}
    return Scan(
        at=T0,
        oldest={owners[name]: since for name, since in oldest.items()},
        put_back=frozenset(owners[name] for name in oldest if put_back),
        full=full or is_long,
        is_long=is_long,
        last_at=max(oldest.values(), default=None),
        moved_at=T0 if moves else None,
    )


AWAY = Scan(at=T0, oldest={}, away_since=BEFORE)
SENT = T0 - timedelta(seconds=20)


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
        (scan(other=BEFORE, full=True, moves=True), Excuse.STUCK, BEFORE),
        (scan(other=BEFORE, full=True, put_back=True), Excuse.STUCK, BEFORE),
        (scan(other=SENT, full=True, moves=True), None, None),
        (scan(other=SENT, is_long=True, moves=True), Excuse.WAITS, SENT),
        (scan(other=SENT, is_long=True, put_back=True), Excuse.AWAY, SENT),
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
        "its message may lie behind what comes much later, and the queue moves",
        "its message may lie behind what comes much later, and one that was put back",
        "its message was sent before the last one that was read",
        "its message may lie behind others, and the queue moves",
        "its message may lie behind others that were put back",
        "the queue is away",
    ],
)
def test_a_queue_excuses_a_step_by_what_was_read(
    scan: Scan, excuse: Excuse | None, since: datetime | None
) -> None:
    assert rules.excuse_of(scan, MINE, SENT) is excuse
    assert rules.waits_since(scan, MINE, SENT) == since


def test_a_queue_that_moves_wins_then_one_that_is_away_then_a_stuck_one() -> None:
    assert rules.best_of([None, *Excuse]) is Excuse.WAITS
    assert rules.best_of([Excuse.STUCK, None, Excuse.AWAY]) is Excuse.AWAY
    assert rules.best_of([None, Excuse.STUCK]) is Excuse.STUCK
    assert rules.best_of([None]) is None


def test_a_message_excuses_a_step_as_long_as_it_comes_within_its_bound() -> None:
    for put_back, bound in ((False, SCHEDULED_MAX), (True, PUT_BACK_MAX)):
        for moment, is_later in ((T0 + bound, False), (T0 + bound + SECOND, True)):
            assert rules.comes_much_later(moment, T0, put_back=put_back) == is_later


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


@pytest.mark.parametrize(("waiting", "is_long"), [(5, True), (4, False)])
def test_a_queue_is_long_if_half_of_what_was_read_waits(waiting: int, is_long: bool) -> None:
    later = T0 + SCHEDULED_MAX + SECOND
    messages = [
        Seen(message_id=f"m-{n}", enqueued_at=T0 if n < waiting else later, owner=MINE)
        for n in range(10)
    ]
    assert rules.scan_of(messages, None, T0, full=True).is_long is is_long
    assert rules.is_short(rules.scan_of(messages, None, T0, full=True), 60 * SECOND) is not is_long
    assert not rules.scan_of(messages, None, T0, full=False).is_long


def test_a_request_was_sent_when_its_step_was_claimed_or_when_its_agent_asked_for_time() -> None:
    (rule,) = workflow_of(SHAPES["one"]).rules.steps
    for step, sent_at in (
        (DOING, T0),
        (
            replace(DOING, turn=Dispatched(locked_by="s", complete_by=T0 + 90 * SECOND)),
            T0 + 30 * SECOND,
        ),
        (
            replace(UNDOING, turn=Dispatched(locked_by="s", complete_by=T0 + 91 * SECOND)),
            T0 + SECOND,
        ),
    ):
        assert rules.last_send(step, rule) == sent_at + SENT_WITHIN


async def test_a_read_begins_in_front_again_after_an_hour_and_after_one_that_failed() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock)
    bus.declare("q")
    later = clock.now() + timedelta(days=1)
    await bus.send([Message("q", "later", b"{}", scheduled_at=later), Message("q", "now", b"{}")])
    queue_front = QueueFront(bus, clock)

    async def ids() -> list[str]:
        return [message.message_id for message in await queue_front.read("q")]

    assert [await ids(), await ids()] == [["later", "now"], ["now"]]
    bus.cut("q")
    with pytest.raises(BusUnavailableError):
        await ids()
    bus.mend("q")
    assert [await ids(), await ids()] == [["later", "now"], ["now"]]
    clock.set(clock.now() + FORGOTTEN_AFTER / 2)
    assert await ids() == ["now"], "this read does not make the hour longer"
    clock.set(clock.now() + FORGOTTEN_AFTER / 2)
    assert await ids() == ["later", "now"]
