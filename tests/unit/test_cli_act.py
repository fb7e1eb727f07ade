"""``sas resubmit``, ``skip``, ``undo`` and ``callback``: what is typed, asked and printed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sas.cli import act, screen
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.domain.messages import Verb
from sas.domain.order import Dispatched, Fault
from sas.features.callbacks.codec import CallbackKeys
from sas.operate import commands
from sas.operate.callbacks import waiting_callbacks
from sas.operate.commands import OrderAct
from sas.operate.errors import UNAVAILABLE
from sas.ports import Message, RefusedError, UndeliverableError
from tests.unit.actors_kit import KEYS, break_row
from tests.unit.cli_kit import CommandResult, Night, store_away
from tests.unit.domain_cases import story
from tests.unit.screens_kit import Terminal

DECLINED = RefusedError("card-declined", "the card was declined")
LIMIT = RefusedError("over-limit", "the card is over its limit")


def sent(night: Night) -> list[CommandMessage]:
    return [internal.decode(message.body, CommandMessage) for message in night.sent_messages]


# -- What is typed ----------------------------------------------------------------------------


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
    for options in ([], ["--now"]):
        night.sas("undo", "A", "--yes", "--wait", "0", *options)
    seq = night.system.order("A").seq
    assert [(command.verb, command.seq) for command in sent(night)] == [
        ("cancel", None),
        ("undo", seq),
    ]


# -- What is asked ----------------------------------------------------------------------------


def test_at_a_terminal_it_asks_and_goes_by_the_answer(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.fail("A", DECLINED)
    assert night.sas("undo", "A").code == 2  # without a terminal
    for answer, code, count in (("n\n", 1, 0), ("", 1, 0), ("y\n", 0, 1)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert (night.sas("undo", "A").code, len(night.sent_messages)) == (code, count)


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
    dry_run = ("--state", "error", "--dry-run", "--json")
    plan = night.sas("resubmit", *dry_run).json
    assert [(act["OrderID"], act["Seq"], act["Effect"]) for act in plan] == [
        ("A", 4, "run-again"),
        ("B", 4, "run-again"),
    ]
    break_row(night.system, "B")
    result = night.sas("skip", "--step", "reserve", *dry_run)
    assert (result.code, [act["Refusal"] for act in result.json]) == (
        0,
        ["step-not-in-error", "unreadable"],
    )
    assert night.sent_messages == []


# -- What is printed --------------------------------------------------------------------------


def test_a_step_that_fails_again_or_an_undo_that_is_refused_ends_with_1(night: Night) -> None:
    for order_id in ("A", "B", "C"):
        night.fail(order_id, DECLINED)
    night.system.agents["payment"].then({"ok": 1}, LIMIT, {"ok": 1})
    result = night.sas("resubmit", "--state", "error", "--yes")
    assert (result.code, result.lines[-1]) == (1, "sent 3, carried out 3, failed 1")
    assert result.err == (
        "sas: order B: failed again: pay (“over-limit: the card is over its limit”)\n"
    )
    night.system.agents["stock"].then(RefusedError("sold", "the goods are gone"))
    result = night.sas("undo", "B", "--yes")
    assert result.code == 1
    assert result.lines[-1].startswith("carried out: seq 8, undo decided; the order is ")
    assert result.err == (
        "sas: order B: partly undone: undo of reserve (“sold: the goods are gone”)\n"
    )


def test_an_undo_that_waits_for_calls_is_accepted_and_not_done() -> None:
    for state, ending in {
        "Processing": "accepted: seq 5, cancelled; the order is Processing. It is undone when ",
        "Compensated": "done: seq 5, cancelled; the order is Compensated",
    }.items():
        result = OrderAct(
            order_id="A",
            verb=Verb.CANCEL,
            process_state=state,
            carried_out=True,
            row=5,
            what="cancelled",
        )
        assert act._ending(result).startswith(ending)


def test_of_many_problems_the_first_are_named(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sas.cli.act.LINES_MAX", 1)
    for order_id in ("A", "B", "C"):
        night.fail(order_id, DECLINED)
    night.runs = False
    many = ("resubmit", "--state", "error", "--yes", "--wait", "0.1")
    result = night.sas(*many)
    assert (result.code, result.lines[-1]) == (1, "sent 3, carried out 0")
    assert night.sas(*many, "--json").code == 1
    assert "and 2 more (--dry-run names all)" in result.lines
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


def test_it_shows_an_address_that_the_endpoint_takes(night: Night, keys: CallbackKeys) -> None:
    night.awaits("A")
    address, token = night.sas("callback", "A").lines[-1].rsplit("/", 1)
    assert address == keys.url
    body = b'{"outcome": "done", "result": {"by": "the manager"}}'
    night.play(night.system.callbacks.answer(token, None, body))
    night.play(night.system.drain())
    assert night.system.state("A") == "Processed"


def test_without_the_settings_there_is_no_address_and_with_the_key_alone_a_token(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.awaits("A")
    (record,) = night.sas("callback", "A", "--json").json
    assert (record["Step"], record["Note"]) == ("reserve", "the manager approves")
    assert (record["Url"], record["Token"]) == (None, None)
    monkeypatch.setenv("SAS_CALLBACK_KEY", KEYS.keys[0])
    result = night.sas("callback", "A")
    assert "set SAS_CALLBACK_URL as the app has it" in result.out
    assert KEYS.read(result.lines[-1].removeprefix("token  ")).order_id == "A"
    night.submit("B")
    night.sas("callback", "B").refused(1, "only a step that waits for a callback")


def test_an_operator_ends_a_wait_by_a_skip_an_answer_or_a_refusal(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"amount": 80}')))
    verbs = {
        "A": ("skip", "--step", "reserve", "--input", '{"amount": 80}'),
        "B": ("callback", "--answer", "-", "--reason", "by phone"),
        "C": ("callback", "--refuse", "too-dear", "--text", "50 is the most"),
    }
    for order_id, (verb, *options) in verbs.items():
        night.awaits(order_id)
        (result,) = night.sas(verb, order_id, *options, "--yes", "--json").json
        effect = "end-as-refused" if order_id == "C" else "end-as-done"
        assert (result["Effect"], result["CarriedOut"]) == (effect, True)
    steps = [night.system.order(order_id).steps[0] for order_id in verbs]
    assert [step.result for step in steps] == ['{"amount": 80}', '{"amount": 80}', None]
    assert steps[2].error == Fault("too-dear", "50 is the most")
    (entry,) = [entry for entry in night.system.journal("B") if entry.by == "operator ann"]
    assert (entry.what, entry.reason) == ("step processed", "by phone")


def test_each_of_the_callbacks_that_an_order_waits_for_is_shown_or_only_that_of_a_step() -> None:
    order = story("two beside each other")
    order.claim()
    turn = Dispatched(locked_by="s", complete_by=order.now, awaits=True)
    steps = tuple(replace(step, turn=turn) for step in order.order.steps)
    both = replace(order.order, steps=steps)
    for step, names in {None: ["a", "b"], "b": ["b"]}.items():
        assert [waiting.step for waiting in waiting_callbacks(both, step, KEYS)] == names


# -- What cannot be done ----------------------------------------------------------------------


RIGHT = "you need the role Azure Service Bus Data Sender on it"
TYPED = {
    "resubmit": ("resubmit",),
    "skip": ("skip",),
    "undo": ("undo",),
    "callback": ("callback", "--answer", "{}"),
    "show --acknowledge": ("show", "--acknowledge"),
}


def test_each_verb_is_refused_in_one_sentence_and_nothing_changes(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gone, no right to send, a seq that is old, the wrong state, no right to read."""
    night.fail("STUCK", DECLINED)
    night.awaits("WAITS")

    async def no_right(messages: Sequence[Message]) -> None:
        raise UndeliverableError(f"queue scheduler: {RIGHT}.", messages[0])

    def typed(name: str, order_id: str, *options: str) -> CommandResult:
        word, *rest = TYPED[name]
        yes = () if name == "show --acknowledge" else ("--yes",)
        return night.sas(word, order_id, *rest, *yes, *options)

    rights = dict.fromkeys(TYPED, "STUCK") | {"callback": "WAITS"}
    for name, order_id in rights.items():
        typed(name, "GONE").refused(1, "there is no order 'GONE' here: check the id")
        with monkeypatch.context() as patch:
            patch.setattr(night, "send", no_right)
            typed(name, order_id).refused(UNAVAILABLE, RIGHT)
    assert night.sent_messages == []
    for order_id in ("STUCK", "WAITS"):
        assert night.sas("undo", order_id, "--yes").code == 0
    sent_count = len(night.sent_messages)
    for name, order_id in rights.items():
        if name != "show --acknowledge":
            typed(name, order_id, "--seq", "4").refused(1, "nothing was sent: you saw seq 4, but")
        result = typed(name, order_id)
        result.refused(1, f" of order {order_id} is not possible", "Compensated")
    store_away(monkeypatch)
    for name, order_id in rights.items():
        typed(name, order_id).refused(UNAVAILABLE, "you have no right")
    assert len(night.sent_messages) == sent_count
