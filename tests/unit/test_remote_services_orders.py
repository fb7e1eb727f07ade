"""The sample's orders are what the README says they are, and the services can take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samples.services.contract import CONTRACTS, decode, fingerprint

ORDERS = Path(__file__).parents[2] / "samples" / "northwind-orders.jsonl"


@pytest.fixture(scope="module")
def orders() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ORDERS.read_text("utf-8").splitlines()]


def test_there_are_830_orders_each_with_an_id_of_its_own(orders: list[dict[str, Any]]) -> None:
    assert len(orders) == 830
    assert len({order["order_id"] for order in orders}) == 830


def test_every_order_fits_the_bodies_of_stock_and_shipping(orders: list[dict[str, Any]]) -> None:
    for order in orders:
        order_id = order["order_id"]
        reservation = {"order_id": order_id, "lines": order["lines"]}
        shipment = {"order_id": order_id, "ship_to": order["ship_to"], "reservation_id": "R-1"}
        stock = decode(json.dumps(reservation).encode(), CONTRACTS["stock"])
        shipping = decode(json.dumps(shipment).encode(), CONTRACTS["shipping"])
        assert (stock.order_id, shipping.order_id) == (order_id, order_id)


def test_the_same_content_written_otherwise_has_the_same_fingerprint() -> None:
    first = b'{"order_id":"a","customer_id":"X","amount":"1.00","currency":"EUR"}'
    other = b'{ "currency":"EUR", "amount":"1.00", "customer_id":"\\u0058", "order_id":"a" }'
    third = first.replace(b"1.00", b"1.01")
    payment = CONTRACTS["payment"]
    assert fingerprint(decode(first, payment)) == fingerprint(decode(other, payment))
    assert fingerprint(decode(first, payment)) != fingerprint(decode(third, payment))
