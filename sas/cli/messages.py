"""``sas messages``: what lies in queues. Show it, send it again, remove it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Annotated

import typer

from sas.cli import application, options, screen
from sas.cli.options import DryRun, Json, Since, Yes
from sas.cli.screen import count, time_of
from sas.cli.system import LiveSystem, run
from sas.operate import letters, messages
from sas.operate.errors import CommandError, ServiceUnavailableError, UsageError
from sas.operate.letters import READ_MAX, PeekResult
from sas.operate.messages import (
    ALERT,
    ALERTS,
    DEAD_LETTERS,
    EXAMPLES_MAX,
    PLACES,
    REJECTED,
    MessageGroup,
    MessageList,
    MessageRow,
)
from sas.operate.record import Record
from sas.operate.redriving import (
    MovePlan,
    MoveRow,
    PlannedMove,
    carry_out,
    named,
    plan_removal,
    plan_resend,
)
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


@room.callback(invoke_without_command=True)
def overview(context: typer.Context, *, json: Json = False) -> None:
    """Show alerts, rejected messages and dead letters; send them again.

    \b
      sas messages                    the newest of them
      sas messages list rejected      the rejected orders
      sas messages show NW-10248      all messages of an order
      sas messages resend NW-10248    send its message again

    You need the role Azure Service Bus Data Receiver on a queue to read it.
    At most 1,000 messages of each are read. `sas status` counts them.
    """
    if context.invoked_subcommand is None:
        list_(json=json)


@room.command("list")
def list_(
    place: Place = None,
    *,
    since: Since = None,
    limit: Limit = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with each new one.")] = False,
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
        async def look() -> MessageList:
            contents, store = await _read(system, [place] if place else PLACES)
            chosen = [
                letter for letter in contents.letters if not earliest or letter.since >= earliest
            ]
            return await messages.joined(
                store, PeekResult(chosen, contents.problems), system.queues
            )

        answer = await look()
        for problem in answer.problems:
            screen.complain(f"sas: {problem}")
        if follow:
            await _follow(look, answer, limit, json=json)
        elif json:
            _say(answer.rows[:limit])
        else:
            _show_groups(answer, limit)
        return int(bool(answer.problems))

    run(work)


@room.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="Of the message, or of its order.")],
    *,
    place: In = None,
    content: Annotated[
        bool, typer.Option("--content", help="The body too: it may be personal.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the messages with this id, or of this order: the cause, and what to do.

    \b
      sas messages show NW-10248
      sas messages show NW-10248 --content
      sas messages show MESSAGE_ID --in scheduler/dlq
    """

    async def work(system: LiveSystem) -> int:
        contents, store = await _read(system, [place] if place else PLACES)
        ids = {letter.peeked.message_id for letter in named(contents, [name])}
        answer = await messages.joined(store, contents, system.queues, content=content)
        rows = [row for row in answer.rows if row.message_id in ids]
        if json:
            _say(rows)
            return 0
        for row in rows:
            if row is not rows[0]:
                screen.say("")
            _show_row(row)
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
        contents, store = await _read(system, [place] if place else (REJECTED, DEAD_LETTERS))
        plan = await plan_resend(
            store, contents, system.queues, names=names or None, to=to, force=force
        )
        for problem in contents.problems.values() if every else ():
            screen.complain(f"sas: {problem}")
        asks = len(plan.moves) > ASK_ABOVE and not yes
        code = await _carry_out(system, plan, dry_run=dry_run, asks=asks, json=json)
        return code or int(every and bool(contents.problems))

    run(work)


