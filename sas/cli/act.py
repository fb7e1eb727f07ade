"""The verbs that change orders: ``resubmit``, ``skip``, ``undo``, ``cancel``, ``acknowledge``.

Each verb shows what it would do, asks, sends a command to the scheduler, and waits for the result.
The scheduler decides by the same rules once the command arrives (``sas.operate.commands``).
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sas.adapters.endpoints import Endpoint
from sas.cli import arguments as args
from sas.cli import output, selection
from sas.cli.arguments import Work
from sas.cli.output import one_line
from sas.codec.record import to_line
from sas.config import read_payload_codec, read_queues
from sas.domain.messages import Verb
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.operate import commands, finding
from sas.operate.commands import Asked, Ended, Intent, outlook, refusal
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.finding import Wanted
from sas.ports import StateStore

OPERATOR = "SAS_OPERATOR"
WAIT_S = 30.0
MANY = {Verb.UNDO: ["error", "processed"], Verb.CANCEL: ["running", "error"]}
"""The states of many orders that a verb can change at once, if not only Error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An order whose steps ran again, and how they failed again, if they did."""

    order: Order
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a command needs to know. ``wait_s`` None: it does not wait."""

    intent: Intent
    bus: Endpoint
    queues: Queues
    sure: bool
    dry_run: bool
    wait_s: float | None
    as_json: bool = False


# -- The command line -------------------------------------------------------------------------


def _add_arguments(verb: Verb, parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "order_id", metavar="ORDER_ID", nargs="?", help="the order (or --state for many)"
    )
    if verb in {Verb.RESUBMIT, Verb.SKIP}:
        parser.add_argument("--step", metavar="NAME", help="only this failed step")
        use = "what the step gets instead of the order" if verb is Verb.RESUBMIT else "its result"
        parser.add_argument("--input", metavar="JSON", help=f"JSON, or @FILE: {use}")
    parser.add_argument(
        "--seq",
        type=int,
        metavar="N",
        help="refuse if the order has changed since this seq (default: its seq now)",
    )
    many = parser.add_argument_group("many orders at once")
    selection.add_arguments(many, MANY.get(verb, ["error"]), default=None, limit=1000)
    add_name(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", default="", help="why you do this: it goes into the journal"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before sending")
    parser.add_argument("--dry-run", action="store_true", help="only print what would happen")
    parser.add_argument(
        "--wait",
        type=args.number("seconds", 0.001, 86_400),
        default=WAIT_S,
        metavar="SECONDS",
        help="how long to wait for the journal to show the change, and then for the steps that "
        f"run again (default: {WAIT_S:g})",
    )
    parser.add_argument("--no-wait", action="store_true", help="send and do not wait")
    args.add_json(parser, "one JSON object for each order instead of text")


def _prepare(verb: Verb, arguments: argparse.Namespace) -> Work:
    if arguments.order_id is None and arguments.state is None:
        raise UsageError(f"say which order: `sas {verb.value} ORDER_ID`, or --state for many")
    if arguments.order_id is not None and arguments.state is not None:
        raise UsageError(
            f"ORDER_ID {arguments.order_id!r} names one order, and --state {arguments.state} "
            "chooses many: give one of the two"
        )
    wanted = selection.read(arguments)
    if wanted is not None and arguments.seq is not None:
        raise UsageError("--seq is what you saw of one order: it goes with ORDER_ID")
    if wanted is not None and verb is Verb.RESUBMIT and arguments.input is not None:
        raise UsageError("--input replaces one order's content: it goes with ORDER_ID")
    plan = Plan(
        intent=_intent(arguments, verb),
        bus=args.read_bus(os.environ),
        queues=read_queues(os.environ),
        sure=arguments.yes or verb is Verb.ACKNOWLEDGE,
        dry_run=arguments.dry_run,
        wait_s=None if arguments.no_wait else arguments.wait,
        as_json=arguments.json,
    )
    if wanted is None:
        return partial(_one, plan, arguments.order_id, arguments.seq)
    return partial(_many, _for_fingerprint(plan, wanted), wanted)


