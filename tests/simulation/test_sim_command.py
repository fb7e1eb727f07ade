"""``sas sim``, the command: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sas.cli.main import main
from sas.testing import Kit, StoryError
from tests.long import long

ROOT = Path(__file__).parents[2]
WRONG = "tests.wrong_sagas"
GOLDEN = """\
Saga             Processed  Compensated  Error  Rejected
order            N          N            N      N
order-delivered  N          N            N      N
order-with-care  N          N            N      N
Nothing wrong with your workflows in 9 stories.
"""


def test_a_right_project_ends_with_a_table_and_a_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["sim", "--seeds", "9", "--jobs", "1"]) == 0
    table = re.sub(r"(?<= )\d+(?= {2}|\n)", "N", capsys.readouterr().out)
    assert re.sub(r"N +(?=N)", "N ", table) == re.sub(r"N +(?=N)", "N ", GOLDEN)


def test_a_wait_of_two_days_is_no_order_that_never_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sim", "--app", "samples.claim.claim", "--seeds", "12", "--jobs", "1", "--json"]
    assert main(words) == 0
    totals = json.loads(capsys.readouterr().out)
    assert totals["Stories"] == 12
    assert {end["State"] for end in totals["Ends"]} >= {"Processed", "Compensated"}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_first_story_that_fails_is_printed_as_a_test_to_paste(
    capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    words = ["sim", "--app", WRONG, "--seeds", "50", "--jobs", jobs, "--first", "3"]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert text.startswith("Story 3 fails:\norder O-1: step pay raised KeyError: 'b' in raises (")
    head, _, source = text.partition("This test shows it:\n\n")
    assert source.startswith("from sas.testing import Kit\nfrom tests.wrong_sagas import Ticket")
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102  as pytest would run it
    kit = Kit()
    with pytest.raises(StoryError) as caught:
        names["test_story_3"](kit)  # type: ignore[operator]
    assert str(caught.value) in " ".join(head.split())
    assert "by chance" not in kit.story, "what the failure does not need is left out"


@pytest.mark.parametrize(
    ("file", "undo"),
    [
        ("template/orders.py", "await payment.del"),
        pytest.param("samples/claim/claim.py", "await bank.delete", marks=pytest.mark.long),
    ],
)
def test_an_undo_of_the_last_step_that_does_nothing_is_found(
    file: str,
    undo: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"of_{tmp_path.name}".replace("-", "_")
    text = (ROOT / file).read_text()
    (tmp_path / f"{name}.py").write_text(re.sub(rf"{re.escape(undo)}.*", "pass", text))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["sim", "--app", name, "--first", "10", "--seeds", "190", "--jobs", "1"]) == 1
    head, _, source = capsys.readouterr().out.partition("This test shows it:\n\n")
    assert "is not taken back by" in " ".join(head.split())
    assert "saga.cancel(at=" in source
    assert source.count("    saga.") == 2
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102  as pytest would run it
    (test,) = (names[name] for name in names if name.startswith("test_"))
    with pytest.raises(StoryError, match="is not taken back by"):
        test(Kit())  # type: ignore[operator]


@pytest.mark.parametrize("words", ["sas.cli sim --seed 9", *long(["lab.seeds --seed 4"])])
def test_a_seed_gives_the_same_story_to_the_letter_in_every_process(words: str) -> None:
    stories = [
        subprocess.run(
            [sys.executable, "-m", *words.split()],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) > 10


APP = """\
import os

import msgspec

from sas import Call, Saga


class Ticket(msgspec.Struct):
    amount: int


def check(ticket: Ticket) -> None:
    if ticket.amount < 1000:
        raise ValueError("too little")


tickets = Saga("ticket", Ticket, check=check)


@tickets.step()
async def count(call: Call[Ticket]) -> str:
    assert call.order.amount == 1234
    return os.environ["OF_THE_FILE"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose check refuses every order that is drawn."""
    name = f"app_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(APP)
    settings = {"Values": {"OF_THE_FILE": "yes"}}
    (tmp_path / "local.settings.json").write_text(json.dumps(settings))
    (tmp_path / "pyproject.toml").write_text(f'[tool.sas]\napp = "{name}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_a_check_that_refuses_every_drawn_order_asks_for_examples(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "--seeds", "3", "--jobs", "1"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "saga 'ticket': its check refuses every order that is drawn: too little" in error
    assert '[tool.sas] orders = "orders.jsonl"' in error
    with (project / "pyproject.toml").open("a") as file:
        file.write('orders = "orders.jsonl"\n')
    examples = project / "orders.jsonl"
    examples.write_text('{"order_id": "A", "amount": 5}\n{"order_id": "B", "amount": 1234}\n')
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("Nothing wrong with your workflow in 3 stories.\n")
    assert "OF_THE_FILE" not in os.environ
    examples.unlink()
    assert main(words) == 2
    assert "orders.jsonl cannot be read as orders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--app", "no_such_module"], "no_such_module"),
        (["--app", "json:dumps"], "cannot be loaded"),
        (["--app", "tests.business:workflows"], "is no saga"),
    ],
)
def test_what_cannot_be_played_is_one_clear_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_the_reasons_of_orders_in_error_follow_the_table_the_most_frequent_first(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (module,) = project.glob("*.py")
    module.write_text(
        """\
from sas import Call, OnFailure, RefusedError, Saga
from msgspec import Struct

class Ticket(Struct):
    amount: int

tickets = Saga("ticket", Ticket, on_failure=OnFailure.HOLD)

@tickets.step()
def seat(call: Call[Ticket]) -> str:
    code = "closed" if call.order.amount % 4 == 0 else "sold-out"
    raise RefusedError(code, f"no seat for {call.order.amount}")
"""
    )
    assert main(["sim", "--seeds", "20", "--jobs", "1"]) == 0
    *_, first, second, verdict = capsys.readouterr().out.splitlines()
    many = re.fullmatch(
        r"ticket: (\d+) in error: step seat failed \(sold-out\): no seat for -?\d+", first
    )
    few = re.fullmatch(
        r"ticket: (\d+) in error: step seat failed \(closed\): no seat for -?\d+", second
    )
    assert many
    assert few
    assert int(many[1]) > int(few[1])
    assert verdict == "Nothing wrong with your workflow in 20 stories."


def test_a_check_with_a_bug_is_named_with_its_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (app,) = project.glob("app_*.py")
    app.write_text(APP.replace("if ticket.amount < 1000:", 'if {}["cake"]:'))
    assert main(["sim", "--seeds", "3", "--jobs", "2"]) == 2
    line = app.read_text().splitlines().index('    if {}["cake"]:') + 1
    bug = f"the check of saga ticket raised KeyError: 'cake' in check ({app.name}:{line})"
    error = capsys.readouterr().err
    assert bug in error
    assert "Traceback" not in error
