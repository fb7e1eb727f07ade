"""``sas status``: what is wrong with the system; ``--check``: what a command here needs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sas.cli import application, options, screen, system
from sas.cli.screen import time_of
from sas.cli.system import LiveSystem, read_bus, read_storage
from sas.features.circuit_breaker.guard import breakers
from sas.operate import checks, letters, messages
from sas.operate.checks import Check
from sas.operate.errors import UsageError
from sas.operate.messages import QueueCount
from sas.operate.status import (
    ENDED_MAX,
    Problem,
    SystemStatus,
    is_forbidden,
    queue_counts,
    queue_names,
    read_system,
    status_of,
)
from sas.operate.why import Circuit
from sas.ports import StoreUnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUPS_SHOWN_MAX = 5
FOLLOW_EVERY_S = 2.0
QUEUES = "the queues of Service Bus"


def status(
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Look again and again, until Ctrl-C.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check settings, clock, reach and rights instead.")
    ] = False,
    app: options.App = None,
    as_json: options.Json = False,
) -> None:
    """Show what is wrong with the system, and how it is.

    \b
    sas status
    sas status --follow
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
        system.run(partial(check_all, app=app, as_json=as_json))
    system.run(partial(_show, app=app, follow=follow, as_json=as_json))


# -- What is wrong ----------------------------------------------------------------------------


async def _show(place: LiveSystem, *, app: str | None, follow: bool, as_json: bool) -> int:
    """Look and show; with ``follow`` until this is cancelled, also while the table is away."""
    agents = application.agents_if_any(app)
    with _display(follow=follow, as_json=as_json) as show:
        while True:
            screen.begin()
            try:
                show(await _look(place, agents))
            except StoreUnavailableError as error:
                if not follow:
                    raise
                screen.complain(f"sas: {error} Looking again")
            if not follow:
                return 0
            place.waits_for = ""
            await asyncio.sleep(FOLLOW_EVERY_S)


@contextmanager
def _display(*, follow: bool, as_json: bool) -> Iterator[Callable[[SystemStatus], None]]:
    """Yield what shows a look: as JSON, as a screen, or as a live screen."""
    if as_json:
        yield lambda answer: screen.say(answer.line())
    elif not follow or not screen.is_terminal():
        yield lambda answer: screen.show(_drawn(answer))
    else:
        from rich.live import Live  # noqa: PLC0415  # slow to import

        with Live(console=screen.console(), auto_refresh=False) as live:
            screen.escape_stderr()
            yield lambda answer: live.update(_drawn(answer), refresh=True)


async def _look(place: LiveSystem, app_agents: set[str]) -> SystemStatus:
    bus = await place.bus_if_any()
    store = await place.store()
    if bus is None:
        return status_of(await read_system(store, screen.now()), screen.now())
    names = {*app_agents, *await breakers(store).all(), *letters.agents_here(place.queues)}
    queues = place.queues
    look_at = partial(messages.joined, store, queues=queues)
    counting = asyncio.create_task(queue_counts(bus, queue_names(queues, names), queues, look_at))
    try:
        reading = await read_system(store, screen.now())
        place.waits_for = QUEUES
        return status_of(reading, screen.now(), await counting)
    finally:
        counting.cancel()


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
    yield from _lines("in Error", [f"{answer.in_error:,}", *_failures(answer)])
    yield "under way", f"{answer.under_way:,}{_first_due(answer)}"
    yield "last hour", _ended(answer)
    closed_count = len(answer.circuits) - len(answer.open_circuits)
    closed = f"{closed_count:,} closed" if closed_count else ""
    circuits = [f"{circuit.agent} {circuit_words(circuit)}" for circuit in answer.open_circuits]
    circuits.append(closed)
    yield from _lines("circuits", circuits if answer.circuits else ["none ever opened"])
    yield from _lines("queues", _queues(answer.queues))


