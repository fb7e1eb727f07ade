"""The business of the sample: what an order must hold, what it costs, whom its agents call."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import orders
from orders.agents import (
    DeliveryAgent,
    InventoryAgent,
    InvoiceAgent,
    PaymentAgent,
    ShippingAgent,
)
from orders.content import amount_due, check
from orders.workflows import workflows
from sas.codec.strict import parse
from sas.config import SettingError
from sas.domain.workflow import OnFailure
from sas.ports import AwaitCallback, Call, Callback, RefusedError, StillRunning

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "northwind-orders.jsonl"


def content(line: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return an order's content; a member changed to None is left out."""
    members = {
        "customer_id": "ALFKI",
        "ship_to": {"name": "A", "address": "B 1", "city": "C", "country": "D"},
        "lines": [
            {"product_id": 11, "product": "Queso", "unit_price": 14.0, "quantity": 12}
            | (line or {})
        ],
    }
    return {k: v for k, v in (members | changes).items() if v is not None}


def checked(order: dict[str, Any]) -> None:
    check(json.dumps(order).encode())


def test_every_order_of_the_sample_passes_and_costs_something() -> None:
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    priced = 0
    for line in lines:
        order = json.loads(line)
        if order.pop("order_id", None) is None:
            continue
        priced += 1
        check(json.dumps(order).encode())
        assert Decimal(amount_due(order)) > 0
    assert priced == 830


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (content(customer_id=None), "customer_id"),
        (content(customer_id=""), "customer_id"),
        (content(customer_id=7), "customer_id"),
        (content(customer_id="x" * 201), "customer_id"),
        (content(ship_to={"name": "A"}), "ship_to"),
        (content(lines=[]), "lines"),
        (content(lines=[{}]), "lines"),
        (content(lines=[content()["lines"][0]] * 1001), "lines"),
        (content(lines=None), "lines"),
        (content(more=1), "more"),
        (content({"product_id": 0}), "product_id"),
        (content({"quantity": 0}), "quantity"),
        (content({"quantity": -1}), "quantity"),
        (content({"quantity": 1.5}), "quantity"),
        (content({"quantity": "1"}), "quantity"),
        (content({"quantity": 1_000_001}), "quantity"),
        (content({"unit_price": -0.01}), "unit_price"),
        (content({"unit_price": None}), "unit_price"),
        (content({"unit_price": "free"}), "unit_price"),
        (content({"discount": 1.01}), "discount"),
        (content({"discount": -0.1}), "discount"),
        (content({"colour": "red"}), "colour"),
        (content(freight=-1), "freight"),
    ],
)
def test_a_wrong_order_is_refused_with_a_sentence_that_says_where(
    order: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        checked(order)


@pytest.mark.parametrize("member", ["unit_price", "discount", "freight"])
@pytest.mark.parametrize(
    "number", ["NaN", "sNaN", "-NaN", "Infinity", "-Infinity", "1e400", "1e999999", "9" * 30]
)
def test_a_number_that_is_not_finite_or_too_long_is_refused_with_a_sentence(
    member: str, number: str
) -> None:
    order = content(freight=number) if member == "freight" else content({member: number})
    with pytest.raises(ValueError, match=member):
        checked(order)


@pytest.mark.parametrize(
    ("line", "freight", "due"),
    [
        ({}, 0, "168.00"),
        ({"discount": 0.25}, 0, "126.00"),
        ({"discount": 1}, 0, "0.00"),
        ({"unit_price": 0.1, "quantity": 3}, 0.2, "0.50"),
        ({"unit_price": 0.005, "quantity": 1}, 0, "0.01"),
        ({"unit_price": 0.004, "quantity": 1}, 0, "0.00"),
        ({"unit_price": 18.6, "quantity": 5, "discount": 0.15}, 32.38, "111.43"),
        ({"unit_price": "999999999.99", "quantity": 1_000_000}, 0, "999999999990000.00"),
    ],
)
def test_an_order_costs_its_lines_less_discounts_and_freight_to_the_cent(
    line: dict[str, Any], freight: float, due: str
) -> None:
    order = content(line, freight=freight)
    checked(order)
    assert amount_due(order) == due
    assert amount_due(parse(json.dumps(order).encode())) == due


def test_the_largest_order_there_can_be_is_still_reckoned() -> None:
    line = content({"unit_price": "999999999.99", "quantity": 1_000_000})["lines"][0]
    order = content(lines=[line] * 1000, freight="999999999.99")
    checked(order)
    assert Decimal(amount_due(order)) == Decimal("999999999.99") * (10**9 + 1)


class Service:
    """A remote service that remembers what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, Any]] = []
        self.closed = False
        self.answer: Any = {"answer": 1}

    async def call(self, method: str, path: str, *, key: str, body: Any = None) -> Any:
        self.calls.append((method, path, key, body))
        return self.answer

    async def close(self) -> None:
        self.closed = True


def call(**results: Any) -> Call:
    return Call(
        order_id="O-1",
        step="step",
        key="O-1/step",
        complete_by=datetime(2026, 1, 1, tzinfo=UTC),
        order=content(freight=1),
        results=results,
    )


async def test_stock_is_asked_for_every_line_and_the_reservation_freed_under_its_key() -> None:
    service = Service()
    agent = InventoryAgent(service)  # type: ignore[arg-type]
    assert await agent.do(call()) == {"answer": 1}
    await agent.undo(call())
    body = {"order_id": "O-1", "lines": [{"product_id": 11, "quantity": 12}]}
    assert service.calls == [
        ("POST", "/reservations", "O-1/step", body),
        ("DELETE", "/reservations", "O-1/step", None),
    ]
    await agent.close()
    assert service.closed


async def test_payment_is_asked_for_what_is_due_and_refunded_under_its_key() -> None:
    service = Service()
    agent = PaymentAgent(service)  # type: ignore[arg-type]
    await agent.do(call())
    await agent.undo(call())
    body = {"order_id": "O-1", "customer_id": "ALFKI", "amount": "169.00", "currency": "USD"}
    assert service.calls == [
        ("POST", "/charges", "O-1/step", body),
        ("DELETE", "/charges", "O-1/step", None),
    ]
    await agent.close()
    assert service.closed


async def test_shipping_is_given_the_reservation_of_the_step_before_it() -> None:
    service = Service()
    agent = ShippingAgent(service)  # type: ignore[arg-type]
    await agent.do(call(**{"reserve-stock": {"reservation_id": "r-7"}}))
    await agent.undo(call())
    ship_to = content()["ship_to"]
    body = {"order_id": "O-1", "ship_to": ship_to, "reservation_id": "r-7"}
    assert service.calls == [
        ("POST", "/shipments", "O-1/step", body),
        ("DELETE", "/shipments", "O-1/step", None),
    ]
    await agent.close()
    assert service.closed


def test_the_workflows_of_the_sample_undo_or_wait_and_ship_last() -> None:
    by_name = {workflow.name: workflow for workflow in workflows()}
    assert by_name["order"].on_failure is OnFailure.UNDO
    assert by_name["order-with-care"].on_failure is OnFailure.HOLD
    for workflow in by_name.values():
        names = [step.name for step in workflow.steps]
        assert names[:3] == ["reserve-stock", "take-payment", "ship"]
        assert all(step.undo for step in workflow.steps)
        assert workflow.rules.predecessors(2) == (0, 1)
    assert by_name["order-with-care"].rules.predecessors(1) == ()


def test_a_delivered_order_mails_its_invoice_beside_shipping_and_is_delivered_last() -> None:
    delivered = workflows().find("order-delivered")
    assert delivered.on_failure is OnFailure.UNDO
    assert [step.name for step in delivered.steps[3:]] == ["send-invoice", "deliver"]
    assert delivered.rules.predecessors(3) == (0, 1)
    assert delivered.rules.predecessors(4) == (0, 1, 2, 3)


def delivery(**answer: Any) -> tuple[Service, Call]:
    service = Service()
    service.answer = answer
    results = {"ship": {"tracking": "NW1"}, "take-payment": {"charge_id": "C-1"}}
    key = "O-1/deliver"
    return service, Call(
        order_id="O-1",
        step="deliver",
        key=key,
        complete_by=datetime(2026, 1, 1, tzinfo=UTC),
        order=content(),
        results=results,
    )


async def test_an_invoice_says_what_was_charged_and_its_undo_mails_a_credit_note() -> None:
    service, call = delivery()
    agent = InvoiceAgent(service)  # type: ignore[arg-type]
    await agent.do(call)
    await agent.undo(call)
    body = {"order_id": "O-1", "customer_id": "ALFKI", "charge_id": "C-1", "amount": "168.00"}
    assert service.calls == [
        ("POST", "/mails", "O-1/deliver", body),
        ("DELETE", "/mails", "O-1/deliver", None),
    ]


async def test_a_parcel_on_its_way_is_looked_at_again_at_the_carriers_time() -> None:
    service, call = delivery(state="on-its-way", check_after=90.5)
    reply = await DeliveryAgent(service).do(call)  # type: ignore[arg-type]
    assert reply == StillRunning(timedelta(seconds=90.5), "on its way")
    assert service.calls[0][3] == {"order_id": "O-1", "tracking": "NW1"}


async def test_a_carrier_that_calls_back_is_given_an_address_and_awaited() -> None:
    service, call = delivery(state="on-its-way", check_after=90.5)
    until = call.complete_by + timedelta(days=1)
    call_with_address = replace(call, callbacks=lambda _: Callback("t", "https://here/t", until))
    day = timedelta(days=1)
    reply = await DeliveryAgent(service, day).do(call_with_address)  # type: ignore[arg-type]
    assert isinstance(reply, AwaitCallback)
    assert reply.within == day
    assert service.calls[0][3]["answer_to"] == "https://here/t"


@pytest.mark.parametrize("tells", [None, timedelta(days=1)])
async def test_what_is_delivered_already_is_the_result(tells: timedelta | None) -> None:
    service, call = delivery(state="delivered", delivery_id="D-1")
    until = call.complete_by
    call_with_address = replace(call, callbacks=lambda _: Callback("t", None, until))
    reply = await DeliveryAgent(service, tells).do(call_with_address)  # type: ignore[arg-type]
    assert reply == {"state": "delivered", "delivery_id": "D-1"}


async def test_an_undelivered_parcel_is_sent_back() -> None:
    service, call = delivery()
    await DeliveryAgent(service).undo(call)  # type: ignore[arg-type]
    assert service.calls == [("DELETE", "/deliveries", "O-1/deliver", None)]


def test_a_carrier_that_calls_back_needs_an_address() -> None:
    services = ("STOCK", "PAYMENT", "SHIPPING", "MAIL", "CARRIER")
    env = {f"ORDERS_{name}_URL": "http://127.0.0.1:1" for name in services}
    env["ORDERS_CARRIER_TELLS_SECONDS"] = "3600"
    with pytest.raises(SettingError, match="SAS_CALLBACK_KEY and SAS_CALLBACK_URL"):
        orders.business(env)
    env |= {"SAS_CALLBACK_KEY": "k" * 32, "SAS_CALLBACK_URL": "https://app.example"}
    assert "delivery" in orders.business(env).agents


@pytest.mark.parametrize("result", [None, "P-17", {}])
@pytest.mark.parametrize(
    ("agent", "before", "name"),
    [
        (ShippingAgent, "reserve-stock", "reservation_id"),
        (InvoiceAgent, "take-payment", "charge_id"),
        (DeliveryAgent, "ship", "tracking"),
    ],
)
async def test_an_agent_refuses_a_step_whose_earlier_result_is_missing(
    agent: type[ShippingAgent | InvoiceAgent | DeliveryAgent],
    before: str,
    name: str,
    result: object,
) -> None:
    """An operator skipped the earlier step without its result: a retry cannot help."""
    service = Service()
    with pytest.raises(RefusedError, match=f"the result of {before} has no {name}") as refused:
        await agent(service).do(call(**{before: result}))  # type: ignore[arg-type]
    assert refused.value.code == "missing-result"
    assert not service.calls
