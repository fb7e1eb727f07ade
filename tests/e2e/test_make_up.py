"""`make up`: one command starts all, `sas` finds it, one Ctrl-C ends all."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import pytest

from devstack.children import Child
from devstack.doctor import busy_ports
from devstack.listeners import listeners
from devstack.tests.stack_kit import is_running, make_app, pids_in, screen_of, until, up_of
from tests.e2e.typed import made_up, project_in, sas, typed
from tests.functions_rig import ROOT

CONNECTIONS = ("ServiceBus", "AzureWebJobsStorage", "SAS_TABLES", "SAS_TABLES__endpoint")


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CONNECTIONS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return project_in(tmp_path)


@pytest.mark.long
def test_make_up_is_found_by_sas_and_by_the_client_and_one_ctrl_c_ends_all_of_it(
    project: Path,
) -> None:
    env_file = project / ".devstack" / "env"
    with made_up(project) as up:
        screen = up.text
        inner = project / "further" / "in"
        inner.mkdir(parents=True)
        checks = map(json.loads, sas(inner, "status", "--check", "--json").out.splitlines())
        states = {check["Check"]: check["State"] for check in checks}
        assert states["reading the table"] == states["setting of Service Bus"] == "ok"
        assert env_file.stat().st_mode & 0o777 == 0o600

        with typed([sys.executable, "-m", "sas.cli", "list"], cwd=project) as listed:
            assert listed.process.wait(120) in {0, 1}
            listed.screen.drain()
            assert listed.text.startswith(f"sas: using {env_file} (devstack up, pid ")
        assert "using" not in sas(project, "list").err

        by_client = (
            "import asyncio; from sas.client import OrdersClient; "
            "c = OrdersClient.from_environment(reply_queue='responses-web-shop'); "
            "print(c._client.fully_qualified_namespace); asyncio.run(c.close())"
        )
        done = subprocess.run(
            [sys.executable, "-c", by_client],
            cwd=project,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() in pasted(screen)["ServiceBus"]

        assert up.ctrl_c() in {0, 130, -signal.SIGINT, 2}
        up.screen.drain()
        assert "Everything is stopped." in up.text
        assert "Traceback" not in up.text
    started = pids_in(screen)
    assert len(started) == 5
    assert not any(is_running(pid) for pid in started)
    assert not env_file.exists()


def pasted(screen: str) -> dict[str, str]:
    """What a shell has once the screen's lines were pasted into it."""
    lines = re.findall(r"^export .*$", screen, re.MULTILINE)
    names = [shlex.split(line)[1].partition("=")[0] for line in lines]
    printing = "; ".join(f'printf "%s\\n" "${name}"' for name in names)
    values = shell("\n".join([*lines, printing])).splitlines()
    return dict(zip(names, values, strict=True))


def shell(script: str) -> str:
    words = ["/bin/sh", "-c", script]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


async def test_one_stack_is_pasted_named_killed_reported_and_started_again(
    tmp_path: Path,
) -> None:
    up = up_of(make_app(tmp_path), "--ports", "free", "--setting", "ODD=it's a $HOME; `x`")
    script = tmp_path / "bin" / "devstack"  # as pip installs the console script
    script.parent.mkdir()
    script.write_text("import sys; from devstack.__main__ import main; sys.exit(main())")
    up.argv[1:3] = [str(script)]
    file = tmp_path / ".devstack" / "env"
    up.start()
    screen = await screen_of(up)
    assert_named_as_holder(up, screen)
    settings = pasted(screen)
    assert settings["ODD"] == "it's a $HOME; `x`"
    assert settings["MyBus"].startswith("Endpoint=sb://127.0.0.1:")
    assert shell(f'. {file} && printf %s "$ODD"') == settings["ODD"]
    other = sas(tmp_path, "list", ServiceBus="Endpoint=sb://elsewhere")
    assert "the setting SAS_TABLES is missing" in other.err, "variables win over the file"

    up.kill()
    await until(lambda: not any(is_running(pid) for pid in pids_in(screen)))
    listing = sas(tmp_path, "list")
    assert listing.code == 2
    assert listing.err == (
        f"sas: {file} is that of a stack that has ended (devstack up, pid {up.pid}): start it "
        "again, or remove the file\n"
    )
    assert sas(tmp_path, "sim", "--help").code == 0
    again = up_of(tmp_path, "--ports", "free")
    again.start()
    try:
        await screen_of(again)
        assert "has ended" not in sas(tmp_path, "list").err
        assert f"pid {again.pid}" in file.read_text()
    finally:
        await again.stop_async(signal.SIGINT, timeout_s=120)
    assert not file.exists()


def assert_named_as_holder(up: Child, screen: str) -> None:
    """A second start would name this one, and not its parts."""
    ports = [int(port) for port in re.findall(r"://127.0.0.1:(\d+)", screen)[:3]]
    holders = listeners(ports)
    assert {holder.pid for holder in holders.values()} == {up.pid}
    [sentence] = busy_ports(dict.fromkeys(ports, "wanted"))
    assert sentence.startswith(f"Ports {ports[0]} (wanted), {ports[1]}")
    assert f"are held by pid {up.pid}: " in sentence
    assert f"stop it (`kill {up.pid}`), or say --ports free." in sentence


README = (ROOT / "README.md").read_text(encoding="utf-8")


def typed_in_the_tour() -> list[str]:
    """The commands of README's tour, each as one line."""
    tour = README[README.index("\n## Use it") : README.index("\nTry `kill -9`")]
    lines = re.findall(r"^    (.+)$", tour.replace("\\\n", ""), re.MULTILINE)
    assert lines[0].startswith("make up ")
    return lines[1:]


@pytest.mark.long
def test_the_tour_of_the_readme_goes_as_it_is_written(project: Path) -> None:
    submit, listed, why, resubmit, finished, show = typed_in_the_tour()
    patient = "UP=--ports free --setting ORDERS_TIME_ALLOWED_SECONDS=300"  # a busy machine is slow
    with made_up(project, patient) as up:
        submission = run(project, submit)
        assert "submitted 10, completed 9, failed 1, undone 0" in submission
        assert "NW-10279             failed         take-payment card-declined" in submission
        assert "1 order in Error: 1 take-payment/card-declined" in run(project, listed)
        explanation = run(project, why)
        assert "waits for   You." in explanation
        assert "sas resubmit NW-10279" in explanation
        link = re.search(r"The desk is at (http://\S+)", up.text)
        assert link
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(link[1]) as login:
            place = login.headers["Refresh"].partition("url=")[2]
        with browser.open(urljoin(link[1], place)) as page:
            assert "card-declined" in page.read().decode()
        assert "done: seq 5, resubmitted; the order is Process" in run(
            project, f"{resubmit} --wait 120"
        )
        for _ in range(120):  # the step has ended; on a busy machine its order runs on
            if "10 orders finished: 10 Processed" in (orders := run(project, finished)):
                break
            time.sleep(0.5)
        else:
            raise AssertionError(orders)
        journal = run(project, show)
        assert "another card" in journal
        assert "take-payment: Error -> Pending with its input edited" in journal
        (client,) = re.findall(
            r"^```python\n(import asyncio.*?)^```$", README, re.DOTALL | re.MULTILINE
        )
        (project / "client.py").write_text(client)
        output = run(project, ".venv/bin/python client.py")
        assert "sas.order.completed.v1 Processed" in output


def run(project: Path, line: str) -> str:
    """What a line of the page prints, typed in the project's directory."""
    words = ["/bin/sh", "-c", line]
    done = subprocess.run(
        words, cwd=project, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout + done.stderr
