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


def test_all_parts_have_the_usual_ports_or_free_ones() -> None:
    services, desk = beside(command([]))
    assert services == ["--port-base", "7101"]
    assert "--port" not in desk
    words = command(["--ports", "free", "-v", "--processes", "2"])
    services, desk = beside(words)
    base = int(services[1])
    options = parser().parse_args(words[3:])
    assert dict(options.setting)["ORDERS_CARRIER_URL"] == f"http://127.0.0.1:{base + 4}"
    assert int(desk[desk.index("--port") + 1]) > 0  # the same after each start
    assert options.needs == [(base + i, f"service {name}") for i, name in enumerate(SERVICES)]
    assert (options.verbose, options.processes) == (True, 2)


def test_the_services_get_their_options_and_the_one_directory_that_keeps_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, _ = beside(command(["--services=--permanent 0 --transient 0 --slow 0"]))
    faults = _services(_parser().parse_args(services)).faults("payment")
    assert (faults.permanent, faults.transient, faults.slow) == (0, 0, 0)
    data = tmp_path / "with space"
    words = command(["--data", str(data)])
    services, _ = beside(words)
    assert parser().parse_args(words[3:]).data == data
    monkeypatch.setenv("DEVSTACK_DATA", str(data))  # as `devstack up` does
    assert _parser().parse_args(services).data == data / "services"


def test_a_port_of_the_services_or_the_desk_is_checked_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        for needed in ("PORT_BASE", "DESK_PORT"):
            with monkeypatch.context() as patching:
                patching.setattr(up, needed, port)
                [sentence] = [line for line in up.busy(command([])) if str(port) in line]
                assert up.busy(command(["--ports", "free"])) == []
            assert f"held by pid {os.getpid()}: " in sentence
