from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.codec.external import Error, NotificationData
from sas.codec.orders import (
    ORDER_BYTES_MAX,
    OrderMessage,
    Submission,
    content_hash,
    encode_order,
    parse_order,
    salvage,
)
from sas.codec.strict import DESCRIPTION_LENGTH_MAX, MalformedError
from tests.each import each
from tests.unit.codec_cases import BAD, FINE, FORBIDDEN_IN_IDS, GOOD, body


def refused(message: bytes) -> MalformedError:
    with pytest.raises(MalformedError) as caught:
        parse_order(message, "m-1")
    return caught.value


@each(list(BAD))
def test_every_bad_message_is_refused_with_its_reason(name: str) -> None:
    message, reason = BAD[name]
    error = refused(message)
    assert error.reason == reason
    assert 10 < len(error.description) <= DESCRIPTION_LENGTH_MAX
    assert str(error) == error.description


@each(list(FINE))
def test_every_fine_message_is_taken_and_its_order_kept_to_the_byte(name: str) -> None:
    message = FINE[name]
    submission = parse_order(message, "m-1")
    assert submission.payload in message.decode()
    assert json.loads(submission.payload) == json.loads(message)["order"]


@each(FORBIDDEN_IN_IDS)
def test_an_id_with_a_character_that_no_name_can_hold_is_refused(character: str) -> None:
    error = refused(body(order_id=f"A{character}1"))
    assert error.reason == "invalid-order-id"
    assert repr(character)[1:-1] in error.description


def test_what_was_sent_is_what_is_read() -> None:
    original = OrderMessage(
        order_id="A-1",
        workflow="order",
        reply_queue="responses-web-shop",
        order=msgspec.Raw(b'{"n": 1.10}'),
        correlation_id="basket-7",
        submission_id="s-1",
        workflow_version=2,
    )
    submission = parse_order(encode_order(original), "m-1")
    assert submission == Submission(
        order_id="A-1",
        workflow="order",
        version=2,
        reply_queue="responses-web-shop",
        correlation_id="basket-7",
        submission_id="s-1",
        payload='{"n": 1.10}',
        content_hash=content_hash("order", "responses-web-shop", {"n": 1.1}),
    )


def test_without_a_submission_id_the_message_id_stands_in() -> None:
    assert parse_order(body(), "m-1").submission_id == "m-1"
    assert parse_order(body(submission_id="s-1"), "m-1").submission_id == "s-1"


def test_a_message_of_exactly_the_bound_is_taken_and_one_byte_more_is_not() -> None:
    room = ORDER_BYTES_MAX - len(body(order={"note": ""}))
    assert len(parse_order(body(order={"note": "x" * room}), "m").payload) > room
    assert refused(body(order={"note": "x" * (room + 1)})).reason == "too-large"
    with pytest.raises(MalformedError, match="at most 1,024 are accepted"):
        parse_order(body(order={"note": "x" * 1024}), "m", bytes_max=1024)


@each([b'"' + b'\\"' * 130_000, b'"' * 260_000, b'{"a' * 80_000, b"\\" * 260_000, b"[]" * 130_000])
def test_no_message_can_make_the_parser_slow(message: bytes) -> None:
    started = time.process_time()
    refused(message)
    salvage(message)
    assert time.process_time() - started < 2.0


@each(
    [
        body(**{"x" * 200_000: 1}),
        body(order_id="/" * 200_000),
        body(workflow="w" * 200_000),
        body()[:-1] + b',"' + b"k" * 99_000 + b'":1,"' + b"k" * 99_000 + b'":1}',
        body(order={"n": 0}).replace(b"0}", b"1" * 200_000 + b".5e999}"),
    ]
)
def test_a_refusal_stays_short_whatever_the_sender_wrote(message: bytes) -> None:
    assert len(refused(message).description) <= DESCRIPTION_LENGTH_MAX


