"""The whole stack: broker, Azurite and host processes, started, killed, watched, stopped."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables.aio import TableClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.children import Child
from devstack.doctor import busy_ports, check_app, check_node_version, check_python
from devstack.errors import ChildFailedError, DevstackError
from devstack.stack import Stack

APP = """
import os
import azure.functions as func
from azure.data.tables import TableClient
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.service_bus_queue_trigger(
    arg_name="msg", connection="MyBus", queue_name="in")
@app.service_bus_queue_output(arg_name="out", connection="MyBus", queue_name="%NEXT%")
def first(msg: str, out: func.Out[str]) -> None:
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


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    (tmp_path / "function_app.py").write_text(APP)
    (tmp_path / "host.json").write_text('{"version": "2.0"}')
    (tmp_path / "local.settings.json").write_text(LOCAL)
    return tmp_path


def stack_of(app_dir: Path, **options: Any) -> Stack:
    return Stack(app_dir, config=CONFIG, settings={"NEXT": "next"}, **options)


async def send(stack: Stack, *bodies: str) -> None:
    async with (
        ServiceBusClient.from_connection_string(stack.servicebus_connection) as client,
        client.get_queue_sender("in") as sender,
    ):
        await sender.send_messages([ServiceBusMessage(body) for body in bodies])


async def done(stack: Stack, count: int) -> set[str]:
    """The keys in the table, once there are `count` of them."""
    async with TableClient.from_connection_string(stack.storage_connection, "done") as table:
        async with asyncio.timeout(25):
            while True:
                rows = [row["RowKey"] async for row in table.list_entities()]
                if len(rows) >= count:
                    return set(rows)
                await asyncio.sleep(0.1)


async def make_table(stack: Stack) -> None:
    async with TableClient.from_connection_string(stack.storage_connection, "done") as table:
        await table.create_table()


async def until(condition: Callable[[], bool], *, timeout_s: float = 15) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # processes are asked
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_groups_are_killed_and_started_again_and_no_message_is_lost(app_dir: Path) -> None:
    groups = {"one": ["first"], "two": ["second"], "web": ["pid"]}
    async with stack_of(app_dir, groups=groups) as stack:
        pids = [child.pid for child in stack.children()]
        assert len(set(pids)) == 5
        assert {one.group: one.functions for one in stack.processes} == groups
        assert stack.http_port == stack.group("web")[0].http_port
        await make_table(stack)
        await send(stack, "a")
        assert await done(stack, 1) == {"a"}
        [killed] = stack.kill("two")
        assert not is_running(killed)
        await send(stack, "b", "c")
        stack.check()  # a kill that was asked for is no failure
        [started] = await stack.start_group(["second"], name="two")
        assert started.pid != killed
        assert await done(stack, 3) == {"a", "b", "c"}
        await stack.stop_group("web")
        assert stack.http_port is None
        with pytest.raises(DevstackError, match="no group or pid that runs"):
            stack.kill("web")
        logs = stack.logs
        assert (logs / "host-two.log").exists()
    assert not any(is_running(pid) for pid in [*pids, started.pid])
    assert not logs.exists()


async def test_only_one_process_of_a_group_serves_http_also_after_kills(app_dir: Path) -> None:
    async with stack_of(app_dir, groups={"all": []}, processes=2) as stack:
        first, second = stack.group("all")
        assert (first.secondary, second.secondary) == (False, True)
        assert second.functions == ["first", "second"]
        stack.kill(second.pid)
        [third] = await stack.start_group([], name="all", processes=1)
        assert (third.secondary, third.http_port) == (True, None)
        stack.kill(first.pid)
        assert stack.http_port is None
        [fourth] = await stack.start_group([], name="all", processes=1)
        assert (fourth.secondary, fourth.functions) == (False, ["first", "second", "pid"])
        assert stack.http_port == fourth.http_port


async def test_a_child_that_dies_by_itself_is_said_and_everything_stops(app_dir: Path) -> None:
    async with stack_of(app_dir) as stack:
        pids = [child.pid for child in stack.children()]
        assert stack.broker is not None
        os.kill(stack.broker.pid, signal.SIGKILL)
        with pytest.raises(ChildFailedError, match="servicebus died with signal SIGKILL"):
            await asyncio.wait_for(stack.watch(), 5)
    await until(lambda: not any(is_running(pid) for pid in pids))
    assert (stack.logs / "servicebus.log").exists()  # kept for whoever looks into it
    shutil.rmtree(stack.logs)


async def test_a_start_that_fails_leaves_nothing_and_says_what_the_child_said(
    app_dir: Path,
) -> None:
    (app_dir / "function_app.py").write_text("import nonsense_module\n")
    logs = app_dir / "logs"
    stack = stack_of(app_dir, logs=logs)
    with pytest.raises(ChildFailedError, match="ModuleNotFoundError: No module named 'nonsense_"):
        await stack.start()
    assert not any(child.alive for child in stack.children())
    assert sorted(path.name for path in logs.glob("*.log")) == [
        "azurite.log",
        "host-all.log",
        "servicebus.log",
    ]


