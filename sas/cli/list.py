"""``sas list``: the orders that need attention, those under way, those that are finished."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter

from sas.cli import conditions, finding, output, page, storage
from sas.cli.errors import UsageError
from sas.cli.finding import STATES, Wanted
from sas.codec.record import record_of, to_line
from sas.domain.ids import key_time
from sas.domain.model import Order
from sas.ports import StateStore, Summary

SUMMARY = "list orders in Error (or under way, or finished)"
DESCRIPTION = """\
List orders, those longest in their state first. The state is one of

  error        held for an operator (the default); with the step, its error, its fingerprint
  running      under way: some step is ready, out, being undone, or rests before a retry
  finished     processed, compensated (undone) or rejected; or one of these alone

A fingerprint is STEP/CODE: orders with one fingerprint failed alike, and can be put to a command
together (sas resubmit --state error --fingerprint STEP/CODE).

  sas list
  sas list --state processed --since 2026-11-20 --limit 10 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--state", choices=STATES, default="error", help="(default: error)")
    parser.add_argument("--since", metavar="WHEN", help="in that state since then or later, UTC")
    add_selection(parser)
    parser.add_argument(
        "--limit", type=count, default=50, metavar="N", help="how many at most (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")
    storage.add_arguments(parser)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add what chooses among orders of one state."""
    parser.add_argument("--workflow", metavar="NAME", help="of this workflow alone")
    parser.add_argument(
        "--fingerprint", type=_fingerprint, metavar="STEP/CODE", help="failed in this way alone"
    )


def count(text: str) -> int:
    """Return a number of orders."""
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 1 to 1000000")
    return int(text)


def _fingerprint(text: str) -> str:
    if not all(text.partition("/")):
        raise argparse.ArgumentTypeError(f"{text!r}: give STEP/CODE, as sas list shows it")
    return text


def run(arguments: argparse.Namespace) -> int:
    """List; return the exit code."""
    where = storage.read(arguments, os.environ)
    if arguments.fingerprint and arguments.state != "error":
        raise UsageError("--fingerprint chooses among orders in Error: leave --state out")
    wanted = Wanted(
        arguments.state,
        arguments.workflow,
        arguments.fingerprint,
        arguments.limit,
        finding.moment(arguments.since) if arguments.since else None,
    )
    return asyncio.run(_list(where, wanted, as_json=arguments.json))


async def _list(where: storage.Storage, wanted: Wanted, *, as_json: bool) -> int:
    async with storage.opened(where) as store:
        if wanted.state in {"error", "running"}:
            await _loaded(store, wanted, as_json=as_json)
        else:
            await _finished(store, wanted, as_json=as_json)
    return 0


async def _loaded(store: StateStore, wanted: Wanted, *, as_json: bool) -> None:
    orders = await finding.find(store, wanted)
    for order in orders:
        record = record_of(order, (), content=False)
        output.say(to_line(record) if as_json else _line(order))
    if as_json:
        return
    what = "in Error" if wanted.state == "error" else "under way"
    said = f"{page.orders(len(orders))} {what}"
    failures = finding.grouped(orders)
    _end(f"{said}: {failures}" if failures else said, len(orders), wanted.limit)
    if stand := await conditions.standing(store):
        kinds = ", ".join(sorted({one.kind.value for one in stand}))
        output.say(f"wrong with the system itself: {kinds}; `sas conditions` says more")


async def _finished(store: StateStore, wanted: Wanted, *, as_json: bool) -> None:
    found = await finding.find_finished(store, wanted)
    for summary in found:
        output.say(to_line(_summary(summary)) if as_json else _finished_line(summary))
    if not as_json:
        counts = Counter(summary.process_state.value for summary in found)
        parts = ", ".join(f"{number:,} {state}" for state, number in counts.most_common())
        said = f"{page.orders(len(found))} finished"
        _end(f"{said}: {parts}" if parts else said, len(found), wanted.limit)


def _end(said: str, found: int, limit: int) -> None:
    more = f" (the first {limit:,}; --limit shows more)" if found == limit else ""
    output.say(said + more)


def _line(order: Order) -> str:
    details = order.details
    parts = [
        page.time_of(finding.since(order)),
        f"{order.order_id:<20}",
        f"{details.workflow}/{details.version}",
        order.process_state.value,
    ]
    failed = [step for step in order.steps if step.error and page.is_failed(step)]
    parts += [
        f"{name}: {step.error.message}"
        for name, step in zip(finding.fingerprints(order), failed, strict=False)
        if step.error
    ]
    if order.acknowledged_by:
        parts.append(f"(seen by {order.acknowledged_by})")
    return output.one_line("  ".join(parts))


def _finished_line(one: Summary) -> str:
    parts = (page.time_of(one.at), f"{one.order_id:<20}", one.workflow, one.process_state.value)
    return output.one_line("  ".join(parts))


def _summary(one: Summary) -> dict[str, object]:
    return {
        "OrderID": one.order_id,
        "ProcessState": one.process_state.value,
        "SettledAt": key_time(one.at),
        "Workflow": one.workflow,
    }
