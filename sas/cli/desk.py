"""``sas desk``: a page on this machine that shows orders and acts on them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from sas.cli import application, options, screen
from sas.cli.system import Storage, environment, open_bus, open_store, read_bus, read_storage
from sas.codec.record import to_line
from sas.config import read_payload_codec, read_queues
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.ports import StateStore

if TYPE_CHECKING:
    from sas.desk.guard import Guard

PORT = 7474
LOOK_AGAIN_S = 2.0
"""Seconds between two looks for a table that does not exist yet."""
BROWSER_S = 30.0
"""If the browser has not come after so many seconds, the command says so."""
_PAGE = """<!doctype html><meta charset="utf-8"><title>sas desk</title>
<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={link}">
<a href="{link}">Open the desk</a>
"""


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
    ssh -o ExitOnForwardFailure=yes -L 7474:127.0.0.1:7474 THIS_MACHINE

    It shows what is stuck and why, every order with its journal, alerts and rejected messages, and
    has the commands. It uses your own sign-in and rights, as every verb does, and listens on
    127.0.0.1 only: ssh as above brings its port to another machine. It prints a link that logs in
    one browser, once, and says when it was used. Press Enter for another link (without a terminal
    it prints another when one was used).
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
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        entrance = Entrance(server.guard, as_json=as_json, at_terminal=at_terminal)
        stack.callback(entrance.close)
        link = entrance.new_link("The desk is at")
        if at_terminal:
            screen.complain("Enter prints a new link. Ctrl-C or Ctrl-D stops the desk.")
        if opens:
            entrance.open_browser(link)
        await _until_stopped(entrance.new_link if at_terminal else None)


class Entrance:
    """Prints the links of a desk, opens one in the browser, and says when one was used.

    A link is a secret, and every user of this machine sees the arguments of a program. So the
    browser gets the address of a page that leads to the link, which only its user can read. The
    page lies in the home folder, because a browser from a snap has another /tmp. It is removed when
    the link was used, or when the desk ends.
    """

    def __init__(self, guard: Guard, *, as_json: bool, at_terminal: bool) -> None:
        self._guard = guard
        self._as_json = as_json
        self._at_terminal = at_terminal
        self._folder: TemporaryDirectory[str] | None = None
        self._patience: asyncio.TimerHandle | None = None
        guard.logged_in = self._was_used

    def new_link(self, text: str = "A new link:") -> str:
        """Print a link, and return it. An older one is not valid any more."""
        link = self._guard.new_link()
        screen.say(to_line({"Link": link}) if self._as_json else f"{text} {link}")
        return link

    def open_browser(self, link: str) -> None:
        """Open the browser with a page that leads to the link."""
        try:
            self._folder = TemporaryDirectory(
                prefix="sas-desk-", dir=Path.home(), ignore_cleanup_errors=True
            )
            page = Path(self._folder.name, "desk.html")
            page.touch(mode=0o600)
            page.write_text(_PAGE.format(link=link), encoding="utf-8")
        except (OSError, RuntimeError) as error:  # there is no home folder
            screen.complain(f"The browser cannot be opened ({error}): open the link yourself.")
            return
        # Some browsers run until they are closed.
        threading.Thread(target=webbrowser.open, args=[page.as_uri()], daemon=True).start()
        self._patience = asyncio.get_running_loop().call_later(
            BROWSER_S,
            screen.complain,
            f"No browser has opened {page} yet. If yours cannot, open the link yourself.",
        )

    def _was_used(self) -> None:
        self.close()
        now = datetime.now(UTC).isoformat(" ", "seconds")
        if self._as_json:
            screen.say(to_line({"LinkUsedAt": now}))
        else:
            screen.say(f"A browser logged in at {now}. If it was not yours, stop the desk.")
        if not self._at_terminal:
            self.new_link()

    def close(self) -> None:
        """Remove the page."""
        if self._patience is not None:
            self._patience.cancel()
        if self._folder is not None:
            self._folder.cleanup()


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


async def _until_stopped(new_link: Callable[[], object] | None) -> None:
    """Wait for Ctrl-C or SIGTERM, or until the window of the terminal is closed.

    At a terminal ``new_link`` prints a new link: Enter calls it, and Ctrl-D ends the waiting.
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        with suppress(NotImplementedError, ValueError, RuntimeError, AttributeError):
            loop.add_signal_handler(getattr(signal, name), stopped.set)

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
