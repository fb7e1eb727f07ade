"""``sas list`` and ``sas export``: the state of many orders."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from sas.cli import arguments as args
from sas.cli import health, look, output, selection
from sas.cli.arguments import Verb, Work
from sas.cli.output import time_of
from sas.codec.record import record_of, to_line
from sas.config import read_queues
from sas.domain.ids import key_time, parse_key_time
from sas.domain.order import Order, OrderState
from sas.features.claim_check import ClaimCheck
from sas.operate import finding, letters
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.finding import STATES, Wanted, is_failed
from sas.ports import StateStore, Summary

Record = dict[str, Any]

# -- sas list ---------------------------------------------------------------------------------

LIST = """\
List orders: waiting orders with the longest wait first, ended orders with the newest first. The
state is one of

  error        waiting for an operator (the default); with the step, its error, its fingerprint
  running      under way: a step is ready, with its agent, being undone, or resting; the first due
               first
  finished     processed, compensated (undone) or rejected; or one of these alone
  rejected     never begun: also those on the queue orders-rejected, where a namespace is configured

A fingerprint is STEP/CODE. Orders with the same fingerprint failed alike; one command can change
them all (sas resubmit --state error --fingerprint STEP/CODE).

  sas list
  sas list --state processed --since 1h --limit 10 --json
"""


def _add_list(parser: argparse.ArgumentParser) -> None:
    selection.add_arguments(parser, STATES, default="error", limit=50)
    args.add_json(parser)


def _list(arguments: argparse.Namespace) -> Work:
    wanted = selection.read(arguments) or Wanted(state="error")
    if wanted.state in {"error", "running"}:
        return partial(_list_loaded, wanted=wanted, as_json=arguments.json)
    return partial(_list_finished, arguments, wanted)


async def _list_loaded(store: StateStore, wanted: Wanted, *, as_json: bool) -> int:
    found, failures = 0, Counter[str]()
    async for order in finding.each(store, wanted):
        found += 1
        failures.update(finding.fingerprints(order))
        if found == 1 and not as_json:
            output.say(_heading("Why"))
        record = record_of(order, (), content=False)
        output.say(to_line(record) if as_json else _list_line(order))
    if as_json:
        return 0
    what = "in Error" if wanted.state == "error" else "under way"
    _list_end(f"{output.orders(found)} {what}", finding.in_words(failures), found, wanted.limit)
    await _check_workflow(store, wanted, found)
    if active := await health.incidents(store):
        kinds = ", ".join(sorted({one.kind.value for one in active}))
        output.say(f"incidents of the system: {kinds}; see `sas incidents`")
    return 0


async def _list_finished(arguments: argparse.Namespace, wanted: Wanted, store: StateStore) -> int:
    found = [(one.at, _finished_record(one)) for one in await _finished_in_store(store, wanted)]
    problem = ""
    if wanted.state == "rejected" and wanted.workflow is None:
        parts, problem = await _rejected_in_queue(wanted)
        known = {record["OrderID"] for _, record in found}
        found += [(at, record) for at, record in parts if record["OrderID"] not in known]
        found = sorted(found, key=lambda one: one[0], reverse=True)[: wanted.limit]
    if found and not arguments.json:
        output.say(_heading("Why"))
    for at, record in found:
        output.say(to_line(record) if arguments.json else _finished_line(at, record))
    if not arguments.json:
        states = finding.in_words(Counter(str(record["ProcessState"]) for _, record in found))
        _list_end(f"{output.orders(len(found))} finished", states, len(found), wanted.limit)
        await _check_workflow(store, wanted, len(found))
    if problem:
        output.complain(f"sas: {output.one_line(problem)}")
    return 1 if problem else 0


async def _finished_in_store(store: StateStore, wanted: Wanted) -> list[Summary]:
    return await finding.newest_finished(store, wanted, output.now())


async def _rejected_in_queue(
    wanted: Wanted,
) -> tuple[list[tuple[datetime, Record]], str]:
    """Return the rejected orders on their queue, or why it was not read."""
    async with args.open_bus_if_any() as bus:
        queues = read_queues(os.environ)
        if bus is None:
            return [], (
                f"no Service Bus namespace is configured: orders on {queues.rejected} are not shown"
            )
        read = await letters.read(bus, [queues.rejected])
    parts = (part for _, part in letters.rejected_orders(read.letters))
    found = [(parse_key_time(part.at), look.rejected_record(part)) for part in parts]
    first = wanted.since
    return (
        [one for one in found if first is None or one[0] >= first],
        read.problems.get(queues.rejected, ""),
    )


async def _check_workflow(store: StateStore, wanted: Wanted, found: int) -> None:
    """Say that a workflow is unknown: its name may be mistyped.

    Raises:
        NotPossibleError: nothing was found, and the table remembers other workflows only.
    """
    if found or wanted.workflow is None:
        return
    values = await store.shared_values("workflow-")
    known = {name.removeprefix("workflow-").rpartition("-")[0] for name in values}
    if known and wanted.workflow not in known:
        raise NotPossibleError(
            f"no workflow {wanted.workflow!r} ever ran here: known are {', '.join(sorted(known))}"
        )


def _list_end(said: str, parts: str, found: int, limit: int) -> None:
    more = f" (the first {limit:,}; --limit shows more)" if found == limit else ""
    output.say((f"{said}: {parts}" if parts else said) + more)


def _heading(last: str) -> str:
    return output.row((f"{'Since':<20}", f"{'Order':<20}", f"{'Workflow':<18}", "State", last))


def _list_line(order: Order) -> str:
    parts = [
        f"{time_of(finding.since(order)):<20}",
        f"{order.order_id:<20}",
        f"{f'{order.details.workflow}/{order.details.version}':<18}",
        order.process_state.value,
    ]
    parts += [
        f"{finding.fingerprint(step)}: {step.error.message}"
        for step in order.steps
        if step.error and is_failed(step)
    ]
    if doing := finding.doing(order):
        parts.append(doing)
    if order.undone_because:
        parts.append(f"(undone: {order.undone_because})")
    if order.acknowledged_by:
        parts.append(f"(seen by {order.acknowledged_by})")
    return output.row(_whole(parts))


def _finished_line(at: datetime, record: Record) -> str:
    name, workflow = record["OrderID"], record.get("Workflow") or "-"
    parts = [f"{time_of(at):<20}", f"{name:<20}", f"{workflow:<18}", str(record["ProcessState"])]
    if said := record.get("Description"):
        parts.append(f"{record['Reason']}: {said}")
    if because := record.get("UndoneBecause"):
        parts.append(str(because))
    return output.row(_whole(parts))


def _whole(parts: Sequence[str]) -> list[str]:
    """Return the cells of a line, with all that is said of the order as the last."""
    return [*parts[:4], "  ".join(parts[4:])] if len(parts) > 4 else list(parts)


def _finished_record(one: Summary) -> Record:
    return {
        "OrderID": one.order_id,
        "ProcessState": one.process_state.value,
        "StoppedAt": key_time(one.at),
        "Workflow": one.workflow,
        "UndoneBecause": one.undone_because,
    }


# -- sas export -------------------------------------------------------------------------------

EXPORT = """\
Write finished orders (processed, compensated, rejected) with their content and their journals, one
JSON object a line, the oldest first. FILE appears when it is complete; - writes to stdout at once.
Nothing is removed. The content may be personal: protect the file.

  sas export --older-than 30 finished.jsonl
