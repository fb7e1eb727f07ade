"""What docs/your-own-workflow.md goes on to: callback, alternative, limit, urgent lane."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, Timer

import pytest

from tests.e2e.workflow_page import (
    PAGE,
    command,
    ends_of,
    project,
    run,
    service,
    started,
    told_by,
    write_infra,
)

__all__ = ["project", "service"]

FRAGMENTS = re.findall(r"^```python\n((?:class|    ).*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def go_on(project: Path) -> None:
    """Write what sections 8 and 9 of the page say into the project."""
    (approver,) = [fragment for fragment in FRAGMENTS if fragment.startswith("class ApproverAgent")]
    (room,) = re.findall(r"`(Step\([^`]*alternatives=[^`]*\))`", PAGE)
    (limits,) = re.findall(r"`Business\(\.\.\., (limits=[^`]*)\)`", PAGE)
    put(
        project / "orders" / "agents.py",
        ("from typing", "from datetime import timedelta\nfrom typing"),
    )
    put(project / "orders" / "agents.py", ("import Call,", "import AwaitCallback, Call,"))
    with (project / "orders" / "agents.py").open("a") as agents:
        agents.write(f"\n\n{approver}")
    put(
        project / "orders" / "workflows.py",
        ('Step("book-room", agent="hotel", time_allowed=TIME, after=(), undo=Undo())', room),
        (AFTER_BOTH, f"{INDENT}),\n"),
        (f'{INDENT}Step(\n{INDENT}    "confirm",\n', APPROVED),
    )
    put(
        project / "orders" / "__init__.py",
        ('"desk")\n', '"desk", "hostel", "approver")\n'),
        ("import BookingAgent", "import ApproverAgent, BookingAgent"),
        ('        "airline":', f'{AGENTS}        "airline":'),
        ('{"trip": check})\n', f'{{"trip": check}}, {limits})\n'),
    )


INDENT = " " * 20
AFTER_BOTH = f'{INDENT}    after=("book-room", "book-flight"),\n{INDENT}),\n'
APPROVED = f"""{INDENT}Step(
{INDENT}    "approve",
{INDENT}    agent="approver",
{INDENT}    time_allowed=TIME,
{AFTER_BOTH}{INDENT}Step(
{INDENT}    "confirm",
"""
AGENTS = """
        "hostel": BookingAgent(HttpService("hostel", address), "/rooms"),
        "approver": ApproverAgent(HttpService("approver", env["APPROVALS_URL"]), "/approvals"),
"""


def put(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


class Approver(ThreadingHTTPServer):
    """Somebody who takes a second, and answers to the address that they were given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Approvals)
        self.callbacks = ""
        self.answers: list[Timer] = []
        self.answered: list[int] = []

    def answer(self, url: str) -> None:
        token = url.removeprefix(f"{NOWHERE}/")
        body = json.dumps({"outcome": "done", "result": {"number": "A-1"}}).encode()
        request = urllib.request.Request(f"{self.callbacks}/{token}", body, method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            self.answered.append(answer.status)


class Approvals(BaseHTTPRequestHandler):
    server: Approver

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.answers.append(Timer(1.0, self.server.answer, [request["answer_to"]]))
        self.server.answers[-1].start()
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


NOWHERE = "http://set-before-the-port-is-known/api/callbacks"


@pytest.fixture
def approver() -> Iterator[Approver]:
    with Approver() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.long
def test_what_the_page_goes_on_to_runs_a_callback_an_alternative_a_limit_and_the_urgent_lane(
    project: Path, service: str, approver: Approver
) -> None:
    go_on(project)
    write_infra(project, APPROVALS_URL=NOWHERE)
    settings = {
        "APPROVALS_URL": f"http://127.0.0.1:{approver.server_port}",
        "SAS_CALLBACK_KEY": "OLTmUuRNp/I3DZ4mDicTZVCko6bQf1wMMy+LEiQIP9I=",
        "SAS_CALLBACK_URL": NOWHERE,
    }
    with started(project, service, **settings) as values:
        approver.callbacks = f"{values['http']}/api/callbacks"
        words = command("sas submit")
        followed = run([*words, "--json", "--urgent", "--patience", "240"], project)
        for answer in approver.answers:
            answer.join(120)
    assert ends_of(followed) == {
        "T-1": "sas.order.completed.v1",
        "T-2": "sas.order.undone.v1",
    }, followed.stderr
    events = told_by(followed)
    (completed,) = [event for event in events if event["type"] == "sas.order.completed.v1"]
    assert completed["data"]["results"]["approve"] == {"number": "A-1"}
    assert approver.answered == [202]
