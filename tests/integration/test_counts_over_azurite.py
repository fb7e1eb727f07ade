"""What an order and its recoveries ask of the platform, counted over Azurite and the broker.

The same numbers as in ``tests/simulation/test_counts.py``. The functions run under the embedded
host.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from sas.adapters.servicebus import ServiceBus
from sas.adapters.table_store import TableStore
from sas.bootstrap import Application
from sas.cli import counts
from sas.domain.ids import shard_of
from sas.ports import Business, RefusedError, TransientError
from sas.telemetry.usage import Usage
from tests.functions_rig import Rig, rig
from tests.integration.broker_sdk_kit import short_pauses
from tests.simulation.counting_kit import workflows
from tests.telemetry_kit import recording
from tests.unit.actors_kit import ScriptedAgent

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["short_pauses"]  # fixtures of every test here

AGENTS = ("inventory", "payment", "shipping")
SENT = Usage(sends=1, messages=1)
"""The application's own message, which it sends itself."""


class Counted:
    """The running functions, and what they asked for."""

    def __init__(self, made: Rig, agents: Mapping[str, ScriptedAgent], app: Application) -> None:
        self.rig = made
        self.agents = agents
        self.app = app
        store, bus = app.context.store, app.context.bus
        assert isinstance(store, TableStore)
        assert isinstance(bus, ServiceBus)
        self.store, self.bus = store, bus

    def used(self) -> Usage:
        return self.store.table.meter.now() + self.bus.meter

    async def submit(self, order_id: str, end: str = "Processed", **members: Any) -> Usage:
        """Submit an order and return what it asked for until it rests in its last state."""
        before = self.used()
        await self.rig.submit(order_id, **members)
        await self.rig.ends(order_id, end)
        await self.rig.quiet()
        return self.used() - before + SENT

    async def stored(self, order_id: str, workflow: str) -> int:
        """Return the bytes of an order in the table, without its content."""
        await self.submit(order_id, workflow=workflow)
        rows = await self.store.table.rows(shard_of(order_id, 16), ("a", "~"))
        size = sum(_size(row) for row in rows if order_id in str(row["RowKey"]))
        content = (await self.rig.order(order_id)).details.payload
        return size - 2 * len(str(content))

    async def telemetry_of(self, workflow: str) -> tuple[int, int]:
        """Return the spans and the points of metrics of an order."""
        with recording() as recorded:
            await self.submit(f"T-{workflow}", workflow=workflow)
            points = sum(len(found) for found in recorded.metrics().values())
        return len(recorded.spans), points


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[Counted]:
    # Each agent looks at its circuit once a second: how often depends on the machine.
    async with rig(SAS_BREAKER_FAILURES="0") as running:
        agents = {name: ScriptedAgent() for name in AGENTS}
        business = Business(workflows(AGENTS), agents)
        with pytest.MonkeyPatch.context() as patch:
            own = SimpleNamespace(AGENTS=AGENTS, business=lambda: business)
            patch.setitem(sys.modules, "orders", own)
            async with running.host():
                app = sys.modules["function_app"].app.application()
                counted = Counted(running, agents, app)
                await counted.submit("warm")
                yield counted
        running.nothing_lost()


async def test_a_three_step_order_takes_five_requests_and_ten_messages(made: Counted) -> None:
    assert await made.submit("O-1") == counts.ORDER.usage


async def test_a_sweep_that_finds_nothing_reads_each_shard_and_takes_its_lease(
    made: Counted,
) -> None:
    await made.app.supervisor.sweep()  # the first one also checks the health
    before = made.used()
    made.app.supervisor._lease_ends_at = None
    await made.app.supervisor.sweep()
    assert made.used() - before == counts.SWEEP.usage


async def test_a_retry_inside_an_agent_writes_one_row(made: Counted) -> None:
    made.agents["shipping"].then(TransientError("busy"))
    spent = await made.submit("R-1")
    assert spent == counts.ORDER.usage + counts.RECOVERIES["retry"].usage


async def test_an_undo_of_three_steps_takes_three_transactions_more(made: Counted) -> None:
    made.agents["shipping"].then(RefusedError("sold-out", "none left"))
    spent = await made.submit("U-1", "Compensated")
    assert spent == counts.ORDER.usage + counts.RECOVERIES["undo"].usage


async def test_a_duplicate_order_is_looked_up_and_answered(made: Counted) -> None:
    await made.submit("D-1")
    assert await made.submit("D-1") == counts.RECOVERIES["duplicate"].usage


async def test_large_content_is_written_once_and_read_by_each_agent(made: Counted) -> None:
    spent = await made.submit("L-1", order={"text": "x" * 100_000})
    assert spent == counts.ORDER.usage + counts.RECOVERIES["claim check"].usage
    assert spent.storage_bytes > 100_000


async def test_an_order_leaves_no_key_and_no_content_in_the_logs(
    made: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="sas")
    await made.submit("N-1", order={"ship_to": "59 rue de l'Abbaye"})
    secrets = [part.partition("=")[2] for part in made.rig.azurite.connection_string.split(";")]
    assert caplog.records
    for record in caplog.records:
        assert max(secrets, key=len) not in record.getMessage()
        assert "rue de l'Abbaye" not in record.getMessage()


async def test_the_size_of_an_order_in_the_table_matches_the_counts(made: Counted) -> None:
    """A row's size by the rule of Table Storage: keys and names count two bytes a character."""
    three = await made.stored("S-3", "order")
    two = await made.stored("S-2", "order-of-two")
    assert three == pytest.approx(counts.STORED_BYTES_ORDER, rel=0.02)
    assert three - two == pytest.approx(counts.STORED_BYTES_STEP, rel=0.02)


async def test_the_points_of_metrics_and_the_spans_of_an_order_are_those_of_the_counts(
    made: Counted,
) -> None:
    three, two = [await made.telemetry_of(name) for name in ("order", "order-of-two")]
    assert three == (counts.SPANS_ORDER, counts.METRICS_ORDER)
    assert two == (three[0] - counts.SPANS_STEP, three[1] - counts.METRICS_STEP)
    made.app.supervisor._lease_ends_at = None
    with recording() as recorded:
        await made.app.supervisor.sweep()
        points = sum(len(found) for found in recorded.metrics().values())
    assert (len(recorded.spans), points) == (counts.SPANS_SWEEP, counts.METRICS_SWEEP)


def _size(row: Mapping[str, Any]) -> int:
    size = 4 + 2 * (len(row["PartitionKey"]) + len(row["RowKey"]))
    for name, value in row.items():
        if name not in {"PartitionKey", "RowKey"}:
            size += 8 + 2 * len(name) + _value_size(value)
    return size


def _value_size(value: Any) -> int:
    match value:
        case bool():
            return 1
        case int():
            return 4
        case str():
            return 2 * len(value) + 4
        case bytes():
            return len(value) + 4
        case datetime():
            return 8
    raise TypeError(type(value))
