"""`python -m devstack doctor`: what is missing, and how to fix it."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from devstack import azurite
from devstack.__main__ import main
from devstack.doctor import (
    busy_ports,
    check_node,
    check_node_version,
    check_packages,
    has_azurite,
)
from devstack.tests.stack_kit import APP, CONFIG, ROOT, ended, make_app, stdout_of, up_of

REMOTE = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=R;SharedAccessKey=K"
REAL = [
    ("MyBus", REMOTE, "sb://contoso.servicebus.windows.net"),
    ("azurewebjobsstorage", "AccountName=contoso;AccountKey=K", "contoso.core.windows.net"),
    ("PICTURES", "https://contoso.blob.core.windows.net/a?sig=K", "contoso.blob.core.windows.net"),
]
TOPICS = APP.replace(
    'queue_trigger(arg_name="msg", connection="MyBus", queue_name="%NEXT%")',
    'topic_trigger(arg_name="msg", connection="MyBus", topic_name="t", subscription_name="s")',
)


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    return make_app(tmp_path)


def test_the_doctor_finds_a_busy_port_and_says_how_to_mend_it(unused_tcp_port: int) -> None:
    assert busy_ports({unused_tcp_port: "wanted"}) == []
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", unused_tcp_port))
        holder.listen()
        [problem] = busy_ports({unused_tcp_port: "wanted"})
    assert problem.startswith(f"Port {unused_tcp_port} ")
    assert "say --ports free" in problem


def test_the_doctor_knows_an_old_node() -> None:
    assert check_node_version("v20.1.0\n") == []
    assert "install Node 20 or newer" in check_node_version("v18.19.0\n")[0]
    assert "Node is broken" in check_node_version("")[0]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("host.json", "[]", "must hold a JSON object"),
        ("host.json", '{"version": "1.0"}', '"version": "2.0"'),
        *(("local.settings.json", json.dumps({"Values": {name: value}}),
           f"The setting {name} names {host}: this is not on this machine")
          for name, value, host in REAL),
        ("Config.json", "{}", "'UserConfig' is missing"),
        ("function_app.py", None, "has no function_app.py"),
        ("function_app.py", APP.replace("%NEXT%", "%NO%"), "needs the setting 'NO'"),
        pytest.param(
            "function_app.py", TOPICS, "Function second: this host does not run topics",
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_the_doctor_and_up_refuse_the_same_with_the_same_sentence(
    app_dir: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: str | None,
    sentence: str,
) -> None:
    (app_dir / "Config.json").write_text(json.dumps(CONFIG))
    (app_dir / file).unlink()
    if content is not None:
        (app_dir / file).write_text(content)
    for verb in ("doctor", "up"):
        assert main([verb, str(app_dir), "--setting", "NEXT=next", "--ports", "free"]) == 1
        output = capsys.readouterr()
        assert sentence in output.out + output.err


@pytest.mark.parametrize("verb", ["doctor", "up"])
def test_a_busy_port_of_a_command_beside_them_is_reported_before_anything_starts(
    app_dir: Path, verb: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("", 0)) as second:
        stock_port, desk_port = first.getsockname()[1], second.getsockname()[1]
        argv = ["--ports", "free", f"--needs={stock_port}=stock", f"--needs={desk_port}=the desk"]
        child = up_of(app_dir, *argv, "--with", "touch started", verb=verb)
        child.start()
        ended(child)
    assert child.exit_code == 1
    output = stdout_of(child) + child.log_path.read_text()
    assert (
        f"Ports {stock_port} (stock), {desk_port} (the desk) are held by pid {os.getpid()}: "
        in output
    )
    assert (
        f"stop it (`kill {os.getpid()}`), or say --ports free and change those of --needs."
        in output
    )
    assert "Azure on this machine, for" not in output


def test_the_doctor_prints_every_problem_at_once(app_dir: Path) -> None:
    (app_dir / "host.json").write_text("[]")
    argv = [
        "--config",
        "none.json",
        "--ports",
        "free",
        "--data",
        str(app_dir / "host.json"),
    ]
    child = up_of(app_dir, *argv, verb="doctor")
    child.env = {**(child.env or {}), "PATH": "/nowhere"}
    child.start()
    ended(child)
    host_json, none_json = app_dir / "host.json", Path("none.json").resolve()
    assert stdout_of(child).splitlines() == [
        "- Node was not found on PATH: install Node 20 or newer for Azurite.",
        f"- {host_json} cannot be a directory for data (File exists): name another one.",
        f"- {host_json} must hold a JSON object ({{...}}), not a list.",
        f"- {none_json} cannot be read (No such file or directory): check the path.",
    ]


def test_the_doctor_names_the_packages_that_python_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_packages() == []
    monkeypatch.setattr("devstack.doctor._PACKAGES", ("json", "azure.nonsense", "nonsense.azure"))
    [problem] = check_packages()
    assert problem == (
        "Python lacks azure.nonsense, nonsense.azure: use the Python that has the app's packages, "
        f"or run `{sys.executable} -m pip install azure-nonsense nonsense-azure`."
    )


def test_every_command_reports_missing_packages(app_dir: Path) -> None:
    for words in (["devstack", "doctor"], ["devstack", "up"], ["devstack.functions"]):
        argv = [sys.executable, "-S", "-m", *words, str(app_dir)]
        process = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert process.returncode == 1
        assert "Python lacks azure.functions, azure.servicebus, aiohttp: use the Python that" in (
            process.stdout + process.stderr
        )
        assert "Traceback" not in process.stderr


@pytest.mark.parametrize("module", ["devstack", "devstack.servicebus", "devstack.functions"])
def test_every_command_refuses_an_old_python(module: str) -> None:
    script = f"import sys; sys.version_info = (3, 10, 13); import {module}"
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert process.stderr == ("devstack: this is Python 3.10: install Python 3.11 or newer.\n")


def test_the_doctor_misses_node_and_azurite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert check_node() == []
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(azurite._PACKAGE / "package.json", package)
    monkeypatch.setattr(azurite, "_PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert check_node() == []  # `up` installs it with npm
    assert not has_azurite()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "node").symlink_to(str(shutil.which("node")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "run `devstack install`" in check_node()[0]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install Node 20 or newer" in check_node()[0]


def test_a_node_that_does_not_run_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "node"
    broken.write_text("no program")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_node() == ["Node is broken: install Node 20 or newer."]


def test_the_doctor_reports_a_healthy_machine_and_what_the_host_ignores(app_dir: Path) -> None:
    config = {"version": "2.0", "telemetryMode": "OpenTelemetry", "extensions": {"queues": {}}}
    (app_dir / "host.json").write_text(json.dumps(config))
    child = up_of(app_dir, "--ports", "free", verb="doctor")
    child.start()
    ended(child)
    assert child.exit_code == 0
    assert stdout_of(child).splitlines() == [
        "The host ignores these settings of host.json: extensions.queues, telemetryMode.",
        "Nothing is missing: `devstack up` will start.",
    ]
