from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.bounds import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.codec.internal import (
    CommandMessage,
    Envelope,
    FaultBody,
    Internal,
    ProgressMessage,
    ReplyMessage,
    RequestMessage,
    WakeMessage,
    decode,
    encode,
    from_reply,
    raw,
    text_of,
    to_command,
    to_reply,
)
from sas.codec.strict import MalformedError
from sas.domain.content import ref_of
from sas.domain.messages import Outcome, Reply, Verb
from sas.domain.order import Direction, Fault
from sas.ports import FORMAT, OtherVersionError
from tests.each import each

COMPLETE_BY = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
ANY: Any = Internal

MESSAGES: dict[str, Internal] = {
    "wake": WakeMessage(id="A/1/0", order_id="A", seq=1),
    "command": CommandMessage(
        id="c-1",
        order_id="A",
        verb="resubmit",
        by="anna",
        seq=4,
        step="take-payment",
        input=msgspec.Raw(b'{"n":2}'),
    ),
    "request": RequestMessage(
        id="A/1/1",
        order_id="A",
        workflow="order",
        step=1,
        step_name="take-payment",
        direction="do",
        epoch=3,
        complete_by=COMPLETE_BY,
        idempotency_key="A/take-payment",
        order=msgspec.Raw(b'{"n":1.10}'),
        results={"reserve-stock": msgspec.Raw(b'["r"]')},
        own_result=msgspec.Raw(b"null"),
        submission="s",
        time_allowed=7.5,
        seq=1,
        checks=3,
    ),
    "claim check": RequestMessage(
        id="A/1/1",
        order_id="A",
        workflow="order",
        step=0,
        step_name="reserve-stock",
        direction="undo",
        epoch=1,
        complete_by=COMPLETE_BY,
        idempotency_key="A/reserve-stock",
        submission="s",
        time_allowed=60.0,
        seq=1,
    ),
    "done": ReplyMessage(
        id="A/00/do/1",
        order_id="A",
        step=0,
        direction="do",
        epoch=1,
        outcome="done",
        seq=1,
        result=msgspec.Raw(b'{"r":1}'),
    ),
    "progress": ProgressMessage(
        id="A/00/do/1/0",
        order_id="A",
        step=0,
        direction="do",
        epoch=1,
        complete_by=COMPLETE_BY,
        note="half of it",
        awaits=True,
    ),
    "refused": ReplyMessage(
        id="A/00/do/1",
        order_id="A",
        step=0,
        direction="do",
        epoch=1,
        outcome="refused",
        seq=1,
        error=FaultBody("declined", "the card was declined"),
    ),
}


@each(list(MESSAGES))
def test_an_internal_message_reads_back_as_it_was_sent(name: str) -> None:
    message = MESSAGES[name]
    body = encode(message)
    assert json.loads(body)["format"] == FORMAT
    copy = decode(body, ANY)
    assert type(copy) is type(message)
    assert encode(copy) == body


@each(list(MESSAGES))
def test_an_unknown_member_is_refused(name: str) -> None:
    members = json.loads(encode(MESSAGES[name]))
    contents = {"order", "own_result", "results", "result_refs", "input", "result"}
    parts = [members, *(part for key, part in members.items() if key not in contents)]
    for part in parts:
        if isinstance(part, dict):
            part["newly"] = {"a": [1]}
            with pytest.raises(MalformedError, match="newly"):
                decode(json.dumps(members).encode(), ANY)
            del part["newly"]
    decode(json.dumps(members).encode(), ANY)


@each(list(MESSAGES))
def test_a_message_of_a_newer_format_is_left_to_a_newer_instance(name: str) -> None:
    members = json.loads(encode(MESSAGES[name]))
    for other in ({}, {"kind": "greeting"}, {"step": "text"}, {"id": None}, {"newly": 1}):
        newer = members | {"format": FORMAT + 1} | other
        with pytest.raises(OtherVersionError, match="left to an instance of a newer version"):
            decode(json.dumps(newer).encode(), ANY)


@each(list(MESSAGES))
def test_a_wrong_format_kind_or_id_is_refused(name: str) -> None:
    members = json.loads(encode(MESSAGES[name]))
    mistakes: list[dict[str, Any]] = [
        {"format": version} for version in (0, "2", True, 1.5, -2, None)
    ]
    mistakes += [{"kind": "greeting"}, {"id": 1}, {"order_id": None}]
    for other in mistakes:
        with pytest.raises(MalformedError) as caught:
            decode(json.dumps(members | other).encode(), ANY)
        assert caught.value.reason == "invalid"


@each(list(MESSAGES))
def test_no_member_but_the_optional_ones_may_be_missing(name: str) -> None:
    members = json.loads(encode(MESSAGES[name]))
    optional = {"order", "results", "own_result", "result", "error"}
    optional |= {"generation", "checks", "note", "awaits"}
    optional |= {"seq", "step", "input"} if name == "command" else set()
    for member in members.keys() - optional:
        lacking = {key: value for key, value in members.items() if key != member}
        with pytest.raises(MalformedError):
            decode(json.dumps(lacking).encode(), ANY)


@each(
    [
        ("order_id", "a/b", "invalid-order-id"),
        ("order_id", "", "invalid-order-id"),
        ("id", "", "invalid"),
        ("id", "x" * 201, "invalid"),
    ]
)
def test_an_id_that_cannot_be_one_is_refused(member: str, value: str, reason: str) -> None:
    members = json.loads(encode(MESSAGES["wake"]))
    with pytest.raises(MalformedError) as caught:
        decode(json.dumps(members | {member: value}).encode(), WakeMessage)
    assert caught.value.reason == reason


