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
from typing import TextIO

from sas.cli import arguments as args
from sas.cli import health, look, output, selection
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record, time_of
from sas.codec.record import record_of, to_line
from sas.config import read_queues
from sas.domain.ids import key_time, parse_key_time
from sas.domain.order import Order, OrderState
from sas.features.claim_check import ClaimCheck
from sas.features.incidents import rules
from sas.operate import finding, letters
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.finding import QUERY_STATES, OrderQuery, is_failed
from sas.ports import StateStore, Summary

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
    selection.add_arguments(parser, QUERY_STATES, default="error", limit=50)
    args.add_json(parser)


def _list(arguments: argparse.Namespace) -> Work:
    query = selection.read(arguments) or OrderQuery(state="error")
    if query.state in {"error", "running"}:
        return partial(_list_loaded, query=query, as_json=arguments.json)
    return partial(_list_finished, arguments, query)


async def _list_loaded(store: StateStore, query: OrderQuery, *, as_json: bool) -> int:
    count, failures = 0, Counter[str]()
    async for order in finding.each(store, query):
        count += 1
        failures.update(finding.fingerprints(order))
        if count == 1 and not as_json:
            output.say(_heading("Why"))
        record = record_of(order, (), content=False)
        output.say(to_line(record) if as_json else _list_line(order))
    if as_json:
        return 0
    condition = "in Error" if query.state == "error" else "under way"
    _list_end(f"{output.orders(count)} {condition}", finding.in_words(failures), count, query.limit)
    await _check_workflow(store, query, count)
    now = output.now()
    incidents = await health.incidents(store)
    active = [incident for incident in incidents if not rules.is_over(incident, now)]
    if active:
        active.sort(key=lambda incident: not incident.needs_you)
        subject = "1 incident is" if len(active) == 1 else f"{len(active)} incidents are"
        texts = "; ".join(incident.headline for incident in active)
        output.say(output.one_line(f"{subject} active: {texts}: sas incidents"))
    return 0


async def _list_finished(
    arguments: argparse.Namespace, query: OrderQuery, store: StateStore
) -> int:
    summaries = await finding.newest_finished(store, query, output.now())
    rows = [(summary.at, _finished_record(summary)) for summary in summaries]
    problem = ""
    if query.state == "rejected" and query.workflow is None:
        parts, problem = await _rejected_in_queue(query)
        parts = parts[: query.limit]
        order_ids = list(dict.fromkeys(str(record["OrderID"]) for _, record in parts))
        stored = {order.order_id for order in await finding.load_all(store, order_ids)}
        rows += [(at, record) for at, record in parts if record["OrderID"] not in stored]
        rows = sorted(rows, key=lambda row: row[0], reverse=True)[: query.limit]
    if rows and not arguments.json:
        output.say(_heading("Why"))
    for at, record in rows:
        output.say(to_line(record) if arguments.json else _finished_line(at, record))
    if not arguments.json:
        states = finding.in_words(Counter(str(record["ProcessState"]) for _, record in rows))
        _list_end(f"{output.orders(len(rows))} finished", states, len(rows), query.limit)
        await _check_workflow(store, query, len(rows))
    if problem:
        output.complain(f"sas: {output.one_line(problem)}")
    return 1 if problem else 0


async def _rejected_in_queue(
    query: OrderQuery,
) -> tuple[list[tuple[datetime, Record]], str]:
    """Return the orders on ``orders-rejected``, and why the queue could not be read, if so."""
    async with args.open_bus_if_any() as bus:
        queues = read_queues(os.environ)
        if bus is None:
            return [], (
                f"no Service Bus namespace is configured: orders on {queues.rejected} are not shown"
            )
        contents = await letters.read(bus, [queues.rejected])
    parts = letters.rejected_orders(contents.letters, queues)
    rows = [(parse_key_time(part.at), look.rejected_record(part)) for part in parts]
    since = query.since
    return (
        [row for row in rows if since is None or row[0] >= since],
        contents.problems.get(queues.rejected, ""),
    )


async def _check_workflow(store: StateStore, query: OrderQuery, count: int) -> None:
    """Refuse the name of a workflow that never ran here, because it may be mistyped.

    Raises:
        NotPossibleError: no order was found, and the table remembers only other workflows.
    """
    if count or query.workflow is None:
        return
    values = await store.shared_values("workflow-")
    known_names = {name.removeprefix("workflow-").rpartition("-")[0] for name in values}
    if known_names and query.workflow not in known_names:
        names = ", ".join(sorted(known_names))
        raise NotPossibleError(f"no workflow {query.workflow!r} ever ran here: known are {names}")


