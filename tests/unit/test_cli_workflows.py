"""``sas workflows``: the check as text, the drawing, the AsyncAPI document."""

import json
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from sas import Call, Saga
from sas.cli.main import main
from sas.ports import RefusedError
from tests.unit.actors_kit import order
from tests.unit.claims_kit import OLD, ORDER, RESULT, Claim, Moved, claims
from tests.unit.cli_kit import Night
from tests.unit.contract_files import errors, load

Capture = pytest.CaptureFixture[str]
Sas = Callable[..., int]
APP = "an_app_of_this_test"


@pytest.fixture
def sas(monkeypatch: pytest.MonkeyPatch) -> Sas:
    def run(action: str, *sagas: Saga[Any], options: tuple[str, ...] = ()) -> int:
        module = ModuleType(APP)
        vars(module).update({f"saga_{number}": saga for number, saga in enumerate(sagas)})
        monkeypatch.setitem(sys.modules, APP, module)
        return main(["workflows", action, "--app", APP, *options])

    return run


def test_a_check_that_finds_trouble_ends_with_1_and_names_some_orders(night: Night) -> None:
    for number in range(4):
        night.fail(f"o-{number}", RefusedError("no", "no"))
    result = night.sas("workflows", "check", "--app", "tests.business:workflows")
    assert result.code == 1
    assert result.lines[0] == (
        "care version 1: 4 orders in flight (o-0, o-1, o-2, ...); missing: keep this version until "
        "its orders have ended"
    )
    assert "order version 1: no order in flight; not used yet" in result.lines


def test_a_workflow_is_drawn_with_agents_undos_and_alternatives(sas: Sas, capsys: Capture) -> None:
    saga = Saga("trip", Claim, version=2)

    @saga.step(agent="air")
    async def fly(call: Call[Claim]) -> str:
        raise NotImplementedError

    @fly.undo
    async def cancel(call: Call[Claim]) -> None:
        raise NotImplementedError

    @fly.alternative(agent="rail")
    async def ride(call: Call[Claim]) -> str:
        raise NotImplementedError

    @ride.undo
    async def get_off(call: Call[Claim]) -> None:
        raise NotImplementedError

    @saga.step()
    async def sleep_well(call: Call[Claim]) -> str:
        raise NotImplementedError

    @saga.step(after=(fly, sleep_well))
    async def end(call: Call[Claim], flight: str, hotel: str) -> None:
        raise NotImplementedError

    assert sas("draw", saga, claims(), options=("trip",)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "flowchart TD",
        '  subgraph w0["trip version 2"]',
        '    w0s0["fly<br>agent air or rail<br>with undo"]',
        '    w0s1["sleep-well<br>agent sleep-well<br>no undo"]',
        '    w0s2["end<br>agent end<br>no undo"]',
        "    w0s0 --> w0s2",
        "    w0s1 --> w0s2",
        "  end",
    ]
    assert sas("draw", saga, claims()) == 0
    assert 'subgraph w1["claim version 1"]' in capsys.readouterr().out


def schema_of(sas: Sas, capsys: Capture, *sagas: Saga[Any]) -> Callable[[str, Any], list[str]]:
    """Return a function that says what is wrong with the payload of a message, by its name."""
    assert sas("schema", *sagas) == 0
    api = json.loads(capsys.readouterr().out)

    def check(message: str, payload: Any) -> list[str]:
        schema = api["components"]["messages"][message]["payload"]["schema"]
        checker = Draft202012Validator({**schema, "components": api["components"]})
        return errors(checker, payload)

    for message in api["components"]["messages"].values():
        Draft202012Validator.check_schema(message["payload"]["schema"])
    for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(api)):
        assert resolved(api, reference)
    return check


class Bill(msgspec.Struct):
    """An order with an amount."""

    amount: Decimal


def resolved(api: Any, reference: str) -> Any:
    root, *parts = reference.split("/")
    assert root == "#"
    node = api
    for part in parts:
        node = node[part]
    return node


def test_a_decimal_is_a_text_or_a_number(sas: Sas, capsys: Capture) -> None:
    check = schema_of(sas, capsys, claims(order_shape=Bill))
    message = json.loads(order("o-1", workflow="claim"))
    for amount in ("18.00", 18, 18.5):
        assert check("order", {**message, "order": {"amount": amount}}) == []
        assert msgspec.json.decode(json.dumps({"amount": amount}), type=Bill).amount == Decimal(
            str(amount)
        )
    assert check("order", {**message, "order": {"amount": None}})


def test_an_order_message_keeps_to_the_type_of_its_version(sas: Sas, capsys: Capture) -> None:
    check = schema_of(sas, capsys, OLD, claims(order_shape=Moved, suffix="-2", version=2))
    message = json.loads(order("o-1", workflow="claim", order=ORDER))
    oldest = {**message, "workflow_version": 1}
    assert check("order", oldest) == []
    assert check("order", {**oldest, "order": {"employee": "Ann"}}) == [
        "$.order: 'home' is a required property"
    ]
    assert check("order", {**oldest, "reply_queue": 3})
    for newest in ({}, {"workflow_version": 2}, {"workflow_version": None}):
        assert check("order", {**message, **newest}) == [
            "$.order.home: 'street' is a required property"
        ]


def test_results_in_notifications_keep_to_their_types(
    sas: Sas, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    [completed] = [
        example
        for example in load("notification.schema.json")["examples"]
        if example["type"] == "sas.order.completed.v1"
    ]
    data = {**completed["data"], "workflow": "claim", "results": {"scan": RESULT, "pay": None}}
    good = {**completed, "data": data}
    bad = {**completed, "data": {**data, "results": {"scan": {"total": "3"}}}}
    step = {**data, "state": "Processing", "step": "scan", "result": {"total": "3"}}
    bad_step = {**completed, "type": "sas.order.step-completed.v1", "data": step}
    check = schema_of(sas, capsys, claims(notify_steps=True))
    assert check("notification", good) == []
    assert check("notification", bad)
    assert check("notification", bad_step)
    monkeypatch.setenv("SAS_PAYLOAD_KEYS", "A" * 43 + "=")
    encoded = {**completed, "data": {**data, "results": {"scan": {"$encoded": "x"}}}}
    assert schema_of(sas, capsys, OLD)("notification", encoded) == []
    assert check("notification", encoded)


def test_an_app_without_sagas_has_no_types(capsys: Capture) -> None:
    assert main(["workflows", "schema", "--app", "tests.business:workflows"]) == 2
    assert "has no types: give a module or a saga" in capsys.readouterr().err
