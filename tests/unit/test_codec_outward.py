from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

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
    encode,
    event_type,
    notice_of,
    rejected_parts,
)
from sas.codec.strict import MalformedError
from sas.domain.messages import Notice

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
MESSAGE_BYTES_MAX = 200 * 1024


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


def parts_of(body: bytes) -> list[RejectedMessage]:
    return rejected_parts(rejection(body), at=AT, id_base="rejected/" + "f" * 32)


def joined(parts: list[RejectedMessage]) -> bytes:
    """Put parts together from the messages of the queue, as a reader in any language would."""
    read = [json.loads(encode(part)) for part in parts]
    text = "".join(part["body"] for part in sorted(read, key=lambda part: part.get("part", 1)))
    return base64.b64decode(text) if read[0].get("encoding") == "base64" else text.encode()


BODIES = {
    "empty": b"",
    "one byte": b"x",
    "small": b'{"order_id": 1}',
    "binary": bytes(range(256)),
    "big text": b"abcdefg " * 40_000,
    "big binary": bytes(range(256)) * 1200,
    "all escapes": b"\x01" * 300_000,
    "escapes up to one part": b"\x01" * 20_480,
    "escapes, one more": b"\x01" * 20_481,
    "quotes": b'"\\' * 130_000,
    "wide characters": "🙂ü".encode() * 50_000,
    "not quite UTF-8": b"x" * 250_000 + b"\xff",
}


@pytest.mark.parametrize("name", BODIES)
def test_the_parts_of_a_rejected_message_join_to_its_very_bytes(name: str) -> None:
    parts = parts_of(BODIES[name])
    assert joined(parts) == BODIES[name]
    assert [part.part for part in parts] == list(range(1, len(parts) + 1))
    assert {part.parts for part in parts} == {len(parts)}
    assert len({part.id for part in parts}) == len(parts)
    assert all(len(part.id) <= 128 for part in parts)


@pytest.mark.parametrize("name", BODIES)
def test_every_part_fits_a_message_even_where_all_is_escaped(name: str) -> None:
    assert max(len(encode(part)) for part in parts_of(BODIES[name])) <= MESSAGE_BYTES_MAX


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_rejected_body_comes_back_whole(body: bytes) -> None:
    assert joined(parts_of(body)) == body


def test_rejecting_the_same_message_again_gives_the_same_parts() -> None:
    body = BODIES["big binary"]
    assert parts_of(body) == parts_of(body)


def notification(**members: str) -> Notification:
    data = NotificationData(order_id="A-1", state="Pending")
    return Notification(
        id="A-1/1/0", source="/sas", type="sas.order.received.v1", time="t", data=data, **members
    )


@pytest.mark.parametrize("notice", Notice)
def test_a_type_names_its_notice(notice: Notice) -> None:
    assert notice_of(event_type(notice)) == notice.value
    assert event_type(notice).startswith("sas.order.")


@pytest.mark.parametrize("unusable", ["", "a\nb", "\x7f", "\x9f"])
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


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"null", b"[]", b"{}", b'{"specversion":"1.0"}', encode(notification())[:-1]],
)
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
