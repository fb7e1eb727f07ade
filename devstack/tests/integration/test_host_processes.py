"""`python -m devstack.functions` as a command: ready line, signals, time-outs."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from devstack.children import Child
from devstack.functions.cli import main
from devstack.servicebus import Broker, QueueProperties
from devstack.tests.host_kit import put, until

APP = """
import asyncio, os, time
import azure.functions as func
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="in")
async def work(msg: str) -> None:
    await asyncio.sleep(float(msg))

@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="other")
def other(msg: str) -> None:
    time.sleep(float(msg))

@app.route("pid")
def pid(req: func.HttpRequest) -> str:
    time.sleep(float(req.params.get("wait", "0")))
    return str(os.getpid())
"""

START = 'open("starts", "a").write("+")\n'
HANGS = """
import json, os, signal, time, asyncio
import azure.functions as func
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.route("hang", methods=["POST"])
async def hang(req: func.HttpRequest) -> str:
    {hangs}

descriptors = [int(one) for one in os.listdir("/dev/fd")]
passed_on = []
for one in descriptors:
    try:
        passed_on += [one] * os.get_inheritable(one)
    except OSError:
        pass  # the descriptor of listdir
with open("starts", "a") as starts:
    starts.write(json.dumps([os.getpid(), len(descriptors), sorted(passed_on)]) + "\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
"""
STOPS_AND_BLOCKS = """
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):  # the loop learns of the signal
        await asyncio.sleep(0)
    time.sleep(600)
"""
CLOSES = """
async def at_the_end():
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.1)
        open("closed", "w").write("yes")

@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="in")
async def opens(msg: str) -> None:
    global closing
    closing = asyncio.create_task(at_the_end())
"""


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    (tmp_path / "function_app.py").write_text(APP)
    (tmp_path / "host.json").write_text('{"version": "2.0"}')
    return tmp_path


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["in", "other"]) as running:
        yield running


class Command:
    """The command under test; it is stopped at the end of the test."""

    def __init__(self, app_dir: Path, *arguments: str, broker: Broker | None = None) -> None:
        argv = [sys.executable, "-m", "devstack.functions", str(app_dir), *arguments]
        if broker is not None:
            argv += ["--setting", f"SB={broker.connection_string}"]
        env = {**os.environ, "TMPDIR": str(app_dir)}  # pytest removes what a kill -9 leaves
        self.child = Child("command", argv, logs=app_dir, env=env)

    async def __aenter__(self) -> Self:
        self.child.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.child.stop_async(timeout_s=8)

    async def ready(self) -> dict[str, Any]:
        return await self.child.until(self.child.ready_line, timeout_s=120)

    async def ended(self) -> int:
        await until(lambda: not self.child.alive)
        code = self.child.exit_code
        assert code is not None
        return code

    @property
    def log(self) -> str:
        return self.child.log_path.read_text()

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]


async def ping_always(port: int) -> None:
    async with asyncio.timeout(300):
        while True:
            await status_of("GET", port, "/admin/host/ping")
            await asyncio.sleep(0.01)


async def status_of(method: str, port: int, path: str) -> int | None:
    """Return the status of the answer, None if the worker ends first; raise if none listens."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status
    except aiohttp.ClientConnectorError:
        raise
    except aiohttp.ClientError:
        return None


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SPEAKS = """
import logging

@app.route("speak")
def speak(req: func.HttpRequest) -> str:
    for name in ("azure.core", "aiohttp", "mine"):
        logging.getLogger(name).info("said by %s", name)
        logging.getLogger(name).debug("whispered by %s", name)
    return "done"
"""


async def test_what_any_logger_of_the_app_says_from_info_on_is_passed_on_as_the_worker_does(
    app_dir: Path,
) -> None:
    (app_dir / "function_app.py").write_text(APP + SPEAKS)
    async with Command(app_dir, "--only", "speak") as command:
        port = (await command.ready())["http_port"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/api/speak") as answer,
        ):
            assert answer.status == 200
        messages = [line["message"] for line in command.logged()]
        assert {f"said by {name}" for name in ("azure.core", "aiohttp", "mine")} <= set(messages)
        assert not [text for text in messages if text.startswith("whispered")]


