"""`make up`: one command starts all, `sas` finds it, one Ctrl-C ends all."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.doctor import busy_ports
from devstack.listeners import listeners
from tests.e2e.stack_kit import is_running, make_app, pids_in, screen_of, until, up_of
from tests.e2e.typed import Typed, typed
from tests.functions_rig import ROOT

# `setup` must not run here: it would replace the .venv that runs the tests.
MAKE_UP = [
    *("make", "-o", ".venv/.ready", "-o", "devstack/azurite/node_modules/.ready", "up"),
]
ENV_FILE = ROOT / ".devstack" / "env"
CONNECTIONS = ("ServiceBus", "AzureWebJobsStorage", "SAS_TABLES", "SAS_TABLES__endpoint")


@pytest.fixture(autouse=True)
def nothing_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    if ENV_FILE.exists():
        pytest.skip(f"a stack runs in {ROOT}: stop it to run this test")
    for name in CONNECTIONS:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def made_up(*more: str) -> Iterator[Typed]:
    """`make up` at a terminal, on free ports, ready to take orders."""
    with typed([*MAKE_UP, "UP=--ports free", *more], cwd=ROOT) as up:
        up.wait_for("Ctrl-C stops everything")
        up.wait_for("The desk is at ")
        up.wait_for('[beside-1] {"stock"')
        yield up


def sas(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sas.cli", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_make_up_is_found_by_sas_and_by_the_client_and_one_ctrl_c_ends_all_of_it() -> None:
    with made_up() as up:
        screen = up.text
        found = sas("env", "show", "--json", cwd=ROOT / "samples")
        shown = json.loads(found.stdout)
        assert shown["Source"].startswith(f"{ENV_FILE} (devstack up, pid ")
        assert "SharedAccessKey=***" in shown["Settings"]["ServiceBus"]
        assert ENV_FILE.stat().st_mode & 0o777 == 0o600

        with typed([sys.executable, "-m", "sas.cli", "list"], cwd=ROOT) as listed:
            assert listed.process.wait(120) in {0, 1}
            listed.screen.drain()
            assert listed.text.startswith(f"sas: using {ENV_FILE} (devstack up, pid ")
        assert "using" not in sas("list").stderr
        assert f"sas: using {ENV_FILE}" in sas("list", "-v").stderr

        by_client = (
            "import asyncio; from sas.client import OrdersClient; "
            "c = OrdersClient.from_environment(reply_queue='responses-web-shop'); "
            "print(c._client.fully_qualified_namespace); asyncio.run(c.close())"
        )
        done = subprocess.run(
            [sys.executable, "-c", by_client], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() in pasted(screen)["ServiceBus"]

        assert up.ctrl_c() in {0, 130, -signal.SIGINT, 2}
        up.screen.drain()
        assert "Everything is stopped." in up.text
        assert "Traceback" not in up.text
    started = pids_in(screen)
    assert len(started) == 5
    assert not any(is_running(pid) for pid in started)
    assert not ENV_FILE.exists()


def pasted(screen: str) -> dict[str, str]:
    """What a shell has once the screen's lines were pasted into it."""
    lines = re.findall(r"^export .*$", screen, re.MULTILINE)
    names = [shlex.split(line)[1].partition("=")[0] for line in lines]
    told = "; ".join(f'printf "%s\\n" "${name}"' for name in names)
    values = shell("\n".join([*lines, told])).splitlines()
    return dict(zip(names, values, strict=True))


def shell(script: str) -> str:
    words = ["/bin/sh", "-c", script]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


