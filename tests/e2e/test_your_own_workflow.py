"""Every step of docs/your-own-workflow.md, as a newcomer does it in a new project."""

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

import pytest

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


CALLBACKS = {"SAS_CALLBACK_KEY": "OLTmUuRNp/I3DZ4mDicTZVCko6bQf1wMMy+LEiQIP9I="}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A new project with the page's files."""
    folder = tmp_path / "trips"
    write(folder)
    return folder


def test_the_page_s_files_pass_their_tests_and_stories_and_deploy_with_their_own_settings(
    project: Path,
) -> None:
    assert run(sas("infra"), project).returncode == 0
    pages_files = ["trips.py", "function_app.py", "tests/test_trips.py", "trips.jsonl"]
    assert [name for name, _ in FILES] == pages_files
    assert len(COMMANDS) == 3
    tested = run(["-m", "pytest", "-q", "-p", "sas.testing.plugin", "tests"], project)
    assert " passed" in tested.stdout, tested.stdout + tested.stderr
    assert tested.returncode == 0, tested.stdout
    simulated = run([*sas("sim"), "--jobs", "1"], project)
    assert "Nothing wrong with your workflow in 20 stories." in simulated.stdout, simulated.stderr
    hook = ["-m", "sas.cli", "azd", "preprovision"]
    refused = run(hook, project, AZURE_ENV_NAME="shop")
    settings = re.findall(r"azd env set (\w+)", refused.stderr)
    assert (refused.returncode, settings) == (1, ["TRIPS_URL"])
    assert "azd env set TRIPS_URL https://trips.example" in PAGE
    accepted = run(hook, project, AZURE_ENV_NAME="shop", TRIPS_URL="https://trips.example")
    assert "sas: azd does not know the place yet" in accepted.stderr, "it asks azd next"


@pytest.mark.long
def test_every_step_of_the_page_leads_to_a_trip_booked_and_one_given_back(project: Path) -> None:
    assert run(sas("infra"), project).returncode == 0
    with started(project) as values:
        followed = run([*sas("submit"), "--json", "--patience", "240"], project)
        assert followed.returncode == 1, followed.stdout + followed.stderr
        assert ends_of(followed) == {"T-1": "completed", "T-2": "undone"}
        names = ["book-flight", "book-room", "confirm"]
        assert booked(values["services"]) == [f"T-1/{name}" for name in names]
    completed = next(event for event in events_of(followed) if "completed" in event["type"])
    assert sorted(completed["data"]["results"]) == names


@pytest.mark.long
def test_what_the_page_goes_on_to_runs_a_callback_an_alternative_and_the_urgent_lane(
    project: Path,
) -> None:
    go_on(project)
    port = "http://127.0.0.1:9/api/callbacks"  # only the token in it is used
    with started(project, SAS_CALLBACK_URL=port, **CALLBACKS) as values:
        words = [*sas("submit"), "--json", "--urgent", "--patience", "240"]
        words.remove("--follow")
        submitted = run(words, project)
        assert submitted.returncode == 0, submitted.stderr
        address = answer_to(project, "T-1").replace(port, f"{values['http']}/api/callbacks")
        (curl,) = re.findall(r"-d '(\{\"outcome\": \"done\".*\})'", PAGE)
        request = urllib.request.Request(address, curl.encode(), method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            assert answer.status == 202
        order = waited(project, "T-1", "Processed")
        assert waited(project, "T-2", "Compensated")
    assert "approve" in [step["Name"] for step in order["Steps"]]


def go_on(project: Path) -> None:
    """Write what the page says about long steps and options into the project."""
    put(
        project / "trips.py",
        ("import date", "import date, timedelta"),
        ("@trips.step(after=(book_room, book_flight))\nasync def confirm", "\n".join((
            fragment("@book_room.alternative"),
            "",
            fragment("@trips.step(after=(book_room, book_flight))\nasync def approve"),
            "",
            "@trips.step(after=(book_room, book_flight))\nasync def confirm",
        ))),
    )  # fmt: skip
    put(project / "services.py", ('    "/rooms"', '    "/approvals": {},\n    "/rooms"'))


def shown(project: Path, order_id: str) -> dict[str, object]:
    """Return what ``sas show`` says of an order."""
    process = run(["-m", "sas.cli", "show", order_id, "--json"], project)
    record: dict[str, object] = json.loads(process.stdout) if process.returncode == 0 else {}
    return record


def waited(project: Path, order_id: str, state: str) -> dict[str, list[dict[str, object]]]:
    """Return an order once it is in a state."""
    for _ in range(60):
        record = shown(project, order_id)
        if record.get("ProcessState") == state:
            return record  # type: ignore[return-value]
    raise AssertionError(f"{order_id} is not {state}: {record}")


def answer_to(project: Path, order_id: str) -> str:
    """Return the address that ``sas callback`` shows, once the step waits."""
    process: subprocess.CompletedProcess[str] | None = None
    for _ in range(60):
        process = run(["-m", "sas.cli", "callback", order_id, "--json"], project, **CALLBACKS,
                      SAS_CALLBACK_URL="http://127.0.0.1:9/api/callbacks")  # fmt: skip
        if address := re.search(r"http://127.0.0.1:9/api/callbacks/[\w.-]+", process.stdout):
            return address[0]
    raise AssertionError(process and process.stdout + process.stderr)
