"""Every verb of ``sas`` at a real terminal, wide and narrow: its output, and that it fits."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from sas.cli import arguments as args
from sas.cli.main import build_parser, main
from sas.codec import external
from sas.codec.external import AlertMessage, RejectedMessage
from sas.domain.change import Incident
from sas.domain.messages import AlertKind, Progress
from sas.domain.order import Direction
from sas.domain.queues import Queues
from sas.domain.reply import progressed
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents, name_of
from sas.features.incidents.rules import Sightings
from sas.ports import Peeked
from sas.testing.store import MemoryStore
from tests.contract import cases
from tests.integration.broker_sdk_kit import short_pauses  # noqa: F401 (a fixture)
from tests.integration.client_cases import REPLIES
from tests.integration.test_client_command import lines, system
from tests.sample import WORKFLOWS as SAMPLE
from tests.terminal import Terminal, terminal
from tests.unit.actors_kit import keep_breaker
from tests.unit.test_cli_operator import Scheduler, failed
from tests.unit.test_cli_operator import scheduler as scheduler  # noqa: PLC0414  a fixture
from tests.unit.test_cli_operator import store as store  # noqa: PLC0414  a fixture

NARROW, USUAL, WIDE = 40, 80, 200
OPEN_BUS = args.open_bus
ERROR = ["    step-0/out-of-stock: none left of", "    article 11"]
WHY = "payment could not be reached: [Errno 104] Connection reset by peer"


@dataclass(frozen=True, kw_only=True)
class At:
    """A terminal, and what the commands typed there find."""

    store: MemoryStore
    scheduler: Scheduler
    screen: Terminal
    folder: Path

    async def sas(self, *arguments: str) -> int:
        """Run the command as it is typed."""
        try:
            return await asyncio.to_thread(main, arguments)
        finally:
            self.screen.drain()

    @property
    def narrow(self) -> bool:
        return self.screen.columns == NARROW

    def fits(self) -> None:
        """Check that no line is wider than the terminal."""
        wide = [line for line in self.screen.lines if len(line) > self.screen.columns]
        assert not wide, wide


async def submit(at: At) -> None:
    file = at.folder / "orders.jsonl"
    file.write_text(lines("A-1", "F-2", "A-3"))
    async with Broker(["orders", REPLIES]) as broker, system(broker):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ServiceBus", broker.connection_string)
            words = ("submit", str(file), "--workflow", "order", "--follow")
            assert await at.sas(*words, "--reply-queue", REPLIES) == 1
    live = [line for line in at.screen.lines if line.startswith("submitted ")]
    assert live[0] == "submitted 0, ended 0, 0 s"
    assert any(line.startswith("submitted 3, ended ") for line in live[:-1])
    assert all(len(line) < at.screen.columns for line in live[:-1])  # the last is the summary
    assert sorted(line.split()[0] for line in at.screen.last[:-1]) == sorted(
        ["A-1", "A-1", "A-3", "A-3", "F-2", "F-2"]
    )
    assert at.screen.last[-1] == (
        "submitted 3, completed 2, failed 1, undone 0, rejected 0, unfinished 0"
    )


async def list_(at: At) -> None:
    await failed(at.store, "A", "B")
    assert await at.sas("list") == 0
    if at.narrow:
        assert at.screen.last[:2] == ["Since  Order  Workflow  State  Why", at.screen.last[1]]
        assert at.screen.last[1].endswith(" ago  A  order/2  Error")
        assert at.screen.last[2:4] == ERROR
    else:
        assert at.screen.last[0].split() == ["Since", "Order", "Workflow", "State", "Why"]
        row = "A                     order/2             Error"
        text = " ".join(line.strip() for line in ERROR)
        if at.screen.columns == USUAL:
            assert at.screen.last[1].endswith(row)
            assert at.screen.last[2] == f"    {text}"
        else:
            assert at.screen.last[1].endswith(f"{row}  {text}")
    assert at.screen.last[-1] == "2 orders in Error: 2 step-0/out-of-stock"
    at.fits()


async def show(at: At) -> None:
    await failed(at.store, "A")
    assert await at.sas("show", "A") == 0
    shown = at.screen.last
    assert shown[0] == "order A  Error  (seq 3)"
    assert shown[-1].startswith("next: repair what the error of step-0 says, then `sas resub")
    if at.narrow:
        place = shown.index("step-0")
        assert shown[place + 1] == "    ProcessState: Error; FailureCount: 0"
    else:
        heading = ["Step", "ProcessState", "FailureCount", "LockedBy", "CompleteBy", "Undo"]
        assert heading in [line.split() for line in shown]
        assert ["step-0", "Error", "0", "-", "-", "-"] in [line.split() for line in shown]
    assert [line for line in shown if "out-of-stock: none left" in line]
    table = shown[shown.index("") : shown.index("", shown.index("") + 1)]
    assert all(len(line) <= at.screen.columns for line in table)


async def circuits(at: At) -> None:
    since = datetime(2026, 11, 21, tzinfo=UTC)
    await keep_breaker(at.store, opened(Breaker(), BreakerPolicy(), since, WHY), "payment")
    assert await at.sas("circuits", "payment") == 0
    if at.screen.columns < WIDE:
        assert at.screen.last[0] == "payment"
        assert at.screen.last[1].startswith("    State: open; Since: ")
    else:
        assert at.screen.last[0].split() == ["Agent", "State", "Since", "Until", "Rounds", "Why"]
        assert at.screen.last[1].startswith("payment  open   ")
        assert " ago  " in at.screen.last[1]
    assert WHY in " ".join(line.strip() for line in at.screen.last)
    assert at.screen.last[-1] == "1 open"
    at.fits()


async def incidents(at: At) -> None:
    now = datetime.now(UTC)
    text = "Steps of ordinary orders are ready and no scheduler picks them up."
    incident = Incident(
        kind=AlertKind.NOT_PICKED_UP,
        scope="ordinary orders",
        text=text,
        since=now,
        until=now + timedelta(days=1),
    )
    active = rules.seen(None, Sightings(incident, 1, ("O-1",)), now)
    await active_incidents(at.store).write(name_of(incident.kind, incident.scope), active, None)
    assert await at.sas("incidents") == 0
    shown = at.screen.last
    if at.narrow:
        assert shown[0] == "not-picked-up"
        assert shown[1].startswith("    About: ordinary orders; State:")
    else:
        assert shown[1].startswith("not-picked-up  ordinary orders  active")
    assert text in " ".join(line.strip() for line in shown)
    at.fits()


async def queues(at: At) -> None:
    dead = REPLIES + "/$DeadLetterQueue"
    named = Queues()
    there = {REPLIES, *named.on_the_way(SAMPLE.agents())}
    there |= {named.alerts, named.rejected, named.dead_letters}
    missing = "callbacks-urgent"
    async with Broker(sorted(there - {missing})) as broker, AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(args, "open_bus", OPEN_BUS)
        patch.setenv("ServiceBus", broker.connection_string)
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        async with client, client.get_queue_sender(REPLIES) as sender:
            await sender.send_messages([ServiceBusMessage("x" * 60) for _ in range(11)])
            async with client.get_queue_receiver(REPLIES) as receiver:
                for message in await receiver.receive_messages(11, max_wait_time=30):
                    await receiver.dead_letter_message(message, reason="nobody-read-it")
        assert await at.sas("queues", "--queue", REPLIES) == 1  # one is missing
        shown = at.screen.last
        if at.narrow:
            place = shown.index(REPLIES)
            assert shown[place + 1] == "    Waiting: 0; Scheduled: 0;"
        else:
            assert shown[0].split() == ["Queue", "Waiting", "Scheduled", "DeadLettered", "Oldest"]
            assert [REPLIES, "0", "0", "11"] in [line.split()[:4] for line in shown]
        text = " ".join(line.strip() for line in shown)
        assert text.count("There is no such queue") == 1
        assert f"queue {missing}: " in text
        assert await at.sas("queues", "peek", REPLIES, "--dead-letter", "--limit", "1") == 0
        assert "nobody-read-it" in at.screen.last[-3] + at.screen.last[-2]
        at.fits()
        redrive = ("queues", "redrive", REPLIES, "--dead-letter", "--all")
        for answer, code, dead_letters in (("n", 1, 11), ("y", 0, 0)):
            running = asyncio.ensure_future(at.sas(*redrive))
            await at.screen.answer("send 11 messages again? [y/N] ", f"{answer}\n")
            at.screen.raw = at.screen.raw.replace("again? [y/N]", "again!")
            assert await running == code
            assert len(broker.namespace.find(dead).messages) == dead_letters
        assert at.screen.last[-1] == "sent 11 of 11, removed 11"


async def export(at: At) -> None:
    await at.store.commit(cases.rejected("done"))
    assert await at.sas("export", "-") == 0
    assert json.loads(at.screen.last[0])["OrderID"] == "done"
    assert at.screen.last[-1] == "exported 1 order"


async def workflows(at: At) -> None:
    assert await at.sas("workflows", "check") == 0
    for workflow in SAMPLE:
        text = f"{workflow.name} version {workflow.version}: no order in flight; not used yet"
        assert text in at.screen.last


def asked(verb: str, *arguments: str, outlook: str, done: str) -> Callable[[At], Awaitable[None]]:
    """Return the case of a verb that asks before it changes an order."""

    async def run(at: At) -> None:
        await failed(at.store, "A", "B")
        running = asyncio.ensure_future(at.sas(verb, "A", *arguments))
        await at.screen.answer(f"{verb} order A? [y/N] ", "n\n")
        assert await running == 1
        assert at.screen.last[0].startswith(f"order A is Error (seq 3); {verb} would {outlook}")
        assert at.screen.last[-1] == "nothing was sent"
        assert at.scheduler.commands == []

        running = asyncio.ensure_future(at.sas(verb, "B", *arguments))
        await at.screen.answer(f"{verb} order B? [y/N] ", "y\n")
        assert await running == 0
        assert at.screen.last[-1] == done
        assert [(command.verb.value, command.order_id) for command in at.scheduler.commands] == [
            (verb, "B")
        ]

    return run


async def acknowledge(at: At) -> None:
    await failed(at.store, "A")
    assert await at.sas("acknowledge", "A", "--by", "bob") == 0
    assert at.screen.last[-1] == "done: seq 4, acknowledged; the order is Error"
    assert "?" not in at.screen.raw  # it does not ask


async def sim(at: At) -> None:
    words = ("sim",)
    assert await at.sas(*words, "--seeds", "4", "--first", "9", "--jobs", "1") == 0
    text = " ".join(line.strip() for line in at.screen.last)
    assert text.endswith("Nothing wrong with your workflows in 4 stories.")
    assert "of 4 stories" in at.screen.raw  # the live line
    at.fits()
    assert await at.sas(*words, "--seed", "9") == 0
    assert "order O-1 of order is submitted" in " ".join(line.strip() for line in at.screen.lines)
    at.fits()


def peeked(message: AlertMessage | RejectedMessage, **members: Any) -> Peeked:
    """Return a message that has been in its queue for an hour."""
    at = datetime.now(UTC) - timedelta(hours=1)
    return Peeked(
        message_id=message.id, body=external.encode(message), enqueued_at=at, sequence=1, **members
    )


async def why(at: At) -> None:
    await failed(at.store, "A")
    assert await at.sas("why", "A") == 0
    text = " ".join(line.strip() for line in at.screen.last)
    assert text.startswith("A is Error. It stopped at step-0: none left of article 11.")
    assert "waits for You." in " ".join(text.split())
    await at.store.commit(cases.submitted("B"))
    assert await at.sas("why", "B") == 0
    text = " ".join(" ".join(line.strip() for line in at.screen.last).split())
    assert "in no queue: a scheduler is handling it." in text
    at.fits()


async def callback(at: At) -> None:
    order = await at.store.commit(cases.submitted("A"))
    order = await at.store.commit(cases.claimed(order))
    step = order.steps[0]
    progress = Progress(
        order_id="A",
        step=0,
        direction=Direction.DO,
        epoch=step.epoch,
        complete_by=cases.NOW + timedelta(days=2),
        note="the manager approves",
        awaits=True,
    )
    awaited = progressed(order, progress, cases.ROW, now=cases.NOW, instance="s")
    await at.store.commit(cases.upon(order, awaited))
    assert await at.sas("callback", "A") == 0
    text = " ".join(" ".join(line.strip() for line in at.screen.last).split())
    assert "step-0 waits for the callback until 20" in text
    assert "sas callback A --step step-0 --answer RESULT" in text
    at.fits()


async def alerts(at: At) -> None:
    text = "step ship failed: no carrier delivers to this address. Resubmit it."
    alert = AlertMessage(kind="step-failed", at="x", text=text, id="A/4/0", order_id="A")
    at.scheduler.lying["operator-alerts"] = [peeked(alert)]
    assert await at.sas("alerts") == 0
    shown = " ".join(line.strip() for line in at.screen.last)
    assert " ".join(shown.split()).startswith("1 h ago step-failed A step ship failed:")
    assert shown.endswith("1 alert")
    at.fits()


async def rejected(at: At) -> None:
    rejection = external.Rejection(
        body=b"{}",
        reason="unknown-workflow",
        description="none of it",
        source_queue="orders",
        message_id="m",
        order_id="A",
    )
    (part,) = external.rejected_parts(rejection, at=datetime.now(UTC), id_base="rejected/1")
    at.scheduler.lying["orders-rejected"] = [peeked(part)]
    assert await at.sas("rejected") == 0
    text = " ".join(line.strip() for line in at.screen.last)
    for cell in ("1 h ago", "A", "unknown-workflow", "orders", "rejected/1/1", "none of it"):
        assert cell in text
    assert await at.sas("rejected", "resend", "A", "--dry-run") == 0
    assert "orders-rejected -> orders" in " ".join(line.strip() for line in at.screen.last)
    at.fits()


async def dlq(at: At) -> None:
    await failed(at.store, "A")
    body = b'{"order_id":"A","workflow":"order","reply_queue":"responses-shop","order":{}}'
    since = datetime.now(UTC) - timedelta(minutes=5)
    letter = Peeked(
        message_id="m-A",
        body=body,
        enqueued_at=since,
        properties={"DeadLetterReason": "TTLExpired"},
        sequence=1,
    )
    at.scheduler.lying["orders/$DeadLetterQueue"] = [letter]
    assert await at.sas("dlq") == 0
    text = " ".join(line.strip() for line in at.screen.last)
    for part in ("5 min ago", "already done", "TTLExpired; the order was submitted and is Error"):
        assert part in text
    assert at.screen.last[-1] == "1 dead letter: 1 already done"
    at.fits()


async def watch(at: At) -> None:
    await failed(at.store, "A")
    assert await at.sas("watch", "--count", "2", "--every", "0.1") == 0
    assert at.screen.raw.count("\x1b[H") == 2  # drawn twice, in its place
    text = " ".join(at.screen.lines)
    assert "1 in Error" in text
    assert "step-0" in text
    at.fits()


async def doctor(at: At) -> None:
    assert await at.sas("doctor") == 0
    text = " ".join(" ".join(line.strip() for line in at.screen.last).split())
    assert "ok reading the table it answers; 0 orders in Error" in text
    assert " 0 wrong, " in at.screen.last[-1]
    assert "\x1b[32mok" in at.screen.raw or at.narrow
    at.fits()


async def desk(at: At) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert await at.sas("desk", "--port", str(listener.getsockname()[1])) == 2
    assert "give --port 0 for a free one" in " ".join(at.screen.last)
    running = asyncio.ensure_future(at.sas("desk", "--port", "0"))
    await at.screen.answer("Ctrl-C or Ctrl-D stops the desk.", "\n")
    await at.screen.answer("A new link: http://127.0.0.1:", "\x04")
    assert await running == 0
    links = re.findall(r"/login\?once=\S+", at.screen.raw)
    assert len(set(links)) == len(links) == 2


async def new(at: At) -> None:
    folder = at.folder / "mine"
    assert await at.sas("new", str(folder)) == 0
    assert (folder / "function_app.py").is_file()
    assert "is a project of your own." in at.screen.raw


async def docs(at: At) -> None:
    assert await at.sas("docs", "settings") == 0
    assert "# Settings" in at.screen.raw


async def infra(at: At) -> None:
    assert await at.sas("infra", "--emulator", str(at.folder / "Config.json")) == 0
    assert (at.folder / "Config.json").is_file()


async def azd(at: At) -> None:
    assert await at.sas("azd", "check") == 1
    assert "azd env set ORDERS_STOCK_URL" in " ".join(at.screen.last)


CASES: dict[str, Callable[[At], Awaitable[None]]] = {
    "submit": submit,
    "list": list_,
    "show": show,
    "resubmit": asked(
        "resubmit",
        outlook="run again: step-0 (out-of-stock: none left of article 11)",
        done="done: seq 4, resubmitted; the order is Pending",
    ),
    "skip": asked(
        *("skip", "--input", "7"),
        outlook="count as done, with the result 7: step-0 (out-of-stock",
        done="done: seq 4, skipped; the order is Processing",
    ),
    "undo": asked(
        "undo",
        outlook="undo the order (there is no way back); these",
        done="done: seq 4, undo decided; the order is Compensating",
    ),
    "cancel": asked(
        "cancel",
        outlook="start no new step, then undo the order (there",
        done="done: seq 4, cancelled; the order is Compensating",
    ),
    "acknowledge": acknowledge,
    "circuits": circuits,
    "incidents": incidents,
    "queues": queues,
    "export": export,
    "workflows": workflows,
    "why": why,
    "callback": callback,
    "alerts": alerts,
    "rejected": rejected,
    "dlq": dlq,
    "watch": watch,
    "doctor": doctor,
    "desk": desk,
    "new": new,
    "docs": docs,
    "infra": infra,
    "azd": azd,
    "sim": sim,
}


def verbs() -> set[str]:
    """Return the verbs that the parser knows."""
    actions = build_parser()._actions
    (subparsers,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
    return set(subparsers.choices)


def test_every_verb_has_a_case_at_a_terminal() -> None:
    assert set(CASES) == verbs()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
async def test_no_colour_is_shown_if_the_user_wants_none(
    store: MemoryStore,
    scheduler: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    await failed(store, "A")
    with terminal(WIDE) as screen:
        at = At(store=store, scheduler=scheduler, screen=screen, folder=Path())
        assert await at.sas("list") == 0
        assert "\x1b[31mError" in screen.raw
        screen.raw = ""
        monkeypatch.setenv(name, value)
        assert await at.sas("list") == 0
        assert "\x1b[3" not in screen.raw


@pytest.mark.parametrize(
    ("columns", "verb"),
    [
        *product((WIDE, NARROW), CASES),
        (USUAL, "list"),  # its error is on a line of its own there, and nowhere else
        *(pytest.param(USUAL, verb, marks=pytest.mark.long) for verb in CASES if verb != "list"),
    ],
)
async def test_a_verb_at_a_terminal(
    store: MemoryStore,
    scheduler: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    columns: int,
    verb: str,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal(columns) as screen:
        await CASES[verb](At(store=store, scheduler=scheduler, screen=screen, folder=tmp_path))
    assert "Traceback" not in screen.raw
