"""The business of the sample: what an order must hold, what it costs, whom its agents call."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import orders
from orders import amount_due
from sas.adapters.remote import HttpService
from sas.domain.workflow import OnFailure
from sas.ports import AgentCall, HeldError, StillRunning
from tests.sample import BUSINESS, WORKFLOWS

SHIP_TO = {"name": "A", "address": "B 1", "city": "C", "country": "D"}
SHIP_TO_WHOLE = SHIP_TO | {"postal_code": None, "region": None}
SHAPES = {
    "reserve-stock": orders.Reservation,
    "take-payment": orders.Charge,
    "ship": orders.Shipment,
    "send-invoice": orders.Mail,
    "deliver": orders.Parcel,
}


def content(line: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return an order's content; a member changed to None is left out."""
    members = {
        "customer_id": "ALFKI",
        "ship_to": SHIP_TO,
        "lines": [
            {"product_id": 11, "product": "Queso", "unit_price": 14.0, "quantity": 12}
            | (line or {})
        ],
    }
    return {k: v for k, v in (members | changes).items() if v is not None}


def checked(order: dict[str, Any]) -> None:
    BUSINESS.checks["order", 1](json.dumps(order).encode())


def due(order: dict[str, Any]) -> str:
    return amount_due(msgspec.json.decode(json.dumps(order), type=orders.OrderContent))


def test_a_wrong_order_is_refused_with_a_sentence_that_says_where() -> None:
    """Which values are wrong: tests/orders/test_order_content.py."""
    for member, order in {
        "customer_id": content(customer_id=None),
        "ship_to": content(ship_to={"name": "A"}),
        "lines": content(lines=[]),
        "more": content(more=1),
        "quantity": content({"quantity": 1_000_001}),
        "unit_price": content({"unit_price": "NaN"}),
        "discount": content({"discount": 1.01}),
        "colour": content({"colour": "red"}),
        "freight": content(freight="1e999999"),
    }.items():
        with pytest.raises(ValueError, match=member):
            checked(order)


def test_an_order_costs_its_lines_less_discounts_and_freight_to_the_cent() -> None:
    for line, freight, amount in (
        ({}, 0, "168.00"),
        ({"discount": 0.25}, 0, "126.00"),
        ({"discount": 1}, 0, "0.00"),
        ({"unit_price": 0.1, "quantity": 3}, 0.2, "0.50"),
        ({"unit_price": 0.005, "quantity": 1}, 0, "0.01"),
        ({"unit_price": 0.004, "quantity": 1}, 0, "0.00"),
        ({"unit_price": 18.6, "quantity": 5, "discount": 0.15}, 32.38, "111.43"),
        ({"unit_price": "999999999.99", "quantity": 1_000_000}, 0, "999999999990000.00"),
    ):
        order = content(line, freight=freight)
        checked(order)
        assert due(order) == amount


def test_the_largest_order_there_can_be_is_still_reckoned() -> None:
    line = content({"unit_price": "999999999.99", "quantity": 1_000_000})["lines"][0]
    order = content(lines=[line] * 1000, freight="999999999.99")
    checked(order)
    assert Decimal(due(order)) == Decimal("999999999.99") * (10**9 + 1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, Any]]:
    """Let every service answer, and return the list of calls: method, path, key, body."""
    calls_made: list[tuple[str, str, str, Any]] = []

    async def answer(
        _service: HttpService, method: str, path: str, *, key: str, body: Any = None
    ) -> Any:
        calls_made.append((method, path, key, body))
        return ANSWERS[path]

    monkeypatch.setattr(HttpService, "call", answer)
    return calls_made


ANSWERS: dict[str, Any] = {
    "/reservations": {"reservation_id": "r-7"},
    "/charges": {"charge_id": "c-7"},
    "/shipments": {"shipment_id": "s-7", "tracking": "NW1"},
    "/mails": {"mail_id": "m-7"},
    "/deliveries": {"delivery_id": "d-7", "state": "delivered"},
}
RESULTS: dict[str, Any] = {
    "reserve-stock": ANSWERS["/reservations"],
    "take-payment": ANSWERS["/charges"],
    "ship": ANSWERS["/shipments"],
    "send-invoice": ANSWERS["/mails"],
}
AT = datetime(2026, 1, 1, tzinfo=UTC)


