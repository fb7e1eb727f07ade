"""``sas`` in a process of its own: how it starts, what it loads, and where its output goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "start", [["-m", "sas.cli"], ["-c", "from sas.cli.main import main; main()"]]
)
def test_the_command_starts_as_a_module_and_as_a_script(start: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *start, "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sas ")


def test_help_does_not_wait_for_the_azure_sdk() -> None:
    code = (
        "import sys, sas.cli.main; sas.cli.main.build_parser().format_help(); "
        "print([name for name in sys.modules if name.startswith('azure')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == "[]"


PRINTS = """
import sys, sas.cli.main
from sas.cli import output
from sas.cli.arguments import Subcommand
run = lambda arguments: output.say("Zoë \\u4f60") or 0
sas.cli.main.VERBS = [
    Subcommand(
        name="list", summary="", description="", add_arguments=lambda parser: None, run=run
    )
]
sys.exit(sas.cli.main.main(["list"]))
"""


def printing(shell: str, **environ: str) -> subprocess.CompletedProcess[str]:
    program = ["/bin/sh", "-c", f'"$0" -c "$1" {shell}', sys.executable, PRINTS]
    env = {**os.environ, **environ}
    return subprocess.run(
        program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_output_that_cannot_be_written_is_one_sentence() -> None:
    done = printing("> /dev/full")
    assert done.returncode == 2
    assert done.stderr == "sas: the output cannot be written: No space left on device\n"


def test_without_any_output_it_is_done_all_the_same() -> None:
    done = printing(">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_cannot_show_a_character_shows_its_number() -> None:
    done = printing("", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stdout) == (0, "Zo\\xeb \\u4f60\n")