async def test_a_function_past_its_timeout_fails_all_others_and_the_worker_starts_again(
    app_dir: Path, broker: Broker
) -> None:
    (app_dir / "function_app.py").write_text(
        APP.replace("import asyncio", START + "import asyncio")
    )
    (app_dir / "host.json").write_text('{"version": "2.0", "functionTimeout": "00:00:05"}')
    async with Command(app_dir, broker=broker) as command:
        ready = await command.ready()
        put(broker, "other", "60")
        await until(lambda: "Executing 'Functions." in command.log)
        put(broker, "in", *(["60"] * 3))  # their own time ends later
        put(broker, "other", "60")
        await until(lambda: command.log.count("Executing 'Functions.") >= 5)
        await until(lambda: len(command.child.out_lines()) >= 2)
        again = json.loads(command.child.out_lines()[1])
        assert (again["pid"], again["http_port"]) == (ready["pid"], ready["http_port"])
        assert (app_dir / "starts").read_text().startswith("++")
        assert "the process starts again, as in Azure" in command.log
        failed = "Executed 'Functions.work' (Failed"
        assert any(
            failed in line and "Function other exceeded the functionTimeout" in line
            for line in command.log.splitlines()
        )


@pytest.mark.long
async def test_a_function_that_blocks_the_event_loop_past_its_timeout_is_cut_off_too(
    app_dir: Path,
) -> None:
    blocks = APP.replace("await asyncio.sleep", "time.sleep")
    (app_dir / "function_app.py").write_text(blocks)
    (app_dir / "host.json").write_text('{"version": "2.0", "functionTimeout": "00:00:02"}')
    once = QueueProperties(lock_duration_s=5, max_delivery_count=1)
    # The process may take a message of this queue just before it starts again.
    other = QueueProperties(lock_duration_s=5)
    async with Broker({"in": once, "other": other}) as broker:
        put(broker, "in", "600")  # it comes while the host starts
        async with Command(app_dir, broker=broker) as command:
            await until(lambda: "while work ran: the process starts again" in command.log)
            put(broker, "other", "0")
            await until(lambda: broker.counts("other").active == 0)
            await until(lambda: broker.counts("in").dead_letter == 1)  # its lock has ended
            assert command.child.alive


async def test_a_worker_that_starts_again_never_lets_go_of_its_http_port(app_dir: Path) -> None:
    restarts = 2
    (app_dir / "function_app.py").write_text(HANGS.format(hangs="await asyncio.sleep(600)"))
    (app_dir / "host.json").write_text('{"version": "2.0", "functionTimeout": "00:00:01"}')
    go = app_dir / "go"
    go.touch()

    def starts() -> list[list[Any]]:
        lines = [json.loads(line) for line in (app_dir / "starts").read_text().splitlines()]
        return [start for start in lines if start[0] == pid]

    async with (
        Command(app_dir) as command,
        asyncio.TaskGroup() as tasks,
    ):
        ready = await command.ready()
        pid, port = ready["pid"], ready["http_port"]
        pings = tasks.create_task(ping_always(port))
        for number in range(restarts):
            go.unlink()  # the next start waits while the app is imported
            hung = tasks.create_task(status_of("POST", port, "/api/hang"))
            await until(lambda: len(starts()) == number + 2)  # noqa: B023  # called in this turn
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="Address already in use"):
                    other.bind(("127.0.0.1", port))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /admin/host/ping HTTP/1.0\r\n\r\n")
            go.touch()
            assert b" 200 " in await reader.readline()
            writer.close()
            assert await hung in {500, None}
        pings.cancel()
        assert starts() == [[pid, starts()[0][1], [0, 1, 2]]] * (restarts + 1)


