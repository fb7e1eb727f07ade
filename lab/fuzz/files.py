"""The entry point of a file of orders: what ``sas submit`` reads and sends, submission accepts."""

from __future__ import annotations

import contextlib
import io
import json
import random
from functools import cache
from typing import Any

from lab.fuzz.mutation import body_of, broken
from lab.fuzz.scene import Scene
from sas.client import InvalidOrderError, OrdersClient
from sas.codec.orders import parse_order
from sas.operate.submissions import Defaults, InputError, read_items
from sas.testing.platform import REPLIES_TO

Parts = dict[str, Any]
DEFAULTS = Defaults(REPLIES_TO, lambda: "order")
BUS = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=a2V5"
ORDERS: tuple[Any, ...] = (
    {"order_id": "N-1", "lines": [{"product_id": 1, "quantity": 2}], "freight": 1.5},
    {"order_id": "N-2", "workflow": "order", "order": {"lines": []}, "correlation_id": "c"},
    {
        "order_id": "N-3",
        "workflow": "order",
        "order": {},
        "submission_id": "s",
        "workflow_version": 1,
    },
)


def orders_parts(_scene: Scene, rng: random.Random) -> Parts:
    """Return a file for ``sas submit``: an object over several lines, or JSON Lines."""
    orders = [rng.choice(ORDERS) for _ in range(rng.choice([1, 1, 2, 3]))]
    if rng.random() < 0.2:
        return {"file": broken(json.dumps(orders[0], indent=1).encode(), rng)}
    return {"file": b"\n".join(body_of(order, rng) for order in orders)}


async def check_orders(parts: Parts, _scene: Scene) -> None:
    """Read a file of orders, and make the messages that would be sent."""
    client = _client()
    with contextlib.suppress(InputError, InvalidOrderError):
        for index, item in enumerate(read_items(io.BytesIO(parts["file"]), DEFAULTS)):
            message, receipt = client._message(index, item.order)
            order = parse_order(b"".join(message.body), receipt.submission_id)
            assert order.order_id == item.order.order_id


@cache
def _client() -> OrdersClient:
    return OrdersClient(BUS, reply_queue=REPLIES_TO)
