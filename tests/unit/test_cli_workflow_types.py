"""``sas workflows check`` decodes the stored content of orders in flight with the app's types.

``draw`` and ``schema`` are here too, because they also begin with sagas.
"""

import json
import sys
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from sas import Call, OnFailure, Saga
from sas.adapters.payload_codec import FernetCodec
from sas.cli.main import main
from sas.domain.content import PayloadRef
from sas.ports import PayloadCodec, RefusedError
from sas.testing.store import MemoryStore
from tests.unit.actors_kit import Kit, command, kit, order
from tests.unit.cli_kit import store
from tests.unit.contract_files import errors, load
from tests.unit.test_cli_workflows import run_in_thread
from tests.unit.test_contract_asyncapi import references

__all__ = ["store"]  # a fixture of the tests here

Capture = pytest.CaptureFixture[str]
Sas = Callable[..., int]
APP = "an_app_of_this_test"


class Address(msgspec.Struct):
    """A part of an order."""

    city: str


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """An order."""

    employee: str
    home: Address


class Scan(msgspec.Struct, forbid_unknown_fields=True):
    """A result."""

    total: int
    page: str | None = None


def claims(
    order_shape: Any = Claim, result_shape: Any = Scan, suffix: str = "", **options: Any
) -> Saga[Any]:
    saga = Saga("claim", order_shape, on_failure=OnFailure.HOLD, **options)

    @saga.step(agent=f"stock{suffix}")
    async def scan(call: Call[order_shape]) -> result_shape:
        raise NotImplementedError

    @scan.undo
    async def discard(call: Call[order_shape]) -> None:
        raise NotImplementedError

    @saga.step(after=scan, agent=f"payment{suffix}")
    async def pay(call: Call[order_shape], scanned: result_shape) -> str:
        raise NotImplementedError

    return saga


@pytest.fixture
def sas(monkeypatch: pytest.MonkeyPatch) -> Sas:
    def run(action: str, *sagas: Saga[Any], options: tuple[str, ...] = ()) -> int:
        module = ModuleType(APP)
        vars(module).update({f"saga_{number}": saga for number, saga in enumerate(sagas)})
        monkeypatch.setitem(sys.modules, APP, module)
        return run_in_thread(lambda: main(["workflows", action, *options, "--app", APP]))

    return run


ORDER = {"employee": "Ann", "home": {"city": "Bern"}}
OLD = claims()


async def in_flight(
    store: MemoryStore, *ids: str, result: Any, codec: PayloadCodec | None = None
) -> Kit:
    """Put orders in flight: scan has returned this result, and pay is in Error."""
    system = kit(OLD.workflow, codec=codec)
    vars(store).update(vars(system.store))  # the command reads what the actors write
    for order_id in ids:
        system.agents["stock"].then(result)
        system.agents["payment"].then(RefusedError("no-account", "there is no such account"))
        body = order(order_id, workflow="claim", order=ORDER)
        await system.submit(body, order_id)
        await system.drain()
        assert system.states(order_id) == ["Processed", "Error"]
    return system


class Later(msgspec.Struct, forbid_unknown_fields=True):
    """A result with one optional member more."""

    total: int
    page: str | None = None
    currency: str = "CHF"


class Needy(msgspec.Struct):
    """A result with a required member more."""

    total: int
    currency: str


class Narrow(msgspec.Struct, forbid_unknown_fields=True):
    """A result without the member ``page``."""

    total: int


class Words(msgspec.Struct):
    """A result whose member has another type."""

    total: str


class Moved(msgspec.Struct):
    """An order with another address."""

    employee: str
    home: "Street"


class Bill(msgspec.Struct):
    """An order with an amount."""

    amount: Decimal


class Street(msgspec.Struct):
    """An address with a required member more."""

    city: str
    street: str


RESULT = {"total": 3, "page": "7"}
UNCHANGED = "claim version 1: 1 order in flight (o-1); unchanged\n"
HELD = (
    "claim version 1: 1 order in flight (o-1); order o-1: {}: a step that reads it would be held. "
    "Let the type take both, or give the new one a version of its own\n"
)


@pytest.mark.parametrize(
    ("new", "misfit"),
    [
        (claims(result_shape=Later), ""),
        (claims(result_shape=Scan | None), ""),
        (
            claims(result_shape=Needy),
            "the result of scan does not fit Needy: Object missing required field `currency`",
        ),
        (
            claims(result_shape=Narrow),
            "the result of scan does not fit Narrow: Object contains unknown field `page`",
        ),
        (
            claims(result_shape=Words),
            "the result of scan does not fit Words: Expected `str`, got `int` - at `$.total`",
        ),
        (
            claims(order_shape=Moved),
            "the order does not fit Moved: Object missing required field `street` - at `$.home`",
        ),
    ],
)
async def test_what_an_order_in_flight_holds_must_fit_the_types_of_the_app(
    store: MemoryStore, sas: Sas, capsys: Capture, new: Saga[Any], misfit: str
) -> None:
    await in_flight(store, "o-1", result=RESULT)
    assert sas("check", new) == (1 if misfit else 0)
    text = capsys.readouterr().out
    assert text == (HELD.format(misfit) if misfit else UNCHANGED)


