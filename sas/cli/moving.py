"""Send messages of queues again, or remove them: show the plan, ask, then carry it out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import aclosing

from sas.cli import output
from sas.codec.record import to_line
from sas.operate import letters
from sas.operate.redriving import PlannedMove
from sas.ports import OperatorBus, UndeliverableError

ASK_ABOVE = 10
"""The command asks before it sends more messages than this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb that sends messages again or removes them."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="only show what would be sent or removed")
    add("--yes", action="store_true", help=f"do not ask (it asks above {ASK_ABOVE} messages)")


def in_words(count: int) -> str:
    """Return how many messages, in words."""
    return "1 message" if count == 1 else f"{count:,} messages"


async def carry_out(
    bus: OperatorBus,
    plans: Sequence[PlannedMove],
    *,
    reasons: Sequence[str],
    arguments: argparse.Namespace,
    heading: str,
) -> int:
    """Show the plans, ask, and carry them out. Return the exit code: 1 if a message stays.

    ``reasons`` says for each message without a plan why it stays. A removal asks for any number of
    messages, because there is no way back. With ``--yes`` nothing is asked.
    """
    count, removal = len(plans), any(plan.move.message is None for plan in plans)
    if not arguments.json:
        output.say(output.one_line(heading))
    for plan in plans:
        _say(plan, as_json=arguments.json, dry_run=arguments.dry_run)
    for reason in reasons:
        output.complain(f"sas: {output.one_line(reason)}")
    if not count or arguments.dry_run:
        return 1 if reasons else 0
    asks = not arguments.yes and (removal or count > ASK_ABOVE)
    action = f"remove {in_words(count)} for good" if removal else f"send {in_words(count)} again"
    if asks and not output.confirmed(action):
        return 1
    removed = await _move_all(bus, plans, as_json=arguments.json)
    return 1 if reasons or removed < count else 0


async def _move_all(bus: OperatorBus, plans: Sequence[PlannedMove], *, as_json: bool) -> int:
    """Carry out all moves; return how many moves removed their messages."""
    count, moved, removed = len(plans), 0, 0
    removal = any(plan.move.message is None for plan in plans)
    try:
        for path in dict.fromkeys(plan.path for plan in plans):
            moves = [plan.move for plan in plans if plan.path == path]
            async with aclosing(bus.move(path, moves)) as moving:
                async for is_removed in moving:
                    moved, removed = moved + 1, removed + is_removed
    except BaseException as error:
        nothing_sent = not moved and isinstance(error, UndeliverableError)
        if not removal and not nothing_sent:
            output.complain(
                f"sas: at least {moved:,} of {count:,} were sent and nothing is lost: "
                "repeat the command"
            )
        raise
    if as_json:
        output.say(to_line({"Sent": 0 if removal else moved, "Removed": removed, "Of": count}))
    elif removal:
        output.say(f"removed {removed:,} of {count:,}")
    else:
        output.say(f"sent {moved:,} of {count:,}, removed {removed:,}")
    if moved < count or (removal and removed < count):
        output.complain("sas: the others were gone, or another reader has them: look again")
    elif removed < count:
        output.complain(
            "sas: some messages were sent and not removed: the next redrive sends them again"
        )
    return removed


def _say(plan: PlannedMove, *, as_json: bool, dry_run: bool) -> None:
    message, body = plan.move.message, plan.peeked.body
    rejected = letters.rejected_of(plan.peeked)
    order_id = rejected.order_id if rejected else letters.order_of(body)
    target = message.queue if message else None
    if as_json:
        record = {"OrderID": order_id, "From": plan.path, "To": target}
        output.say(to_line(record | {"MessageId": plan.peeked.message_id, "DryRun": dry_run}))
        return
    subject = order_id or plan.peeked.message_id
    route = f"{plan.path} -> {target}" if target else f"{plan.path}: removed"
    output.say(output.row(("", f"{subject:<20}", route)))
