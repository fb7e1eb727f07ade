"""A small function app, and what tests of a whole stack share to watch its processes and logs."""

import asyncio
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.data.tables.aio import TableClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.children import Child
from devstack.stack import Stack

ROOT = Path(__file__).parents[2]
"""The directory that holds the package `devstack`."""
APP = """
import os
import time
import azure.functions as func
from azure.data.tables import TableClient
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.service_bus_queue_trigger(
    arg_name="msg", connection="MyBus", queue_name="in")
@app.service_bus_queue_output(arg_name="out", connection="MyBus", queue_name="%NEXT%")
def first(msg: str, out: func.Out[str]) -> None:
    if msg == "stuck":
        time.sleep(600)
    out.set(msg)

@app.service_bus_queue_trigger(arg_name="msg", connection="MyBus", queue_name="%NEXT%")
def second(msg: str) -> None:
    with TableClient.from_connection_string(os.environ["AzureWebJobsStorage"], "done") as table:
        table.upsert_entity({"PartitionKey": "p", "RowKey": msg})

@app.route("pid")
def pid(req: func.HttpRequest) -> str:
    return str(os.getpid())
"""
LOCAL = """{ "Values": {
  "MyBus": "Endpoint=sb://localhost;SharedAccessKeyName=R;SharedAccessKey=K;UseDevelopmentEmulator=true;",
  "AzureWebJobsStorage": "UseDevelopmentStorage=true",
} }"""


def queue(name: str) -> dict[str, Any]:
    properties = {
        "DeadLetteringOnMessageExpiration": False,
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "ForwardDeadLetteredMessagesTo": "",
        "ForwardTo": "",
        "LockDuration": "PT5S",
        "MaxDeliveryCount": 5,
        "RequiresDuplicateDetection": False,
        "RequiresSession": False,
    }
    return {"Name": name, "Properties": properties}


CONFIG: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [{"Name": "sbemulatorns", "Queues": [queue("in"), queue("next")]}],
        "Logging": {"Type": "File"},
    }
}


def make_app(tmp_path: Path) -> Path:
    """Write the app into a directory; return the directory."""
    (tmp_path / "function_app.py").write_text(APP)
    (tmp_path / "host.json").write_text('{"version": "2.0"}')
    (tmp_path / "local.settings.json").write_text(LOCAL)
    return tmp_path


def stack_of(app_dir: Path, **options: Any) -> Stack:
    return Stack(app_dir, config=CONFIG, settings={"NEXT": "next"}, **options)


async def send(stack: Stack | str, *bodies: str) -> None:
    """Send to the queue `in` of a stack, or of a broker by its connection string."""
    connection = stack if isinstance(stack, str) else stack.servicebus_connection
    async with (
        ServiceBusClient.from_connection_string(connection) as client,
        client.get_queue_sender("in") as sender,
    ):
        await sender.send_messages([ServiceBusMessage(body) for body in bodies])


async def done(stack: Stack | str, count: int) -> set[str]:
    """The keys in the table, once there are `count` of them."""
    connection = stack if isinstance(stack, str) else stack.storage_connection
    async with TableClient.from_connection_string(connection, "done") as table:
        async with asyncio.timeout(120):
            while True:
                rows = [row["RowKey"] async for row in table.list_entities()]
                if len(rows) >= count:
                    return set(rows)
                await asyncio.sleep(0.1)


async def make_table(stack: Stack | str) -> None:
    connection = stack if isinstance(stack, str) else stack.storage_connection
    async with TableClient.from_connection_string(connection, "done") as table:
        await table.create_table()


async def until(condition: Callable[[], bool], child: Child | None = None) -> None:
    """Wait until a condition holds; if it never does, fail with the last lines of `child`."""
    try:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110  # processes are asked
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within 120 s\n{child.tail() if child else ''}") from None


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def up_of(app_dir: Path, *arguments: str, verb: str = "up") -> Child:
    (app_dir / "Config.json").write_text(json.dumps(CONFIG))
    argv = [sys.executable, "-m", "devstack", verb, str(app_dir), "--setting", "NEXT=next"]
    # After a failure `up` keeps its logs; here pytest removes them later.
    env = {**os.environ, "TMPDIR": str(app_dir)}
    return Child("up", [*argv, *arguments], logs=app_dir, env=env)


def ended(child: Child) -> None:
    end = time.monotonic() + 120
    while child.alive:
        assert time.monotonic() < end, child.tail()
        time.sleep(0.02)


def stdout_of(child: Child) -> str:
    return "\n".join(child.out_lines())


async def screen_of(up: Child) -> str:
    """Return what `up` prints once everything runs."""
    await until(lambda: "Ctrl-C stops everything" in stdout_of(up), up)
    return stdout_of(up)


def pids_in(screen: str) -> list[int]:
    """The processes that a screen names, each once."""
    return sorted({int(number) for number in re.findall(r"pid (\d+)", screen)})


def setting_in(screen: str, name: str) -> str:
    """A connection string from a screen."""
    [line] = re.findall(rf"^export {name}=.*$", screen, re.MULTILINE)
    return shlex.split(line)[1].partition("=")[2]
