"""docs/your-own-workflow.md as a newcomer follows it: files, commands, a copy of the project."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "your-own-workflow.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.strip().splitlines()
]
COPIED = (
    "sas",
    "infra",
    "tools",
    "devstack",
    "function_app.py",
    "host.json",
    "local.settings.json",
    "pyproject.toml",
)
(TABLE,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ENDS = {"completed", "undone"}
NOT_COPIED = shutil.ignore_patterns("*.pyc.*", "node_modules")
"""Compiled modules are copied, but no file that another process is writing."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with the page's files written into it."""
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=NOT_COPIED)
        else:
            shutil.copy(source, tmp_path / name)
    modules = Path("devstack", "azurite", "node_modules")
    (tmp_path / modules).symlink_to(PROJECT / modules)
    for name, text in FILES:
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
    config = tmp_path / "pyproject.toml"
    before, _, rest = config.read_text(encoding="utf-8").partition("[tool.sas]\n")
    after = rest[rest.index("\n[") :]
    config.write_text(before + TABLE + after, encoding="utf-8")
    return tmp_path


def command(starting_with: str) -> list[str]:
    """Return the page's command that begins so, with this Python instead of .venv's."""
    (line,) = [line for line in COMMANDS if starting_with in line]
    words = [word for word in shlex.split(line) if not word.startswith("TRIPS_URL=")]
    if words[0] == ".venv/bin/sas":
        return [sys.executable, "-m", "sas.cli", *words[1:]]
    return [sys.executable, *words[1:]]


def write_infra(project: Path, **settings: str) -> None:
    """Do what the page says in section 5."""
    ran = run(command("sas infra"), project, TRIPS_URL="http://127.0.0.1:7201", **settings)
    assert ran.returncode == 0, ran.stderr


def run(words: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_for(300, words, cwd, environment)


def run_for(
    seconds: float, words: list[str], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(cwd), **environment}
    return subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.fixture
def service(project: Path) -> Iterator[str]:
    """The page's stand-in for a remote service, on a free port."""
    port = free_port()
    words = [word if word != "7201" else str(port) for word in command("trips_service.py 7201")]
    running = subprocess.Popen(words, cwd=project)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1000):
            try:
                urllib.request.urlopen(address, timeout=60).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        running.terminate()
        running.wait(120)


@contextmanager
def started(project: Path, service: str, **settings: str) -> Iterator[dict[str, str]]:
    """The page's ``devstack up``, on free ports; gives the connection strings that it prints, and
    as ``http`` where its HTTP functions are.
    """
    (line,) = [line for line in COMMANDS if "devstack up" in line]
    assert line.startswith("TRIPS_URL=http://127.0.0.1:7201 .venv/bin/python -m devstack up .")
    words = [sys.executable, "-m", "devstack", "up", ".", "--ports", "free"]
    env = {
        **os.environ,
        "PYTHONPATH": str(project),
        "PYTHONUNBUFFERED": "1",
        "TRIPS_URL": service,
        **settings,
    }
    up = subprocess.Popen(words, cwd=project, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        values: dict[str, str] = {}
        for line in up.stdout:
            if host := re.match(r"\s+host +pid \d+ +(http://\S+)", line):
                values["http"] = host[1]
            if line.startswith("export "):
                name, _, value = shlex.split(line)[1].partition("=")
                values[name] = value
            if len(values) == 3:
                break
        yield values
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=300)


def ends_of(followed: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return how each order ended, by what ``sas submit --follow --json`` printed."""
    return {
        event["subject"]: event["type"]
        for event in told_by(followed)
        if event["type"].split(".")[2] in ENDS
    }


def told_by(followed: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return the notifications that it printed."""
    return [json.loads(line) for line in followed.stdout.splitlines() if '"specversion"' in line]
