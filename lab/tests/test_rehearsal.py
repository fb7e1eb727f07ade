"""The rehearsal of a deployment: it is stopped, and a small run of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_ctrl_c_ends_a_rehearsal_quietly(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rehearsal = subprocess.Popen(
        [sys.executable, "-m", "lab.rehearsal", "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches all processes of a terminal
    )
    end = time.monotonic() + 60
    while not any(out.glob("*.pem")) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(2)  # the first step builds the zip
    os.killpg(rehearsal.pid, signal.SIGINT)
    printed, _ = rehearsal.communicate(timeout=60)
    assert (rehearsal.returncode, printed) == (130, "stopped; no process is left\n")


@pytest.mark.long
def test_a_deployment_a_recreate_and_a_second_version_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("azure_functions_runtime")
    done = subprocess.run(
        [sys.executable, "-m", "lab.rehearsal", "--orders", "12", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "doubled 0" in done.stdout
    assert done.stderr == ""
