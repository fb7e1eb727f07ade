"""``sas queues``: it counts, shows, removes and sends messages again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sas.cli import arguments as args
from sas.cli.main import main
from sas.codec.external import (
    CLOUDEVENTS_TYPE,
    AlertMessage,
    Rejection,
    encode,
    rejected_parts,
)
from sas.engine.delivery import AGAIN, FIRST_ID
from sas.engine.receiver import FIRST_AT, SOURCE, TIMES
from sas.operate.errors import UNAVAILABLE, USAGE
from sas.ports import BusUnavailableError, Message, MessageBus, MessageMove, Peeked

AT = datetime(2026, 11, 21, 3, tzinfo=UTC)
REJECTED, SHOP = "orders-rejected", "responses-web-shop"
DEAD = "/$DeadLetterQueue"
ORDER = b'{"order_id":"A-1","workflow":"order","reply_queue":"responses-web-shop","order":{}}'


class QueuesInMemory:
    """The messages in the queues, and those that were sent."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Peeked]] = {}
        self.away: set[str] = set()
        self.sent: list[Message] = []
        self.fail_after: int | None = None
        self.removes = True

    def put(self, path: str, *bodies: bytes, **members: object) -> None:
        waiting = self.waiting.setdefault(path, [])
        for body in bodies:
            number = len(waiting) + 1
            message = Peeked(
                message_id=f"m-{number}", body=body, enqueued_at=AT, properties={}, sequence=number
            )
            waiting.append(replace(message, **members))  # type: ignore[arg-type]

    def reject(self, body: bytes, source: str = "orders", reason: str = "unknown-workflow") -> None:
        rejection = Rejection(
            body=body,
            reason=reason,
            description="nobody knows it",
            source_queue=source,
            message_id="m-1",
            order_id="A-1",
            correlation_id="c-1",
        )
        name = f"rejected/{len(self.waiting.get(REJECTED, ()))}"
        for part in rejected_parts(rejection, at=AT, id_base=name):
            self.put(REJECTED, encode(part), message_id=part.id)

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        if queue in self.away or self.away == {"*"}:
            raise BusUnavailableError(f"queue {queue}: to read it you need the role X.")
        return self.waiting.get(queue, [])[:limit]

    async def move(self, path: str, moves: Sequence[MessageMove]) -> AsyncGenerator[bool]:
        for number, move in enumerate(moves):
            if number == self.fail_after:
                raise BusUnavailableError("the bus is away.")
            if move.message is not None:
                self.sent.append(move.message)
            if self.removes:
                rest = [
                    message
                    for message in self.waiting[path]
                    if message.sequence not in move.sequences
                ]
                self.waiting[path] = rest
            yield self.removes


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> QueuesInMemory:
    queues = QueuesInMemory()

    @asynccontextmanager
    async def opened(endpoint: object) -> AsyncIterator[MessageBus]:
        yield queues  # type: ignore[misc]

    monkeypatch.setattr(args, "open_bus", opened)
    monkeypatch.setenv("ServiceBus", "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;x=y")
    return queues


def redrive(*arguments: str) -> int:
    return main(["queues", "redrive", *arguments])


