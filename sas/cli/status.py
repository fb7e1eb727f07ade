"""``sas status``: what is wrong with the system; ``--check``: what a command here needs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sas.cli import application, options, screen, system
from sas.cli.screen import time_of
from sas.cli.system import LiveSystem, read_bus, read_storage
from sas.config import SettingError
from sas.features.circuit_breaker.guard import breakers
from sas.operate import checks, letters
from sas.operate.checks import Check
from sas.operate.errors import CommandError, UsageError
from sas.operate.messages import QueueCount
from sas.operate.status import (
    ENDED_MAX,
    CircuitStatus,
    Problem,
    SystemStatus,
    is_forbidden,
    queue_counts,
    queue_names,
    read_system,
    status_of,
)
from sas.ports import StoreUnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUPS_SHOWN_MAX = 5
QUEUES = "the queues of Service Bus"


def status(
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=3600, help="With --follow: between two looks."
        ),
    ] = 2.0,
    check: Annotated[
        bool, typer.Option("--check", help="Check settings, clock, reach and rights instead.")
    ] = False,
    app: options.App = None,
    as_json: options.Json = False,
) -> None:
    """Show what is wrong with the system, and how it is.

    \b
    sas status
    sas status --follow --every 10
    sas status --check

    Below it: orders in Error, under way and ended in the last hour,
    circuits of remote services, and queues that are not empty.

    --check looks at the settings of this machine, its clock, the table,
    every queue and your rights, and changes nothing. It ends with 1 if
    something is wrong.
    """
    if check and follow:
        raise UsageError("--check looks once: give --follow or --check")
    if check:
        work: Callable[[LiveSystem], Awaitable[int]] = partial(_check, app=app, as_json=as_json)
    else:
        pause_s = every if follow else None
        work = partial(_show, app=app, pause_s=pause_s, as_json=as_json)
    system.run(work)


# -- What is wrong ----------------------------------------------------------------------------


async def _show(place: LiveSystem, *, app: str | None, pause_s: float | None, as_json: bool) -> int:
    app_agents = application.agents_if_any(app)

    async def look() -> SystemStatus:
        return await _look(place, app_agents)

    if pause_s is None:
        answer = await look()
        if as_json:
            screen.say(answer.line())
        else:
            screen.show(_drawn(answer))
    elif as_json or not screen.is_terminal():
        await _again(
            place,
            look,
            pause_s,
            lambda answer: screen.say(answer.line() if as_json else _line(answer)),
        )
    else:
        from rich.live import Live  # noqa: PLC0415  # slow to import

        with Live(console=screen.console(), auto_refresh=False) as live:
            await _again(
                place, look, pause_s, lambda answer: live.update(_drawn(answer), refresh=True)
            )
    return 0


async def _again(
    place: LiveSystem,
    look: Callable[[], Awaitable[SystemStatus]],
    pause_s: float,
    show: Callable[[SystemStatus], None],
) -> None:
    """Look and show until this is cancelled, also while the table is away."""
    while True:
        screen.begin()
        try:
            show(await look())
        except StoreUnavailableError as error:
            screen.complain(f"sas: {error} Looking again")
        place.waits_for = ""
        await asyncio.sleep(pause_s)


async def _look(place: LiveSystem, app_agents: set[str]) -> SystemStatus:
    bus = await place.bus_if_any()
    store = await place.store()
    if bus is None:
        return status_of(await read_system(store, screen.now()), screen.now())
    names = {*app_agents, *await breakers(store).all(), *letters.agents_here(place.queues)}
    counting = asyncio.create_task(queue_counts(bus, queue_names(place.queues, names)))
    try:
        reading = await read_system(store, screen.now())
        place.waits_for = QUEUES
        return status_of(reading, screen.now(), await counting)
    finally:
        counting.cancel()


def _line(answer: SystemStatus) -> str:
    """Return a look as one line, for a pipe."""
    kinds = Counter(problem.kind for problem in answer.problems)
    problems = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
    under_way = f"{answer.under_way:,} under way{_first_due(answer)}"
    parts = (f"{answer.in_error:,} in Error", under_way, f"ended {_ended(answer)}")
    return f"{time_of(answer.at)}  {problems or 'nothing is wrong'}; {'; '.join(parts)}"


def _drawn(answer: SystemStatus) -> RenderableType:
    """Return a look as one screen: what is wrong first."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    count = len(answer.problems)
    headline = "1 thing is wrong" if count == 1 else f"{count} things are wrong"
    title = Text(
        headline if count else "nothing is wrong", style="bold red" if count else "bold green"
    )
    parts: list[RenderableType] = [title]
    if answer.problems:
        parts.append(screen.fact_grid(_problem_facts(answer.problems)))
    return Group(*parts, Text(""), screen.fact_grid(_facts(answer)))


def _problem_facts(problems: tuple[Problem, ...]) -> Iterator[tuple[str, str]]:
    for problem in problems:
        since = f"Since {time_of(problem.since)}. " if problem.since else ""
        last_seen = f"Last seen {time_of(problem.last_seen)}. " if problem.last_seen else ""
        yield problem.kind, f"{problem.text} {problem.todo}".rstrip()
        yield "", f"{since}{last_seen}{problem.command}".rstrip()


