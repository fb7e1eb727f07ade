"""The operator's guide: it has every alert and every verb, and shows what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sas.cli.main import verbs
from sas.domain.messages import AlertKind, Verb
from tests.orders.operating_story import night_before, without_ids
from tests.unit.cli_kit import shown_in

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")


NIGHTS = re.findall(r"^\| ([A-Z][\w ]+) \| (.+?) \|", GUIDE, re.MULTILINE)
"""Each night of the page, and what is seen of it."""


def test_every_kind_of_alert_has_its_line_and_no_other() -> None:
    named = {kind for _, signs in NIGHTS for kind in re.findall(r"`([a-z-]+)`", signs)}
    table = GUIDE[GUIDE.index("Other alerts:") : GUIDE.index("## Set up")]
    others = set(re.findall(r"^\| `([a-z-]+)`(?: \*)? \|", table, re.MULTILINE)) - {"kind"}
    assert named & others == set()
    assert named | others == {kind.value for kind in AlertKind}


def test_every_verb_of_the_operator_is_explained() -> None:
    act = GUIDE[GUIDE.index("## Act") : GUIDE.index("## Many at once")]
    explained = set(re.findall(r"^\| `([a-z]+)` \|", act, re.MULTILINE))
    # An undo cancels an order under way, and acknowledge is an option of show and list.
    assert explained == {verb.value for verb in Verb} - {"cancel", "acknowledge"}
    assert "--acknowledge" in act


def test_the_guide_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_in(without_ids(GUIDE))
    assert {command.split()[0] for command, _ in shown} < set(verbs())
    assert len(shown) > 7
    assert all(output for _, output in shown)
    story = night_before(monkeypatch, tmp_path)
    printed: list[tuple[str, list[str]]] = []
    for command, _ in shown:
        story.type(command)
        output = capsys.readouterr()
        printed.append((command, without_ids(output.out + output.err).splitlines()))
    assert printed == shown
