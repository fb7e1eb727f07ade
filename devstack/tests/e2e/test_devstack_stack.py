"""The whole stack as an object: broker, Azurite and hosts, started, killed, watched, stopped."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from devstack.azurite import Azurite
from devstack.children import Child, free_port
from devstack.inputs import ChildFailedError, DevstackError
from devstack.stack import Stack
from devstack.tests.stack_kit import (
    CONFIG,
    done,
    is_running,
    make_app,
    make_table,
    send,
    stack_of,
    until,
)


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    return make_app(tmp_path)


async def test_groups_are_killed_and_started_again_and_no_message_is_lost(app_dir: Path) -> None:
    """Only one process of a group serves HTTP, also after kills."""
    groups = {"two": ["second"], "web": ["first", "pid"]}
    async with stack_of(app_dir, groups=groups) as stack:
        pids = [child.pid for child in stack.children()]
        assert len(set(pids)) == 4
        assert {host.group: host.functions for host in stack.processes} == groups
        [web] = stack.group("web")
        assert stack.http_port == web.http_port
        await make_table(stack)
        await send(stack, "a")
        assert await done(stack, 1) == {"a"}
        [killed] = stack.kill("two")
        assert not is_running(killed)
        await send(stack, "b", "c")
        stack.check()  # the stack itself killed it: no failure
        [started] = await stack.start_group(["second"], name="two")
        assert started.pid != killed
        assert await done(stack, 3) == {"a", "b", "c"}
        [second] = await stack.start_group(["first", "pid"], name="web")
        assert (second.secondary, second.functions, second.http_port) == (True, ["first"], None)
        stack.kill(web.pid)
        assert stack.http_port is None
        [third] = await stack.start_group(["first", "pid"], name="web")
        assert (third.secondary, third.functions) == (False, ["first", "pid"])
        assert stack.http_port == third.http_port
        stack.kill("web")
        with pytest.raises(DevstackError, match="not a group or pid that runs"):
            stack.kill("web")
        logs = stack.logs
        assert (logs / "host-two.log").exists()
    hosts = (started, second, third)
    assert not any(is_running(pid) for pid in [*pids, *(host.pid for host in hosts)])
    assert not logs.exists()


async def test_a_broker_whose_data_was_in_memory_is_reported_and_everything_stops(
    app_dir: Path,
) -> None:
    """The app has no Config.json here: its queues are those of its bindings.

    Its host starts once a command beside it uses its port.
    """
    port = free_port()
    log = app_dir / "started"
    serve = (
        "import pathlib, socket, time; time.sleep(2); "
        f"s = socket.create_server(('127.0.0.1', {port})); "
        f"pathlib.Path({str(log)!r}).touch(); time.sleep(600)"
    )
    beside = [shlex.join([sys.executable, "-c", serve])]
    settings = {"NEXT": "after"}
    async with Stack(app_dir, settings=settings, beside=beside, needs={port: "slow"}) as stack:
        host = stack.processes[0].log_path.with_suffix(".out")
        assert log.stat().st_mtime < host.stat().st_mtime
        pids = [child.pid for child in stack.children()]
        await make_table(stack)
        await send(stack, "a")
        assert await done(stack, 1) == {"a"}
        assert stack.broker is not None
        os.kill(stack.broker.pid, signal.SIGKILL)
        sentence = "servicebus died with signal SIGKILL: a person, a program or a la"
        with pytest.raises(ChildFailedError, match=sentence):
            await asyncio.wait_for(stack.watch(print), 120)
    await until(lambda: not any(is_running(pid) for pid in pids))
    assert (stack.logs / "servicebus.log").exists()  # kept, so that a person can read why it died
    shutil.rmtree(stack.logs)


async def test_a_start_that_fails_leaves_nothing_and_prints_the_childs_output(
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


@pytest.mark.long
async def test_a_start_that_fails_starts_no_broker_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Azurite) -> None:
        raise ChildFailedError("Azurite fails at once.")

    monkeypatch.setattr(Azurite, "start_async", fail)
    logs = tmp_path / "logs"
    stack = Stack(make_app(tmp_path), settings={"NEXT": "after"}, logs=logs)
    with pytest.raises(ChildFailedError, match="Azurite fails at once"):
        await stack.start()
    try:
        with pytest.raises(TimeoutError):  # the index that comes first takes about a second
            await asyncio.wait_for(until(lambda: stack.broker is not None), 5)
    finally:
        if stack.broker is not None:
            stack.broker.kill()


PARENT = """
import asyncio, json, sys
from devstack.stack import Stack
async def main():
    config = json.loads(sys.argv[2])
    async with Stack(sys.argv[1], config=config, settings={"NEXT": "next"}) as stack:
        print(json.dumps({"pids": [child.pid for child in stack.children()]}), flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("watched_by", ["kernel", pytest.param("watcher", marks=pytest.mark.long)])
async def test_kill_9_of_the_parent_takes_every_child_along(
    app_dir: Path, watched_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if watched_by == "watcher":  # what systems other than Linux use
        monkeypatch.setenv("DEVSTACK_WATCH_PARENT", "1")
    argv = [sys.executable, "-c", PARENT, str(app_dir), json.dumps(CONFIG)]
    parent = Child("parent", argv, logs=app_dir, env={**os.environ, "TMPDIR": str(app_dir)})
    parent.start()
    try:
        ready = await parent.until(parent.ready_line, timeout_s=120)
        assert all(is_running(pid) for pid in ready["pids"])
    finally:
        parent.kill()
    await until(lambda: not any(is_running(pid) for pid in ready["pids"]))
