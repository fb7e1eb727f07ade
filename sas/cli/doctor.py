"""``sas doctor``: finds what is wrong with this machine or this deployment."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sas.cli import act, output, workflows
from sas.cli import arguments as args
from sas.cli.arguments import Storage, Verb
from sas.codec.record import to_line
from sas.config import SettingError, read_queues
from sas.domain.order import CLOCK_SKEW
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
which rights you have, whether the queues have the properties that infra/queues.json of this
directory says, and whether the clocks agree. Nothing is sent or changed.

  ok        as it should be
  wrong     the line says what to do
  unknown   it could not be checked; the line says why

Exit code 0: nothing is wrong. 1: something is.

  sas doctor
  sas doctor --app orders.workflows:workflows --json
"""
OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?)?"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    what: str
    state: str
    said: str


Check = Callable[[argparse.Namespace], Awaitable[list[Finding]]]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--app", metavar="MODULE:NAME", help="the workflows: they name the agents")
    args.add_storage(parser)
    args.add_connection(parser)
    act.add_name(parser)
    args.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_examine(arguments))


async def _examine(arguments: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for check in CHECKS:
        for one in await check(arguments):
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
        where = args.read_storage(arguments, os.environ)
        how = "a connection string" if where.endpoint.connection_string else "your sign-in"
        return f"table {where.table}, with {how}"

    def bus() -> str:
        endpoint = args.read_bus(arguments, os.environ)
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


async def _table(arguments: argparse.Namespace) -> list[Finding]:
    what = "reading the table"
    try:
        where = args.read_storage(arguments, os.environ)
        async with args.open_store(where) as store:
            in_error = await store.attention(1000)
    except (CommandError, SettingError, StoreUnavailableError) as wrong:
        return [Finding(what, WRONG, str(wrong))]
    more = "+" if len(in_error) >= 1000 else ""
    return [Finding(what, OK, f"it answers; {len(in_error):,}{more} orders in Error")]


async def _clock(arguments: argparse.Namespace) -> list[Finding]:
    """Compare this machine's clock with that of Storage: ours decides about CompleteBy."""
    from sas.adapters.queue_properties import clock_of, tables_address  # noqa: PLC0415  # slow

    what = "clock"
    try:
        where: Storage = args.read_storage(arguments, os.environ)
        theirs, ours = await asyncio.to_thread(clock_of, tables_address(where.endpoint))
    except (CommandError, SettingError, OSError, ValueError) as wrong:
        return [Finding(what, UNKNOWN, f"not compared with that of Storage: {wrong}")]
    apart = abs((ours - theirs).total_seconds())
    said = f"{apart:.0f} s from that of Storage"
    # A date has whole seconds.
    if apart <= CLOCK_SKEW.total_seconds() + 1:
        return [Finding(what, OK, said)]
    return [Finding(what, WRONG, f"{said}: set this machine's clock (times shown here are wrong)")]


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
        async with args.open_bus_if_any(arguments) as bus:
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


async def _properties(arguments: argparse.Namespace) -> list[Finding]:
    """Compare the properties of the queues with what ``infra/queues.json`` says."""
    from sas.adapters.queue_properties import (  # noqa: PLC0415  # slow to import
        UnreadablePropertiesError,
        read_properties,
    )

    what, expected = "properties of the queues", letters.expected_queues()
    if not expected:
        return [Finding(what, UNKNOWN, "there is no infra/queues.json in this directory")]
    if not args.has_bus(arguments, os.environ):
        return []
    try:
        endpoint = args.read_bus(arguments, os.environ)
        if "UseDevelopmentEmulator=true" in (endpoint.connection_string or ""):
            return [Finding(what, UNKNOWN, "an emulator has bounds of its own: not compared")]
        found = await asyncio.to_thread(read_properties, endpoint, list(expected))
    except (CommandError, UnreadablePropertiesError, ValueError) as wrong:
        return [Finding(what, UNKNOWN, str(wrong))]
    return compared(expected, found)


def compared(
    expected: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any] | None]
) -> list[Finding]:
    """Return what differs between the queues as they should be, and as they are."""
    wrong: list[Finding] = []
    for name, should in expected.items():
        own = found.get(name)
        if own is None:
            wrong.append(Finding(f"queue {name}", WRONG, "it is missing: deploy infra again"))
            continue
        differ = [
            f"{key} is {own[key]} and should be {_value(value)}"
            for key, value in should.items()
            if key in own and own[key] != _value(value)
        ]
        if differ:
            said = f"{'; '.join(differ)}: deploy infra again"
            wrong.append(Finding(f"queue {name}", WRONG, said))
    if wrong:
        return wrong
    return [Finding("properties of the queues", OK, f"{len(expected):,} queues are as they should")]


def _value(text: Any) -> Any:
    """Return a property as the SDK gives it: a duration as a span of time."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) > 1 else None
    if match is None:
        return text
    return timedelta(**{unit: int(number) for unit, number in match.groupdict("0").items()})


CHECKS: tuple[Check, ...] = (_settings, _table, _queues, _properties, _clock)

VERBS = (
    Verb(
        "doctor", "check settings, reach, rights, queues, clock", DESCRIPTION, _add_arguments, _run
    ),
)
