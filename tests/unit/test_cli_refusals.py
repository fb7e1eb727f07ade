"""The operator at three in the morning: each answer is one clear sentence, at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest

from sas.cli import output
from sas.cli.main import main
from sas.codec.strict import CONTENT_DEPTH_MAX
from sas.domain.messages import Command
from sas.engine.command_answers import REASON_LENGTH_MAX, REASONS_MAX, CommandAnswers, slot_of
from sas.operate import commands, finding
from sas.ports import Message
from sas.testing.store import MemoryStore, StoreFault
from tests.contract import cases
from tests.unit.actors_kit import CARE, command, kit, order
from tests.unit.test_cli_operator import Capture, Scheduler, failed, sas
from tests.unit.test_cli_operator import scheduler as scheduler  # noqa: PLC0414  a fixture
from tests.unit.test_cli_operator import store as store  # noqa: PLC0414  a fixture
from tests.unit.test_cli_workflows import run_in_thread

ONE = cases.rules_of(1)
PARALLEL = cases.rules_of(2, parallel=True)


# What the scheduler refuses is said here, not on a queue only


class Refusing(Scheduler):
    """Refuses every command, in these words."""

    why = "its input is not accepted: Expected `object`"

    async def _carry_out(self, command: Command) -> None:
        await CommandAnswers(self._store).record(command.command_id, self.why)


@pytest.mark.parametrize("verb", ["resubmit", "cancel"])
async def test_the_reason_of_a_refused_command_is_printed_at_once(
    scheduler: Scheduler,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    verb: str,
) -> None:
    await failed(store, "A")
    refusing = Refusing(store)
    monkeypatch.setattr(scheduler, "_carry_out", refusing._carry_out)
    start = time.monotonic()
    assert sas(verb, "A", "--yes") == 1
    assert time.monotonic() - start < 25  # it would have waited for 30 s
    assert capsys.readouterr().err == (
        "sas: not carried out: its input is not accepted: Expected `object`.\n"
    )


async def test_an_order_purged_while_its_command_was_under_way_is_reported_as_gone(
    scheduler: Scheduler, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    async def purged(command: Command) -> None:
        store.orders.clear()

    monkeypatch.setattr(scheduler, "_carry_out", purged)
    for verb in ("undo", "cancel"):
        await failed(store, "A")
        assert sas(verb, "A", "--yes") == 1
        text = capsys.readouterr().err
        assert text.startswith("sas: not carried out: the order does not exist any more")
        assert text.count("\n") == 1


async def test_the_scheduler_keeps_why_it_refused_and_the_order_stays_as_it_was() -> None:
    system = kit(CARE)
    await system.submit(order(workflow="care"))
    before = system.order()
    system.store.fail_next("write_shared", StoreFault.CONFLICT, StoreFault.CONFLICT)
    await system.hand(command("acknowledge", before.seq, "w-9"))
    reason = "only an order in Error needs to be acknowledged, and this is Pending"
    assert await CommandAnswers(system.store).reason("w-9") == reason
    assert system.order() == before
    assert reason in system.alerts()[-1].text


async def test_of_many_refusals_the_last_few_are_kept() -> None:
    store = MemoryStore()
    refusals = CommandAnswers(store)
    slot_ids = [f"w-{n}" for n in range(9999) if slot_of(f"w-{n}") == "00"][:12]
    for command_id in slot_ids:
        await refusals.record(command_id, f"why {command_id}")
    command_ids = [command_id for command_id in slot_ids if await refusals.reason(command_id)]
    assert command_ids == slot_ids[-REASONS_MAX:]
    assert await refusals.reason(slot_ids[-1]) == f"why {slot_ids[-1]}"
    for command_id in slot_ids:
        await refusals.record(command_id, "x" * 5000)
    entry = await store.read_shared("refused|00")
    assert entry is not None
    assert len(entry.value) < REASONS_MAX * (REASON_LENGTH_MAX + 100)
    assert len(json.loads(entry.value)) == REASONS_MAX


async def test_a_refusal_that_a_later_version_recorded_is_unknown_and_gives_way() -> None:
    store = MemoryStore()
    refusals = CommandAnswers(store)
    command_id = next(f"w-{n}" for n in range(9999) if slot_of(f"w-{n}") == "00")
    await store.write_shared("refused|00", '[{"of": "a later version"}]', None)
    assert await refusals.reason(command_id) == ""
    await refusals.record(command_id, "it is too late")
    assert await refusals.reason(command_id) == "it is too late"


# What is wrong before anything is sent


@pytest.mark.parametrize("by", [" ", "a\nb", "a\udcffb", "a\x1b[2Jb", "\u202eann"])
async def test_a_name_that_cannot_be_printed_goes_into_no_journal(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture, by: str
) -> None:
    await failed(store, "A")
    assert sas("undo", "A", "--yes", "--by", by) == 2
    assert "give a name that can be printed" in capsys.readouterr().err
    assert scheduler.commands == []


async def test_an_input_deeper_than_its_bound_is_refused_here(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A")
    text = "[" * (CONTENT_DEPTH_MAX + 1) + "]" * (CONTENT_DEPTH_MAX + 1)
    assert sas("resubmit", "A", "--yes", "--input", text) == 2
    assert "--input: " in capsys.readouterr().err
    assert scheduler.commands == []
    assert sas("resubmit", "A", "--yes", "--input", text[1:-1]) == 0


async def test_a_seq_that_the_journal_has_not_reached_is_refused(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A")
    assert sas("undo", "A", "--yes", "--seq", "9") == 1
    assert (
        "you gave seq 9, but the order is at seq 3 (Error): check which seq you saw"
        in capsys.readouterr().err
    )


async def test_one_orders_content_is_never_given_to_many(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A", "B")
    assert sas("resubmit", "--state", "error", "--input", "{}", "--yes") == 2
    assert "--input replaces one order's content" in capsys.readouterr().err
    assert sas("skip", "--state", "error", "--input", "{}", "--yes") == 0
    assert {command.order_id for command in scheduler.commands} == {"A", "B"}


@pytest.mark.parametrize("verb", ["resubmit", "skip"])
async def test_a_command_for_a_fingerprint_changes_only_that_step(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture, verb: str
) -> None:
    """Skipping a payment made by hand must not skip, unseen, a reservation that failed besides."""
    first = await store.commit(cases.submitted("A", PARALLEL))
    first = await store.commit(cases.claimed(first, PARALLEL))
    first = await store.commit(cases.refused(first, 0, PARALLEL))
    await store.commit(cases.refused(first, 1, PARALLEL))
    scheduler.works = lambda _order_id: False
    chosen = ("--fingerprint", "step-1/out-of-stock", "--yes", "--no-wait")
    assert sas(verb, "--state", "error", *chosen) == 0
    assert capsys.readouterr().out.startswith(f"{verb} of 1 order: 1 step-1/out-of-stock\n")
    assert scheduler.commands[0].step == "step-1"
    assert sas(verb, "--state", "error", *chosen, "--step", "step-0") == 0
    assert scheduler.commands[1].step == "step-0"


async def test_orders_under_way_are_chosen_by_since_when_they_are(store: MemoryStore) -> None:
    for order_id, at in (("old", cases.NOW), ("new", cases.NOW + cases.SECOND)):
        await store.commit(cases.submitted(order_id, at=at))
    criteria = finding.OrderQuery(state="running", since=cases.NOW + cases.SECOND)
    assert [order.order_id async for order in finding.each(store, criteria)] == ["new"]


async def test_all_that_was_processed_since_a_moment_can_be_undone_at_once(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    """A price was wrong all morning."""
    for number, seconds in enumerate((0, 10, 20)):
        order = await store.commit(cases.submitted(f"P-{number}", ONE))
        order = await store.commit(cases.claimed(order, ONE))
        at = cases.NOW + seconds * cases.SECOND
        await store.commit(cases.answered(order, 0, ONE, at=at))
    await store.commit(cases.rejected("R", at=cases.NOW + 15 * cases.SECOND))
    await failed(store, "E")
    scheduler.works = lambda _order_id: False
    since = (cases.NOW + 10 * cases.SECOND).isoformat()
    chosen = ("--state", "processed", "--since", since, "--workflow", "order")
    assert sas("undo", *chosen, "--yes", "--no-wait") == 0
    assert capsys.readouterr().out.splitlines() == [
        "undo of 2 orders",
        "  P-1                   Processed",
        "  P-2                   Processed",
        "sent: 2",
    ]
    assert [(command.order_id, command.seq) for command in scheduler.commands] == [
        ("P-1", 3),
        ("P-2", 3),
    ]
    assert sas("cancel", "--state", "error", "--yes", "--no-wait") == 0
    assert scheduler.commands[-1].order_id == "E"


# Ctrl-C


async def test_an_interrupted_wait_prints_what_was_sent(
    scheduler: Scheduler, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(commands, "SEND_COMMANDS_MAX", 2)
    await failed(store, "A", "B", "C")
    send, begun = scheduler.send, asyncio.CancelledError

    async def interrupted(messages: list[Message]) -> None:
        if len(scheduler.commands) == 2:
            raise begun
        await send(messages)

    monkeypatch.setattr(scheduler, "send", interrupted)
    with pytest.raises(asyncio.CancelledError):
        _in_a_loop("undo", "--state", "error", "--yes")
    assert "interrupted: up to 3 of 3 commands were sent" in capsys.readouterr().err


def _in_a_loop(*arguments: str) -> None:
    caught: list[BaseException] = []

    def run() -> int:
        try:
            return main(arguments)
        except asyncio.CancelledError as error:
            caught.append(error)
            return 1

    run_in_thread(run)
    raise caught[0]


class Interrupting:
    """The user presses Ctrl-C at the question, and only then answers."""

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return "y\n"


def test_ctrl_c_is_an_answer_and_it_is_no(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", Interrupting())

    async def ask() -> bool:
        return output.confirmed("undo 26 orders")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ask())
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "undo 26 orders? [y/N] \nnothing was sent\n"