@each(
    [
        (body(order={"a": 1, "b": [1, 2]}), body(order={"b": [1, 2], "a": 1})),
        (body(order={"a": 1}), json.dumps(GOOD | {"order": {"a": 1}}, indent=3).encode()),
        (body(), body(correlation_id="basket-7")),
        (body(), body(submission_id="s-2")),
        (body(), body(workflow_version=1)),
        (body(order={"a": "ü"}), body(order={"a": "X"}).replace(b"X", "ü".encode())),
        (body(order={"a": 100.0}), body(order={"a": 100.0}).replace(b"100.0", b"1e2")),
    ]
)
def test_the_same_order_sent_in_another_way_has_the_same_hash(first: bytes, other: bytes) -> None:
    assert first != other
    assert parse_order(first, "m-1").content_hash == parse_order(other, "m-2").content_hash


@each(
    [
        body(order={"customer_id": "ANATR"}),
        body(order={}),
        body(order={"customer_id": "ALFKI", "more": None}),
        body(workflow="order-with-care"),
        body(reply_queue="responses-mobile"),
    ]
)
def test_another_order_under_the_same_id_has_another_hash(other: bytes) -> None:
    assert parse_order(body(), "m").content_hash != parse_order(other, "m").content_hash


def test_the_order_of_a_list_and_the_type_of_a_value_are_content() -> None:
    forms: list[Any] = [[1, 2], [2, 1], "[1,2]", {"0": 1}, [1, "2"], [True, 2], [[1, 2]], None]
    hashes = {parse_order(body(order={"a": form}), "m").content_hash for form in forms}
    assert len(hashes) == len(forms)


def test_everything_needed_to_notify_the_sender_is_read_from_a_bad_message() -> None:
    members = {"order_id": "A-1", "reply_queue": "responses-web-shop", "correlation_id": "c"}
    for message in (
        body(correlation_id="c", order={"n": float("nan")}),
        body(correlation_id="c")[:-1] + b',"workflow":"order"}',
        body(correlation_id="c", order={"n": 0}).replace(b"0}", b"9" * 5000 + b"}"),
        body(correlation_id="c", order={"a": "\ud83d"}),
        body(correlation_id="c", order={"city": "X"}).replace(b"X", b"M\xfcnster"),
        body(correlation_id="c", order={"note": "x" * 300 * 1024}),
        body(correlation_id="c", order={"a": 0}).replace(b"0}", b"[" * 90 + b"]" * 90 + b"}"),
    ):
        refused(message)
        sender = salvage(message)
        assert {name: getattr(sender, name) for name in members} == members


def test_what_cannot_be_written_again_is_not_salvaged() -> None:
    assert salvage(body(order_id="A\ud83d")).order_id is None
    assert salvage(body(order_id="AX").replace(b"X", b"\xfc")).order_id is None
    assert salvage(body(correlation_id="c\n")).correlation_id is None
    assert salvage(body(correlation_id="c" * 129)).correlation_id is None
    assert salvage(body(reply_queue=7)).reply_queue is None
    assert salvage(body(order_id="a/b")).order_id == "a/b"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def parses_or_refuses(message: bytes) -> None:
    """Fail on any error but a MalformedError, and on one that cannot be sent to its sender."""
    try:
        assert json.loads(parse_order(message, "m-1").payload) is not None
    except MalformedError as error:
        sender = salvage(message)
        data = NotificationData(
            order_id=sender.order_id or "",
            state="Rejected",
            correlation_id=sender.correlation_id,
            error=Error(error.reason, error.description),
        )
        assert len(msgspec.json.encode(data)) > 20


@given(st.binary(max_size=300))
def test_any_bytes_are_either_parsed_or_refused(message: bytes) -> None:
    parses_or_refuses(message)


@given(ANY_JSON)
def test_any_json_is_either_parsed_or_refused(value: Any) -> None:
    parses_or_refuses(json.dumps(value).encode())


@given(st.dictionaries(st.sampled_from([*GOOD, "correlation_id", "x"]), ANY_JSON, max_size=5))
def test_any_member_may_hold_anything_and_is_either_parsed_or_refused(
    members: dict[str, Any],
) -> None:
    parses_or_refuses(body(**members))


@given(st.data(), st.sampled_from(sorted(FINE)))
def test_a_message_damaged_anywhere_is_either_parsed_or_refused(
    data: st.DataObject, name: str
) -> None:
    message = bytearray(FINE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"{", b"\\u", b"]", b","]))
        message[at : at + data.draw(st.integers(0, 3))] = piece
        if not message:
            break
    parses_or_refuses(bytes(message))
