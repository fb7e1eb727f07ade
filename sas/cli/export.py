"""``sas export FILE``: finished orders with their journals, as JSON Lines."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from sas.cli import finding, output, page, storage
from sas.cli.errors import UsageError
from sas.codec.record import record_of, to_line
from sas.domain.order import Order, OrderState
from sas.features.claim_check import ClaimCheck
from sas.ports import StateStore

SUMMARY = "write finished orders to a file, as JSON Lines"
DESCRIPTION = """\
Write finished orders (processed, compensated, rejected) with their content and their journals, one
JSON object a line, the oldest first. FILE appears when it is whole; - writes to stdout as it goes.
Nothing is removed. The content may be personal: keep the file as you keep such data.

  sas export --older-than 30 finished.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("file", metavar="FILE", help="where to; - for stdout")
    parser.add_argument(
        "--older-than",
        type=_days,
        default=0.0,
        metavar="DAYS",
        help="only what was finished so many days ago or earlier (default: all)",
    )
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Export; return the exit code."""
    where = storage.read(arguments, os.environ)
    until = datetime.now(UTC) - timedelta(days=arguments.older_than)
    return asyncio.run(_export(where, arguments.file, until))


async def _export(where: storage.Storage, name: str, until: datetime) -> int:
    count = 0
    async with storage.opened(where) as store:
        with _written(name) as file:
            async for orders in _finished(store, until):
                lines = await asyncio.gather(*(_line(store, one, until) for one in orders))
                for line in lines:
                    if line is not None:
                        file.write(f"{line}\n")
                        count += 1
    output.complain(f"exported {page.orders(count)}")
    return 0


async def _line(store: StateStore, order: Order, until: datetime) -> str | None:
    """Return an order as a line; None where it was purged, or taken up again, while it was read."""
    while True:
        journal = await store.journal(order.order_id)
        line = to_line(record_of(await ClaimCheck(store).fetch_all(order), journal, content=True))
        now = await store.load(order.order_id)
        if now is None or not _ended(now, until):
            return None
        if now.token == order.token:
            return line
        order = now


async def _finished(store: StateStore, until: datetime) -> AsyncIterator[Sequence[Order]]:
    """Yield finished orders, a few at a time: their content is read at once."""
    async for batch in finding.summaries(store, in_error=False, until=until):
        ids = [one.order_id for one in batch]
        for start in range(0, len(ids), finding.AT_ONCE):
            loaded = await finding.load_all(store, ids[start : start + finding.AT_ONCE])
            yield [order for order in loaded if _ended(order, until)]


def _ended(order: Order, until: datetime) -> bool:
    in_error = order.process_state is OrderState.ERROR
    return order.settled_at is not None and order.settled_at <= until and not in_error


@contextmanager
def _written(name: str) -> Iterator[TextIO]:
    """Give a file to write that takes its name once it is whole."""
    if name == "-":
        with output.written():
            yield sys.stdout
            sys.stdout.flush()
        return
    part = Path(f"{name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=_own) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(name)
    except OSError as wrong:
        raise UsageError(f"cannot write {name}: {wrong.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _own(path: str, flags: int) -> int:
    """Open a file that only its owner reads: what is in it may be personal."""
    return os.open(path, flags, 0o600)


def _days(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 36_500:
        raise argparse.ArgumentTypeError(f"{text!r}: give days, from 0 to 36500")
    return value
