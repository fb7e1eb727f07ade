"""An export can be read back: by its schema, to the digit, after a crash at any point."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sas.actors.purge import Purger
from sas.adapters.export import JsonLines
from sas.cli import arguments as args
from sas.cli.main import main
from sas.codec.payloads import decode_content
from sas.codec.record import record_of, to_line
from sas.domain.messages import JournalEntry
from sas.ports import RefusedError, StateStore
from sas.testing.store import StoreFault
from tests.payload_codec_kit import CheapCodec
from tests.unit.actors_kit import Kit, command, kit, letter, order
from tests.unit.contract_files import errors, load, validator
from tests.unit.test_cli_workflows import run_in_thread

DAY = timedelta(days=1)
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


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]


def read_back(folder: Path) -> dict[tuple[str, str], Any]:
    """Return the exported orders, read as docs/operating.md describes."""
    orders = {}
    for line in lines_of(folder):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        orders[found["OrderID"], found["SubmittedAt"]] = found
    return orders


async def finished() -> Kit:
    """Return orders that ended in every way: done, undone, edited, by hand, large, rejected."""
    made = kit(codec=CheapCodec())
    content = {"card": CARD, "lines": [1]}
    await made.submit(order("done", order=content))
    await made.drain()
    made.agents["stock"].then({"scan": "é" * 60_000})
    await made.submit(order("large", order=content | {"text": "x" * 70_000}), "m-2")
    await made.drain()
    made.agents["payment"].then(RefusedError("declined", "never"))
    await made.submit(order("held", order=content, workflow="care"), "m-3")
    await made.drain()
    edit = command("resubmit", made.order("held").seq, "w-1", "held")
    edited = json.dumps({"card": CARD, "lines": [2]}).encode()
    body = edit.body.replace(b'"seq"', b'"input":' + edited + b',"seq"')
    made.agents["payment"].then(None, RefusedError("declined", "still"))
    await made.hand(type(edit)(edit.queue, edit.message_id, body))
    await made.drain()
    await made.hand(command("skip", made.order("held").seq, "w-2", "held"))
    await made.drain()
    await made.hand(command("undo", made.order("held").seq, "w-3", "held"))
    await made.drain()
    await made.run(made.dead_letters.handle(letter(order("given-up", order=content), "orders")))
    return made


def decoded(content: Any) -> Any:
    return json.loads(decode_content(json.dumps(content), CheapCodec()))


async def test_every_finished_order_is_a_line_that_its_schema_takes(tmp_path: Path) -> None:
    made = await finished()
    assert made.state("held") == "Compensated"
    await made.later(40 * DAY.total_seconds())
    found = await Purger(made.context, 30 * DAY, JsonLines(tmp_path, "one")).run()
    assert (found.removed, found.failed, made.store.orders) == (4, 0, {})
    checker = ours()
    orders = {order_id: record for (order_id, _), record in read_back(tmp_path).items()}
    assert set(orders) == {"done", "large", "held", "given-up"}
    for record in orders.values():
        assert errors(checker, record) == []
        assert [entry["Seq"] for entry in record["Journal"]] == [*range(1, record["Seq"] + 1)]
        assert list(record["Payload"]) == ["$encoded"]
    assert decoded(orders["large"]["Payload"])["text"] == "x" * 70_000
    assert decoded(orders["large"]["Steps"][0]["Result"]) == {"scan": "é" * 60_000}
    assert decoded(orders["held"]["Steps"][1]["Edited"])["lines"] == [2]
    assert CARD.encode() not in b"".join(lines_of(tmp_path))


async def test_what_was_ordered_and_returned_is_exported_as_it_was_written_on_one_line() -> None:
    made = kit()
    body = order("O-1", order={"?": 0}).replace(b'{"?": 0}', EXACT)
    await made.submit(body)
    line = to_line(record_of(made.order(), made.journal(), content=True))
    assert "\n" not in line
    assert "\r" not in line
    assert '"amount": 0.10000000000000000001,' in line
    assert '"n": 123456789012345678901234567890, "x": 1.50}' in line


class Crash(BaseException):
    """The process is gone."""


class Crashing(JsonLines):
    """Tears its write after so many bytes, then the process is gone."""

    def __init__(self, folder: Path, left: int) -> None:
        super().__init__(folder, "torn")
        self._left = left

    def _append(self, data: bytes) -> None:
        super()._append(data[: self._left])
        raise Crash


@pytest.mark.parametrize("left", [0, 1, 700, 1500, 10**6])
async def test_a_crash_in_the_midst_of_an_export_removes_nothing_and_loses_no_line(
    tmp_path: Path, left: int
) -> None:
    made = kit()
    for number in range(3):
        await made.submit(order(f"é-{number}", order={"name": "é" * 100}), f"m-{number}")
    await made.drain()
    await made.later(40 * DAY.total_seconds())
    with pytest.raises(Crash):
        await Purger(made.context, 30 * DAY, Crashing(tmp_path, left)).run()
    assert len(made.store.orders) == 3
    await made.later(3600)  # the lease of the purge that died is over
    same_file = JsonLines(tmp_path, "torn")
    assert (await Purger(made.context, 30 * DAY, same_file).run()).removed == 3
    assert {name for name, _ in read_back(tmp_path)} == {f"é-{number}" for number in range(3)}
    assert all(errors(ours(), record) == [] for record in read_back(tmp_path).values())


async def test_a_crash_between_export_and_removal_exports_the_order_again(tmp_path: Path) -> None:
    made = kit()
    await made.submit()
    await made.drain()
    await made.later(40 * DAY.total_seconds())
    made.store.fail_next("purge", StoreFault.UNAVAILABLE)
    purger = Purger(made.context, 30 * DAY, JsonLines(tmp_path, "one"))
    assert (await purger.run()).failed == 1
    assert "O-1" in made.store.orders
    await made.later(3600)
    assert (await purger.run()).removed == 1
    first, second = lines_of(tmp_path)
    assert first == second
    assert len(read_back(tmp_path)) == 1


@pytest.mark.parametrize("meanwhile", ["purged", "taken up"])
async def test_an_order_purged_or_taken_up_while_it_is_read_is_not_exported(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = kit()
    for order_id in ("stays", "goes"):
        await made.submit(order(order_id), order_id)
    await made.drain()
    store, journal = made.store, made.store.journal

    async def read(order_id: str) -> Sequence[JournalEntry]:
        found = await journal(order_id)
        if order_id == "goes" and meanwhile == "purged":
            store.orders.pop(order_id)
        elif order_id == "goes":
            stored = store.orders[order_id]
            stored.order = replace(stored.order, settled_at=None, token="another")
        return found

    @asynccontextmanager
    async def opened(where: args.Storage) -> AsyncIterator[StateStore]:
        yield store

    monkeypatch.setattr(store, "journal", read)
    monkeypatch.setattr(args, "open_store", opened)
    monkeypatch.setenv("SAS_TABLES", "UseDevelopmentStorage=true")
    assert run_in_thread(lambda: main(["export", "-"])) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["OrderID"] for line in said.out.splitlines()] == ["stays"]
    assert said.err == "exported 1 order\n"
