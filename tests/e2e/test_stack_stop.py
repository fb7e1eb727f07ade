"""This app on a whole stack: it ends in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from devstack.stack import Stack
from sas.client import NewOrder, OrdersClient
from tests.functions_rig import ROOT, northwind


async def test_a_kind_stop_closes_every_connection_of_this_system(tmp_path: Path) -> None:
    core = {"core": ["submission", "scheduler"]}
    async with Stack(ROOT, logs=tmp_path, groups=core, drain_s=60) as stack:
        connection = stack.host_settings()["ServiceBus"]
        async with OrdersClient(connection, reply_queue="responses-web-shop") as shop:
            await shop.submit(NewOrder(order_id="A-1", order=northwind()))
        [host] = stack.processes
        log = host.log_path
        async with asyncio.timeout(120):
            while "Executed 'Functions.submission' (Succeeded" not in log.read_text():  # noqa: ASYNC110  a process is asked
                await asyncio.sleep(0.02)
    assert host.exit_code == 0
    assert "Stopping: " in log.read_text()
    assert [line for line in log.read_text().splitlines() if "asyncio" in line] == []
