"""A message whose dependency is away is put back, and burns no delivery."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sas.bootstrap import STORE_RETRY_S
from sas.codec.orders import ORDER_BYTES_MAX, PUT_BACK_BYTES
from sas.config import CUT_OFF_S, read_config
from sas.domain.change import DeferredDue, Due
from sas.domain.ids import key_time
from sas.domain.queues import Queues
from sas.engine.delivery import EXTERNAL_SENT, FIRST_ID, LEFT_SINCE, Delivery
from sas.engine.external import ExternalSender
from sas.engine.receiver import (
    CUT_AFTER,
    DELAY_MAX_S,
    DELIVERIES_MAX,
    FAILED,
    SOURCE,
    GivenUpError,
    Receiver,
    delay_s,
)
from sas.engine.run_on import RunOn
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
from sas.testing.bus import DEAD_LETTERS, BusFault, MemoryBus
from sas.testing.clock import START, VirtualClock
from sas.testing.platform import host_rules
from sas.testing.store import MemoryStore, StoreFault

QUEUE = "scheduler"
MINUTES = timedelta(minutes=9)


class Door:
    """A receiver over a queue in memory, and a handler that fails a number of times."""

    def __init__(self, *failures: Exception) -> None:
        self.clock = VirtualClock()
        self.bus = MemoryBus(self.clock)
        self.bus.declare(QUEUE, duplicate_window=timedelta(minutes=10))
        self.bus.declare("dead-letters")
        self.store = MemoryStore()
        external = ExternalSender(self.store, self.bus, self.clock)
        self.receiver = Receiver(
            bus=self.bus,
            clock=self.clock,
            function_time=MINUTES,
            external=external,
            report_mismatch=self.reported,
            run_on=RunOn(bus=self.bus, clock=self.clock, inline=frozenset()),
            dead_letters="dead-letters",
        )
        self.failures = list(failures)
        self.reports: list[str] = []
        self.seen: list[Delivery] = []

    async def reported(self, error: Exception) -> None:
        self.reports.append(str(error))

    async def handler(self, delivery: Delivery) -> str:
        self.seen.append(delivery)
        if self.failures:
            raise self.failures.pop(0)
        return "handled"

    async def receive(self, message: Message | Delivery) -> object:
        delivery = message if isinstance(message, Delivery) else delivered(message)
        return await self.clock.run(self.receiver.receive(self.handler, delivery))

    async def due(self) -> list[Due]:
        """Return what the supervisor finds in half a minute."""
        until = self.clock.now() + timedelta(seconds=30)
        return [due for shard in self.store.shards for due in await self.store.due(shard, until, 9)]

    async def next(self) -> Message:
        await self.clock.advance(DELAY_MAX_S)
        message = self.bus.take(QUEUE)
        assert message is not None
        return message


def delivered(message: Message) -> Delivery:
    return Delivery(
        body=message.body,
        message_id=message.message_id,
        queue=message.queue,
        properties=message.properties,
        count=1,
    )


FIRST = Delivery(
    body=b"{}", message_id="O-1/3/0", queue=QUEUE, properties={"traceparent": "00-1"}, count=1
)


async def test_a_message_whose_store_is_away_comes_again_with_its_own_id_and_properties() -> None:
    door = Door(StoreUnavailableError("away"))
    assert await door.receive(FIRST) is None
    copy = await door.next()
    assert copy.message_id != FIRST.message_id
    assert await door.receive(copy) == "handled"
    assert [delivery.message_id for delivery in door.seen] == [FIRST.message_id] * 2
    assert door.seen[1].properties["traceparent"] == "00-1"


@pytest.mark.parametrize("own_bytes", [0, PUT_BACK_BYTES - 1024])
async def test_the_largest_order_is_put_back_whatever_its_message_carries(own_bytes: int) -> None:
    """The message has the longest MessageId, trace and source, and was put back before."""
    error = OtherVersionError("away")
    error.put_back_with[LEFT_SINCE] = key_time(datetime.now(UTC))
    door = Door(*[error] * 3)
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


async def test_a_message_that_was_given_up_rests_longer_and_longer_up_to_an_hour() -> None:
    door = Door(*(GivenUpError("it fails again") for _ in range(20)))
    message: Message | Delivery = FIRST
    pauses = []
    while await door.receive(message) is None:
        before = door.clock.now()
        await door.clock.advance(GivenUpError.delay_max_s)
        copy = door.bus.take(QUEUE)
        assert copy is not None
        assert copy.scheduled_at is not None
        pauses.append((copy.scheduled_at - before).total_seconds())
        message = copy
    assert pauses[0] <= 1
    assert DELAY_MAX_S < pauses[-1] <= GivenUpError.delay_max_s
    assert len(pauses) == 20


async def test_an_outage_of_any_length_burns_no_delivery_and_is_over_within_half_a_minute() -> None:
    door = Door(*(StoreUnavailableError("away") for _ in range(300)))
    message: Message | Delivery = FIRST
    while (result := await door.receive(message)) is None:
        message = await door.next()
    assert result == "handled"
    assert {delivery.count for delivery in door.seen} == {1}
    assert all(delay_s(times) <= DELAY_MAX_S for times in range(400))


async def test_a_redelivery_puts_the_same_copy_back_and_duplicate_detection_drops_it() -> None:
    door = Door(StoreUnavailableError("away"), StoreUnavailableError("away"))
    await door.receive(FIRST)
    await door.receive(FIRST)
    await door.next()
    assert door.bus.take(QUEUE) is None


async def test_what_an_error_asks_for_is_among_the_properties_of_the_copy() -> None:
    outage = BusUnavailableError("away")
    outage.put_back_with["sas_call_state"] = "tried"
    door = Door(outage, StoreUnavailableError("away"))
    await door.receive(FIRST)
    await door.receive(await door.next())
    assert (await door.next()).properties["sas_call_state"] == "tried"


async def test_while_its_own_queue_takes_no_copy_the_function_waits_and_handles_it_itself() -> None:
    door = Door(StoreUnavailableError("away"), StoreUnavailableError("away"))
    door.bus.fail_next(BusFault.UNAVAILABLE, BusFault.UNAVAILABLE)
    assert await door.receive(FIRST) == "handled"
    assert len(door.seen) == 3


async def test_a_message_that_no_queue_may_be_sent_for_now_waits_too() -> None:
    """The app lost its right to send, and cannot put anything aside."""
    refused = Message("orders-rejected", "m", b"{}")
    door = Door(UndeliverableError("no right to send", refused))
    await door.receive(FIRST)
    assert await door.receive(await door.next()) == "handled"


async def test_a_function_that_must_end_has_the_supervisor_send_its_message_later() -> None:
    door = Door(*(BusUnavailableError("away") for _ in range(1000)))
    door.bus.plan = lambda _: BusFault.UNAVAILABLE
    start = door.clock.now()
    assert await door.receive(FIRST) is None
    duration = door.clock.now() - start
    assert MINUTES - timedelta(minutes=1) < duration <= MINUTES
    (due,) = await door.due()
    assert isinstance(due, DeferredDue)
    copy = await door.store.deferred(due)
    assert copy is not None
    assert (copy.queue, copy.body, copy.properties[FIRST_ID]) == (QUEUE, b"{}", FIRST.message_id)


async def test_a_function_that_must_end_gives_the_message_back_to_the_host_if_all_is_away() -> None:
    door = Door(*(StoreUnavailableError("away") for _ in range(1000)))
    door.bus.plan = lambda _: BusFault.UNAVAILABLE
    door.store.plan = lambda _operation, _key: StoreFault.UNAVAILABLE
    with pytest.raises(StoreUnavailableError):
        await door.receive(FIRST)


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


async def test_a_time_out_of_the_handler_itself_is_poison_like_any_other_bug() -> None:
    door = Door(TimeoutError("a bug"))
    with pytest.raises(TimeoutError):
        await door.receive(FIRST)


async def test_the_handler_knows_when_its_function_ends() -> None:
    door = Door()
    start = door.clock.now()
    await door.receive(FIRST)
    assert door.seen[0].ends_at == start + MINUTES


async def test_a_message_that_fails_in_its_last_delivery_is_a_dead_letter_with_its_error() -> None:
    door = Door(*[KeyError("amount")] * 2)
    early = replace(FIRST, count=DELIVERIES_MAX - 1)
    with pytest.raises(KeyError):
        await door.receive(early)
    assert await door.receive(replace(FIRST, count=DELIVERIES_MAX)) is None
    (letter,) = door.bus.messages("dead-letters")
    assert letter.properties["DeadLetterReason"] == FAILED
    assert "KeyError: 'amount' (" in letter.properties["DeadLetterErrorDescription"]
    await door.receive(letter)
    received = door.seen[-1]
    assert (received.message_id, received.source_queue) == (FIRST.message_id, QUEUE)


async def test_without_a_bus_the_last_delivery_is_given_back_to_the_host() -> None:
    door = Door(KeyError("amount"))
    door.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(KeyError):
        await door.receive(replace(FIRST, count=DELIVERIES_MAX))
    assert door.bus.messages("dead-letters") == []


async def test_a_message_that_fails_is_logged_with_its_queue_since_the_host_may_not_export_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = Door(LookupError("a bug"))
    with pytest.raises(LookupError):
        await door.receive(FIRST)
    (record,) = caplog.records
    assert record.getMessage() == f"a message of queue {QUEUE} failed and comes again"
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.parametrize("error", [ValueError("poison"), KeyError("bug")])
async def test_poison_is_not_put_back_so_that_its_queue_dead_letters_it(error: Exception) -> None:
    door = Door(error)
    with pytest.raises(type(error)):
        await door.receive(FIRST)
    assert not await door.bus.peek(QUEUE, 10)


@pytest.mark.parametrize("forged", ["-1", "x", "9" * 5000, "1e9"])
async def test_a_forged_number_of_times_changes_nothing_but_the_delay(forged: str) -> None:
    door = Door(StoreUnavailableError("away"))
    await door.receive(
        Delivery(body=b"{}", message_id="m", queue=QUEUE, properties={"sas_put_back": forged})
    )
    assert await door.receive(await door.next()) == "handled"


def test_every_error_of_a_dependency_is_put_back() -> None:
    from sas.engine.transition import ContentionError  # noqa: PLC0415

    for kind in (StoreUnavailableError, BusUnavailableError, ContentionError):
        assert issubclass(kind, UnavailableError)


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
        properties=copy.properties,
        sequence=1,
    )
    verdict = Verdict(DeadLetterFate.SAFE, "")
    dead = replace(letter_of(QUEUE + DEAD_LETTERS, letter), verdict=verdict)
    (letter_move,) = resend([dead], Queues()).moves
    assert letter_move.move.message is not None
    await door.receive(letter_move.move.message)
    second_copy = await door.next()
    assert second_copy.message_id != copy.message_id, "duplicate detection would drop it"
    assert (second_copy.body, second_copy.properties[FIRST_ID]) == (b"{}", "m")


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
