"""Every step of docs/your-own-workflow.md, done as a newcomer would, in a copy of the project."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.indexed_functions import local_settings

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
AZURITE = "AzureWebJobsStorage="
ENDS = {"completed", "undone"}
NOT_COPIED = shutil.ignore_patterns("__pycache__", "node_modules")


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
    return tmp_path


def command(starting_with: str) -> list[str]:
    """Return the page's command that begins so, with this Python instead of .venv's."""
    (line,) = [line for line in COMMANDS if starting_with in line]
    words = shlex.split(line)
    if words[0] == ".venv/bin/sas":
        return [sys.executable, "-m", "sas.cli", *words[1:]]
    return [sys.executable, *words[1:]]


def run(words: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(cwd), **environment}
    return subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=90, check=False
    )


@pytest.fixture
def service(project: Path) -> Iterator[str]:
    """The page's stand-in for a remote service, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word if word != "7201" else str(port) for word in command("trips_service.py 7201")]
    running = subprocess.Popen(words, cwd=project)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        running.terminate()
        running.wait(10)


def test_the_page_names_the_files_and_commands_that_it_takes() -> None:
    assert [name for name, _ in FILES] == [
        "orders/content.py",
        "orders/workflows.py",
        "orders/agents.py",
        "orders/__init__.py",
        "trips_service.py",
        "trips.jsonl",
    ]
    assert len(COMMANDS) == 5


@pytest.fixture
def connection(project: Path, service: str) -> Iterator[str]:
    """The connection string that the page's ``devstack up`` prints, on free ports here."""
    named = run(command("tools.queues"), project)
    assert named.returncode == 0, named.stderr
    with started(project, service) as said:
        yield said["ServiceBus"]


@contextmanager
def started(project: Path, service: str, **settings: str) -> Iterator[dict[str, str]]:
    """The page's ``devstack up``, on free ports; gives the connection strings that it prints."""
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
        printed = (
            ln.strip().partition("=") for ln in up.stdout if "=Endpoint=" in ln or AZURITE in ln
        )
        yield {name: value for name, _, value in itertools.islice(printed, 2)}
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=20)


@pytest.mark.timeout(180)
def test_every_step_of_the_page_leads_to_a_trip_booked_and_one_given_back(
    project: Path, service: str, connection: str
) -> None:
    words = command("sas submit")
    words[words.index("$CONNECTION")] = connection
    followed = run([*words, "--json", "--patience", "60"], project)
    assert followed.returncode == 1, followed.stdout + followed.stderr
    told = [json.loads(line) for line in followed.stdout.splitlines() if '"specversion"' in line]
    ends = {
        event["subject"]: event["type"] for event in told if event["type"].split(".")[2] in ENDS
    }
    assert ends, followed.stdout + followed.stderr
    assert ends == {"T-1": "sas.order.completed.v1", "T-2": "sas.order.undone.v1"}
    completed = next(event for event in told if event["type"] == "sas.order.completed.v1")
    assert set(completed["data"]["results"]) == {"book-room", "book-flight", "confirm"}
    with urllib.request.urlopen(service, timeout=5) as answer:  # noqa: S310  our own server
        booked = json.load(answer)
    assert sorted(booked) == ["T-1/book-flight", "T-1/book-room", "T-1/confirm"]


def test_a_trip_that_ends_before_it_begins_is_refused_with_a_sentence(project: Path) -> None:
    trip = '{"traveller": "A", "city": "B", "arrives": "2027-03-05", "leaves": "2027-03-01"}'
    code = f"from orders.content import check\ncheck({trip.encode()!r})"
    refused = run([sys.executable, "-c", code], project)
    assert "Expected `leaves` after `arrives` - at `$.leaves`" in refused.stderr


@pytest.mark.timeout(180)
def test_the_page_s_secret_field_rests_encrypted_and_reaches_the_services(
    project: Path, service: str
) -> None:
    (fragment,) = re.findall(
        r"^```python\n(    return Business.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
    wiring = project / "orders" / "__init__.py"
    plain = '    return Business(workflows(), agents, {"trip": check})\n'
    assert plain in wiring.read_text()
    wiring.write_text(wiring.read_text().replace(plain, fragment))
    settings = {**local_settings(), "TRIPS_URL": service}
    without = run([sys.executable, "-c", "import function_app"], project, **settings)
    assert without.returncode == 1
    assert "'trip' has secret fields, and the setting SAS_ENCRYPTION_KEYS" in without.stderr
    made = run(command("urandom"), project)
    assert made.returncode == 0, made.stderr
    assert run(command("tools.queues"), project).returncode == 0
    with started(project, service, SAS_ENCRYPTION_KEYS=made.stdout.strip()) as said:
        words = command("sas submit")
        words[words.index("$CONNECTION")] = said["ServiceBus"]
        followed = run([*words, "--patience", "60"], project)
        show = [sys.executable, "-m", "sas.cli", "show", "T-1", "--json", "--content"]
        shown = run([*show, "--storage", said["AzureWebJobsStorage"]], project)
    assert shown.returncode == 0, shown.stderr + followed.stderr
    record = json.loads(shown.stdout)
    assert record["ProcessState"] == "Processed"
    assert list(record["Payload"]["traveller"]) == ["$encrypted"]
    assert record["Payload"]["city"] == "Lisbon"
    assert "Ada" not in shown.stdout
