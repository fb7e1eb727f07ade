"""``sas desk``: a page on this machine that shows orders and acts on them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import webbrowser
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Annotated

import typer

from sas.cli import application, options, screen
from sas.cli.system import Storage, environment, open_bus, open_store, read_bus, read_storage
from sas.codec.record import to_line
from sas.config import read_payload_codec, read_queues
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.ports import StateStore

PORT = 7474
LOOK_AGAIN_S = 2.0
"""Seconds between two looks for a table that does not exist yet."""


def desk(
    *,
    port: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=65_535, help="The port on 127.0.0.1; 0 for a free one."
        ),
    ] = PORT,
    opens: Annotated[bool, typer.Option("--open", help="Open your browser.")] = False,
    app: options.App = None,
    by: options.By = None,
    as_json: options.Json = False,
) -> None:
    """Start a page for your browser that shows orders and acts on them.

    \b
    sas desk --open
    ssh -L 7474:127.0.0.1:7474 THIS_MACHINE    (from another machine)

    It shows what is stuck and why, every order with its journal, alerts and rejected messages, and
    has the commands. It uses your own sign-in and rights, as every verb does, and listens on
    127.0.0.1 only. It prints a link that logs in one browser, once. Press Enter for another link
    (without a terminal it prints another when one was used).
    """
    with environment():
        asyncio.run(_serve(port, opens=opens, app=app, by=by, as_json=as_json))


async def _serve(port: int, *, opens: bool, app: str | None, by: str | None, as_json: bool) -> None:
    # Slow to import, and not needed for other verbs.
    from sas.desk.server import Office, serving  # noqa: PLC0415

    name, storage = options.operator(by), read_storage(os.environ)
    definitions = application.workflows_if_any(app)
    endpoint, queues = read_bus(os.environ), read_queues(os.environ)
    codec = read_payload_codec(os.environ)
    async with AsyncExitStack() as stack:
        bus = await open_bus(endpoint)
        stack.push_async_callback(bus.close)
        store = await _open_when_there(storage)
        stack.push_async_callback(store.close)
        office = Office(
            store=store,
            bus=bus,
            queues=queues,
            by=name,
            where=f"table {storage.table}",
            workflows=definitions,
            codec=codec,
        )
        try:
            server = await stack.enter_async_context(serving(office, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror}): give --port 0 for a free one"
            ) from None
        link = server.guard.new_link()
        at_terminal = sys.stdin is not None and sys.stdin.isatty()

        def say(text: str, link: str) -> None:
            screen.say(to_line({"Link": link}) if as_json else f"{text} {link}")

        def new_link() -> None:
            say("A new link:", server.guard.new_link())

        say("The desk is at", link)

        if at_terminal:
            screen.complain("Enter prints a new link. Ctrl-C or Ctrl-D stops the desk.")
        else:
            server.guard.logged_in = new_link
        if opens:
            await asyncio.to_thread(webbrowser.open, link)
        await _until_stopped(new_link if at_terminal else None)


async def _open_when_there(storage: Storage) -> StateStore:
    """Wait until the state store can be opened, and open it.

    A new system has no table with orders before its first order.
    """
    has_complained = False
    while True:
        try:
            return await open_store(storage)
        except (NotPossibleError, ServiceUnavailableError) as error:
            if not has_complained:
                screen.complain(f"{error}. The desk waits for it.")
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
