"""Orders from a file: one object, an array, or JSON Lines; one at a time, whatever the size.

An item is a full order message (it has members ``order`` and ``workflow``) or a bare order:
an ``order_id``, all other members being the order's content.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from sas.client.orders import NewOrder
from sas.codec.orders import ORDER_BYTES_LIMIT, OrderMessage
from sas.codec.strict import MalformedError, Reason, convert, parse

ITEM_BYTES_MAX = 2 * ORDER_BYTES_LIMIT
"""One item's text with all its indentation; what is sent of it is bounded by the client."""

_CHUNK = 64 * 1024
_SPACES = re.compile(r"[ \t\r\n]*")


class InputError(Exception):
    """The input cannot be used; ``line`` (from 1) is where."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Item:
    """An order and the line of the input that it begins on."""

    line: int
    order: NewOrder


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an item takes from the command where it does not say so itself."""

    reply_queue: str
    workflow: str = "order"
    correlation_prefix: str | None = None


def read_items(source: BinaryIO, defaults: Defaults) -> Iterator[Item]:
    """Yield the orders of a source.

    Raises:
        InputError: at the first item that is none; those before it were yielded.
    """
    found = False
    for line, text in _values(source):
        found = True
        try:
            yield Item(line, to_order(text, defaults))
        except MalformedError as wrong:
            raise InputError(line, wrong.description) from None
    if not found:
        raise InputError(1, "the input holds no orders: give a JSON object, an array or JSON Lines")


def to_order(text: bytes, defaults: Defaults) -> NewOrder:
    """Return the order that one item says. Its content stays as it was written, to the byte.

    Raises:
        MalformedError: it says none.
    """
    if not isinstance(parse(text), dict):
        raise MalformedError(Reason.INVALID, "this is no JSON object: an order is one, {...}")
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if "order" in members and "workflow" in members:
        return _full(members, defaults)
    if "order_id" not in members:
        raise MalformedError(
            Reason.INVALID, "the order has no order_id: give every order an id of its own"
        )
    order_id = msgspec.json.decode(members.pop("order_id"))
    if not isinstance(order_id, str):
        raise MalformedError(Reason.INVALID, "order_id is no text: give it in quotes")
    content = msgspec.Raw(msgspec.json.encode(members))
    correlation_id = _prefixed(defaults, order_id)
    return NewOrder(order_id, content, defaults.workflow, correlation_id=correlation_id)


def _full(members: dict[str, msgspec.Raw], defaults: Defaults) -> NewOrder:
    ours = msgspec.Raw(msgspec.json.encode(defaults.reply_queue))
    message = convert(msgspec.json.encode({"reply_queue": ours} | members), OrderMessage)
    if message.reply_queue != defaults.reply_queue:
        raise MalformedError(
            Reason.INVALID,
            f"its reply_queue is {message.reply_queue!r}, this command's is "
            f"{defaults.reply_queue!r}: leave the member out, or give the same --reply-queue",
        )
    return NewOrder(
        message.order_id,
        message.order,
        message.workflow,
        correlation_id=message.correlation_id or _prefixed(defaults, message.order_id),
        submission_id=message.submission_id,
        workflow_version=message.workflow_version,
    )


def _prefixed(defaults: Defaults, order_id: str) -> str | None:
    prefix = defaults.correlation_prefix
    return None if prefix is None else f"{prefix}{order_id}"


def _values(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each value's text and line, by the form that the first line shows."""
    number, first = 0, b""
    while not first.strip():
        number, first = number + 1, _line(source, number + 1)
        if number == 1:
            first = first.removeprefix(codecs.BOM_UTF8)
        if not first:
            return
    if first.lstrip().startswith(b"["):
        yield from _array(source, number, first)
    elif _is_whole(first):
        yield number, first
        yield from _lines(source, number)
    else:
        yield number, _object(source, number, first)


def _lines(source: BinaryIO, number: int) -> Iterator[tuple[int, bytes]]:
    while line := _line(source, number := number + 1):
        if line.strip():
            yield number, line


def _line(source: BinaryIO, number: int) -> bytes:
    line = source.readline(ITEM_BYTES_MAX + 1)
    if len(line) > ITEM_BYTES_MAX:
        raise InputError(number, f"longer than {ITEM_BYTES_MAX:,} bytes: no order is that large")
    return line


def _is_whole(text: bytes) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return True  # too deep, which is said where it is parsed
    except ValueError:
        return False
    return True


def _object(source: BinaryIO, number: int, first: bytes) -> bytes:
    """Return the one object that the source holds, over several lines."""
    rest = source.read(ITEM_BYTES_MAX)
    whole = first + rest
    if _is_whole(whole):
        return whole
    try:
        parse(first)
    except MalformedError as wrong:
        hint = " (JSON Lines: one whole object a line; or a single object, or an array)"
        raise InputError(number, wrong.description + hint) from None
    return first


def _array(source: BinaryIO, number: int, first: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of an array, holding one of them at a time."""
    text = _Text(source, number, first)
    text.take("[")
    if text.peek() == "]":
        text.take("]")
    else:
        while True:
            text.peek()  # over what stands between, so that the line is the value's own
            yield text.line, text.value().encode()
            if text.peek() == "]":
                break
            text.take(",")
        text.take("]")
    if left := text.peek():
        raise InputError(text.line, f"something follows the array: {left!r}; remove it")


class _Text:
    """Text read piece by piece: a window that moves over the source."""

    def __init__(self, source: BinaryIO, line: int, first: bytes) -> None:
        self.line = line
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder(parse_int=len, parse_float=len)
        self._ended = False
        self._window = ""
        self._at = 0
        self._add(first)

    def peek(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            spaces = _SPACES.match(self._window, self._at)
            self._move(spaces.end() if spaces else self._at)
            if self._at < len(self._window) or not self._more():
                return self._window[self._at : self._at + 1]

    def take(self, expected: str) -> None:
        """Move over this character.

        Raises:
            InputError: another one is there.
        """
        found = self.peek()
        if found != expected:
            what = repr(found) if found else "the end of the input"
            raise InputError(self.line, f"expected {expected!r} in the array, found {what}")
        self._move(self._at + 1)

    def value(self) -> str:
        """Return the text of the next value, and move over it."""
        if self.peek() != "{":
            raise InputError(self.line, "an element of the array is no JSON object: {...}")
        while True:
            try:
                _, end = self._json.raw_decode(self._window, self._at)
            except RecursionError:
                raise InputError(self.line, "this nests too deep: flatten it") from None
            except ValueError as wrong:
                if len(self._window) - self._at <= ITEM_BYTES_MAX and self._more():
                    continue
                what = str(wrong).partition(": line")[0]
                raise InputError(self.line, f"this is not JSON: {what}") from None
            found = self._window[self._at : end]
            self._move(end)
            return found

    def _move(self, to: int) -> None:
        self.line += self._window.count("\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        """Read on, by as much again as is there; False at the end."""
        if self._ended:
            return False
        self._add(self._source.read(max(_CHUNK, len(self._window) - self._at)))
        return True

    def _add(self, piece: bytes) -> None:
        self._ended = not piece
        try:
            added = self._decoder.decode(piece, final=self._ended)
        except UnicodeDecodeError:
            raise InputError(self.line, "the input is not UTF-8: encode it as UTF-8") from None
        self._window = self._window[self._at :] + added
        self._at = 0
