"""The verbs that change orders: ``resubmit``, ``skip``, ``undo``, ``cancel``, ``acknowledge``.

Each verb shows what it would do, asks, sends a command to the scheduler, and waits for the result
(``sas.operate.commands``). When the command arrives, the scheduler checks again whether it is
possible, because the order may have changed.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import sys
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
from sas.operate.commands import CommandResult, Intent, OrderCommand, outlook, refusal
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.finding import OrderQuery
from sas.ports import StateStore

OPERATOR_SETTING = "SAS_OPERATOR"
COMMAND_WAIT_S = 30.0
STATES_OF_MANY = {Verb.UNDO: ["error", "processed"], Verb.CANCEL: ["running", "error"]}
"""The choices of ``--state`` by verb. All other verbs change only orders in Error."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """An order whose steps were run again. ``failure`` says which failed again; empty if none."""

    order: Order
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """What the verb does, and how. ``wait_s`` None means: do not wait for the result."""

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
        parser.add_argument("--input", metavar="JSON", help=f"JSON, @FILE, or -: {use}")
    group = parser.add_argument_group("many orders at once")
    selection.add_arguments(group, STATES_OF_MANY.get(verb, ["error"]), default=None, limit=1000)
    add_sending(parser)
    args.add_json(parser, "one JSON object for each order instead of text")


def add_sending(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every command has: what was seen, by whom, and how to send it."""
    parser.add_argument(
        "--seq",
        type=int,
        metavar="N",
        help="refuse if the order has changed since this seq (default: its seq now)",
    )
    add_name(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", default="", help="why you do this: it goes into the journal"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before sending")
    parser.add_argument("--dry-run", action="store_true", help="only print what would happen")
    parser.add_argument(
        "--wait",
        type=args.number("seconds", 0.001, 86_400),
        default=COMMAND_WAIT_S,
        metavar="SECONDS",
        help="how long to wait for the journal to show the change, and then for the steps that "
        f"run again (default: {COMMAND_WAIT_S:g})",
    )
    parser.add_argument("--no-wait", action="store_true", help="send and do not wait")


def _prepare(verb: Verb, arguments: argparse.Namespace) -> Work:
    if arguments.order_id is None and arguments.state is None:
        raise UsageError(f"say which order: `sas {verb.value} ORDER_ID`, or --state for many")
    if arguments.order_id is not None and arguments.state is not None:
        raise UsageError(
            f"ORDER_ID {arguments.order_id!r} names one order, and --state {arguments.state} "
            "chooses many: give one of the two"
        )
    query = selection.read(arguments)
    if query is not None and arguments.seq is not None:
        raise UsageError("--seq is what you saw of one order: it goes with ORDER_ID")
    if query is not None and verb is Verb.RESUBMIT and arguments.input is not None:
        raise UsageError("--input replaces one order's content: it goes with ORDER_ID")
    options = read_options(arguments, _intent(arguments, verb))
    if query is None:
        return partial(change_one, options, arguments.order_id, arguments.seq)
    return partial(_change_many, _for_fingerprint(options, query), query)


def read_options(arguments: argparse.Namespace, intent: Intent) -> CommandOptions:
    """Return what a verb does, and how, as the command line and the environment say.

    Raises:
        UsageError: the environment names no namespace, or one that cannot exist.
    """
    return CommandOptions(
        intent=intent,
        bus=args.read_bus(os.environ),
        queues=read_queues(os.environ),
        sure=arguments.yes or intent.verb is Verb.ACKNOWLEDGE,
        dry_run=arguments.dry_run,
        wait_s=None if arguments.no_wait else arguments.wait,
        as_json=arguments.json,
    )


