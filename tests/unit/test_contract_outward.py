"""The schemas of outgoing messages, compared with the messages that are really sent."""

from __future__ import annotations

import copy
import json
import shlex
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.codec import external
from sas.codec.external import (
    AlertMessage,
    Error,
    Notification,
    NotificationData,
    RejectedMessage,
    Rejection,
    decode_notification,
    event_type,
    rejected_message,
)
from sas.codec.strict import MalformedError
from sas.config import read_config
from sas.domain.messages import AlertKind, Notice
from sas.domain.order import OrderState
from sas.domain.queues import Queues
from sas.engine.messages import Addresses, alert, notification
from sas.testing.platform import QUEUES, REPLIES_TO
from tests.command_line import check_command
from tests.each import each
from tests.unit.contract_files import closed, errors, load, validator

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
NOTIFICATION = closed("notification.schema.json")
ALERT = closed("alert.schema.json")
REJECTED = closed("rejected-message.schema.json")


@each(
    [
        (Notification, "notification.schema.json", None),
        (NotificationData, "notification.schema.json", "data"),
        (AlertMessage, "alert.schema.json", None),
        (RejectedMessage, "rejected-message.schema.json", None),
        (Error, "notification.schema.json", "error"),
    ]
)
def test_the_schema_names_the_members_that_the_code_writes_and_no_other(
    struct: type[msgspec.Struct], name: str, where: str | None
) -> None:
    code = msgspec.json.schema(struct)["$defs"][struct.__name__]
    schema = load(name)
    published = schema["$defs"]["data" if where == "error" else where] if where else schema
    if where == "error":
        published = published["properties"]["error"]
    assert published["properties"].keys() == code["properties"].keys()
    always = {field.encode_name for field in msgspec.structs.fields(struct) if field.required}
    if struct is Notification:
        always |= {"specversion", "datacontenttype"}  # constants, written always
    assert set(published["required"]) == always


def test_every_kind_that_the_code_knows_is_published_and_no_other() -> None:
    properties = load("notification.schema.json")["properties"]
    assert properties["type"]["enum"] == [event_type(notice) for notice in Notice]
    data = load("notification.schema.json")["$defs"]["data"]["properties"]
    assert data["state"]["enum"] == [state.value for state in OrderState]
    assert load("alert.schema.json")["properties"]["kind"]["enum"] == [k.value for k in AlertKind]


def test_the_source_is_a_uri_reference() -> None:
    settings = {"ServiceBus": "Endpoint=sb://x", "SAS_TABLES": "AccountName=x"}
    source = read_config(settings).source
    assert NOTIFICATION.evolve(schema={"type": "string", "format": "uri-reference"}).is_valid(
        source
    )
    assert load("notification.schema.json")["examples"][0]["source"] == source


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAMES = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=40)
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)
JSON_RESULTS = st.sampled_from(
    [msgspec.UNSET, *map(msgspec.Raw, (b"null", b"1.10", b'"x"', b"[]", b'{"a":[{}]}'))]
)
KNOWN = {"workflow": NAMES, "version": st.integers(0, 99), "seq": st.integers(0, 10**9)}
ERRORS = st.builds(Error, code=TEXTS, message=TEXTS)
RESULTS = st.dictionaries(NAMES, JSON_RESULTS.filter(lambda r: r is not msgspec.UNSET), max_size=3)
BY_NOTICE: dict[Notice, st.SearchStrategy[NotificationData]] = {
    Notice.RECEIVED: st.builds(NotificationData, order_id=IDS, state=st.just("Pending"), **KNOWN)
    | st.builds(
        NotificationData,
        order_id=IDS,
        state=st.sampled_from([state.value for state in OrderState]),
        duplicate=st.just(True),
        **KNOWN,
    ),
    Notice.STEP_COMPLETED: st.builds(
        NotificationData,
        order_id=IDS,
        state=st.just("Processing"),
        step=NAMES,
        result=JSON_RESULTS,
        **KNOWN,
    ),
    Notice.COMPLETED: st.builds(
        NotificationData, order_id=IDS, state=st.just("Processed"), results=RESULTS, **KNOWN
    )
    | st.builds(
        NotificationData,
        order_id=IDS,
        state=st.just("Processed"),
        results_omitted=st.just(True),
        **KNOWN,
    ),
    Notice.FAILED: st.builds(
        NotificationData,
        order_id=IDS,
        state=st.just("Error"),
        step=st.none() | NAMES,
        error=ERRORS,
        awaits=st.sampled_from(["undo", "operator"]),
        **KNOWN,
    ),
    Notice.UNDONE: st.builds(NotificationData, order_id=IDS, state=st.just("Compensated"), **KNOWN),
    Notice.REJECTED: st.builds(
        NotificationData, order_id=TEXTS, state=st.just("Rejected"), error=ERRORS
    ),
}


def composed(notice: Notice, data: NotificationData) -> Any:
    to = Addresses(Queues(), "/scheduler-agent-supervisor")
    message = notification(
        notice, data, own_id="rejected/1/told", reply_queue=REPLIES_TO, at=AT, to=to
    )
    decode_notification(message.body)
    return json.loads(message.body)


@pytest.mark.parametrize("notice", Notice)
@given(st.data())
def test_any_notification_of_its_kind_keeps_to_the_contract(
    notice: Notice, data: st.DataObject
) -> None:
    correlation_id = data.draw(st.none() | IDS)
    sample = data.draw(BY_NOTICE[notice])
    value = composed(notice, msgspec.structs.replace(sample, correlation_id=correlation_id))
    assert errors(NOTIFICATION, value) == []
    assert value.get("correlationid") == correlation_id


