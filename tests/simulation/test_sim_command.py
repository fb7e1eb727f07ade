"""``sas sim``, the command: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sas.cli.main import main
from sas.domain.workflow import Workflows
from sas.ports import AgentCall
from sas.testing import run
from sas.testing.plan import Plan, drawn
from sas.testing.remote import ModelService

ROOT = Path(__file__).parents[2]
APP = "tests.business:workflows"
GOLDEN = """\
workflow         processed  compensated  error  rejected
order            N          N            N      N
order-delivered  N          N            N      N
order-with-care  N          N            N      N
kinds of transition never reached: WORDS
N seeds, N orders: every invariant held
"""


def test_the_command_prints_one_table_what_was_never_reached_and_a_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "--app", APP, "--first", "9", "--seeds", "12", "--jobs", "1"]) == 0
    table = re.sub(r"(?<= )\d+", "N", capsys.readouterr().out)
    table = re.sub(r"^\d+ seeds", "N seeds", table, flags=re.MULTILINE)
    table = re.sub(r"(?<=reached: ).*", "WORDS", table)
    assert re.sub(r"N +(?=N)", "N ", table) == re.sub(r"N +(?=N)", "N ", GOLDEN)


def traced(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sas.cli", "sim", "--app", APP, "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", [9])
def test_a_seed_gives_the_same_story_to_the_letter_in_every_process(seed: int) -> None:
    story = traced(seed, "1")
    assert "is asked to do" in story
    assert f"seed {seed}: every invariant held" in story
    assert traced(seed, "2") == story


@pytest.fixture
def forgetful_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services forget their keys: each call has its effect once more."""
    do = ModelService._do

    async def twice(self: ModelService, call: AgentCall) -> object:
        self._ledger.of(call.key).in_force = False
        return await do(self, call)

    monkeypatch.setattr(ModelService, "_do", twice)


BROKEN = ("--first", "6", "--seeds", "2", "--jobs", "1", "--orders", "12", "--project", ".")


@pytest.mark.usefixtures("forgetful_service")
def test_the_printed_command_repeats_the_broken_seed_with_its_orders_and_project(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    project = os.path.relpath(ROOT, tmp_path)
    arguments = ["sim", "--app", APP, *BROKEN[:-1], project, "--json"]
    assert main(arguments) == 1
    output = capsys.readouterr()
    broken, *_, totals = [json.loads(line) for line in output.out.splitlines()]
    assert totals["Broken"]
    words = shlex.split(broken["Again"])
    assert words[:4] == ["sas", "sim", "--app", APP]
    assert words[words.index("--orders") + 1] == "12"
    assert words[words.index("--project") + 1] == project
    assert f"seed {broken['Seed']} is broken: {broken['Broken'][0]}" in output.err, "at once"
    assert main([*words[1:], "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert again["Broken"] == broken["Broken"]


@pytest.mark.usefixtures("forgetful_service")
def test_a_broken_seed_is_told_before_the_next_one_is_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[str] = []

    def drawn_later(seed: int, defined: Workflows, orders: int) -> Plan:
        outputs.append(capsys.readouterr().err)
        return drawn(seed, defined, orders)

    monkeypatch.setattr(run, "drawn", drawn_later)
    arguments = ["--first", "6", "--seeds", "40", "--jobs", "1", "--json"]
    assert main(["sim", "--app", APP, *arguments]) == 1
    first = next(text for text in outputs if "is broken" in text)
    assert first.startswith("seed ")
    assert ": invariant 7: " in first


def test_several_processes_find_the_same_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    records = []
    for jobs in ("1", "2"):
        arguments = ["sim", "--app", APP, "--first", "9", "--seeds", "4"]
        arguments += ["--jobs", jobs, "--json"]
        assert main(arguments) == 0
        records.append(json.loads(capsys.readouterr().out))
    assert records[0] == records[1]
    assert records[0]["Seeds"] == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--app", "no_such_module"], "no_such_module"),
        (["--app", "json:dumps"], "cannot be loaded"),
    ],
)
def test_what_cannot_be_simulated_is_one_clear_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