"""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file to write; - for stdout")
    parser.add_argument(
        "--older-than",
        type=args.number("days", 0, 36_500),
        default=0.0,
        metavar="DAYS",
        help="only orders that finished at least so many days ago (default: all)",
    )
    args.add_json(parser, "how many were written as one JSON object")


def _export(arguments: argparse.Namespace) -> Work:
    until = output.now() - timedelta(days=arguments.older_than)

    async def export(store: StateStore) -> int:
        count = 0
        with _writing(arguments.file) as file:
            async for orders in _finished(store, until):
                lines = await asyncio.gather(*(_export_line(store, one, until) for one in orders))
                found = [line for line in lines if line is not None]
                file.writelines(f"{line}\n" for line in found)
                count += len(found)
        if arguments.json and arguments.file != "-":
            output.say(to_line({"Exported": count, "File": arguments.file}))
        else:
            output.complain(f"exported {output.orders(count)}")
        return 0

    return export


async def _export_line(store: StateStore, order: Order, until: datetime) -> str | None:
    """Return an order as a line; None if it was purged or is under way again by now."""
    while True:
        journal = await store.journal(order.order_id)
        line = to_line(record_of(await ClaimCheck(store).fetch_all(order), journal, content=True))
        now = await store.load(order.order_id)
        if now is None or not _ended(now, until):
            return None
        if now.token == order.token:
            return line
        order = now


async def _finished(store: StateStore, until: datetime) -> AsyncIterator[Sequence[Order]]:
    """Yield finished orders, a few at a time: their content is read at once."""
    async for batch in finding.summaries(store, in_error=False, until=until):
        ids = [one.order_id for one in batch]
        for start in range(0, len(ids), finding.CONCURRENT):
            loaded = await finding.load_all(store, ids[start : start + finding.CONCURRENT])
            yield [order for order in loaded if _ended(order, until)]


def _ended(order: Order, until: datetime) -> bool:
    in_error = order.process_state is OrderState.ERROR
    return order.stopped_at is not None and order.stopped_at <= until and not in_error


@contextmanager
def _writing(name: str) -> Iterator[TextIO]:
    """Open a file to write. It gets its name when it is complete."""
    if name == "-":
        with output.written():
            yield sys.stdout
            sys.stdout.flush()
        return
    part = Path(f"{name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(name)
    except OSError as wrong:
        raise UsageError(f"cannot write {name}: {wrong.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    """Open a file that only its owner can read: the content may be personal."""
    return os.open(path, flags, 0o600)


VERBS = (
    Verb.with_store(
        "list",
        "list orders in Error (or under way, or finished)",
        description=LIST,
        add_arguments=_add_list,
        prepare=_list,
    ),
    Verb.with_store(
        "export",
        "write finished orders to a file",
        description=EXPORT,
        add_arguments=_add_export,
        prepare=_export,
    ),
)