def _intent(arguments: argparse.Namespace, verb: Verb) -> Intent:
    by = name_of(arguments)
    reason = commands.check_reason(arguments.reason, "--reason")
    if verb not in {Verb.RESUBMIT, Verb.SKIP}:
        return Intent(verb=verb, by=by, reason=reason)
    text = read_input(arguments.input, "--input") if arguments.input is not None else None
    return Intent(verb=verb, by=by, step=arguments.step, input=text, reason=reason)


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add --by."""
    parser.add_argument(
        "--by",
        metavar="NAME",
        help=f"your name in the journal (default: {OPERATOR_SETTING}, or your user)",
    )


def name_of(arguments: argparse.Namespace) -> str:
    """Return the name of the operator, as the journal keeps it.

    Raises:
        UsageError: there is no name, or the journal does not take it.
    """
    by = arguments.by or os.environ.get(OPERATOR_SETTING) or _user()
    return commands.check_name(by, "--by" if arguments.by else OPERATOR_SETTING)


def read_input(text: str, name: str) -> str:
    """Return the JSON text of an argument ``name``: itself, of a file (@FILE), or of stdin (-).

    Raises:
        UsageError: it cannot be read, or ``commands.checked_input`` refuses it.
    """
    if text == "-":
        body = sys.stdin.buffer.read()
    elif text.startswith("@"):
        try:
            body = Path(text[1:]).read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {text[1:]}: {error.strerror}") from None
    else:
        body = text.encode("utf-8", "surrogateescape")
    return commands.checked_input(body, name, read_payload_codec(os.environ))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise UsageError(
            f"your user has no name here: give --by NAME or set {OPERATOR_SETTING}"
        ) from None


def _for_fingerprint(options: CommandOptions, query: OrderQuery) -> CommandOptions:
    """Limit a command for orders with a fingerprint to the step of that fingerprint.

    So another failed step of such an order stays as it is. If ``--step`` names a step, the command
    is for that step instead.
    """
    if query.fingerprint is None or options.intent.verb not in {Verb.RESUBMIT, Verb.SKIP}:
        return options
    step = options.intent.step or query.fingerprint.partition("/")[0]
    return replace(options, intent=replace(options.intent, step=step))


# -- One order, or many -----------------------------------------------------------------------


async def change_one(
    options: CommandOptions, order_id: str, seq: int | None, store: StateStore
) -> int:
    """Say what a command would do to one order, ask, send it, and tell its result.

    Return the exit code.

    Raises:
        NotPossibleError: the order has changed since ``seq``, or does not allow the command.
    """
    verb = options.intent.verb
    order = await finding.load(store, order_id)
    if seq is not None and seq != order.seq:
        changes = await commands.what_changed(store, order, seq)
        raise NotPossibleError(one_line(f"nothing was sent: {changes}"))
    if reason := refusal(order, options.intent):
        raise NotPossibleError(
            one_line(f"{verb.value} of order {order_id} is not possible: {reason}")
        )
    state = f"order {order_id} is {order.process_state.value} (seq {order.seq})"
    if not options.as_json:
        output.say(one_line(f"{state}; {verb.value} would {outlook(order, options.intent)}"))
    if options.dry_run:
        _say_outlooks(options, [order])
        return 0
    if not options.sure and not output.confirmed(f"{verb.value} order {order_id}"):
        return 1
    # A cancel is meant even if the order has changed meanwhile. So it names no seq by default.
    expected_seq = seq if verb is Verb.CANCEL else order.seq
    command = OrderCommand(order_id=order_id, seq=expected_seq, urgent=order.details.urgent)
    results = await _carry_out(options, store, [command])
    reruns = await _wait_for_reruns(options, store, [order], results)
    if options.as_json:
        return await _tell_as_json(options, store, results, reruns)
    return await _tell(options, store, results[0], reruns)


async def _change_many(options: CommandOptions, query: OrderQuery, store: StateStore) -> int:
    verb = options.intent.verb
    orders = [order async for order in finding.each(store, query)]
    possible_orders = [order for order in orders if not refusal(order, options.intent)]
    if not options.as_json:
        _announce(options, orders, possible_orders, query.limit)
    if options.dry_run:
        _say_outlooks(options, possible_orders)
    if not possible_orders or options.dry_run:
        return 0
    if not options.sure and not output.confirmed(
        f"{verb.value} {output.orders(len(possible_orders))}"
    ):
        return 1
    order_commands = [
        OrderCommand(
            order_id=order.order_id,
            seq=None if verb is Verb.CANCEL else order.seq,
            urgent=order.details.urgent,
        )
        for order in possible_orders
    ]
    results = await _carry_out(options, store, order_commands)
    reruns = await _wait_for_reruns(options, store, possible_orders, results)
    if options.as_json:
        return await _tell_as_json(options, store, results, reruns)
    return _tell_many(options, results, reruns)


def _say_outlooks(options: CommandOptions, orders: Sequence[Order]) -> None:
    """With ``--json``, print what the command would do. The text was printed before."""
    if not options.as_json:
        return
    for order in orders:
        record = {
            "OrderID": order.order_id,
            "Verb": options.intent.verb.value,
            "ProcessState": order.process_state.value,
            "Seq": order.seq,
            "Would": outlook(order, options.intent),
        }
        output.say(to_line(record))


async def _tell_as_json(
    options: CommandOptions,
    store: StateStore,
    results: Sequence[CommandResult],
    reruns: Mapping[str, Rerun],
) -> int:
    """Print the result of each command as one JSON object; return the exit code."""
    orders = {name: rerun.order for name, rerun in reruns.items()}
    missing_ids = [
        result.command.order_id for result in results if result.command.order_id not in orders
    ]
    orders |= {order.order_id: order for order in await finding.load_all(store, missing_ids)}
    code = 0
    for result in results:
        name, rerun = result.command.order_id, reruns.get(result.command.order_id)
        problem = rerun.failure if rerun and rerun.failure else None
        if options.wait_s is not None and not result.carried_out:
            problem = commands.why_not_done(result, options.wait_s)
        code = 1 if problem else code
        record = {
            "OrderID": name,
            "Verb": options.intent.verb.value,
            "Command": result.command.command_id,
            "CarriedOut": None if options.wait_s is None else result.carried_out,
            "Seq": result.entry.seq if result.entry else None,
            "ProcessState": orders[name].process_state.value if name in orders else None,
            "FailedAgain": rerun is not None and bool(rerun.failure),
            "Problem": problem,
        }
        output.say(to_line(record))
    return code


def _announce(
    options: CommandOptions, orders: list[Order], possible_orders: list[Order], limit: int
) -> None:
    verb = options.intent.verb.value
    note = f" (the first {limit:,}: --limit takes more)" if len(orders) == limit else ""
    counts = finding.grouped(possible_orders, options.intent.step)
    heading = f"{verb} of {output.orders(len(possible_orders))}{note}"
    output.say(f"{heading}: {counts}" if counts else heading)
    for order in possible_orders:
        fingerprints = ", ".join(finding.fingerprints(order))
        output.say(
            output.row(["", f"{order.order_id:<20}", fingerprints or order.process_state.value])
        )
    if others := len(orders) - len(possible_orders):
        output.say(f"{verb} is not possible for {output.orders(others)} more: left unchanged")


async def _carry_out(
    options: CommandOptions, store: StateStore, order_commands: list[OrderCommand]
) -> list[CommandResult]:
    sent_count = 0
    try:
        async with args.open_bus(options.bus) as bus:
            for batch in commands.batches(order_commands):
                sent_before = sent_count
                sent_count += len(batch)
                await commands.send(
                    bus,
                    batch,
                    options.intent,
                    options.queues,
                    sent_before=sent_before,
                    total=len(order_commands),
                )
        if options.wait_s is None:
            return [CommandResult(command) for command in order_commands]
        return await commands.wait(store, order_commands, options.queues, options.wait_s)
    except asyncio.CancelledError:
        output.complain(
            f"sas: interrupted: up to {sent_count:,} of {len(order_commands):,} commands were sent "
            "and will be carried out; look with sas list or sas show. To give the command again is "
            "safe"
            if sent_count
            else "sas: interrupted: nothing was sent"
        )
        raise


async def _wait_for_reruns(
    options: CommandOptions,
    store: StateStore,
    orders: Sequence[Order],
    results: Sequence[CommandResult],
) -> dict[str, Rerun]:
    """Wait for the steps that a resubmit runs again; return their orders by OrderID."""
    if options.wait_s is None or options.intent.verb is not Verb.RESUBMIT:
        return {}
    carried_out = {result.command.order_id for result in results if result.carried_out}
    steps_by_order = {
        order.order_id: commands.resubmitted(order, options.intent)
        for order in orders
        if order.order_id in carried_out
    }
    orders_now = await commands.wait_for_steps(store, steps_by_order, options.wait_s)
    return {
        name: Rerun(order, commands.failed_again(order, steps_by_order[name]))
        for name, order in orders_now.items()
    }


async def _tell(
    options: CommandOptions, store: StateStore, result: CommandResult, reruns: Mapping[str, Rerun]
) -> int:
    """Print the result of one command; return the exit code."""
    command, entry = result.command, result.entry
    if options.wait_s is None:
        output.say(f"sent, as command {command.command_id}")
        return 0
    if entry is not None and result.carried_out:
        rerun = reruns.get(command.order_id)
        order = rerun.order if rerun else await store.load(command.order_id)
        state = order.process_state.value if order else "gone"
        output.say(one_line(f"done: seq {entry.seq}, {entry.what}; the order is {state}"))
        if rerun and rerun.failure:
            output.complain(one_line(f"sas: it failed again: {rerun.failure}"))
        return 1 if rerun and rerun.failure else 0
    output.complain(one_line(f"sas: {commands.why_not_done(result, options.wait_s)}"))
    return 1


def _tell_many(
    options: CommandOptions, results: list[CommandResult], reruns: Mapping[str, Rerun]
) -> int:
    """Print the results of many commands; return the exit code."""
    if options.wait_s is None:
        output.say(f"sent: {len(results):,}")
        return 0
    problems = [
        (result.command.order_id, commands.why_not_done(result, options.wait_s))
        for result in results
        if not result.carried_out
    ]
    count = len(results) - len(problems)
    failures = [(name, rerun.failure) for name, rerun in reruns.items() if rerun.failure]
    suffix = f", failed again {len(failures):,}" if failures else ""
    output.say(f"sent {len(results):,}, carried out {count:,}{suffix}")
    problems += [(name, f"failed again: {failure}") for name, failure in failures]
    for name, problem in problems:
        output.complain(one_line(f"sas: order {name}: {problem}"))
    return 1 if problems else 0


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
undone. A step that waits for a callback is undone at once. There is no way back. Without --seq the
order is cancelled even if it changed meanwhile.

  sas cancel 10248
"""
ACKNOWLEDGE = """\
Note in the journal that you have seen that an order is in Error, so that others need not look.
Nothing else changes; sas list shows your name. It does not ask before sending.

  sas acknowledge 10248 --by ann
"""

VERBS = tuple(
    args.Subcommand.with_store(
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
