"""With a payload codec nothing that is stored, sent or held has the content of an order or result.

Only what a sender wrote stays as it is: see docs/payload-codec.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet

from sas.adapters.payload_codec import FernetCodec
from sas.bounds import EDITED_UNITS_MAX, RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.codec.orders import ORDER_BYTES_MAX
from sas.codec.payloads import decode_content, decode_order, encode_content, is_encoded
from sas.codec.results import encode_result
from sas.domain.content import PayloadRef
from sas.domain.messages import Verb
from sas.domain.order import Fault
from sas.operate import commands
from sas.operate.commands import Intent, OrderCommand
from sas.operate.errors import UsageError
from sas.ports import (
    AwaitCallback,
    BusUnavailableError,
    Call,
    Callback,
    DecodingError,
    Message,
    RefusedError,
    StillRunning,
    StoreUnavailableError,
    TransientError,
    UnavailableError,
)
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.payload_codec_kit import MARK, CheapCodec
from tests.unit.actors_kit import CARE, CHAIN, QUEUES, SHOP, Kit, kit, letter, order
from tests.unit.cli_kit import Night
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

CONTENT = {"card": f"4111-{MARK}", "lines": [{"note": MARK}]}
LARGE = {**CONTENT, "more": [f"{MARK} {n}" for n in range(7_000)]}
RESULT = {"paid_by": MARK}
EDITED = {"edited": MARK}
LARGE_RESULT = {"pages": [f"{MARK} {n}" for n in range(7_000)]}
HOUR = timedelta(hours=1)


class Ear:
    """Hears everything that is sent in a run."""

    def __init__(self, made: Kit) -> None:
        self.sent: list[Message] = []
        self._send = made.bus.send
        made.bus.send = self._hear  # type: ignore[method-assign]

    async def _hear(self, messages: Sequence[Message]) -> None:
        self.sent += messages
        await self._send(messages)


def texts_of(made: Kit, ear: Ear) -> list[str]:
    """Return everything that was sent, and all that is stored, held or put aside.

    An order on its queue, and a letter of that queue, stay as their sender wrote them.
    """
    texts = [repr(stored) for stored in made.store.orders.values()]
    texts += [repr(vars(made.store)[name]) for name in ("_due", "_shared", "_deferred")]
    texts += [repr(made.store.payloads)]
    queued = [message for queue in made.bus.queues for message in made.bus.messages(queue)]
    texts += [repr(one) for one in [*ear.sent, *queued] if not is_the_sender_s(one)]
    return texts


def is_the_sender_s(message: Message) -> bool:
    if message.queue != QUEUES.rejected:
        return message.queue == QUEUES.orders
    return bool(json.loads(message.body)["source_queue"] == QUEUES.orders)


async def command(made: Kit, order_id: str, verb: Verb, step: str, given: Any) -> None:
    """Give a command with an input, as the command and the desk do."""
    text = commands.checked_input(json.dumps(given).encode(), "--input", made.context.codec)
    asked = [OrderCommand(order_id=order_id, seq=made.order(order_id).seq)]
    await made.run(
        commands.send(made.bus, asked, Intent(verb=verb, by="ann", step=step, input=text), QUEUES)
    )
    await made.drain()


async def callback_of(made: Kit, order_id: str) -> Callback:
    """Return the callback that the first step of a new order waits for."""
    given: list[Callback] = []

    async def ask(call: Call) -> Any:
        given.append(call.callback(HOUR))
        return AwaitCallback(HOUR)

    made.agents["stock"].then(ask)
    await made.submit(order(order_id, order=CONTENT), f"m-{order_id}")
    await made.drain()
    return given[0]


async def post(made: Kit, callback: Callback, result: Any) -> int:
    body = json.dumps({"outcome": "done", "result": result}).encode()
    return (await made.run(made.callbacks.answer(callback.token, None, body))).status


async def orders_that_are_done_or_undone(made: Kit) -> None:
    stock, payment = made.agents["stock"], made.agents["payment"]
    stock.then(RESULT)
    payment.then(StillRunning(timedelta(seconds=5)), LARGE_RESULT)
    await made.submit(order(order=CONTENT))
    await made.drain()
    await made.later(6)
    await made.drain()
    assert made.state() == "Processed"
    await made.submit(order(order=CONTENT), "m-2")  # the same again
    await made.submit(order(order=LARGE), "m-3")  # other content under its id
    assert {one.reason for one in made.rejected()} == {"order-id-taken"}
    stock.then(LARGE_RESULT)
    payment.then(RESULT)
    await made.submit(order("L-1", order=LARGE), "m-4")
    await made.drain()
    assert made.state("L-1") == "Processed"
    stock.then(TransientError("busy"), RESULT)
    payment.then(RefusedError("declined", "no"))
    await made.submit(order("U-1", order=CONTENT), "m-5")
    await made.drain()
    assert made.state("U-1") == "Compensated"


async def inputs_of_an_operator(made: Kit) -> None:
    made.agents["stock"].then(RefusedError("sold-out", "no"), RESULT)
    made.agents["payment"].then(RefusedError("declined", "no"))
    await made.submit(order("E-1", order=CONTENT, workflow="care"), "m-6")
    await made.drain()
    await command(made, "E-1", verb=Verb.RESUBMIT, step="reserve", given=EDITED)
    await command(made, "E-1", verb=Verb.SKIP, step="pay", given=RESULT)
    assert made.state("E-1") == "Processed"
    assert made.agents["stock"].calls[-1][1].order == EDITED


async def results_from_outside(made: Kit) -> None:
    for order_id, result in (("C-1", RESULT), ("C-2", LARGE_RESULT)):
        callback = await callback_of(made, order_id)
        assert [await post(made, callback, result) for _ in range(2)] == [202, 202]
        assert await post(made, callback, {"other": MARK}) == 409
        await made.drain()
        assert await post(made, callback, result) == 200
        assert made.agents["payment"].calls[-1][1].results == {"reserve": result}


async def faults_and_dead_letters(made: Kit) -> None:
    faults = (StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER, StoreFault.CONFLICT)
    for number, fault in enumerate(faults):
        body = order(f"F-{number}", order=LARGE)
        made.store.fail_next("commit", fault)
        with suppress(StoreUnavailableError):
            await made.submit(body, f"f-{number}")
        await made.run(made.dead_letters.handle(letter(body, QUEUES.orders, f"f-{number}")))
    for number, lost in enumerate((BusFault.UNAVAILABLE, BusFault.LOST_ANSWER)):
        made.bus.fail_next(lost)
        with suppress(BusUnavailableError):
            await made.submit(order(f"B-{number}", order=CONTENT), f"b-{number}")
    await made.drain()
    await made.submit(order("D-1", order=CONTENT), "d-1")
    await made.submit(order("D-2", order=LARGE), "d-2")
    for _ in range(2):
        await made.step(QUEUES.scheduler)
        request = made.bus.take(QUEUES.agent("stock"))
        assert request is not None
        await made.run(made.dead_letters.handle(letter(request)))


async def deferred_messages(made: Kit) -> None:
    """The queue of the application, and that of callbacks, are away at the end."""
    callback = await callback_of(made, "H-1")
    away = {SHOP, QUEUES.callbacks}
    made.bus.plan = lambda message: BusFault.UNAVAILABLE if message.queue in away else None
    assert await post(made, callback, RESULT) == 202
    made.agents["stock"].then(RESULT)
    await made.submit(order("H-2", order=CONTENT), "h-2")
    await made.drain()
    assert {message.queue for message in made.store._deferred.values()} == away


async def every_path(made: Kit) -> Ear:
    """Take content and results along every path there is."""
    ear = Ear(made)
    await orders_that_are_done_or_undone(made)
    await inputs_of_an_operator(made)
    await results_from_outside(made)
    await faults_and_dead_letters(made)
    await deferred_messages(made)
    return ear


async def test_content_is_in_nothing_that_is_stored_sent_held_or_put_aside() -> None:
    made = kit(CHAIN, CARE, codec=CheapCodec())
    texts = texts_of(made, await every_path(made))
    assert [text[:300] for text in texts if MARK in text] == []


async def test_without_a_codec_the_same_run_has_content_at_every_place_that_is_looked_at() -> None:
    made = kit(CHAIN, CARE)
    ear = await every_path(made)
    sent = {message.queue for message in ear.sent if MARK in repr(message)}
    agents = {QUEUES.agent(name) for name in made.agents}
    assert sent >= {*agents, QUEUES.replies, QUEUES.scheduler, QUEUES.callbacks, SHOP}
    letters = [one for one in made.rejected() if MARK in one.body]
    assert {one.source_queue for one in letters} == {QUEUES.orders, QUEUES.agent("stock")}
    held = {message.queue for message in made.store._deferred.values() if MARK in repr(message)}
    assert held == {SHOP, QUEUES.callbacks}
    orders = [stored.order for stored in made.store.orders.values()]
    inline = [one for one in orders if isinstance(one.details.payload, str)]
    assert len(inline) > 5
    assert all(MARK in repr(one) for one in inline)
    assert MARK in repr(made.store.payloads)


async def test_agents_get_plain_content_and_an_application_with_the_codec_reads_results() -> None:
    made = kit(codec=CheapCodec())
    made.agents["stock"].then(RESULT)
    made.agents["payment"].then(RESULT, RefusedError("no", "no"))
    await made.submit(order(order=CONTENT))
    await made.drain()
    call = made.agents["payment"].calls[0][1]
    assert (call.order, call.results) == (CONTENT, {"reserve": RESULT})
    results = made.events()[-1].data.results
    assert results is not None
    text = bytes(results["pay"]).decode()
    assert json.loads(decode_content(text, CheapCodec())) == RESULT


async def test_a_step_waits_for_a_missing_key_and_one_incident_tells_of_all_orders() -> None:
    made = kit(codec=CheapCodec())
    for number in range(3):
        await made.submit(order(f"O-{number}", order=CONTENT), f"m-{number}")
    without = [kit(beside=made), kit(beside=made, codec=CheapCodec("other"))]
    for other in without:
        await other.drain()
        await made.later(13)
    assert [call for agent in made.agents.values() for call in agent.calls] == []
    alerts = [one.scope for one in made.alerts() if one.kind == "unreadable"]
    assert alerts == ["payload codec"]
    for _ in range(4):
        await made.later(13)
        await made.sweep()
        await made.drain()
    for number in range(3):
        assert made.state(f"O-{number}") == "Processed"
        assert made.order(f"O-{number}").failure_count == 0


async def test_an_order_from_before_the_codec_is_carried_on_and_its_results_are_encoded() -> None:
    made = kit()
    await made.submit(order(order=CONTENT))
    made = kit(beside=made, codec=CheapCodec())
    await made.drain()
    assert made.state() == "Processed"
    assert made.agents["payment"].calls[0][1].order == CONTENT
    details, results = made.order().details, [step.result for step in made.order().steps]
    assert details.payload == json.dumps(CONTENT)
    assert [isinstance(one, str) and is_encoded(one) for one in results] == [True, True]
    await made.submit(order(order=CONTENT), "m-2")
    assert made.events()[-1].data.duplicate  # the hash is of the plain content


def test_text_that_nests_too_deep_is_not_encoded() -> None:
    assert not is_encoded('{"$encoded":' + "[" * 200_000)


@pytest.mark.parametrize("codec", [None, CheapCodec()])
async def test_nobody_outside_may_say_that_content_is_encoded(codec: CheapCodec | None) -> None:
    made = kit(CHAIN, CARE, codec=codec)
    forged = {"$encoded": "k1.1.e30="}
    await made.submit(order("X-1", order=forged))
    assert [one.reason for one in made.rejected()] == ["invalid-order"]
    callback = await callback_of(made, "X-2")
    assert await post(made, callback, forged) == 400
    made.agents["stock"].then(forged)
    await made.submit(order("X-3", workflow="care"), "m-3")
    await made.drain()
    error = made.order("X-3").steps[0].error
    assert error is not None
    assert error.code == "result-not-plain"


async def test_an_input_that_the_scheduler_cannot_decode_is_refused() -> None:
    made = kit(CARE, codec=CheapCodec())
    made.agents["stock"].then(RefusedError("no", "no"))
    await made.submit(order(workflow="care"))
    await made.drain()
    text = encode_content(json.dumps(EDITED), CheapCodec("other"))
    intent = Intent(verb=Verb.RESUBMIT, by="ann", step="reserve", input=text)
    await made.run(
        commands.send(
            made.bus, [OrderCommand(order_id="O-1", seq=made.order().seq)], intent, QUEUES
        )
    )
    await made.drain()
    assert "its input is not accepted: the key other is missing" in made.alerts()[-1].text


async def test_an_input_in_plain_text_is_encoded_at_the_scheduler() -> None:
    made = kit(CARE, codec=CheapCodec())
    made.agents["stock"].then(RefusedError("no", "no"))
    await made.submit(order(workflow="care"))
    await made.drain()
    intent = Intent(verb=Verb.RESUBMIT, by="ann", step="reserve", input=json.dumps(EDITED))
    await made.run(
        commands.send(
            made.bus, [OrderCommand(order_id="O-1", seq=made.order().seq)], intent, QUEUES
        )
    )
    await made.drain()
    assert made.agents["stock"].calls[-1][1].order == EDITED
    assert is_encoded(made.order().steps[0].call.edited or "")


# Limits are those of the text as it is stored


def fernet(*keys: bytes) -> FernetCodec:
    return FernetCodec([key.decode() for key in keys or (Fernet.generate_key(),)])


async def test_the_largest_order_is_accepted_and_reaches_its_agent() -> None:
    made = kit(codec=fernet())
    room = ORDER_BYTES_MAX - len(order(order={"text": ""}))
    content = {"text": "x" * room}
    await made.submit(order(order=content))
    await made.drain()
    assert made.state() == "Processed"
    assert made.agents["stock"].calls[0][1].order == content
    payload = made.order().details.payload
    assert isinstance(payload, PayloadRef)
    assert payload.size > 1.3 * ORDER_BYTES_MAX


async def test_a_result_is_too_large_if_it_is_as_it_is_stored() -> None:
    codec = fernet()
    fits, over = RESULT_BYTES_MAX * 3 // 4 - 200, RESULT_BYTES_MAX * 3 // 4
    text = encode_result("x" * fits, "payment", codec)
    assert isinstance(text, str)
    assert RESULT_BYTES_MAX - 300 < len(text) <= RESULT_BYTES_MAX
    fault = encode_result("x" * over, "payment", codec)
    assert isinstance(fault, Fault)
    assert fault.code == "result-too-large"
    assert not isinstance(encode_result("x" * over, "payment"), Fault)
    made = kit(codec=codec)
    callback = await callback_of(made, "C-1")
    assert await post(made, callback, "x" * over) == 400
    assert await post(made, callback, "x" * fits) == 202  # what was too large is not its result


async def test_a_result_that_is_large_only_once_it_is_encoded_is_offloaded() -> None:
    made = kit(codec=fernet())
    result = "x" * (RESULT_INLINE_BYTES_MAX - 1000)
    made.agents["stock"].then(result)
    await made.submit()
    await made.drain()
    assert isinstance(made.order().steps[0].result, PayloadRef)
    assert made.agents["payment"].calls[0][1].results == {"reserve": result}


def test_an_input_is_too_large_if_it_is_as_it_is_stored() -> None:
    body = json.dumps("x" * (EDITED_UNITS_MAX - 2)).encode()
    commands.checked_input(body, "--input", None)
    with pytest.raises(UsageError, match="--input, encrypted, has over 4,000 characters"):
        commands.checked_input(body, "--input", fernet())
    body = json.dumps("x" * (EDITED_UNITS_MAX * 3 // 4 - 200)).encode()
    assert len(commands.checked_input(body, "--input", fernet())) <= EDITED_UNITS_MAX


# The codec of SAS_PAYLOAD_KEYS


def test_the_first_key_encrypts_and_every_key_decrypts() -> None:
    old, new = Fernet.generate_key(), Fernet.generate_key()
    text = fernet(old).encode('é " 1.50')
    assert fernet(new, old).decode(text) == 'é " 1.50'
    rotated = fernet(new, old).encode("plain")
    assert fernet(new).decode(rotated) == "plain"
    with pytest.raises(DecodingError, match="add the key again"):
        fernet(old).decode(rotated)


@pytest.mark.parametrize("text", ["", "gAAAAA", "no token at all", "é"])
def test_a_text_that_is_no_token_is_one_clear_error(text: str) -> None:
    with pytest.raises(DecodingError, match="SAS_PAYLOAD_KEYS"):
        fernet().decode(text)


def test_a_changed_text_is_not_decoded() -> None:
    codec = fernet()
    text = codec.encode("plain")
    with pytest.raises(DecodingError):
        codec.decode(text[:-10] + ("A" if text[-10] != "A" else "B") + text[-9:])


# What people see


@pytest.mark.parametrize(
    "text",
    ['{"$encoded": "a"}', '{"$encoded":"a"}', '\n { "$encoded" :\t"a" } '],
)
def test_encoded_content_is_known_however_it_is_spaced(text: str) -> None:
    assert is_encoded(text)
    with pytest.raises(DecodingError, match="set SAS_PAYLOAD_KEYS"):
        decode_content(text, None)


@pytest.mark.parametrize(
    "text",
    ["", "1", '"$encoded"', '{"$encoded": 1}', '{"$encoded": "a", "b": 1}', '{"$encoded": "a"',
     '[{"$encoded": "a"}]', '{"a": {"$encoded": "a"}}'],
)  # fmt: skip
def test_all_other_text_is_plain(text: str) -> None:
    assert not is_encoded(text)
    assert decode_content(text, CheapCodec()) == text
    assert encode_content(text, None) == text


async def test_an_order_is_decoded_for_people_as_far_as_the_keys_go() -> None:
    made = kit(codec=CheapCodec())
    await made.submit(order(order=CONTENT))
    made = kit(beside=made, codec=CheapCodec())
    made.agents["stock"].then(RESULT)
    await made.drain()
    whole = decode_order(made.order(), CheapCodec())
    assert whole.details.payload == json.dumps(CONTENT)
    assert json.loads(str(whole.steps[0].result)) == RESULT
    assert decode_order(made.order(), CheapCodec("other")) == made.order()
    assert decode_order(made.order(), None) is made.order()
    ref = PayloadRef("0" * 64, 1, 1)
    lost = replace(made.order(), details=replace(made.order().details, payload=ref))
    assert decode_order(lost, CheapCodec()).details.payload is ref


# The command


def show(night: Night) -> Any:
    (record,) = night.sas("show", "A", "--json", "--content").json
    return record


def test_the_command_decodes_with_the_keys_and_without_them_shows_what_is_stored(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Fernet.generate_key().decode()
    night.made = kit(CARE, beside=night.made, codec=FernetCodec([key]))
    night.fail("A", RefusedError("declined", "no"))
    assert list(show(night)["Payload"]) == ["$encoded"]
    monkeypatch.setenv("SAS_PAYLOAD_KEYS", key)
    assert show(night)["Payload"] == {"amount": 12.50}
    dry = night.sas("skip", "A", "--dry-run", "--input", f'"{MARK}"')
    assert "count as done, with the result encrypted: pay" in dry.out
    assert night.sas("resubmit", "A", "--yes", "--input", f'{{"card": "{MARK}"}}').code == 0
    assert MARK not in repr(night.sent)
    assert show(night)["Steps"][1]["Edited"] == {"card": MARK}
    monkeypatch.setenv("SAS_PAYLOAD_KEYS", "no-key")
    night.sas("show", "A", "--json", "--content").refused(2, "SAS_PAYLOAD_KEYS: give Fernet keys")


def test_encoded_content_that_was_shown_is_taken_back_as_an_input(night: Night) -> None:
    night.made = kit(CARE, beside=night.made, codec=CheapCodec())
    night.fail("A", RefusedError("declined", "no"))
    given = json.dumps(show(night)["Payload"])
    assert night.sas("resubmit", "A", "--yes", "--input", given).code == 0
    assert night.made.agents["payment"].calls[-1][1].order == {"amount": 12.50}


class Broken(CheapCodec):
    """A codec with a bug."""

    def decode(self, text: str) -> str:
        raise RuntimeError("a bug")


async def test_a_bug_of_the_codec_undoes_nothing() -> None:
    made = kit(codec=Broken())
    await made.submit()
    for _ in range(8):
        await made.drain()
        await made.later(31)
        await made.sweep()
    assert made.agents["stock"].calls == []
    assert made.order().failure_count == 0
    assert made.state() in {"Pending", "Processing"}


def test_an_encoding_that_fails_is_a_dependency_that_is_away() -> None:
    class Away(CheapCodec):
        def encode(self, text: str) -> str:
            raise OSError("the vault does not answer")

    with pytest.raises(UnavailableError, match="the payload codec failed: OSError"):
        encode_content("{}", Away())


class Garbled(CheapCodec):
    """A codec that decodes to what is no JSON."""

    def decode(self, text: str) -> str:
        return "no JSON"


async def test_content_that_is_no_json_once_decoded_waits() -> None:
    made = kit(codec=Garbled())
    await made.submit()
    await made.drain()
    assert made.agents["stock"].calls == []
    assert [alert.kind for alert in made.alerts()] == ["unreadable"]
    assert "is not JSON" in made.alerts()[0].text
