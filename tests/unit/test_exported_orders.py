"""An export can be read back: by its schema, to the digit."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.codec.payloads import decode_content
from sas.codec.record import record_of, to_line
from sas.domain.messages import JournalEntry
from sas.domain.order import Fault, StepState, UndoStatus
from sas.operate import lists
from sas.ports import RefusedError
from tests.payload_codec_kit import CheapCodec
from tests.unit.actors_kit import Kit, command, kit, letter, order
from tests.unit.contract_files import errors, load, validator

CARD = "4111-s3cr3t-1111"
EXACT = (
    b'{\n  "amount": 0.10000000000000000001,\r\n "n": 123456789012345678901234567890, "x": 1.50}'
)


def ours() -> Any:
    """Return the schema without room for members it does not name."""
    schema = copy.deepcopy(load("exported-order.schema.json"))
    for part in (schema, schema["$defs"]["step"], schema["$defs"]["entry"]):
        part["additionalProperties"] = False
        assert set(part["required"]) == set(part["properties"])
    return validator(schema)


async def exported(system: Kit) -> list[str]:
    """Return the lines of an export."""
    batches = [batch async for batch in lists.export_lines(system.store, system.clock.now())]
    return [line for batch in batches for line in batch]


async def finished() -> Kit:
    """Return orders that ended in every way: done, undone, edited, by hand, large, rejected."""
    system = kit(codec=CheapCodec())
    content = {"card": CARD, "lines": [1]}
    await system.submit(order("done", order=content))
    await system.drain()
    system.agents["stock"].then({"scan": "é" * 60_000})
    await system.submit(order("large", order=content | {"text": "x" * 70_000}), "m-2")
    await system.drain()
    system.agents["payment"].then(RefusedError("declined", "never"))
    await system.submit(order("held", order=content, workflow="care"), "m-3")
    await system.drain()
    edit = command("resubmit", system.order("held").seq, "w-1", "held")
    edited = json.dumps({"card": CARD, "lines": [2]}).encode()
    body = edit.body.replace(b'"seq"', b'"input":' + edited + b',"seq"')
    system.agents["payment"].then(None, RefusedError("declined", "still"))
    await system.hand(type(edit)(edit.queue, edit.message_id, body))
    await system.drain()
    await system.hand(command("skip", system.order("held").seq, "w-2", "held"))
    await system.drain()
    await system.hand(command("undo", system.order("held").seq, "w-3", "held"))
    await system.drain()
    await system.run(system.dead_letters.handle(letter(order("given-up", order=content), "orders")))
    return system


def decoded(content: Any) -> Any:
    return json.loads(decode_content(json.dumps(content), CheapCodec()))


async def test_every_finished_order_is_a_line_that_its_schema_takes() -> None:
    system = await finished()
    assert system.state("held") == "Compensated"
    lines = await exported(system)
    checker = ours()
    orders = {record["OrderID"]: record for record in map(json.loads, lines)}
    assert set(orders) == {"done", "large", "held", "given-up"}
    for record in orders.values():
        assert errors(checker, record) == []
        assert [entry["Seq"] for entry in record["Journal"]] == [*range(1, record["Seq"] + 1)]
        assert list(record["Payload"]) == ["$encoded"]
    assert decoded(orders["large"]["Payload"])["text"] == "x" * 70_000
    assert decoded(orders["large"]["Steps"][0]["Result"]) == {"scan": "é" * 60_000}
    assert decoded(orders["held"]["Steps"][1]["Edited"])["lines"] == [2]
    assert CARD not in "".join(lines)


async def test_what_was_ordered_and_returned_is_exported_as_it_was_written_on_one_line() -> None:
    system = kit()
    body = order("O-1", order={"?": 0}).replace(b'{"?": 0}', EXACT)
    await system.submit(body)
    line = to_line(record_of(system.order(), system.journal(), content=True))
    assert "\n" not in line
    assert "\r" not in line
    assert '"amount": 0.10000000000000000001,' in line
    assert '"n": 123456789012345678901234567890, "x": 1.50}' in line


@pytest.mark.parametrize("meanwhile", ["purged", "taken up", "ended again", "in error"])
async def test_an_order_purged_or_taken_up_while_it_is_read_is_not_exported(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = kit()
    for order_id in ("stays", "goes"):
        await system.submit(order(order_id), order_id)
    await system.drain()
    store, journal = system.store, system.store.journal

    async def read(order_id: str) -> Sequence[JournalEntry]:
        entries = await journal(order_id)
        if order_id == "goes" and meanwhile == "purged":
            store.orders.pop(order_id)
        elif order_id == "goes" and meanwhile == "in error":
            stored = store.orders[order_id]
            step = stored.order.steps[0].moved(
                StepState.ERROR, system.clock.now(), error=Fault("a", "b"), undo=UndoStatus.FAILED
            )
            steps = (step, *stored.order.steps[1:])
            stored.order = replace(stored.order, steps=steps, token="another")
        elif order_id == "goes":
            stored = store.orders[order_id]
            end = system.clock.now() + timedelta(days=1) if meanwhile == "ended again" else None
            stored.order = replace(stored.order, stopped_at=end, token="another")
        return entries

    monkeypatch.setattr(store, "journal", read)
    assert [json.loads(line)["OrderID"] for line in await exported(system)] == ["stays"]
