"""Secret fields from end to end in memory: at rest, in messages, to agents, to the operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.adapters.keyring import AesKeyRing
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.codec.orders import content_hash
from sas.codec.strict import MalformedError
from sas.domain.content import PayloadRef
from sas.domain.order import Details
from sas.domain.workflow import WorkflowError
from sas.engine.hooks import redact
from sas.features.field_encryption.encryption import FieldEncryption
from sas.features.field_encryption.redaction import WithheldError, redacted_error
from sas.ports import AwaitCallback, Call, Message, RefusedError, TransientError
from sas.testing.clock import START
from tests.unit.actors_kit import QUEUES, Kit, command, done, kit, letter, order

OLD, NEW = ("old", b"o" * 32), ("new", b"n" * 32)
CARD, NOTE = "4111-1111-1111-1111", "leave it at the back door"
FIELDS = {"chain": ("customer.card", "lines[].note"), "care": ("customer.card",)}
ORDER: dict[str, Any] = {
    "customer": {"card": CARD, "name": "Ann"},
    "lines": [{"note": NOTE, "n": 1}, {"n": 2}],
    "amount": 4111,
}


def encryption_of(
    *keys: tuple[str, bytes], secret: Mapping[str, Sequence[str]] = FIELDS
) -> FieldEncryption:
    return FieldEncryption(secret, AesKeyRing(keys or (NEW,)))


def encrypting_kit(**changes: Any) -> Kit:
    return kit(**{"encryption": encryption_of(), **changes})


def rotated(made: Kit, *keys: tuple[str, bytes]) -> Kit:
    """Return another instance beside, with other keys."""
    return kit(beside=made, instance="host-2", encryption=encryption_of(*keys))


def at_rest(made: Kit) -> str:
    """Return everything that the store and the queues hold, but the queue of orders itself."""
    stored = [repr(stored) for stored in made.store.orders.values()]
    queues = [name for name in made.bus.queues if name != QUEUES.orders]
    return str([*stored, made.store.payloads, [m for q in queues for m in made.bus.messages(q)]])


def calls(made: Kit, agent: str = "stock") -> list[Call]:
    return [call for _, call in made.agents[agent].calls]


def payload(made: Kit, order_id: str = "O-1") -> Any:
    return json.loads(str(made.order(order_id).details.payload))


async def test_secret_fields_rest_encrypted_and_their_agents_are_given_them_as_they_are() -> None:
    made = encrypting_kit()
    await made.submit(order(order=ORDER))
    for _ in range(20):
        assert CARD not in at_rest(made)
        assert NOTE not in at_rest(made)
        moving = [q for q in made.bus.queues if made.bus.messages(q) and not q.startswith("resp")]
        if not moving:
            break
        await made.step(moving[0])
    assert made.state() == "Processed"
    for agent in made.agents:
        assert [call.order for call in calls(made, agent)] == [ORDER]
    kept = payload(made)
    assert kept["customer"]["name"] == "Ann"
    assert kept["lines"][1] == {"n": 2}
    assert kept["amount"] == 4111
    for encrypted in (kept["customer"]["card"], kept["lines"][0]["note"]):
        assert list(encrypted) == ["$encrypted"]
        assert encrypted["$encrypted"].startswith("new:")


async def test_a_field_may_hold_anything_and_may_be_absent() -> None:
    for number, card in enumerate(
        [None, 7, 1.5, True, [1, {"a": "é\n"}], {"n": CARD}, "", "x" * 9]
    ):
        made = encrypting_kit()
        await made.submit(order(order={"customer": {"card": card}}), f"m-{number}")
        await made.drain()
        assert calls(made)[0].order == {"customer": {"card": card}}
    made = encrypting_kit()
    await made.submit(order(order={"amount": 1}))
    await made.drain()
    assert calls(made)[0].order == {"amount": 1}
    assert made.order().details.payload == '{"amount":1}'


async def test_an_order_of_a_workflow_without_secret_fields_is_kept_as_it_was_sent() -> None:
    made = kit(encryption=encryption_of(secret={"care": ("customer.card",)}))
    await made.submit(order(order={"a": {"$encrypted": "its own"}}))
    await made.drain()
    assert made.order().details.payload == '{"a": {"$encrypted": "its own"}}'
    assert calls(made)[0].order == {"a": {"$encrypted": "its own"}}
    assert calls(made)[0].secrets == ()


async def test_a_large_order_is_encrypted_before_it_is_offloaded() -> None:
    made = encrypting_kit()
    large = {**ORDER, "lines": [{"note": f"{NOTE} {n} " + "y" * 1000} for n in range(150)]}
    await made.submit(order(order=large))
    assert isinstance(made.order().details.payload, PayloadRef)
    await made.drain()
    assert NOTE not in at_rest(made)
    assert made.state() == "Processed"
    assert calls(made)[0].order == large


async def test_an_order_that_is_too_large_once_it_is_encrypted_is_refused() -> None:
    made = encrypting_kit()
    fields = {"lines": [{"note": "x" * 1000}] * 2_500}
    made.submitter = type(made.submitter)(made.context, made.business, 4 * 1024 * 1024)
    await made.submit(order(order=fields))
    assert made.told() == ["received"]
    await made.submit(order("O-2", order={"lines": [{"note": "x" * 1000}] * 3_500}), "m-2")
    (refused,) = [event.data.error for event in made.events() if event.data.error]
    assert refused.code == "too-large"
    assert "at most 4,194,304 can be stored" in refused.message
    assert "O-2" not in made.store.orders


@pytest.mark.parametrize(
    "forged",
    [
        {"customer": {"card": {"$encrypted": "new:AAAA"}}},
        {"customer": {"card": {"deeper": [{"$encrypted": "x"}]}}},
        {"elsewhere": {"$encrypted": "new:AAAA"}},
        {"customer": {"card": {"\u0024encrypted": 1, "more": 2}}},
    ],
)
async def test_a_sender_can_pass_nothing_for_encrypted(forged: dict[str, Any]) -> None:
    made = encrypting_kit()
    await made.submit(order(order=forged))
    (told,) = made.events()
    assert told.data.error is not None
    assert told.data.error.code == "invalid-order"
    assert "'$encrypted'" in told.data.error.message
    assert made.store.orders == {}


async def test_a_ciphertext_of_one_order_is_decrypted_in_no_other() -> None:
    made = encrypting_kit()
    await made.submit(order(order=ORDER))
    await made.submit(order("O-2", order=ORDER), "m-2")
    stolen, theirs = made.order().details, made.order("O-2").details
    made.store.orders["O-2"].order = replace(
        made.order("O-2"), details=replace(theirs, payload=stolen.payload)
    )
    made.context.kept.forget("O-2")  # as another process, which reads the row
    await made.drain()
    assert [call.order_id for call in calls(made)] == ["O-1"]
    assert {alert.kind for alert in made.alerts()} == {"unreadable"}


@pytest.mark.parametrize(
    "wrong", [{"customer": CARD}, {"lines": {"note": NOTE}}, {"lines": [NOTE]}]
)
async def test_what_is_not_where_it_should_be_is_refused_rather_than_kept_in_clear(
    wrong: dict[str, Any],
) -> None:
    made = encrypting_kit()
    await made.submit(order(order=wrong))
    (told,) = made.events()
    assert told.data.error is not None
    assert "which holds a secret field" in told.data.error.message
    assert made.store.orders == {}


async def test_a_repeat_is_known_for_one_and_another_order_is_not_whatever_the_key() -> None:
    made = kit(encryption=encryption_of(OLD))
    await made.submit(order(order=ORDER))
    after = rotated(made, NEW, OLD)
    await after.submit(order(order=ORDER), "m-2")
    assert after.events()[-1].data.duplicate
    await after.submit(order(order={**ORDER, "customer": {"card": "4222"}}), "m-3")
    assert after.events()[-1].data.error is not None
    assert [event.data.duplicate for event in after.events()] == [False, True, False]
    gone = rotated(made, NEW)
    await gone.submit(order(order=ORDER), "m-4")
    error = gone.events()[-1].data.error
    assert error is not None
    assert (error.code, "is gone, so the two cannot be compared" in error.message) == (
        "order-id-taken",
        True,
    )


async def test_an_order_without_any_id_is_repeated_once_across_a_rotation() -> None:
    made = kit(encryption=encryption_of(OLD))
    await made.submit(order(order=ORDER), "")
    after = rotated(made, NEW, OLD)
    await after.submit(order(order=ORDER), "")
    assert [event.data.duplicate for event in made.events()] == [False, False]
    assert {event.id for event in made.events()} == {"O-1/1/1"}


async def test_no_hash_that_is_stored_lets_a_reader_try_what_was_ordered() -> None:
    made = encrypting_kit()
    await made.submit(order(order=ORDER), "")
    plain = content_hash("chain", "responses-shop", ORDER)
    assert plain not in at_rest(made)
    assert made.order().details.content_hash.startswith("hmac-sha256:new:")


async def test_an_order_stored_before_its_fields_were_named_goes_on() -> None:
    made = kit()
    await made.submit(order(order=ORDER))
    after = rotated(made, NEW)
    await after.drain()
    assert after.state() == "Processed"
    assert calls(after)[0].order == ORDER
    assert CARD in calls(after)[0].secrets
    await after.submit(order(order=ORDER), "m-2")
    assert after.events()[-1].data.duplicate


async def test_a_field_that_is_no_longer_named_is_decrypted_all_the_same() -> None:
    made = encrypting_kit()
    await made.submit(order(order=ORDER))
    after = kit(beside=made, instance="host-2", encryption=encryption_of(secret={"chain": ()}))
    await after.drain()
    assert calls(after)[0].order == ORDER
    assert {CARD, NOTE} <= set(calls(after)[0].secrets)


async def test_a_step_whose_key_is_missing_waits_with_an_alert_until_it_is_back() -> None:
    made = kit(encryption=encryption_of(OLD))
    await made.submit(order(order=ORDER))
    without = rotated(made, NEW)
    await without.step(QUEUES.scheduler)
    await without.step(QUEUES.agent("stock"))
    assert calls(made) == []
    (alert,) = made.alerts()
    assert (alert.kind, alert.scope) == ("key-missing", "key old")
    assert "'old', which is not in SAS_ENCRYPTION_KEYS: add it again" in alert.text
    await made.later(13)
    await rotated(made, NEW, OLD).drain()
    assert made.state() == "Processed"
    assert calls(made)[0].order == ORDER


async def test_a_given_up_order_keeps_its_place_encrypted() -> None:
    made = encrypting_kit()
    await made.run(made.dead_letters.handle(letter(order(order=ORDER), QUEUES.orders)))
    assert made.state() == "Rejected"
    assert CARD not in repr(made.store.orders)
    await made.submit(order(order=ORDER, submission_id="again"), "m-2")
    await made.drain()
    assert calls(made)[0].order == ORDER


async def test_a_dead_letter_that_would_be_refused_is_put_aside_and_keeps_no_place() -> None:
    made = encrypting_kit()
    for content in ({"customer": CARD}, {"customer": {"card": {"$encrypted": "x"}}}):
        await made.run(made.dead_letters.handle(letter(order(order=content), QUEUES.orders)))
    assert made.store.orders == {}
    assert len(made.rejected()) == 2


async def failed(made: Kit) -> Kit:
    """An order of the workflow that holds, its step ``reserve`` refused."""
    made.agents["stock"].then(RefusedError("no", "declined"))
    await made.submit(order(order={"customer": {"card": CARD, "n": 1}}, workflow="care"))
    await made.drain()
    return made


async def resubmit(made: Kit, value: Any, verb: Any = "resubmit", wish: str = "w-1") -> None:
    body = internal.encode(
        CommandMessage(
            id=wish,
            order_id="O-1",
            verb=verb,
            seq=made.order().seq,
            by="ann",
            step="reserve",
            input=internal.raw(json.dumps(value)),
        )
    )
    await made.hand(Message(QUEUES.scheduler, wish, body))


async def test_an_operators_input_is_encrypted_as_the_order_is() -> None:
    made = await failed(encrypting_kit())
    await resubmit(made, {"customer": {"card": "4222-2222", "n": 2}})
    assert "4222-2222" not in at_rest(made)
    assert made.order().steps[0].call.edited is not None
    await made.drain()
    assert calls(made)[-1].order == {"customer": {"card": "4222-2222", "n": 2}}
    assert made.state() == "Processed"


async def test_an_operator_who_cannot_read_a_field_hands_it_on_as_it_was_shown() -> None:
    made = await failed(encrypting_kit())
    shown = payload(made)
    shown["customer"]["n"] = 2
    await resubmit(made, shown)
    assert json.loads(made.order().steps[0].call.edited or "") == shown
    await made.drain()
    assert calls(made)[-1].order == {"customer": {"card": CARD, "n": 2}}


async def test_an_operator_cannot_move_ciphertext_and_gets_a_reason() -> None:
    made = await failed(encrypting_kit())
    encrypted = payload(made)["customer"]["card"]
    for number, value in enumerate(
        [
            {"customer": {"card": "x", "n": encrypted}},
            {"customer": {"card": {"$encrypted": "new:AAAA"}}},
            {"customer": {"card": {"$encrypted": 7}}},
            {"customer": "none"},
            {"customer": {"card": "z" * 3500}},
        ]
    ):
        await resubmit(made, value, wish=f"w-{number}")
    refusals = [alert.text for alert in made.alerts() if alert.kind == "command-refused"]
    assert len(refusals) == 5
    assert all("for this place of this order" in text for text in refusals[:3])
    assert "which holds a secret field" in refusals[3]
    assert "with its secret fields encrypted" in refusals[4]
    assert made.states() == ["Error", "Processed"]
    assert calls(made)[1:] == []


async def used_again() -> tuple[Kit, Any, Any]:
    """Return a kit whose order has the id of one that was purged, and the cards of both, as they
    are stored.
    """
    made = await failed(encrypting_kit())
    former = payload(made)["customer"]["card"]
    made.store.orders.clear()
    await made.later(3600)
    made.agents["stock"].then(RefusedError("no", "declined"))
    other = {"customer": {"card": "5500-0000-0000-0004", "n": 1}}
    await made.submit(order(order=other, workflow="care", submission_id="s-2"), "m-2")
    await made.drain()
    return made, former, payload(made)["customer"]["card"]


async def test_what_was_encrypted_for_a_former_order_of_an_id_is_not_taken_for_a_later_one() -> (
    None
):
    made, former, later = await used_again()
    before = len(calls(made))
    await resubmit(made, {"customer": {"card": former}})
    assert "for this place of this order" in made.alerts()[-1].text
    assert len(calls(made)) == before
    await resubmit(made, {"customer": {"card": later}}, wish="w-2")
    await made.drain()
    assert calls(made)[-1].order == {"customer": {"card": "5500-0000-0000-0004"}}


async def test_a_row_with_the_ciphertext_of_a_former_order_reaches_no_agent() -> None:
    """A person who can write to the table makes an agent charge another card."""
    made, former, _ = await used_again()
    stored = made.store.orders["O-1"]
    forged = json.dumps({"customer": {"card": former, "n": 1}})
    details = replace(stored.order.details, payload=forged)
    stored.order = replace(stored.order, details=details)
    before = len(calls(made))
    await made.hand(command("resubmit", made.order().seq))
    await made.drain()
    await made.later(20)
    assert len(calls(made)) == before
    assert "was changed or moved" in made.alerts()[-1].text


async def test_an_operator_gets_an_alert_for_a_missing_key() -> None:
    made = await failed(kit(encryption=encryption_of(OLD)))
    await resubmit(rotated(made, NEW), payload(made))
    assert "needs the key 'old', which is not in SAS_ENCRYPTION_KEYS" in made.alerts()[-1].text
    assert made.states()[0] == "Error"


async def test_the_result_given_for_a_skipped_step_is_not_checked_as_an_order() -> None:
    made = await failed(encrypting_kit())
    await resubmit(made, {"customer": "a word"}, verb="skip")
    assert made.order().steps[0].result == '{"customer": "a word"}'


async def test_a_refusal_an_excuse_and_a_note_are_kept_without_the_secrets_they_quote() -> None:
    made = encrypting_kit()
    made.agents["stock"].then(
        TransientError(f"{CARD} is busy", kind=CARD),
        AwaitCallback(timedelta(seconds=60), f"asked for {CARD}"),
    )
    await made.submit(order(order=ORDER))
    await made.drain()
    assert made.order().steps[0].note == "asked for (secret)"
    error = made.store.orders["O-1"].errors[0]
    assert (error.kind, error.message) == ("(secret)", "(secret) is busy")
    await made.hand(done())
    made.agents["payment"].then(RefusedError(f"no-{CARD}", f"card {CARD} of {NOTE!r} declined"))
    await made.drain()
    (told,) = [e.data.error for e in made.events() if e.data.error]
    assert (told.code, told.message) == ("no-(secret)", "card (secret) of '(secret)' declined")
    assert CARD not in at_rest(made)


@pytest.mark.parametrize("flags", [{}, {"answered": True}, {"error_answer": True}], ids=str)
def test_a_redacted_transient_error_keeps_every_other_member(flags: dict[str, bool]) -> None:
    """Otherwise the circuit breaker would take an answer of the service for a failure."""
    error = TransientError(f"{CARD} is busy", timedelta(seconds=7), "http-409", **flags)
    kept = redacted_error(error, "agent stock", (CARD,))
    assert isinstance(kept, TransientError)
    assert str(kept) == "(secret) is busy"
    assert vars(kept) == vars(error)
    assert kept.retry_after == timedelta(seconds=7)


async def test_the_error_of_an_agents_bug_has_its_place_and_not_its_text() -> None:
    made = encrypting_kit()
    made.agents["stock"].then(KeyError(CARD))
    await made.submit(order(order=ORDER))
    with pytest.raises(WithheldError) as raised:
        await made.drain()
    said = str(raised.value)
    assert "agent stock raised KeyError (actors_kit.py, line " in said
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    assert CARD not in said


async def test_a_bug_in_an_order_without_secrets_is_raised_unchanged() -> None:
    made = encrypting_kit()
    made.agents["stock"].then(KeyError("amount"))
    await made.submit(order(order={"amount": 1}))
    with pytest.raises(KeyError, match="amount"):
        await made.drain()


async def test_the_error_of_the_content_check_quotes_no_secret() -> None:
    def check(body: bytes) -> None:
        card = json.loads(body)["customer"]["card"]
        if card == "bug":
            raise KeyError(body.decode())
        raise ValueError(f"the card {card!r} cannot be")

    made = encrypting_kit(chain=check)
    await made.submit(order(order=ORDER))
    (told,) = made.events()
    assert told.data.error is not None
    assert told.data.error.message == "the card '(secret)' cannot be"
    with pytest.raises(WithheldError, match="the check of workflow chain raised KeyError") as bug:
        await made.submit(order(order={"customer": {"card": "bug"}}), "m-2")
    assert bug.value.__context__ is None


def test_a_call_shows_no_content_of_an_order() -> None:
    at = kit().clock.now()
    call = Call("O-1", "s", "k", at, {"card": CARD}, {"a": CARD}, CARD, (CARD,))
    assert CARD not in repr(call)
    assert "O-1" in repr(call)


def test_a_secret_is_taken_out_whole_before_a_shorter_one_within_it() -> None:
    ring = encryption_of(secret={"w": ("a", "b", "c")})
    _, secrets = ring.decrypt("w", "O", "s", {"a": "abcdef", "b": "cde", "c": "é\n", "n": "no"})
    assert secrets.index("abcdef") < secrets.index("cde")
    assert redact("abcdef cde é\\n no", secrets) == "(secret) (secret) (secret) no"


def test_secret_fields_are_checked_when_the_app_starts() -> None:
    for fields, why in (
        ({"chain": ("a..b",)}, "secret_fields of workflow 'chain': 'a..b' is not a path"),
        ({"chain": ("a", "a.b")}, "one contains the other"),
    ):
        with pytest.raises(WorkflowError, match=why):
            FieldEncryption(fields, AesKeyRing([NEW]))
    assert FieldEncryption(FIELDS, AesKeyRing([NEW])) is not None


def test_without_keys_the_error_for_an_encrypted_field_says_what_is_missing() -> None:
    encrypted = {"customer": {"card": {"$encrypted": "new:AAAA"}}}
    details = Details("O-1", "chain", 1, "{}", "h", "responses-shop", None, START)
    with pytest.raises(Exception, match="SAS_ENCRYPTION_KEYS is missing"):
        FieldEncryption(FIELDS).decrypt("chain", "O-1", "s", encrypted)
    with pytest.raises(MalformedError):
        encryption_of().encrypt_input(details, json.dumps(encrypted))
