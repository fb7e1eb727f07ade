"""The page of failure modes names tests that there are, for every failure."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and line.count("|") == 3 and "What goes wrong" not in line
]
NOTES = dict(re.findall(r"^\[\^(\d+)\]: (.+)$", PAGE, re.MULTILINE))
"""The footnotes: the tests of each row."""
REFERENCE = re.compile(r"\[\^(\d+)\]$")
TEST = re.compile(r"`((?:devstack/)?tests/[\w/]+\.py)::(test_\w+)`")
MUST_HOLD = (
    *("Malformed order", "Duplicate order, same content", "Same id, other content"),
    *("Unknown workflow", "Payload too large", "Forbidden reply queue", "Reply queue missing"),
    *("Reply queue full", "Crash after the commit, before the send"),
    *("Crash after the send, before the completion", "Dead-lettered after its commit"),
    "Dead-lettered before its commit, with a slow first handler",
    *("Two schedulers claim one step", "Scheduler dies in the middle of an order"),
    *("No scheduler runs for an hour", "Agent slow past CompleteBy"),
    *("A late call arrives after the undo", "Agent dies", "Remote service fails transiently"),
    *("Remote service refuses for good", "Remote service down for long", "Duplicate reply"),
    *("Late reply of an older epoch", "Reply lost", "Two supervisors"),
    *("Supervisor dies in the middle of a sweep", "Threshold exceeded", "Undo fails once"),
    *("Undo fails for good", "The answer to an undo is lost", "Table Storage throttled (503)"),
    "A write succeeded, its answer was lost, and another instance overwrote the row",
    *("Service Bus busy", "Connection cut"),
    "A message's lock is lost while its handler works",
    "A message that no handler can process (poison), in any queue",
    "Sent again by hand inside the window of duplicate detection",
    *("Clocks apart by seconds", "New workflow version deployed while old orders run"),
    "An operator gives a command twice at the same time",
    *("An operator acts on an old view of an order", "Purge beside live work"),
)
"""The failures that the design promises to withstand: none may be dropped from the page."""


@cache
def named_in(path: str) -> set[str]:
    """Return the names of the test functions of a file; none where there is no such file."""
    file = ROOT / path
    if not file.exists():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_failure_of_the_design_has_its_row() -> None:
    assert set(MUST_HOLD) <= {row[0] for row in ROWS}


def test_every_footnote_belongs_to_one_row() -> None:
    referred = [number for row in ROWS for number in REFERENCE.findall(row[1])]
    assert referred == list(NOTES)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_failure_has_a_promise_and_tests_that_exist(row: list[str]) -> None:
    _, promise = row
    (number,) = REFERENCE.findall(promise)
    assert REFERENCE.sub("", promise)
    note = NOTES[number]
    named = TEST.findall(note)
    assert len(named) == note.count("`") // 2 > 0
    missing = [f"{path}::{name}" for path, name in named if name not in named_in(path)]
    assert missing == []
