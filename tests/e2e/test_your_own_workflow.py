"""Every step of docs/your-own-workflow.md, done as a newcomer would, in a copy of the project."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workflow_page import (
    COMMANDS,
    FILES,
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
    write_infra(project)
    with started(project, service) as values:
        yield values["ServiceBus"]


def test_every_step_of_the_page_leads_to_a_trip_booked_and_one_given_back(
    project: Path, service: str, connection: str
) -> None:
    words = command("sas submit")
    followed = run([*words, "--json", "--patience", "240"], project)
    assert followed.returncode == 1, followed.stdout + followed.stderr
    assert ends_of(followed) == {
        "T-1": "sas.order.completed.v1",
        "T-2": "sas.order.undone.v1",
    }, followed.stdout + followed.stderr
    events = told_by(followed)
    completed = next(event for event in events if event["type"] == "sas.order.completed.v1")
    assert set(completed["data"]["results"]) == {"book-room", "book-flight", "confirm"}
    with urllib.request.urlopen(service, timeout=60) as answer:  # noqa: S310  our own server
        booked = json.load(answer)
    assert sorted(booked) == ["T-1/book-flight", "T-1/book-room", "T-1/confirm"]


def test_the_agents_of_the_page_hold_every_invariant(project: Path) -> None:
    simulate = [*command("sas sim"), "--seeds", "10", "--jobs", "1"]
    simulated = run(simulate, project, TRIPS_URL="http://127.0.0.1:7201")
    assert simulated.returncode == 0, simulated.stdout + simulated.stderr


def test_what_the_page_deploys_asks_for_its_own_settings_and_none_of_the_sample_s(
    project: Path,
) -> None:
    write_infra(project)
    hook = [sys.executable, "-m", "sas.cli", "azd", "preprovision"]
    nothing = run(hook, project)
    settings = re.findall(r"azd env set (\w+)", nothing.stderr)
    assert (nothing.returncode, settings) == (1, ["TRIPS_URL"])
    assert "azd env set TRIPS_URL https://trips.example" in PAGE
    done = run(hook, project, TRIPS_URL="https://trips.example")
    assert done.returncode == 0, done.stderr
    parameters = (project / "infra" / "main.parameters.json").read_text(encoding="utf-8")
    assert "SAS_PRINCIPAL_TRAVEL_DESK" in parameters
    for of_the_sample in ("{ORDERS_", "WEB_SHOP", "WHOLESALE"):
        assert of_the_sample not in parameters


def test_a_trip_that_ends_before_it_begins_is_refused_with_a_sentence(project: Path) -> None:
    trip = '{"traveller": "A", "city": "B", "arrives": "2027-03-05", "leaves": "2027-03-01"}'
    code = f"from orders.content import check\ncheck({trip.encode()!r})"
    refused = run([sys.executable, "-c", code], project)
    assert "Expected `leaves` after `arrives` - at `$.leaves`" in refused.stderr
