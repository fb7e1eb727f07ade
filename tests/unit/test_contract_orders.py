"""The schemas of what applications send, held to the code that takes it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import azure.functions
import azure.functions.servicebus as trigger
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sas.codec.orders import OrderMessage, parse_order
from sas.codec.strict import MalformedError
from sas.domain.queues import ForbiddenReplyQueueError, Queues
from tests.each import each
from tests.unit.codec_cases import BAD, FINE, FORBIDDEN_IN_IDS, GOOD, body
from tests.unit.contract_files import load, validator

MESSAGE = validator("order-message.schema.json")
TEXT_LEVEL = {
    "not-json", "not-utf-8", "not-unicode", "not-finite", "duplicate-key", "too-deep", "too-large",
}  # fmt: skip
"""What a schema cannot see: README says it in words."""


def code_takes(message: bytes) -> bool:
    try:
        Queues().check_reply_queue(parse_order(message, "m").reply_queue)
    except (MalformedError, ForbiddenReplyQueueError):
        return False
    return True


def schema_takes(message: bytes) -> bool:
    return bool(MESSAGE.is_valid(json.loads(message)))


def test_the_schema_names_the_members_that_the_code_reads_and_no_other() -> None:
    code = msgspec.json.schema(OrderMessage)["$defs"]["OrderMessage"]
    schema = load("order-message.schema.json")
    assert schema["properties"].keys() == code["properties"].keys()
    assert set(schema["required"]) == set(code["required"])
    assert schema["additionalProperties"] is code["additionalProperties"] is False


REPLY_QUEUES = {
    "responses-web-shop": True,
    "responses-a": True,
    "responses-A.b_c-9": True,
    "responses-" + "a" * 190: True,
    "responses-" + "a" * 191: False,
    "responses-": False,
    "responses": False,
    "Responses-a": False,
    "responses-a-": False,
    "responses-.": False,
    "responses-a/b": False,
    "responses-a\n": False,
    "responses-ü": False,
    "orders": False,
    "scheduler": False,
}


@each(list(REPLY_QUEUES))
def test_code_and_schema_agree_on_reply_queues(name: str) -> None:
    message = body(reply_queue=name)
    assert code_takes(message) is schema_takes(message) is REPLY_QUEUES[name]


@each(list(FINE))
def test_code_and_schema_both_take_what_is_fine(name: str) -> None:
    assert code_takes(FINE[name])
    assert schema_takes(FINE[name])


@each([n for n, (_, reason) in BAD.items() if reason not in TEXT_LEVEL])
def test_code_and_schema_both_refuse_what_is_bad(name: str) -> None:
    assert not code_takes(BAD[name][0])
    assert not schema_takes(BAD[name][0])


@each(sorted(TEXT_LEVEL - {"not-json", "not-utf-8"}))
def test_the_readme_states_the_rules_that_no_schema_can_express(reason: str) -> None:
    readme = (Path(__file__).parents[2] / "docs" / "contract" / "README.md").read_text("utf-8")
    assert f"`{reason}`" in readme


@each(FORBIDDEN_IN_IDS)
def test_code_and_schema_agree_on_every_forbidden_character(character: str) -> None:
    for order_id in (f"A{character}1", f"A{character}", f"{character}1", character):
        assert not code_takes(body(order_id=order_id))
        assert not schema_takes(body(order_id=order_id))


IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=130) | st.text(
    st.sampled_from("aA1 -_.:@+=,~;$&><()`'{}\u00a0\u2003\u3000\ufeff\n\t\x7f\x85/\\#?|ü🙂"),
    max_size=12,
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2_000_000)
    | st.sampled_from(["", "order", "responses-a", "x" * 41, "x" * 129, 0.5, -1, 1_000_001])
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
    max_leaves=5,
)


@given(IDS)
def test_the_schema_takes_each_order_id_that_the_code_takes_and_no_other_of_ascii(
    order_id: str,
) -> None:
    message = body(order_id=order_id)
    assert schema_takes(message) or not code_takes(message)
    assert code_takes(message) or not (schema_takes(message) and order_id.isascii())


@each([(50, True), (51, False), (100, False)])
def test_the_schema_takes_more_characters_that_count_two_and_documents_the_limit(
    count: int, is_accepted: bool
) -> None:
    message = body(order_id="\U00020000" * count)  # a letter
    assert code_takes(message) is is_accepted
    assert schema_takes(message)
    description = load("order-message.schema.json")["$defs"]["orderId"]["description"]
    assert "at most 100 UTF-16 code units" in description


@given(IDS)
def test_code_and_schema_agree_on_any_id_of_the_application(own_id: str) -> None:
    for member in ("correlation_id", "submission_id"):
        message = body(**{member: own_id})
        assert code_takes(message) is schema_takes(message)


@given(
    st.dictionaries(
        st.sampled_from(
            [*GOOD, "correlation_id", "submission_id", "workflow_version", "Order", "x"]
        ),
        ANYTHING,
        max_size=4,
    ),
    st.sets(st.sampled_from(sorted(GOOD)), max_size=2),
)
def test_code_and_schema_agree_whatever_the_members_hold(
    members: dict[str, Any], missing_names: set[str]
) -> None:
    changed = {name: value for name, value in (GOOD | members).items() if name not in missing_names}
    message = json.dumps(changed).encode()
    assert schema_takes(message) or not code_takes(message)
    if str(changed.get("order_id", "")).isascii():
        assert code_takes(message) is schema_takes(message)


def test_whole_numbers_are_written_without_a_fraction_which_no_schema_can_express() -> None:
    message = body(workflow_version=1.0)
    assert schema_takes(message)
    assert not code_takes(message)


def metadata_names() -> set[str]:
    """Return what the trigger calls the properties of a message, from the installed library."""
    source = inspect.getsource(trigger)
    decoded = set(re.findall(r"trigger_metadata,\s*'(\w+)'", source))
    binding_names = {
        name.replace("_", "")
        for name, _ in inspect.getmembers(azure.functions.ServiceBusMessage)
        if not name.startswith("_")
    }
    documented = {
        "Client", "DeadLetterErrorDescription", "EnqueuedSequenceNumber", "LockedUntil",
        "MessageReceiver", "MessageSession", "Subject", "sys",
    }  # fmt: skip
    return {name.lower() for name in decoded | binding_names | documented}


def test_no_member_of_an_order_message_is_called_like_metadata_of_the_trigger() -> None:
    """The host lets a JSON body's members override the trigger's metadata of the same name."""
    metadata = metadata_names()
    assert {"messageid", "correlationid", "replyto", "deliverycount", "sessionid"} < metadata
    assert {"to", "label", "subject", "timetolive", "locktoken", "userproperties"} < metadata
    members = {name.lower() for name in load("order-message.schema.json")["properties"]}
    assert not members & metadata