def test_the_list_counts_waiting_scheduled_and_dead_messages_and_has_the_oldest(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.put("scheduler", b"{}", b"{}")
    bus.put(
        "scheduler", b"{}", is_scheduled=True, properties={FIRST_AT: "2026-11-20T01:00:00.000000Z"}
    )
    bus.put(SHOP + DEAD, b"{}")
    assert main(["queues", "--app", "tests.business:workflows", "--queue", SHOP]) == 0
    table = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert table["scheduler"] == ["2", "1", "0", "2026-11-20", "01:00:00Z"]
    assert table[SHOP] == ["0", "0", "1", "2026-11-21", "03:00:00Z"]
    assert table["agent-payment-urgent"] == ["0", "0", "0", "-"]
    assert {"orders-urgent", REJECTED, "operator-alerts", "dead-letters"} <= table.keys()


def test_a_long_queue_is_counted_to_a_bound(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.put("orders", *[b"{}"] * 1001)
    assert main(["queues"]) == 0
    assert ["orders", "1,000+"] in [
        line.split()[:2] for line in capsys.readouterr().out.splitlines()
    ]


def test_for_a_queue_without_the_right_to_read_the_list_names_the_role(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.away = {"orders"}
    assert main(["queues"]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.split()[0] == "orders")
    assert lines[place + 1] == "    queue orders: to read it you need the role X."
    assert main(["queues", "--json"]) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["Queue"] for record in records if record["Problem"]] == ["orders"]


def test_while_the_namespace_is_away_the_exit_code_is_3(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.away = {"*"}
    assert main(["queues"]) == UNAVAILABLE
    assert main(["queues", "peek", "orders"]) == UNAVAILABLE
    assert "sas: queue orders: to read it" in capsys.readouterr().err


def test_peek_shows_why_a_message_was_refused_and_the_beginning_of_its_body(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.reject(ORDER + b" " * 2000)
    assert main(["queues", "peek", REJECTED]) == 0
    text = capsys.readouterr().out
    assert "rejected/0/1  2026-11-21 03:00:00Z  unknown-workflow  orders" in text
    assert "    nobody knows it" in text
    assert ORDER.decode() in text
    assert f"... ({len(ORDER) + 2000:,} characters; --json --content shows all)" in text
    assert main(["queues", "peek", REJECTED, "--json", "--content"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["Body"] == ORDER.decode() + " " * 2000


def test_peek_shows_why_a_queue_gave_a_message_up(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    why = {"DeadLetterReason": "TTLExpired", "DeadLetterErrorDescription": "nobody read it"}
    bus.put("dead-letters" + DEAD, b"\xff\x1b[2J", properties=why, source="orders")
    assert main(["queues", "peek", "dead-letters", "--dead-letter"]) == 0
    text = capsys.readouterr().out
    assert "TTLExpired  orders" in text
    assert "nobody read it" in text
    assert "\x1b" not in text
    assert main(["queues", "peek", "orders", "--dead-letter"]) == 0
    assert capsys.readouterr().out == "orders/$DeadLetterQueue is empty\n"


def test_peek_shows_what_an_alert_says_whole(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "step ship failed: no carrier delivers to this address. " * 4 + "Resubmit it, or skip it."
    )
    alert = AlertMessage(kind="step-failed", at="x", text=text, id="A-1/4/0", order_id="A-1")
    bus.put("operator-alerts", encode(alert), b"no alert")
    assert main(["queues", "peek", "operator-alerts"]) == 0
    page = capsys.readouterr().out
    assert "step-failed  A-1" in page
    assert text in page
    assert '"kind"' not in page
    assert "no alert" in page


@pytest.mark.parametrize(
    "arguments",
    [
        ["remove", REJECTED],
        ["remove", REJECTED, "--all"],
        ["remove", REJECTED, "--all", "--id", "m-1"],
        ["remove", "scheduler", "--id", "m-1"],
        ["remove", SHOP, "--id", "m-1"],
        ["peek"],
        ["peek", REJECTED, "--content"],
        ["redrive", REJECTED],
        ["redrive", REJECTED, "--all", "--id", "m-1"],
        ["redrive", "scheduler", "--all"],
    ],
)
def test_a_command_that_is_not_clear_is_refused(bus: QueuesInMemory, arguments: list[str]) -> None:
    bus.put(arguments[1] if arguments[1:] else REJECTED, b"{}")
    assert main(["queues", *arguments]) == USAGE
    assert bus.sent == []
    assert [len(waiting) for waiting in bus.waiting.values()] == [1]


def test_a_rejected_message_that_was_dealt_with_is_removed_with_all_its_parts_and_no_other(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.reject(b"x" * 250_000)
    bus.reject(ORDER)
    first, *_, other = (message.message_id for message in bus.waiting[REJECTED])
    many = len(bus.waiting[REJECTED])
    monkeypatch.setattr("sys.stdin", None)
    assert main(["queues", "remove", REJECTED, "--id", first]) == USAGE
    assert "remove 1 message for good: there is no terminal" in capsys.readouterr().err
    assert main(["queues", "remove", REJECTED, "--id", first, "--dry-run"]) == 0
    assert len(bus.waiting[REJECTED]) == many > 2
    assert main(["queues", "remove", REJECTED, "--id", first, "--yes"]) == 0
    assert [message.message_id for message in bus.waiting[REJECTED]] == [other]
    assert bus.sent == []
    assert capsys.readouterr().out.splitlines()[-1] == "removed 1 of 1"
    assert main(["queues", "remove", REJECTED, "--id", first, "--yes"]) == 1


def test_an_alert_and_a_dead_letter_can_be_removed_too(bus: QueuesInMemory) -> None:
    bus.put("operator-alerts", b"{}", b"{}")
    bus.put(SHOP + DEAD, b"{}")
    assert main(["queues", "remove", "operator-alerts", "--id", "m-1", "--yes"]) == 0
    assert main(["queues", "remove", SHOP, "--dead-letter", "--id", "m-1", "--yes"]) == 0
    assert [len(waiting) for waiting in bus.waiting.values()] == [1, 0]


def test_a_refused_message_goes_back_to_where_it_was_refused_with_its_body(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.reject(ORDER)
    bus.reject(b"{}", SHOP, "undeliverable")
    assert redrive(REJECTED, "--all") == 0
    order, event = bus.sent
    assert (order.queue, order.body, order.content_type) == ("orders", ORDER, "application/json")
    assert order.correlation_id == "c-1"
    assert (event.queue, event.body, event.content_type) == (SHOP, b"{}", CLOUDEVENTS_TYPE)
    assert order.message_id != event.message_id
    assert bus.waiting[REJECTED] == []
    assert capsys.readouterr().out.splitlines() == [
        "redrive of 2 messages of orders-rejected: 1 to orders, 1 to responses-web-shop",
        "  A-1                   orders-rejected -> orders",
        "  A-1                   orders-rejected -> responses-web-shop",
        "sent 2 of 2, removed 2",
    ]


@pytest.mark.parametrize("body", [b"x" * 250_000, b"\xff" * 100_000])
def test_the_parts_of_a_message_go_back_as_one(bus: QueuesInMemory, body: bytes) -> None:
    bus.reject(body)
    bus.waiting[REJECTED].reverse()
    assert len(bus.waiting[REJECTED]) > 1
    assert redrive(REJECTED, "--id", bus.waiting[REJECTED][0].message_id) == 0
    assert [message.body for message in bus.sent] == [body]
    assert bus.waiting[REJECTED] == []


def test_a_message_whose_parts_are_not_all_there_stays(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.reject(b"x" * 250_000)
    bus.waiting[REJECTED].pop()
    bus.put(REJECTED, b"no rejected message")
    assert redrive(REJECTED, "--all") == 1
    assert bus.sent == []
    text = capsys.readouterr().err
    assert "parts are here" in text
    assert "it is not a rejected message: send it by hand" in text


def test_an_order_that_was_given_up_is_sent_as_a_new_submission_the_same_at_each_try(
    bus: QueuesInMemory,
) -> None:
    """Its old submission is fenced: it would be ignored."""
    bus.reject(ORDER.replace(b"{}", b'{"b":1.50,"a":2}'), reason="dead-lettered")
    bus.removes = False
    assert redrive(REJECTED, "--all") == 1
    assert redrive(REJECTED, "--all") == 1
    first, second = bus.sent
    assert first == second
    assert json.loads(first.body)["submission_id"] == first.message_id
    assert b'"order":{"b":1.50,"a":2}' in first.body


@pytest.mark.parametrize("source", ["scheduler", "agent-replies", "unknown", "dead-letters"])
def test_a_source_that_a_sender_may_have_forged_is_not_believed(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    bus.reject(b'{"kind":"command"}', source)
    assert redrive(REJECTED, "--all") == 1
    assert bus.sent == []
    assert f"a sender can forge its source '{source}'" in capsys.readouterr().err
    assert redrive(REJECTED, "--all", "--to", "callbacks") == 0
    assert [message.queue for message in bus.sent] == ["callbacks"]


def test_a_dead_letter_goes_back_to_its_queue_with_its_first_id_and_without_its_age(
    bus: QueuesInMemory,
) -> None:
    past = {TIMES: "3", FIRST_AT: "x", "DeadLetterReason": "r", "traceparent": "00-1"}
    bus.put("scheduler" + DEAD, b"{}", properties=past, correlation_id="c", source="scheduler")
    assert redrive("scheduler", "--dead-letter", "--all") == 0
    (copy,) = bus.sent
    assert (copy.queue, copy.body, copy.correlation_id) == ("scheduler", b"{}", "c")
    assert copy.message_id != "m-1"
    assert copy.properties == {
        FIRST_ID: "m-1",
        AGAIN: "yes",
        TIMES: "3",
        "traceparent": "00-1",
    }


def test_a_dead_letter_of_dead_letters_keeps_its_reason_and_its_source(bus: QueuesInMemory) -> None:
    past = {TIMES: "3", "DeadLetterReason": "r"}
    bus.put("dead-letters" + DEAD, b"{}", properties=past, source="orders")
    bus.put("dead-letters" + DEAD, b"{}", properties={SOURCE: "callbacks"})
    assert redrive("dead-letters", "--dead-letter", "--all") == 0
    first, second = bus.sent
    properties = {FIRST_ID: "m-1", AGAIN: "yes", TIMES: "3", "DeadLetterReason": "r"}
    assert first.properties == properties | {SOURCE: "orders"}
    assert second.properties == {FIRST_ID: "m-2", AGAIN: "yes", SOURCE: "callbacks"}


def test_only_the_messages_that_are_named_are_sent(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.put(SHOP + DEAD, b"1", b"2", b"3")
    assert redrive(SHOP, "--dead-letter", "--id", "m-2", "--id", "m-9") == 1
    assert [message.body for message in bus.sent] == [b"2"]
    assert "sas: there is no m-9 among the first 1,000" in capsys.readouterr().err


def test_a_dry_run_sends_nothing(bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]) -> None:
    bus.reject(ORDER)
    assert redrive(REJECTED, "--all", "--dry-run") == 0
    assert bus.sent == []
    assert capsys.readouterr().out.splitlines() == [
        "redrive of 1 message of orders-rejected: 1 to orders",
        "  A-1                   orders-rejected -> orders",
    ]


def test_more_than_ten_are_not_sent_without_a_yes(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.put(SHOP + DEAD, *[b"{}"] * 11)
    monkeypatch.setattr("sys.stdin", None)
    assert redrive(SHOP, "--dead-letter", "--all") == USAGE
    assert "give --yes. Nothing was sent." in capsys.readouterr().err
    assert redrive(SHOP, "--dead-letter", "--all", "--yes") == 0
    assert len(bus.sent) == 11


def test_an_outage_in_between_says_how_many_were_sent_and_the_rest_stays(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.put(SHOP + DEAD, b"1", b"2", b"3")
    bus.fail_after = 2
    assert redrive(SHOP, "--dead-letter", "--all") == UNAVAILABLE
    text = capsys.readouterr().err
    assert "sas: at least 2 of 3 were sent and nothing is lost: repeat the command" in text
    assert "sas: the bus is away." in text
    assert [message.body for message in bus.waiting[SHOP + DEAD]] == [b"3"]


def test_messages_that_could_not_be_removed_are_reported(
    bus: QueuesInMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    bus.put(SHOP + DEAD, b"1")
    bus.removes = False
    assert redrive(SHOP, "--dead-letter", "--all") == 1
    assert (
        "some messages were sent and not removed: the next redrive sends them again"
        in capsys.readouterr().err
    )


def test_a_wrong_setting_is_reported(bus: QueuesInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAS_QUEUE_ORDERS", "scheduler")
    assert main(["queues"]) == USAGE
    assert asyncio.run(bus.peek("orders", 1)) == []
