"""A rehearsal: the table is lost while the app has gone on, and is restored from an export."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from azure.data.tables.aio import TableClient

from devstack.azurite import Azurite
from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables.store import TableStore
from sas.cli.main import main
from sas.deploy import backup
from tests.contract import cases
from tests.functions_rig import EVERY_SECOND, WORKED, Rig, rig, time_allowed_is_over, until

pytestmark = SHORT_PAUSES
SERVICES = ("stock", "payment", "shipping")


def quiet(_: str) -> None:
    """Print nothing."""


async def lose_table(system: Rig) -> None:
    where, table = system.azurite.connection_string, system.settings["SAS_TABLE"]
    async with TableClient.from_connection_string(where, table) as client:
        await client.delete_table()


def ten_minutes_pass(system: Rig) -> None:
    """Let the internal queues forget the ids of the messages that they had."""
    for queue in WORKED:
        if system.broker.namespace.queue(queue).properties.requires_duplicate_detection:
            system.broker.update_queue(queue, duplicate_window_s=0.05)


async def told_twice(system: Rig, order_ids: list[str]) -> None:
    """Wait until each end was told twice: before the loss of the table, and after it."""

    async def all_told() -> bool:
        kinds = [await system.kinds(order_id) for order_id in order_ids]
        return all(each.count("completed") == 2 for each in kinds)

    await until(all_told, "the notification of each end, twice")


async def test_orders_go_on_after_a_restore_and_no_service_does_anything_twice(
    tmp_path: Path,
) -> None:
    """The export is taken while orders are under way. Then they end, and newer ones too."""
    path = tmp_path / "night.jsonl.gz"
    waiting, moving = [f"R-{n}" for n in range(4)], [f"R-{n}" for n in range(4, 12)]
    async with rig() as system:
        where, table = Endpoint(system.azurite.connection_string), system.settings["SAS_TABLE"]
        async with system.host():
            await system.submit("R-ended")
            await system.ends("R-ended", "Processed")
            await system.quiet()
        async with system.host("submission", "agent_inventory"):
            for order_id in waiting:
                await system.submit(order_id)
            await system.holds("agent-payment", len(waiting))
            exporting = asyncio.create_task(backup.export(where, table, path, quiet))
            for order_id in moving:
                await system.submit(order_id)
            await exporting
        async with system.host():
            for order_id in (*waiting, *moving):
                await system.ends(order_id, "Processed")
            await system.quiet()
            assert await system.kinds("R-0") == ["received", "completed"]

        await lose_table(system)
        await backup.restore(where, table, path, quiet)
        ten_minutes_pass(system)

        states = {name: await system.state(name) for name in ("R-ended", *waiting, *moving)}
        assert states["R-ended"] == "Processed"
        assert {states[order_id] for order_id in waiting} == {"Processing"}
        exported = [order_id for order_id in (*waiting, *moving) if states[order_id]]
        with time_allowed_is_over():
            async with system.host(SAS_SUPERVISOR_SCHEDULE=EVERY_SECOND):
                for order_id in set(moving).difference(exported):
                    await system.submit(order_id)  # its application sends it again
                for order_id in (*waiting, *moving):
                    await system.ends(order_id, "Processed")
                await told_twice(system, exported)
                await system.quiet()
        for service in SERVICES:
            ledger = system.remote.ledger(service)
            assert ledger["doubled"] == []
            order_ids = sorted(effect["order_id"] for effect in ledger["effects"])
            assert order_ids == sorted(("R-ended", *waiting, *moving))
        assert await system.rejected() == []
        system.nothing_lost()


def test_the_command_exports_a_table_and_restores_it_into_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def submit(connection: str) -> None:
        store = TableStore.connect(connection, "orders")
        await store.commit(cases.submitted("C-1"))
        await store.close()

    file = str(tmp_path / "night.jsonl.gz")
    with Azurite() as azurite:
        asyncio.run(submit(azurite.connection_string))
        monkeypatch.setenv("SAS_TABLES", azurite.connection_string)
        assert main(["azd", "export", file]) == 0
        printed = capsys.readouterr().out
        account = f"127.0.0.1:{azurite.port}"
        assert printed.startswith(f"Table orders of {account}, from variables of this shell\n")
        rows = re.search(r"has all (\d+) rows of table orders", printed)
        assert rows is not None
        assert main(["azd", "restore", file]) == 1
        assert "not empty, and nothing was written" in capsys.readouterr().err
        monkeypatch.setenv("SAS_TABLE", "copy")
        assert main(["azd", "restore", file]) == 0
        assert f"is whole: {rows[1]} rows of table orders" in capsys.readouterr().out
        assert main(["show", "C-1"]) == 0
        assert main(["azd", "export", str(tmp_path / "nowhere" / "file")]) == 1
        assert main(["azd", "export"]) == 2
