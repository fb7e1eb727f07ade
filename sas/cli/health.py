"""``sas breakers`` and ``sas incidents``: what is wrong with the system, not with one order."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from sas.cli import arguments as args
from sas.cli import output, workflows
from sas.cli.arguments import Storage, Verb
from sas.cli.output import time_of
from sas.codec import breakers as breaker_cells
from sas.codec import conditions as incident_cells
from sas.codec.record import to_line
from sas.domain import conditions
from sas.domain.breaker import Breaker, BreakerState
from sas.domain.conditions import Standing
from sas.domain.ids import key_time
from sas.ports import StateStore

# -- sas breakers -----------------------------------------------------------------------------

BREAKERS = """\
Show the circuit breaker of each agent's remote service. All instances share it.

  closed      calls go out
  open        no call goes out; after the moment shown one request probes the service
  half-open   one request probes the service, the others wait; the probe ends at the moment shown

Since: when the breaker closed, or first opened. Rounds: how often it opened since it last closed.
Why: the failure that opened it. Breakers that never opened are shown only if you name their agents
or give --app.

  sas breakers
  sas breakers payment shipping --json
  sas breakers --app orders.workflows:workflows
"""


def _add_breakers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agents", nargs="*", metavar="AGENT", help="only these (default: all)")
    parser.add_argument(
        "--app", metavar="MODULE:NAME", help="show every agent that these workflows use"
    )
    args.add_json(parser, "JSON lines instead of a table")
    args.add_storage(parser)


def _run_breakers(arguments: argparse.Namespace) -> int:
    where = args.read_storage(arguments, os.environ)
    known = workflows.load(arguments.app).agents() if arguments.app else set()
    return asyncio.run(_breakers(where, arguments.agents, known, as_json=arguments.json))


async def _breakers(
    where: Storage, wanted: Iterable[str], known: Iterable[str], *, as_json: bool
) -> int:
    prefix = breaker_cells.CELLS
    async with args.open_store(where) as store:
        cells = await store.cells(prefix)
    names = sorted(list(wanted) or {*known, *(name.removeprefix(prefix) for name in cells)})
    found = {
        name: breaker_cells.from_cell(cells.get(breaker_cells.cell_name(name))) for name in names
    }
    if as_json:
        for name, breaker in found.items():
            output.say(to_line(_breaker_record(name, breaker)))
    else:
        _breaker_table(found)
    return 0


def _breaker_table(found: Mapping[str, Breaker]) -> None:
    if not found:
        output.say("no circuit breaker ever opened here")
        return
    rows = [
        (
            *(name, one.state.value, time_of(one.since), time_of(one.until), str(one.rounds)),
            one.why or ("-" if one.since else "never opened"),
        )
        for name, one in found.items()
    ]
    for line in output.table(("Agent", "State", "Since", "Until", "Rounds", "Why"), rows):
        output.say(line)
    counts = Counter(one.state for one in found.values())
    output.say(", ".join(f"{counts[s]:,} {s.value}" for s in BreakerState if counts[s]))


def _breaker_record(name: str, one: Breaker) -> dict[str, object]:
    return {
        "Agent": name,
        "State": one.state.value,
        "Since": key_time(one.since) if one.since else None,
        "Until": key_time(one.until) if one.until else None,
        "Rounds": one.rounds,
        "Why": one.why,
        "Prober": one.prober,
    }


# -- sas incidents ----------------------------------------------------------------------------

INCIDENTS = """\
Show the incidents of the system: faults that affect many orders, not one. An alert on
operator-alerts says when an incident begins, from time to time while it lasts, and when it is over.

  not-picked-up   steps are ready and no scheduler claims them
  not-runnable    a workflow version that orders need is not deployed
  breaker-open    a remote service failed; no calls go out to it (see sas breakers)
  waiting         steps of a workflow rest longer than its threshold before they are tried again
  behind          messages wait in a queue for a minute or longer
  key-missing     a key that encrypted secret fields is not in SAS_ENCRYPTION_KEYS

LastSeen is when an order last met the incident. State is active; or over, until the alert that
says so is sent. Alerts counts the alerts sent.

  sas incidents
  sas incidents --json
"""


def _add_incidents(parser: argparse.ArgumentParser) -> None:
    args.add_json(parser, "JSON lines instead of a table")
    args.add_storage(parser)


def _run_incidents(arguments: argparse.Namespace) -> int:
    where = args.read_storage(arguments, os.environ)
    return asyncio.run(_incidents(where, as_json=arguments.json))


async def _incidents(where: Storage, *, as_json: bool) -> int:
    async with args.open_store(where) as store:
        found = await incidents(store)
    now = datetime.now(UTC)
    if as_json:
        for one in found:
            output.say(to_line(_incident_record(one, now)))
    elif not found:
        output.say("no incident is active")
    else:
        heading = ("Kind", "About", "State", "Since", "LastSeen", "Alerts")
        rows = [
            (
                *(one.kind.value, one.scope, "over" if conditions.is_over(one, now) else "active"),
                *(time_of(one.since), time_of(one.seen_at), str(one.told)),
            )
            for one in found
        ]
        for line in output.table(heading, rows, [[one.text] for one in found]):
            output.say(line)
    return 0


async def incidents(store: StateStore) -> list[Standing]:
    """Return every incident that is active, or is over without an alert that says so."""
    cells = await store.cells(incident_cells.CELLS)
    return [one for cell in cells.values() if (one := incident_cells.from_cell(cell)) is not None]


def _incident_record(one: Standing, now: datetime) -> dict[str, object]:
    return {
        "Kind": one.kind.value,
        "About": one.scope,
        "Over": conditions.is_over(one, now),
        "Since": key_time(one.since),
        "LastSeen": key_time(one.seen_at),
        "Alerts": one.told,
        "AlertedAt": key_time(one.told_at) if one.told_at else None,
        "NextAlertAt": key_time(conditions.tell_at(one)),
        "Orders": list(one.orders),
        "Text": one.text,
    }


VERBS = (
    Verb(
        "breakers",
        "show which remote services are not called, and why",
        BREAKERS,
        _add_breakers,
        _run_breakers,
    ),
    Verb(
        "incidents",
        "show what is wrong with the system right now",
        INCIDENTS,
        _add_incidents,
        _run_incidents,
    ),
)