def _intent(arguments: argparse.Namespace, verb: Verb) -> Intent:
    by = name_of(arguments)
    reason = commands.check_reason(arguments.reason, "--reason")
    if verb not in {Verb.RESUBMIT, Verb.SKIP}:
        return Intent(verb=verb, by=by, reason=reason)
    given = _input(arguments.input) if arguments.input is not None else None
    return Intent(verb=verb, by=by, step=arguments.step, input=given, reason=reason)


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add --by."""
    parser.add_argument(
        "--by", metavar="NAME", help=f"your name in the journal (default: {OPERATOR}, or your user)"
    )


def name_of(arguments: argparse.Namespace) -> str:
    """Return the name of the operator, as the journal keeps it.

    Raises:
        UsageError: the journal does not take this name.
    """
    by = arguments.by or os.environ.get(OPERATOR) or _user()
    return commands.check_name(by, "--by" if arguments.by else OPERATOR)


def _input(text: str) -> str:
    """Return the JSON text of --input."""
    if text.startswith("@"):
        try:
            body = Path(text[1:]).read_bytes()
        except OSError as wrong:
            raise UsageError(f"cannot read {text[1:]}: {wrong.strerror}") from None
    else:
        body = text.encode("utf-8", "surrogateescape")
    return commands.checked_input(body, "--input", read_payload_codec(os.environ))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise UsageError(f"your user has no name here: give --by NAME or set {OPERATOR}") from None


def _for_fingerprint(plan: Plan, wanted: Wanted) -> Plan:
    """Return a plan for orders that failed alike: only for that step, unless --step names another.

    If such an order failed in a second way, that failure stays as it is.
    """
    if wanted.fingerprint is None or plan.intent.verb not in {Verb.RESUBMIT, Verb.SKIP}:
        return plan
    step = plan.intent.step or wanted.fingerprint.partition("/")[0]
    return replace(plan, intent=replace(plan.intent, step=step))


# -- One order, or many -----------------------------------------------------------------------


async def _one(plan: Plan, order_id: str, seq: int | None, store: StateStore) -> int:
    verb = plan.intent.verb
    order = await finding.load(store, order_id)
    if seq is not None and seq != order.seq:
        why = await commands.what_changed(store, order, seq)
        raise NotPossibleError(one_line(f"nothing was sent: {why}"))
    if no := refusal(order, plan.intent):
        raise NotPossibleError(one_line(f"{verb.value} of order {order_id} is not possible: {no}"))
    state = f"order {order_id} is {order.process_state.value} (seq {order.seq})"
    if not plan.as_json:
        output.say(one_line(f"{state}; {verb.value} would {outlook(order, plan.intent)}"))
    if plan.dry_run:
        _say_outlooks(plan, [order])
        return 0
    if not plan.sure and not output.confirmed(f"{verb.value} order {order_id}"):
        return 1
    # A cancel is right even if the order changed meanwhile.
    seen = seq if verb is Verb.CANCEL else order.seq
    (ended,) = await _carry_out(
        plan, store, [Asked(order_id=order_id, seq=seen, urgent=order.details.urgent)]
    )
    outcomes = await _outcomes(plan, store, [order], [ended])
    if plan.as_json:
        return await _tell_as_json(plan, store, [ended], outcomes)
    return await _tell(plan, store, ended, outcomes)


async def _many(plan: Plan, wanted: Wanted, store: StateStore) -> int:
    verb = plan.intent.verb
    found = [order async for order in finding.each(store, wanted)]
    possible = [order for order in found if not refusal(order, plan.intent)]
    if not plan.as_json:
        _announce(plan, found, possible, wanted.limit)
    if plan.dry_run:
        _say_outlooks(plan, possible)
    if not possible or plan.dry_run:
        return 0
    if not plan.sure and not output.confirmed(f"{verb.value} {output.orders(len(possible))}"):
        return 1
    seen = {o.order_id: None if verb is Verb.CANCEL else o.seq for o in possible}
    asked = [
        Asked(order_id=o.order_id, seq=seen[o.order_id], urgent=o.details.urgent) for o in possible
    ]
    all_ended = await _carry_out(plan, store, asked)
    outcomes = await _outcomes(plan, store, possible, all_ended)
    if plan.as_json:
        return await _tell_as_json(plan, store, all_ended, outcomes)
    return _tell_many(plan, all_ended, outcomes)


def _say_outlooks(plan: Plan, orders: Sequence[Order]) -> None:
    """Print as JSON what the command would do; the text says it already."""
    for order in orders if plan.as_json else ():
        said = {
            "OrderID": order.order_id,
            "Verb": plan.intent.verb.value,
            "ProcessState": order.process_state.value,
            "Seq": order.seq,
            "Would": outlook(order, plan.intent),
        }
        output.say(to_line(said))


async def _tell_as_json(
    plan: Plan, store: StateStore, ended: Sequence[Ended], outcomes: Mapping[str, Outcome]
) -> int:
    """Print what became of each command as one JSON object; return the exit code."""
    now = {name: one.order for name, one in outcomes.items()}
    left = [one.asked.order_id for one in ended if one.asked.order_id not in now]
    now |= {order.order_id: order for order in await finding.load_all(store, left)}
    code = 0
    for one in ended:
        name, outcome = one.asked.order_id, outcomes.get(one.asked.order_id)
        problem = outcome.failed if outcome and outcome.failed else None
        if plan.wait_s is not None and not one.carried_out:
            problem = commands.why_not_done(one, plan.wait_s)
        code = 1 if problem else code
        said = {
            "OrderID": name,
            "Verb": plan.intent.verb.value,
            "Command": one.asked.command_id,
            "CarriedOut": None if plan.wait_s is None else one.carried_out,
            "Seq": one.entry.seq if one.entry else None,
            "ProcessState": now[name].process_state.value if name in now else None,
            "FailedAgain": outcome is not None and bool(outcome.failed),
            "Problem": problem,
        }
        output.say(to_line(said))
    return code


def _announce(plan: Plan, found: list[Order], possible: list[Order], limit: int) -> None:
    verb = plan.intent.verb.value
    more = f" (the first {limit:,}: --limit takes more)" if len(found) == limit else ""
    kinds = finding.grouped(possible, plan.intent.step)
    output.say(f"{verb} of {output.orders(len(possible))}{more}" + (f": {kinds}" if kinds else ""))
    for order in possible:
        failed = ", ".join(finding.fingerprints(order))
        output.say(output.row(["", f"{order.order_id:<20}", failed or order.process_state.value]))
    if left := len(found) - len(possible):
        output.say(f"{verb} is not possible for {output.orders(left)} more: left unchanged")


async def _carry_out(plan: Plan, store: StateStore, asked: list[Asked]) -> list[Ended]:
    sent = 0
    try:
        async with args.open_bus(plan.bus) as bus:
            for batch in commands.batches(asked):
                sent += len(batch)
                before, of = sent - len(batch), len(asked)
                intent, queues = plan.intent, plan.queues
                await commands.send(bus, batch, intent, queues, sent_before=before, of=of)
        if plan.wait_s is None:
            return [Ended(one) for one in asked]
        return await commands.wait(store, asked, plan.queues, plan.wait_s)
    except asyncio.CancelledError:
        output.complain(
            f"sas: interrupted: up to {sent:,} of {len(asked):,} commands were sent and will be "
            "carried out; look with sas list or sas show. To give the command again is safe"
            if sent
            else "sas: interrupted: nothing was sent"
        )
        raise


async def _outcomes(
    plan: Plan, store: StateStore, orders: Sequence[Order], ended: Sequence[Ended]
) -> dict[str, Outcome]:
    """Wait for the steps that run again; return what became of them, by order."""
    if plan.wait_s is None or plan.intent.verb is not Verb.RESUBMIT:
        return {}
    done = {one.asked.order_id for one in ended if one.carried_out}
    steps = {one.order_id: commands.resubmitted(one, plan.intent) for one in orders}
    again = {name: numbers for name, numbers in steps.items() if name in done}
    found = await commands.outcomes(store, again, plan.wait_s)
    return {
        name: Outcome(order, commands.failed_again(order, again[name]))
        for name, order in found.items()
    }


async def _tell(
    plan: Plan, store: StateStore, ended: Ended, outcomes: Mapping[str, Outcome]
) -> int:
    """Print what became of one command; return the exit code."""
    asked, entry = ended.asked, ended.entry
    if plan.wait_s is None:
        output.say(f"sent, as command {asked.command_id}")
        return 0
    if entry is not None and ended.carried_out:
        outcome = outcomes.get(asked.order_id)
        order = outcome.order if outcome else await store.load(asked.order_id)
        now = order.process_state.value if order else "gone"
        output.say(one_line(f"done: seq {entry.seq}, {entry.what}; the order is {now}"))
        if outcome and outcome.failed:
            output.complain(one_line(f"sas: it failed again: {outcome.failed}"))
        return 1 if outcome and outcome.failed else 0
    output.complain(one_line(f"sas: {commands.why_not_done(ended, plan.wait_s)}"))
    return 1


def _tell_many(plan: Plan, ended: list[Ended], outcomes: Mapping[str, Outcome]) -> int:
    """Print what became of many commands; return the exit code."""
    if plan.wait_s is None:
        output.say(f"sent: {len(ended):,}")
        return 0
    troubles = [
        (one.asked.order_id, commands.why_not_done(one, plan.wait_s))
        for one in ended
        if not one.carried_out
    ]
    count = len(ended) - len(troubles)
    again = [(name, one.failed) for name, one in outcomes.items() if one.failed]
    also = f", failed again {len(again):,}" if again else ""
    output.say(f"sent {len(ended):,}, carried out {count:,}{also}")
    troubles += [(name, f"failed again: {how}") for name, how in again]
    for name, why in troubles:
        output.complain(one_line(f"sas: order {name}: {why}"))
    return 1 if troubles else 0


# -- The verbs --------------------------------------------------------------------------------

RESUBMIT = """\
Run the failed steps of an order in Error again, or its failed undos. Failures are counted from 0
again. The remote service gets the same idempotency key, so it does nothing twice. With --input the
step gets a new key, and its earlier calls are undone first.

