"""An operator's command up to the queue: arguments, confirmation, message, output."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sas.adapters.endpoints import Endpoint
from sas.cli import arguments as args
from sas.cli.main import main
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.domain.command import decide as decide_command
from sas.domain.ids import cause_of
from sas.domain.messages import Command
from sas.operate import commands
from sas.ports import BusUnavailableError, Message, MessageBus, Peeked, StateStore
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.contract.cases import NOW
from tests.unit.test_cli_workflows import run_in_thread

Capture = pytest.CaptureFixture[str]
KEY = "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=a2V5"


class Scheduler:
    """A bus with a scheduler behind it that carries out at once what ``works`` lets it."""

    def __init__(self, store: MemoryStore) -> None:
        self.commands: list[Command] = []
        self.lanes: dict[str, str] = {}
        self.works: Callable[[str], bool] = lambda _order_id: True
        self.down_after = 10**6
        self.lying: dict[str, list[Peeked]] = {}
        self._store = store

    async def send(self, messages: Sequence[Message]) -> None:
        if len(self.commands) >= self.down_after:
            raise BusUnavailableError("The bus is down.")
        for message in messages:
            command = internal.to_command(internal.decode(message.body, CommandMessage))
            assert message.message_id == command.command_id
            self.lanes[command.order_id] = message.queue
            self.commands.append(command)
            if self.works(command.order_id):
                await self._carry_out(command)

    async def _carry_out(self, command: Command) -> None:
        order = await self._store.load(command.order_id)
        assert order is not None
        assert command.seq in {order.seq, None}
        decision = decide_command(order, command, cases.ROW, now=NOW, instance="s")
        cause = cause_of("scheduler", command.command_id)
        await self._store.commit(cases.upon(order, decision, cause=cause))

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        return self.lying.get(queue, [])[:limit]

    async def check_sending(self, queue: str) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def scheduler(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    new_scheduler = Scheduler(store)

    @asynccontextmanager
    async def opened_store(where: args.Storage) -> AsyncIterator[StateStore]:
        yield store

    @asynccontextmanager
    async def opened_bus(endpoint: Endpoint) -> AsyncIterator[MessageBus]:
        assert endpoint.connection_string == KEY
        yield new_scheduler

    monkeypatch.setattr(args, "open_store", opened_store)
    monkeypatch.setattr(args, "open_bus", opened_bus)
    monkeypatch.setenv("SAS_TABLES", "UseDevelopmentStorage=true")
    monkeypatch.setenv("ServiceBus", KEY)
    monkeypatch.setenv("SAS_OPERATOR", "ann")
    monkeypatch.setattr("sas.cli.act.COMMAND_WAIT_S", 0.1)  # no agent runs a step again
    monkeypatch.setattr("sas.operate.commands.JOURNAL_POLL_S", 0.02)
    return new_scheduler


async def failed(store: MemoryStore, *order_ids: str, urgent: bool = False) -> None:
    for order_id in order_ids:
        first = cases.submitted(order_id)
        details = replace(first.after.details, urgent=urgent)
        order = await store.commit(replace(first, after=replace(first.after, details=details)))
        order = await store.commit(cases.claimed(order))
        await store.commit(cases.refused(order, 0))


def sas(*arguments: str) -> int:
    return run_in_thread(lambda: main(arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say which order"),
        (["A", "--state", "error"], "ORDER_ID 'A' names one order, and --state error chooses many"),
        (["A", "--workflow", "order"], "they go with --state"),
        (["A", "--fingerprint", "x/y"], "they go with --state"),
        (["--state", "error", "--seq", "3"], "it goes with ORDER_ID"),
        (["A", "--input", "{"], "--input: the body is not JSON"),
        (["A", "--input", '{"a":1,"a":2}'], "there twice"),
        (["A", "--input", '"' + "x" * 4001 + '"'], "--input has over 4,000 characters"),
        (["A", "--input", "@nowhere.json"], "cannot read nowhere.json"),
        (["A", "--by", "x" * 101], "--by has 101 characters"),
        (["A/B"], "order_id contains '/'"),
    ],
)
def test_a_wrong_use_is_one_clear_sentence_and_sends_nothing(
    scheduler: Scheduler, arguments: list[str], sentence: str, capsys: Capture
) -> None:
    assert sas("resubmit", *arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("sas: ")
    assert error.count("\n") == 1
    assert scheduler.commands == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["resubmit", "A", "--state", "running"],
        ["cancel", "--state", "processed"],
        ["undo", "--state", "running"],
        ["undo", "A", "--step", "x"],
        ["undo", "A", "--wait", "0"],
        ["undo", "A", "--limit", "none"],
    ],
)
def test_an_argument_that_a_verb_does_not_have_shows_how_it_is_used(
    arguments: list[str], capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: sas" in capsys.readouterr().err


async def test_a_command_carries_who_what_and_the_seq_that_was_seen(
    scheduler: Scheduler, store: MemoryStore, tmp_path: Path, capsys: Capture
) -> None:
    await failed(store, "A")
    file = tmp_path / "input.json"
    file.write_text('{"amount": 1.50}\n')
    options = ("--step", "step-0", "--input", f"@{file}", "--by", "bob", "--yes")
    assert sas("resubmit", "A", *options) == 0
    (command,) = scheduler.commands
    assert (command.verb.value, command.seq, command.by, command.step) == (
        "resubmit",
        3,
        "bob",
        "step-0",
    )
    assert command.input == '{"amount": 1.50}'
    assert "done: seq 4, resubmitted; the order is Pending" in capsys.readouterr().out


async def test_a_command_takes_the_lane_of_its_order(
    scheduler: Scheduler, store: MemoryStore
) -> None:
    await failed(store, "A", "C")
    await failed(store, "B", urgent=True)
    assert sas("acknowledge", "B") == 0
    assert sas("resubmit", "--state", "error", "--yes") == 0
    assert scheduler.lanes == {"A": "scheduler", "B": "scheduler-urgent", "C": "scheduler"}
    assert [command.order_id for command in scheduler.commands] == ["B", "B", "A", "C"]


async def test_two_commands_have_two_ids(scheduler: Scheduler, store: MemoryStore) -> None:
    await failed(store, "A")
    assert [sas("acknowledge", "A"), sas("acknowledge", "A")] == [0, 0]
    assert len({command.command_id for command in scheduler.commands}) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code", "count"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 1, 0)])
async def test_at_a_terminal_it_asks_and_goes_by_the_answer(
    scheduler: Scheduler,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    count: int,
) -> None:
    await failed(store, "A")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert sas("undo", "A") == code
    assert len(scheduler.commands) == count


async def test_a_dry_run_prints_the_plan_and_sends_nothing(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A", "B")
    assert sas("undo", "A", "--dry-run") == 0
    assert "undo would undo the order (there is no way back)" in capsys.readouterr().out
    assert sas("undo", "--state", "error", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        "undo of 2 orders: 2 step-0/out-of-stock",
        "  A                     step-0/out-of-stock",
        "  B                     step-0/out-of-stock",
    ]
    assert scheduler.commands == []


async def test_cancel_ignores_how_far_an_order_has_come_unless_a_seq_is_given(
    scheduler: Scheduler, store: MemoryStore
) -> None:
    await failed(store, "A", "B")
    assert sas("cancel", "A", "--yes") == 0
    assert sas("cancel", "B", "--seq", "3", "--yes") == 0
    assert [command.seq for command in scheduler.commands] == [None, 3]


async def test_of_many_each_command_that_was_not_carried_out_is_printed(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A", "B", "C")
    scheduler.works = lambda order_id: order_id != "B"
    assert sas("resubmit", "--state", "error", "--yes", "--wait", "0.3") == 1
    streams = capsys.readouterr()
    assert streams.out.splitlines()[-1] == "sent 3, carried out 2"
    assert streams.err.startswith("sas: order B: not carried out within 0.3 s")
    assert streams.err.count("\n") == 1


async def test_of_many_those_that_cannot_be_are_left_alone(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A", "B")
    assert sas("skip", "--state", "error", "--step", "step-1", "--yes") == 0
    assert capsys.readouterr().out.splitlines() == [
        "skip of no order",
        "skip is not possible for 2 orders more: left unchanged",
    ]


async def test_if_the_bus_fails_half_way_the_number_of_sent_commands_is_printed(
    scheduler: Scheduler,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr(commands, "SEND_COMMANDS_MAX", 2)
    await failed(store, "A", "B", "C")
    scheduler.down_after = 2
    assert sas("undo", "--state", "error", "--yes") == 3
    assert "The bus is down. 2 of 3 commands were sent before." in capsys.readouterr().err


def test_the_storage_comes_from_the_environment() -> None:
    env = {"SAS_TABLES__endpoint": "https://a.table.core.windows.net", "SAS_TABLE": "mine"}
    by_address = args.Storage(Endpoint(address="https://a.table.core.windows.net"), "mine")
    assert args.read_storage(env) == by_address
    by_key = args.read_storage({"AzureWebJobsStorage": "e=f"})
    assert by_key == args.Storage(Endpoint(connection_string="e=f"), "orders")


def test_a_storage_that_cannot_be_reached_or_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setenv("SAS_TABLES", "nonsense")
    assert main(["list"]) == 2
    assert "the storage connection string cannot be read" in capsys.readouterr().err
    monkeypatch.delenv("SAS_TABLES")
    monkeypatch.delenv("AzureWebJobsStorage", raising=False)
    monkeypatch.setenv("ServiceBus", "NAME.servicebus.windows.net")
    assert main(["list"]) == 2
    assert "the setting SAS_TABLES is missing" in capsys.readouterr().err
    monkeypatch.delenv("ServiceBus")
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 2
    assert "nothing runs here (no .devstack/env" in capsys.readouterr().err


async def test_a_reason_travels_with_the_command(
    scheduler: Scheduler, store: MemoryStore, capsys: Capture
) -> None:
    await failed(store, "A")
    assert sas("undo", "A", "--yes", "--reason", "the customer\n asked") == 0
    assert [command.reason for command in scheduler.commands] == ["the customer asked"]
    assert sas("undo", "A", "--yes", "--reason", "x" * 501) == 2
    assert "--reason has 501 characters: at most 500 are kept" in capsys.readouterr().err
