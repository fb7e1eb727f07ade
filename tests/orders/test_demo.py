"""The demo as a new user runs it: processes, real SDKs, faults, a kill -9 on the way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.typed import made_up, project_in, sas, typed

pytestmark = pytest.mark.long
PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "samples.demo"]


def test_orders_end_whole_over_several_host_processes_while_two_are_killed(tmp_path: Path) -> None:
    run = subprocess.run(
        [*COMMAND, "--orders", "50", "--seed", "5", "--logs", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert run.stdout.count("kill -9 of process") == 2
    assert "\x1b" not in run.stdout
    last = run.stdout.strip().splitlines()[-1]
    numbers = re.findall(r"([a-z ]+?) (\d+)", last)
    figures = {name.strip(): int(number) for name, number in numbers}
    assert figures["orders in"] == 50
    ends = figures["processed"] + figures["failed"] + figures["undone"]
    assert (ends, figures["unfinished"]) == (50, 0)
    assert figures["notifications expected"] == figures["seen"] >= 100
    assert figures["remote effects expected"] == figures["in force"] > 0
    assert figures["doubled"] == 0
    assert len(list(tmp_path.glob("host-*.log"))) >= 3


def test_on_a_terminal_the_demo_is_a_live_picture_and_its_orders_can_be_operated_later(
    tmp_path: Path,
) -> None:
    columns = 80
    folder = tmp_path / "kept"
    words = [*COMMAND, "--orders", "3", "--keep", str(folder)]
    with typed(words, cwd=PROJECT, columns=columns) as demo:
        assert demo.process.wait(300) == 0, demo.text
        demo.screen.drain()
        lines = [line.rstrip() for line in demo.screen.lines]
    text = "\n".join(lines)
    assert max(map(len, (line for line in lines if str(tmp_path) not in line))) <= columns
    for name in ("received", "processing", "processed", "failed, for an operator", "kills"):
        assert re.search(rf"│ {name} .*│", text), name
    assert re.search(r"│ ended +\S* +[\d.]+/s, mean [\d.]+/s", text)
    assert "Orders ended a second (3 orders in " in text
    assert "ORDERS=20" not in text
    assert "Verdict: Every order ended." in text
    assert "orders in 3 | processed 2 | failed 1 " in text

    [again] = re.findall(r"^  (make up DATA=\S+)", text, re.MULTILINE)
    assert again == f"make up DATA={folder}"
    project = project_in(tmp_path)
    with made_up(project, again.split()[-1]):
        assert "1 order in Error: 1 reserve-stock/out-of-stock" in sas(project, "list").out
        undone = sas(project, "undo", "NW-10250", "--yes", "--wait", "120").out
        assert "undo decided; the order is Compensat" in undone
        assert "2 Processed" in sas(project, "list", "--state", "finished").out
    refused = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"operate them with `make up DATA={folder}`" in " ".join(refused.stdout.split())
