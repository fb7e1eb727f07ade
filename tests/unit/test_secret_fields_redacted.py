"""A secret is in no log line, no stored row and no message, under any fault."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from sas.codec.record import record_of
from sas.features.field_encryption.redaction import WithheldError
from sas.ports import (
    AwaitCallback,
    BusUnavailableError,
    Message,
    RefusedError,
    StoreUnavailableError,
    TransientError,
)
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.telemetry_kit import Recorded, recording
from tests.unit.actors_kit import QUEUES, Kit, kit, letter, order
from tests.unit.test_field_encryption import encryption_of

CARD, NOTE = "4111-s3cr3t-1111", 's3cr3t é of the cellar "door"\n'
MARKS = ("s3cr3t", "cellar")
ORDER: dict[str, Any] = {
    "customer": {"card": CARD},
    "lines": [{"note": NOTE}, {"note": {"deep": [NOTE]}}],
}
SECRET = dict.fromkeys(("chain", "care"), ("customer.card", "lines[].note"))
IN_CLEAR = {QUEUES.orders, QUEUES.rejected}
"""Queues that hold what a sender wrote: docs/security.md says so."""


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as made:
        yield made


class Ear:
    """Hears everything that is sent, and raised, in a run."""

    def __init__(self, made: Kit) -> None:
        self.sent: list[Message] = []
        self.raised: list[BaseException] = []
        self._made = made
        self._send = made.bus.send
        made.bus.send = self._hear  # type: ignore[method-assign]

    async def _hear(self, messages: Sequence[Message]) -> None:
        self.sent += messages
        await self._send(messages)

    async def survives(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except (WithheldError, StoreUnavailableError, BusUnavailableError) as error:
            self.raised.append(error)


def quoting(made: Kit) -> list[Any]:
    """What an agent says that quotes all it was given, one way after the other."""

    async def quoted(call: Any) -> Any:
        raise TransientError(f"busy with {call.order}", kind=str(call.order))

    async def dumped(call: Any) -> Any:
        raise TransientError(json.dumps(call.order))

    async def bug(call: Any) -> Any:
        raise KeyError(call.order["customer"]["card"])

    async def waits(call: Any) -> Any:
        return AwaitCallback(timedelta(seconds=5), f"for {call.order}")

    async def refused(call: Any) -> Any:
        raise RefusedError(call.order["customer"]["card"], f"never: {call.order!r}")

    return [quoted, dumped, bug, waits, refused]


def check(body: bytes) -> None:
    content = json.loads(body)
    if content.get("refuse"):
        raise ValueError(f"the card {content['customer']['card']!r} of {content} cannot be")
    if content.get("bug"):
        raise KeyError(body)


async def every_path(made: Kit, ear: Ear) -> None:
    """Send orders with secrets along every path there is."""
    made.agents["stock"].script.extend(quoting(made))
    made.agents["payment"].script.extend(quoting(made)[::-1])
    await ear.survives(lambda: made.submit(order(order=ORDER)))
    await ear.survives(lambda: made.submit(order("C-1", order=ORDER, workflow="care"), "m-c"))
    for _ in range(12):
        await ear.survives(made.drain)
        await made.later(11)
        await ear.survives(made.sweep)
    wrong: list[dict[str, Any]] = [{"refuse": 1}, {"bug": 1}, {"customer": CARD}]
    for number, more in enumerate(wrong):
        body = order(f"X-{number}", order={**ORDER, **more})
        await ear.survives(lambda body=body: made.submit(body, "m-x"))  # type: ignore[misc]
        await made.run(made.dead_letters.handle(letter(body, QUEUES.orders)))
    await ear.survives(lambda: made.submit(order(order={**ORDER, "other": 1}), "m-2"))
    await ear.survives(lambda: made.submit(order(order=ORDER), "m-3"))
    for fault in (StoreFault.UNAVAILABLE, StoreFault.LOST_ANSWER, StoreFault.CONFLICT):
        made.store.fail_next("commit", fault)
        await ear.survives(lambda: made.submit(order("F-1", order=ORDER), "m-4"))
    for lost in (BusFault.UNAVAILABLE, BusFault.LOST_ANSWER):
        made.bus.fail_next(lost)
        await ear.survives(lambda: made.submit(order("F-2", order=ORDER), "m-5"))
    large = {**ORDER, "lines": [{"note": f"{NOTE} {n}"} for n in range(3000)]}
    await ear.survives(lambda: made.submit(order("L-1", order=large), "m-6"))
    await ear.survives(made.drain)
    await ear.survives(lambda: made.submit(order("K-1", order=ORDER), "m-7"))
    gone = kit(beside=made, encryption=encryption_of(("other", b"x" * 32), secret=SECRET))
    await ear.survives(gone.drain)


async def test_a_secret_field_is_in_nothing_that_is_shown_stored_or_sent(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = kit(encryption=encryption_of(secret=SECRET), chain=check)
    ear = Ear(made)
    await every_path(made, ear)
    texts = [record.getMessage() + str(record.exc_text or "") for record in caplog.records]
    texts += [str(sorted(record.__dict__.items(), key=str)) for record in caplog.records]
    texts += [span.to_json() for span in recorded.spans]
    texts += [json.dumps(recorded.metrics()), *(repr(error) for error in ear.raised)]
    texts += [repr(error.__context__) + repr(error.__cause__) for error in ear.raised]
    for stored in made.store.orders.values():
        record = record_of(stored.order, stored.journal, content=True)
        texts += [repr(stored), json.dumps(record, default=str, ensure_ascii=False)]
    texts += [repr(made.store.payloads), repr(made.store._due), repr(made.store._shared)]
    texts += [repr(message) for message in ear.sent if message.queue not in IN_CLEAR]
    assert len(caplog.records) > 12
    assert len(ear.raised) > 4
    assert {"WithheldError"} < {type(error).__name__ for error in ear.raised}
    assert len(ear.sent) > 60
    kinds = {alert.kind for alert in made.alerts()}
    assert {"rejected", "dead-lettered", "key-missing", "step-failed"} <= kinds
    assert made.store.payloads
    for mark in MARKS:
        assert [text[:300] for text in texts if mark in text] == []


async def test_its_agents_were_given_it_all_the_same() -> None:
    made = kit(encryption=encryption_of(secret=SECRET), chain=check)
    await every_path(made, Ear(made))
    given = [call.order for agent in made.agents.values() for _, call in agent.calls]
    assert len(given) > 10
    assert {one["customer"]["card"] for one in given} == {CARD}
