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
from sas.codec.strict import CONTENT_DEPTH_MAX
from sas.domain.content import PayloadRef
from sas.domain.messages import Verb
from sas.operate import commands, inputs
from sas.operate.commands import ActRun, Intent
from sas.operate.errors import UsageError
from sas.ports import (
    AgentCall,
    AwaitCallback,
    BusUnavailableError,
    Callback,
    DecodingError,
    HeldError,
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

CONTENT = {"card": f"4111-{MARK}", "lines": [{"note": MARK}]}
LARGE = {**CONTENT, "more": [f"{MARK} {n}" for n in range(7_000)]}
RESULT = {"paid_by": MARK}
EDITED = {"edited": MARK}
LARGE_RESULT = {"pages": [f"{MARK} {n}" for n in range(7_000)]}
HOUR = timedelta(hours=1)


class Ear:
    """Hears everything that is sent in a run."""

    def __init__(self, system: Kit) -> None:
        self.sent: list[Message] = []
        self._send = system.bus.send
        system.bus.send = self._hear  # type: ignore[method-assign]

    async def _hear(self, messages: Sequence[Message]) -> None:
        self.sent += messages
        await self._send(messages)


def texts_of(system: Kit, ear: Ear) -> list[str]:
    """Return everything that was sent, and all that is stored, held or put aside.

    An order on its queue, and a letter of that queue, stay as their sender wrote them.
    """
    texts = [repr(stored) for stored in system.store.orders.values()]
    texts += [repr(vars(system.store)[name]) for name in ("_due", "_shared", "held_messages")]
    texts += [repr(system.store.payloads)]
    queued = [message for queue in system.bus.queues for message in system.bus.messages(queue)]
    texts += [repr(message) for message in [*ear.sent, *queued] if not is_the_sender_s(message)]
    return texts


def is_the_sender_s(message: Message) -> bool:
    if message.queue != QUEUES.rejected:
        return message.queue == QUEUES.orders
    return bool(json.loads(message.body)["source_queue"] == QUEUES.orders)


async def command(system: Kit, order_id: str, verb: Verb, step: str, content: Any) -> None:
    """Give a command with an input, as the command and the desk do."""
    text = inputs.checked_input(json.dumps(content).encode(), "--input", system.context.codec)
    await give(system, order_id, Intent(verb=verb, by="ann", step=step, input=text))


async def give(system: Kit, order_id: str, intent: Intent) -> None:
    plan = await commands.plan_one(system.store, order_id, intent)
    await system.run(ActRun(plan, system.store, QUEUES).send(system.bus))
    await system.drain()


async def callback_of(system: Kit, order_id: str) -> Callback:
    """Return the callback that the first step of a new order waits for."""
    callbacks: list[Callback] = []

    async def ask(call: AgentCall) -> Any:
        callbacks.append(call.callback(HOUR))
        return AwaitCallback(HOUR)

    system.agents["stock"].then(ask)
    await system.submit(order(order_id, order=CONTENT), f"m-{order_id}")
    await system.drain()
    return callbacks[0]


async def post(system: Kit, callback: Callback, result: Any) -> int:
    body = json.dumps({"outcome": "done", "result": result}).encode()
    return (await system.run(system.callbacks.answer(callback.token, None, body))).status


async def orders_that_are_done_or_undone(system: Kit) -> None:
    stock, payment = system.agents["stock"], system.agents["payment"]
    stock.then(RESULT)
    payment.then(StillRunning(timedelta(seconds=5)), LARGE_RESULT)
    await system.submit(order(order=CONTENT))
    await system.drain()
    await system.later(6)
    await system.drain()
    assert system.state() == "Processed"
    await system.submit(order(order=CONTENT), "m-2")  # the same again
    await system.submit(order(order=LARGE), "m-3")  # other content under its id
    assert {rejection.reason for rejection in system.rejected()} == {"order-id-taken"}
    stock.then(LARGE_RESULT)
    payment.then(RESULT)
    await system.submit(order("L-1", order=LARGE), "m-4")
    await system.drain()
    assert system.state("L-1") == "Processed"
    stock.then(TransientError("busy"), RESULT)
    payment.then(RefusedError("declined", "no"))
    await system.submit(order("U-1", order=CONTENT), "m-5")
    await system.drain()
    assert system.state("U-1") == "Compensated"


async def inputs_of_an_operator(system: Kit) -> None:
    system.agents["stock"].then(RefusedError("sold-out", "no"), RESULT)
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.submit(order("E-1", order=CONTENT, workflow="care"), "m-6")
    await system.drain()
    await command(system, "E-1", verb=Verb.RESUBMIT, step="reserve", content=EDITED)
    await command(system, "E-1", verb=Verb.SKIP, step="pay", content=RESULT)
    assert system.state("E-1") == "Processed"
    assert system.agents["stock"].calls[-1][1].order == EDITED


async def results_from_outside(system: Kit) -> None:
    for order_id, result in (("C-1", RESULT), ("C-2", LARGE_RESULT)):
        callback = await callback_of(system, order_id)
        assert [await post(system, callback, result) for _ in range(2)] == [202, 202]
        assert await post(system, callback, {"other": MARK}) == 409
        await system.drain()
        assert await post(system, callback, result) == 200
        assert system.agents["payment"].calls[-1][1].results == {"reserve": result}


async def faults_and_dead_letters(system: Kit) -> None:
    faults = (StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER, StoreFault.CONFLICT)
    for number, fault in enumerate(faults):
        body = order(f"F-{number}", order=LARGE)
        system.store.fail_next("commit", fault)
        with suppress(StoreUnavailableError):
            await system.submit(body, f"f-{number}")
        await system.run(system.dead_letters.handle(letter(body, QUEUES.orders, f"f-{number}")))
    for number, lost in enumerate((BusFault.UNAVAILABLE, BusFault.LOST_ANSWER)):
        system.bus.fail_next(lost)
        with suppress(BusUnavailableError):
            await system.submit(order(f"B-{number}", order=CONTENT), f"b-{number}")
    await system.drain()
    await system.submit(order("D-1", order=CONTENT), "d-1")
    await system.submit(order("D-2", order=LARGE), "d-2")
    for _ in range(2):
        await system.step(QUEUES.scheduler)
        request = system.bus.take(QUEUES.agent("stock"))
        assert request is not None
        await system.run(system.dead_letters.handle(letter(request)))


async def messages_held(system: Kit) -> None:
    """The queue of the application is away at the end, and callbacks cannot be sent."""
    callback = await callback_of(system, "H-1")

    def is_away(message: Message) -> BusFault | None:
        is_callback = b'"kind":"callback"' in message.body
        return BusFault.UNAVAILABLE if is_callback or message.queue == SHOP else None

    system.bus.plan = is_away
    assert await post(system, callback, RESULT) == 202
    system.agents["stock"].then(RESULT)
    await system.submit(order("H-2", order=CONTENT), "h-2")
    await system.drain()
    assert {message.queue for message in system.held()} == {SHOP, QUEUES.scheduler}


async def every_path(system: Kit) -> Ear:
    """Take content and results along every path there is."""
    ear = Ear(system)
    await orders_that_are_done_or_undone(system)
    await inputs_of_an_operator(system)
    await results_from_outside(system)
    await faults_and_dead_letters(system)
    await messages_held(system)
    return ear


async def test_content_is_in_nothing_that_is_stored_sent_held_or_put_aside() -> None:
    system = kit(CHAIN, CARE, codec=CheapCodec())
    texts = texts_of(system, await every_path(system))
    assert [text[:300] for text in texts if MARK in text] == []


async def test_without_a_codec_the_same_run_has_content_at_every_place_that_is_looked_at() -> None:
    system = kit(CHAIN, CARE)
    ear = await every_path(system)
    queues = {message.queue for message in ear.sent if MARK in repr(message)}
    agents = {QUEUES.agent(name) for name in system.agents}
    assert queues >= {*agents, QUEUES.scheduler, SHOP}
    letters = [rejection for rejection in system.rejected() if MARK in rejection.body]
    assert {rejection.source_queue for rejection in letters} == {
        QUEUES.orders,
        QUEUES.agent("stock"),
    }
    held_queues = {message.queue for message in system.held() if MARK in repr(message)}
    assert held_queues == {SHOP, QUEUES.scheduler}
    orders = [stored.order for stored in system.store.orders.values()]
    inline = [order for order in orders if isinstance(order.details.payload, str)]
    assert len(inline) > 5
    assert all(MARK in repr(order) for order in inline)
    assert MARK in repr(system.store.payloads)


async def test_agents_get_plain_content_and_an_application_with_the_codec_reads_results() -> None:
    system = kit(codec=CheapCodec())
    system.agents["stock"].then(RESULT)
    system.agents["payment"].then(RESULT, RefusedError("no", "no"))
    await system.submit(order(order=CONTENT))
    await system.drain()
    call = system.agents["payment"].calls[0][1]
    assert (call.order, call.results) == (CONTENT, {"reserve": RESULT})
    results = system.events()[-1].data.results
    assert results is not None
    text = bytes(results["pay"]).decode()
    assert json.loads(decode_content(text, CheapCodec())) == RESULT


async def test_a_step_waits_for_a_missing_key_and_one_incident_tells_of_all_orders() -> None:
    system = kit(codec=CheapCodec())
    for number in range(3):
        await system.submit(order(f"O-{number}", order=CONTENT), f"m-{number}")
    systems = [kit(beside=system), kit(beside=system, codec=CheapCodec("other"))]
    for other in systems:
        await other.drain()
        await system.later(13)
    assert [call for agent in system.agents.values() for call in agent.calls] == []
    alerts = [alert.scope for alert in system.alerts() if alert.kind == "unreadable"]
    assert alerts == ["payload codec"]
    for _ in range(4):
        await system.later(13)
        await system.sweep()
        await system.drain()
    for number in range(3):
        assert system.state(f"O-{number}") == "Processed"
        assert system.order(f"O-{number}").failure_count == 0


async def test_an_order_from_before_the_codec_is_carried_on_and_its_results_are_encoded() -> None:
    system = kit()
    await system.submit(order(order=CONTENT))
    system = kit(beside=system, codec=CheapCodec())
    await system.drain()
    assert system.state() == "Processed"
    assert system.agents["payment"].calls[0][1].order == CONTENT
    details, results = system.order().details, [step.result for step in system.order().steps]
    assert details.payload == json.dumps(CONTENT)
    assert [isinstance(result, str) and is_encoded(result) for result in results] == [True, True]
    await system.submit(order(order=CONTENT), "m-2")
    assert system.events()[-1].data.duplicate  # the hash is of the plain content


def test_text_that_nests_too_deep_is_not_encoded() -> None:
    assert not is_encoded('{"$encoded":' + "[" * 200_000)


@pytest.mark.parametrize("codec", [None, CheapCodec()])
async def test_nobody_outside_may_say_that_content_is_encoded(codec: CheapCodec | None) -> None:
    system = kit(CHAIN, CARE, codec=codec)
    forged = {"$encoded": "k1.1.e30="}
    await system.submit(order("X-1", order=forged))
    assert [rejection.reason for rejection in system.rejected()] == ["invalid-order"]
    callback = await callback_of(system, "X-2")
    assert await post(system, callback, forged) == 400
    system.agents["stock"].then(forged)
    await system.submit(order("X-3", workflow="care"), "m-3")
    await system.drain()
    record = await system.context.load("X-3")
    assert record is not None
    error = record.steps[0].last_error
    assert error is not None
    assert error.message.startswith("agent stock returned what is refused: an object with the one")


async def test_an_input_that_the_scheduler_cannot_decode_or_store_is_refused() -> None:
    system = kit(CARE, codec=CheapCodec())
    system.agents["stock"].then(RefusedError("no", "no"))
    await system.submit(order(workflow="care"))
    await system.drain()
    text = encode_content(json.dumps(EDITED), CheapCodec("other"))
    intent = Intent(verb=Verb.RESUBMIT, by="ann", step="reserve", input=text)
    await give(system, "O-1", intent)
    assert "its input is not accepted: the key other is missing" in system.alerts()[-1].text
    deep = "[" * (CONTENT_DEPTH_MAX + 1) + "]" * (CONTENT_DEPTH_MAX + 1)
    unfit = [encode_content(text, CheapCodec()) for text in ('{"lines": 1, "lines": 2}', deep)]
    for text in (*unfit, json.dumps("x" * (EDITED_UNITS_MAX - 2))):
        await give(system, "O-1", Intent(verb=Verb.SKIP, by="ann", step="reserve", input=text))
    assert [alert.kind for alert in system.alerts()[-4:]] == ["command-refused"] * 4


async def test_an_input_in_plain_text_is_encoded_at_the_scheduler() -> None:
    system = kit(CARE, codec=CheapCodec())
    system.agents["stock"].then(RefusedError("no", "no"))
    await system.submit(order(workflow="care"))
    await system.drain()
    intent = Intent(verb=Verb.RESUBMIT, by="ann", step="reserve", input=json.dumps(EDITED))
    await give(system, "O-1", intent)
    assert system.agents["stock"].calls[-1][1].order == EDITED
    assert is_encoded(system.order().steps[0].call.edited or "")


# Limits are those of the text as it is stored


def fernet(*keys: bytes) -> FernetCodec:
    return FernetCodec([key.decode() for key in keys or (Fernet.generate_key(),)])


async def test_the_largest_order_is_accepted_and_reaches_its_agent() -> None:
    system = kit(codec=fernet())
    room = ORDER_BYTES_MAX - len(order(order={"text": ""}))
    content = {"text": "x" * room}
    await system.submit(order(order=content))
    await system.drain()
    assert system.state() == "Processed"
    assert system.agents["stock"].calls[0][1].order == content
    payload = system.order().details.payload
    assert isinstance(payload, PayloadRef)
    assert payload.size > 1.3 * ORDER_BYTES_MAX


async def test_an_order_is_too_large_if_it_is_as_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sas.actors.submission.PAYLOAD_BYTES_MAX", 1000)
    system = kit(codec=fernet())
    await system.submit(order(order={"text": "x" * 900}))
    assert [rejection.reason for rejection in system.rejected()] == ["too-large"]


async def test_a_result_is_too_large_if_it_is_as_it_is_stored() -> None:
    codec = fernet()
    largest, too_large = RESULT_BYTES_MAX * 3 // 4 - 200, RESULT_BYTES_MAX * 3 // 4
    text = encode_result("x" * largest, "payment", codec)
    assert RESULT_BYTES_MAX - 300 < len(text) <= RESULT_BYTES_MAX
    with pytest.raises(HeldError, match=r"returned 1,\d+,\d+ bytes as they are stored"):
        encode_result("x" * too_large, "payment", codec)
    assert encode_result("x" * too_large, "payment")
    system = kit(codec=codec)
    callback = await callback_of(system, "C-1")
    assert await post(system, callback, "x" * too_large) == 400
    # What was too large is not its result.
    assert await post(system, callback, "x" * largest) == 202


async def test_a_result_that_is_large_only_once_it_is_encoded_is_offloaded() -> None:
    system = kit(codec=fernet())
    result = "x" * (RESULT_INLINE_BYTES_MAX - 1000)
    system.agents["stock"].then(result)
    await system.submit()
    await system.drain()
    assert isinstance(system.order().steps[0].result, PayloadRef)
    assert system.agents["payment"].calls[0][1].results == {"reserve": result}


def test_an_input_is_too_large_if_it_is_as_it_is_stored() -> None:
    body = json.dumps("x" * (EDITED_UNITS_MAX - 2)).encode()
    inputs.checked_input(body, "--input", None)
    with pytest.raises(UsageError, match="--input, encrypted, has over 4,000 characters"):
        inputs.checked_input(body, "--input", fernet())
    body = json.dumps("x" * (EDITED_UNITS_MAX * 3 // 4 - 200)).encode()
    assert len(inputs.checked_input(body, "--input", fernet())) <= EDITED_UNITS_MAX


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
    system = kit(codec=CheapCodec())
    await system.submit(order(order=CONTENT))
    system = kit(beside=system, codec=CheapCodec())
    system.agents["stock"].then(RESULT)
    await system.drain()
    decoded_order = decode_order(system.order(), CheapCodec())
    assert decoded_order.details.payload == json.dumps(CONTENT)
    assert json.loads(str(decoded_order.steps[0].result)) == RESULT
    assert decode_order(system.order(), CheapCodec("other")) == system.order()
    assert decode_order(system.order(), None) is system.order()
    ref = PayloadRef("0" * 64, 1, 1)
    lost = replace(system.order(), details=replace(system.order().details, payload=ref))
    assert decode_order(lost, CheapCodec()).details.payload is ref


# The command


def show(night: Night) -> Any:
    (record,) = night.sas("show", "A", "--json", "--content").json
    return record


def test_the_command_decodes_with_the_keys_and_without_them_shows_what_is_stored(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Fernet.generate_key().decode()
    night.system = kit(CARE, beside=night.system, codec=FernetCodec([key]))
    night.fail("A", RefusedError("declined", "no"))
    assert list(show(night)["Payload"]) == ["$encoded"]
    monkeypatch.setenv("SAS_PAYLOAD_KEYS", key)
    assert show(night)["Payload"] == {"amount": 12.50}
    dry_run = night.sas("skip", "A", "--dry-run", "--input", f'"{MARK}"')
    assert "count as done, with the result encrypted: pay" in dry_run.out
    assert night.sas("resubmit", "A", "--yes", "--input", f'{{"card": "{MARK}"}}').code == 0
    assert MARK not in repr(night.sent_messages)
    assert show(night)["Steps"][1]["Edited"] == {"card": MARK}
    monkeypatch.setenv("SAS_PAYLOAD_KEYS", "no-key")
    night.sas("show", "A", "--json", "--content").refused(2, "SAS_PAYLOAD_KEYS: give Fernet keys")


def test_encoded_content_that_was_shown_is_taken_back_as_an_input(night: Night) -> None:
    night.system = kit(CARE, beside=night.system, codec=CheapCodec())
    night.fail("A", RefusedError("declined", "no"))
    content = json.dumps(show(night)["Payload"])
    assert night.sas("resubmit", "A", "--yes", "--input", content).code == 0
    assert night.system.agents["payment"].calls[-1][1].order == {"amount": 12.50}


class Broken(CheapCodec):
    """A codec with a bug."""

    def decode(self, text: str) -> str:
        raise RuntimeError("a bug")


async def test_a_bug_of_the_codec_undoes_nothing() -> None:
    system = kit(codec=Broken())
    await system.submit()
    for _ in range(8):
        await system.drain()
        await system.later(31)
        await system.sweep()
    assert system.agents["stock"].calls == []
    assert system.order().failure_count == 0
    assert system.state() in {"Pending", "Processing"}


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
    system = kit(codec=Garbled())
    await system.submit()
    await system.drain()
    assert system.agents["stock"].calls == []
    assert [alert.kind for alert in system.alerts()] == ["unreadable"]
    assert "is not JSON" in system.alerts()[0].text
