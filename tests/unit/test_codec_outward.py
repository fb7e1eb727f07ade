from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from datetime import UTC, datetime
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.codec import external
from sas.codec.external import (
    KEPT_BYTES_MAX,
    WHOLE_BYTES_MAX,
    AlertMessage,
    Error,
    Notification,
    NotificationData,
    RejectedMessage,
    Rejection,
    decode_notification,
    encode,
    event_type,
    notice_of,
    rejected_body,
    rejected_message,
)
from sas.codec.internal import INLINE_BYTES_MAX
from sas.codec.orders import ORDER_BYTES_MAX
from sas.codec.strict import MalformedError
from sas.domain.messages import Notice
from tests.each import each

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def rejection(body: bytes) -> Rejection:
    return Rejection(
        body=body,
        reason="not-json",
        description="d" * 1000,
        source_queue="orders",
        message_id="m" * 128,
        order_id="o" * 260,
        correlation_id="c" * 128,
    )


def kept(body: bytes, bytes_max: int = WHOLE_BYTES_MAX) -> RejectedMessage:
    return rejected_message(rejection(body), at=AT, own_id="rejected/1", bytes_max=bytes_max)


BODIES = {
    "empty": b"",
    "one byte": b"x",
    "small": b'{"order_id": 1}',
    "binary": bytes(range(256)),
    "big text": b"abcdefg " * 40_000,
    "big binary": bytes(range(256)) * 1200,
    "all escapes": b"\x01" * 300_000,
    "some escapes": b"\x01" * 20_480,
    "as long as is kept": b"x" * KEPT_BYTES_MAX,
    "one byte more": b"x" * (KEPT_BYTES_MAX + 1),
    "quotes": b'"\\' * 130_000,
    "wide characters": "🙂ü".encode() * 50_000,
    "not quite UTF-8": b"x" * 250_000 + b"\xff",
}


@each(product(list(BODIES), [KEPT_BYTES_MAX, WHOLE_BYTES_MAX]))
def test_of_a_rejected_body_the_first_bytes_are_kept_with_the_size_and_hash_of_the_whole(
    name: str, bytes_max: int
) -> None:
    body = BODIES[name]
    message = json.loads(encode(kept(body, bytes_max)))
    text = message["body"]
    is_binary = message.get("encoding") == "base64"
    first = base64.b64decode(text) if is_binary else text.encode()
    assert body.startswith(first)
    whole = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    members = {key: message[key] for key in whole if key in message}
    assert members == (whole if len(body) > bytes_max else {})
    assert len(first) > min(len(body), bytes_max) - 4  # a character that was cut is left out


@each(list(BODIES))
def test_a_rejected_message_fits_the_bus_even_where_all_is_escaped(name: str) -> None:
    escaped = "\x01"
    worst = dataclasses.replace(
        rejection(BODIES[name]),
        description=escaped * 1000,
        message_id=escaped * 128,
        order_id=escaped * 260,
        correlation_id=escaped * 128,
    )
    for bytes_max, size_max in ((KEPT_BYTES_MAX, 100 * 1024), (WHOLE_BYTES_MAX, ORDER_BYTES_MAX)):
        message = rejected_message(worst, at=AT, own_id="rejected/1", bytes_max=bytes_max)
        assert len(encode(message)) <= size_max


def test_a_message_inside_the_system_is_always_kept_whole() -> None:
    assert WHOLE_BYTES_MAX > INLINE_BYTES_MAX


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_small_rejected_body_comes_back_whole(body: bytes) -> None:
    message = kept(body)
    assert rejected_body([message]) == body
    assert message == kept(body)
    assert (message.size, message.sha256) == (None, None)


def test_the_parts_of_a_message_that_an_older_version_kept_are_joined() -> None:
    first, second = kept(b"ab"), msgspec.structs.replace(kept(b"cd"), part=2, parts=2)
    assert rejected_body([second, msgspec.structs.replace(first, parts=2)]) == b"abcd"


def notification(**members: str) -> Notification:
    data = NotificationData(order_id="A-1", state="Pending")
    return Notification(
        id="A-1/1/0", source="/sas", type="sas.order.received.v1", time="t", data=data, **members
    )


@each(Notice)
def test_a_type_names_its_notice(notice: Notice) -> None:
    assert notice_of(event_type(notice)) == notice.value
    assert event_type(notice).startswith("sas.order.")


@each(["", "a\nb", "\x7f", "\x9f"])
def test_a_subject_that_cloudevents_forbids_is_left_out(unusable: str) -> None:
    assert "subject" not in json.loads(encode(notification(subject=unusable)))
    assert json.loads(encode(notification(subject="a/b ü")))["subject"] == "a/b ü"


def test_a_notification_reads_back_as_it_was_sent() -> None:
    data = NotificationData(
        order_id="A-1",
        state="Processed",
        workflow="order",
        version=1,
        correlation_id="c",
        seq=7,
        step="ship",
        result=msgspec.Raw(b'{"parcel":"P-1"}'),
        results={"ship": msgspec.Raw(b'{"parcel":"P-1"}')},
        results_omitted=True,
        error=Error("declined", "the card was declined"),
        awaits="operator",
        duplicate=True,
    )
    original = msgspec.structs.replace(notification(subject="A-1"), data=data, correlationid="c")
    assert encode(decode_notification(encode(original))) == encode(original)


@each([b"", b"\xff", b"null", b"[]", b"{}", b'{"specversion":"1.0"}', encode(notification())[:-1]])
def test_a_message_that_is_not_a_notification_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_notification(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_notification_or_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_notification(body)


def test_what_an_alert_does_not_know_is_absent_from_it() -> None:
    alert = AlertMessage(kind="rejected", at="t", text="read this", id="x")
    assert json.loads(encode(alert)) == {
        "kind": "rejected", "at": "t", "text": "read this", "id": "x",
    }  # fmt: skip


def test_notifications_are_sent_as_cloudevents() -> None:
    assert external.CLOUDEVENTS_TYPE == "application/cloudevents+json"
