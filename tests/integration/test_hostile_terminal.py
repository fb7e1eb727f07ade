"""What a hostile service answers reaches the terminal of an operator as text, and as nothing else.

The command runs at a terminal of its own. The service answers each call with an error whose text a
terminal would obey.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import suppress

import pytest
from aiohttp import web

from sas.domain.texts import is_visible

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202egpj.exe\u200b\x7f\r\n\x08sas: all is well"
FAILS = f"""\
import logging, sys
from sas.cli import __main__, main, screen
def fail():
    logging.getLogger("sdk").warning({HOSTILE!r})
    with screen.progress("orders", 2) as tell:
        logging.getLogger("sdk").warning({HOSTILE!r})
        tell(1)
    raise RuntimeError({HOSTILE!r})
main.main = fail
__main__.start()
"""


async def at_terminal(*command: str, **environment: str) -> str:
    """Return what a command writes to the terminal at which it runs."""
    here, there = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=there,
        stdout=there,
        stderr=there,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(there)
    pieces = []

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while piece := os.read(here, 65_536):
                pieces.append(piece)

    await asyncio.gather(asyncio.to_thread(read), process.wait())
    os.close(here)
    return b"".join(pieces).decode()


@pytest.mark.parametrize("command", ["list --json", "status", "azd export /dev/null/x"])
async def test_an_error_of_a_service_is_shown_and_not_obeyed(command: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        error = {"odata.error": {"code": HOSTILE, "message": {"lang": "en", "value": HOSTILE}}}
        return web.json_response(error, status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/a"
    account = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;TableEndpoint={address}"
    try:
        shown = await at_terminal("-m", "sas.cli", *command.split(), SAS_TABLES=account)
    finally:
        await runner.cleanup()
    check(shown)


async def test_an_error_that_nobody_expected_and_a_log_line_are_shown_and_not_obeyed() -> None:
    shown = await at_terminal("-c", FAILS)
    assert "RuntimeError" in shown
    assert shown.count("all is well\r\n") == 3
    assert "\\x1b[35m" not in shown
    check(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r(?!\n)", "", shown))  # Rich draws the bar


def check(shown: str) -> None:
    lines = re.split(r"\r?\n", shown)
    assert "gpj.exe" in shown
    assert [line for line in lines if not is_visible(line)] == []