@pytest.mark.long
async def test_a_function_that_blocks_the_event_loop_of_a_stopping_worker_is_cut_off(
    app_dir: Path,
) -> None:
    (app_dir / "function_app.py").write_text(HANGS.format(hangs=STOPS_AND_BLOCKS.strip()))
    (app_dir / "host.json").write_text('{"version": "2.0", "functionTimeout": "00:00:01"}')
    (app_dir / "go").touch()
    async with Command(app_dir) as command:
        port = (await command.ready())["http_port"]
        assert await status_of("POST", port, "/api/hang") is None
        assert await command.ended() == 0
        assert len((app_dir / "starts").read_text().splitlines()) == 1


@pytest.mark.long
async def test_what_the_app_left_on_its_loop_is_cancelled_at_a_kind_stop(
    app_dir: Path, broker: Broker
) -> None:
    (app_dir / "function_app.py").write_text(APP + CLOSES)
    async with Command(app_dir, "--only", "opens", broker=broker) as command:
        await command.ready()
        put(broker, "in", "0")
        await until(lambda: "Succeeded" in command.log)
        command.child.send_signal(signal.SIGTERM)
        assert await command.ended() == 0
        assert (app_dir / "closed").read_text() == "yes"


async def test_the_ready_line_says_what_runs_and_logs_name_the_invocation(
    app_dir: Path, broker: Broker
) -> None:
    async with Command(app_dir, "--only", "work,pid", broker=broker) as command:
        ready = await command.ready()
        assert ready["functions"] == ["work", "pid"]
        assert ready["pid"] == command.child.pid
        assert ready["http_port"] > 0
        put(broker, "in", "0")
        await until(lambda: "Succeeded" in command.log)
        about = [line for line in command.logged() if line.get("function") == "work"]
        assert len({line["invocation"] for line in about}) == 1
        assert len(command.child.out_lines()) == 1


@pytest.mark.parametrize(("drain", "wait"), [("600", "2.5"), ("0.3", "600")])
async def test_sigterm_lets_requests_in_hand_be_answered_within_the_drain(
    app_dir: Path, drain: str, wait: str
) -> None:
    async with (
        Command(app_dir, "--only", "pid", "--drain", drain) as command,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{(await command.ready())['http_port']}/api/pid"
        answer = asyncio.ensure_future(session.get(url, params={"wait": wait}))
        await until(lambda: "Executing" in command.log)
        command.child.send_signal(signal.SIGTERM)
        if float(wait) < float(drain):
            assert await (await answer).text() == str(command.child.pid)
        else:
            with pytest.raises(aiohttp.ClientError):
                await answer
        assert await command.ended() == 0  # within two minutes
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


@pytest.mark.long
async def test_a_sync_function_that_never_ends_is_left_behind_after_the_drain(
    app_dir: Path, broker: Broker
) -> None:
    arguments = ["--only", "other", "--drain", "0.5"]
    async with Command(app_dir, *arguments, broker=broker) as command:
        await command.ready()
        put(broker, "other", "600")
        await until(lambda: "Executing" in command.log)
        command.child.send_signal(signal.SIGTERM)
        assert await command.ended() == 0
        assert "Left running: function_0" in command.log
        assert broker.counts("other").active == 1


async def test_a_taken_port_is_said_with_the_way_out(app_dir: Path, unused_tcp_port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", unused_tcp_port))
        holder.listen()
        arguments = ["--only", "pid", "--http-port", str(unused_tcp_port)]
        async with Command(app_dir, *arguments) as command:
            assert await command.ended() == 1
            assert "take a free one: --http-port 0" in command.log


def test_an_app_that_cannot_run_ends_the_command_with_one_sentence(app_dir: Path) -> None:
    argv = [sys.executable, "-m", "devstack.functions", str(app_dir), "--only", "work"]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 1
    assert "uses the connection 'SB'" in process.stderr
    assert "Traceback" not in process.stderr


def test_bad_usage_gets_one_sentence(app_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["--drain", "nan"], "--drain is between 0 and 86400 seconds"),
        (["--http-port", "70000"], "--http-port between 0 and 65535"),
        (["--http-port", "x"], "--http-port: invalid int value: 'x'"),
        (["--setting", "X"], "must have the form NAME=VALUE"),
        (["--only", ","], "name at least one function"),
    ):
        with pytest.raises(SystemExit) as end:
            main([str(app_dir), *arguments])
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err
