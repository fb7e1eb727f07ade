"""What the chaos run does to a process: it measures its memory and sockets, and sets its clock."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from lab.chaos import soak
from lab.chaos.screen import Screen
from lab.chaos.soak import Samples
from lab.chaos.system import INSIDE, PROJECT
from samples.demo.tally import Tally


@pytest.mark.parametrize("kept", ["memory", "objects", "sockets", "nothing"])
def test_a_worker_that_keeps_something_for_each_order_is_not_flat(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "REST_S", 0.0)
    told = tmp_path / "memory"
    code = (
        "import socket, sys\nkept = []\n"
        "for what in sys.stdin:\n"
        "    if what == 'memory\\n': kept.append(b'x' * (4 << 20))\n"
        "    if what == 'objects\\n': kept.append([float(n) for n in range(50_000)])\n"
        "    if what == 'sockets\\n': kept.append(socket.socket())\n"
        "    print('done', flush=True)\n"
    )
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    env = {"PYTHONPATH": str(INSIDE), "CHAOS_MEMORY": str(told)}
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdin
        assert worker.stdout
        samples = Samples(worker.pid, told, Tally(0), Screen(Console(), 0, 0))
        for number in range(15):
            worker.stdin.write(f"{kept}\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "done\n"
            samples.tally.ended[f"O-{number}"] = "completed"
            asyncio.run(samples.rest())
        worker.stdin.close()
    assert samples.flat == (kept == "nothing")
    assert [line.endswith("GROWS") for line in samples.table()[-5:-2]] == [
        kept in {"memory", "objects"}, kept == "sockets", kept == "sockets",
    ]  # fmt: skip


def test_a_process_has_the_wall_clock_of_its_file(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("d", 3600.0))
    code = (
        "import time, sys, struct\n"
        "from datetime import UTC, datetime\n"
        "seen = [time.time(), time.time_ns() / 1e9, datetime.now(UTC).timestamp()]\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "file.write(struct.pack('d', -3600.0)); file.flush()\n"
        "print(*seen, datetime.now(UTC).timestamp(), type(datetime.now()) is datetime)\n"
    )
    env = {"PYTHONPATH": f"{INSIDE}:{PROJECT}", "CHAOS_CLOCK": str(clock)}
    shown = subprocess.run(
        [sys.executable, "-c", code, str(clock)],
        env=env,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    real = datetime.now(UTC).timestamp()
    shifts = [round((float(one) - real) / 3600) for one in shown[:4]]
    assert (shifts, shown[4]) == ([1, 1, 1, -1], "True")
