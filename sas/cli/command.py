"""What the verbs that change an order share: one order or many, shown, confirmed, sent, awaited."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
from dataclasses import dataclass, replace
from pathlib import Path

from sas.adapters.endpoints import Endpoint
from sas.bounds import EDITED_UNITS_MAX, utf16_units
from sas.cli import (
    carrying,
    choosing,
    confirming,
    connection,
    finding,
    intent,
    output,
    page,
    show,
    storage,
)
from sas.cli.carrying import Asked, Ended
from sas.cli.errors import NotThereError, UsageError
from sas.cli.finding import Wanted
from sas.cli.intent import Intent
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, check_depth, parse
from sas.config import read_queues
from sas.domain.messages import Verb
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.ports import StateStore

OPERATOR = "SAS_OPERATOR"
NAME_LENGTH_MAX = 100
WAIT_S = 30.0
_INPUT_IS = {
    Verb.RESUBMIT: "what the step gets instead of the order",
    Verb.SKIP: "what stands for the step's result",
}


_MANY = {Verb.UNDO: ["error", "processed"], Verb.CANCEL: ["running", "error"]}
"""Which orders a verb takes many of at once, where those in Error are not all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a command needs to know."""

    intent: Intent
    where: storage.Storage
    bus: Endpoint
    queues: Queues
    sure: bool
    dry_run: bool
    wait_s: float | None


def add_arguments(parser: argparse.ArgumentParser, verb: Verb) -> None:
    """Add the arguments of a verb that changes orders."""
    parser.add_argument("order_id", metavar="ORDER_ID", nargs="?", help="the order; or --state")
    if verb in {Verb.RESUBMIT, Verb.SKIP}:
        parser.add_argument("--step", metavar="NAME", help="this failed step alone")
        parser.add_argument(
            "--input",
            metavar="JSON",
            help="JSON, or @FILE: "
            + (
                "what the step gets instead of the order" if verb is Verb.RESUBMIT else "its result"
            ),
        )
    parser.add_argument(
        "--seq",
        type=int,
        metavar="N",
        help="refuse if the order has changed since you saw it at this seq (default: as it is now)",
    )
    many = parser.add_argument_group("many orders at once")
    choosing.add_arguments(many, _MANY.get(verb, ["error"]), default=None, limit=1000)
    parser.add_argument(
        "--by", metavar="NAME", help=f"who says so, for the journal (default: {OPERATOR}, or you)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before sending")
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=WAIT_S,
        metavar="SECONDS",
        help=f"for the journal to show it (default: {WAIT_S:g})",
    )
    parser.add_argument("--no-wait", action="store_true", help="send and be gone")
    connection.add_connection(parser)
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace, verb: Verb) -> int:
    """Put one order, or many, to a command; return the exit code."""
    if (arguments.order_id is None) == (arguments.state is None):
        raise UsageError(f"say which order: `sas {verb.value} ORDER_ID`, or --state for many")
    wanted = choosing.read(arguments)
    if wanted is not None and arguments.seq is not None:
        raise UsageError("--seq is what you saw of one order: it goes with ORDER_ID")
    if wanted is not None and verb is Verb.RESUBMIT and arguments.input is not None:
        raise UsageError("--input stands for one order's content: it goes with ORDER_ID")
    plan = Plan(
        intent=_intent(arguments, verb),
        where=storage.read(arguments, os.environ),
        bus=connection.read_bus(arguments, os.environ),
        queues=read_queues(os.environ),
        sure=arguments.yes or verb is Verb.ACKNOWLEDGE,
        dry_run=arguments.dry_run,
        wait_s=None if arguments.no_wait else arguments.wait,
    )
    if wanted is None:
        return asyncio.run(_one(plan, arguments.order_id, arguments.seq))
    return asyncio.run(_many(_alike(plan, wanted), wanted))


def _alike(plan: Plan, wanted: Wanted) -> Plan:
    """Return a plan for orders that failed alike: it is about that failure alone, unless it says
    which step. Of an order that failed in two ways the other one is left as it is.
    """
    if wanted.fingerprint is None or plan.intent.verb not in {Verb.RESUBMIT, Verb.SKIP}:
        return plan
    step = plan.intent.step or wanted.fingerprint.partition("/")[0]
    return replace(plan, intent=replace(plan.intent, step=step))


async def _one(plan: Plan, order_id: str, seq: int | None) -> int:
    verb = plan.intent.verb
    async with storage.opened(plan.where) as store:
        order = await show.load(store, order_id)
        if seq is not None and seq != order.seq:
            why = await carrying.overtaken(store, order, seq)
            raise NotThereError(output.one_line(f"nothing was sent: {why}"))
        why_not = intent.refusal(order, plan.intent)
        if why_not:
            raise NotThereError(
                output.one_line(f"{verb.value} of order {order_id} is not possible: {why_not}")
            )
        state = f"order {order_id} is {order.process_state.value} (seq {order.seq})"
        would = intent.outlook(order, plan.intent)
        output.say(output.one_line(f"{state}; {verb.value} would {would}"))
        if plan.dry_run or not _sure(plan, f"{verb.value} order {order_id}"):
            return 0 if plan.dry_run else 1
        # To cancel, what matters is that it is under way, not how far it has come meanwhile.
        seen = seq if verb is Verb.CANCEL else order.seq
        (ended,) = await _carry_out(plan, store, [Asked(order_id, seen, order.details.urgent)])
        return await _tell(plan, store, ended)


async def _many(plan: Plan, wanted: Wanted) -> int:
    verb = plan.intent.verb
    async with storage.opened(plan.where) as store:
        found = await finding.find(store, wanted)
        possible = [order for order in found if not intent.refusal(order, plan.intent)]
        _announce(plan, found, possible, wanted.limit)
        if not possible or plan.dry_run:
            return 0
        if not _sure(plan, f"{verb.value} {page.orders(len(possible))}"):
            return 1
        asked = [
            Asked(o.order_id, None if verb is Verb.CANCEL else o.seq, o.details.urgent)
            for o in possible
        ]
        ended = await _carry_out(plan, store, asked)
    return _tell_many(plan, ended)


def _announce(plan: Plan, found: list[Order], possible: list[Order], limit: int) -> None:
    verb = plan.intent.verb.value
    more = f" (the first {limit:,}: --limit takes more)" if len(found) == limit else ""
    kinds = finding.grouped(possible, plan.intent.step)
    output.say(f"{verb} of {page.orders(len(possible))}{more}" + (f": {kinds}" if kinds else ""))
    if left := len(found) - len(possible):
        output.say(f"{page.orders(left)} besides cannot be put to it and are left alone")


def _sure(plan: Plan, what: str) -> bool:
    return plan.sure or confirming.confirmed(what)


async def _carry_out(plan: Plan, store: StateStore, asked: list[Asked]) -> list[Ended]:
    sent = 0

    def going(count: int) -> None:
        nonlocal sent
        sent = count

    try:
        async with carrying.opened(plan.bus) as bus:
            await carrying.send(bus, asked, plan.intent, plan.queues, going)
        if plan.wait_s is None:
            return [Ended(one) for one in asked]
        return await carrying.wait(store, asked, plan.queues, plan.wait_s)
    except asyncio.CancelledError:
        output.complain(_interrupted(sent, len(asked)))
        raise


def _interrupted(sent: int, asked: int) -> str:
    if not sent:
        return "sas: interrupted: nothing was sent"
    return (
        f"sas: interrupted: up to {sent:,} of {asked:,} commands were sent, and are carried out "
        "all the same; look with sas list or sas show. Asking again is safe"
    )


async def _tell(plan: Plan, store: StateStore, ended: Ended) -> int:
    """Say what became of one command; return the exit code."""
    asked, entry = ended.asked, ended.entry
    if plan.wait_s is None:
        output.say(f"sent, as command {asked.command_id}")
        return 0
    if entry is not None and ended.carried_out:
        order = await store.load(asked.order_id)
        now = order.process_state.value if order else "gone"
        output.say(output.one_line(f"done: seq {entry.seq}, {entry.what}; the order is {now}"))
        return 0
    output.complain(output.one_line(f"sas: {_why_not(ended, plan.wait_s)}"))
    return 1


def _tell_many(plan: Plan, ended: list[Ended]) -> int:
    """Say what became of many commands; return the exit code."""
    if plan.wait_s is None:
        output.say(f"sent: {len(ended):,}")
        return 0
    done = sum(one.carried_out for one in ended)
    output.say(f"asked {len(ended):,}, carried out {done:,}")
    failed = [one for one in ended if not one.carried_out]
    for one in failed[:10]:
        why = _why_not(one, plan.wait_s)
        output.complain(output.one_line(f"sas: order {one.asked.order_id}: {why}"))
    if len(failed) > 10:
        output.complain(f"sas: and {len(failed) - 10:,} more")
    return 1 if failed else 0


def _why_not(ended: Ended, wait_s: float) -> str:
    if ended.entry is not None:
        return "the command was dead-lettered: see operator-alerts and the function app's log"
    if ended.refused:
        return f"not carried out: {ended.refused}."
    return (
        f"not carried out within {wait_s:g} s: check that the function app runs, and look on "
        f"operator-alerts for refused/{ended.asked.command_id}; it may still be carried out"
    )


def _intent(arguments: argparse.Namespace, verb: Verb) -> Intent:
    by = arguments.by or os.environ.get(OPERATOR) or _whoever()
    if len(by) > NAME_LENGTH_MAX:
        raise UsageError(f"--by has {len(by)} characters: at most {NAME_LENGTH_MAX} are kept")
    if not by.strip() or not by.isprintable():  # half of a character is not printable, either
        raise UsageError(f"--by (or {OPERATOR}) is {by!r}: give a name as it can be printed")
    has_more = verb in {Verb.RESUBMIT, Verb.SKIP}
    given = _input(arguments.input) if has_more and arguments.input is not None else None
    return Intent(verb, by, arguments.step if has_more else None, given)


def _input(text: str) -> str:
    """Return what --input says, as JSON text."""
    if text.startswith("@"):
        try:
            body = Path(text[1:]).read_bytes()
        except OSError as wrong:
            raise UsageError(f"cannot read {text[1:]}: {wrong.strerror}") from None
    else:
        body = text.encode("utf-8", "surrogateescape")
    try:
        parse(body)
        made = body.decode().strip()
        check_depth(made, CONTENT_DEPTH_MAX)
    except MalformedError as wrong:
        raise UsageError(f"--input: {wrong}") from None
    if utf16_units(made) > EDITED_UNITS_MAX:
        raise UsageError(f"--input has over {EDITED_UNITS_MAX:,} characters: give less")
    return made


def _whoever() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise UsageError(f"nobody is signed in here: give --by NAME or set {OPERATOR}") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds, more than 0, at most a day")
    return value
