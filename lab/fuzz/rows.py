"""The entry point of the table: rows of an older or a newer version, or changed by hand.

Some rows of one order are changed. Then every reader of them (messages, sweeps, purge, lists, the
command) must accept them, or raise an error that names the row to repair. All other orders must end
as they do without the change.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.data.tables import EntityProperty

from lab.fuzz.messages import order_of
from lab.fuzz.mutation import ODD, Raw, body_of
from lab.fuzz.scene import BESIDE, DOCUMENTED, Scene, World
from sas.ports import OtherVersionError, StoreMismatchError, StoreUnavailableError, UnreadableError
from sas.testing.platform import QUEUES

Parts = dict[str, Any]
CLEAR = (OtherVersionError, UnreadableError, StoreMismatchError)
"""The errors by which a reader reports rows that it cannot use."""
TYPED: tuple[Any, ...] = (
    b"\x00\xff",
    2**31,
    2**40,
    -1,
    float("nan"),
    1e308,
    datetime(2026, 1, 1, tzinfo=UTC),
    EntityProperty(2**40, "Edm.Int64"),
    True,
    None,
    "",
    "newer-state",
    "x" * 32_000,
)
"""Values of the types that a property may have."""
JSON_COLUMNS = ("Messages00", "Value", "Body", "Changes")
SHARED = (
    "shared|circuit|payment",
    "shared|circuits",
    "shared|incident|x",
    "shared|version|order|1",
)
COLUMNS = ("Newer", "Value", "Holder", "Until", "Shards", "ResultRow", "ResultSha256", "Route")
"""Columns that many rows do not have."""
SPAN = timedelta(hours=2)


def row_parts(scene: Scene, rng: random.Random) -> Parts:
    """Return some edits of the rows of one order, or of the rows that all share."""
    keys, order_id = sorted(scene.rows), ""
    row_keys = [key for key in keys if key[0] == "meta"] + [("meta", key) for key in SHARED]
    if rng.random() < 0.85:
        order_id = order_of(rng.choice([key for partition, key in keys if partition != "meta"]))
        row_keys = [key for key in keys if key[0] != "meta" and order_of(key[1]) == order_id]
    edits = [_edit(scene, rng.choice(row_keys), rng) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    return {"order": order_id, "edits": edits, "sweeps": rng.choice([0, 0, 0, 2])}


def _edit(scene: Scene, key: tuple[str, str], rng: random.Random) -> list[Any]:
    """Return one edit: a row, a column, and its value. Without a column the row is removed."""
    row: Mapping[str, Any] = scene.rows.get(key) or {}
    kind = rng.random()
    if kind < 0.1:
        return [*key, None, None]
    if kind < 0.2 and key[0] != "meta":
        parts = key[1].split("|")
        other = rng.choice(["|".join([*parts, "more"]), f"order|{order_of(key[1])}|a|newer"])
        return [key[0], other, "copy", key[1]]
    names = [name for name in row if name not in {"PartitionKey", "RowKey"}]
    column = rng.choice([*names, *names, *names, *COLUMNS])
    return [*key, column, _value(row.get(column), column, rng)]


def _value(old: Any, column: str, rng: random.Random) -> Any:
    if column in JSON_COLUMNS and isinstance(old, str) and rng.random() < 0.8:
        try:
            return body_of(json.loads(old), rng).decode("utf-8", "replace")[:32_000]
        except ValueError:
            pass
    odd = rng.choice([value for value in ODD if not isinstance(value, Raw | list | dict)])
    values = [*TYPED, odd, odd]
    if isinstance(old, str):
        values += [old[:-1], old + "0", old.upper(), old.replace("2026", "9999")]
    elif isinstance(old, int):
        values += [old + 1, old - 1, old + 1000, str(old), float(old)]
    return rng.choice(values)


def edited(scene: Scene, edits: list[list[Any]]) -> World:
    """Return a world whose rows were changed."""
    world = scene.world()
    rows = world.table.entities
    for partition, key, column, value in edits:
        row: dict[str, Any] = dict(rows.get((partition, key)) or {"RowKey": key})
        if column is None:
            rows.pop((partition, key), None)
            continue
        if column == "copy":
            row = {**rows.get((partition, value), {}), "RowKey": key}
        else:
            row[column] = value
        world.table.write_by_hand(partition, row)
    world.allowed = DOCUMENTED
    return world


async def check_rows(parts: Parts, scene: Scene) -> str | None:
    """Change rows, and let everything read them; return what went wrong."""
    target = parts.get("order", "")
    world = edited(scene, parts.get("edits", []))
    for queue, body in _messages(scene, target):
        world.send(queue, f"{queue}-m", body)
    await world.pump()
    sweeps = parts.get("sweeps", 2)
    await _played(world, sweeps)
    if world.errors:
        return world.errors[0]
    if target and world.state_of(BESIDE) != "Processed":
        return f"the order beside it is {world.state_of(BESIDE)}"
    if (id(scene), sweeps) not in _expected:
        _expected[id(scene), sweeps] = _ends(await _played(scene.world(), sweeps))
    for order_id, state in _expected[id(scene), sweeps].items():
        if target not in {"", order_id} and _ends(world).get(order_id) != state:
            return f"{order_id} is {_ends(world).get(order_id)}, and without the change {state}"
    world.clock.set(world.clock.now() + timedelta(days=40))
    await world.guarded(world.app.purger.run())
    return await _read_all(world, target)


_expected: dict[tuple[int, int], dict[str, Any]] = {}
"""The states of the orders of a scene without a change, by the scene and the number of sweeps."""


def _messages(scene: Scene, order_id: str) -> list[tuple[str, bytes]]:
    """Return one message of an order for each queue."""
    body_of_queue = {
        queue: next((body for body in bodies if order_id.encode() in body), None)
        for queue, bodies in scene.valid.items()
        if queue not in {QUEUES.dead_letters, QUEUES.alerts, QUEUES.rejected}
    }
    return [(queue, body) for queue, body in body_of_queue.items() if body and order_id]


async def _played(world: World, sweeps: int) -> World:
    """Let a world go on: submit another order, and sweep some times, hours apart."""
    world.submit(BESIDE, "beside")
    await world.pump()
    for _ in range(sweeps):
        world.clock.set(world.clock.now() + SPAN)
        await world.guarded(world.app.supervisor.sweep())
        await world.pump()
    return world


def _ends(world: World) -> dict[str, tuple[Any, Any]]:
    rows = ((key, row) for (part, key), row in world.table.entities.items() if part != "meta")
    return {
        order_of(key): (row.get("ProcessState"), row.get("Seq"))
        for key, row in rows
        if key.endswith("|a|state")
    }


async def _read_all(world: World, target: str) -> str | None:
    """Read what the command ``sas`` reads: the lists, one order and its journal."""
    store = world.app.context.store
    world.allowed = (*CLEAR, StoreUnavailableError)
    await world.guarded(store.attention(100))
    await world.guarded(store.finished(100))
    for shard in store.shards:
        await world.guarded(store.oldest_due(shard))
    await world.guarded(store.load(target or "O-failed"))
    await world.guarded(store.journal(target or "O-failed"))
    return world.errors[0] if world.errors else None