def test_a_message_of_another_kind_than_asked_for_is_refused() -> None:
    with pytest.raises(MalformedError):
        decode(encode(MESSAGES["wake"]), ReplyMessage)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_internal_message_or_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(body, ANY)


def test_complete_by_keeps_its_microseconds_and_its_zone() -> None:
    east = COMPLETE_BY.astimezone(timezone(timedelta(hours=2)))
    request = MESSAGES["request"]
    assert isinstance(request, RequestMessage)
    copy = decode(encode(msgspec.structs.replace(request, complete_by=east)), RequestMessage)
    assert copy.complete_by == COMPLETE_BY
    assert copy.complete_by.utcoffset() is not None


REPLIES = [
    Reply(
        order_id="A",
        step=2,
        direction=Direction.DO,
        epoch=1,
        outcome=Outcome.DONE,
        result='{"parcel": "P-1", "kg": 1.50}',
    ),
    Reply(order_id="A", step=2, direction=Direction.UNDO, epoch=9, outcome=Outcome.DONE),
    Reply(
        order_id="A",
        step=0,
        direction=Direction.DO,
        epoch=1,
        outcome=Outcome.REFUSED,
        fault=Fault("declined", "no money"),
    ),
]


@each(REPLIES)
def test_a_reply_of_the_domain_travels_and_comes_back_unchanged(reply: Reply) -> None:
    assert to_reply(decode(encode(from_reply(reply, 1)), ReplyMessage)) == reply


def test_every_repeat_of_a_reply_has_the_same_id_and_another_epoch_has_another() -> None:
    first, again, later = (
        from_reply(
            Reply(order_id="A", step=2, direction=Direction.DO, epoch=epoch, outcome=Outcome.DONE),
            1,
        )
        for epoch in (1, 1, 2)
    )
    assert first.id == again.id == "A/02/do/1"
    assert later.id != first.id


def test_a_result_over_the_bound_is_refused_whatever_its_characters() -> None:
    fits = Reply(
        order_id="A",
        step=0,
        direction=Direction.DO,
        epoch=1,
        outcome=Outcome.DONE,
        result='"' + "x" * 1000 + '"',
    )
    assert to_reply(from_reply(fits, 1)) == fits
    for character in ("x", "ü"):
        long = '"' + character * (RESULT_INLINE_BYTES_MAX // len(character.encode())) + '"'
        with pytest.raises(MalformedError) as caught:
            to_reply(
                from_reply(
                    Reply(
                        order_id="A",
                        step=0,
                        direction=Direction.DO,
                        epoch=1,
                        outcome=Outcome.DONE,
                        result=long,
                    ),
                    1,
                )
            )
        assert caught.value.reason == "result-too-large"


def test_a_large_result_travels_as_a_payload_reference() -> None:
    ref = ref_of(b"x" * 100_000)
    reply = Reply(
        order_id="A", step=0, direction=Direction.DO, epoch=1, outcome=Outcome.DONE, result=ref
    )
    body = encode(from_reply(reply, 1))
    assert to_reply(decode(body, ReplyMessage)) == reply
    assert len(body) < 300
    assert b'"result":' not in body


@each(
    [
        ({"sha256": "0" * 63, "size": 1, "chunks": 1}, "invalid"),
        ({"sha256": "G" * 64, "size": 1, "chunks": 1}, "invalid"),
        ({"sha256": "0" * 64, "size": -1, "chunks": 1}, "invalid"),
        ({"sha256": "0" * 64, "size": 1, "chunks": 0}, "invalid"),
        ({"sha256": "0" * 64, "size": 1, "chunks": 100}, "invalid"),
        ({"sha256": "0" * 64, "size": RESULT_BYTES_MAX + 1, "chunks": 2}, "result-too-large"),
    ]
)
def test_a_wrong_payload_reference_is_refused(reference: dict[str, Any], why: str) -> None:
    members = json.loads(
        encode(
            from_reply(
                Reply(order_id="A", step=0, direction=Direction.DO, epoch=1, outcome=Outcome.DONE),
                1,
            )
        )
    )
    with pytest.raises(MalformedError) as caught:
        to_reply(decode(json.dumps({**members, "result_ref": reference}).encode(), ReplyMessage))
    assert caught.value.reason == why


@each(Verb)
def test_a_command_of_the_operator_reads_back(verb: Verb) -> None:
    message = CommandMessage(id="c-1", order_id="A", verb=verb.value, seq=4, by="anna")
    command = to_command(decode(encode(message), CommandMessage))
    assert (command.command_id, command.order_id, command.verb) == ("c-1", "A", verb)
    assert (command.seq, command.by) == (4, "anna")


@each(["", "a\nb", "a\x1b[2J", "x" * 101])
def test_the_name_of_an_operator_is_one_line_that_any_journal_can_show(by: str) -> None:
    message = CommandMessage(id="c-1", order_id="A", verb="undo", seq=4, by=by)
    with pytest.raises(MalformedError, match=r"\$\.by"):
        decode(encode(message), CommandMessage)


def test_a_raw_part_is_text_or_absent() -> None:
    assert text_of(raw(None)) is None
    assert text_of(raw('{"a": [1]}')) == '{"a": [1]}'


def test_every_internal_message_is_an_envelope() -> None:
    assert all(isinstance(message, Envelope) for message in MESSAGES.values())
