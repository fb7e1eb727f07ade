"""Follow one order and print which files of ``sas`` it passes through.

``python -m tools.order_path`` runs the three-step order of the sample over real adapters: Azurite,
the broker and the sample's remote services. It prints Markdown for ARCHITECTURE.md: the files that
each part of the flow enters, the lines of each room, and how many lines outside of a feature's own
room name that feature. ``--files`` lists the files as well.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

import orders
from devstack.azurite import Azurite
from devstack.servicebus import Broker
from samples.remote_services import RemoteServices
from sas.bootstrap import Application, bootstrap
from sas.config import read_config
from sas.domain.queues import Queues
from sas.engine.delivery import Delivery

ROOT = Path(__file__).resolve().parents[1]
SAS = ROOT / "sas"
FEATURES = SAS / "features"
CORE = ("domain", "engine", "actors")
REPLY_QUEUE = "responses-web-shop"
QUEUES = Queues()


@dataclass
class Trace:
    """The files that were entered, by part of the flow."""

    parts: dict[str, set[str]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Note every file of ``sas`` whose code runs inside the block."""
        entered = self.parts.setdefault(name, set())
        prefix = f"{SAS}{os.sep}"

        def note(frame: FrameType, event: str, _argument: object) -> None:
            code = frame.f_code
            if event != "call" or code.co_name == "<module>":  # a module's own code runs once
                return
            if code.co_filename.startswith(prefix):
                entered.add(str(Path(code.co_filename).relative_to(ROOT)))

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)

    @property
    def all(self) -> set[str]:
        """Every file that was entered."""
        return set().union(*self.parts.values())


async def follow() -> Trace:
    """Run a first order, so that everything is open, then trace a second one."""
    trace = Trace()
    names = [QUEUES.orders, QUEUES.scheduler, QUEUES.replies, QUEUES.alerts, QUEUES.rejected]
    names += [REPLY_QUEUE, *(QUEUES.agent(name) for name in orders.AGENTS)]
    with Azurite() as azurite:
        async with Broker(names) as broker, RemoteServices() as remote:
            services = {f"ORDERS_{name.upper()}_URL": url for name, url in remote.urls.items()}
            settings = read_config(
                {"ServiceBus": broker.connection_string, "SAS_TABLES": azurite.connection_string}
            )
            app = bootstrap(orders.business(services), settings)
            client = ServiceBusClient.from_connection_string(broker.connection_string)
            try:
                async with client:
                    await _play(app, client, "first", Trace())
                    await _play(app, client, "second", trace)
            finally:
                await app.close()
    return trace


async def _play(app: Application, client: ServiceBusClient, order_id: str, trace: Trace) -> None:
    """Submit an order and hand every message to its actor until the order is Processed."""
    lines = (ROOT / "samples" / "northwind-orders.jsonl").read_text().splitlines()
    content = {key: value for key, value in json.loads(lines[0]).items() if key != "order_id"}
    body = {"order_id": order_id, "workflow": "order", "reply_queue": REPLY_QUEUE, "order": content}
    async with client.get_queue_sender(QUEUES.orders) as sender:
        await sender.send_messages(
            ServiceBusMessage(json.dumps(body).encode(), message_id=order_id)
        )
    handlers: list[tuple[str, str, Callable[[Delivery], Awaitable[Any]]]] = [
        ("submission", QUEUES.orders, app.submitter.handle),
        ("wake", QUEUES.scheduler, app.scheduler.handle),
        *(("request", QUEUES.agent(name), agent.handle) for name, agent in app.agents.items()),
        ("reply", QUEUES.replies, app.scheduler.handle_reply),
    ]
    for _ in range(10):
        for part, queue, handle in handlers:
            await _step(client, queue, handle, part, trace)
        order = await app.context.store.load(order_id)
        if order is not None and order.process_state.value == "Processed":
            return
    raise SystemExit(f"order {order_id} is not Processed: look at the remote services' faults")


async def _step(
    client: ServiceBusClient,
    queue: str,
    handle: Callable[[Delivery], Awaitable[Any]],
    part: str,
    trace: Trace,
) -> None:
    async with client.get_queue_receiver(queue) as receiver:
        for message in await receiver.receive_messages(max_message_count=20, max_wait_time=1):
            delivery = Delivery(
                body=b"".join(message.body),
                message_id=message.message_id or "",
                queue=queue,
                properties={_text(k): v for k, v in (message.application_properties or {}).items()},
                count=1,
                enqueued_at=message.enqueued_time_utc,
            )
            with trace.part(part):
                await handle(delivery)
            await receiver.complete_message(message)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def room_of(file: str) -> str:
    """Return the room of a file: ``sas/domain/order.py`` is in ``domain``."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "sas"


def lines_of(folder: Path) -> int:
    """Return the lines of every Python file in a folder, blank ones and docstrings too."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def feature_names() -> list[str]:
    """Return the features: each is a folder or a file."""
    names = {path.stem for path in FEATURES.iterdir()}
    return sorted(names - {"__init__", "__pycache__"})


TOOLS = {"cli", "desk", "operate", "testing"}
"""The rooms of ``sas`` that people use beside the running system."""


def lines_naming(feature: str) -> int:
    """Return the lines that import from a feature, outside of its room and of people's tools."""
    own = {FEATURES / f"{feature}.py", *(FEATURES / feature).glob("**/*.py")}
    found = 0
    for path in SAS.rglob("*.py"):
        if path in own or path.relative_to(SAS).parts[0] in TOOLS:
            continue
        room = f"sas.features.{feature}."
        found += sum(f"{module}.".startswith(room) for module in _imported_from(path))
    return found


@cache
def _imported_from(path: Path) -> list[str]:
    """Return the module of each ``from ... import`` in a file."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [one.module for one in nodes if isinstance(one, ast.ImportFrom) and one.module]


def main() -> None:
    """Follow an order and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files of each part")
    arguments = parser.parse_args()
    trace = asyncio.run(follow())
    rooms = sorted({room_of(file) for file in trace.all})
    print(f"| part of the flow | files | {' | '.join(rooms)} |")
    print("|---|---|" + "---|" * len(rooms))
    for part, files in [*trace.parts.items(), ("all", trace.all)]:
        counts = [sum(room_of(file) == room for file in files) for room in rooms]
        print(f"| {part} | {len(files)} | {' | '.join(map(str, counts))} |")
    if arguments.files:
        for part, files in trace.parts.items():
            print(f"\n{part}: {', '.join(sorted(files))}")
    core = {room: lines_of(SAS / room) for room in CORE}
    print("\n| room | lines |\n|---|---|")
    for room, lines in core.items():
        print(f"| {room} | {lines:,} |")
    print(f"| the core: domain, engine, actors | {sum(core.values()):,} |")
    for name in ("sas", "devstack"):
        print(f"| {name}, whole | {lines_of(ROOT / name):,} |")
    print(
        "\n| feature | lines | imports of it elsewhere in sas, without the command |\n|---|---|---|"
    )
    for name in feature_names():
        file = FEATURES / f"{name}.py"
        lines = (
            len(file.read_text("utf-8").splitlines())
            if file.exists()
            else lines_of(FEATURES / name)
        )
        print(f"| {name} | {lines} | {lines_naming(name)} |")


if __name__ == "__main__":
    main()
