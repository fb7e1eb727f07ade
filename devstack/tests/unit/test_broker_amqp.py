"""AMQP bytes: values, frames and sections. Broken bytes are refused at little cost."""

import math
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.servicebus.amqp import decode, encode, frames
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.amqp.errors import AmqpError, DecodeError, FramingError
from devstack.servicebus.amqp.sections import sections, unbatch, with_application_properties
from devstack.servicebus.core.message import encode_message, parse_message

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.uuids()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=5)
    ),
    max_leaves=12,
)


def encoded(value: Any) -> bytes:
    match value:
        case bool():
            return encode.boolean(value)
        case float():
            return b"\x82" + struct.pack(">d", value)
        case dict():
            return encode.map_((encoded(key), encoded(item)) for key, item in value.items())
        case list():
            return encode.list_([encoded(item) for item in value])
        case _:
            return encode.scalar(value)


@given(values)
def test_what_is_encoded_is_decoded_as_it_was(value: Any) -> None:
    raw = encoded(value)
    assert decode.decode(raw) == (value, len(raw))
    assert decode.skip(raw, 0) == len(raw)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_or_refused(raw: bytes) -> None:
    try:
        _, end = decode.decode(raw)
    except DecodeError:
        return
    assert 0 < end <= len(raw)


@given(values, st.data())
def test_a_cut_value_is_refused(value: Any, data: st.DataObject) -> None:
    raw = encoded(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(DecodeError):
        decode.decode(raw[:cut])


@given(values, st.data())
def test_a_mutated_value_never_raises_anything_else(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encoded(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for work in (decode.decode, decode.skip, decode.spans, decode.fields):
        try:
            work(bytes(raw), 0)
        except DecodeError:
            continue


def test_every_form_on_the_wire_is_read() -> None:
    for raw, value in (
        (b"\x56\x01", True),
        (b"\x43", 0),
        (b"\x54\xff", -1),
        (b"\x61\xff\xfe", -2),
        (b"\x70\x00\x00\x01\x00", 256),
        (b"\x72" + struct.pack(">f", 1.5), 1.5),
        (b"\x73\x00\x00\x00\x41", "A"),
        (b"\x83" + struct.pack(">q", 5), 5),
        (b"\x98" + bytes(16), UUID(int=0)),
        (b"\xe0\x04\x02\x54\x01\x02", [1, 2]),
        (b"\x00\x53\x24\x45", Described(0x24, [])),
        (b"\x94" + bytes(16), bytes(16)),
    ):
        assert decode.decode(raw) == (value, len(raw))


def test_what_claims_more_than_it_holds_or_nests_too_deep_is_refused() -> None:
    for raw in (
        b"",
        b"\x01",
        b"\xf0\x00\x00\x00\x06\xff\xff\xff\xff\x40",
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\xd0\xff\xff\xff\xff\x00\x00\x00\x01\x40",
        b"\xc1\x02\x01\x40",
        b"\xc1\x05\x02\xc0\x01\x00\x40",
        b"\xa1\x02\xff\xfe",
        b"\x00" * 1000,
        b"\xc0\xff\x01" * 300,
        b"\xe0\x03\x02\x00\x53",
    ):
        with pytest.raises(DecodeError):
            decode.decode(raw)


def test_numbers_take_their_shortest_form() -> None:
    assert [encode.uint(n) for n in (0, 7, 256)] == [b"\x43", b"\x52\x07", b"\x70\x00\x00\x01\x00"]
    assert encode.ulong(0) == b"\x44"
    assert len(encode.list_([b"\x40"] * 300)) == 309
    assert decode.decode(encode.list_([b"\x40"] * 300))[0] == [None] * 300


@given(st.lists(st.binary(min_size=4, max_size=60), max_size=8), st.data())
def test_frames_come_out_whole_however_the_stream_is_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(frames.frame(n, body) for n, body in enumerate(bodies))
    reader = frames.FrameReader()
    whole_frames: list[tuple[int, int, bytes]] = []
    position = 0
    while position < len(stream):
        step = data.draw(st.integers(1, 50))
        reader.feed(stream[position : position + step])
        whole_frames += reader.frames()
        position += step
    assert whole_frames == [(0, n, body) for n, body in enumerate(bodies)]
    assert len(reader) == 0


def test_an_impossible_frame_header_is_refused_before_its_body_comes() -> None:
    for header in (
        b"\x00\x00\x00\x07\x02\x00\x00\x00",
        b"\x00\x00\x00\x10\x01\x00\x00\x00",
        b"\x00\x00\x00\x08\x03\x00\x00\x00",
        b"\x00\x00\x00\x08\x02\x05\x00\x00",
        b"\x7f\xff\xff\xff\x02\x00\x00\x00",
        b"GET / HT",
    ):
        reader = frames.FrameReader()
        reader.feed(header)
        with pytest.raises(FramingError):
            list(reader.frames())


def test_an_error_has_three_fields_and_information() -> None:
    described, _ = decode.decode(frames.error("amqp:not-found", "why"))
    condition, description, info = described.value
    assert (condition, description) == ("amqp:not-found", "why")
    assert info


def test_a_batch_is_cut_into_its_messages() -> None:
    inner = [b"\x00\x53\x75" + encode.binary(bytes([n])) for n in range(3)]
    batch = b"".join(b"\x00\x53\x75" + encode.binary(message) for message in inner)
    assert unbatch(batch) == inner


def test_sections_out_of_order_are_refused() -> None:
    with pytest.raises(DecodeError, match="out of order"):
        list(sections(b"\x00\x53\x75\xa0\x00\x00\x53\x70\x45"))


def test_annotations_may_come_in_either_order() -> None:
    reversed_order = b"\x00\x53\x72\xc1\x01\x00" + b"\x00\x53\x71\xc1\x01\x00"
    message = parse_message(reversed_order + b"\x00\x53\x75\xa0\x01x")
    assert message.bare.endswith(b"\x00\x53\x75\xa0\x01x")


def test_delivery_annotations_behind_the_body_are_passed_on_before_it() -> None:
    body = b"\x00\x53\x75\xa0\x01x"
    late = b"\x00\x53\x71" + encode.map_([(encode.symbol("mine"), encode.int64(1))])
    footer = b"\x00\x53\x78\xc1\x01\x00"
    message = parse_message(b"\x00\x53\x73\xc0\x04\x01\xa1\x01i" + body + late + footer)
    assert message.message_id == "i"
    assert message.bare.endswith(body + footer)
    message.token = bytes(16)
    annotations = [
        decode.decode(encode_message(message), section.value_at)[0]
        for section in sections(encode_message(message))
        if section.code == 0x71
    ]
    assert annotations == [{"mine": 1, "x-opt-lock-token": UUID(int=0)}]


def test_application_properties_are_added_replaced_and_otherwise_left() -> None:
    bare = (
        encode.composite(0x73, [encode.string("id")])
        + b"\x00\x53\x74"
        + encode.map_([(encode.string("a"), encode.int64(1)), (encode.string("b"), b"\x54\x02")])
        + b"\x00\x53\x75\xa0\x01x"
    )
    changed = with_application_properties(bare, {"a": encode.string("new")})
    values = [decode.decode(changed, s.value_at)[0] for s in sections(changed)]
    assert values == [["id"], {"b": 2, "a": "new"}, b"x"]
    assert b"\x54\x02" in changed


@given(st.binary(max_size=120))
def test_random_bytes_are_a_message_or_refused(raw: bytes) -> None:
    try:
        message = parse_message(raw)
    except AmqpError:
        return
    message.enqueued_at = 1.0
    assert parse_message(encode_message(message)).bare == message.bare


@given(
    st.none() | st.text(max_size=20),
    st.none() | st.text(max_size=20),
    st.none() | st.integers(0, 2**32 - 1),
    st.binary(max_size=50),
    st.data(),
)
def test_a_mutated_message_never_raises_anything_else(
    message_id: str | None, session: str | None, ttl: int | None, body: bytes, data: st.DataObject
) -> None:
    fields = [encode.NULL] * 11
    fields[0], fields[10] = encode.scalar(message_id), encode.scalar(session)
    header = encode.composite(
        0x70, [b"\x40", b"\x40", encode.NULL if ttl is None else encode.uint(ttl)]
    )
    payload = header + encode.composite(0x73, fields) + b"\x00\x53\x75" + encode.binary(body)
    whole = parse_message(payload)
    assert whole.session_id == session
    assert message_id is None or whole.message_id == message_id
    assert ttl is None or math.isclose(whole.ttl_s or 0, ttl / 1000)
    raw = bytearray(payload)
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = parse_message(bytes(raw))
        message.limit_ttl(5)
        message.add_dead_letter_reason("R", "D")
        encode_message(message)
    except AmqpError:
        return
