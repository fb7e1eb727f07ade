"""Counts what an order costs: requests to Table Storage and messages, by queue.

python -m tools.infra_count [ORDERS]: the real actors and the real table adapter over Azurite,
messages in memory, no faults, one order after the other. docs/scale.md has what it printed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from devstack.azurite import Azurite
from orders.workflows import workflows
from sas.adapters.clock import SystemClock
from sas.adapters.table_store import TableStore
from sas.bootstrap import Application, assemble
from sas.config import read_config
from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from sas.ports import Business, Call, Clock, Message
from sas.simulation.bus import MemoryBus

ORDERS = Path(__file__).parents[1] / "samples" / "northwind-orders.jsonl"
AGENTS = ("inventory", "payment", "shipping", "invoice", "delivery")
QUEUES = Queues()
REPLY = "responses-web-shop"
Handler = Callable[[Delivery], Awaitable[Any]]


class CountingBus(MemoryBus):
    """A bus in memory that counts messages by queue."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.by_queue: Counter[str] = Counter()

    async def send(self, messages: Any) -> None:
        """Send and count."""
        self.by_queue.update(message.queue for message in messages)
        await super().send(messages)


class WillingAgent:
    """A remote service that always does what it is asked, at once."""

    async def do(self, call: Call) -> Any:
        """Do it."""
        return {"done": call.key}

    async def undo(self, call: Call) -> Any:
        """Undo it."""
        return {"undone": call.key}

    async def close(self) -> None:
        """Hold no resource."""


def wire(store: TableStore, bus: CountingBus, clock: Clock) -> Application:
    """Return the application over the given adapters."""
    business = Business(workflows(timedelta(seconds=60)), {name: WillingAgent() for name in AGENTS})
    settings = read_config({"ServiceBus": "Endpoint=sb://count", "SAS_TABLES": "AccountName=count"})
    return assemble(store, bus, clock, business, settings)


def handlers(app: Application) -> dict[str, Handler]:
    """Return what handles each queue."""
    made: dict[str, Handler] = {
        QUEUES.orders: app.submitter.handle,
        QUEUES.scheduler: app.scheduler.handle,
        QUEUES.replies: app.scheduler.handle_reply,
    }
    return made | {QUEUES.agent(name): agent.handle for name, agent in app.agents.items()}


async def run(connection: str, lines: list[str], clock: Clock | None = None) -> dict[str, Any]:
    """Play the orders and return what was counted, per order."""
    clock = clock or SystemClock()
    bus = CountingBus(clock)
    store = TableStore.connect(connection, "counted")
    app = wire(store, bus, clock)
    by_queue = handlers(app)
    bus.declare(*by_queue, REPLY, QUEUES.alerts, QUEUES.rejected)
    await store.open()
    requests: Counter[str] = Counter()
    for line in lines:
        given = json.loads(line)
        body: dict[str, Any] = {"order_id": given["order_id"], "workflow": "order"}
        body["reply_queue"] = REPLY
        body["order"] = {key: value for key, value in given.items() if key != "order_id"}
        sent = Message(QUEUES.orders, str(given["order_id"]), json.dumps(body).encode())
        await bus.send([sent])
        while await _round(by_queue, bus, store, requests):
            pass
    await app.supervisor.sweep()  # it looks for what is wrong with the system, once a minute
    swept = store.requests
    await app.supervisor.sweep()
    swept = store.requests - swept
    rows = store.table.meter
    await app.close()
    count = len(lines)
    return {
        "storage requests per order": {q: n / count for q, n in requests.items()},
        "storage requests per order, all": sum(requests.values()) / count,
        "rows written per order": rows.entities_written / count,
        "rows read per order": rows.entities_read / count,
        "messages per order": {q: n / count for q, n in bus.by_queue.items()},
        "messages per order, all": sum(bus.by_queue.values()) / count,
        "storage requests of a sweep that finds nothing": swept,
    }


async def _round(
    by_queue: dict[str, Handler], bus: CountingBus, store: TableStore, requests: Counter[str]
) -> bool:
    """Let every queue hand out one message; False where none had any."""
    moved = [await _step(queue, each, bus, store, requests) for queue, each in by_queue.items()]
    return any(moved)


async def _step(
    queue: str, handle: Handler, bus: CountingBus, store: TableStore, requests: Counter[str]
) -> bool:
    message = bus.take(queue)
    if message is None:
        return False
    before = store.requests
    await handle(Delivery(message.body, message.message_id, queue))
    requests[queue] += store.requests - before
    return True


def main() -> None:
    """Count and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    lines = ORDERS.read_text().splitlines()[:count]
    with Azurite() as azurite:
        found = asyncio.run(run(azurite.connection_string, lines))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