PARENT = """
import asyncio, json, sys
from devstack.stack import Stack
async def main():
    config = json.loads(sys.argv[2])
    async with Stack(sys.argv[1], config=config, settings={"NEXT": "next"}) as stack:
        print(json.dumps({"pids": [child.pid for child in stack.children()]}), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("tether", ["of this system", "watcher"])
async def test_kill_9_of_the_parent_takes_every_child_along(
    app_dir: Path, tether: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tether == "watcher":  # what systems other than Linux use
        monkeypatch.setenv("DEVSTACK_TETHER_WATCH", "1")
    argv = [sys.executable, "-c", PARENT, str(app_dir), json.dumps(CONFIG)]
    parent = Child("parent", argv, logs=app_dir, env={**os.environ, "TMPDIR": str(app_dir)})
    parent.start()
    try:
        ready = await parent.until(parent.ready_line, timeout_s=30)
        assert all(is_running(pid) for pid in ready["pids"])
    finally:
        parent.kill()
    await until(lambda: not any(is_running(pid) for pid in ready["pids"]), timeout_s=5)


def up_of(app_dir: Path, *arguments: str) -> Child:
    (app_dir / "Config.json").write_text(json.dumps(CONFIG))
    argv = [sys.executable, "-m", "devstack", "up", str(app_dir), "--setting", "NEXT=next"]
    # Logs that are kept after a failure are kept where pytest cleans up.
    env = {**os.environ, "TMPDIR": str(app_dir)}
    return Child("up", [*argv, *arguments], logs=app_dir, env=env)


def ended(child: Child) -> None:
    end = time.monotonic() + 20
    while child.alive:
        assert time.monotonic() < end
        time.sleep(0.02)


def said(child: Child) -> str:
    return "\n".join(child.out_lines())


async def test_up_says_what_runs_where_and_one_ctrl_c_stops_it_within_5_seconds(
    app_dir: Path,
) -> None:
    up = up_of(app_dir, "--ports", "free", "-v")
    up.start()
    try:
        await until(lambda: "Ctrl-C stops everything" in said(up), timeout_s=30)
        await until(lambda: "[host-host] " in said(up))
        screen = said(up)
        assert "first, second, pid" in screen
        assert "  MyBus=Endpoint=sb://127.0.0.1:" in screen
        assert "  AzureWebJobsStorage=DefaultEndpointsProtocol=http;" in screen
        pids = [int(part.split()[0]) for part in screen.split("pid ")[1:] if part[:1].isdigit()]
        assert len(set(pids)) >= 3
        began = asyncio.get_running_loop().time()
        up.send_signal(signal.SIGINT)
        await until(lambda: not up.alive)
        assert asyncio.get_running_loop().time() - began < 5
    finally:
        await up.stop_async()
    assert up.exit_code == 0
    assert not any(is_running(pid) for pid in pids)


async def test_up_says_who_died_and_ends_with_a_code(app_dir: Path) -> None:
    up = up_of(app_dir, "--ports", "free")
    up.start()
    try:
        await until(lambda: "Ctrl-C stops everything" in said(up), timeout_s=30)
        [line] = [one for one in said(up).splitlines() if one.strip().startswith("host ")]
        os.kill(int(line.split("pid ")[1].split()[0]), signal.SIGKILL)
        await until(lambda: not up.alive)
    finally:
        await up.stop_async()
    assert up.exit_code == 1
    assert "host-host died with signal SIGKILL" in up.log_path.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "/nowhere-at-all"], "has no function_app.py"),
        (["up", "{app}", "--processes", "0"], "--processes must be at least 1"),
        (["up", "{app}", "--setting", "x"], "is no NAME=VALUE"),
        (["up", "{app}"], "name the emulator's Config.json with --config"),
        (["up", "{app}", "--config", "none.json"], "none.json"),
    ],
)
def test_bad_input_of_up_gets_one_sentence(
    app_dir: Path, arguments: list[str], sentence: str
) -> None:
    argv = [sys.executable, "-m", "devstack", *(one.format(app=app_dir) for one in arguments)]
    child = Child("up", [*argv, "--ports", "free"], logs=app_dir)
    child.start()
    ended(child)
    told = child.log_path.read_text()
    assert child.exit_code in {1, 2}
    assert sentence in told
    assert "Traceback" not in told


def test_the_doctor_finds_a_busy_port_and_says_how_to_mend_it(unused_tcp_port: int) -> None:
    assert busy_ports([unused_tcp_port]) == []
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", unused_tcp_port))
        holder.listen()
        [problem] = busy_ports([unused_tcp_port])
    assert problem.startswith(f"Port {unused_tcp_port} ")
    assert "say --ports free" in problem


def test_the_doctor_knows_an_old_python_and_an_old_node() -> None:
    assert check_python((3, 11)) == []
    assert "use 3.11 or newer" in check_python((3, 10))[0]
    assert check_node_version("v20.1.0\n") == []
    assert "install Node 20 or newer" in check_node_version("v18.19.0\n")[0]
    assert "Node is broken" in check_node_version("")[0]


def test_the_doctor_looks_into_the_apps_files_too(app_dir: Path) -> None:
    assert check_app(app_dir) == []
    (app_dir / "host.json").write_text('{"version": "1.0"}')
    assert '"version": "2.0"' in check_app(app_dir)[0]


def test_the_doctor_is_a_command(app_dir: Path) -> None:
    argv = [sys.executable, "-m", "devstack", "doctor", str(app_dir)]
    child = Child("doctor", argv, logs=app_dir)
    (app_dir / "host.json").write_text("[]")
    child.start()
    ended(child)
    assert child.exit_code == 1
    assert "- " in said(child)
    assert "must hold a JSON object" in said(child)
