"""`python -m devstack up`: its screen, its ends, its sentences."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.__main__ import main
from devstack.children import Child
from devstack.tests.stack_kit import (
    done,
    is_running,
    make_app,
    make_table,
    pids_in,
    screen_of,
    send,
    setting_in,
    stdout_of,
    until,
    up_of,
)


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    return make_app(tmp_path)


async def test_up_says_what_runs_where_what_fails_and_what_a_command_beside_says(
    app_dir: Path,
) -> None:
    """The command has the host's settings. One Ctrl-C stops everything.

    A command that always fails is tried again ever later, and its last words are shown.
    """
    beside = 'echo "bus: $MyBus"; echo "storage: $AzureWebJobsStorage"; sleep 600'
    fails = "echo no such table >&2; exit 3"
    commands = ("--with", f"sh -c '{beside}'", "--with", f"sh -c '{fails}'")
    up = up_of(app_dir, "--ports", "free", *commands)
    up.start()
    try:
        screen = await screen_of(up)
        assert "first, second, pid" in screen
        assert len(pids_in(screen)) >= 4
        await until(lambda: "[beside-1] storage: " in stdout_of(up), up)
        assert f"[beside-1] bus: {setting_in(screen, 'MyBus')}" in stdout_of(up)
        await send(setting_in(screen, "MyBus"), "there is no table to write it to")
        await until(lambda: "ERROR Executed 'Functions.second' (Failed, " in stdout_of(up), up)
        assert "Functions.first" not in stdout_of(up)
        await until(lambda: "it starts again in 2 s." in stdout_of(up), up)
        await ctrl_c(up)
    finally:
        await up.stop_async()
    assert up.exit_code == 0
    assert "Everything is stopped." in stdout_of(up)
    assert not any(is_running(pid) for pid in pids_in(screen))
    reports = re.findall(
        r"^beside-2 died with exit code 3; it starts again in (\d) s\.\n  \| no such table$",
        stdout_of(up),
        re.MULTILINE,
    )
    assert reports[:2] == ["1", "2"]


async def ctrl_c(up: Child) -> None:
    up.send_signal(signal.SIGINT)
    await until(lambda: not up.alive, up)


@pytest.fixture
def hang_up_is_heard() -> Iterator[None]:
    """A test run under nohup ignores SIGHUP, and so would its children."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_a_reader_that_has_gone_does_not_keep_up_from_stopping(app_dir: Path) -> None:
    child = up_of(app_dir, "--ports", "free")
    with (app_dir / "err").open("wb") as err:
        up = subprocess.Popen(child.argv, stdout=subprocess.PIPE, stderr=err)
    assert up.stdout is not None
    assert up.stdout.readline().startswith(b"Azure on this machine")
    up.stdout.close()
    started = children_of(up.pid)
    up.send_signal(signal.SIGINT)
    assert up.wait(120) == 0
    assert (app_dir / "err").read_text() == ""
    assert len(started) == 3
    assert not any(is_running(pid) for pid in started)


@pytest.mark.long
async def test_ctrl_c_while_things_start_leaves_nothing(app_dir: Path) -> None:
    up = up_of(app_dir, "--ports", "free")
    up.start()
    try:
        await until(lambda: bool(children_of(up.pid)))
        started = children_of(up.pid)
        await ctrl_c(up)
    finally:
        await up.stop_async()
    assert up.exit_code == 0
    assert not any(is_running(pid) for pid in started)


@pytest.mark.long
async def test_ctrl_c_during_the_checks_is_an_ordinary_stop(
    app_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = app_dir / "bin" / "node"
    node.parent.mkdir()
    node.write_text("#!/bin/sh\nexec sleep 600\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", str(node.parent), prepend=os.pathsep)
    up = up_of(app_dir, "--ports", "free")
    up.start()
    try:
        await until(lambda: bool(children_of(up.pid)))
        [checked] = children_of(up.pid)
        await ctrl_c(up)
    finally:
        await up.stop_async()
    assert up.exit_code == 0
    assert stdout_of(up) == "Stopped."
    assert "Traceback" not in up.log_path.read_text()
    await until(lambda: not is_running(checked))


def children_of(pid: int) -> list[int]:
    command = ["ps", "-o", "pid=", "--ppid", str(pid)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(number) for number in process.stdout.split()]


@pytest.mark.usefixtures("hang_up_is_heard")
async def test_whatever_is_killed_starts_again_at_its_place_and_loses_nothing(
    app_dir: Path,
) -> None:
    """A terminal that is closed then stops all in order."""
    up = up_of(app_dir, "--ports", "free", "--with", "sleep 600")
    up.start()
    try:
        screen = await screen_of(up)
        tables, bus = (setting_in(screen, name) for name in ("AzureWebJobsStorage", "MyBus"))
        await make_table(tables)
        row = r"^  (broker|azurite table|host|beside-1) .*pid (\d+)"
        pids = {name: int(pid) for name, pid in re.findall(row, screen, re.MULTILINE)}
        assert len(pids) == 4
        for count, (name, pid) in enumerate(pids.items()):
            if name == "azurite table":
                await done(tables, count)  # this app gives a message up while there is no table
            else:
                await send(bus, f"sent before the kill of {name}")
            os.kill(pid, signal.SIGKILL)
            await until(lambda: stdout_of(up).count("runs again: pid ") > count, up)  # noqa: B023
        assert stdout_of(up).count(" died with signal SIGKILL: ") == len(pids)
        bodies = {f"sent before the kill of {name}" for name in pids.keys() - {"azurite table"}}
        assert await done(tables, 3) == bodies
        again = [int(pid) for pid in re.findall(r"runs again: pid (\d+)", stdout_of(up))]
        up.send_signal(signal.SIGHUP)
        await until(lambda: not up.alive, up)
    finally:
        await up.stop_async()
    assert up.exit_code == 0
    assert "Everything is stopped." in stdout_of(up)
    assert stdout_of(up).count("runs again") == len(pids)
    assert not any(is_running(pid) for pid in [*pids.values(), *again])
    assert list(app_dir.glob("devstack-*")) == []  # noqa: ASYNC240  # everything has ended


def test_bad_input_of_up_gets_one_sentence(
    app_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, sentence in (
        (["up", "/nowhere-at-all"], "has no function_app.py"),
        (["up", "{app}", "--processes", "0"], "--processes must be at least 1"),
        (["up", "{app}", "--processes", "65"], "at least 1 and at most 64"),
        (["up", "{app}", "--setting", "x"], "must have the form NAME=VALUE"),
        (["up", "{app}"], "'NEXT': set it in local.settings.json or the environment."),
        (["up", "{app}", "--config", "none.json"], "none.json cannot be read"),
        (["up", "{app}", "--data", "{app}/host.json"], "cannot be a directory for data"),
        (["up", "{app}", "--processes", "x"], "--processes: invalid int value: 'x'"),
        (["up", "{app}", "--ports", "any"], "invalid choice: 'any'"),
        (["down"], "invalid choice: 'down'"),
    ):
        words = [argument.format(app=app_dir) for argument in arguments]
        try:
            code = main([*words, "--ports", "free"])
        except SystemExit as end:  # from argparse
            code = int(str(end.code))
        assert code in {1, 2}
        assert sentence in capsys.readouterr().err
