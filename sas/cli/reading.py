"""Read orders from a file that holds one JSON object, or JSON Lines.

An item of the input has one of two forms:

- a full order message, which has the members ``order`` and ``workflow``;
- a bare order: it has an ``order_id``, and all other members are the order's content.

``read_items`` holds one order in memory at a time. ``Feed`` reads ahead in a thread, so that a slow
pipe never delays notifications.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from sas.client import NewOrder
from sas.codec.orders import ORDER_BYTES_LIMIT, OrderMessage
from sas.codec.strict import MalformedError, Reason, convert, parse
from sas.operate.errors import UsageError

ITEM_BYTES_MAX = 2 * ORDER_BYTES_LIMIT
"""The longest text of one item, with its indentation. The client has its own limit for orders."""
AHEAD_MAX = 1000
"""How many items are read ahead at most. This limits memory, however long the input is."""


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


class Feed:
    """Gives the items of an iterator to the event loop. A thread of its own reads the iterator.

    The thread is a daemon: it may wait for the next line of a terminal, and the process must be
    able to end meanwhile.

    The thread appends to ``_ahead`` and sets ``_ended`` and ``_error``. ``take`` removes items from
    ``_ahead``, and ``close`` sets ``_closed``. ``_changed`` guards all of them except ``_error``,
    which the thread sets before ``_ended``. ``_wake`` tells ``take`` to look again.
    """

    def __init__(self, items: Iterator[InputItem]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._changed = threading.Condition()
        self._ahead: deque[InputItem] = deque()
        self._ended = False
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._pull, name="input", daemon=True)
        self._thread.start()

    async def take(self, limit: int) -> list[InputItem]:
        """Return the next items: from 1 to ``limit`` of them, or none at the end.

        Raises:
            Exception: the error of the iterator, after all items before it were taken.
        """
        while True:
            self._wake.clear()
            with self._changed:
                items = [self._ahead.popleft() for _ in range(min(limit, len(self._ahead)))]
                self._changed.notify()
                if items:
                    return items
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return []
            await self._wake.wait()

    def close(self) -> None:
        """Let the thread end as soon as it has read the next item."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _pull(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._ahead) < AHEAD_MAX)
                    if self._closed:
                        return
                    self._ahead.append(item)
                    was_empty = len(self._ahead) == 1
                if was_empty:
                    self._wake_taker()
        except Exception as error:  # noqa: BLE001  # ``take`` raises it
            self._error = error
        with self._changed:
            self._ended = True
        self._wake_taker()

    def _wake_taker(self) -> None:
        with self._changed:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._wake.set)
