"""``sas doctor``: finds what is wrong with this machine or this deployment."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from sas.cli import act, output, workflows
from sas.cli import arguments as args
from sas.cli.arguments import Verb
from sas.codec.record import to_line
from sas.config import SettingError, read_queues
from sas.domain.queues import Queues
from sas.operate import letters
from sas.operate.errors import CommandError
from sas.ports import (
    BusUnavailableError,
    OperatorBus,
    StoreUnavailableError,
    UndeliverableError,
)

DESCRIPTION = """\
Check the settings of this machine, and what they lead to: whether the table and every queue answer,
and which rights you have. Nothing is sent or changed.

  ok        as it should be
  wrong     the line says what to do
  unknown   it could not be checked; the line says why

Exit code 0: nothing is wrong. 1: something is.

  sas doctor
  sas doctor --app orders.workflows:workflows --json
"""
OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    what: str
    state: str
    said: str


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--app", metavar="MODULE:NAME", help="the workflows: they name the agents")
    act.add_name(parser)
    args.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_examine(arguments))


async def _examine(arguments: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for check in (partial(_settings, arguments), _table, partial(_queues, arguments)):
        for one in await check():
            findings.append(one)
            if arguments.json:
                output.say(to_line({"Check": one.what, "State": one.state, "Said": one.said}))
            else:
                output.say(output.row((f"{one.state:<7}", f"{one.what:<26}", one.said)))
    counts = Counter(one.state for one in findings)
    if not arguments.json:
        output.say(", ".join(f"{counts[state]:,} {state}" for state in (OK, WRONG, UNKNOWN)))
    return 1 if counts[WRONG] else 0


# -- Settings ---------------------------------------------------------------------------------


async def _settings(arguments: argparse.Namespace) -> list[Finding]:
    def table() -> str:
        where = args.read_storage(os.environ)
        how = "a connection string" if where.endpoint.connection_string else "your sign-in"
        return f"table {where.table}, with {how}"

    def bus() -> str:
        endpoint = args.read_bus(os.environ)
        return "a connection string" if endpoint.connection_string else str(endpoint.address)

    def queues() -> str:
        own = read_queues(os.environ)
        return f"orders come on {own.orders}, commands go to {own.scheduler}"

    readers: Mapping[str, Callable[[], str]] = {
        "setting of the table": table,
        "setting of Service Bus": bus,
        "names of the queues": queues,
        "your name in the journal": lambda: act.name_of(arguments),
    }
    return [_read(what, reader) for what, reader in readers.items()]


def _read(what: str, reader: Callable[[], str]) -> Finding:
    try:
        return Finding(what, OK, reader())
    except (CommandError, SettingError) as wrong:
        return Finding(what, WRONG, str(wrong))


# -- The table --------------------------------------------------------------------------------


async def _table() -> list[Finding]:
    what = "reading the table"
    try:
        where = args.read_storage(os.environ)
        async with args.open_store(where) as store:
            in_error = await store.attention(1000)
    except (CommandError, SettingError, StoreUnavailableError) as wrong:
        return [Finding(what, WRONG, str(wrong))]
    more = "+" if len(in_error) >= 1000 else ""
    return [Finding(what, OK, f"it answers; {len(in_error):,}{more} orders in Error")]


# -- The queues -------------------------------------------------------------------------------


def _names(arguments: argparse.Namespace, own: Queues) -> list[str]:
    agents = letters.agents_here(own)
    if arguments.app:
        agents |= workflows.load(arguments.app).agents()
    return list(dict.fromkeys((*own.own(sorted(agents)), *letters.expected_queues())))


async def _queues(arguments: argparse.Namespace) -> list[Finding]:
    try:
        own = read_queues(os.environ)
        names = _names(arguments, own)
        async with args.open_bus_if_any() as bus:
            if bus is None:
                return []
            read = await letters.read(bus, names, 1)
            findings = [_reading(name, read.problems.get(name, "")) for name in names]
            findings += [await _sending(bus, own.scheduler), await _sending(bus, own.orders)]
    except (CommandError, SettingError) as wrong:
        return [Finding("queues", WRONG, str(wrong))]
    return _shortened(findings)


def _reading(name: str, problem: str) -> Finding:
    if not problem:
        return Finding(f"reading {name}", OK, "it answers")
    # Operators need to read only a few queues: a right that is missing may be meant.
    state = UNKNOWN if "you need the role" in problem else WRONG
    return Finding(f"reading {name}", state, problem)


async def _sending(bus: OperatorBus, queue: str) -> Finding:
    what = f"sending to {queue}"
    try:
        await bus.check_sending(queue)
    except (BusUnavailableError, UndeliverableError) as wrong:
        return Finding(what, WRONG, f"{wrong} Without it you can look, and not act")
    return Finding(what, OK, "you may send")


def _shortened(findings: list[Finding]) -> list[Finding]:
    """Return the findings with the queues that can be read as one."""
    good = [one for one in findings if one.state == OK and one.what.startswith("reading ")]
    rest = [one for one in findings if one not in good]
    said = f"{len(good):,} of {len(findings) - 2:,} can be read"
    return [Finding("queues", OK, said), *rest] if good else rest


VERBS = (
    Verb(
        name="doctor",
        summary="check settings, reach and rights",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
    ),
)
