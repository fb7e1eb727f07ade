"""The business of the sample: what an order must hold, what it costs, whom its agents call."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import orders
from orders import amount_due
from sas.adapters.remote import HttpService
from sas.domain.workflow import OnFailure
from sas.ports import AgentCall, HeldError, StillRunning
from tests.sample import BUSINESS, WORKFLOWS

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "northwind-orders.jsonl"


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


def test_every_order_of_the_sample_costs_something() -> None:
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    priced = [json.loads(line) for line in lines]
    assert len(priced) == 830
    for order in priced:
        del order["order_id"]
        checked(order)
        assert Decimal(due(order)) > 0


REFUSED: dict[str, list[dict[str, Any]]] = {
    "customer_id": [content(customer_id=value) for value in (None, "", 7, "x" * 201)],
    "ship_to": [content(ship_to={"name": "A"})],
    "lines": [
        *(content(lines=[]), content(lines=[{}]), content(lines=None)),
        content(lines=[content()["lines"][0]] * 1001),
    ],
    "more": [content(more=1)],
    "product_id": [content({"product_id": 0})],
    "quantity": [content({"quantity": value}) for value in (0, -1, 1.5, "1", 1_000_001)],
    "unit_price": [content({"unit_price": value}) for value in (-0.01, None, "free")],
    "discount": [content({"discount": value}) for value in (1.01, -0.1)],
    "colour": [content({"colour": "red"})],
    "freight": [content(freight=-1)],
}
NOT_FINITE_OR_TOO_LONG = (
    *("NaN", "sNaN", "-NaN", "Infinity", "-Infinity", "1e400", "1e999999"),
    "9" * 30,
)


def test_a_wrong_order_is_refused_with_a_sentence_that_says_where() -> None:
    for number in NOT_FINITE_OR_TOO_LONG:
        REFUSED["freight"].append(content(freight=number))
        for member in ("unit_price", "discount"):
            REFUSED[member].append(content({member: number}))
    for member, orders_refused in REFUSED.items():
        for order in orders_refused:
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
    by_name = {workflow.name: workflow for workflow in WORKFLOWS}
    assert by_name["order"].on_failure is OnFailure.UNDO
    assert by_name["order-with-care"].on_failure is OnFailure.HOLD
    for workflow in by_name.values():
        names = [step.name for step in workflow.steps]
        assert names[:3] == ["reserve-stock", "take-payment", "ship"]
        assert all(step.undo for step in workflow.steps)
        assert workflow.rules.predecessors(2) == (0, 1)
    assert by_name["order-with-care"].rules.predecessors(1) == ()


def test_a_delivered_order_mails_its_invoice_beside_shipping_and_is_delivered_last() -> None:
    delivered = WORKFLOWS.find("order-delivered")
    assert delivered.on_failure is OnFailure.UNDO
    assert [step.name for step in delivered.steps[3:]] == ["send-invoice", "deliver"]
    assert delivered.rules.predecessors(3) == (0, 1)
    assert delivered.rules.predecessors(4) == (0, 1, 2, 3)
