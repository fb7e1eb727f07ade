"""`python -m devstack doctor`: what is missing, and how to mend it."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from devstack import azurite
from devstack.children import Child
from devstack.doctor import (
    busy_ports,
    check_app,
    check_node,
    check_node_version,
    check_packages,
    run_doctor,
)
from tests.e2e.stack_kit import ended, make_app, said
from tests.functions_rig import ROOT


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    return make_app(tmp_path)


def test_the_doctor_finds_a_busy_port_and_says_how_to_mend_it(unused_tcp_port: int) -> None:
    assert busy_ports([unused_tcp_port]) == []
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", unused_tcp_port))
        holder.listen()
        [problem] = busy_ports([unused_tcp_port])
    assert problem.startswith(f"Port {unused_tcp_port} ")
    assert "say --ports free" in problem


def test_the_doctor_knows_an_old_node() -> None:
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


def test_the_doctor_names_the_packages_that_python_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_packages() == []
    monkeypatch.setattr("devstack.doctor._PACKAGES", ("json", "azure.nonsense", "nonsense.azure"))
    [told] = check_packages()
    assert told == (
        "Python lacks azure.nonsense, nonsense.azure: use the Python that has the app's packages, "
        f"or run `{sys.executable} -m pip install azure-nonsense nonsense-azure`."
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["devstack", "doctor", "{app}"], 1),
        (["devstack", "up", "{app}", "--ports", "free"], 1),
        (["devstack.functions", "{app}"], 1),
    ],
)
def test_where_python_lacks_packages_every_command_says_so(
    app_dir: Path, arguments: list[str], code: int
) -> None:
    argv = [sys.executable, "-S", "-m", *(one.format(app=app_dir) for one in arguments)]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert "Python lacks azure.functions, azure.servicebus, aiohttp: use the Python that has" in (
        ran.stdout + ran.stderr
    )
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("module", ["devstack", "devstack.servicebus", "devstack.functions"])
def test_an_old_python_is_told_so_whatever_is_started(module: str) -> None:
    script = f"import sys; sys.version_info = (3, 10, 13); import {module}"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr == ("devstack: this is Python 3.10: install Python 3.11 or newer.\n")


def test_the_doctor_misses_node_and_azurite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert check_node() == []
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(azurite._PACKAGE / "package.json", package)
    monkeypatch.setattr(azurite, "_PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "run `devstack install`, or `npm install azurite`" in check_node(tmp_path)[0]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install Node 20 or newer" in check_node()[0]


def test_a_node_that_cannot_be_run_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "node"
    broken.write_text("no program")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_node() == ["Node is broken: install Node 20 or newer."]


def test_a_healthy_machine_is_told_so(
    app_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devstack.doctor.busy_ports", list)
    assert run_doctor(app_dir) == 0
    assert "`devstack up` will start" in capsys.readouterr().out
    (app_dir / "function_app.py").unlink()
    assert run_doctor(app_dir) == 0
    assert "contains no function app" in capsys.readouterr().out
    assert run_doctor(app_dir / "nowhere") == 1
    assert "is not a directory" in capsys.readouterr().out
