"""Tokens that are forged, changed, another's or of a key that is gone allow nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.bounds import RESULT_BYTES_MAX
from sas.codec import internal
from sas.codec.internal import CallbackMessage, PayloadRefBody
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError
from sas.domain.content import PayloadRef
from sas.domain.messages import Outcome
from sas.domain.order import Direction, Fault
from sas.features.callbacks.codec import (
    CALLBACK_BYTES_MAX,
    TOKEN_LENGTH_MAX,
    CallbackBody,
    CallbackKeys,
    Claims,
    ForgedError,
    bearer,
    message_of,
    parse_body,
    to_callback_result,
)
from sas.features.callbacks.rules import CallbackResult
from tests.each import each
from tests.unit.contract_files import load, validator

OLD, NEW, OTHER = "old-key-" * 5, "new-key-" * 5, "other-key-" * 4
KEYS = CallbackKeys((NEW, OLD))
CLAIMS = Claims(
    order_id="O-1é",
    step=3,
    direction="do",
    generation=2,
    expires=1_800_000_000,
    submission="0123456789abcdef",
)
TOKEN = KEYS.issue(CLAIMS)


def test_a_token_contains_what_it_was_made_of() -> None:
    assert KEYS.read(TOKEN) == CLAIMS
    assert CLAIMS.expires_at.isoformat() == "2027-01-15T08:00:00+00:00"


def test_the_first_key_signs_and_all_are_believed_so_that_keys_can_be_changed() -> None:
    before = CallbackKeys((OLD,)).issue(CLAIMS)
    assert KEYS.read(before) == CLAIMS
    assert CallbackKeys((NEW,)).read(TOKEN) == CLAIMS
    assert CallbackKeys((OTHER, OTHER * 2, NEW)).read(TOKEN) == CLAIMS
    for keys in (CallbackKeys((NEW,)), CallbackKeys((OTHER, NEW))):
        with pytest.raises(ForgedError, match="was not issued by this system"):
            keys.read(before)


def test_no_key_believes_nothing() -> None:
    with pytest.raises(ForgedError):
        CallbackKeys().read(TOKEN)
    with pytest.raises(ForgedError):
        CallbackKeys((OTHER,)).read(TOKEN)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("Ab0-_.=+/ é"))
def test_a_token_with_one_character_changed_is_forged(place: int, character: str) -> None:
    changed = TOKEN[:place] + character + TOKEN[place + 1 :]
    if changed != TOKEN:
        with pytest.raises(ForgedError):
            KEYS.read(changed)


@each([0, 1, len(TOKEN) // 2, len(TOKEN) - 1])
def test_a_token_cut_off_anywhere_is_forged(length: int) -> None:
    with pytest.raises(ForgedError):
        KEYS.read(TOKEN[:length])


@given(st.text(max_size=200))
def test_no_text_is_a_token(text: str) -> None:
    with pytest.raises(ForgedError):
        KEYS.read(text)


def test_claims_under_another_tokens_signature_are_forged() -> None:
    claims, signature = TOKEN.split(".")
    other = KEYS.issue(msgspec.structs.replace(CLAIMS, order_id="O-2"))
    with pytest.raises(ForgedError):
        KEYS.read(f"{other.split('.')[0]}.{signature}")
    with pytest.raises(ForgedError):
        KEYS.read(f"{claims}.{other.split('.')[1]}")


def test_a_signature_of_the_bare_claims_is_not_a_token() -> None:
    """The key may also sign other texts: only a text signed as a callback is a token."""
    claims = TOKEN.split(".")[0]
    bare = hmac.new(NEW.encode(), claims.encode(), hashlib.sha256).digest()
    with pytest.raises(ForgedError):
        KEYS.read(f"{claims}.{base64.urlsafe_b64encode(bare).decode().rstrip('=')}")


def test_the_longest_order_id_has_a_token_within_bounds() -> None:
    claims = msgspec.structs.replace(CLAIMS, order_id="\U0001f6d2" * 50, direction="undo")
    assert len(KEYS.issue(claims)) < TOKEN_LENGTH_MAX
    assert KEYS.read(KEYS.issue(claims)) == claims


def test_keys_show_in_no_text() -> None:
    assert NEW not in repr(KEYS) + str(KEYS)


@each(
    [
        ("Bearer a.b", "a.b"),
        ("bearer  a.b ", "a.b"),
        ("Basic a.b", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("", None),
        (None, None),
    ]
)
def test_a_bearer_token_is_read_from_its_header(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


def body_of(**changes: Any) -> bytes:
    members = {"outcome": "done", "result": {"signed_by": "Ann"}} | changes
    return json.dumps({key: value for key, value in members.items() if value is not None}).encode()


def message(token: str = TOKEN, **changes: Any) -> CallbackMessage:
    """Return the message that the endpoint makes of a callback."""
    return message_of(token, KEYS.read(token), parse_body(body_of(**changes)))


def test_a_message_has_what_the_endpoint_checked_and_reads_back_as_it_was_sent() -> None:
    error = {"code": "lost", "message": "on the way"}
    for callback in (message(), message(outcome="refused", result=None, error=error)):
        read = internal.decode(internal.encode(callback), CallbackMessage)
        assert internal.encode(read) == internal.encode(callback)
        assert (read.order_id, read.submission, read.step) == ("O-1é", CLAIMS.submission, 3)
        assert (read.generation, read.expires_at) == (2, CLAIMS.expires_at)


def test_a_callback_becomes_a_message_of_the_domain() -> None:
    assert to_callback_result(message()) == CallbackResult(
        order_id="O-1é",
        step=3,
        direction=Direction.DO,
        generation=2,
        outcome=Outcome.DONE,
        result='{"signed_by": "Ann"}',
    )
    assert to_callback_result(message(result=None)).result == "null"


def test_a_result_that_was_offloaded_is_a_payload_reference() -> None:
    ref = PayloadRefBody("0a" * 32, 50_000, 1)
    apart = msgspec.structs.replace(message(), result=msgspec.UNSET, result_ref=ref)
    assert to_callback_result(apart).result == PayloadRef(ref.sha256, ref.size, ref.chunks)


@each([None, {"code": "refused", "message": "no"}])
def test_a_refusal_has_a_reason_and_no_result(error: dict[str, str] | None) -> None:
    result = to_callback_result(message(outcome="refused", error=error))
    assert result.result is None
    assert result.fault in {Fault("refused", "no"), Fault("refused", "the callback gave no reason")}


@each(
    [
        ({"outcome": "perhaps"}, "invalid"),
        ({"outcome": None}, "invalid"),
        ({"extra": 1}, "invalid"),
        ({"error": {"code": "x"}}, "invalid"),
        ({"result": "x" * (RESULT_BYTES_MAX + 1)}, "result-too-large"),
        ({"result": "x" * CALLBACK_BYTES_MAX}, "too-large"),
    ]
)
def test_a_callback_that_is_none_is_refused_with_a_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_body(body_of(**changes))
    assert caught.value.reason == reason


@each(
    [
        (b"", "not-json"),
        (b"\xff", "not-utf-8"),
        (b"[]", "invalid"),
        (b'{"outcome":"done","outcome":"refused"}', "duplicate-key"),
        (b'{"outcome":"done","result":NaN}', "not-finite"),
        (b'{"outcome":"done","token":"t"}', "invalid"),
        (b'{"outcome":"done","result":' + b"[" * 31 + b"]" * 31 + b"}", "too-deep"),
    ]
)
def test_a_body_that_is_none_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_body(body)
    assert caught.value.reason == reason


def test_a_result_as_deep_as_a_result_may_be_is_taken() -> None:
    array = "[" * CONTENT_DEPTH_MAX + "]" * CONTENT_DEPTH_MAX
    body = f'{{"outcome":"done","result":{array}}}'.encode()
    assert parse_body(body).outcome == "done"


def test_the_same_callback_twice_has_one_id_and_another_has_another() -> None:
    assert message().id == message().id
    others = [
        message(),
        message(result={"signed_by": "Bob"}),
        message(outcome="refused", result=None),
        message(outcome="refused", result=None, error={"code": "a", "message": "b"}),
        message(KEYS.issue(msgspec.structs.replace(CLAIMS, step=4))),
    ]
    assert len({callback.id for callback in others}) == 5


SCHEMA = load("callback.schema.json")


def test_the_schema_names_the_members_that_the_code_reads_and_no_other() -> None:
    code = msgspec.json.schema(CallbackBody)["$defs"]["CallbackBody"]
    assert SCHEMA["properties"].keys() == code["properties"].keys()
    assert set(SCHEMA["required"]) == set(code["required"])
    assert f"{CALLBACK_BYTES_MAX:,} bytes" in SCHEMA["description"]
    description = SCHEMA["properties"]["result"]["description"]
    assert f"{RESULT_BYTES_MAX:,} bytes, {CONTENT_DEPTH_MAX} levels" in description


@each(
    [
        {},
        {"result": None},
        {"outcome": "refused", "error": {"code": "a", "message": "b"}},
        {"outcome": "perhaps"},
        {"extra": 1},
        {"error": {"code": "a"}},
        {"error": {"code": "a", "message": 1}},
        {"error": "lost"},
    ]
)
def test_the_schema_and_the_code_take_and_refuse_the_same(changes: dict[str, Any]) -> None:
    body = body_of(**changes)
    takes = True
    try:
        parse_body(body)
    except MalformedError:
        takes = False
    assert validator("callback.schema.json").is_valid(json.loads(body)) == takes
