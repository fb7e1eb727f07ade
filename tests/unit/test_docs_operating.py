"""The operator's guide names what there is: every alert, every verb, commands that can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sas.cli import VERBS, build_parser
from sas.domain.messages import AlertKind, Verb

GUIDE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
TYPED = re.findall(r"^    \$ sas (.+)$", GUIDE, re.MULTILINE)


def test_every_kind_of_alert_has_its_line_and_no_other() -> None:
    table = GUIDE[GUIDE.index("## An alert has come") : GUIDE.index("## Look")]
    assert set(re.findall(r"^\| `([a-z-]+)`(?: \*)? \|", table, re.MULTILINE)) - {"kind"} == {
        kind.value for kind in AlertKind
    }


def test_every_verb_of_the_operator_is_explained() -> None:
    table = GUIDE[GUIDE.index("## Act") : GUIDE.index("## Many at once")]
    explained = set(re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE))
    assert explained == {verb.value for verb in Verb}
    assert explained < {verb.name for verb in VERBS}


def test_commands_are_shown() -> None:
    assert len(TYPED) > 10


@pytest.mark.parametrize("line", TYPED)
def test_a_command_in_the_guide_can_be_typed(line: str) -> None:
    arguments = build_parser().parse_args(shlex.split(line))
    assert arguments.verb.summary