EXAMPLES = {example["type"]: example for example in load("notification.schema.json")["examples"]}


def test_every_type_of_notification_has_an_example() -> None:
    assert list(EXAMPLES) == [event_type(notice) for notice in Notice]
    for example in EXAMPLES.values():
        assert errors(NOTIFICATION, example) == []
        body = external.encode(decode_notification(json.dumps(example).encode()))
        assert json.loads(body) == example


BAD_MEMBERS: dict[str, Any] = {
    "id": [7, None, {}],
    "source": [7, None],
    "type": [7, None],
    "subject": [7, None],
    "time": [7, None],
    "specversion": [1, None],
    "datacontenttype": [0, None],
    "correlationid": [7, None],
    "data": [7, None, "x", [], {}, {"order_id": "A"}, {"state": "Pending"}],
}
BAD_DATA: dict[str, Any] = {
    "order_id": [7, None],
    "state": [7, None],
    "workflow": [7],
    "version": ["1", 1.5],
    "seq": ["1", 1.5],
    "step": [7],
    "results": [7, []],
    "results_omitted": ["yes", 1],
    "error": [7, {}, {"code": "x"}, {"code": "x", "message": 7}],
    "awaits": ["coffee", 7],
    "duplicate": [1, "no"],
    "correlation_id": [7],
}


@each(list(EXAMPLES))
def test_code_and_schema_both_refuse_a_notification_with_a_wrong_or_missing_member(
    kind: str,
) -> None:
    bad_values = [
        EXAMPLES[kind] | {name: value} for name, values in BAD_MEMBERS.items() for value in values
    ] + [
        EXAMPLES[kind] | {"data": EXAMPLES[kind]["data"] | {name: value}}
        for name, values in BAD_DATA.items()
        for value in values
    ]
    lacking_values = [
        {key: value for key, value in EXAMPLES[kind].items() if key != name}
        for name in ("id", "source", "type", "time", "data")
    ]
    for value in bad_values + lacking_values:
        assert not NOTIFICATION.is_valid(value), value
        with pytest.raises(MalformedError):
            decode_notification(json.dumps(value).encode())


@each(
    [
        ("received", {"state": "Processed"}),
        ("step-completed", {"step": None}),
        ("completed", {"results": None}),
        ("completed", {"results_omitted": True}),
        ("completed", {"state": "Error"}),
        ("failed", {"awaits": None}),
        ("failed", {"error": None}),
        ("undone", {"state": "Processed"}),
        ("rejected", {"error": None}),
        ("undone", {"seq": None}),
    ]
)
def test_the_schema_distinguishes_the_kinds(kind: str, change: dict[str, Any]) -> None:
    value = copy.deepcopy(EXAMPLES[event_type(Notice(kind))])
    for name, content in change.items():
        value["data"][name] = content
        if content is None:
            del value["data"][name]
    assert not NOTIFICATION.is_valid(value)


def test_applications_need_not_fear_members_that_are_added_later() -> None:
    for example in EXAMPLES.values():
        later = example | {"traceparent": "00-1-2-03", "data": example["data"] | {"more": 1}}
        assert validator("notification.schema.json").is_valid(later)
        assert decode_notification(json.dumps(later).encode()).id == example["id"]


@given(
    st.binary(max_size=300) | st.just(b"\x00\xff" * 70_000),
    st.none() | TEXTS,
    st.none() | IDS,
)
def test_any_rejected_message_keeps_to_the_contract(
    body: bytes, order_id: str | None, correlation_id: str | None
) -> None:
    rejection = Rejection(
        body=body,
        reason="not-json",
        description="say it in JSON",
        source_queue="orders",
        message_id="m",
        order_id=order_id,
        correlation_id=correlation_id,
    )
    for bytes_max in (external.KEPT_BYTES_MAX, 10):
        message = rejected_message(rejection, at=AT, own_id="rejected/1/1", bytes_max=bytes_max)
        assert errors(REJECTED, json.loads(external.encode(message))) == []


NO_COMMAND = {AlertKind.CLEARED: "the incident is over: nothing is left to do"}


@each(AlertKind)
def test_an_alert_of_every_kind_names_a_command_that_can_be_typed_or_has_a_reason(
    kind: AlertKind,
) -> None:
    body = AlertMessage(
        kind=kind.value,
        at="2026-03-01T12:00:00.000000Z",
        text="look",
        id="x/alert",
        order_id="A b",
        workflow="care",
        agent="payment",
    )
    record = json.loads(alert(body, Addresses(QUEUES, "/orders")).body)
    assert errors(ALERT, record) == []
    if kind in NO_COMMAND:
        assert "command" not in record
        return
    program, *arguments = shlex.split(record["command"])
    assert program == "sas"
    check_command(arguments)


@pytest.mark.parametrize(("order_id", "command"), [(None, "sas status"), ("O-1", "sas show O-1")])
def test_unreadable_rows_lead_to_their_order_or_to_the_incidents(
    order_id: str | None, command: str
) -> None:
    body = AlertMessage(
        kind="unreadable", at="t", text="look", id="x", scope="supervisor", order_id=order_id
    )
    assert json.loads(alert(body, Addresses(QUEUES, "/o")).body)["command"] == command
