"""``sas callback``: what a step waits for is shown, and an operator ends the wait by hand."""

from __future__ import annotations

import io
import sys
from datetime import timedelta

import pytest

from sas.domain.order import Fault
from sas.features.callbacks.codec import CallbackKeys
from tests.unit.actors_kit import KEYS
from tests.unit.cli_kit import Night
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

UNTIL = timedelta(days=2)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> CallbackKeys:
    """The operator's machine has the settings of the app."""
    monkeypatch.setenv("SAS_CALLBACK_KEY", KEYS.keys[0])
    monkeypatch.setenv("SAS_CALLBACK_URL", str(KEYS.url))
    return KEYS


def test_it_shows_the_note_until_when_and_an_address_that_the_endpoint_takes(
    night: Night, keys: CallbackKeys
) -> None:
    night.awaits("A")
    result = night.sas("callback", "A")
    step = night.system.order("A").steps[0]
    assert step.complete_by is not None
    until = f"{step.complete_by:%Y-%m-%d %H:%M:%SZ}"
    assert result.lines[0] == f"reserve waits for the callback until {until}: the manager approves"
    assert "sas callback A --step reserve --answer RESULT" in result.out
    address, token = result.lines[-1].rsplit("/", 1)
    assert (result.code, address) == (0, keys.url)
    body = b'{"outcome": "done", "result": {"by": "the manager"}}'
    night.play(night.system.callbacks.answer(token, None, body))
    night.play(night.system.drain())
    assert night.system.state("A") == "Processed"


def test_without_the_settings_it_says_which_are_missing_and_shows_no_address(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.awaits("A")
    result = night.sas("callback", "A")
    assert result.code == 0
    assert result.lines[-1] == (
        "address  not known here: set SAS_CALLBACK_KEY and SAS_CALLBACK_URL as the app has them"
    )
    (record,) = night.sas("callback", "A", "--json").json
    assert (record["Step"], record["Note"]) == ("reserve", "the manager approves")
    assert (record["Url"], record["Token"]) == (None, None)
    monkeypatch.setenv("SAS_CALLBACK_KEY", KEYS.keys[0])
    result = night.sas("callback", "A")
    assert "set SAS_CALLBACK_URL as the app has it" in result.out
    assert KEYS.read(result.lines[-1].removeprefix("token  ")).order_id == "A"


def test_an_answer_ends_the_step_and_the_journal_has_the_operators_name(night: Night) -> None:
    night.awaits("A")
    preview = night.sas("callback", "A", "--answer", '{"amount": 80}', "--dry-run")
    assert 'end reserve as done, with the result {"amount": 80}' in preview.out
    assert night.sent_messages == []
    unsure = night.sas("callback", "A", "--answer", '{"amount": 80}')
    assert (unsure.code, night.sent_messages) == (2, [])
    result = night.sas(
        "callback", "A", "--answer", '{"amount": 80}', "--yes", "--reason", "by phone"
    )
    assert result.code == 0, result.err
    assert night.system.state("A") == "Processed"
    assert night.system.order("A").steps[0].result == '{"amount": 80}'
    (entry,) = [entry for entry in night.system.journal("A") if entry.by == "operator ann"]
    assert (entry.what, entry.reason) == ("step processed", "by phone")


def test_an_answer_is_read_from_stdin(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    night.awaits("A")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"amount": 7}')))
    assert night.sas("callback", "A", "--answer", "-", "--yes").code == 0
    assert night.system.order("A").steps[0].result == '{"amount": 7}'


def test_a_refusal_is_that_of_the_step(night: Night) -> None:
    night.awaits("A")
    result = night.sas("callback", "A", "--refuse", "too-dear", "--text", "50 is the most", "--yes")
    assert result.code == 0, result.err
    assert "end reserve as refused (too-dear: 50 is the most); the order is then" in result.out
    assert night.system.state("A") == "Error"
    assert night.system.order("A").steps[0].error == Fault("too-dear", "50 is the most")


def test_an_order_that_waits_for_no_callback_is_left_alone(night: Night) -> None:
    night.submit("A")
    for rest in ((), ("--answer", "{}", "--yes")):
        result = night.sas("callback", "A", *rest)
        result.refused(
            1, "only a step that waits for a callback", "and no step of this Processed order"
        )
    assert night.sent_messages == []


def test_a_wait_that_ended_meanwhile_is_told_and_nothing_is_changed(night: Night) -> None:
    night.awaits("A")
    seq = night.system.order("A").seq
    assert night.sas("cancel", "A", "--yes").code == 0
    result = night.sas("callback", "A", "--answer", "{}", "--seq", str(seq), "--yes")
    result.refused(1, f"you saw seq {seq}", "cancelled by operator ann")
    assert night.system.state("A") == "Compensated"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--text", "why"), "--text says why a step is refused"),
        (("--refuse", " "), "the code of the refusal is empty"),
        (("--answer", "{"), "--answer: "),
        (("--answer", "@nowhere.json"), "cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_sent_is_refused_before(
    night: Night, arguments: tuple[str, ...], part: str
) -> None:
    night.awaits("A")
    night.sas("callback", "A", *arguments).refused(2, part)
