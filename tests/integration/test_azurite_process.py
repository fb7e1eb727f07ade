"""Azurite as a child process: found, started, stopped, and its data kept."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from azure.data.tables import TableClient

from devstack import azurite as module
from devstack.azurite import Azurite
from devstack.children import free_port
from devstack.inputs import ChildFailedError, DevstackError, NotInstalledError

FOLDER = Path(module.__file__).with_name("azurite")


def table(azurite: Azurite) -> TableClient:
    return TableClient.from_connection_string(azurite.connection_string, "things")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_data_on_disk_survives_a_stop_and_memory_does_not_outlive_its_process(
    tmp_path: Path,
) -> None:
    with Azurite(tmp_path / "data") as first:
        assert first.child is not None
        pid = first.child.pid
        with table(first) as client:
            client.create_table()
            client.create_entity({"PartitionKey": "p", "RowKey": "r", "n": 1})
    assert not is_running(pid)
    with Azurite(tmp_path / "data") as second, table(second) as client:
        assert client.get_entity("p", "r")["n"] == 1


async def test_it_runs_in_a_loop_too() -> None:
    async with Azurite() as azurite:
        assert f"TableEndpoint=http://127.0.0.1:{azurite.port}/" in azurite.connection_string
        with socket.create_connection(("127.0.0.1", azurite.port), timeout=60):
            pass


def test_a_taken_port_is_said_and_nothing_is_left_running(unused_tcp_port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", unused_tcp_port))
        holder.listen()
        azurite = Azurite(port=unused_tcp_port)
        with pytest.raises(ChildFailedError, match=f"cannot have port {unused_tcp_port}"):
            azurite.start()
        assert azurite.child is None


def test_a_port_taken_between_look_and_bind_is_replaced(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = free_port
    offered = iter([unused_tcp_port])
    monkeypatch.setattr(module, "free_port", lambda: next(offered, None) or real())
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", unused_tcp_port))
        holder.listen()
        with Azurite() as azurite:
            assert azurite.port != unused_tcp_port


def test_without_node_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotInstalledError, match="install Node 20"):
        Azurite().start()


def test_without_the_package_the_sentence_says_make_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROGRAM", tmp_path / "main.js")
    with pytest.raises(NotInstalledError, match="make setup"):
        Azurite().start()


def test_there_is_no_connection_string_before_the_start() -> None:
    with pytest.raises(DevstackError, match="before it is started"):
        _ = Azurite().connection_string


def test_telemetry_is_turned_off() -> None:
    with Azurite() as azurite:
        assert azurite.child is not None
        command = subprocess.run(
            ["ps", "-ww", "-o", "args=", "-p", str(azurite.child.pid)],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert "--disableTelemetry" in command
    assert "--inMemoryPersistence" in command


def test_the_package_is_pinned_and_its_lock_names_no_address() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    lock = json.loads((FOLDER / "package-lock.json").read_text())["packages"]
    [wanted] = package["dependencies"].values()
    assert wanted == lock["node_modules/azurite"]["version"]
    assert not [name for name, entry in lock.items() if "resolved" in entry]
    assert all("integrity" in entry for name, entry in lock.items() if name)
