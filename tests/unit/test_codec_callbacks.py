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

from sas.bounds import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.codec.internal import FaultBody, PayloadRefBody
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError
from sas.domain.content import PayloadRef
from sas.domain.messages import Outcome
from sas.domain.order import Direction, Fault
from sas.features.callbacks.codec import (
    CALLBACK_BYTES_MAX,
    TOKEN_LENGTH_MAX,
    CallbackKeys,
    CallbackMessage,
    Claims,
    ForgedError,
    bearer,
    encode_message,
    own_id,
    parse_body,
    parse_message,
    read_message,
    to_callback_result,
)
from sas.features.callbacks.rules import CallbackResult
from tests.unit.contract_files import load, validator

OLD, NEW, OTHER = "old-key-" * 5, "new-key-" * 5, "other-key-" * 4
KEYS = CallbackKeys((NEW, OLD))
CLAIMS = Claims(
    order_id="O-1é", step=3, direction="do", generation=2, expires=1_800_000_000, submission="s"
)
TOKEN = KEYS.issue(CLAIMS)
REF: dict[str, Any] = {"sha256": "0a" * 32, "size": 50_000, "chunks": 1}


def test_a_token_contains_what_it_was_made_of() -> None:
    assert KEYS.read(TOKEN) == CLAIMS
    assert CLAIMS.expires_at.isoformat() == "2027-01-15T08:00:00+00:00"


def test_the_first_key_signs_and_all_are_believed_so_that_keys_can_be_changed() -> None:
    before = CallbackKeys((OLD,)).issue(CLAIMS)
    assert KEYS.read(before) == CLAIMS
    assert CallbackKeys((NEW,)).read(TOKEN) == CLAIMS
    for keys in (CallbackKeys((NEW,)), CallbackKeys((OTHER, NEW))):
        with pytest.raises(ForgedError):
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


@pytest.mark.parametrize("length", [0, 1, len(TOKEN) // 2, len(TOKEN) - 1])
def test_a_token_cut_off_anywhere_is_forged(length: int) -> None:
    with pytest.raises(ForgedError):
        KEYS.read(TOKEN[:length])


@given(st.text(max_size=200))
def test_no_text_is_a_token(text: str) -> None:
    with pytest.raises(ForgedError):
        KEYS.read(text)


def test_claims_under_another_tokens_signature_are_forged() -> None:
    told, signature = TOKEN.split(".")
    other = KEYS.issue(msgspec.structs.replace(CLAIMS, order_id="O-2"))
    with pytest.raises(ForgedError):
        KEYS.read(f"{other.split('.')[0]}.{signature}")
    with pytest.raises(ForgedError):
        KEYS.read(f"{told}.{other.split('.')[1]}")


def test_a_signature_of_the_bare_claims_is_not_a_token() -> None:
    """The key may also sign other texts: only a text signed as a callback is a token."""
    told = TOKEN.split(".")[0]
    bare = hmac.new(NEW.encode(), told.encode(), hashlib.sha256).digest()
    with pytest.raises(ForgedError):
        KEYS.read(f"{told}.{base64.urlsafe_b64encode(bare).decode().rstrip('=')}")


@pytest.mark.parametrize(
    ("agents", "route"), [(("van", "truck", "ship"), 2), (("van", "truck"), -1), ((), -1)]
)
def test_a_token_of_an_alternative_agent_is_about_that_agents_key(
    agents: tuple[str, ...], route: int
) -> None:
    claims = KEYS.read(KEYS.issue(msgspec.structs.replace(CLAIMS, alternative="ship")))
    assert to_callback_result(parse_message(message()), claims, agents).route == route


def test_the_longest_order_id_has_a_token_within_bounds() -> None:
    claims = msgspec.structs.replace(CLAIMS, order_id="\U0001f6d2" * 50, direction="undo")
    assert len(KEYS.issue(claims)) < TOKEN_LENGTH_MAX
    assert KEYS.read(KEYS.issue(claims)) == claims


def test_keys_show_in_no_text() -> None:
    assert NEW not in repr(KEYS) + str(KEYS)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer a.b", "a.b"),
        ("bearer  a.b ", "a.b"),
        ("Basic a.b", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("", None),
        (None, None),
    ],
)
def test_a_bearer_token_is_read_from_its_header(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


def message(**changes: Any) -> bytes:
    members = {"token": TOKEN, "outcome": "done", "result": {"signed_by": "Ann"}}
    return json.dumps(
        {key: value for key, value in (members | changes).items() if value is not None}
    ).encode()


def test_a_message_reads_back_as_it_was_sent() -> None:
    made = CallbackMessage(TOKEN, "refused", error=FaultBody("lost", "on the way"))
    assert parse_message(encode_message(made)) == made
    body = message()
    assert json.loads(encode_message(parse_message(body))) == json.loads(body)


def test_a_callback_becomes_a_message_of_the_domain() -> None:
    read, claims = read_message(message(), KEYS)
    assert to_callback_result(read, claims, ()) == CallbackResult(
        "O-1é", 3, Direction.DO, 2, Outcome.DONE, '{"signed_by": "Ann"}'
    )
    bare = parse_message(message(result=None))
    assert to_callback_result(bare, claims, ()).result == "null"


def test_a_large_result_has_the_same_id_whether_it_comes_itself_or_is_offloaded() -> None:
    large = parse_message(message(result="x" * RESULT_INLINE_BYTES_MAX))
    text = json.dumps("x" * RESULT_INLINE_BYTES_MAX).encode()
    ref = PayloadRefBody(hashlib.sha256(text).hexdigest(), len(text), 1)
    apart = msgspec.structs.replace(large, result=msgspec.UNSET, result_ref=ref)
    assert own_id(parse_message(encode_message(apart))) == own_id(large)
    said = to_callback_result(apart, CLAIMS, ())
    assert said.result == PayloadRef(ref.sha256, ref.size, ref.chunks)


@pytest.mark.parametrize("error", [None, {"code": "refused", "message": "no"}])
def test_a_refusal_has_a_reason_and_no_result(error: dict[str, str] | None) -> None:
    read, claims = read_message(message(outcome="refused", error=error), KEYS)
    said = to_callback_result(read, claims, ())
    assert said.result is None
    assert said.fault in {Fault("refused", "no"), Fault("refused", "the callback gave no reason")}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token": TOKEN[:-1]}, "forged-token"),
        ({"token": ""}, "invalid"),
        ({"token": "x" * (TOKEN_LENGTH_MAX + 1)}, "invalid"),
        ({"token": None}, "invalid"),
        ({"outcome": "perhaps"}, "invalid"),
        ({"outcome": None}, "invalid"),
        ({"extra": 1}, "invalid"),
        ({"error": {"code": "x"}}, "invalid"),
        ({"result": "x" * (RESULT_BYTES_MAX + 1)}, "result-too-large"),
        ({"result_ref": REF | {"size": RESULT_BYTES_MAX + 1}}, "result-too-large"),
        ({"result_ref": REF | {"sha256": "../x"}}, "invalid"),
        ({"result": "x" * CALLBACK_BYTES_MAX}, "too-large"),
    ],
)
def test_a_message_that_is_none_is_refused_with_a_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MalformedError) as caught:
        read_message(message(**changes), KEYS)
    assert caught.value.reason == reason
    assert TOKEN not in caught.value.description


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not-json"),
        (b"\xff", "not-utf-8"),
        (b"[]", "invalid"),
        (b'{"outcome":"done","outcome":"refused"}', "duplicate-key"),
        (b'{"outcome":"done","result":NaN}', "not-finite"),
        (b'{"outcome":"done","token":"t"}', "invalid"),
        (b'{"outcome":"done","result":' + b"[" * 31 + b"]" * 31 + b"}", "too-deep"),
    ],
)
def test_a_body_that_is_none_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_body(body)
    assert caught.value.reason == reason


