"""``sas desk``: a page on this machine that shows orders and acts on them."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import webbrowser
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from sas.cli import application, options, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand
from sas.codec.record import to_line
from sas.config import read_payload_codec, read_queues
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.ports import StateStore

PORT = 7474
LOOK_AGAIN_S = 2.0
"""Seconds between two looks for a table that does not exist yet."""
DESCRIPTION = """\
Start a page for your browser: what is stuck and why, every order with its journal, alerts and
rejected messages, and the commands. It uses your own sign-in and rights, as every verb does, and
listens on 127.0.0.1 only. It prints a link that logs in one browser, once. Press Enter for another
link (without a terminal it prints another when one was used).

To use it from another machine: ssh -L 7474:127.0.0.1:7474 THIS_MACHINE

  sas desk
  sas desk --open
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=args.number("a port", 0, 65_535, whole=True),
        default=PORT,
        metavar="N",
        help=f"the port on 127.0.0.1; 0 for a free one (default: {PORT})",
    )
    parser.add_argument("--open", action="store_true", help="open your browser")
    application.add_argument(parser)
    parser.add_argument("--by", metavar="NAME", help="your name in the journal")
    args.add_json(parser, "each link as one JSON object")


def _run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> int:
    # Slow to import, and not needed for other verbs.
    from sas.desk.server import Office, serving  # noqa: PLC0415

    by, storage = options.operator(arguments.by), args.read_storage(os.environ)
    definitions = application.workflows_if_any(arguments.app)
    endpoint, queues = args.read_bus(os.environ), read_queues(os.environ)
    codec = read_payload_codec(os.environ)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(args.open_bus(endpoint))
        store = await _open_when_there(stack, storage)
        office = Office(
            store=store,
            bus=bus,
            queues=queues,
            by=by,
            where=f"table {storage.table}",
            workflows=definitions,
            codec=codec,
        )
        try:
            desk = await stack.enter_async_context(serving(office, int(arguments.port)))
        except OSError as error:
            raise UsageError(
                f"port {arguments.port} cannot be used ({error.strerror}): give --port 0 for a "
                "free one"
            ) from None
        link = desk.guard.new_link()
        at_terminal = sys.stdin is not None and sys.stdin.isatty()

        def say(text: str, link: str) -> None:
            output.say(to_line({"Link": link}) if arguments.json else f"{text} {link}")

        def new_link() -> None:
            say("A new link:", desk.guard.new_link())

        say("The desk is at", link)

        if at_terminal:
            output.complain("Enter prints a new link. Ctrl-C or Ctrl-D stops the desk.")
        else:
            desk.guard.logged_in = new_link
        if arguments.open:
            await asyncio.to_thread(webbrowser.open, link)
        await _until_stopped(new_link if at_terminal else None)
    return 0


async def _open_when_there(stack: AsyncExitStack, storage: args.Storage) -> StateStore:
    """Wait until the state store can be opened, and open it.

    A new system has no table with orders before its first order.
    """
    has_complained = False
    while True:
        try:
            return await stack.enter_async_context(args.open_store(storage))
        except (NotPossibleError, ServiceUnavailableError) as error:
            if not has_complained:
                output.complain(f"{error}. The desk waits for it.")
                has_complained = True
            await asyncio.sleep(LOOK_AGAIN_S)


async def _until_stopped(new_link: Callable[[], None] | None) -> None:
    """Wait for Ctrl-C or SIGTERM.

    At a terminal ``new_link`` prints a new link: Enter calls it, and Ctrl-D ends the waiting.
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, stopped.set)

    def on_input() -> None:
        if new_link is not None and sys.stdin.readline():
            new_link()
        else:
            stopped.set()

    if new_link is not None:
        loop.add_reader(sys.stdin, on_input)
    await stopped.wait()
    if new_link is not None:
        loop.remove_reader(sys.stdin)


VERBS = (
    Subcommand(
        name="desk",
        summary="start a page that shows orders and acts on them",
        description=DESCRIPTION,
        add_arguments=_add,
        run=_run,
    ),
)
