"""CPU of this process for a transaction of six rows, built by hand and by the SDK.

    python -m benchmarks.transaction [--rounds 15] [--count 40] [--sizes]

Both ways take turns over one Azurite, and so does a range query of the same rows. The last two
rows have a proxy setting in the environment (``no_proxy=*``): aiohttp then looks into the
environment, in a thread, before each request. The figures are medians of the rounds.

``--sizes`` tells what a transaction costs here and in Azurite by its number of rows: what several
transitions in one transaction would save.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.orders import cpu_s
from devstack.azurite import Azurite
from sas.adapters.rows import stored
from sas.adapters.table import Table
from sas.adapters.table_store import TableStore
from sas.adapters.transaction import Operation

Work = Callable[[str], Awaitable[object]]
SIZES = (1, 7, 14, 28)
"""Rows of a transaction. A transition of a three-step order writes 6 to 8."""
_TEXTS = {f"Property{n}": f"a value of some length {n}" for n in range(12)}


def operations(order: str) -> list[Operation]:
    """Return what a claim writes, roughly: two rows replaced and four created."""
    replaced = [Operation("upsert", {"RowKey": f"{order}|a|{n}", **_TEXTS}) for n in range(2)]
    created = [Operation("create", {"RowKey": f"{order}|b|{n}", **_TEXTS}) for n in range(4)]
    return replaced + created


def transaction(table: Table) -> Work:
    """Return a function that writes the rows of an order."""
    return lambda order: table.transact("p", operations(order))


def by_sdk(table: Table) -> Work:
    """Return a function that lets the SDK write the rows of an order."""

    def submit(order: str) -> Awaitable[object]:
        given = [(one.verb, stored("p", one.row)) for one in operations(order)]
        return table.client.submit_transaction(given)

    return submit


def query(table: Table) -> Work:
    """Return a function that reads six rows."""
    return lambda _: table.rows("p", ("first|", "first|~"))


async def cpu_ms(work: Work, prefix: str, count: int) -> float:
    """Return the CPU of one piece of work, in milliseconds."""
    before = time.process_time()
    for number in range(count):
        await work(f"{prefix}|{number:04d}")
    return 1000 * (time.process_time() - before) / count


async def measure(connection_string: str, rounds: int, count: int) -> dict[str, list[float]]:
    """Return the CPU of every way in every round."""
    async with AsyncExitStack() as stack:

        def a_table() -> Table:
            store = TableStore.connect(connection_string, "orders")
            stack.push_async_callback(store.close)
            return store.table

        direct = a_table()
        os.environ["no_proxy"] = "*"
        asking = a_table()
        os.environ.pop("no_proxy")
        await direct.create()
        ways = {
            "transaction, direct": transaction(direct),
            "transaction, by the SDK": by_sdk(direct),
            "query of six rows": query(direct),
            "transaction, direct, no_proxy=*": transaction(asking),
            "query of six rows, no_proxy=*": query(asking),
        }
        await direct.transact("p", operations("first"))
        for name, work in ways.items():
            await cpu_ms(work, f"warm {name}", 5)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, work in ways.items():
                found[name].append(await cpu_ms(work, f"{number} {name}", count))
        return found


async def by_size(azurite: Azurite, rounds: int, count: int) -> None:
    """Print the CPU of Azurite and of this process for transactions of some sizes."""
    store = TableStore.connect(azurite.connection_string)
    await store.table.create()
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
    pid = azurite.child.pid if azurite.child else 0
    for number in range(rounds):
        for size in SIZES:
            before, served = time.process_time(), cpu_s(pid)
            for one in range(count):
                rows = [{"RowKey": f"{row:02d}", **_TEXTS} for row in range(size)]
                await store.table.transact(
                    f"{number}-{size}-{one}", [Operation("create", row) for row in rows]
                )
            spent = (cpu_s(pid) - served, time.process_time() - before)
            found[size].append((1000 * spent[0] / count, 1000 * spent[1] / count))
    await store.close()
    for size, costs in found.items():
        served_ms, own_ms = (statistics.median(column) for column in zip(*costs, strict=True))
        print(f"{size:3} rows: Azurite {served_ms:5.2f} ms CPU, this process {own_ms:5.2f}")


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--sizes", action="store_true", help="cost by number of rows instead")
    options = parser.parse_args()
    with Azurite() as azurite:
        if options.sizes:
            asyncio.run(by_size(azurite, options.rounds, 5 * options.count))
            return
        found = asyncio.run(measure(azurite.connection_string, options.rounds, options.count))
    base = found["transaction, direct"]
    for name, costs in found.items():
        ratio = statistics.median(a / b for a, b in zip(costs, base, strict=True))
        print(f"{name:32} {statistics.median(costs):5.2f} ms CPU, ratio {ratio:5.2f}")


if __name__ == "__main__":
    main()
