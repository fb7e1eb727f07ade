"""``sas watch``: the state of the system, drawn again and again."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Verb, Work
from sas.cli.output import time_of
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
from sas.operate.finding import Wanted
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
"""Index rows of one kind that are counted."""
SHOWN = 10
PAST = timedelta(hours=1)
HOME, BELOW, LINE_END = "\x1b[H", "\x1b[J", "\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
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
    own = read_queues(os.environ)

    async def watch(store: StateStore) -> int:
        left = int(arguments.count or 0)
        live = not arguments.json and output.columns(sys.stdout) is not None
        async with args.open_bus_if_any() as bus:
            while True:
                try:
                    _show(await _look(store, bus, own), arguments, live=live)
                except StoreUnavailableError as away:
                    output.complain(f"sas: {output.one_line(str(away))} Looking again")
                left -= 1
                if left == 0:
                    return 0
                await asyncio.sleep(arguments.every)

    return watch


async def _look(store: StateStore, bus: MessageBus | None, own: Queues) -> Picture:
    now = output.now()
    in_error = await store.attention(COUNT_MAX)
    ended = await store.finished(COUNT_MAX, since=now - PAST)
    dues = [at for shard in store.shards if (at := await store.oldest_due(shard)) is not None]
    under_way = set(await finding.under_way(store)) - {one.order_id for one in in_error}
    circuits = {name: one.value for name, one in (await breakers(store).all()).items()}
    seen = [one.value for one in (await active_incidents(store).all()).values()]
    return Picture(
        at=now,
        in_error=len(in_error),
        under_way=len(under_way),
        ended=Counter(one.process_state.value for one in ended),
        oldest_due=min(dues, default=None),
        failed=[order async for order in finding.each(store, Wanted(state="error", limit=SHOWN))],
        circuits={name: one for name, one in circuits.items() if is_open(one)},
        incidents=[one for one in seen if one is not None and not is_over(one, now)],
        queues=await _lying(bus, own) if bus is not None else {},
    )


async def _lying(bus: MessageBus, own: Queues) -> dict[str, int | None]:
    """Return how much lies in the operators' queues; None for one that cannot be read."""
    names = (own.alerts, own.rejected, own.dead_letters)
    read = await letters.read(bus, names)
    counts = Counter(one.path for one in read.letters)
    return {name: None if name in read.problems else counts[name] for name in names}


# -- Showing ----------------------------------------------------------------------------------


def _show(picture: Picture, arguments: argparse.Namespace, *, live: bool) -> None:
    if arguments.json:
        output.say(to_line(_record(picture)))
    elif not live:
        output.say(f"{time_of(picture.at)}  {'; '.join(_summary(picture))}")
    else:
        lines = "".join(f"{line}{LINE_END}\n" for line in _drawn(picture))
        output.say(f"{HOME}{lines}{BELOW}")


def _summary(picture: Picture) -> list[str]:
    ended = ", ".join(f"{count:,} {state}" for state, count in sorted(picture.ended.items()))
    due = f"oldest due {time_of(picture.oldest_due)}" if picture.oldest_due else "nothing is due"
    said = [f"{picture.in_error:,} in Error", f"{picture.under_way:,} under way", due]
    said.append(f"in the last hour {ended or 'none ended'}")
    said += [f"circuit of {name} {one.state.value}" for name, one in picture.circuits.items()]
    said += [f"incident {one.kind.value}" for one in picture.incidents]
    said += [
        f"{name} {'cannot be read' if count is None else f'{count:,}'}"
        for name, count in picture.queues.items()
    ]
    return said


def _drawn(picture: Picture) -> list[str]:
    """Return the lines of the picture, none wider than the terminal."""
    wide = output.columns(sys.stdout) or 80
    at = picture.at.strftime("%H:%M:%SZ")
    lines = [f"sas watch  {at}", "", *_summary(picture), ""]
    for order in picture.failed:
        failed = "; ".join(
            f"{finding.fingerprint(step)}: {step.error.message if step.error else ''}"
            for step in order.steps
            if finding.is_failed(step)
        )
        since, name = time_of(finding.since(order)), order.order_id
        if wide >= 80:
            since, name = f"{since:<16}", f"{name:<20}"
        lines.append(f"{since}  {name}  {failed}")
    if picture.in_error > len(picture.failed):
        lines.append(f"and {picture.in_error - len(picture.failed):,} more (sas list)")
    return [output.one_line(line)[:wide] for line in lines]


def _record(picture: Picture) -> dict[str, Any]:
    return {
        "At": key_time(picture.at),
        "InError": picture.in_error,
        "UnderWay": picture.under_way,
        "EndedInTheLastHour": dict(picture.ended),
        "OldestDue": key_time(picture.oldest_due) if picture.oldest_due else None,
        "OpenCircuits": sorted(picture.circuits),
        "Incidents": sorted(one.kind.value for one in picture.incidents),
        "Queues": dict(picture.queues),
    }


VERBS = (
    Verb.with_store(
        "watch",
        "show the system, live",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        prepare=_watch,
    ),
)
