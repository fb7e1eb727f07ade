"""Orders to submit: how they are read, and how those that have ended are counted."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.client import NewOrder
from sas.operate.submissions import (
    AHEAD_MAX,
    ITEM_BYTES_MAX,
    REMEMBERED_MAX,
    Defaults,
    InputError,
    InputItem,
    SubmissionTracker,
    read_ahead,
    read_items,
)
from tests.client_link_kit import notification

# -- The input --------------------------------------------------------------------------------

DEFAULTS = Defaults("responses-web-shop", lambda: "order")


def read(text: str, defaults: Defaults = DEFAULTS) -> list[InputItem]:
    source = io.BytesIO(text.encode("utf-8", "surrogateescape"))
    return list(read_items(source, defaults))


def content(item: InputItem) -> Any:
    assert isinstance(item.order.order, msgspec.Raw)
    return json.loads(bytes(item.order.order))


def fails(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read(text)
    return caught.value


BARE = [{"order_id": f"A-{n}", "lines": [{"n": n}], "city": "Münster"} for n in range(3)]
FORMS = {
    "lines": "\n".join(json.dumps(order) for order in BARE),
    "lines with an end": "".join(json.dumps(order) + "\n" for order in BARE),
    "Windows lines": "".join(json.dumps(order) + "\r\n" for order in BARE),
    "blank lines": "\n\n" + "\n \n\n".join(json.dumps(order) for order in BARE) + "\n\n",
    "lines, not escaped": "\n".join(json.dumps(order, ensure_ascii=False) for order in BARE),
    "byte order mark": "\ufeff" + "\n".join(json.dumps(order) for order in BARE),
}


def test_every_form_of_a_file_gives_the_same_orders() -> None:
    for form, text in FORMS.items():
        items = read(text)
        assert [item.order.order_id for item in items] == ["A-0", "A-1", "A-2"], form
        assert [content(item) for item in items] == [
            {"lines": [{"n": n}], "city": "Münster"} for n in range(3)
        ], form


def test_a_bare_order_is_its_id_and_its_content_to_the_byte() -> None:
    [item] = read('{"price": 1.10, "order_id": "A-1", "more": {"order_id": 2, "x": 1e2}}')
    assert item.order == NewOrder(
        order_id="A-1",
        order=msgspec.Raw(b'{"price":1.10,"more":{"order_id": 2, "x": 1e2}}'),
        workflow="order",
    )


def test_a_full_order_message_keeps_all_its_members() -> None:
    message = {
        "order_id": "A-1",
        "workflow": "order-with-care",
        "reply_queue": "responses-web-shop",
        "correlation_id": "basket-7",
        "submission_id": "s-1",
        "workflow_version": 2,
        "order": {"n": 1},
    }
    [item] = read(json.dumps(message), DEFAULTS)
    assert item.order == NewOrder(
        order_id="A-1",
        order=msgspec.Raw(b'{"n": 1}'),
        workflow="order-with-care",
        correlation_id="basket-7",
        submission_id="s-1",
        workflow_version=2,
    )


def test_a_file_may_hold_one_object() -> None:
    for indent in (None, 2):
        [item] = read("\n" + json.dumps(BARE[0], indent=indent))
        assert (item.order.order_id, item.line) == ("A-0", 2)


def test_an_order_message_for_another_reply_queue_is_refused_with_both_names() -> None:
    other = {"order_id": "A", "workflow": "w", "order": {}, "reply_queue": "responses-other"}
    error = fails(json.dumps(other))
    assert "'responses-other'" in str(error)
    assert "'responses-web-shop'" in str(error)


GOOD = '{"order_id": "A-1"}'
BAD = {
    "nothing": ("", 1, "holds no orders"),
    "only spaces": ("\n \n", 1, "holds no orders"),
    "only a mark": ("\ufeff", 1, "holds no orders"),
    "not JSON": ("order A-1 please", 1, "not JSON"),
    "broken second line": (GOOD + '\n{"order_id": \n' + GOOD, 2, "not JSON"),
    "broken first line": ('{"order_id": \n' + GOOD + "\n" + GOOD, 1, "one whole object a line"),
    "two on a line": (GOOD + "\n" + GOOD + GOOD, 2, "not JSON"),
    "two indented objects": ('{\n"order_id": "A"\n}\n{\n"order_id": "B"\n}', 1, "JSON Lines"),
    "no id": (GOOD + '\n{"id": 1}', 2, "no order_id"),
    "id a number": ('{"order_id": 7}', 1, "order_id is not a text: give it in quotes"),
    "a number": (GOOD + "\n\n7", 3, "is not a JSON object"),
    "a nested array": (GOOD + "\n[" + GOOD + "]", 2, "is not a JSON object"),
    "NaN": ('{"order_id": "A", "n": NaN}', 1, "send a finite number"),
    "a member twice": ('{"order_id": "A", "n": 1, "n": 2}', 1, "there twice"),
    "unknown member": ('{"order_id": "A", "workflow": "w", "order": {}, "x": 1}', 1, "`x`"),
    "no id in a message": ('{"workflow": "w", "order": {}}', 1, "`order_id`"),
    "too deep": ("[" * 100_000, 1, "is not a JSON object"),
    "too deep a line": (GOOD + '\n{"order_id": "A", "x": ' + "[" * 100_000, 2, "flatten"),
    "an array": ("[" + GOOD + "]", 1, "each order on a line of its own"),
    "not UTF-8": ('{"order_id": "\udcfc"}', 1, "not UTF-8"),
    "not an order": ("true", 1, "is not a JSON object"),
}


def test_bad_input_is_refused_with_its_line_and_what_to_do() -> None:
    for name, (text, line, part) in BAD.items():
        error = fails(text)
        assert error.line == line, name
        assert str(error).startswith(f"line {line}: "), name
        assert part in str(error), name
    for start in ("", GOOD + "\n"):
        error = fails(start + '{"order_id": "' + "x" * (3 * ITEM_BYTES_MAX))
        assert "longer than" in str(error) or "not JSON" in str(error)


class Endless(io.RawIOBase):
    """A source that never ends, and counts what was read of it."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.read_bytes = 0
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._left) < len(buffer):
            self._left += next(self._pieces)
        buffer[:] = self._left[: len(buffer)]
        self._left = self._left[len(buffer) :]
        self.read_bytes += len(buffer)
        return len(buffer)