def _lines(name: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a fact of several lines."""
    for number, text in enumerate(texts):
        yield "" if number else name, text


def _failures(answer: SystemStatus) -> Iterator[str]:
    for group in answer.failures[:GROUPS_SHOWN_MAX]:
        since = f", the first {time_of(group.since)}" if group.since else ""
        why = f": {group.why}" if group.why else ""
        yield f"{group.count:,} {group.fingerprint}{since}{why}"
    if len(answer.failures) > GROUPS_SHOWN_MAX:
        yield f"and {len(answer.failures) - GROUPS_SHOWN_MAX:,} more groups: sas list"


def _first_due(answer: SystemStatus) -> str:
    if answer.oldest_due is None:
        return ""
    return f", {'LATE, ' * answer.is_late}the first due {time_of(answer.oldest_due)}"


def _ended(answer: SystemStatus) -> str:
    """Return how many orders ended in the last hour; if not all were counted, of the first ones."""
    counts = ", ".join(f"{count:,} {state}" for state, count in answer.ended.items())
    is_cut = sum(answer.ended.values()) >= ENDED_MAX
    return f"more than {counts}" if is_cut else counts or "none"


def circuit_words(circuit: Circuit) -> str:
    """Return the state of a circuit, since when it has it, and when a probe goes out or ends."""
    probe = "next probe" if circuit.state == "open" else "its probe ends"
    until = f", {probe} {time_of(circuit.until)}" if circuit.until else ""
    return f"{circuit.state} since {time_of(circuit.since)}{until}, round {circuit.rounds}"


def _queues(counts: Sequence[QueueCount]) -> Iterator[str]:
    """Yield what lies in each queue that is not empty."""
    full = [count for count in counts if count.waiting or count.scheduled or count.dead_lettered]
    if counts and not full:
        yield "empty"
    for count in full:
        numbers = (
            (count.waiting, ""),
            (count.scheduled, " scheduled"),
            (count.dead_lettered, " dead-lettered"),
        )
        text = ", ".join(f"{number:,}{name}" for number, name in numbers if number)
        yield f"{count.queue} {text}, the first {time_of(count.oldest)}"
    if hidden_count := sum(map(is_forbidden, counts)):
        yield f"{hidden_count} without your right to read: sas status --check"


# -- What a command needs ---------------------------------------------------------------------


async def check_all(place: LiveSystem, *, app: str | None, as_json: bool) -> int:
    """Print the result of each check; return 1 if something is wrong."""
    counts = Counter[str]()
    async for result in _checks(place, app):
        counts[result.state] += 1
        if as_json:
            screen.say(result.line())
        else:
            screen.facts([(f"{result.state:<7}", f"{result.check}: {result.text}")])
    if not as_json:
        states = (checks.OK, checks.WRONG, checks.UNKNOWN)
        screen.say(", ".join(f"{counts[state]:,} {state}" for state in states))
    return 1 if counts[checks.WRONG] else 0


async def _checks(place: LiveSystem, app: str | None) -> AsyncIterator[Check]:
    async def operator() -> str:
        return options.operator(None)

    async def table() -> str:
        await (await place.store()).attention(1)
        storage = read_storage(os.environ)
        credential = "a connection string" if storage.endpoint.connection_string else "your sign-in"
        return f"{storage.table} answers, with {credential}"

    async def clock() -> str:
        return checks.clock(screen.now(), await system.service_time(read_storage(os.environ)))

    async def bus() -> str:
        await place.bus()
        endpoint = read_bus(os.environ)
        name = "a connection string" if endpoint.connection_string else endpoint.address
        queues = place.queues
        return f"{name}; orders come on {queues.orders}, commands go to {queues.scheduler}"

    yield await checks.checked("your name in the journal", operator)
    yield await checks.checked("reading the table", table)
    yield await checks.checked("clock of this machine", clock)
    setting = await checks.checked("setting of Service Bus", bus)
    yield setting
    if setting.state == checks.OK:
        place.waits_for = QUEUES
        agents = application.agents_if_any(app) | letters.agents_here(place.queues)
        names = [*queue_names(place.queues, agents), *letters.expected_queues()]
        counts = await queue_counts(await place.bus(), names, place.queues)
        for result in checks.queues(counts):
            yield result
        for queue in (place.queues.scheduler, place.queues.orders):
            yield await checks.checked(f"sending to {queue}", partial(_sending, place, queue))


async def _sending(place: LiveSystem, queue: str) -> str:
    await (await place.bus()).check_sending(queue)
    return "you may send"
