"""``sas show ORDER_ID``: everything about one order, and what to do next."""

from __future__ import annotations

import argparse
import asyncio
import os
from datetime import UTC, datetime

from sas.cli import output, page, storage
from sas.cli.errors import NotThereError, UsageError
from sas.codec.record import record_of, to_line
from sas.domain.ids import check_order_id
from sas.domain.order import Order
from sas.features.claim_check import ClaimCheck
from sas.ports import StateStore

SUMMARY = "show one order: its steps, its journal, what to do next"
DESCRIPTION = """\
Show one order: the five fields of the order and of each step, how each undo stands, each error,
the journal (when, what, by whom, what was sent because of it), and what to do next.

  sas show 10248
  sas show 10248 --json --content
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("order_id", metavar="ORDER_ID")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--content",
        action="store_true",
        help="with --json: also what was ordered and what agents returned (may be personal)",
    )
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    where = storage.read(arguments, os.environ)
    if arguments.content and not arguments.json:
        raise UsageError("--content needs --json: a page shows no content")
    return asyncio.run(_show(where, arguments))


async def load(store: StateStore, order_id: str) -> Order:
    """Return an order.

    Raises:
        UsageError: the id cannot be an order's.
        NotThereError: there is no such order.
    """
    try:
        check_order_id(order_id)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from None
    order = await store.load(order_id)
    if order is None:
        raise NotThereError(
            f"there is no order {order_id!r} here: check the id, and that --storage and --table "
            "are the app's; a finished one may have been purged"
        )
    return order


async def _show(where: storage.Storage, arguments: argparse.Namespace) -> int:
    async with storage.opened(where) as store:
        order = await load(store, arguments.order_id)
        journal = await store.journal(order.order_id)
        if arguments.content:
            order = await ClaimCheck(store).fetch_all(order)
    if arguments.json:
        output.say(to_line(record_of(order, journal, content=arguments.content)))
    else:
        for line in page.lines(order, journal, datetime.now(UTC)):
            output.say(line)
    return 0