@room.command()
def remove(
    names: IDs = None,
    *,
    repaired: Annotated[
        bool, typer.Option("--repaired", help="All that need nothing any more.")
    ] = False,
    place: In = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove alerts, rejected messages or dead letters that need no more work.

    \b
      sas messages remove --repaired
      sas messages remove NW-10248 --in rejected

    There is no way back, so it asks. The id of an alert removes all alerts of
    its cause that are as old or older. --repaired removes the alerts whose
    orders are repaired or whose incident is over, and the rejected messages
    inside the system whose orders ended well without them.
    """
    if bool(names) == repaired:
        raise UsageError("give one ID or more, or --repaired")
    if repaired and place not in {None, ALERTS, REJECTED}:
        raise UsageError("--repaired removes alerts and rejected messages only")

    async def work(system: LiveSystem) -> int:
        places = [place] if place else (ALERTS, REJECTED) if repaired else PLACES
        contents, store = await _read(system, places)
        plan = await plan_removal(store, contents, system.queues, names or None)
        return await _carry_out(system, plan, dry_run=dry_run, asks=not yes, json=json)

    run(work)


# -- Read -------------------------------------------------------------------------------------


async def _read(system: LiveSystem, places: Iterable[str]) -> tuple[PeekResult, StateStore | None]:
    """Return the messages of these places, and the table, if it can be read.

    Raises:
        ServiceUnavailableError: no queue can be read.
    """
    agents, others = sorted(application.agents_if_any(None)), letters.expected_queues()
    paths = [
        path for place in places for path in messages.paths_of(place, system.queues, agents, others)
    ]
    contents = await letters.read(await system.bus(), paths, system.queues)
    if contents.problems.keys() == set(paths):
        raise ServiceUnavailableError(f"no queue could be read: {contents.problems[paths[0]]}")
    try:
        return contents, await system.store()
    except UsageError:
        return contents, None
    except CommandError as error:
        screen.complain(f"sas: the state of the orders is not known: {error}")
        return contents, None


async def _follow(
    look: Callable[[], Awaitable[MessageList]], answer: MessageList, limit: int, *, json: bool
) -> None:
    """Print the newest messages, the oldest of them first, and then each new one."""
    rows, shown = answer.rows[:limit], set(map(_key, answer.rows))
    while True:
        for row in reversed(rows):
            _say([row]) if json else screen.sentence(_line(row))
        await asyncio.sleep(FOLLOW_S)
        rows = tuple(row for row in (await look()).rows if _key(row) not in shown)
        shown |= set(map(_key, rows))


def _key(row: MessageRow) -> tuple[str, str, datetime]:
    return row.place, row.message_id, row.since


# -- Show -------------------------------------------------------------------------------------


def _say(records: Iterable[Record]) -> None:
    for record in records:
        screen.say(record.line())


def _show_groups(answer: MessageList, limit: int) -> None:
    """Print messages, alerts of one cause together, and how many need nothing any more."""
    page = answer.groups[:limit]
    if page:
        screen.table(
            ("Since", "What", "Kind", "State", "Order"),
            [
                (
                    time_of(group.newest.since),
                    group.newest.what if group.count == 1 else count(group.count, ALERT),
                    group.newest.kind,
                    group.newest.state or "-",
                    _orders(group),
                )
                for group in page
            ],
            folds="Order",
            below=[_below(group) for group in page],
        )
    whats = Counter[str]()
    for group in answer.groups:
        whats[group.newest.what] += group.count
    words = ", ".join(
        count(number, what) + (" or more" if number >= READ_MAX else "")
        for what, number in whats.most_common()
    )
    more = len(answer.groups) - len(page)
    screen.say((words or "no message") + (f" ({more:,} more with --limit)" if more else ""))
    if answer.over:
        screen.say(f"{answer.over:,} more repaired or over: `sas messages remove --repaired`")


def _orders(group: MessageGroup) -> str:
    more = len(group.order_ids) - EXAMPLES_MAX
    orders = ", ".join(map(screen.order_name, group.order_ids[:EXAMPLES_MAX]))
    return (orders or "-") + (f" and {more:,} more" if more > 0 else "")


def _order(row: MessageRow | MoveRow, without: str = "-") -> str:
    return screen.order_name(row.order_id) if row.order_id else without


def _below(group: MessageGroup) -> list[str]:
    row = group.newest
    details = (
        f"{row.message_id} in {row.place}{_origin(row)}",
        f"first {time_of(group.first)}" if group.count > 1 else "",
        f"`{row.command}`" if row.command else "",
    )
    return [row.cause, row.about, row.fate, ", ".join(filter(None, details))]


def _origin(row: MessageRow) -> str:
    return "" if row.place.startswith(row.source) else f", from {row.source}"


def _line(row: MessageRow) -> str:
    about = (_order(row, ""), row.about or row.message_id)
    command = f"`{row.command}`" if row.command else ""
    return "  ".join(
        filter(None, (time_of(row.since), row.kind, *about, row.cause, row.over, command))
    )


def _show_row(row: MessageRow) -> None:
    command = f"`{row.command}`" if row.command else ""
    body = (row.body or "").expandtabs(4).replace("\r\n", "\n").split("\n")
    screen.facts(
        (
            ("message", row.message_id + (f", {row.parts} parts" if row.parts > 1 else "")),
            ("what", f"{row.what}, {time_of(row.since)}"),
            ("queue", f"{row.place}{_origin(row)}"),
            ("order", ", ".join(filter(None, (_order(row, ""), row.state)))),
            ("about", row.about),
            ("cause", f"{row.kind}: {row.cause}"),
            ("now", row.over),
            ("resend", row.fate),
            ("do", "; ".join(filter(None, (row.todo, command)))),
            *(("" if number else "body", line) for number, line in enumerate(body)),
        )
    )


# -- Act --------------------------------------------------------------------------------------


async def _carry_out(
    system: LiveSystem, plan: MovePlan, *, dry_run: bool, asks: bool, json: bool
) -> int:
    """Show a plan, ask, and carry it out. Return the exit code: 1 if a message stays."""
    rows = [move.row for move in plan.moves]
    total, what, stays = len(rows), count(len(rows), "message"), bool(plan.staying)
    removal = any(row.to is None for row in rows)
    if json:
        _say((*rows, *plan.staying))
    elif rows:
        cells = [(_order(row), row.place, row.to or "removed", row.message_id) for row in rows]
        screen.table(("Order", "From", "To", "Message"), cells, folds="Message")
    for row in plan.staying:
        screen.complain(f"sas: {row.message_id} stays: {row.stays}")
    if dry_run or not rows:
        if not json:
            screen.say(f"{what} would be {'removed' if removal else 'sent again'}")
        return int(stays)
    if asks and not screen.confirmed(
        f"remove {what} for good" if removal else f"send {what} again"
    ):
        return 1
    moved, removed = await _move_all(await system.bus(), plan.moves, removal=removal)
    if not json:
        screen.say(f"{'' if removal else f'sent {moved:,}, '}removed {removed:,} of {total:,}")
    if (removed if removal else moved) < total:
        screen.complain("sas: the others were gone, or another reader has them: look again")
    elif removed < total:
        screen.complain("sas: some were sent and not removed: the next resend sends them again")
    return int(stays or removed < total)


async def _move_all(
    bus: OperatorBus, moves: Sequence[PlannedMove], *, removal: bool
) -> tuple[int, int]:
    """Carry out moves; return how many were carried out, and how many messages were removed."""
    moved = removed = 0
    try:
        with screen.progress("messages", len(moves)) as tell:
            async with aclosing(carry_out(bus, moves)) as moving:
                async for is_removed in moving:
                    moved, removed = moved + 1, removed + is_removed
                    tell(moved)
    except BaseException as error:
        if not removal and (moved or not isinstance(error, UndeliverableError)):
            screen.complain(
                f"sas: at least {moved:,} of {len(moves):,} were sent and nothing is lost: repeat "
                "the command"
            )
        raise
    return moved, removed
