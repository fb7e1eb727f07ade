"""``python -m samples.remote_services``: one ready line, and a prompt end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from samples.services.faults import Faults, Verb
from tests.forked import said_by

CHARGE = {"order_id": "a", "customer_id": "VINET", "amount": "440.00", "currency": "USD"}


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[Process]:
    """Start the command. The process ends even if the test fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "samples.remote_services", *options),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        # Reads both pipes to their end and closes all three.
        await process.communicate()


async def ready(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(120):
        line: dict[str, Any] = json.loads(await process.stdout.readline())
    return line


async def ended(process: Process) -> tuple[int | None, bytes, bytes]:
    """Return the exit code and what was printed since, within five seconds."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(120):
        rest = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return await process.wait(), *rest


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_one_ready_line_and_an_end_on_a_signal_even_during_a_slow_call(
    signum: signal.Signals,
) -> None:
    options = ("--slow", "1", "--transient", "0", "--slow-seconds", "60", "--seed", "9")
    async with running(*options) as process, aiohttp.ClientSession() as session:
        line = await ready(process)
        async with session.get(f"{line['payment']}/faults") as response:
            faults = await response.json()
        slow = asyncio.create_task(
            session.post(
                f"{line['payment']}/charges", json=CHARGE, headers={"Idempotency-Key": "a/payment"}
            )
        )
        async with asyncio.timeout(120):
            calls = 0
            while not calls:
                async with session.get(f"{line['payment']}/ledger") as response:
                    calls = (await response.json())["calls"]
        process.send_signal(signum)
        end = await ended(process)
        with pytest.raises(aiohttp.ClientConnectionError):
            await slow
    assert set(line) == {"stock", "payment", "shipping", "mail", "carrier", "pid"}
    assert line["pid"] == process.pid
    assert (faults["seed"], faults["slow"], faults["slow_seconds"]) == (9, 1.0, 60.0)
    assert end == (0, b"", b"")


async def test_it_ends_when_its_parent_does_if_asked_to() -> None:
    async with running("--exit-with-parent") as process:
        await ready(process)
        assert process.returncode is None
        assert process.stdin is not None
        process.stdin.close()
        assert await ended(process) == (0, b"", b"")


async def test_it_outlives_the_end_of_its_input_unless_asked_otherwise() -> None:
    async with running() as process, aiohttp.ClientSession() as session:
        line = await ready(process)
        assert process.stdin is not None
        process.stdin.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.5)
        async with session.get(f"{line['stock']}/health") as response:
            assert response.status == 200


async def test_a_port_that_is_taken_is_named_and_ends_it_with_exit_code_2() -> None:
    async with running() as first:
        line = await ready(first)
        port = int(line["payment"].rsplit(":", 1)[1])
        async with running("--port-base", str(port)) as second:
            code, printed, stderr = await ended(second)
    assert (code, printed) == (2, b"")
    assert stderr.startswith(b"the services cannot listen: ")
    assert f"port {port} is held by pid {first.pid}: ".encode() in stderr
    assert str(port).encode() in stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--transient", "1.5"), "transient is 1.5: give a number from 0 to 1"),
        (("--port-base", "65535"), "--port-base 65535: give one from 1 to 65531"),
        (("--ledger-max", "0"), "--ledger-max 0: give at least 1"),
    ],
)
def test_unusable_options_are_refused_before_anything_listens(
    options: tuple[str, ...], sentence: str
) -> None:
    output = said_by("samples.remote_services", options, os.environ)
    assert (output.code, output.out) == (2, "")
    assert sentence in output.err


def test_another_process_draws_the_same_faults() -> None:
    code = (
        "from samples.services.faults import Faults, Verb\n"
        "faults = Faults(seed=7, transient=0.5, slow=0.2)\n"
        "print([str(faults.of_attempt('stock', Verb.DO, f'k{n}', 1)) for n in range(50)])"
    )
    faults = Faults(seed=7, transient=0.5, slow=0.2)
    here = [str(faults.of_attempt("stock", Verb.DO, f"k{n}", 1)) for n in range(50)]
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert there.stdout.strip() == str(here)
