"""The scenario of the demo: its orders, applications, faults and processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samples.services.faults import Faults
from sas.client import NewOrder

ORDERS_FILE = Path(__file__).parents[1] / "northwind-orders.jsonl"
ORDERS_MAX = 830
IN_FLIGHT_MAX = 60
"""Most orders in process. The applications wait for notifications, as real applications do."""

TIME_ALLOWED_S = 10
SLOW_S = 15
LATENCY_S = 0.12
DELIVERY_S = 12.0
"""The carrier takes longer than the time allowed for a step, so the step is extended."""
QUIET_S_MAX = 150.0
SETTLE_S_MAX = 90.0
"""Longest wait for messages that are on their way after the last order ended, in seconds."""
STEPS = 3
DELIVERED_EVERY = 16
"""One order of the web shop in this many is followed until its delivery."""

INLINE_AGENTS = "inventory,shipping"
"""The function that submits an order reserves its stock, and the one that takes the payment ships.
Other requests travel.
"""

RESTART_AFTER_S = 6.0

CORE = ("submission", "scheduler", "supervisor", "deadletters")
AGENTS = (
    "agent_inventory",
    "agent_payment",
    "agent_shipping",
    "agent_invoice",
    "agent_delivery",
)
GROUPS: Mapping[str, tuple[str, ...]] = {"core": CORE, "agents-1": AGENTS, "agents-2": AGENTS}
KILLS: Mapping[str, float] = {"core": 0.25, "agents-2": 0.5}
"""A process of these groups is killed, while its functions run on from many orders: when the calls
of the services reach this share of all steps.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One application: its response queue, its usual workflow, its orders."""

    name: str
    reply_queue: str
    workflow: str
    orders: list[NewOrder] = field(default_factory=list)


def applications(count: int) -> list[Application]:
    """Return the two applications with the first ``count`` orders."""
    shop = Application(name="web shop", reply_queue="responses-web-shop", workflow="order")
    wholesale = Application(
        name="wholesale", reply_queue="responses-wholesale", workflow="order-with-care"
    )
    with ORDERS_FILE.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number >= count:
                break
            application = wholesale if number % 3 == 2 else shop
            delivered = number % DELIVERED_EVERY == DELIVERED_EVERY // 2 and application is shop
            workflow = "order-delivered" if delivered else application.workflow
            application.orders.append(_order(json.loads(line), workflow))
    return [shop, wholesale]


def _order(row: dict[str, Any], workflow: str) -> NewOrder:
    order_id = row.pop("order_id")
    return NewOrder(
        order_id=order_id, order=row, workflow=workflow, correlation_id=f"basket-{order_id}"
    )


def faults(seed: int) -> Faults:
    """Return the faults of the services: 10 % transient, 2 % permanent, some too slow."""
    return Faults(
        seed=seed,
        transient=0.10,
        permanent=0.02,
        slow=0.006,
        slow_seconds=SLOW_S,
        retry_after_seconds=1,
        latency=LATENCY_S,
        delivery=DELIVERY_S,
    )


def settings(urls: Mapping[str, str]) -> dict[str, str]:
    """Return the app settings of the host processes."""
    return {
        "ORDERS_STOCK_URL": urls["stock"],
        "ORDERS_PAYMENT_URL": urls["payment"],
        "ORDERS_SHIPPING_URL": urls["shipping"],
        "ORDERS_MAIL_URL": urls["mail"],
        "ORDERS_CARRIER_URL": urls["carrier"],
        "ORDERS_TIME_ALLOWED_SECONDS": str(TIME_ALLOWED_S),
        "ORDERS_ATTEMPT_SECONDS": "30",
        "ORDERS_INLINE_AGENTS": INLINE_AGENTS,
        "SAS_SUPERVISOR_SCHEDULE": "*/2 * * * * *",
    }
