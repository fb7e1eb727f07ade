"""With `--data`, messages and rows outlive `kill -9` of everything."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.data.tables.aio import TableClient, TableServiceClient

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
    stack_of,
    until,
    up_of,
)

SENT = {f"order-{number}" for number in range(20)}


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    return make_app(tmp_path)


@asynccontextmanager
async def killed(up: Child, *, whole: bool = False) -> AsyncIterator[str]:
    """Give the screen of a stack; at the end kill `up` alone, or every process at once."""
    up.start()
    screen = ""
    try:
        screen = await screen_of(up)
        yield screen
    finally:
        if whole:
            # Freeze `up`, which would stop the others in order after the first kill.
            up.send_signal(signal.SIGSTOP)
        for pid in pids_in(screen) if whole else ():
            os.kill(pid, signal.SIGKILL)
        up.kill()
        await until(lambda: not any(is_running(pid) for pid in pids_in(screen)))


async def saved(data: Path, row: str) -> None:
    """Wait for Azurite's save, which comes every five seconds."""
    files = [data / "azurite" / "__azurite_db_table__.json"]
    await until(lambda: any(row in file.read_text() for file in files if file.exists()))


async def test_messages_and_rows_outlive_a_kill_of_the_whole_stack(app_dir: Path) -> None:
    data = app_dir / "data"
    free = ("--ports", "free", "--data", str(data))
    async with killed(up_of(app_dir, *free, "--except", "second"), whole=True) as screen:
        tables = setting_in(screen, "AzureWebJobsStorage")
        await make_table(tables)
        async with TableClient.from_connection_string(tables, "done") as table:
            await table.upsert_entity({"PartitionKey": "p", "RowKey": "before"})
        await saved(data, "before")
        await send(setting_in(screen, "MyBus"), *SENT)
        # Killed while the first function works on them: some are forwarded, some are locked.
    async with killed(up_of(app_dir, *free)) as screen:
        rows = await done(setting_in(screen, "AzureWebJobsStorage"), len(SENT) + 1)
    assert rows == SENT | {"before"}


@pytest.mark.long
async def test_killing_up_alone_loses_no_row_however_young(app_dir: Path) -> None:
    free = ("--ports", "free", "--data", str(app_dir / "data"))
    async with killed(up_of(app_dir, *free)) as screen:
        tables = setting_in(screen, "AzureWebJobsStorage")
        await make_table(tables)
        await send(setting_in(screen, "MyBus"), "young")
        await done(tables, 1)
    async with killed(up_of(app_dir, *free)) as screen:
        assert await done(setting_in(screen, "AzureWebJobsStorage"), 1) == {"young"}


@pytest.mark.long
async def test_a_stack_stopped_in_order_keeps_its_data_too(app_dir: Path) -> None:
    data = app_dir / "data"
    async with stack_of(app_dir, data=data, groups=[["first"]]) as stack:
        await make_table(stack)
        await send(stack, "kept")
    async with stack_of(app_dir, data=data) as stack:
        assert await done(stack, 1) == {"kept"}
    async with stack_of(app_dir) as stack:  # without `data` nothing remains
        assert not await tables_of(stack.storage_connection)


async def tables_of(connection: str) -> list[str]:
    async with TableServiceClient.from_connection_string(connection) as service:
        return [table.name async for table in service.list_tables()]