async def test_as_json_each_misfit_is_named_and_as_text_the_first_one(
    store: MemoryStore, sas: Sas, capsys: Capture
) -> None:
    await in_flight(store, "o-1", "o-2", result=RESULT)
    assert sas("check", claims(result_shape=Needy), options=("--json",)) == 1
    [record] = map(json.loads, capsys.readouterr().out.splitlines())
    assert [text.partition(":")[0] for text in record["Misfits"]] == ["order o-1", "order o-2"]
    assert sas("check", claims(result_shape=Needy)) == 1
    assert "`currency` (and 1 more): a step that reads it would be held" in capsys.readouterr().out


async def test_a_large_result_is_read_from_its_own_row(store: MemoryStore, sas: Sas) -> None:
    system = await in_flight(store, "o-1", result={"total": 3, "page": "7" * 100_000})
    assert isinstance(system.order("o-1").steps[0].result, PayloadRef)
    assert sas("check", claims()) == 0
    assert sas("check", claims(result_shape=Narrow)) == 1


async def test_a_result_that_a_skip_left_out_is_missing_unless_the_order_is_undone(
    store: MemoryStore, sas: Sas, capsys: Capture
) -> None:
    system = await in_flight(store, "o-1", result=None)
    assert sas("check", OLD) == 1
    assert "the result of scan does not fit Scan: " in capsys.readouterr().out
    system.agents["stock"].then(RefusedError("no", "no"))
    await system.hand(command("undo", system.order("o-1").seq, order_id="o-1"))
    await system.drain()
    assert system.state("o-1") == "Error"
    assert sas("check", OLD) == 0


async def test_encoded_content_is_compared_only_with_its_codec(
    store: MemoryStore, sas: Sas, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "A" * 43 + "="
    await in_flight(store, "o-1", result=RESULT, codec=FernetCodec([key]))
    assert sas("check", claims(result_shape=Needy)) == 0
    monkeypatch.setenv("SAS_PAYLOAD_KEYS", key)
    assert sas("check", claims(result_shape=Needy)) == 1
    assert sas("check", claims(result_shape=Later)) == 0


# Draw


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


def test_draw_names_the_workflows_there_are(sas: Sas, capsys: Capture) -> None:
    assert sas("draw", OLD, options=("trip",)) == 2
    assert capsys.readouterr().err == "sas: there is no workflow 'trip': known are claim\n"
    assert sas("schema", OLD, options=("claim",)) == 2
    assert "only draw takes the name of a workflow" in capsys.readouterr().err


# Schema


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
    assert all(reference.startswith("#/") for reference in references(api))
    assert all(resolved(api, reference) for reference in references(api))
    return check


def resolved(api: Any, reference: str) -> Any:
    node = api
    for part in reference.split("/")[1:]:
        node = node[part]
    return node


def test_an_order_message_keeps_to_the_type_of_its_workflow(sas: Sas, capsys: Capture) -> None:
    check = schema_of(sas, capsys, OLD)
    message = json.loads(order("o-1", workflow="claim", order=ORDER))
    assert check("order", message) == []
    assert check("order", {**message, "order": {"employee": "Ann"}}) == [
        "$.order: 'home' is a required property"
    ]
    assert check("order", {**message, "reply_queue": 3})


def test_a_decimal_is_a_text_or_a_number(sas: Sas, capsys: Capture) -> None:
    check = schema_of(sas, capsys, claims(order_shape=Bill))
    message = json.loads(order("o-1", workflow="claim"))
    for amount in ("18.00", 18, 18.5):
        assert check("order", {**message, "order": {"amount": amount}}) == []
        assert msgspec.json.decode(json.dumps({"amount": amount}), type=Bill).amount == Decimal(
            str(amount)
        )
    assert check("order", {**message, "order": {"amount": None}})


def test_each_version_has_its_own_types(sas: Sas, capsys: Capture) -> None:
    check = schema_of(sas, capsys, OLD, claims(order_shape=Moved, suffix="-2", version=2))
    message = json.loads(order("o-1", workflow="claim", order=ORDER))
    assert check("order", {**message, "workflow_version": 1}) == []
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