The command waits until these steps have ended, as --wait says. It exits with 1 if one failed
again.

  sas resubmit 10248
  sas resubmit 10248 --step charge-card --input '{"amount": 12.5}'
  sas resubmit --state error --fingerprint charge-card/timed-out
"""
SKIP = """\
Count a failed step of an order in Error as done (or a failed undo as undone), because you did it by
hand. --input is the result that later steps read; without it they see null.

  sas skip 10248 --step ship-goods --input '{"parcel": "P-17"}'
"""
UNDO = """\
Undo an order at once, in any state: every step that began is undone, the last one first. There is
no way back. To let the running calls of an order finish first, use sas cancel.

  sas undo 10248
"""
CANCEL = """\
Cancel an order under way: no new step starts, the running steps end or expire, then all steps are
undone. There is no way back. Without --seq the order is cancelled even if it changed meanwhile.

  sas cancel 10248
"""
ACKNOWLEDGE = """\
Note in the journal that you have seen that an order is in Error, so that others need not look.
Nothing else changes; sas list shows your name. It does not ask before sending.

  sas acknowledge 10248 --by ann
"""

VERBS = tuple(
    args.Verb.with_store(
        verb.value,
        summary,
        description=description,
        add_arguments=partial(_add_arguments, verb),
        prepare=partial(_prepare, verb),
    )
    for verb, summary, description in (
        (Verb.RESUBMIT, "run the failed steps of an order again", RESUBMIT),
        (Verb.SKIP, "count a failed step as done", SKIP),
        (Verb.UNDO, "undo an order; there is no way back", UNDO),
        (Verb.CANCEL, "stop an order under way, and undo it", CANCEL),
        (Verb.ACKNOWLEDGE, "note that you have seen an order in Error", ACKNOWLEDGE),
    )
)
