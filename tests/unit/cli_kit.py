"""The command over all actors in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from sas.cli import application, screen
from sas.cli import system as systems
from sas.cli.main import main
from sas.client import FollowError, OrdersClient
from sas.codec.external import Notification
from sas.operate.errors import ServiceUnavailableError
from sas.ports import (
    AwaitCallback,
    MessageBus,
    StateStore,
    StoreUnavailableError,
)
from tests.client_link_kit import notification
from tests.unit.actors_kit import Kit, order
from tests.unit.line_kit import OperatorLine

SAGAS = """\
from sas import Call, Saga

trips = Saga("trip", dict)


@trips.step(agent="hotel")
async def book(call: Call[dict]) -> str:
    return "room"
"""
NAMES_APP = '[tool.sas]\napp = "{}"\n'


@dataclass
class CommandResult:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]

    def refused(self, code: int, *parts: str) -> None:
        """Check that it is one clear sentence on stderr."""
        assert self.code == code, self
        assert self.err.startswith("sas: ")
        assert self.err.count("\n") == 1, self.err
        for part in parts:
            assert part in self.err, self.err


@dataclass(kw_only=True)
class Night(OperatorLine):
    """All actors in memory, and an operator who types commands."""

    capsys: pytest.CaptureFixture[str]

    def sas(self, *arguments: str) -> CommandResult:
        """Run a command as it is typed."""
        self.capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        streams = self.capsys.readouterr()
        return CommandResult(code, streams.out, streams.err)

    def play(self, work: Awaitable[Any]) -> None:
        """Let something happen to the system."""

        async def run() -> None:
            await work

        asyncio.run(run())

    def submit(self, order_id: str, workflow: str = "care") -> None:
        """Submit an order, and let it go as far as it can."""

        async def run() -> None:
            body = order(order_id, workflow=workflow, order={"amount": 12.50})
            await self.system.submit(body, f"m-{order_id}")
            await self.system.drain()
            await self.system.later(1)

        self.play(run())

    def fail(self, order_id: str, error: Exception, agent: str = "payment") -> None:
        """Submit an order that one of its agents refuses."""
        self.system.agents[agent].then(error)
        self.submit(order_id)

    def awaits(self, order_id: str) -> None:
        """Submit an order whose step reserve waits for a manager to approve it."""
        within = timedelta(days=2)
        self.system.agents["stock"].then(AwaitCallback(within, "the manager approves"))
        self.submit(order_id)

    def later(self, seconds: float) -> None:
        self.play(self.system.later(seconds))


def connect(monkeypatch: pytest.MonkeyPatch, system: Kit, bus: MessageBus) -> None:
    """Let the command find this system: its store, its bus, its clock."""

    async def opened_store(where: systems.Storage) -> StateStore:
        return system.store

    async def opened_bus(endpoint: object) -> MessageBus:
        return bus

    async def service_time(where: systems.Storage) -> datetime:
        return system.clock.now()

    monkeypatch.setattr(systems, "open_store", opened_store)
    monkeypatch.setattr(systems, "open_bus", opened_bus)
    monkeypatch.setattr(systems, "service_time", service_time)
    monkeypatch.setattr(screen, "now", system.clock.now)
    monkeypatch.setenv("SAS_TABLES", "UseDevelopmentStorage=true")
    monkeypatch.setenv(
        "ServiceBus", "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=k"
    )
    monkeypatch.setenv("SAS_OPERATOR", "ann")
    # The command finds no pyproject.toml: that of this repository names ``orders``.
    monkeypatch.setattr(application, "PROJECT_FILE", "none.toml")


def store_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store refuse: no right, for instance."""

    async def refused_store(where: systems.Storage) -> StateStore:
        raise ServiceUnavailableError(str(StoreUnavailableError("the table: you have no right.")))

    monkeypatch.setattr(systems, "open_store", refused_store)


class SubmitsAtOnce(OrdersClient):
    """A client that sends its orders at once, and is notified of one, unless the bus goes away."""

    notices = ("received", "completed")
    lost: FollowError | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent = asyncio.Event()

    async def submit_many(self, orders: Any, on_sent: Any = None) -> Any:
        on_sent(len(list(orders)))
        self.sent.set()

    async def follow(
        self, order_ids: Any = None, *, until: Any = None, quiet_s: float | None = None
    ) -> AsyncGenerator[Notification]:
        await self.sent.wait()
        for notice in self.notices:
            yield notification("A-1", notice)
        until()
        if self.lost is not None:
            raise self.lost


def shown_in(guide: str) -> list[tuple[str, list[str]]]:
    """Return each command that a page shows, with the lines that it prints there."""
    commands: list[tuple[str, list[str]]] = []
    printing = False
    for line in guide.splitlines():
        if line.startswith("    $ sas "):
            commands.append((line.removeprefix("    $ sas "), []))
            printing = True
        elif line and not line.startswith("    "):
            printing = False
        elif printing:
            commands[-1][1].append(line.removeprefix("    "))
    return [(command, "\n".join(lines).rstrip().splitlines()) for command, lines in commands]
