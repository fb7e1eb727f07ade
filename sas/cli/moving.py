"""Sends messages of queues again, or removes them: shows the plan, asks, then acts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import aclosing

from sas.cli import output
from sas.codec.record import to_line
from sas.operate import letters
from sas.operate.redriving import Planned
from sas.ports import OperatorBus, UndeliverableError

ASK_ABOVE = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb that sends messages again."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="only show what would be sent or removed")
    add("--yes", action="store_true", help=f"do not ask (it asks above {ASK_ABOVE} messages)")


def in_words(count: int) -> str:
    """Return how many messages, in words."""
    return "1 message" if count == 1 else f"{count:,} messages"


async def carry_out(
    bus: OperatorBus,
    planned: Sequence[Planned],
    left: Sequence[str],
    arguments: argparse.Namespace,
    heading: str,
) -> int:
    """Show what is planned, ask, do it; return the exit code: 1 if a message stays.

    ``left`` says why each other message stays. A removal always asks, because there is no way back.
    """
    count, removal = len(planned), any(one.move.message is None for one in planned)
    if not arguments.json:
        output.say(output.one_line(heading))
    for one in planned:
        _say(one, as_json=arguments.json, dry_run=arguments.dry_run)
    for line in left:
        output.complain(f"sas: {output.one_line(line)}")
    if not count or arguments.dry_run:
        return 1 if left else 0
    asks = not arguments.yes and (removal or count > ASK_ABOVE)
    what = f"remove {in_words(count)} for good" if removal else f"send {in_words(count)} again"
    if asks and not output.confirmed(what):
        return 1
    removed = await _moved(bus, planned, as_json=arguments.json)
    return 1 if left or removed < count else 0


async def _moved(bus: OperatorBus, planned: Sequence[Planned], *, as_json: bool) -> int:
    """Send and remove; return how many were removed."""
    count, done, removed = len(planned), 0, 0
    removal = any(one.move.message is None for one in planned)
    try:
        for path in dict.fromkeys(one.path for one in planned):
            some = [one.move for one in planned if one.path == path]
            async with aclosing(bus.move(path, some)) as moving:
                async for is_removed in moving:
                    done, removed = done + 1, removed + is_removed
    except BaseException as failed:
        certain = not done and isinstance(failed, UndeliverableError)  # nothing was sent
        if not removal and not certain:
            output.complain(
                f"sas: at least {done:,} of {count:,} were sent and nothing is lost: "
                "repeat the command"
            )
        raise
    if as_json:
        output.say(to_line({"Sent": 0 if removal else done, "Removed": removed, "Of": count}))
    elif removal:
        output.say(f"removed {removed:,} of {count:,}")
    else:
        output.say(f"sent {done:,} of {count:,}, removed {removed:,}")
    if done < count or (removal and removed < count):
        output.complain("sas: the others were gone, or another reader has them: look again")
    elif removed < count:
        output.complain(
            "sas: some messages were sent and not removed: the next redrive sends them again"
        )
    return removed


def _say(one: Planned, *, as_json: bool, dry_run: bool) -> None:
    message, body = one.move.message, one.peeked.body
    rejected = letters.rejected_of(one.peeked)
    order_id = rejected.order_id if rejected else letters.order_of(body)
    target = message.queue if message else None
    if as_json:
        said = {"OrderID": order_id, "From": one.path, "To": target}
        output.say(to_line(said | {"MessageId": one.peeked.message_id, "DryRun": dry_run}))
        return
    about = order_id or one.peeked.message_id
    where = f"{one.path} -> {target}" if target else f"{one.path}: removed"
    output.say(output.row(("", f"{about:<20}", where)))
