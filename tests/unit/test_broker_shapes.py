"""What is recognised by its bytes reads as it would if it were decoded piece by piece."""

from typing import Any
from unittest.mock import patch
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from devstack.servicebus.amqp import encode, frames, shapes
from devstack.servicebus.amqp.errors import DecodeError
from devstack.servicebus.core import message as message_module
from devstack.servicebus.core.message import Message, parse_message
from tests.unit.test_broker_amqp import scalars


def read_or_refused(read: Any, *given: Any) -> Any:
    try:
        return repr(read(*given))
    except DecodeError:
        return "refused"


def plainly(read: Any, body: bytes) -> Any:
    """Read as the first of its shape is read."""
    with (
        patch.object(shapes, "_transfers", {}),
        patch.object(shapes, "_dispositions", {}),
    ):
        return read_or_refused(read, body, 3)


_tails = st.lists(scalars, max_size=8)
_numbers = st.integers(0, 300)


@given(_numbers, _numbers, _numbers, st.binary(max_size=6), _tails, st.data())
def test_a_transfer_of_a_known_shape_reads_as_one_of_a_new_shape(
    handle: int, first: int, second: int, tag: bytes, tail: list[Any], data: st.DataObject
) -> None:
    rest = [encode.scalar(value) for value in tail]
    for delivery_id in (first, second):
        head = [encode.uint(handle), encode.uint(delivery_id), encode.binary(tag)]
        body = encode.composite(frames.TRANSFER, head + rest) + b"payload"
        assert read_or_refused(shapes.read_transfer, body, 3) == plainly(shapes.read_transfer, body)
    mutated = bytearray(body)
    mutated[data.draw(st.integers(3, len(body) - 8))] = data.draw(st.integers(0, 255))
    for raw in (bytes(mutated), body[: data.draw(st.integers(4, len(body)))]):
        assert read_or_refused(shapes.read_transfer, raw, 3) == plainly(shapes.read_transfer, raw)


@given(st.booleans(), _numbers, _numbers, st.lists(scalars, max_size=4), st.data())
def test_a_disposition_of_a_known_shape_reads_as_one_of_a_new_shape(
    short: bool, first: int, second: int, tail: list[Any], data: st.DataObject
) -> None:
    role = encode.TRUE if short else b"\x56\x01"
    rest = [encode.scalar(value) for value in tail]
    for delivery_id in (first, second):
        body = encode.composite(frames.DISPOSITION, [role, encode.uint(delivery_id), *rest])
        assert read_or_refused(shapes.read_disposition, body, 3) == plainly(
            shapes.read_disposition, body
        )
    mutated = bytearray(body)
    mutated[data.draw(st.integers(3, len(body) - 1))] = data.draw(st.integers(0, 255))
    for raw in (bytes(mutated), body[: data.draw(st.integers(4, len(body)))]):
        assert read_or_refused(shapes.read_disposition, raw, 3) == plainly(
            shapes.read_disposition, raw
        )


@given(st.text(max_size=5), st.text(max_size=5), st.booleans(), st.binary(), st.data())
def test_a_message_in_its_usual_form_reads_as_in_any_other(
    message_id: str, session_id: str, told: bool, content: bytes, data: st.DataObject
) -> None:
    group = [encode.NULL] * 9 + [encode.string(session_id)] if session_id else []
    raw = encode.composite(0x73, [encode.string(message_id), *group])
    if told:
        raw += b"\x00\x53\x74" + encode.map_([(encode.string("a"), encode.int64(1))])
    raw += b"\x00\x53\x75" + encode.binary(content)
    mutated = bytearray(raw)
    mutated[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for payload in (raw, bytes(mutated), raw[: data.draw(st.integers(0, len(raw)))]):
        usual = read_or_refused(facts_of, payload)
        with patch.object(message_module, "_is_bare", return_value=False):
            assert read_or_refused(facts_of, payload) == usual


def facts_of(payload: bytes) -> Any:
    with patch.object(message_module, "uuid4", return_value=UUID(int=1)):
        message = parse_message(payload)
    return [getattr(message, name) for name in Message.__slots__]