def _list_end(title: str, parts: str, count: int, limit: int) -> None:
    suffix = f" (the first {limit:,}; --limit shows more)" if count == limit else ""
    output.say((f"{title}: {parts}" if parts else title) + suffix)


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
    if open_steps := finding.doing(order, output.now()):
        parts.append(open_steps)
    if order.undone_because:
        parts.append(f"(undone: {order.undone_because})")
    if order.acknowledged_by:
        parts.append(f"(seen by {order.acknowledged_by})")
    return output.row(_with_one_text(parts))


def _finished_line(at: datetime, record: Record) -> str:
    name, workflow = record["OrderID"], record.get("Workflow") or "-"
    parts = [f"{time_of(at):<20}", f"{name:<20}", f"{workflow:<18}", str(record["ProcessState"])]
    if description := record.get("Description"):
        parts.append(f"{record['Reason']}: {description}")
    if reason := record.get("UndoneBecause"):
        parts.append(str(reason))
    return output.row(_with_one_text(parts))


def _with_one_text(parts: Sequence[str]) -> list[str]:
    """Return the parts of a row, with all texts after the four cells joined to one text."""
    return [*parts[:4], "  ".join(parts[4:])] if len(parts) > 4 else list(parts)


def _finished_record(summary: Summary) -> Record:
    return {
        "OrderID": summary.order_id,
        "ProcessState": summary.process_state.value,
        "StoppedAt": key_time(summary.at),
        "Workflow": summary.workflow,
        "UndoneBecause": summary.undone_because,
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
                lines = await asyncio.gather(
                    *(_export_line(store, order, until) for order in orders)
                )
                records = [line for line in lines if line is not None]
                file.writelines(f"{line}\n" for line in records)
                count += len(records)
        if arguments.json and arguments.file != "-":
            output.say(to_line({"Exported": count, "File": arguments.file}))
        else:
            output.complain(f"exported {output.orders(count)}")
        return 0

    return export


async def _export_line(store: StateStore, order: Order, until: datetime) -> str | None:
    """Return an order as a line; None if it was purged, or does not match any more.

    The order and its journal are read one after the other. If the order changed meanwhile, both are
    read again.
    """
    while True:
        journal = await store.journal(order.order_id)
        line = to_line(record_of(await ClaimCheck(store).fetch_all(order), journal, content=True))
        reloaded = await store.load(order.order_id)
        if reloaded is None or not _has_ended(reloaded, until):
            return None
        if reloaded.token == order.token:
            return line
        order = reloaded


async def _finished(store: StateStore, until: datetime) -> AsyncIterator[Sequence[Order]]:
    """Yield finished orders, a few at a time. The caller reads their contents in parallel."""
    async for batch in finding.summaries(store, in_error=False, until=until):
        ids = [summary.order_id for summary in batch]
        for start in range(0, len(ids), finding.LOADS_AT_ONCE):
            batch_orders = await finding.load_all(store, ids[start : start + finding.LOADS_AT_ONCE])
            yield [order for order in batch_orders if _has_ended(order, until)]


def _has_ended(order: Order, until: datetime) -> bool:
    """Return whether an order finished at ``until`` or before."""
    in_error = order.process_state is OrderState.ERROR
    return order.stopped_at is not None and order.stopped_at <= until and not in_error


@contextmanager
def _writing(name: str) -> Iterator[TextIO]:
    """Open a file to write. The file gets its name only when it is complete."""
    if name == "-":
        with output.written():
            yield sys.stdout
            sys.stdout.flush()
        return
    partial_file = Path(f"{name}.{os.getpid()}.part")
    try:
        with open(partial_file, "w", encoding="utf-8", opener=_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial_file.replace(name)
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial_file.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    """Open a file that only its owner can read, because the orders may hold personal data."""
    return os.open(path, flags, 0o600)


VERBS = (
    Subcommand.with_store(
        "list",
        "list orders in Error (or under way, or finished)",
        description=LIST,
        add_arguments=_add_list,
        prepare=_list,
    ),
    Subcommand.with_store(
        "export",
        "write finished orders to a file",
        description=EXPORT,
        add_arguments=_add_export,
        prepare=_export,
    ),
)
