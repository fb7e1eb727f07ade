"""Trigger metadata as the extension and the host's gRPC conversion give it."""

import json
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import azure.functions as func
import pytest
from azure.functions.meta import Datum
from azure.functions.servicebus import ServiceBusMessageInConverter
from hypothesis import given
from hypothesis import strategies as st

from devstack.functions.metadata import (
    MessageMetadata,
    Metadata,
    body_bytes,
    decode_text,
    override,
)


def metadata() -> Metadata:
    properties = Datum('{"kept": 1}', "json")
    return {
        "MessageId": Datum("m1", "string"),
        "CorrelationId": Datum("true one", "string"),
        "DeliveryCount": Datum("1", "json"),
        "EnqueuedTimeUtc": Datum('"2026-03-14T12:00:00.123456"', "json"),
        "ApplicationProperties": properties,
        "UserProperties": properties,
    }


def message(body: str) -> func.ServiceBusMessage:
    trigger_metadata = metadata()
    override(trigger_metadata, body)
    decoded: Any = ServiceBusMessageInConverter.decode(
        Datum(body, "string"), trigger_metadata=trigger_metadata
    )
    assert isinstance(decoded, func.ServiceBusMessage)
    return decoded


def test_a_json_body_forges_the_metadata_whatever_the_case() -> None:
    forged = message('{"correlationID": "forged", "messageid": 7}')
    assert (forged.correlation_id, forged.message_id) == ("forged", "7")


def test_other_bodies_leave_the_metadata_alone() -> None:
    for body in (
        "correlationId=x",
        '["correlationId"]',
        '{"correlationId": null}',
        '{"correlationId": ["x"]}',
        '{"correlationId": "x"',
        '{"nested": {"correlationId": "x"}}',
        "",
        '{"correlationId": ' + "[" * 100_000 + "}",
        '{"o": {"n": ' + "9" * 5000 + '}, "correlationId": "x"}',
    ):
        assert message(body).correlation_id == "true one"


def test_a_member_named_application_properties_replaces_them_when_it_is_an_object() -> None:
    decoded: Any = message('{"applicationProperties": {"a": 1.5}}')
    assert decoded.application_properties == {"a": 1.5}
    assert decoded.user_properties == {"kept": 1}


def test_a_member_named_application_properties_that_is_not_an_object_fails_the_decoding() -> None:
    with pytest.raises(ValueError, match="ApplicationProperties"):
        message('{"ApplicationProperties": "text"}')


def test_any_kind_of_amqp_body_becomes_bytes() -> None:
    for body, expected in (
        (iter([b"a", b"b"]), b"ab"),
        (iter([]), b""),
        (None, b""),
        ("text", b"text"),
        (b"bytes", b"bytes"),
        (5, b"5"),
        (
            {b"k": [1, {b"n": b"x"}], 2: UUID(int=1)},
            b'{"k": [1, {"n": "x"}], "2": "00000000-0000-0000-0000-000000000001"}',
        ),
        (iter([[1, b"x"], [None]]), b'[[1, "x"], [null]]'),
    ):
        assert body_bytes(cast("Any", SimpleNamespace(body=body))) == expected


def test_truth_values_arrive_as_dotnet_writes_them() -> None:
    facts = metadata()
    override(facts, '{"flag": true, "number": 1.50}')
    assert (facts["flag"].value, facts["number"].value) == ("True", "1.50")


def test_utc_times_are_naive_in_the_function_as_in_azure() -> None:
    assert message("x").enqueued_time_utc == datetime(2026, 3, 14, 12, 0, 0, 123456)  # noqa: DTZ001


def test_bytes_that_are_not_text_are_mangled() -> None:
    assert decode_text(b"\xff\xfeok") == "\ufffd\ufffdok"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(body=st.dictionaries(st.text(), json_values) | json_values)
def test_no_json_body_can_make_the_override_raise_or_drop_metadata(body: object) -> None:
    facts = metadata()
    override(facts, json.dumps(body))
    assert set(metadata()) <= set(facts)
    assert all(datum.type in {"string", "json"} for datum in facts.values())


@given(body=st.text())
def test_no_text_body_can_make_the_override_raise(body: str) -> None:
    facts = metadata()
    override(facts, "{" + body + "}")
    assert set(metadata()) <= set(facts)


words = st.none() | st.text() | st.binary().map(lambda b: b.decode("latin-1"))
moments = st.none() | st.datetimes(
    min_value=datetime(1000, 1, 2),  # noqa: DTZ001  # hypothesis adds the zone
    max_value=datetime(9998, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]),
).map(lambda moment: moment.replace(fold=0))
received_messages = st.builds(
    SimpleNamespace,
    **dict.fromkeys(
        ["dead_letter_source", "content_type", "reply_to", "to", "subject", "session_id"], words
    ),
    **dict.fromkeys(["reply_to_session_id", "partition_key"], words),
    **dict.fromkeys(["message_id", "correlation_id", "lock_token"], words | st.uuids()),
    **dict.fromkeys(["enqueued_time_utc", "expires_at_utc"], moments),
    **dict.fromkeys(["delivery_count", "sequence_number"], st.none() | st.integers(0, 2**63 - 1)),
    application_properties=st.none()
    | st.dictionaries(
        st.text() | st.text().map(str.encode), json_values | st.binary() | st.uuids() | moments
    ),
)


@given(received=received_messages, body=st.binary())
def test_a_message_is_decoded_as_the_converter_of_azure_functions_decodes_its_metadata(
    received: Any, body: bytes
) -> None:
    trigger_metadata = MessageMetadata(received)
    theirs: Any = ServiceBusMessageInConverter.decode(
        Datum(body, "bytes"), trigger_metadata=dict(trigger_metadata)
    )
    ours: Any = MessageMetadata(received).decoded(body)
    assert type(ours) is type(theirs)
    assert facts(ours) == facts(theirs)


def facts(decoded: Any) -> dict[str, Any]:
    """Give every public property of a message, and its body."""
    kind = type(decoded)
    names = {name for name in dir(kind) if isinstance(getattr(kind, name), property)}
    shown = {name: repr(getattr(decoded, name)) for name in names - {"force_persistence"}}
    return shown | {"get_body": decoded.get_body()}