def call(step: str, workflow: str = "order-delivered") -> AgentCall:
    return AgentCall(
        order_id="O-1",
        workflow=workflow,
        step=step,
        key=f"O-1/{step}",
        complete_by=AT,
        order=content(freight=1),
        results={name: result for name, result in RESULTS.items() if name != step},
    )


ASKED: list[tuple[str, str, str, Any]] = [
    (
        *("inventory", "reserve-stock", "/reservations"),
        {"lines": [{"product_id": 11, "quantity": 12}]},
    ),
    (
        *("payment", "take-payment", "/charges"),
        {"customer_id": "ALFKI", "amount": "169.00", "currency": "USD"},
    ),
    ("shipping", "ship", "/shipments", {"reservation_id": "r-7", "ship_to": SHIP_TO_WHOLE}),
    (
        *("invoice", "send-invoice", "/mails"),
        {"customer_id": "ALFKI", "charge_id": "c-7", "amount": "169.00"},
    ),
    ("delivery", "deliver", "/deliveries", {"tracking": "NW1"}),
]


async def test_each_service_is_asked_for_its_part_and_undoes_it_under_the_same_key(
    calls: list[tuple[str, str, str, Any]],
) -> None:
    for agent, step, path, body in ASKED:
        calls.clear()
        answer = msgspec.to_builtins(msgspec.convert(ANSWERS[path], SHAPES[step]))
        assert await BUSINESS.agents[agent].do(call(step)) == answer
        await BUSINESS.agents[agent].undo(call(step))
        key = f"O-1/{step}"
        assert calls == [
            ("POST", path, key, {"order_id": "O-1", **body}),
            ("DELETE", path, key, None),
        ]


async def test_the_payment_of_an_order_with_care_waits_for_no_reservation(
    calls: list[tuple[str, str, str, Any]],
) -> None:
    await BUSINESS.agents["payment"].do(call("take-payment", "order-with-care"))
    assert calls[0][:2] == ("POST", "/charges")


async def test_a_parcel_on_its_way_is_looked_at_again_at_the_carriers_time(
    calls: list[tuple[str, str, str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: dict[str, Any] = {"state": "on-its-way", "check_after": 90.5}
    monkeypatch.setitem(ANSWERS, "/deliveries", answer)
    reply = await BUSINESS.agents["delivery"].do(call("deliver"))
    assert reply == StillRunning(timedelta(seconds=90.5), "on its way")
    for check_after in (0, -1, 1e300):  # a time that is none is no bug of ours: a person looks
        answer["check_after"] = check_after
        with pytest.raises(HeldError, match="does not fit Parcel"):
            await BUSINESS.agents["delivery"].do(call("deliver"))
    assert len(calls) == 4


def test_the_workflows_of_the_sample_undo_or_wait_and_ship_last() -> None:
    for name, on_failure, more in (
        ("order", OnFailure.UNDO, []),
        ("order-with-care", OnFailure.HOLD, []),
        ("order-delivered", OnFailure.UNDO, ["send-invoice", "deliver"]),
    ):
        workflow = WORKFLOWS.find(name)
        assert workflow.on_failure is on_failure
        steps = ["reserve-stock", "take-payment", "ship", *more]
        assert [step.name for step in workflow.steps] == steps
        assert all(step.undo for step in workflow.steps[:3])
        assert workflow.rules.predecessors(2) == (0, 1)
    assert WORKFLOWS.find("order-with-care").rules.predecessors(1) == ()
    delivered = WORKFLOWS.find("order-delivered").rules
    assert delivered.predecessors(3) == (0, 1)
    assert delivered.predecessors(4) == (0, 1, 2, 3)
