"""``sas submit FILE``: the arguments of the verb. ``submission`` sends the orders."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from sas.cli import application
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand
from sas.operate.errors import UsageError

DESCRIPTION = """\
Send orders to the orders queue. FILE holds one JSON object, or JSON Lines (one object
a line); - reads stdin as it arrives. Each object is

  an order message   {"order_id": "A-1", "workflow": "order", "order": {...}}
  or a bare order    {"order_id": "A-1", ...}: every other member is its content. Its workflow is
                     that of --workflow, or the only one of the application

With --follow each notification from the response queue is printed as a line on stdout, and a
summary at the end. Give a response queue of your own: notifications are removed from it.

  export ServiceBus='Endpoint=sb://...'  SAS_REPLY_QUEUE=responses-me
  sas submit samples/northwind-orders.jsonl --workflow order --follow
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSON or JSON Lines; - for stdin")
    parser.add_argument("--follow", action="store_true", help="print what becomes of the orders")
    args.add_json(parser)
    parser.add_argument(
        "--urgent",
        action="store_true",
        help="send the orders in the lane that overtakes all others",
    )
    parser.add_argument(
        "--patience",
        type=args.number("seconds", 0.001, 7 * 86_400),
        default=300.0,
        metavar="SECONDS",
        help="with --follow: stop when no notification came for so long, counted from the last "
        "order sent (default: 300)",
    )
    parser.add_argument(
        "--workflow",
        metavar="NAME",
        help="the workflow of bare orders (default: the only one of the application)",
    )
    application.add_argument(parser)
    parser.add_argument(
        "--reply-queue",
        metavar="QUEUE",
        help="your application's own response queue "
        f"(default: the environment's {args.REPLY_QUEUE})",
    )


def _run(arguments: argparse.Namespace) -> int:
    # Slow to import (Azure's SDK), and not needed for --help.
    from sas.cli.reading import Defaults, read_items  # noqa: PLC0415
    from sas.cli.submission import SubmitOptions, submit_and_follow  # noqa: PLC0415

    connection = args.read_connection(arguments.reply_queue, os.environ)
    defaults = Defaults(
        connection.reply_queue, functools.cache(functools.partial(_workflow, arguments))
    )
    with _open_file(arguments.file) as source:
        options = SubmitOptions(
            connection=connection,
            items=read_items(source, defaults),
            follow=arguments.follow,
            json=arguments.json,
            quiet_s=arguments.patience,
            urgent=arguments.urgent,
        )
        return asyncio.run(submit_and_follow(options))


def _workflow(arguments: argparse.Namespace) -> str:
    """Return the workflow of bare orders. The application is loaded only if nobody names it.

    Raises:
        UsageError: it cannot be known.
    """
    if arguments.workflow is not None:
        return str(arguments.workflow)
    try:
        definitions = application.workflows_of(arguments.app)
    except UsageError as error:
        raise UsageError(f"the order names no workflow: give --workflow NAME ({error})") from None
    names = sorted({workflow.name for workflow in definitions})
    if len(names) == 1:
        return names[0]
    raise UsageError(
        f"the order names no workflow: give --workflow NAME. There are {', '.join(names)}"
    )


def _open_file(name: str) -> AbstractContextManager[BinaryIO]:
    if name == "-":
        return nullcontext(_stdin())
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}; give a file, or - for stdin"
        ) from None


def _stdin() -> BinaryIO:
    """Return stdin with a buffer of its own.

    When the interpreter ends, it locks the buffer of ``sys.stdin``. This would fail if a thread
    still waited for a line there, because that thread holds the lock.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError, AttributeError):  # stdin is not a file, as in a test
        return sys.stdin.buffer


VERBS = (
    Subcommand(
        name="submit",
        summary="send orders to the orders queue, and follow them to their end",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
    ),
)
