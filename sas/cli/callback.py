"""``sas callback``: show what a step waits for, and end its wait by hand."""

from __future__ import annotations

import argparse
import os
from functools import partial

from sas.cli import act, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record
from sas.codec.record import to_line
from sas.config import read_callback_keys
from sas.domain.command import why_not
from sas.domain.ids import key_time
from sas.domain.messages import Verb
from sas.domain.order import Direction, Order, StepRecord
from sas.features.callbacks.codec import CallbackKeys
from sas.operate import commands, finding
from sas.operate.commands import Intent
from sas.operate.errors import NotPossibleError, UsageError
from sas.ports import StateStore

DESCRIPTION = """\
Show what a step waits for, if a callback is to end it: its note, until when, and the address for
the person or system that is to answer. The address allows to end this one step, so treat it as a
secret. To make it, the command needs SAS_CALLBACK_KEY and SAS_CALLBACK_URL in its environment, as
the app has them. Of an app that runs on this machine it takes them from local.settings.json.

With --answer or --refuse the command ends the step itself, as the callback would. That needs no
key. The journal has your name.

  sas callback 10248
  sas callback 10248 --answer '{"amount": 80}'
  sas callback 10248 --step approve --refuse too-expensive --text "at most 50 a day"
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("order_id", metavar="ORDER_ID")
    parser.add_argument("--step", metavar="NAME", help="the step, if several wait for callbacks")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--answer", metavar="JSON", help="JSON, @FILE, or - for stdin: it is done, with this result"
    )
    group.add_argument("--refuse", metavar="CODE", help="it is refused; CODE is for programs")
    parser.add_argument("--text", metavar="TEXT", help="with --refuse: why (default: --reason)")
    act.add_sending(parser)
    args.add_json(parser, "one JSON object for each step instead of text")


def _prepare(arguments: argparse.Namespace) -> Work:
    if arguments.text is not None and arguments.refuse is None:
        raise UsageError("--text says why a step is refused: it goes with --refuse CODE")
    if arguments.answer is None and arguments.refuse is None:
        keys = read_callback_keys(os.environ)
        return partial(_show, arguments.order_id, arguments.step, keys=keys, as_json=arguments.json)
    code, text = arguments.refuse, arguments.text or arguments.reason
    intent = Intent(
        verb=Verb.CALLBACK,
        by=act.name_of(arguments),
        step=arguments.step,
        input=None if arguments.answer is None else act.read_input(arguments.answer, "--answer"),
        fault=None if code is None else commands.refusal_by_hand(code, text),
        reason=commands.check_reason(arguments.reason, "--reason"),
    )
    options = act.read_options(arguments, intent)
    return partial(act.change_one, options, arguments.order_id, arguments.seq)


async def _show(
    order_id: str, step: str | None, store: StateStore, *, keys: CallbackKeys, as_json: bool
) -> int:
    order = await finding.load(store, order_id)
    steps = [record for record in order.steps if record.awaits_callback]
    shown_steps = [record for record in steps if step in {None, record.name}]
    if not shown_steps:
        reason = why_not(order, Verb.CALLBACK)
        raise NotPossibleError(output.one_line(f"order {order_id}: {reason}"))
    for record in shown_steps:
        if as_json:
            output.say(to_line(_record(order, record, keys)))
        else:
            _say(order, record, keys)
    return 0


def _say(order: Order, step: StepRecord, keys: CallbackKeys) -> None:
    name = f"{order.order_id} --step {step.name}"
    undoing = "the undo of " if step.direction is Direction.UNDO else ""
    until = f"until {output.time_of(step.complete_by)}" + (f": {step.note}" if step.note else "")
    output.say(output.row([f"{undoing}{step.name} waits for the callback {until}"]))
    pairs = [
        ("answer", f"sas callback {name} --answer RESULT"),
        ("refuse", f"sas callback {name} --refuse CODE --text TEXT"),
    ]
    for line in output.facts([*pairs, ("address", _lacking(keys))]):
        output.say(line)
    if keys:  # whole, so that it can be copied
        callback = keys.callback_of(order, step)
        output.say(callback.url or f"token  {callback.token}")


def _lacking(keys: CallbackKeys) -> str:
    """Return which setting the address lacks, and what to do; empty if it lacks none."""
    if not keys:
        return "not known here: set SAS_CALLBACK_KEY and SAS_CALLBACK_URL as the app has them"
    return "" if keys.url else "not known here: set SAS_CALLBACK_URL as the app has it"


def _record(order: Order, step: StepRecord, keys: CallbackKeys) -> Record:
    callback = keys.callback_of(order, step) if keys else None
    return {
        "OrderID": order.order_id,
        "Step": step.name,
        "Direction": step.direction.value,
        "Until": key_time(step.complete_by) if step.complete_by else None,
        "Note": step.note,
        "Url": callback.url if callback else None,
        "Token": callback.token if callback else None,
        "Lacking": _lacking(keys) or None,
    }


VERBS = (
    Subcommand.with_store(
        "callback",
        "show the callback that a step waits for, or end it by hand",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        prepare=_prepare,
    ),
)
