"""docs/your-own-workflow.md as a newcomer follows it: its files in a project of ``sas new``."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sas.project import create
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-own-workflow.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.strip().splitlines()
]
FRAGMENTS: list[str] = re.findall(
    r"^```python\n((?:@|ANSWERS).*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
ENDS = {"completed", "undone"}


def fragment(beginning: str) -> str:
    """Return the page's piece of code that begins so."""
    (text,) = [text for text in FRAGMENTS if text.startswith(beginning)]
    return text


def write(folder: Path) -> None:
    """Write a new project with the page's files in place of those that it replaces."""
    create(folder)
    for name in ("orders.py", "tests/test_orders.py", "orders.jsonl"):
        (folder / name).unlink()
    for name, text in FILES:
        (folder / name).write_text(text, encoding="utf-8")
    put(folder / "pyproject.toml", ('app = "orders"', 'app = "trips"'))
    services = folder / "services.py"
    text = services.read_text(encoding="utf-8")
    begin, end = text.index("ANSWERS: "), text.index("\n\n\nclass Services")
    services.write_text(text[:begin] + fragment("ANSWERS") + text[end:], encoding="utf-8")


def put(path: Path, *changes: tuple[str, str]) -> None:
    """Replace texts of a file; each is there once."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def run(words: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a project."""
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=_environment(cwd) | environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def sas(starting_with: str) -> list[str]:
    """Return the words of the page's command of ``sas`` that begins so."""
    (line,) = [line for line in COMMANDS if line.startswith(f".venv/bin/sas {starting_with}")]
    return ["-m", "sas.cli", *shlex.split(line)[1:]]


def _environment(project: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{project}", "PYTHONUNBUFFERED": "1"}


@contextmanager
def started(project: Path, **settings: str) -> Iterator[dict[str, str]]:
    """What ``make up`` starts, on free ports. Gives the addresses of the services, and as ``http``
    of the HTTP functions.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    words = ["-m", "devstack", "up", ".", "--ports", "free", "--setting", f"TRIPS_URL={address}"]
    words += ["--needs", f"{port}=services.py", "--with", f"{sys.executable} services.py {port}"]
    for name, value in settings.items():
        words += ["--setting", f"{name}={value}"]
    up = subprocess.Popen(
        [sys.executable, *words], cwd=project, env=_environment(project), stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        values = {"services": address}
        for line in up.stdout:
            if host := re.match(r"\s+host +pid \d+ +(http://\S+)", line):
                values["http"] = host[1]
            if "Ctrl-C stops everything" in line:
                break
        yield values
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=300)


def booked(services: str) -> list[str]:
    """Return the keys of what is booked."""
    with urllib.request.urlopen(services, timeout=60) as answer:  # noqa: S310  our own server
        return sorted(json.load(answer))


def events_of(followed: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return the notifications that ``sas submit --follow --json`` printed."""
    return [json.loads(line) for line in followed.stdout.splitlines() if '"specversion"' in line]


def ends_of(followed: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return how each order ended."""
    kinds = {event["subject"]: event["type"].split(".")[2] for event in events_of(followed)}
    assert set(kinds.values()) <= ENDS, followed.stdout + followed.stderr
    return kinds
