"""``sas breakers``: which remote services are called, which are cut off, since when and why."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from sas.cli import output, page, storage, workflows
from sas.codec.record import to_line
from sas.domain.ids import key_time
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker, BreakerState

SUMMARY = "show which agents' circuit breakers are open"
DESCRIPTION = """\
Show the circuit breaker of each agent's remote service, as all instances share it:

  closed      calls go out
  open        none does, until (or after) the moment shown, when one request may probe
  half-open   one request probes; the others wait; it is given up at the moment shown

Since is when it closed, or opened first; Rounds how often it opened since it was last closed; Why
the failure that opened it. An agent whose breaker never opened is known only where it is named, or
where --app says which agents there are.

  sas breakers
  sas breakers payment shipping --json
  sas breakers --app orders.workflows:workflows
"""

COLUMNS: Mapping[str, Callable[[str, Breaker], str]] = {
    "Agent": lambda name, _: name,
    "State": lambda _, one: one.state.value,
    "Since": lambda _, one: page.time_of(one.since),
    "Until": lambda _, one: page.time_of(one.until),
    "Rounds": lambda _, one: str(one.rounds),
    "Why": lambda _, one: one.why or ("-" if one.since else "never opened"),
}
"""Heading to what stands below it; the last one may be long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("agents", nargs="*", metavar="AGENT", help="these alone (default: all)")
    parser.add_argument(
        "--app", metavar="MODULE:NAME", help="show every agent that these workflows use"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    where = storage.read(arguments, os.environ)
    known = workflows.load(arguments.app).agents() if arguments.app else set()
    return asyncio.run(_show(where, arguments.agents, known, as_json=arguments.json))


async def _show(
    where: storage.Storage, wanted: Iterable[str], known: Iterable[str], *, as_json: bool
) -> int:
    async with storage.opened(where) as store:
        shared = await breakers(store).all()
    named = list(wanted) or {*known, *shared}
    found = {name: shared[name].value if name in shared else Breaker() for name in sorted(named)}
    if as_json:
        for name, breaker in found.items():
            output.say(to_line(_record(name, breaker)))
    else:
        _table(found)
    return 0


def _table(breakers: Mapping[str, Breaker]) -> None:
    if not breakers:
        output.say("no breaker was ever opened here")
        return
    rows = [[cell(name, one) for cell in COLUMNS.values()] for name, one in breakers.items()]
    for line in page.table([[*COLUMNS], *rows]):
        output.say(line)
    counts = Counter(one.state for one in breakers.values())
    output.say(", ".join(f"{counts[s]:,} {s.value}" for s in BreakerState if counts[s]))


def _record(name: str, one: Breaker) -> dict[str, object]:
    return {
        "Agent": name,
        "State": one.state.value,
        "Since": key_time(one.since) if one.since else None,
        "Until": key_time(one.until) if one.until else None,
        "Rounds": one.rounds,
        "Why": one.why,
        "Prober": one.prober,
    }