async def test_the_lines_can_be_pasted_and_environment_variables_win(tmp_path: Path) -> None:
    up = up_of(make_app(tmp_path), "--ports", "free", "--setting", "ODD=it's a $HOME; `x`")
    up.start()
    try:
        screen = await screen_of(up)
        settings = pasted(screen)
        assert settings["ODD"] == "it's a $HOME; `x`"
        assert settings["MyBus"].startswith("Endpoint=sb://127.0.0.1:")
        other = sas("env", "list", cwd=tmp_path, ServiceBus="Endpoint=sb://elsewhere")
        file = tmp_path / ".devstack" / "env"
        assert f"environment variables, not {file}" in other.stdout
        assert shell(f'. {file} && printf %s "$ODD"') == settings["ODD"]
    finally:
        await up.stop_async(signal.SIGINT, timeout_s=30)
    assert not (tmp_path / ".devstack").exists()


async def test_a_file_of_a_stack_that_was_killed_is_told_in_one_sentence(tmp_path: Path) -> None:
    up = up_of(make_app(tmp_path), "--ports", "free")
    up.start()
    screen = await screen_of(up)
    up.kill()
    await until(lambda: not any(is_running(pid) for pid in pids_in(screen)))
    file = tmp_path / ".devstack" / "env"
    for words in (["list"], ["list", "-v"]):
        told = sas(*words, cwd=tmp_path)
        assert told.returncode == 2
        assert told.stderr == (
            f"sas: {file} is that of a stack that has ended (devstack up, pid {up.pid}): start it "
            "again, or remove the file\n"
        )
    assert sas("sim", "--help", cwd=tmp_path).returncode == 0
    again = up_of(tmp_path, "--ports", "free")
    again.start()
    try:
        await screen_of(again)
        assert sas("env", "list", cwd=tmp_path).stdout.endswith(f"pid {again.pid})\n")
    finally:
        await again.stop_async(signal.SIGINT, timeout_s=30)


async def test_a_second_start_names_the_process_that_holds_the_ports(tmp_path: Path) -> None:
    up = up_of(make_app(tmp_path), "--ports", "free")
    up.start()
    try:
        screen = await screen_of(up)
        ports = [int(port) for port in re.findall(r"://127.0.0.1:(\d+)", screen)[:3]]
        held = listeners(ports)
        assert {one.pid for one in held.values()} == {up.pid}
        [sentence] = busy_ports(ports)
        assert sentence.startswith(f"Ports {ports[0]} (wanted), {ports[1]}")
        assert f"are held by pid {up.pid}: " in sentence
        assert "-m devstack up " in sentence
        assert f"stop it (`kill {up.pid}`), or say --ports free." in sentence
    finally:
        await up.stop_async(signal.SIGINT, timeout_s=30)


@pytest.mark.long
@pytest.mark.parametrize("keeps", [False, True])
def test_a_restart_forgets_everything_or_nothing(tmp_path: Path, keeps: bool) -> None:
    file = tmp_path / "ten.jsonl"
    lines = (ROOT / "samples" / "northwind-orders.jsonl").read_text().splitlines()[:10]
    file.write_text("\n".join(lines))
    data = [f"DATA={tmp_path / 'data'}"] if keeps else []
    submit = ("submit", str(file), "--reply-queue", "responses-web-shop", "--follow", "--json")
    states: list[dict[str, str]] = []
    effects: list[int] = []
    for _ in range(2):
        with made_up(*data) as up:
            sent = sas(*submit, "--patience", "90")
            assert "undone: this key" not in sent.stdout
            listed = sas("list", "--state", "finished", "--json", "--limit", "100")
            orders = [json.loads(line) for line in listed.stdout.splitlines()]
            states.append({one["OrderID"]: one["ProcessState"] for one in orders})
            stock = re.search(r'"stock": "([^"]+)"', up.text)
            assert stock
            with urllib.request.urlopen(f"{stock[1]}/ledger", timeout=60) as answer:  # noqa: S310  ours
                effects.append(len(json.load(answer)["effects"]))
            if keeps:
                time.sleep(6)  # Azurite saves every five seconds; the end saves too
            up.ctrl_c()
    assert len(states[0]) == 10
    assert states[0] == states[1]
    assert effects[0] == effects[1] >= 8
