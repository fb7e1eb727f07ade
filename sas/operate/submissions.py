"""Orders to submit, and what becomes of them: what ``sas submit`` knows.

An item of the input has one of two forms:

- a full order message, which has the members ``order`` and ``workflow``;
- a bare order: it has an ``order_id``, and all other members are the order's content.

``read_items`` holds one order in memory at a time. ``read_ahead`` reads in a thread, so that a slow
pipe never delays notifications. ``SubmissionTracker`` holds the ids of orders that have not ended,
and otherwise only counts and a limited number of ids.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from sas.client import NewOrder, is_end
from sas.codec.external import Notification, event_type, notice_of
from sas.codec.orders import ORDER_BYTES_LIMIT, OrderMessage
from sas.codec.strict import MalformedError, Reason, convert, parse
from sas.domain.messages import Notice
from sas.domain.order import OrderState
from sas.operate.errors import UsageError

ITEM_BYTES_MAX = 2 * ORDER_BYTES_LIMIT
"""The longest text of one item, with its indentation. The client has its own limit for orders."""
AHEAD_MAX = 1000
"""How many items are read ahead at most. This limits memory, however long the input is."""
REMEMBERED_MAX = 10_000
"""How many ids of ended orders are remembered."""

_REJECTED = event_type(Notice.REJECTED)
_RECEIVED = event_type(Notice.RECEIVED)
_END_OF_STATE = {
    OrderState.PROCESSED.value: Notice.COMPLETED.value,
    OrderState.ERROR.value: Notice.FAILED.value,
    OrderState.COMPENSATED.value: Notice.UNDONE.value,
    OrderState.REJECTED.value: Notice.REJECTED.value,
}


# -- The input --------------------------------------------------------------------------------


class InputError(Exception):
    """The input cannot be used. ``line`` is the number of the bad line, from 1."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True, slots=True)
class InputItem:
    """An order, and the line of the input on which it begins."""

    line: int
    order: NewOrder


@dataclass(frozen=True, slots=True)
class Defaults:
    """The members that an item gets if it does not have them itself.

    ``workflow`` is called for each such item. It raises UsageError if there is none.
    """

    reply_queue: str
    workflow: Callable[[], str]


def read_items(source: BinaryIO, defaults: Defaults) -> Iterator[InputItem]:
    """Yield the orders of a source.

    Raises:
        InputError: an item is not an order, or there is none. The items before it were yielded.
    """
    has_orders = False
    for line, text in _values(source):
        has_orders = True
        try:
            yield InputItem(line, to_order(text, defaults))
        except (MalformedError, UsageError) as error:
            raise InputError(line, str(error)) from None
    if not has_orders:
        raise InputError(1, "the input holds no orders: give a JSON object or JSON Lines")


def to_order(text: bytes, defaults: Defaults) -> NewOrder:
    """Return the order of one item. The content of each member stays as it was written.

    Raises:
        MalformedError: the item is not an order.
        UsageError: it names no workflow, and there is none to take.
    """
    if not isinstance(parse(text), dict):
        raise MalformedError(Reason.INVALID, "this is not a JSON object: give an order as {...}")
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if "order" in members and "workflow" in members:
        return _of_message(members, defaults)
    if "order_id" not in members:
        raise MalformedError(
            Reason.INVALID, "the order has no order_id: give every order an id of its own"
        )
    order_id = msgspec.json.decode(members.pop("order_id"))
    if not isinstance(order_id, str):
        raise MalformedError(Reason.INVALID, "order_id is not a text: give it in quotes")
    content = msgspec.Raw(msgspec.json.encode(members))
    return NewOrder(order_id=order_id, order=content, workflow=defaults.workflow())


def _of_message(members: dict[str, msgspec.Raw], defaults: Defaults) -> NewOrder:
    reply_queue = msgspec.Raw(msgspec.json.encode(defaults.reply_queue))
    message = convert(msgspec.json.encode({"reply_queue": reply_queue} | members), OrderMessage)
    if message.reply_queue != defaults.reply_queue:
        raise MalformedError(
            Reason.INVALID,
            f"its reply_queue is {message.reply_queue!r}, this command's is "
            f"{defaults.reply_queue!r}: leave the member out, or give the same --reply-queue",
        )
    return NewOrder(
        order_id=message.order_id,
        order=message.order,
        workflow=message.workflow,
        correlation_id=message.correlation_id,
        submission_id=message.submission_id,
        workflow_version=message.workflow_version,
    )


