"""What this repository weighs, as a table in Markdown: ``python -m lab.weight``.

Lines are the lines of Python files, with blank lines and docstrings. Words are the words of the
pages. The files that a wake and a reply pass are counted while an order runs over Azurite and the
broker.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

import orders
from devstack.azurite import Azurite
from devstack.servicebus import Broker
from samples.services.remote import RemoteServices
from sas.bootstrap import bootstrap
from sas.cli.main import verbs
from sas.codec.internal import Kind
from sas.config import read_config
from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from sas.saga import business_of, sagas_of
from tools.names import HOUSES, NO_NOUNS, bindings, long_calls, positional_records, sources

ROOT = Path(__file__).parents[1]
NOT_PAGES = ("LICENSE", "CHANGELOG.md", "template/", ".github/")
BUSINESS = business_of(sagas_of(orders))
QUEUES, REPLY_QUEUE = Queues(), "responses-web-shop"
TURNS_MAX = 10
CORE = ("sas/domain/", "sas/engine/", "sas/actors/")


def tracked() -> list[str]:
    """Return the files of the repository."""
    process = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in process.stdout.splitlines() if (ROOT / name).is_file()]


def text_of(name: str) -> str:
    """Return the text of a file."""
    return (ROOT / name).read_text("utf-8")


def lines(files: list[str], *folders: str, without: tuple[str, ...] = ()) -> int:
    """Return how many lines the Python files in some folders have."""
    sources = [name for name in files if name.endswith(".py") and name.startswith(folders)]
    return sum(len(text_of(name).splitlines()) for name in sources if not name.startswith(without))


def words(files: list[str]) -> int:
    """Return how many words all pages have."""
    pages = [name for name in files if name.endswith(".md") and not name.startswith(NOT_PAGES)]
    return sum(len(text_of(name).split()) for name in pages)


def exceptions(files: list[str]) -> int:
    """Return how many classes of ``sas`` derive from an exception, directly or not."""
    trees = (
        ast.parse(text_of(name))
        for name in files
        if name.startswith("sas/") and name.endswith(".py")
    )
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {"Exception", "BaseException", "ValueError", "RuntimeError", "OSError", "TypeError"}
    bases |= {"KeyError", "LookupError", "TimeoutError", "ConnectionError"}
    names: set[str] = set()
    is_growing = True
    while is_growing:
        new_names = {
            node.name
            for node in classes
            if node.name not in names
            and any(ast.unparse(base).rpartition(".")[2] in bases | names for base in node.bases)
        }
        names |= new_names
        is_growing = bool(new_names)
    return len(names)


def settings() -> int:
    """Return how many rows of the page of settings begin with a setting of this project."""
    return len(re.findall(r"^\| `SAS_\w+` \|", text_of("docs/settings.md"), re.MULTILINE))


def glossary() -> int:
    """Return how many entries the glossary has."""
    return len(re.findall(r"^- \*\*", text_of("docs/glossary.md"), re.MULTILINE))


@contextmanager
def noting(files: set[str]) -> Iterator[None]:
    """Note every file of ``sas`` whose code runs inside the block."""
    prefix = f"{ROOT / 'sas'}/"

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(prefix):
            files.add(code.co_filename)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def passed() -> tuple[int, int]:
    """Run two orders, and return how many files a wake and a reply of the second one passed."""
    names = [QUEUES.orders, QUEUES.scheduler, QUEUES.alerts, QUEUES.rejected]
    names += [REPLY_QUEUE, *map(QUEUES.agent, BUSINESS.agents)]
    files: defaultdict[str, set[str]] = defaultdict(set)
    with Azurite() as azurite:
        async with Broker(names) as broker, RemoteServices() as remote:
            os.environ |= {f"ORDERS_{name.upper()}_URL": url for name, url in remote.urls.items()}
            environment = {
                "ServiceBus": broker.connection_string,
                "SAS_TABLES": azurite.connection_string,
            }
            app = bootstrap(BUSINESS, read_config(environment))
            handlers: dict[str, Callable[[Delivery], Awaitable[object]]] = {
                QUEUES.orders: app.submitter.handle,
                **{QUEUES.agent(name): agent.handle for name, agent in app.agents.items()},
                QUEUES.scheduler: app.scheduler.handle,
            }
            bus = ServiceBusClient.from_connection_string(broker.connection_string)
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(bus)
                receivers = {
                    queue: await stack.enter_async_context(client.get_queue_receiver(queue))
                    for queue in handlers
                }
                for order_id in ("first", "second"):  # the first one opens everything
                    files = defaultdict(set)
                    await submit(client, order_id)
                    for _ in range(TURNS_MAX):
                        for queue, handle in handlers.items():
                            await deliver(receivers[queue], queue, handle, files)
            await app.close()
    return len(files[Kind.WAKE]), len(files[Kind.REPLY])


async def submit(client: ServiceBusClient, order_id: str) -> None:
    """Send the first real order under an id."""
    content = json.loads(text_of("samples/northwind-orders.jsonl").partition("\n")[0])
    del content["order_id"]
    body = {"order_id": order_id, "workflow": "order", "reply_queue": REPLY_QUEUE, "order": content}
    async with client.get_queue_sender(QUEUES.orders) as sender:
        await sender.send_messages(ServiceBusMessage(json.dumps(body), message_id=order_id))


async def deliver(
    receiver: ServiceBusReceiver,
    queue: str,
    handle: Callable[[Delivery], Awaitable[object]],
    files: defaultdict[str, set[str]],
) -> None:
    """Hand the messages of a queue to their actor; add the files that they pass to their kind."""
    for message in await receiver.receive_messages(max_message_count=20, max_wait_time=0.2):
        properties = {str(k): v for k, v in (message.application_properties or {}).items()}
        body = b"".join(message.body)
        delivery = Delivery(
            body=body,
            message_id=message.message_id or "",
            queue=queue,
            properties=properties,
            count=1,
            enqueued_at=message.enqueued_time_utc,
        )
        with noting(files[json.loads(body).get("kind", "order")]):
            await handle(delivery)
        await receiver.complete_message(message)


def explained(files: list[str]) -> str:
    """Return the share of lines in the core that explain: comments and docstrings."""
    total = explaining = 0
    for name in files:
        if not name.startswith(CORE) or not name.endswith(".py"):
            continue
        text = text_of(name)
        total += sum(1 for line in text.splitlines() if line.strip())
        explaining += sum(1 for line in text.splitlines() if line.lstrip().startswith("#"))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                lines_of_text = text.splitlines()[node.lineno - 1 : node.end_lineno]
                explaining += sum(1 for line in lines_of_text if line.strip())
    return f"{100 * explaining / total:.0f} %"


def badly_named() -> tuple[int, int, int]:
    """Return how many names, calls and records break a rule of ``tools.names``, in this order."""
    nouns = calls = records = 0
    for folders in HOUSES.values():
        for path in sources(folders, tests=False):
            tree = ast.parse(path.read_text("utf-8"))
            nouns += sum(name in NO_NOUNS for name, _ in bindings(tree))
            calls += sum(1 for _ in long_calls(tree))
            records += sum(1 for _ in positional_records(tree))
    return nouns, calls, records


def main() -> None:
    """Print the table."""
    files = tracked()
    wake, reply = asyncio.run(passed())
    adrs = [name for name in files if re.search(r"(^|/)adr/(.*/)?\d{4}-", name)]
    tests = ("tests/", "devstack/tests/")
    nouns, calls, records = badly_named()
    rows: dict[str, int | str] = {
        "files": len(files),
        "Python lines: `sas` without `testing`": lines(files, "sas/", without=("sas/testing/",)),
        "Python lines: `sas/testing`": lines(files, "sas/testing/"),
        "Python lines: `devstack`": lines(files, "devstack/", without=tests),
        "Python lines: tests of both": lines(files, *tests),
        "Python lines: `lab`, `tools`, `samples`": lines(files, "lab/", "tools/", "samples/"),
        "words of all pages": words(files),
        "settings": settings(),
        "verbs": len(verbs()),
        "exception classes of `sas`": exceptions(files),
        "glossary entries": glossary(),
        "decisions (ADR)": len(adrs),
        "files of `sas` that a wake passes": wake,
        "files of `sas` that a reply passes": reply,
        "lines of the core that explain (comments, docstrings)": explained(files),
        "names that are no nouns": nouns,
        "calls with five arguments by position": calls,
        "dataclasses and structs that take more than three fields by position": records,
    }
    print("| what | now |\n|---|---|")
    for name, count in rows.items():
        print(f"| {name} | {count if isinstance(count, str) else f'{count:,}'} |")


if __name__ == "__main__":
    main()
