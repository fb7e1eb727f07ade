"""``sas conditions``: what is wrong with the system right now, and since when."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from sas.cli import output, page, storage
from sas.codec.record import to_line
from sas.domain.ids import key_time
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from sas.ports import StateStore

SUMMARY = "show what is wrong with the system right now"
DESCRIPTION = """\
Show the conditions that stand: what is wrong with the system rather than with one order, and met
by many. Each was told on operator-alerts when it began, is told again while it lasts, and once
when it is over.

  not-picked-up   steps are ready and no scheduler claims them
  not-runnable    a workflow version that orders need is not deployed
  breaker-open    a remote service failed; no calls go out (see sas breakers)
  waiting         a step of a workflow rests past its threshold, to be tried again
  behind          a queue's messages are taken up a minute and more after they were sent
  key-missing     a key that encrypted secret fields is not among SAS_ENCRYPTION_KEYS

Met is when an order last met it. One that no order meets any more is gone from here once the
supervisor has told so; until then it is shown as over.

  sas conditions
  sas conditions --json
"""

COLUMNS: Mapping[str, Callable[[ActiveIncident, datetime], str]] = {
    "Kind": lambda one, _: one.kind.value,
    "About": lambda one, _: one.scope,
    "State": lambda one, now: "over" if rules.is_over(one, now) else "stands",
    "Since": lambda one, _: page.time_of(one.since),
    "Met": lambda one, _: page.time_of(one.last_seen),
    "Told": lambda one, _: str(one.alerts_sent),
}
"""Heading to what stands below it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    where = storage.read(arguments, os.environ)
    return asyncio.run(_show(where, as_json=arguments.json))


async def _show(where: storage.Storage, *, as_json: bool) -> int:
    async with storage.opened(where) as store:
        found = await standing(store)
    now = datetime.now(UTC)
    if as_json:
        for one in found:
            output.say(to_line(_record(one, now)))
    else:
        _table(found, now)
    return 0


async def standing(store: StateStore) -> list[ActiveIncident]:
    """Return every condition that stands, or is over and yet to be told so."""
    shared = await active_incidents(store).all()
    return [one.value for one in shared.values() if one.value is not None]


def _table(found: Sequence[ActiveIncident], now: datetime) -> None:
    if not found:
        output.say("no condition stands")
        return
    rows = [[cell(one, now) for cell in COLUMNS.values()] for one in found]
    heading, *lines = page.table([[*COLUMNS], *rows])
    output.say(heading)
    for line, one in zip(lines, found, strict=True):
        output.say(line)
        output.say(f"    {output.one_line(one.text)}")


def _record(one: ActiveIncident, now: datetime) -> dict[str, object]:
    return {
        "Kind": one.kind.value,
        "About": one.scope,
        "Over": rules.is_over(one, now),
        "Since": key_time(one.since),
        "Met": key_time(one.last_seen),
        "Told": one.alerts_sent,
        "ToldAt": key_time(one.last_alert_at) if one.last_alert_at else None,
        "NextToldAt": key_time(rules.next_alert_at(one)),
        "Orders": list(one.orders),
        "Text": one.text,
    }
