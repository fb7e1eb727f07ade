"""``sas list``: the orders that need attention, those under way, those that are finished."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter

from sas.cli import choosing, conditions, finding, output, page, storage
from sas.cli.finding import STATES, Wanted
from sas.codec.record import record_of, to_line
from sas.domain.ids import key_time
from sas.domain.order import Order
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
    choosing.add_arguments(parser, STATES, default="error", limit=50)
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """List; return the exit code."""
    where = storage.read(arguments, os.environ)
    wanted = choosing.read(arguments) or Wanted("error")
    return asyncio.run(_list(where, wanted, as_json=arguments.json))


async def _list(where: storage.Storage, wanted: Wanted, *, as_json: bool) -> int:
    async with storage.opened(where) as store:
        if wanted.state in {"error", "running"}:
            await _loaded(store, wanted, as_json=as_json)
        else:
            await _finished(store, wanted, as_json=as_json)
    return 0


async def _loaded(store: StateStore, wanted: Wanted, *, as_json: bool) -> None:
    found, failures = 0, Counter[str]()
    async for order in finding.each(store, wanted):
        found += 1
        failures.update(finding.fingerprints(order))
        record = record_of(order, (), content=False)
        output.say(to_line(record) if as_json else _line(order))
    if as_json:
        return
    what = "in Error" if wanted.state == "error" else "under way"
    said = f"{page.orders(found)} {what}"
    how = finding.spelled(failures)
    _end(f"{said}: {how}" if how else said, found, wanted.limit)
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
