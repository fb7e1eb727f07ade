"""A message whose dependency is away is put back, and burns no delivery."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sas.bootstrap import STORE_RETRY_S
from sas.codec.orders import ORDER_BYTES_MAX, PUT_BACK_BYTES
from sas.config import CUT_OFF_S, read_config
from sas.domain.ids import key_time
from sas.domain.queues import Queues
from sas.engine.delivery import BUG, EXTERNAL_SENT, FIRST_ID, LEFT_SINCE, Delivery
from sas.engine.receiver import (
    CUT_AFTER,
    FAILED,
    FAILURE_DELAY_MAX_S,
    FAILURES_MAX,
    LETTER_DELAY_MAX_S,
    PROPERTIES,
    SOURCE,
    dead_letter,
)
from sas.environment import CONNECTION
from sas.operate.letters import DeadLetterFate, Verdict, letter_of
from sas.operate.redriving import resend
from sas.ports import (
    BusUnavailableError,
    Message,
    OtherVersionError,
    Peeked,
    StoreUnavailableError,
    UnavailableError,
    UndeliverableError,
)
from sas.testing.bus import DEAD_LETTERS
from sas.testing.clock import START
from sas.testing.platform import host_rules
from tests.unit.receiver_kit import FIRST, LETTERS, MINUTES, QUEUE, REJECTED, Door


async def test_a_message_whose_store_is_away_comes_again_with_its_own_id_and_properties() -> None:
    door = Door(StoreUnavailableError("away"))
    assert await door.receive(FIRST) is None
    copy = await door.next()
    assert copy.message_id != FIRST.message_id
    assert await door.receive(copy) == "handled"
    assert [delivery.message_id for delivery in door.seen] == [FIRST.message_id] * 2
    assert door.seen[1].properties["traceparent"] == "00-1"


async def test_of_a_senders_properties_only_what_is_read_travels_and_each_is_bounded() -> None:
    door = Door(StoreUnavailableError("away"))
    hostile = dict.fromkeys(PROPERTIES, "🛒" * 4000) | {
        "sas_x": "x" * 4000,
        "own": "x",
        "traceparent": "00-1",
        "sas_left_since": 5,
        "sas_call_state": None,
        "tracestate": "half \ud800",
    }
    await door.receive(replace(FIRST, properties=hostile))
    properties = (await door.next()).properties
    assert properties["traceparent"] == "00-1"
    assert properties["tracestate"] == "half ?"
    assert properties[FIRST_ID] == FIRST.message_id
    for_people = {BUG, "DeadLetterReason", "DeadLetterErrorDescription"}
    assert all(properties[name].endswith("🛒…") for name in for_people)
    ours = {"sas_put_back", "sas_first_at", "sas_again", FIRST_ID}
    assert set(properties) == {"traceparent", "tracestate", *for_people, *ours}


TOO_LARGE = replace(FIRST, body=b"x" * 262_000)


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("away"), OtherVersionError("away"), KeyError("a bug")]
)
async def test_a_message_too_large_to_be_put_back_is_rejected_at_once(error: Exception) -> None:
    """Its function kept its slot, and tried again and again."""
    door = Door(error)
    assert await door.receive(TOO_LARGE) is None
    assert door.clock.now() == START
    assert [delivery.message_id for delivery in door.kept] == [FIRST.message_id]
    assert (door.bus.queues[QUEUE].waiting, door.store.held_messages) == ([], {})


async def test_poison_that_is_too_large_for_the_dead_letters_is_rejected() -> None:
    door = Door(KeyError("a bug"))
    await door.receive(replace(TOO_LARGE, properties={"sas_failures": str(FAILURES_MAX)}))
    assert len(door.kept) == 1


async def test_if_a_message_that_is_too_large_cannot_be_rejected_no_slot_is_kept_for_it() -> None:
    door = Door(StoreUnavailableError("away"))
    door.bus.queues[REJECTED].refuses = True
    with pytest.raises(BusUnavailableError):
        await door.receive(TOO_LARGE)
    assert door.clock.now() == START


@pytest.mark.parametrize("own_bytes", [0, PUT_BACK_BYTES - 1024])
async def test_the_largest_order_is_put_back_whatever_its_message_carries(own_bytes: int) -> None:
    """The message has the longest MessageId, trace and source, and was put back before."""
    error = OtherVersionError("away")
    error.put_back_with[LEFT_SINCE] = key_time(datetime.now(UTC))
    door = Door(*[error] * 2, KeyError("🛒" * 1000), error)
    properties = {
        "traceparent": "t" * 55,
        "tracestate": "s" * 512,
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": "d" * 200,
        EXTERNAL_SENT: "yes",
        "own": "x" * own_bytes,
    }
    largest = Delivery(
        body=b"x" * ORDER_BYTES_MAX,
        message_id="🛒" * 128,
        queue=QUEUE,
        properties=properties,
        source_queue="q" * 260,
    )
    assert await door.receive(largest) is None
    for _ in range(3):
        assert await door.receive(await door.next()) is None
    assert (await door.next()).body == largest.body


async def test_a_dead_letter_that_is_put_back_keeps_the_queue_it_came_from() -> None:
    door = Door(*(StoreUnavailableError("away") for _ in range(2)))
    await door.receive(replace(FIRST, source_queue="orders"))
    await door.receive(await door.next())
    await door.receive(await door.next())
    assert [delivery.source_queue for delivery in door.seen] == ["orders"] * 3


async def test_a_property_of_the_sender_does_not_hide_where_a_dead_letter_came_from() -> None:
    door = Door()
    forged = {SOURCE: "scheduler"}
    await door.receive(replace(FIRST, source_queue="orders", properties=forged))
    assert door.seen[0].source_queue == "orders"


async def test_an_invalid_message_id_property_does_not_replace_the_messages_own() -> None:
    """An application could set it. A cause of 20,000 characters cannot be stored."""
    door = Door()
    await door.receive(replace(FIRST, properties={FIRST_ID: "x" * 20_000}))
    assert door.seen[0].message_id == FIRST.message_id


async def test_a_dead_letter_that_fails_comes_again_ever_later_until_it_is_handled() -> None:
    door = Door(*(KeyError("amount") for _ in range(20)))
    letter = replace(FIRST, queue=LETTERS, source_queue="orders")
    pauses = await door.pauses(letter)
    assert 2 <= pauses[0] <= 4
    assert LETTER_DELAY_MAX_S / 2 <= pauses[-1] <= LETTER_DELAY_MAX_S
    assert len(pauses) == 20
    assert {delivery.source_queue for delivery in door.seen} == {"orders"}


async def test_what_an_error_asks_for_is_among_the_properties_of_the_copy() -> None:
    outage = BusUnavailableError("away")
    outage.put_back_with["sas_call_state"] = "tried"
    door = Door(outage, StoreUnavailableError("away"))
    await door.receive(FIRST)
    await door.receive(await door.next())
    assert (await door.next()).properties["sas_call_state"] == "tried"


async def test_a_message_that_no_queue_may_be_sent_for_now_waits_too() -> None:
    """The app lost its right to send, and cannot put anything aside."""
    refused = Message("orders-rejected", "m", b"{}")
    door = Door(UndeliverableError("no right to send", refused))
    await door.receive(FIRST)
    assert await door.receive(await door.next()) == "handled"


async def test_a_handler_that_ignores_the_end_of_its_function_is_cut_off_and_comes_again() -> None:
    door = Door()
    cancelled: list[timedelta] = []
    start = door.clock.now()

    async def endless(_: Delivery) -> None:
        try:
            await door.clock.sleep(7200)
        finally:
            cancelled.append(door.clock.now() - start)

    assert await door.clock.run(door.receiver.receive(endless, FIRST)) is None
    assert cancelled == [MINUTES + CUT_AFTER]
    assert await door.receive(await door.next()) == "handled"


def test_a_handler_that_is_cut_off_is_put_back_before_the_host_ends_its_worker() -> None:
    put_back_time = timedelta(seconds=10 + STORE_RETRY_S)  # a send without an answer, and a row
    assert timedelta(seconds=CUT_OFF_S) > CUT_AFTER + put_back_time
    least = {CONNECTION: "Endpoint=sb://x/", "SAS_TABLES": "AccountName=x"}
    limit = host_rules(Path(__file__).parents[2]).function_timeout
    assert read_config(least).function_time.total_seconds() + CUT_OFF_S <= limit.total_seconds()


async def test_a_timer_function_that_runs_out_of_time_is_cut_off() -> None:
    door = Door()
    with pytest.raises(UnavailableError, match="ran out of time"):
        await door.clock.run(door.receiver.within_time(door.clock.sleep(7200)))
    assert door.clock.now() - START == MINUTES + CUT_AFTER


async def test_the_handler_knows_when_its_function_ends() -> None:
    door = Door()
    start = door.clock.now()
    await door.receive(FIRST)
    assert door.seen[0].ends_at == start + MINUTES


@pytest.mark.parametrize("error", [KeyError("amount"), TimeoutError("of the handler itself")])
async def test_poison_is_tried_for_minutes_and_is_a_dead_letter_with_its_error_then(
    error: Exception,
) -> None:
    door = Door(*[error] * FAILURES_MAX)
    pauses = await door.pauses(replace(FIRST, count=5))
    assert 470 <= sum(pauses) <= 940
    assert pauses == sorted(pauses[:4]) + pauses[4:]
    assert max(pauses) <= FAILURE_DELAY_MAX_S
    assert len(door.seen) == FAILURES_MAX
    (letter,) = door.bus.messages(LETTERS)
    assert letter.properties["DeadLetterReason"] == FAILED
    assert letter.properties["DeadLetterErrorDescription"].startswith(f"{error!r}"[:8])
    assert "(tests/unit/receiver_kit.py:" in letter.properties["DeadLetterErrorDescription"]
    await door.receive(letter)
    received = door.seen[-1]
    assert (received.message_id, received.source_queue) == (FIRST.message_id, QUEUE)


async def test_a_bad_release_is_one_incident_from_its_first_failure_and_is_over_by_itself() -> None:
    door = Door(*[KeyError("amount")] * 30)
    for number in range(30):
        body = f'{{"order_id": "O-{number}"}}'.encode()
        queue = ("scheduler", "orders", "agent-stock")[number % 3]
        door.bus.declare(queue)
        await door.receive(replace(FIRST, body=body, message_id=f"m-{number}", queue=queue))
        assert len(door.alerts()) == 1
    (alert,) = door.alerts()
    line = f"tests/unit/receiver_kit.py:{Door.handler.__code__.co_firstlineno + 3} in handler"
    assert (alert.kind, alert.scope) == ("agent-failing", f"KeyError at {line}")
    assert alert.text.startswith(
        f"Messages of queue scheduler fail: KeyError: “'amount'” ({line}). If a release brought "
        "it, deploy the one before: `sas azd deploy`"
    )
    assert "tried 7 times within 8 to 16 minutes" in alert.text
    assert "ends some 8 minutes after the last failure. It began at" in alert.text
    assert "first seen by order “O-0" in alert.text
    kinds = []
    for _ in range(8):
        await door.clock.advance(60)
        await door.clock.run(door.incidents.check_health())
        kinds.append([alert.kind for alert in door.alerts()][1:])
    assert kinds == [[]] * 7 + [["cleared"]]


@pytest.mark.parametrize(("minutes", "alerts"), [(14, 1), (16, 2)])
async def test_the_alert_of_failing_messages_is_repeated_by_a_new_failure_alone(
    minutes: int, alerts: int
) -> None:
    """It is due after a quarter of an hour, and the incident has not ended then."""
    door = Door(*[KeyError("amount")] * minutes)
    for minute in range(26):
        if minute < minutes:
            await door.receive(replace(FIRST, message_id=f"m-{minute}"))
        await door.clock.run(door.incidents.check_health())
        await door.clock.advance(60)
    kinds = [alert.kind for alert in door.alerts()]
    assert kinds == ["agent-failing"] * alerts + ["cleared"]


async def test_the_copy_of_a_message_that_failed_names_its_last_error() -> None:
    door = Door(KeyError("amount"), ZeroDivisionError("by zero"))
    message: Message | Delivery = FIRST
    for name in ("KeyError", "ZeroDivisionError"):
        await door.receive(message)
        message = await door.next()
        assert str(message.properties[BUG]).startswith(name)


async def test_a_failure_that_cannot_be_reported_is_put_back_all_the_same() -> None:
    """A bad release may break the incidents too."""
    door = Door(KeyError("amount"))
    door.store.plan = {}.__getitem__  # type: ignore[assignment]
    assert await door.receive(FIRST) is None
    assert (await door.next()).body == FIRST.body


async def test_a_message_that_fails_is_logged_with_its_queue_since_its_function_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = Door(LookupError("a bug"))
    await door.receive(FIRST)
    record = caplog.records[0]
    assert record.getMessage() == f"a message of queue {QUEUE} failed"
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


async def test_a_forged_number_of_times_changes_nothing_but_the_delay() -> None:
    for forged in ("-1", "x", "9" * 5000, "1e9"):
        door = Door(StoreUnavailableError("away"))
        await door.receive(replace(FIRST, properties={"sas_put_back": forged}))
        assert await door.receive(await door.next()) == "handled"


@pytest.mark.parametrize(
    ("ahead_s", "counts_s"), [(-3.0, 0.0), (0.0, 0.0), (4.0, 4.0), (60.0, 5.0)]
)
async def test_a_copy_that_a_slow_clock_schedules_waits_by_the_clock_of_the_bus(
    ahead_s: float, counts_s: float
) -> None:
    door = Door(StoreUnavailableError("away"))
    now = door.clock.now()
    await door.receive(replace(FIRST, enqueued_at=now + timedelta(seconds=ahead_s)))
    (copy,) = (queued.message for queued in door.bus.queues[QUEUE].waiting)
    assert copy.scheduled_at is not None
    pause = (copy.scheduled_at - now).total_seconds() - counts_s
    assert 0.5 <= pause <= 1.0


async def test_a_dead_letter_that_was_put_back_before_is_put_back_again_after_its_redrive() -> None:
    door = Door(BusUnavailableError("away"), BusUnavailableError("away"))
    await door.receive(Message(QUEUE, "m", b"{}"))
    copy = await door.next()
    letter = Peeked(
        message_id=copy.message_id,
        body=copy.body,
        enqueued_at=door.clock.now(),
        properties={**copy.properties, "own": "x" * 5000},
        sequence=1,
    )
    verdict = Verdict(DeadLetterFate.SAFE, "")
    dead = replace(letter_of(QUEUE + DEAD_LETTERS, letter, Queues()), verdict=verdict)
    (letter_move,) = resend([dead], Queues()).moves
    assert letter_move.move.message is not None
    assert "own" not in letter_move.move.message.properties
    await door.receive(letter_move.move.message)
    second_copy = await door.next()
    assert second_copy.message_id != copy.message_id, "duplicate detection would drop it"
    assert (second_copy.body, second_copy.properties[FIRST_ID]) == (b"{}", "m")


def test_messages_of_two_queues_with_one_id_are_two_dead_letters() -> None:
    messages = [Message(queue, "m-1", b"{}") for queue in ("orders", "scheduler")]
    letters = {dead_letter(LETTERS, message, "r", "d").message_id for message in messages}
    assert len(letters) == 2, "duplicate detection would drop one"


async def test_a_message_that_waits_longer_than_a_deploy_for_a_newer_version_is_reported() -> None:
    error = OtherVersionError("a message has format 2")
    error.put_back_with["sas_left_since"] = "2026-01-01T00:00:00.000000Z"
    door = Door(*[error] * 40)
    assert await door.receive(FIRST) is None
    for _ in range(5):
        assert await door.receive(await door.next()) is None
    assert door.reports == []
    await door.clock.advance(300)
    message = await door.next()
    assert await door.receive(message) is None
    assert door.reports == ["a message has format 2. Deploy it again"]
    assert "sas_left_since" in (await door.next()).properties, "the report changes no copy"
