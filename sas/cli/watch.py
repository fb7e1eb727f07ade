"""``sas watch``: show the state of the system, and show it again every few seconds."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record, time_of
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident, is_over
from sas.operate import finding, letters
from sas.operate.finding import OrderQuery
from sas.operate.why import is_open
from sas.ports import MessageBus, StateStore, StoreUnavailableError

DESCRIPTION = """\
Show the state of the system, and again every few seconds until Ctrl-C: orders in Error (the longest
waiting first), under way and ended in the last hour, the oldest step that is due, open circuits,
incidents; where a namespace is configured also alerts and rejected messages. On a terminal the
picture is drawn in its place; else each look is one line.

  sas watch
  sas watch --every 10 --count 6 --json
"""
COUNT_MAX = 10_000
"""How many index rows of one kind are counted at most."""
SHOWN_ORDERS_MAX = 10
ENDED_WINDOW = timedelta(hours=1)
HOME, BELOW, LINE_END = "\x1b[H", "\x1b[J", "\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSnapshot:
    """The state of the system at one moment."""

    at: datetime
    in_error: int
    under_way: int
    ended: Mapping[str, int]
    oldest_due: datetime | None
    failed: Sequence[Order]
    circuits: Mapping[str, Breaker]
    incidents: Sequence[ActiveIncident]
    queues: Mapping[str, int | None] = field(default_factory=dict)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every",
        type=args.number("seconds", 0.1, 3600),
        default=2.0,
        metavar="SECONDS",
        help="time between two looks (default: 2)",
    )
    parser.add_argument(
        "--count",
        type=args.number("looks", 1, 1_000_000, whole=True),
        metavar="N",
        help="end after N looks (default: go on until Ctrl-C)",
    )
    args.add_json(parser, "each look as one JSON object")


def _watch(arguments: argparse.Namespace) -> Work:
    queues = read_queues(os.environ)

    async def watch(store: StateStore) -> int:
        remaining = int(arguments.count or 0)
        live = not arguments.json and output.columns(sys.stdout) is not None
        async with args.open_bus_if_any() as bus:
            while True:
                try:
                    _show(await _look(store, bus, queues), arguments, live=live)
                except StoreUnavailableError as error:
                    output.complain(f"sas: {output.one_line(str(error))} Looking again")
                remaining -= 1
                if remaining == 0:
                    return 0
                await asyncio.sleep(arguments.every)

    return watch


async def _look(store: StateStore, bus: MessageBus | None, queues: Queues) -> WatchSnapshot:
    now = output.now()
    in_error = await store.attention(COUNT_MAX)
    ended = await store.finished(COUNT_MAX, since=now - ENDED_WINDOW)
    dues = [at for shard in store.shards if (at := await store.oldest_due(shard)) is not None]
    under_way = set(await finding.under_way(store)) - {summary.order_id for summary in in_error}
    circuits = {name: shared.value for name, shared in (await breakers(store).all()).items()}
    incidents = [shared.value for shared in (await active_incidents(store).all()).values()]
    failures = OrderQuery(state="error", limit=SHOWN_ORDERS_MAX)
    return WatchSnapshot(
        at=now,
        in_error=len(in_error),
        under_way=len(under_way),
        ended=Counter(summary.process_state.value for summary in ended),
        oldest_due=min(dues, default=None),
        failed=[order async for order in finding.each(store, failures)],
        circuits={name: breaker for name, breaker in circuits.items() if is_open(breaker)},
        incidents=[
            incident
            for incident in incidents
            if incident is not None and not is_over(incident, now)
        ],
        queues=await _message_counts(bus, queues) if bus is not None else {},
    )


async def _message_counts(bus: MessageBus, queues: Queues) -> dict[str, int | None]:
    """Return the number of messages by operators' queue; None for a queue that cannot be read."""
    names = (queues.alerts, queues.rejected, queues.dead_letters)
    contents = await letters.read(bus, names)
    counts = Counter(letter.path for letter in contents.letters)
    return {name: None if name in contents.problems else counts[name] for name in names}


# -- Showing ----------------------------------------------------------------------------------


def _show(snapshot: WatchSnapshot, arguments: argparse.Namespace, *, live: bool) -> None:
    if arguments.json:
        output.say(to_line(_record(snapshot)))
    elif not live:
        output.say(f"{time_of(snapshot.at)}  {'; '.join(_summary(snapshot))}")
    else:
        lines = "".join(f"{line}{LINE_END}\n" for line in _drawn(snapshot))
        output.say(f"{HOME}{lines}{BELOW}")


def _summary(snapshot: WatchSnapshot) -> list[str]:
    ended = ", ".join(f"{count:,} {state}" for state, count in sorted(snapshot.ended.items()))
    due = f"oldest due {time_of(snapshot.oldest_due)}" if snapshot.oldest_due else "nothing is due"
    parts = [f"{snapshot.in_error:,} in Error", f"{snapshot.under_way:,} under way", due]
    parts.append(f"in the last hour {ended or 'none ended'}")
    parts += [
        f"circuit of {name} {breaker.state.value}" for name, breaker in snapshot.circuits.items()
    ]
    parts += [f"incident {incident.kind.value}" for incident in snapshot.incidents]
    parts += [
        f"{name} {'cannot be read' if count is None else f'{count:,}'}"
        for name, count in snapshot.queues.items()
    ]
    return parts


def _drawn(snapshot: WatchSnapshot) -> list[str]:
    """Return the lines of the snapshot, cut to the width of the terminal."""
    width = output.columns(sys.stdout) or 80
    at = snapshot.at.strftime("%H:%M:%SZ")
    lines = [f"sas watch  {at}", "", *_summary(snapshot), ""]
    for order in snapshot.failed:
        failures = "; ".join(
            f"{finding.fingerprint(step)}: {step.error.message if step.error else ''}"
            for step in order.steps
            if finding.is_failed(step)
        )
        since, name = time_of(finding.since(order)), order.order_id
        if width >= 80:
            since, name = f"{since:<16}", f"{name:<20}"
        lines.append(f"{since}  {name}  {failures}")
    if snapshot.in_error > len(snapshot.failed):
        lines.append(f"and {snapshot.in_error - len(snapshot.failed):,} more (sas list)")
    return [output.one_line(line)[:width] for line in lines]


def _record(snapshot: WatchSnapshot) -> Record:
    return {
        "At": key_time(snapshot.at),
        "InError": snapshot.in_error,
        "UnderWay": snapshot.under_way,
        "EndedInTheLastHour": dict(snapshot.ended),
        "OldestDue": key_time(snapshot.oldest_due) if snapshot.oldest_due else None,
        "OpenCircuits": sorted(snapshot.circuits),
        "Incidents": sorted(incident.kind.value for incident in snapshot.incidents),
        "Queues": dict(snapshot.queues),
    }


VERBS = (
    Subcommand.with_store(
        "watch",
        "show the system, live",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        prepare=_watch,
    ),
)
