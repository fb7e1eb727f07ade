"""`make up` becomes `devstack up` with the services and the desk beside it."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import pytest

from devstack.__main__ import parser
from samples import up
from samples.remote_services import _parser, _services
from samples.services.contract import SERVICES
from samples.up import command
from tests.command_line import check_command


def beside(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of the services and of the desk."""
    options = parser().parse_args(words[3:])
    services, desk = (shlex.split(line) for line in options.beside)
    assert services[1:3] == ["-m", "samples.remote_services"]
    assert desk[1:3] == ["-m", "sas.cli"]
    assert desk[3] == "desk"
    check_command(desk[3:])
    return services[3:], desk[4:]


def test_by_default_the_ports_are_the_usual_ones_and_all_of_it_forgets() -> None:
    services, desk = beside(command([]))
    assert services == ["--port-base", "7101"]
    assert "--port" not in desk
    options = parser().parse_args(command([])[3:])
    assert (options.ports, options.data, options.setting) == ("fixed", None, [])


def test_the_host_gets_free_ports() -> None:
    words = command(["--ports", "free", "-v", "--processes", "2"])
    services, desk = beside(words)
    base = int(services[1])
    options = parser().parse_args(words[3:])
    assert dict(options.setting)["ORDERS_STOCK_URL"] == f"http://127.0.0.1:{base}"
    assert dict(options.setting)["ORDERS_CARRIER_URL"] == f"http://127.0.0.1:{base + 4}"
    assert int(desk[desk.index("--port") + 1]) > 0  # the same after each start
    assert options.needs == [(base + i, f"service {name}") for i, name in enumerate(SERVICES)]
    assert (options.verbose, options.processes) == (True, 2)


@pytest.mark.parametrize("name", ["data", "with space"])
def test_one_directory_keeps_the_queues_the_table_and_what_the_services_did(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(["--data", str(tmp_path / name)])
    services, _ = beside(words)
    assert "--data" not in services
    assert parser().parse_args(words[3:]).data == tmp_path / name
    monkeypatch.setenv("DEVSTACK_DATA", str(tmp_path / name))  # as `devstack up` does
    assert _parser().parse_args(services).data == tmp_path / name / "services"


def test_options_of_the_services_are_passed_on() -> None:
    services, _ = beside(command(["--services=--permanent 0 --transient 0 --slow 0"]))
    faults = _services(_parser().parse_args(services)).faults("payment")
    assert (faults.permanent, faults.transient, faults.slow) == (0, 0, 0)


@pytest.mark.parametrize("needed", ["PORT_BASE", "DESK_PORT"])
def test_a_port_of_the_services_or_the_desk_is_checked_before_anything_starts(
    needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setattr(up, needed, port)
        [sentence] = [sentence for sentence in up.busy(command([])) if str(port) in sentence]
        assert up.busy(command(["--ports", "free"])) == []
    assert f"held by pid {os.getpid()}: " in sentence
    assert sentence.endswith("or run `make up UP='--ports free'`.")