def test_a_result_as_deep_as_a_result_may_be_is_taken() -> None:
    deep = "[" * CONTENT_DEPTH_MAX + "]" * CONTENT_DEPTH_MAX
    body = f'{{"outcome":"done","result":{deep}}}'.encode()
    assert parse_body(body).outcome == "done"


def test_without_a_key_a_message_is_refused_with_what_to_set() -> None:
    with pytest.raises(MalformedError, match="SAS_CALLBACK_KEY") as caught:
        read_message(message(), CallbackKeys())
    assert caught.value.reason == "callbacks-off"


def test_the_same_callback_twice_has_one_id_and_another_has_another() -> None:
    one = parse_message(message())
    assert own_id(one) == own_id(parse_message(message()))
    others = [
        message(result={"signed_by": "Bob"}),
        message(outcome="refused", result=None),
        message(outcome="refused", result=None, error={"code": "a", "message": "b"}),
        message(token=KEYS.issue(msgspec.structs.replace(CLAIMS, step=4))),
    ]
    ids = {own_id(parse_message(body)) for body in others}
    assert len(ids | {own_id(one)}) == 5


SCHEMA = load("callback.schema.json")


def test_the_schema_names_the_members_that_the_code_reads_and_no_other() -> None:
    code = msgspec.json.schema(CallbackMessage)["$defs"]["CallbackMessage"]
    ours = {"id"}  # only the endpoint gives it, with an encoded result
    assert SCHEMA["properties"].keys() == code["properties"].keys() - ours
    assert set(SCHEMA["required"]) == set(code["required"])
    assert SCHEMA["properties"]["token"]["maxLength"] == TOKEN_LENGTH_MAX
    assert f"{CALLBACK_BYTES_MAX:,} bytes" in SCHEMA["description"]
    said = SCHEMA["properties"]["result"]["description"]
    assert f"{RESULT_BYTES_MAX:,} bytes, {CONTENT_DEPTH_MAX} levels" in said
    assert f"{RESULT_INLINE_BYTES_MAX:,} bytes" in SCHEMA["properties"]["result_ref"]["description"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"result": None},
        {"outcome": "refused", "error": {"code": "a", "message": "b"}},
        {"outcome": "perhaps"},
        {"token": None},
        {"token": ""},
        {"extra": 1},
        {"result_ref": REF},
        {"result_ref": {}},
        {"result_ref": REF | {"sha256": "A" * 64}},
        {"result_ref": REF | {"size": -1}},
        {"result_ref": REF | {"size": RESULT_BYTES_MAX + 1}},
        {"result_ref": REF | {"chunks": 100}},
        {"result_ref": REF | {"more": 1}},
        {"error": {"code": "a"}},
        {"error": {"code": "a", "message": 1}},
        {"error": "lost"},
    ],
)
def test_the_schema_and_the_code_take_and_refuse_the_same(changes: dict[str, Any]) -> None:
    body = message(**changes)
    takes = True
    try:
        parse_message(body)
    except MalformedError:
        takes = False
    assert validator("callback.schema.json").is_valid(json.loads(body)) == takes


def test_no_member_has_the_name_of_metadata_that_a_body_could_forge() -> None:
    names = {name.replace("_", "").lower() for name in SCHEMA["properties"]}
    assert not names & {"messageid", "correlationid", "subject", "to", "replyto", "sessionid"}
