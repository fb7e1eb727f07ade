"""``sas doctor``: check the settings of this machine, the table, the queues and your rights."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from sas.cli import application, options, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand
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
  sas doctor --json
"""
OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. ``text`` says what was found, or what to do."""

    check: str
    state: str
    text: str


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    application.add_argument(parser)
    parser.add_argument("--by", metavar="NAME", help="your name in the journal")
    args.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_examine(arguments))


async def _examine(arguments: argparse.Namespace) -> int:
    results: list[CheckResult] = []
    for check in (partial(_settings, arguments), _table, partial(_queues, arguments)):
        for result in await check():
            results.append(result)
            if arguments.json:
                output.say(
                    to_line({"Check": result.check, "State": result.state, "Said": result.text})
                )
            else:
                output.say(output.row((f"{result.state:<7}", f"{result.check:<26}", result.text)))
    counts = Counter(result.state for result in results)
    if not arguments.json:
        output.say(", ".join(f"{counts[state]:,} {state}" for state in (OK, WRONG, UNKNOWN)))
    return 1 if counts[WRONG] else 0


# -- Settings ---------------------------------------------------------------------------------


async def _settings(arguments: argparse.Namespace) -> list[CheckResult]:
    def table() -> str:
        storage = args.read_storage(os.environ)
        credential = "a connection string" if storage.endpoint.connection_string else "your sign-in"
        return f"table {storage.table}, with {credential}"

    def bus() -> str:
        endpoint = args.read_bus(os.environ)
        return "a connection string" if endpoint.connection_string else str(endpoint.address)

    def queues() -> str:
        names = read_queues(os.environ)
        return f"orders come on {names.orders}, commands go to {names.scheduler}"

    readers: Mapping[str, Callable[[], str]] = {
        "setting of the table": table,
        "setting of Service Bus": bus,
        "names of the queues": queues,
        "your name in the journal": lambda: options.operator(arguments.by),
    }
    return [_read(check, reader) for check, reader in readers.items()]


def _read(check: str, reader: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(check, OK, reader())
    except (CommandError, SettingError) as error:
        return CheckResult(check, WRONG, str(error))


# -- The table --------------------------------------------------------------------------------


async def _table() -> list[CheckResult]:
    check = "reading the table"
    try:
        storage = args.read_storage(os.environ)
        async with args.open_store(storage) as store:
            in_error = await store.attention(1000)
    except (CommandError, SettingError, StoreUnavailableError) as error:
        return [CheckResult(check, WRONG, str(error))]
    plus = "+" if len(in_error) >= 1000 else ""
    return [CheckResult(check, OK, f"it answers; {len(in_error):,}{plus} orders in Error")]


# -- The queues -------------------------------------------------------------------------------


def _queue_names(arguments: argparse.Namespace, queues: Queues) -> list[str]:
    agents = letters.agents_here(queues) | application.agents_if_any(arguments.app)
    return list(dict.fromkeys((*queues.own(sorted(agents)), *letters.expected_queues())))


async def _queues(arguments: argparse.Namespace) -> list[CheckResult]:
    try:
        queues = read_queues(os.environ)
        names = _queue_names(arguments, queues)
        async with args.open_bus_if_any() as bus:
            if bus is None:
                return []
            contents = await letters.read(bus, names, 1)
            reading = [_reading(name, contents.problems.get(name, "")) for name in names]
            sending = [await _sending(bus, queues.scheduler), await _sending(bus, queues.orders)]
    except (CommandError, SettingError) as error:
        return [CheckResult("queues", WRONG, str(error))]
    return [*_shortened(reading), *sending]


def _reading(name: str, problem: str) -> CheckResult:
    if not problem:
        return CheckResult(f"reading {name}", OK, "it answers")
    # An operator needs to read only a few queues, so a missing right may be intended.
    state = UNKNOWN if "you need the role" in problem else WRONG
    return CheckResult(f"reading {name}", state, problem)


async def _sending(bus: OperatorBus, queue: str) -> CheckResult:
    check = f"sending to {queue}"
    try:
        await bus.check_sending(queue)
    except (BusUnavailableError, UndeliverableError) as error:
        return CheckResult(check, WRONG, f"{error} Without it you can look, and not act")
    return CheckResult(check, OK, "you may send")


def _shortened(reading: list[CheckResult]) -> list[CheckResult]:
    """Return the results of reading, with one result for all queues that can be read."""
    failures = [result for result in reading if result.state != OK]
    count = len(reading) - len(failures)
    summary = f"{count:,} of {len(reading):,} can be read"
    return [CheckResult("queues", OK, summary), *failures] if count else failures


VERBS = (
    Subcommand(
        name="doctor",
        summary="check settings, reach and rights",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
    ),
)
