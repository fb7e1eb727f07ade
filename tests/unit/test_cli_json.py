"""Every verb that shows orders or a result has --json, and then prints JSON lines only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sas.cli.main import build_parser
from sas.ports import RefusedError
from tests.unit.actors_kit import order
from tests.unit.cli_kit import Night
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

APP = "tests.unit.cli_kit:workflows"
DEAD = "/$DeadLetterQueue"

COMMANDS = [
    ["list"],
    *(["list", "--state", state] for state in ("running", "finished", "rejected")),
    ["show", "A"],
    ["show", "bad-1"],
    ["list", "--to", "out.jsonl"],
    ["list", "--to", "-"],
    *([verb, "A", "--yes"] for verb in ("resubmit", "skip", "undo", "cancel", "acknowledge")),
    *([verb, "A", "--dry-run"] for verb in ("resubmit", "skip", "undo", "cancel", "acknowledge")),
    *(["callback", "W", *rest] for rest in ([], ["--answer", "{}", "--yes"])),
    ["resubmit", "A", "--yes", "--no-wait"],
    ["resubmit", "--state", "error", "--yes"],
    ["cancel", "--state", "error", "--yes"],
    ["watch", "--count", "2", "--every", "0.1"],
    ["doctor"],
    ["circuits"],
    ["incidents"],
    ["alerts"],
    *(["rejected", *rest] for rest in ([], ["show", "bad-1"], ["resend", "bad-1"])),
    ["rejected", "resend", "--all", "--dry-run"],
    ["rejected", "remove", "bad-1", "--yes"],
    *(["dlq", *rest] for rest in ([], ["explain", "d-1"], ["redrive", "--all"])),
    ["queues"],
    ["queues", "peek", "orders-rejected"],
    ["queues", "redrive", "orders-rejected", "--all"],
    ["queues", "redrive", "orders", "--dead-letter", "--all", "--dry-run"],
    ["queues", "remove", "orders-rejected", "--id", "m-1", "--yes"],
    ["workflows", "check", "--app", APP],
    ["workflows", "draw", "--app", APP],
    ["workflows", "schema", "--app", "samples.claim.claim"],
    ["sim", "--app", "samples.claim.claim", "--seeds", "2", "--jobs", "1"],
    ["sim", "--app", "samples.claim.claim", "--seed", "3"],
    ["new", "my-orders"],
]
SILENT = (
    ["circuits"],
    ["incidents"],
    ["list", "--state", "running"],
)
"""Commands that have nothing to list here."""
ELSEWHERE = {
    "submit": "tests/integration/test_client_command.py",
    "desk": "tests/e2e/test_desk_command.py",
}
"""Verbs that need a broker or a browser. Those tests read their JSON."""
PLAIN = {"azd", "docs", "infra"}
"""Verbs for azd, for a reader and for files: their exit code says the result."""


def verbs() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    (subparsers,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
    return {name: verb for name, verb in subparsers.choices.items() if name not in PLAIN}


def actions_of(parser: argparse.ArgumentParser) -> set[str]:
    return {
        str(choice)
        for action in parser._actions
        if action.choices and not action.option_strings
        for choice in action.choices
    }


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_json(verb: str) -> None:
    options = {name for action in verbs()[verb]._actions for name in action.option_strings}
    assert "--json" in options


def test_every_verb_and_every_action_of_it_is_tried_here() -> None:
    tried = {command[0] for command in COMMANDS}
    assert tried | set(ELSEWHERE) == set(verbs())
    for name, parser in verbs().items():
        actions = actions_of(parser)
        words = {word for command in COMMANDS if command[0] == name for word in command[1:]}
        assert actions - words - {"list"} == set(), name


@pytest.mark.parametrize("verb", ELSEWHERE)
def test_what_is_tried_elsewhere_is_there(verb: str) -> None:
    page = (Path(__file__).parents[2] / ELSEWHERE[verb]).read_text(encoding="utf-8")
    assert '"--json"' in page


def broken_system(night: Night) -> None:
    """An order in Error, one under way, finished ones, a rejected one, a dead letter."""
    night.fail("A", RefusedError("card-declined", "the card was declined"))
    night.submit("C")
    night.awaits("W")
    night.play(night.system.submit(order("bad-1", workflow="nosuch"), "m-bad-1"))
    message = night.system.bus.take("orders-rejected")
    assert message is not None
    night.put("orders-rejected", message.body)
    night.put("orders" + DEAD, order("fresh"), message_id="d-1")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_with_json_a_verb_prints_json_lines_only(
    night: Night,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    in_folder: Callable[[Path], None],
) -> None:
    broken_system(night)
    in_folder(tmp_path)
    result = night.sas(*command, "--json")
    assert result.code in {0, 1}, result
    assert "Traceback" not in result.err
    assert all(isinstance(json.loads(line), dict) for line in result.lines), result.out
    assert result.lines or command in SILENT


@pytest.fixture
def in_folder(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return what makes a folder the current one, with the queues' list of this project."""
    infra = Path(__file__).parents[2] / "infra"

    def change(folder: Path) -> None:
        (folder / "infra").symlink_to(infra)
        (folder / "host.json").symlink_to(infra.parent / "host.json")
        monkeypatch.chdir(folder)

    return change
