"""Azurite as a child process: how it is found, started and stopped, and keeps its data."""

import asyncio
import http.client
import json
import os
import shutil
import socket
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import (
    AccountSasPermissions,
    ResourceTypes,
    TableClient,
    generate_account_sas,
)
from azure.data.tables.aio import TableClient as AsyncTableClient

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


async def test_data_on_disk_survives_a_stop_and_memory_does_not_outlive_its_process(
    tmp_path: Path,
) -> None:
    with Azurite(tmp_path / "data") as first:
        assert first.child is not None
        pid = first.child.pid
        with table(first) as client:
            client.create_table()
            client.create_entity({"PartitionKey": "p", "RowKey": "r", "n": 1})
    assert not is_running(pid)
    async with Azurite(tmp_path / "data") as second:  # in a loop too
        assert f"TableEndpoint=http://127.0.0.1:{second.port}/" in second.connection_string
        with table(second) as client:
            assert client.get_entity("p", "r")["n"] == 1


async def test_a_killed_azurite_has_every_answered_change_and_no_part_of_a_transaction(
    tmp_path: Path,
) -> None:
    async with Azurite(tmp_path / "data") as azurite:
        assert azurite.child is not None
        rows = AsyncTableClient.from_connection_string(
            azurite.connection_string, "things", retry_total=0
        )
        answered: dict[str, int] = {}

        async def write(partition: str) -> None:
            """Write the same number into ten rows, again and again, and move one row."""
            for number in count(1):
                keys = [*(f"row-{i}" for i in range(10)), f"at-{number}"]
                places = [{"PartitionKey": partition, "RowKey": key} for key in keys]
                changes = [("upsert", {**place, "n": number}) for place in places]
                if number > 1:
                    former = f"at-{number - 1}"
                    changes.append(("delete", {"PartitionKey": partition, "RowKey": former}))
                await rows.submit_transaction(changes)
                answered[partition] = number

        async with rows:
            await rows.create_table()
            for turn in range(2):
                writers = [asyncio.create_task(write(f"{turn}-{i}")) for i in range(3)]
                await asyncio.sleep(1.5)
                azurite.child.kill()
                await asyncio.gather(*writers, return_exceptions=True)
                await azurite.child.start_async(timeout_s=60)
            numbers: dict[str, list[int]] = {}
            async for row in rows.list_entities():
                numbers.setdefault(row["PartitionKey"], []).append(row["n"])
        assert numbers.keys() == answered.keys()
        for partition, number in answered.items():
            assert numbers[partition] in ([number] * 11, [number + 1] * 11)


def test_a_taken_port_is_reported_and_nothing_is_left_running(unused_tcp_port: int) -> None:
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


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in; this package has no node_modules, as it has none in a wheel."""
    package = tmp_path / "wheel"
    package.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(FOLDER / name, package)
    monkeypatch.setattr(module, "_PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tool(bare: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a command before those of PATH."""
    path = bare / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


def test_without_azurite_the_sentence_says_how_to_install_it(bare: Path) -> None:
    with pytest.raises(NotInstalledError, match=f"in {bare}/cache/.*: run `devstack install`"):
        Azurite().start()


def test_no_azurite_of_a_project_above_it_or_of_path_is_run(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be anybody's: a directory above may be one that all users write to."""
    program = bare / "node_modules" / module._MAIN
    program.parent.mkdir(parents=True)
    program.write_text("require('fs').writeFileSync('ran', '')")
    tool(bare, "azurite-table", "#!/bin/sh\ntouch ran\n", monkeypatch)
    (bare / "app").mkdir()
    monkeypatch.chdir(bare / "app")
    shutil.copytree(bare / "node_modules", module._cache() / "node_modules")
    monkeypatch.setenv("HOME", str(bare / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "../cache")  # below the current directory: does not count
    with pytest.raises(NotInstalledError):
        Azurite().start()
    assert not list(bare.rglob("ran"))


def test_install_has_npm_put_the_pinned_azurite_into_this_users_cache(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = f"""#!/bin/sh
    echo "$@" > {bare}/asked
    mkdir -p "$3/node_modules" && ln -s {FOLDER}/node_modules/azurite "$3/node_modules/azurite"
    """
    tool(bare, "npm", npm, monkeypatch)
    program = module.install()
    version = json.loads((FOLDER / "package.json").read_text())["dependencies"]["azurite"]
    cache = bare / "cache" / "devstack" / f"azurite-{version}"
    assert (bare / "asked").read_text().startswith(f"ci --prefix {cache} ")
    assert (cache / "package-lock.json").read_text() == (FOLDER / "package-lock.json").read_text()
    assert module._program() == program
    assert program.exists()


def test_the_output_of_a_failing_npm_is_shown(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "npm", "#!/bin/sh\necho 'ETIMEDOUT: no answer' >&2\nexit 1\n", monkeypatch)
    with pytest.raises(ChildFailedError, match=r"registry reached\?\): ETIMEDOUT: no answer"):
        module.install()


def test_there_is_no_connection_string_before_the_start() -> None:
    with pytest.raises(DevstackError, match="before it is started"):
        _ = Azurite().connection_string


def test_a_web_page_that_signs_with_the_published_key_is_refused() -> None:
    """By DNS rebinding, or from another site. Azurite's telemetry is off meanwhile."""
    pages = ({"Host": f"{module.ACCOUNT}.evil.example"}, {"Origin": "https://evil.example"})
    key = AzureNamedKeyCredential(module.ACCOUNT, module.KEY)
    rights = AccountSasPermissions(add=True, write=True)
    kinds = ResourceTypes(service=True, object=True)
    end = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_account_sas(key, resource_types=kinds, permission=rights, expiry=end)
    with Azurite() as azurite:
        with table(azurite) as client:
            client.create_table()
        content = {"Content-Type": "application/json", "Accept": "application/json"}
        body = '{"PartitionKey":"p","RowKey":"r"}'
        for headers in pages:
            connection = http.client.HTTPConnection("127.0.0.1", azurite.port, timeout=60)
            path = "/things" if "Host" in headers else f"/{module.ACCOUNT}/things"
            connection.request("POST", f"{path}?{signature}", body, content | headers)
            answer = connection.getresponse()
            assert (answer.status, b"no page of a browser" in answer.read()) == (403, True)
            connection.close()
        assert azurite.child is not None
        assert "--disableTelemetry" in azurite.child.argv
        assert "--inMemoryPersistence" in azurite.child.argv
        with table(azurite) as client:
            assert list(client.list_entities()) == []


def test_the_package_is_pinned_and_its_lock_names_no_address() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    lock = json.loads((FOLDER / "package-lock.json").read_text())["packages"]
    [version] = package["dependencies"].values()
    assert version == lock["node_modules/azurite"]["version"]
    assert not [name for name, entry in lock.items() if "resolved" in entry]
    assert all("integrity" in entry for name, entry in lock.items() if name)
