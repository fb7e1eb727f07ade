"""``sas resubmit``, ``skip``, ``undo`` and ``callback``: what is typed, asked and printed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from sas.cli import act, screen
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.codec.strict import CONTENT_DEPTH_MAX
from sas.domain.messages import Verb
from sas.domain.order import Fault
from sas.features.callbacks.codec import CallbackKeys
from sas.operate import commands
from sas.operate.commands import OrderAct
from sas.ports import RefusedError
from tests.unit.actors_kit import KEYS, break_row
from tests.unit.cli_kit import Night

DECLINED = RefusedError("card-declined", "the card was declined")
LIMIT = RefusedError("over-limit", "the card is over its limit")
DEEP = "[" * (CONTENT_DEPTH_MAX + 1) + "]" * (CONTENT_DEPTH_MAX + 1)


def sent(night: Night) -> list[CommandMessage]:
    return [internal.decode(message.body, CommandMessage) for message in night.sent_messages]


# -- What is typed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("resubmit", "say which order"),
        ("resubmit A --state error", "ORDER_ID 'A' names one order, and --state"),
        ("resubmit A --workflow order", "ORDER_ID 'A' names one order"),
        ("resubmit --workflow order", "say which order"),
        ("resubmit --state error --seq 3", "it goes with ORDER_ID"),
        ("resubmit --state error --input {}", "--input replaces one order's content"),
        ("undo --state compensated", "'compensated' is not one of 'error', 'running'"),
        ("undo --state running --fingerprint a/b", "give STEP/CODE as sas list shows it"),
        ("skip --fingerprint pay", "give STEP/CODE as sas list shows it"),
        ("undo --state running --since noon", "'noon' is not a time"),
        ("resubmit A --input {", "--input: the body is not JSON"),
        ('resubmit A --input {"a":1,"a":2}', "there twice"),
        (f'resubmit A --input "{"x" * 4001}"', "--input has over 4,000 characters"),
        (f"resubmit A --input {DEEP}", "--input: "),
        ("resubmit A --input @nowhere.json", "cannot read nowhere.json"),
        (f"resubmit A --by {'x' * 101}", "--by has 101 characters"),
        ("undo A --by a\x1b[2Jb", "give text that can be printed"),
        (f"undo A --reason {'x' * 501}", "--reason has 501 characters: at most 500 are kept"),
        ("undo A/B", "order_id contains '/'"),
        ("callback A --text why", "--text says why a step is refused"),
        ("callback A --refuse ", "the code of the refusal is empty"),
        ("callback A --answer {} --refuse no", "give one"),
        ("undo A --step x", "No such option: --step"),
        ("undo A --wait -1", "greater than or equal to 0"),
    ],
)
def test_a_wrong_use_is_one_clear_sentence_and_sends_nothing(
    night: Night, words: str, sentence: str
) -> None:
    result = night.sas(*words.split(" "))
    result.refused(2, sentence)
    assert night.sent_messages == []


def test_a_command_carries_who_why_and_the_seq_that_was_seen(night: Night, tmp_path: Path) -> None:
    night.fail("A", DECLINED)
    night.runs = False
    file = tmp_path / "input.json"
    file.write_text('{"amount": 1.50}\n')
    options = ("--step", "pay", "--input", f"@{file}", "--by", "bob", "--reason", "he\n asked")
    result = night.sas("resubmit", "A", *options, "--yes", "--wait", "0")
    (command,) = sent(night)
    assert (result.code, result.lines[-1]) == (0, f"sent, as command {command.id}")
    assert (command.verb, command.seq, command.step) == ("resubmit", 4, "pay")
    assert (command.by, command.reason) == ("bob", "he asked")
    assert bytes(command.input or b"") == b'{"amount": 1.50}'


def test_an_undo_of_an_order_under_way_waits_for_its_calls_unless_it_is_to_be_now(
    night: Night,
) -> None:
    night.awaits("A")
    night.runs = False
    gentle = night.sas("undo", "A", "--dry-run")
    assert "undo would start no new step, then undo the order (there is no way back)" in gentle.out
    for options in ([], ["--now"]):
        night.sas("undo", "A", "--yes", "--wait", "0", *options)
    seq = night.system.order("A").seq
    assert [(command.verb, command.seq) for command in sent(night)] == [
        ("cancel", None),
        ("undo", seq),
    ]
    result = night.sas("undo", "--state", "running", "--dry-run")
    assert "1 order under way: start no new step, and wait for running calls" in result.out


def test_a_skip_ends_the_wait_for_a_callback(night: Night) -> None:
    night.awaits("A")
    result = night.sas("skip", "A", "--step", "reserve", "--input", '{"amount": 80}', "--yes")
    assert result.code == 0, result.err
    assert 'skip would end reserve as done, with the result {"amount": 80}' in result.out
    assert night.system.state("A") == "Processed"
    assert night.system.order("A").steps[0].result == '{"amount": 80}'


# -- What is asked ----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code", "count"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 1, 0)])
def test_at_a_terminal_it_asks_and_goes_by_the_answer(
    night: Night, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, count: int
) -> None:
    night.fail("A", DECLINED)
    assert night.sas("undo", "A").code == 2  # without a terminal
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert night.sas("undo", "A").code == code
    assert len(night.sent_messages) == count


class Interrupting:
    """The user presses Ctrl-C at the question, and only then answers."""

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return "y\n"


def test_ctrl_c_is_an_answer_and_it_is_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Interrupting())

    async def ask() -> bool:
        return screen.confirmed("undo 26 orders")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ask())
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "undo 26 orders? [y/N] \nnothing was sent\n"


def test_a_dry_run_prints_the_plan_and_sends_nothing(night: Night) -> None:
    for order_id in ("A", "B"):
        night.fail(order_id, DECLINED)
    result = night.sas("resubmit", "--fingerprint", "pay/card-declined", "--dry-run")
    assert result.lines[0] == "resubmit of 2 orders: 2 pay/card-declined"
    assert [line.split()[:3] for line in result.lines[2:]] == [
        ["A", "Error", "pay/card-declined"],
        ["B", "Error", "pay/card-declined"],
    ]
    result = night.sas("skip", "--state", "error", "--step", "reserve", "--dry-run")
    reason = "the step must be in Error, and reserve is Processed"
    assert result.lines == [
        "skip of no order",
        f"skip is not possible for 2 orders more: {reason}",
    ]
    records = night.sas("resubmit", "--state", "error", "--dry-run", "--json").json
    assert [(record["OrderID"], record["Seq"]) for record in records] == [("A", 4), ("B", 4)]
    assert records[0]["Would"] == "run again: pay (“card-declined: the card was declined”)"
    reason = break_row(night.system, "B")
    result = night.sas("resubmit", "--state", "error", "--dry-run")
    assert (result.code, result.lines[0]) == (0, "resubmit of 1 order: 1 pay/card-declined")
    assert result.lines[-1] == (
        f"resubmit is not possible for 1 order more: it cannot be read: {reason}"
    )
    assert night.sent_messages == []


# -- What is printed --------------------------------------------------------------------------


def test_a_step_that_fails_again_ends_with_1_and_says_how(night: Night) -> None:
    night.fail("A", DECLINED)
    night.system.agents["payment"].then(LIMIT, {"ok": 1})
    result = night.sas("resubmit", "A", "--yes")
    assert result.code == 1
    assert result.lines[-1] == "carried out: seq 5, resubmitted; the order is Error"
    assert (
        result.err == "sas: order A: failed again: pay (“over-limit: the card is over its limit”)\n"
    )
    result = night.sas("resubmit", "A", "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.lines[-1].endswith("resubmitted; the order is Processed")


def test_an_undo_that_is_refused_is_not_done_and_ends_with_1(night: Night) -> None:
    night.fail("A", LIMIT)
    night.system.agents["stock"].then(RefusedError("sold", "the goods are gone"))
    result = night.sas("undo", "A", "--yes")
    assert result.code == 1
    assert result.lines[-1].startswith("carried out: seq 5, undo decided; the order is ")
    assert (
        result.err == "sas: order A: partly undone: undo of reserve (“sold: the goods are gone”)\n"
    )


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ("Processing", "accepted: seq 5, cancelled; the order is Processing. It is undone when "),
        ("Compensated", "done: seq 5, cancelled; the order is Compensated"),
    ],
)
def test_an_undo_that_waits_for_calls_is_accepted_and_not_done(state: str, ending: str) -> None:
    result = OrderAct(
        order_id="A",
        verb=Verb.CANCEL,
        process_state=state,
        since=None,
        seq=4,
        urgent=False,
        carried_out=True,
        row=5,
        what="cancelled",
    )
    assert act._ending(result).startswith(ending)


def test_of_many_those_that_failed_again_are_named(night: Night) -> None:
    for order_id in ("A", "B", "C"):
        night.fail(order_id, DECLINED)
    night.system.agents["payment"].then({"ok": 1}, LIMIT, {"ok": 1})
    result = night.sas("resubmit", "--state", "error", "--yes")
    assert (result.code, result.lines[-1]) == (1, "sent 3, carried out 3, failed 1")
    assert result.err == (
        "sas: order B: failed again: pay (“over-limit: the card is over its limit”)\n"
    )
    (record,) = night.sas("undo", "B", "--yes", "--json").json
    assert (record["Verb"], record["CarriedOut"], record["Problem"]) == ("undo", True, "")


def test_of_many_problems_the_first_are_named(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sas.cli.act.LINES_MAX", 1)
    for order_id in ("A", "B", "C"):
        night.fail(order_id, DECLINED)
    night.runs = False
    result = night.sas("resubmit", "--state", "error", "--yes", "--wait", "0.1")
    assert (result.code, result.lines[-1]) == (1, "sent 3, carried out 0")
    assert "and 2 more (--dry-run names all)" in result.lines
    assert result.err.startswith("sas: order A: not carried out within 0.1 s: check that the")
    assert result.err.endswith("sas: and 2 more: sas list shows them\n")


def test_an_interrupted_command_says_how_many_were_sent_and_how_to_go_on(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SEND_COMMANDS_MAX", 2)
    for order_id in ("A", "B", "C", "D"):
        night.fail(order_id, DECLINED)

    async def ctrl_c() -> None:
        night.before_send = interrupt

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1)

    night.before_send = ctrl_c
    result = night.sas("resubmit", "--state", "error", "--yes")
    assert result.code == screen.INTERRUPTED
    assert "interrupted: up to 4 of 4 commands were sent, and are carried out; 0 are done" in (
        result.err
    )
    result = night.sas("resubmit", "--state", "error", "--yes")
    assert (result.code, result.lines[-1]) == (0, "sent 2, carried out 2")
    assert {night.system.state(name) for name in "ABCD"} == {"Processed"}


# -- sas callback -----------------------------------------------------------------------------


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
    line = f"reserve waits for the callback until {until}: “the manager approves”"
    assert result.lines[0] == line
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
    assert (result.code, result.lines[-1]) == (
        0,
        "address  not known here: set SAS_CALLBACK_KEY and SAS_CALLBACK_URL as the app has them",
    )
    (record,) = night.sas("callback", "A", "--json").json
    assert (record["Step"], record["Note"]) == ("reserve", "the manager approves")
    assert (record["Url"], record["Token"]) == (None, None)
    monkeypatch.setenv("SAS_CALLBACK_KEY", KEYS.keys[0])
    result = night.sas("callback", "A")
    assert "set SAS_CALLBACK_URL as the app has it" in result.out
    assert KEYS.read(result.lines[-1].removeprefix("token  ")).order_id == "A"


def test_an_answer_ends_the_step_and_the_journal_has_the_operators_name(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.awaits("A")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"amount": 80}')))
    result = night.sas("callback", "A", "--answer", "-", "--yes", "--reason", "by phone")
    assert result.code == 0, result.err
    assert 'end reserve as done, with the result {"amount": 80}' in result.out
    assert night.system.order("A").steps[0].result == '{"amount": 80}'
    (entry,) = [entry for entry in night.system.journal("A") if entry.by == "operator ann"]
    assert (entry.what, entry.reason) == ("step processed", "by phone")


def test_a_refusal_is_that_of_the_step(night: Night) -> None:
    night.awaits("A")
    result = night.sas("callback", "A", "--refuse", "too-dear", "--text", "50 is the most", "--yes")
    assert result.code == 0, result.err
    assert "end reserve as refused (too-dear: 50 is the most); the order is then" in result.out
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
    assert night.sas("undo", "A", "--yes").code == 0
    result = night.sas("callback", "A", "--answer", "{}", "--seq", str(seq), "--yes")
    result.refused(1, f"you saw seq {seq}", "cancelled by operator ann")
    assert night.system.state("A") == "Compensated"