def endless(separator: bytes) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        yield b'{"order_id": "A-%d", "x": "%s"}%s' % (number, b"y" * 200, separator)


def test_a_file_without_end_is_read_as_it_is_used() -> None:
    raw = Endless(endless(b"\n"))
    items = read_items(io.BufferedReader(raw), DEFAULTS)
    for number in range(1, 5001):
        assert next(items).order.order_id == f"A-{number}"
    assert raw.read_bytes < 5001 * 240 + 4 * ITEM_BYTES_MAX


@given(st.binary(max_size=200) | st.text(alphabet='[]{},:"\\ \n1ae', max_size=60).map(str.encode))
def test_any_bytes_are_orders_or_refused(text: bytes) -> None:
    try:
        items = list(read_items(io.BytesIO(text), DEFAULTS))
    except InputError as error:
        outcome = str(error)
    else:
        outcome = f"{len(items)} orders"
    assert outcome.endswith("orders") or outcome.startswith("line ")


# -- Read ahead ------------------------------------------------------------------------------


def items(count: int) -> Iterator[InputItem]:
    for number in range(count):
        yield InputItem(number, NewOrder(order_id=f"A-{number}", order={}))


async def until(true: Callable[[], bool]) -> None:
    """Wait for what a thread does; a test that times out fails."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)  # no event tells it


async def test_everything_comes_out_once_and_in_order() -> None:
    for count in (0, 5000):
        batches = [[item.line for item in batch] async for batch in read_ahead(items(count), 300)]
        assert max(map(len, batches), default=0) <= 300
        assert [line for batch in batches for line in batch] == list(range(count))


async def test_no_more_is_read_ahead_than_the_bound() -> None:
    lines_read: list[int] = []

    def counted() -> Iterator[InputItem]:
        for item in items(10 * AHEAD_MAX):
            lines_read.append(item.line)
            yield item

    batches = read_ahead(counted(), 10)
    count = len(await anext(batches))
    await until(lambda: len(lines_read) > AHEAD_MAX)
    await asyncio.sleep(0.1)
    assert len(lines_read) == AHEAD_MAX + count + 1
    count += len(await anext(batches))
    await until(lambda: len(lines_read) == AHEAD_MAX + count + 1)


async def test_an_item_is_handed_on_while_the_next_is_waited_for() -> None:
    next_item = threading.Event()

    def slow() -> Iterator[InputItem]:
        yield from items(1)
        next_item.wait(120)
        yield from items(1)

    batches = read_ahead(slow(), 500)
    assert len(await asyncio.wait_for(anext(batches), 120)) == 1
    next_item.set()
    assert [len(batch) async for batch in batches] == [1]


async def test_an_error_comes_after_what_was_read_before_it() -> None:
    def bad() -> Iterator[InputItem]:
        yield from items(3)
        raise InputError(4, "no")

    lines_read: list[int] = []

    async def read() -> None:
        async for batch in read_ahead(bad(), 2):
            lines_read.extend(item.line for item in batch)

    with pytest.raises(InputError, match="line 4: no"):
        await read()
    assert lines_read == [0, 1, 2]


# -- What becomes of the orders --------------------------------------------------------------


def expecting(*order_ids: str) -> SubmissionTracker:
    tally = SubmissionTracker(submitted=len(order_ids))
    for order_id in order_ids:
        tally.expect(order_id)
    tally.sending_ended()
    return tally


def test_each_end_of_an_order_is_counted_as_what_it_is() -> None:
    endings: list[tuple[str, dict[str, Any], str]] = [
        ("completed", {}, "completed"),
        ("undone", {}, "undone"),
        ("rejected", {}, "rejected"),
        ("failed", {"awaits": "operator"}, "failed"),
        ("received", {"duplicate": True, "state": "Processed"}, "completed"),
        ("received", {"duplicate": True, "state": "Compensated"}, "undone"),
        ("received", {"duplicate": True, "state": "Error"}, "failed"),
        ("received", {"duplicate": True, "state": "Rejected"}, "rejected"),
    ]
    for notice, data, end in endings:
        tally = expecting("A", "B")
        assert tally.note(notification("A", notice, **data))
        assert (tally.ends[end], tally.ends.total(), tally.finished) == (1, 1, False)
        tally.note(notification("B", "completed"))
        assert tally.finished
        assert tally.went_well is (end == "completed")


def test_a_notification_that_is_not_an_end_leaves_the_order_waiting() -> None:
    others: list[tuple[str, dict[str, Any]]] = [
        ("received", {}),
        ("step-completed", {"step": "ship"}),
        ("failed", {"awaits": "undo"}),
        ("received", {"duplicate": True, "state": "Processing"}),
        ("greeting", {}),
    ]
    for notice, data in others:
        tally = expecting("A")
        assert tally.note(notification("A", notice, **data))
        assert (tally.ends.total(), tally.finished, tally.went_well) == (0, False, False)
        assert tally.counts()["unfinished"] == 1


def test_a_notification_delivered_twice_is_counted_once() -> None:
    tally = expecting("A", "B")
    for _ in range(2):
        tally.note(notification("A", "completed"))
    assert tally.counts() == {
        "submitted": 2, "completed": 1, "failed": 0, "undone": 0, "rejected": 0, "unfinished": 1,
    }  # fmt: skip


def test_notifications_of_other_orders_are_counted_and_not_printed() -> None:
    tally = expecting("A")
    assert not tally.note(notification("Z", "failed", awaits="operator"))  # it is not printed
    assert tally.note(notification("A", "completed"))
    assert tally.went_well
    assert tally.counts()["of_other_orders"] == 1


def test_notifications_after_an_orders_end_belong_to_that_order() -> None:
    """A step that ran beside the failed one is notified after the end of the order."""
    tally = expecting("A", "B")
    tally.note(notification("A", "failed", awaits="operator"))
    assert tally.note(notification("A", "step-completed", step="pay"))
    assert "of_other_orders" not in tally.counts()


def test_the_same_order_twice_is_one_end_and_one_repeat() -> None:
    tally = expecting("A", "A")
    tally.note(notification("A", "received"))
    tally.note(notification("A", "received", duplicate=True, state="Processing"))
    tally.note(notification("A", "completed"))
    tally.expect("A")
    assert tally.finished
    assert tally.went_well
    assert tally.counts()["repeated"] == 2


def test_another_order_under_the_id_of_one_that_ended_is_rejected_and_told() -> None:
    tally = expecting("A", "A")
    tally.note(notification("A", "completed"))
    tally.note(notification("A", "rejected"))
    assert (tally.ends["completed"], tally.ends["rejected"], tally.went_well) == (1, 1, False)


def test_nothing_is_finished_while_orders_are_still_being_sent() -> None:
    tally = SubmissionTracker()
    finished = [tally.finished]
    tally.expect("A")
    tally.note(notification("A", "completed"))
    finished.append(tally.finished)
    tally.heard_at -= 3600
    tally.sending_ended()
    assert tally.quiet_s() < 3600, "the quiet time begins with the end of sending"
    finished.append(tally.finished)
    assert finished == [False, False, True]


def test_memory_holds_only_what_has_not_ended_and_a_bounded_past() -> None:
    tally = SubmissionTracker()
    for number in range(REMEMBERED_MAX + 500):
        tally.expect(f"A-{number}")
        tally.note(notification(f"A-{number}", "completed"))
    assert (len(tally.waiting), len(tally._ended)) == (0, REMEMBERED_MAX)