def _facts(answer: SystemStatus) -> Iterator[tuple[str, str]]:
    yield "in Error", f"{answer.in_error:,}"
    for group in answer.failures[:GROUPS_SHOWN_MAX]:
        since = f", the first {time_of(group.since)}" if group.since else ""
        why = f": {group.why}" if group.why else ""
        yield "", f"{group.count:,} {group.fingerprint}{since}{why}"
    if len(answer.failures) > GROUPS_SHOWN_MAX:
        yield "", f"and {len(answer.failures) - GROUPS_SHOWN_MAX:,} more groups: sas list"
    yield "under way", f"{answer.under_way:,}{_first_due(answer)}"
    yield "last hour", _ended(answer)
    yield from _circuits(answer)
    yield from _queues(answer.queues)


def _first_due(answer: SystemStatus) -> str:
    if answer.oldest_due is None:
        return ""
    return f", {'LATE, ' * answer.is_late}the first due {time_of(answer.oldest_due)}"


def _ended(answer: SystemStatus) -> str:
    """Return how many orders ended in the last hour; if not all were counted, of the first ones."""
    counts = ", ".join(f"{count:,} {state}" for state, count in answer.ended.items())
    is_cut = sum(answer.ended.values()) >= ENDED_MAX
    return f"more than {counts}" if is_cut else counts or "none"


def _circuits(answer: SystemStatus) -> Iterator[tuple[str, str]]:
    closed_count = len(answer.circuits) - len(answer.open_circuits)
    for number, circuit in enumerate(answer.open_circuits):
        yield "" if number else "circuits", _circuit(circuit)
    if not answer.open_circuits:
        yield "circuits", f"{closed_count:,} closed" if closed_count else "none ever opened"
    elif closed_count:
        yield "", f"{closed_count:,} closed"


def _circuit(circuit: CircuitStatus) -> str:
    probe = "next probe" if circuit.state == "open" else "its probe ends"
    until = f", {probe} {time_of(circuit.until)}" if circuit.until else ""
    return (
        f"{circuit.agent} {circuit.state} since {time_of(circuit.since)}{until}, "
        f"round {circuit.rounds}"
    )


def _queues(counts: tuple[QueueCount, ...]) -> Iterator[tuple[str, str]]:
    full = [count for count in counts if count.waiting or count.scheduled or count.dead_lettered]
    hidden = [count.queue for count in counts if is_forbidden(count)]
    if counts and not full:
        yield "queues", "empty"
    for number, count in enumerate(full):
        numbers = (
            (count.waiting, ""),
            (count.scheduled, " scheduled"),
            (count.dead_lettered, " dead-lettered"),
        )
        text = ", ".join(f"{number:,}{name}" for number, name in numbers if number)
        yield "" if number else "queues", f"{count.queue} {text}, the first {time_of(count.oldest)}"
    if hidden:
        yield "", f"{len(hidden)} without your right to read: sas status --check"


# -- What a command needs ---------------------------------------------------------------------


async def _check(place: LiveSystem, *, app: str | None, as_json: bool) -> int:
    counts = Counter[str]()

    def show(result: Check) -> None:
        counts[result.state] += 1
        if as_json:
            screen.say(result.line())
        else:
            screen.facts([(f"{result.state:<7}", f"{result.check}: {result.text}")])

    for name, read in _settings().items():
        show(checks.setting(name, read))
    try:
        storage = read_storage(os.environ)
        show(await checks.table(await place.store()))
        show(checks.clock(screen.now(), await system.service_time(storage)))
    except (CommandError, SettingError) as error:
        show(Check(check="reading the table", state=checks.WRONG, text=str(error)))
    try:
        bus = await place.bus_if_any()
        if bus is not None:
            place.waits_for = QUEUES
            names = application.agents_if_any(app) | letters.agents_here(place.queues)
            for result in checks.queues(
                await queue_counts(
                    bus, [*queue_names(place.queues, names), *letters.expected_queues()]
                )
            ):
                show(result)
            for result in await checks.sending(bus, place.queues):
                show(result)
    except (CommandError, SettingError) as error:
        show(Check(check="queues", state=checks.WRONG, text=str(error)))
    if not as_json:
        states = (checks.OK, checks.WRONG, checks.UNKNOWN)
        screen.say(", ".join(f"{counts[state]:,} {state}" for state in states))
    return 1 if counts[checks.WRONG] else 0


def _settings() -> dict[str, Callable[[], str]]:
    """Return what describes each setting, or raises why it cannot be used."""

    def table() -> str:
        storage = read_storage(os.environ)
        credential = "a connection string" if storage.endpoint.connection_string else "your sign-in"
        return f"table {storage.table}, with {credential}"

    def bus() -> str:
        endpoint = read_bus(os.environ)
        return "a connection string" if endpoint.connection_string else str(endpoint.address)

    def queues() -> str:
        names = LiveSystem().queues
        return f"orders come on {names.orders}, commands go to {names.scheduler}"

    return {
        "setting of the table": table,
        "setting of Service Bus": bus,
        "names of the queues": queues,
        "your name in the journal": lambda: options.operator(None),
    }