def _values(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the text of each item, with the number of its first line.

    If the first line is a whole JSON value, the input is JSON Lines. Otherwise it is one object.
    """
    number, first_line = 0, b""
    while not first_line.strip():
        number, first_line = number + 1, _line(source, number + 1)
        if number == 1:
            first_line = first_line.removeprefix(codecs.BOM_UTF8)
        if not first_line:
            return
    if first_line.lstrip().startswith(b"["):
        hint = "give each order on a line of its own (jq -c '.[]' FILE)"
        raise InputError(number, f"this is not a JSON object but an array: {hint}")
    if _is_json(first_line):
        yield number, first_line
        yield from _lines(source, number)
    else:
        yield number, _object(source, number, first_line)


def _lines(source: BinaryIO, number: int) -> Iterator[tuple[int, bytes]]:
    while line := _line(source, number := number + 1):
        if line.strip():
            yield number, line


def _line(source: BinaryIO, number: int) -> bytes:
    line = source.readline(ITEM_BYTES_MAX + 1)
    if len(line) > ITEM_BYTES_MAX:
        raise InputError(
            number, f"longer than {ITEM_BYTES_MAX:,} bytes: an order is never that large"
        )
    return line


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return True  # It is nested too deeply. ``to_order`` refuses it with a clear error.
    except ValueError:
        return False
    return True


def _object(source: BinaryIO, number: int, first_line: bytes) -> bytes:
    """Return the only object of a source, which has it on several lines.

    If the whole text is no JSON, the error is about the first line.
    """
    text = first_line + source.read(ITEM_BYTES_MAX)
    if _is_json(text):
        return text
    try:
        parse(first_line)
    except MalformedError as error:
        hint = " (JSON Lines: one whole object a line; or a single object)"
        raise InputError(number, error.description + hint) from None
    return first_line


async def read_ahead(items: Iterator[InputItem], limit: int) -> AsyncGenerator[Sequence[InputItem]]:
    """Yield the items in lists of 1 to ``limit``. A thread of its own reads the iterator ahead.

    The thread is a daemon: it may wait for the next line of a terminal, and the process must be
    able to end meanwhile.

    Raises:
        Exception: the error of the iterator, after all items before it were yielded.
    """
    loop = asyncio.get_running_loop()
    ahead: asyncio.Queue[InputItem | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(AHEAD_MAX)

    def pull() -> None:
        end: Exception | None = None
        with suppress(RuntimeError):  # the loop has ended
            try:
                for item in items:
                    room.acquire()
                    loop.call_soon_threadsafe(ahead.put_nowait, item)
            except Exception as error:  # noqa: BLE001  # the reader of ``ahead`` raises it
                end = error
            loop.call_soon_threadsafe(ahead.put_nowait, end)

    threading.Thread(target=pull, name="input", daemon=True).start()
    while True:
        batch = [await ahead.get()]
        while len(batch) < limit and not ahead.empty():
            batch.append(ahead.get_nowait())
        items_read = [item for item in batch if isinstance(item, InputItem)]
        if items_read:
            room.release(len(items_read))
            yield items_read
        if isinstance(batch[-1], Exception):
            raise batch[-1]
        if batch[-1] is None:
            return


# -- What becomes of the orders ---------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SubmissionTracker:
    """The progress of ``sas submit``: how many orders ended, how they ended, and which have not.

    ``waiting`` has the ids of orders that have not ended, and ``_ended`` those of the last that
    have. An order that the input has again counts as ``repeated``: the first is followed.
    ``others`` counts notifications of orders that this command did not send.
    """

    submitted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    others: int = 0
    waiting: dict[str, None] = field(default_factory=dict)
    all_sent: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    _ended: dict[str, None] = field(default_factory=dict)

    def expect(self, order_id: str) -> None:
        """Expect notifications of an order. Call this before sending: they may come at once."""
        if order_id in self.waiting or order_id in self._ended:
            self.repeated += 1
        else:
            self.waiting[order_id] = None

    def forget(self, order_id: str) -> None:
        """Forget an order that was not sent."""
        self.waiting.pop(order_id, None)

    def sending_ended(self) -> None:
        """Note that all orders are sent. The time without notifications counts from now on."""
        self.all_sent = True
        self.heard_at = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether all orders were sent and have ended."""
        return self.all_sent and not self.waiting

    @property
    def went_well(self) -> bool:
        """Whether no order waits, and all that ended were completed."""
        return not self.waiting and self.ends.total() == self.ends[Notice.COMPLETED.value]

    def quiet_s(self) -> float:
        """Return how many seconds ago the last notification came, or the last order was sent."""
        return time.monotonic() - self.heard_at

    def note(self, notification: Notification) -> bool:
        """Count a notification. Return whether it is of an order of this command.

        After the end of an order more may come: a step that ran in parallel with a failed step may
        complete later, and an order with the same id may be rejected because it differs.
        """
        self.heard_at = time.monotonic()
        order_id = notification.data.order_id
        if order_id not in self.waiting and order_id not in self._ended:
            self.others += 1
            return False
        is_rejected = notification.type == _REJECTED
        if is_rejected or (is_end(notification) and order_id in self.waiting):
            self.ends[_end_of(notification)] += 1
            self.waiting.pop(order_id, None)
            self._ended[order_id] = None
            if len(self._ended) > REMEMBERED_MAX:
                del self._ended[next(iter(self._ended))]
        return True

    def counts(self) -> dict[str, int]:
        """Return the counts of the summary. The last two are left out if they are 0."""
        extra = {"repeated": self.repeated, "of_other_orders": self.others}
        return {
            "submitted": self.submitted,
            **{end: self.ends[end] for end in _END_OF_STATE.values()},
            "unfinished": len(self.waiting),
            **{name: count for name, count in extra.items() if count},
        }


def _end_of(notification: Notification) -> str:
    """Return how an order ended.

    That of an order that had ended before is known from the answer, which has its state.
    """
    if notification.type == _RECEIVED:
        return _END_OF_STATE.get(notification.data.state, Notice.FAILED.value)
    return notice_of(notification.type)
