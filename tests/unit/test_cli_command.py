"""The command as a whole: its helps, its errors, its exit codes, its JSON, and foreign text."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_group

from sas.cli import screen
from sas.cli.main import OTHER_NAMES, app, main, verbs
from sas.codec.strict import CONTENT_DEPTH_MAX
from sas.domain.texts import is_visible
from sas.operate.errors import USAGE
from sas.ports import RefusedError
from tests.command_line import check_command
from tests.unit import screens_kit
from tests.unit.actors_kit import CARE, kit, order
from tests.unit.cli_kit import Night

HOSTILE = "\x1b[2J\x9b1m\u202eevil\r\n [red]x[/red] [/] :bomb:"
SHOWN = r"\x1b[2J\x9b1m\u202eevil\r\n"
DEEP = "[" * (CONTENT_DEPTH_MAX + 1) + "]" * (CONTENT_DEPTH_MAX + 1)
PLAIN = {"azd", "docs", "infra"}
"""Verbs for azd, for a reader and for files: their exit code says the result."""


def paths() -> dict[str, Any]:
    """Return each command by the words that name it, such as ``workflows draw``."""
    commands: dict[str, Any] = {}
    for name, command in get_group(app()).commands.items():
        parts = command.commands.items() if isinstance(command, TyperGroup) else ()
        commands |= {f"{name} {part}": each for part, each in parts} or {name: command}
    return {name: each for name, each in commands.items() if name not in OTHER_NAMES}


def test_a_help_fits_a_screen_and_begins_with_an_example() -> None:
    for path in paths():
        lines = screens_kit.drawn(80, *path.split(), "--help").splitlines()
        assert len(lines) <= 40, path
        usage, summary, example = (part.strip() for part in "\n".join(lines).split("\n\n")[:3])
        assert usage.startswith(f"Usage: sas {path}")
        assert summary.endswith("."), path
        assert f"sas {path.replace('why', 'show')}" in example


def test_an_old_name_and_that_of_another_tool_answer_once_with_ours(night: Night) -> None:
    result = night.sas("retry", "A", "--state", "error")
    assert (result.code, result.out) == (USAGE, "")
    assert result.err == "sas: there is no verb retry: use `sas resubmit ORDER_ID`\n"
    for ours in set(OTHER_NAMES.values()):
        check_command(shlex.split(ours)[1:])


def test_why_is_another_name_of_show(night: Night) -> None:
    night.fail("A", RefusedError("card-declined", "the card was declined"))
    assert "why" not in verbs()
    assert night.sas("why", "A") == night.sas("show", "A")


WRONG = {
    "resubmit": "say which order",
    "resubmit A --state error": "ORDER_ID 'A' names one order, and --state",
    "resubmit --workflow order": "say which order",
    "resubmit --state error --seq 3": "it goes with ORDER_ID",
    "resubmit --state error --input {}": "--input replaces one order's content",
    "undo --state compensated": "'compensated' is not one of 'error', 'running'",
    "undo --state running --fingerprint a/b": "give STEP/CODE as sas list shows it",
    "skip --fingerprint pay": "give STEP/CODE as sas list shows it",
    "undo --state running --since noon": "'noon' is not a time",
    "resubmit A --input {": "--input: the body is not JSON",
    f'resubmit A --input "{"x" * 4001}"': "--input has over 4,000 characters",
    f"resubmit A --input {DEEP}": "--input: ",
    "resubmit A --input @nowhere.json": "cannot read nowhere.json",
    f"resubmit A --by {'x' * 101}": "--by has 101 characters",
    "undo A --by a\x1b[2Jb": "give text that can be printed",
    f"undo A --reason {'x' * 501}": "--reason has 501 characters: at most 500 are kept",
    "undo A/B": "order_id contains '/'",
    "callback A --text why": "--text says why a step is refused",
    "callback A --refuse ": "the code of the refusal is empty",
    "callback A --answer {} --refuse no": "give one",
    "undo A --step x": "No such option: --step",
    "undo A --wait -1": "greater than or equal to 0",
    "list --state finished --fingerprint a/b": "goes with --state error",
    "list --all --acknowledge": "goes with --state error",
    "list --all --state error": "give one of the two",
    "list --fingerprint pay": "give STEP/CODE",
    "list --older-than 3": "--older-than goes with --to FILE",
    "list --to x --state error": "it goes with --older-than only",
    "list --since noon": "'noon' is not a time",
    "show A --content": "--content needs --json",
    "show a/b": "order_id contains '/'",
    "messages resend": "give one ID or more, or --all",
    "messages resend x --all": "give one ID or more, or --all",
    "messages resend --all --force": "--force needs the IDs",
    "messages remove": "give one ID or more, or --repaired",
    "messages remove --repaired --in scheduler": "--repaired removes alerts and rejected messages",
    "messages list --since yesterday": "is not a time",
}


def test_a_wrong_use_is_one_clear_sentence_and_sends_nothing(night: Night) -> None:
    for words, sentence in WRONG.items():
        night.sas(*words.split(" ")).refused(2, sentence)
    assert night.sent_messages == []


def test_bad_usage_is_one_sentence_that_names_the_help(night: Night) -> None:
    for words, sentence in {
        "lst": "sas: No such command 'lst'. Did you mean 'list'? See sas --help",
        "sim --seds 4": "(Possible options: --seed, --seeds). See sas sim --help",
        "sim --seeds 0": "should be greater than or equal to 1. See sas sim --help",
        "docs a b": "unexpected extra argument",
        "show": "Missing argument 'ORDER_ID'. See sas show --help",
        "workflows drw": "Did you mean 'draw'? See sas workflows --help",
        "azd checks": "is not one of",
        shlex.quote(HOSTILE): SHOWN,
    }.items():
        result = night.sas(*shlex.split(words))
        result.refused(USAGE, sentence)
        assert is_visible(result.err.rstrip())


def test_without_a_verb_the_help_is_shown(night: Night) -> None:
    result = night.sas()
    assert result.code == USAGE
    assert "Usage: sas" in result.out
    assert result.err == ""


def test_the_command_says_its_version(night: Night) -> None:
    assert re.fullmatch(r"sas \d+\.\d+\.\d+ \(a working copy\)\n", night.sas("--version").out)


def test_a_shell_completes_the_verbs(monkeypatch: pytest.MonkeyPatch, night: Night) -> None:
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setenv("_SAS_COMPLETE", f"source_{shell}")
        script = night.sas()
        assert script.code == 0
        assert f"complete_{shell}" in script.out
        monkeypatch.setenv("_SAS_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", "sas res")
        monkeypatch.setenv("COMP_CWORD", "1")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "sas res")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        completed = night.sas()
        assert "resubmit" in completed.out
        assert "show" not in completed.out


# -- Foreign text, colours --------------------------------------------------------------------


def test_a_verb_shows_foreign_text_escaped(night: Night) -> None:
    night.fail("A", RefusedError(HOSTILE[:20], HOSTILE))
    stored = night.system.store.orders["A"]
    details = replace(stored.order.details, correlation_id=HOSTILE, reply_queue=HOSTILE)
    stored.order = replace(stored.order, details=details, acknowledged_by=HOSTILE)
    for words in ("list", "show A --journal", "messages list", "status"):
        text = screens_kit.drawn(160, *words.split())
        assert SHOWN in text
        assert "[red]x[/red]" in text
        assert all(map(is_visible, text.splitlines()))
    for words in ("list --json", "show A --json"):
        result = night.sas(*words.split())
        assert all(map(is_visible, result.lines))
        assert repr(HOSTILE)[1:-1] in repr(result.json)


@pytest.mark.parametrize(
    ("name", "value", "is_coloured"), [("A", "1", True), ("NO_COLOR", "1", False)]
)
def test_no_colour_is_shown_if_the_user_wants_none(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, *, is_coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    terminal = screens_kit.Terminal()
    screen.console(terminal).print(screen.styled("Error"))
    assert ("\x1b[31mError" in terminal.getvalue()) == is_coloured


# -- JSON -------------------------------------------------------------------------------------

COMMANDS = [
    "list",
    "list --all",
    "list --to out.jsonl",
    "show A",
    "show bad-1",
    "skip A --dry-run",
    "resubmit A --yes",
    "undo A --yes",
    "callback W",
    "messages list",
    "messages list rejected",
    "status",
    "status --check",
    "workflows check --app tests.unit.test_cli_command:WORKFLOWS",
    "workflows draw --app samples.claim.claim",
    "workflows schema --app samples.claim.claim",
    "sim --app samples.claim.claim --seeds 2 --jobs 1",
    "new my-orders",
]
WORKFLOWS = kit(CARE).business.workflows


def test_every_verb_has_json() -> None:
    for path, command in paths().items():
        options = {option for param in command.params for option in param.opts}
        assert ("--json" in options) or path in PLAIN, path


def test_with_json_a_verb_prints_json_lines_only(
    night: Night, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    night.fail("A", RefusedError("card-declined", "the card was declined"))
    night.awaits("W")
    night.play(night.system.submit(order("bad-1", workflow="nosuch"), "m-bad-1"))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    for words in COMMANDS:
        result = night.sas(*words.split(), "--json")
        assert (result.code in {0, 1}, bool(result.lines)) == (True, True), (words, result)
        assert "Traceback" not in result.err
        assert all(isinstance(record, dict) for record in result.json), result.out


def test_a_storage_that_cannot_be_read_or_is_not_named_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for setting, value, sentence in (
        ("SAS_TABLES", "nonsense", "the storage connection string cannot be read"),
        ("ServiceBus", "NAME.servicebus.windows.net", "the setting SAS_TABLES is missing"),
        ("SAS_TABLE", "orders", "nothing runs here (no .devstack/env"),
    ):
        with monkeypatch.context() as patch:
            for name in ("SAS_TABLES", "AzureWebJobsStorage", "ServiceBus", "SAS_TABLE"):
                patch.delenv(name, raising=False)
            patch.setenv(setting, value)
            assert main(["list"]) == USAGE
        assert sentence in capsys.readouterr().err
