"""What a broker left on disk when it was killed, under one Python, is read under another."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.servicebus import Broker
from devstack.servicebus.amqp import frames
from devstack.servicebus.storage import LOG_NAME
from tests.e2e.test_broker_crash import connect, message, number_in
from tests.functions_rig import ROOT
from tests.integration.test_broker_wire import Peer

CONFIG = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}]}]}}


def interpreters() -> list[str]:
    """Other Pythons of this machine that can run the broker: it needs no package."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[str, str] = {}
    for minor in (11, 12, 13, 14):
        here = [str(one) for one in sorted(versions.glob(f"3.{minor}.*/bin/python"))]
        for path in (*here, shutil.which(f"python3.{minor}")):
            if path and minor != sys.version_info.minor and _runs(path):
                found.setdefault(f"3.{minor}", path)
    return list(found.values())


def _runs(path: str) -> bool:
    ran = subprocess.run([path, "-c", "import sqlite3"], capture_output=True, check=False)
    return ran.returncode == 0


@contextmanager
def broker_of(python: str, directory: Path) -> Iterator[int]:
    """Run a broker until it is killed; give its port."""
    config = directory / "Config.json"
    config.write_text(json.dumps(CONFIG))
    command = [python, "-m", "devstack.servicebus", "--config", str(config), "--port", "0"]
    command += ["--management-port", "0", "--data", str(directory / "data")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(json.loads(process.stdout.readline())["port"])
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def numbers(port: int, count: int) -> list[int]:
    peer = await connect(port)
    try:
        await peer.attach("q", receives=True)
        peer.credit(count)
        return [await next_number(peer) for _ in range(count)]
    finally:
        peer.writer.transport.abort()


async def next_number(peer: Peer) -> int:
    while True:
        found = next(peer.frames.frames(), None)
        if found is None:
            peer.frames.feed(await asyncio.wait_for(peer.reader.read(65536), 120))
        elif found[2] and frames.performative(found[2])[0] == frames.TRANSFER:
            body = found[2]
            return number_in(body[body.index(b"\x00\x53\x70") :])


async def send(port: int, *given: int) -> None:
    peer = await connect(port)
    try:
        await peer.attach("q", receives=False)
        for number in given:
            peer.transfer(number, message(number))
            await peer.expect(frames.DISPOSITION)
    finally:
        peer.writer.transport.abort()


async def test_a_log_left_by_a_kill_is_read_by_another_python_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    others = interpreters()
    if not others:
        pytest.skip("this machine has no other Python of 3.11 or newer")
    order = (*others, sys.executable, *others)
    for number, python in enumerate(order):
        with broker_of(python, tmp_path) as port:
            await send(port, number)
            # What was sent under the Pythons before is locked, for a minute.
            assert await numbers(port, 1) == [number]
        assert (tmp_path / "data" / LOG_NAME).stat().st_size > 0
    here = Broker(["q"], data=tmp_path / "data")
    here.open_data()
    counts = here.counts("q")
    here.close_data()
    assert (counts.active, counts.locked) == (len(order), len(order))
