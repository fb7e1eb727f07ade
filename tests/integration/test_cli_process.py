"""``sas`` in a process of its own: how it starts, what it loads, and where its output goes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINTS = """
import sys, time, types
from sas.cli import main, screen
def probe() -> None:
    screen.say("Zoë \\u4f60")
def rest() -> None:
    screen.say("ready")
    time.sleep(600)
sys.modules["sas.cli.probe"] = types.SimpleNamespace(probe=probe, rest=rest)
main.VERBS = {"probe": ("Test", "probe.probe"), "rest": ("Test", "probe.rest")}
sys.exit(main.main())
"""


def ran(shell: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the verb probe in a shell, with its output where ``shell`` says."""
    return subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" probe {shell}', sys.executable, PRINTS],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "start", [["-m", "sas.cli"], ["-c", "from sas.cli.__main__ import start; start()"]]
)
def test_the_command_starts_as_a_module_and_as_a_script_without_azure(start: list[str]) -> None:
    environ = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [sys.executable, *start, "--help"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    assert "Usage: sas" in done.stdout
    assert " azure" not in done.stderr
    assert " typer" in done.stderr


def test_output_that_cannot_be_written_is_one_sentence() -> None:
    done = ran("> /dev/full")
    assert done.returncode == 2
    assert done.stderr == "sas: the output cannot be written: No space left on device\n"


def test_without_any_output_it_is_done_all_the_same() -> None:
    done = ran(">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_ends_is_no_error() -> None:
    done = ran("| true; sleep 0")
    assert done.stderr == ""


def test_a_terminal_that_cannot_show_a_character_shows_its_number() -> None:
    done = ran("", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stdout) == (0, "Zo\\xeb \\u4f60\n")


def test_ctrl_c_ends_the_command_with_130_and_no_word() -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", PRINTS, "rest"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=60) == ("", "")
    assert running.returncode == 130


@pytest.mark.parametrize("words", ["list", "workflows draw"])
def test_no_module_of_the_current_directory_is_run(words: str, tmp_path: Path) -> None:
    for name in ("json", "logging", "random", "rich", "typer", "typing", "azure", "msgspec", "sas"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'a').close()\n")
    script = Path(sys.executable).with_name("sas")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run([script, *words.split()], cwd=tmp_path, env=environment, check=False)
    assert not (tmp_path / "ran").exists()


def test_the_command_runs_its_own_python_through_a_link_too(tmp_path: Path) -> None:
    link, other = tmp_path / "sas", tmp_path / "python"
    link.symlink_to(Path(sys.executable).with_name("sas"))
    other.write_text("#!/bin/sh\necho other\n")
    other.chmod(0o755)
    assert subprocess.run([link, "--version"], capture_output=True, check=True).stdout[:3] == b"sas"


@pytest.mark.parametrize("house", ["sas", "devstack"])
def test_no_process_that_is_started_imports_from_the_current_directory(house: str) -> None:
    starts = [
        line
        for file in (ROOT / house).rglob("*.py")
        if "tests" not in file.parts and "node_modules" not in file.parts
        for line in file.read_text(encoding="utf-8").splitlines()
        if 'sys.executable, "' in line
    ]
    assert starts
    assert [line for line in starts if not re.search(r'sys.executable, "-[PI]"', line)] == []
