"""``sas submit FILE``: send orders and, if wished, follow them to their end."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from sas.cli import connection
from sas.cli.errors import UsageError

SUMMARY = "send orders to the orders queue, and follow them to their end"
DESCRIPTION = """\
Send orders to the orders queue. FILE holds one JSON object, an array of them, or JSON Lines
(one object a line); - reads them from stdin as they come. Each is either

  an order message   {"order_id": "A-1", "workflow": "order", "order": {...}}
  or a bare order    {"order_id": "A-1", ...}: every other member is its content

With --follow, each notification from the response queue is printed as a line on stdout, and a
summary at the end. Use a response queue that nobody else reads: notifications are taken off it.

  export ServiceBus='Endpoint=sb://...'  SAS_REPLY_QUEUE=responses-me
  sas submit samples/northwind-orders.jsonl --follow
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("file", metavar="FILE", help="JSON or JSON Lines; - for stdin")
    parser.add_argument("--follow", action="store_true", help="print what becomes of the orders")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")
    parser.add_argument(
        "--urgent", action="store_true", help="send them by the lane that overtakes all others"
    )
    parser.add_argument(
        "--patience",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="with --follow: give up when nothing has come for so long after the last order "
        "was sent (default: 300)",
    )
    parser.add_argument(
        "--workflow", default="order", metavar="NAME", help="of bare orders (default: order)"
    )
    parser.add_argument(
        "--correlation-prefix",
        metavar="TEXT",
        help="give each order without a correlation id this text and its order id as one",
    )
    connection.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Submit; return the exit code."""
    # Slow to import (Azure's SDK), and not needed for --help.
    from sas.cli.reading import Defaults, read_items  # noqa: PLC0415
    from sas.cli.submission import Plan, submit_and_follow  # noqa: PLC0415

    where = connection.read(arguments, os.environ)
    defaults = Defaults(where.reply_queue, arguments.workflow, arguments.correlation_prefix)
    with _opened(arguments.file) as source:
        plan = Plan(
            connection=where,
            items=read_items(source, defaults),
            follow=arguments.follow,
            json=arguments.json,
            patience_s=arguments.patience,
            urgent=arguments.urgent,
        )
        return asyncio.run(submit_and_follow(plan))


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name == "-":
        return nullcontext(_stdin())
    try:
        return Path(name).open("rb")
    except OSError as wrong:
        raise UsageError(
            f"cannot read {name}: {wrong.strerror}; give a file, or - for stdin"
        ) from None


def _stdin() -> BinaryIO:
    """Return stdin with a buffer of its own.

    At its end the interpreter locks ``sys.stdin``'s buffer, which a thread that is still
    waiting for a line would hold.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)  # an fd
    except (OSError, ValueError, AttributeError):  # no real file: a test's, an embedder's
        return sys.stdin.buffer


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 7 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds, more than 0, at most a week")
    return value
