"""``sas messages``: what lies in queues. Show it, send it again, remove it."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from itertools import chain
from typing import Annotated

import typer

from sas.cli import application, options, screen
from sas.cli.options import App, DryRun, Json, Since, Yes
from sas.cli.screen import count, time_of
from sas.cli.system import LiveSystem, run
from sas.operate import letters, messages
from sas.operate.errors import CommandError, NotPossibleError, UsageError
from sas.operate.letters import READ_MAX, PeekResult
from sas.operate.messages import (
    ALERT,
    ALERTS,
    DEAD_LETTERS,
    PLACES,
    REJECTED,
    REJECTED_MESSAGE,
    REJECTED_ORDER,
    AlertGroup,
    MessageList,
    MessageRow,
    QueueCount,
)
from sas.operate.record import Record
from sas.operate.redriving import MovePlan, carry_out, plan_removal, plan_resend
from sas.ports import OperatorBus, StateStore, UndeliverableError

FOLLOW_S = 2.0
"""Seconds between two looks of ``--follow``."""
ASK_ABOVE = 10
"""The command asks before it sends more messages than this."""

Place = Annotated[str | None, typer.Argument(metavar="PLACE", show_default=False)]
In = Annotated[
    str | None, typer.Option("--in", metavar="PLACE", help="Only there.", show_default=False)
]
IDs = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Of the message, or of its order.")
]
Limit = Annotated[int, typer.Option(min=1, max=READ_MAX, help="At most so many messages.")]
To = Annotated[
    str | None,
    typer.Option(metavar="QUEUE", help="Send to this queue instead.", show_default=False),
]

room = typer.Typer()


class MoveResult(Record, frozen=True, kw_only=True):
    """How many messages were to be moved, and how many were sent and removed."""

    planned: int
    resent: int
    removed: int


@room.callback(invoke_without_command=True)
def overview(context: typer.Context, *, app: App = None, json: Json = False) -> None:
    """Show what lies in queues, and the alerts that need you.

    \b
      sas messages                    how many messages, in which queue
      sas messages list rejected      the rejected orders
      sas messages show NW-10248      all messages of an order
      sas messages resend NW-10248    send its message again

    You need the role Azure Service Bus Data Receiver on a queue to read it.
    At most 1,000 messages of each are read.
    """
    if context.invoked_subcommand is not None:
        return

    async def work(system: LiveSystem) -> int:
        agents = _agents(system, app)
        names = list(dict.fromkeys((*system.queues.own(agents), *letters.expected_queues())))
        contents, store = await _read(system, messages.with_subqueues(names))
        counts = messages.counts_of(names, contents)
        alerts = [letter for letter in contents.letters if letter.path == system.queues.alerts]
        answer = await messages.joined(store, PeekResult(alerts, {}), system.queues)
        if json:
            _say(*counts, *answer.groups)
        else:
            _show_counts(counts)
            _show_groups(answer)
        return _complain(answer.problems) or int(any(queue.problem for queue in counts))

    run(work)


@room.command("list")
def list_(
    place: Place = None,
    *,
    since: Since = None,
    limit: Limit = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with each new one.")] = False,
    app: App = None,
    json: Json = False,
) -> None:
    """List messages, the newest first. Without PLACE: alerts, rejected and dead-letters.

    \b
      sas messages list alerts --since 1h
      sas messages list alerts --follow
      sas messages list responses-web-shop/dlq

    PLACE is alerts, rejected, dead-letters, a queue, or QUEUE/dlq (its dead
    letters). Alerts of one cause are one line with a count; --json and
    --follow have each message.
    """
    earliest = options.moment(since) if since else None

    async def work(system: LiveSystem) -> int:
        paths = _paths(system, [place] if place else PLACES, app)

        async def look() -> MessageList:
            contents, store = await _read(system, paths, quiet=follow)
            return await messages.joined(store, contents, system.queues, since=earliest)

        if follow:
            return await _follow(look, limit, json=json)
        answer = await look()
        if json:
            _say(*answer.rows[:limit])
        else:
            if system.queues.alerts in paths:
                _show_groups(answer)
            if paths != [system.queues.alerts]:
                _show_rows(answer.rows, limit)
        return _complain(answer.problems)

    run(work)


@room.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="Of the message, or of its order.")],
    *,
    place: In = None,
    content: Annotated[
        bool, typer.Option("--content", help="The body too: it may be personal.")
    ] = False,
    app: App = None,
    json: Json = False,
) -> None:
    """Show the messages with this id, or of this order: the cause, and what to do.

    \b
      sas messages show NW-10248
      sas messages show NW-10248 --content
      sas messages show MESSAGE_ID --in scheduler/dlq
    """

    async def work(system: LiveSystem) -> int:
        contents, store = await _read(system, _paths(system, [place] if place else PLACES, app))
        answer = await messages.joined(store, contents, system.queues, content=content)
        rows = [row for row in answer.rows if name in (row.message_id, row.order_id)]
        if not rows:
            _complain(answer.problems)
            raise NotPossibleError(f"there is no {name} among the first {READ_MAX:,} messages")
        for number, row in enumerate(rows):
            if json:
                _say(row)
                continue
            if number:
                screen.say("")
            _show_row(row, answer.rows)
        return 0

    run(work)


@room.command()
def resend(  # noqa: PLR0913  one for each option
    names: IDs = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All that are safe to send again.")] = False,
    place: In = None,
    to: To = None,
    force: Annotated[
        bool, typer.Option("--force", help="Dead letters too that are not safe: name them by ID.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: App = None,
    json: Json = False,
) -> None:
    """Send rejected messages and dead letters again, then remove them. Repair the cause first.

    \b
      sas messages resend NW-10248
      sas messages resend --all --in dead-letters --dry-run

    Each goes to the queue that refused it or gave it up. An order that was
    given up gets a new submission_id. A dead letter is sent if nothing was
    recorded of it, a step still waits for it, or its own messages may be
    missing; the others stay, and it says why.
    """
    if bool(names) == every:
        raise UsageError("give one ID or more, or --all")
    if force and every:
        raise UsageError("--force needs the IDs of the messages")

    async def work(system: LiveSystem) -> int:
        places = [place] if place else [REJECTED, DEAD_LETTERS]
        contents, store = await _read(system, _paths(system, places, app))
        with _naming(contents.problems):
            plan = await plan_resend(
                store, contents.letters, system.queues, names=names or None, to=to, force=force
            )
        asks = len(plan.moves) > ASK_ABOVE and not yes
        code = await _carry_out(system, plan, dry_run=dry_run, asks=asks, json=json)
        return code or (_complain(contents.problems.values()) if every else 0)

    run(work)


@room.command()
def remove(
    names: IDs = None,
    *,
    repaired: Annotated[
        bool, typer.Option("--repaired", help="All alerts that need nothing any more.")
    ] = False,
    place: In = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: App = None,
    json: Json = False,
) -> None:
    """Remove alerts, rejected messages or dead letters that need no more work.

    \b
      sas messages remove --repaired
      sas messages remove NW-10248 --in rejected

    There is no way back, so it asks. The id of an alert removes all alerts of
    its cause that are as old or older. --repaired removes the alerts whose
    orders are repaired, or whose incident is over.
    """
    if bool(names) == repaired:
        raise UsageError("give one ID or more, or --repaired")
    if repaired and place not in {None, ALERTS}:
        raise UsageError("--repaired removes alerts only")

    async def work(system: LiveSystem) -> int:
        places = [ALERTS] if repaired else [place] if place else PLACES
        contents, store = await _read(system, _paths(system, places, app))
        with _naming(contents.problems):
            plan = await plan_removal(store, contents.letters, system.queues, names or None)
        return await _carry_out(system, plan, dry_run=dry_run, asks=not yes, json=json)

    run(work)


# -- Read -------------------------------------------------------------------------------------


def _agents(system: LiveSystem, app: str | None) -> list[str]:
    return sorted(letters.agents_here(system.queues) | application.agents_if_any(app))


def _paths(system: LiveSystem, places: Iterable[str], app: str | None) -> list[str]:
    agents, others = _agents(system, app), letters.expected_queues()
    paths = (messages.paths_of(place, system.queues, agents, others) for place in places)
    return list(dict.fromkeys(chain.from_iterable(paths)))


async def _read(
    system: LiveSystem, paths: Sequence[str], *, quiet: bool = False
) -> tuple[PeekResult, StateStore | None]:
    """Return the messages of these queues, and the table, if it can be read."""
    bus = await system.bus()
    if quiet:
        return await messages.read_some(bus, paths), await _store_if_any(system)
    with screen.progress("queues read", len(paths)) as tell:
        contents = await messages.read_some(bus, paths, tell)
    return contents, await _store_if_any(system)


async def _store_if_any(system: LiveSystem) -> StateStore | None:
    """Return the table; None if the environment names none, or if it cannot be read."""
    try:
        return await system.store()
    except UsageError:
        return None
    except CommandError as error:
        screen.complain(f"sas: the state of the orders is not known: {error}")
        return None


def _complain(problems: Iterable[str]) -> int:
    """Print what could not be read; return the exit code."""
    lines = list(problems)
    for problem in lines:
        screen.complain(f"sas: {problem}")
    return 1 if lines else 0


@contextmanager
def _naming(problems: Mapping[str, str]) -> Iterator[None]:
    """If a message is not there, say also which queues could not be read."""
    try:
        yield
    except NotPossibleError:
        _complain(problems.values())
        raise


async def _follow(look: Callable[[], Awaitable[MessageList]], limit: int, *, json: bool) -> int:
    """Print the newest messages, the oldest of them first, and then each new one."""
    answer, shown = await look(), set[tuple[str, str, datetime]]()
    _complain(answer.problems)
    rows = answer.rows[:limit]
    while True:
        for row in reversed(rows):
            _say(row) if json else screen.sentence(_line(row))
        shown |= {(row.place, row.message_id, row.since) for row in answer.rows}
        await asyncio.sleep(FOLLOW_S)
        answer = await look()
        rows = tuple(
            row for row in answer.rows if (row.place, row.message_id, row.since) not in shown
        )


# -- Show -------------------------------------------------------------------------------------


def _say(*records: Record) -> None:
    for record in records:
        screen.say(record.line())


def _number(number: int) -> str:
    return f"{number:,}" + ("+" if number >= READ_MAX else "")


def _show_counts(counts: Sequence[QueueCount]) -> None:
    shown = [queue for queue in counts if queue.oldest or queue.problem]
    if shown:
        screen.table(
            ("Queue", "Waiting", "Scheduled", "DeadLetters", "Oldest"),
            [
                (
                    queue.queue,
                    *map(_number, (queue.waiting, queue.scheduled, queue.dead_lettered)),
                    time_of(queue.oldest),
                )
                for queue in shown
            ],
            below=[[queue.problem] if queue.problem else [] for queue in shown],
        )
    screen.say(f"{count(len(counts) - len(shown), 'queue')} empty")


def _show_groups(answer: MessageList) -> None:
    """Print the alerts, those of one cause together, and how many need nothing any more."""
    groups = answer.groups
    if groups:
        screen.table(
            ("Last", "Alert", "Count", "About"),
            [
                (
                    time_of(group.newest.since),
                    group.newest.kind,
                    _number(group.count),
                    _about(group),
                )
                for group in groups
            ],
            folds="About",
            below=[_below_group(group) for group in groups],
        )
    total = sum(group.count for group in groups)
    causes = f" of {count(len(groups), 'cause')}" if len(groups) < total else ""
    screen.say(f"{count(total, 'alert')}{causes}")
    if answer.over:
        screen.say(f"{answer.over:,} more repaired or over: `sas messages remove --repaired`")


def _about(group: AlertGroup) -> str:
    more = group.orders - len(group.order_ids)
    orders = ", ".join(group.order_ids) + (f" and {more:,} more" if more else "")
    return group.newest.scope or orders


def _below_group(group: AlertGroup) -> list[str]:
    row = group.newest
    since = f"first {time_of(group.first)}; " if group.count > 1 else ""
    command = f"`{row.command}`, then " if row.command else ""
    removal = f"`sas messages remove {shlex.quote(row.message_id)}`"
    return [*filter(None, (row.cause, row.worked)), f"{since}{command}{removal}"]


def _show_rows(rows: Sequence[MessageRow], limit: int) -> None:
    others = [row for row in rows if row.what != ALERT]
    page = others[:limit]
    if page:
        screen.table(
            ("Since", "What", "Order", "State", "Kind"),
            [
                (time_of(row.since), row.what, row.order_id or "-", row.state or "-", row.kind)
                for row in page
            ],
            folds="Kind",
            below=[_below_row(row) for row in page],
        )
    whats = Counter(row.what for row in others)
    words = ", ".join(count(number, what) for what, number in whats.most_common())
    more = f" ({len(page):,} shown; --limit shows more)" if len(page) < len(others) else ""
    screen.say((words or "no message") + more)


def _below_row(row: MessageRow) -> list[str]:
    fate = [f"{row.fate}: {row.effect}"] if row.fate else []
    origin = f", from {row.source}" if row.what in {REJECTED_ORDER, REJECTED_MESSAGE} else ""
    return [row.cause, *fate, f"{row.message_id} in {row.place}{origin}"]


def _line(row: MessageRow) -> str:
    about = row.order_id or row.scope or row.message_id
    command = f"`{row.command}`" if row.command else ""
    cells = (time_of(row.since), row.kind, about, row.worked, row.cause, row.over, command)
    return "  ".join(filter(None, cells))


def _show_row(row: MessageRow, rows: Sequence[MessageRow]) -> None:
    command = f"`{row.command}`" if row.command else ""
    screen.facts(
        (
            ("message", row.message_id + (f", {row.parts} parts" if row.parts > 1 else "")),
            ("what", f"{row.what}, {time_of(row.since)}"),
            ("queue", row.place),
            ("from", row.source if row.source != row.place else ""),
            ("order", ", ".join(filter(None, (row.order_id, row.state)))),
            ("about", ", ".join(filter(None, (row.scope, row.step, row.worked)))),
            ("cause", f"{row.kind}: {row.cause}"),
            ("also", _others_of_cause(row, rows)),
            ("now", row.over),
            ("resend", f"{row.fate}: {row.effect}" if row.fate else ""),
            ("do", "; ".join(filter(None, (row.todo, command)))),
            ("body", row.body or ""),
        )
    )


def _others_of_cause(row: MessageRow, rows: Sequence[MessageRow]) -> str:
    if row.what != ALERT:
        return ""
    same = [other for other in rows if messages.cause_key(other) == messages.cause_key(row)]
    over = sum(bool(other.over) for other in same if other is not row)
    details = f", {over:,} of them over" if over else ""
    return f"{count(len(same) - 1, 'more alert')} of this cause{details}" if len(same) > 1 else ""


# -- Act --------------------------------------------------------------------------------------


async def _carry_out(
    system: LiveSystem, plan: MovePlan, *, dry_run: bool, asks: bool, json: bool
) -> int:
    """Show a plan, ask, and carry it out. Return the exit code: 1 if a message stays."""
    rows = [move.row(system.queues) for move in plan.moves]
    removal = any(row.to is None for row in rows)
    if json:
        _say(*rows)
    elif rows:
        cells = [
            (row.order_id or "-", row.message_id, row.place, row.to or "removed") for row in rows
        ]
        screen.table(("Order", "Message", "From", "To"), cells)
    _complain(f"{row.message_id} stays: {row.stays}" for row in plan.staying)
    what, stays = count(len(rows), "message"), bool(plan.staying)
    if dry_run or not rows:
        if not json:
            screen.say(f"{what} would be {'removed' if removal else 'sent again'}")
        return int(stays)
    action = f"remove {what} for good" if removal else f"send {what} again"
    if asks and not screen.confirmed(action):
        return 1
    result = await _move_all(await system.bus(), plan, removal=removal)
    if json:
        _say(result)
    else:
        effect = "" if removal else f"sent {result.resent:,}, "
        screen.say(f"{effect}removed {result.removed:,} of {result.planned:,}")
    if (result.removed if removal else result.resent) < result.planned:
        screen.complain("sas: the others were gone, or another reader has them: look again")
    elif result.removed < result.planned:
        screen.complain("sas: some were sent and not removed: the next resend sends them again")
    return int(stays or result.removed < result.planned)


async def _move_all(bus: OperatorBus, plan: MovePlan, *, removal: bool) -> MoveResult:
    total, moved, removed = len(plan.moves), 0, 0
    try:
        with screen.progress("messages", total) as tell:
            async with aclosing(carry_out(bus, plan.moves)) as moving:
                async for is_removed in moving:
                    moved, removed = moved + 1, removed + is_removed
                    tell(moved)
    except BaseException as error:
        if not removal and (moved or not isinstance(error, UndeliverableError)):
            screen.complain(
                f"sas: at least {moved:,} of {total:,} were sent and nothing is lost: repeat the "
                "command"
            )
        raise
    return MoveResult(planned=total, resent=0 if removal else moved, removed=removed)
