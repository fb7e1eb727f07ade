"""The verbs that change orders: ``resubmit``, ``skip``, ``undo``, ``cancel``, ``acknowledge``.

Each is shown first, confirmed, sent as a command to the scheduler, and awaited. The scheduler
decides by the same rules once the command arrives. A command that is carried out leaves its cause
in the journal. A command that is refused leaves nothing there; then the order has a later seq than
the command names, or the scheduler keeps for a while why it refused.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sas.adapters.endpoints import Endpoint
from sas.bounds import EDITED_UNITS_MAX, utf16_units
from sas.cli import arguments as args
from sas.cli import output, selection
from sas.cli.arguments import Work
from sas.cli.output import NotPossibleError, UnavailableError, UsageError, one_line
from sas.cli.selection import Wanted, is_failed
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, check_depth, parse
from sas.config import read_queues
from sas.domain.command import can_undo, why_not
from sas.domain.ids import cause_of
from sas.domain.messages import JournalEntry, JournalWord, Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues, lane
from sas.engine.refusals import CommandRefusals
from sas.ports import (
    BusUnavailableError,
    Message,
    MessageBus,
    StateStore,
    UndeliverableError,
)

OPERATOR = "SAS_OPERATOR"
NAME_LENGTH_MAX = 100
WAIT_S = 30.0
POLL_S = 0.25
SEND_MAX = 100
"""Commands handed to the bus at once."""
GONE = "the order does not exist any more (finished orders are purged in the end)"
UNDER_WAY = frozenset({OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR})
MANY = {Verb.UNDO: ["error", "processed"], Verb.CANCEL: ["running", "error"]}
"""The states of many orders that a verb can change at once, if not only Error."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What an operator wants of an order, or of several."""

    verb: Verb
    by: str
    step: str | None = None
    input: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a command needs to know. ``wait_s`` None: it does not wait."""

    intent: Intent
    bus: Endpoint
    queues: Queues
    sure: bool
    dry_run: bool
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """One command for one order. ``seq`` is the order's seq that the operator saw; None: any."""

    order_id: str
    seq: int | None
    urgent: bool = False
    command_id: str = field(default_factory=lambda: f"sas-{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a command: its journal row, or why there is no row."""

    asked: Asked
    entry: JournalEntry | None = None
    refused: str = ""

    @property
    def carried_out(self) -> bool:
        """Whether the scheduler carried it out."""
        return self.entry is not None and self.entry.what is not JournalWord.FENCED


# -- What a command would do, or why it cannot ------------------------------------------------


def refusal(order: Order, intent: Intent) -> str:
    """Return why a command is not possible for an order, or nothing."""
    if order.rejected:
        return "it was rejected, and no step began: submit it again"
    names = [step.name for step in order.steps]
    if intent.step is not None and intent.step not in names:
        return f"it has no step {intent.step!r}, only {', '.join(names)}"
    if _possible(order, intent):
        return ""
    if intent.step is not None and order.process_state is OrderState.ERROR:
        own = order.steps[names.index(intent.step)].process_state.value
        return f"the step must be in Error, and {intent.step} is {own}"
    return why_not(order, intent.verb)


def _possible(order: Order, intent: Intent) -> bool:
    match intent.verb:
        case Verb.RESUBMIT | Verb.SKIP:
            return bool(_failed(order, intent))
        case Verb.UNDO:
            return can_undo(order)
        case Verb.CANCEL:
            return order.process_state in UNDER_WAY and order.direction is Direction.DO
        case Verb.ACKNOWLEDGE:
            return order.process_state is OrderState.ERROR


def outlook(order: Order, intent: Intent) -> str:
    """Return what a possible command would do."""
    failed = _failed(order, intent)
    match intent.verb:
        case Verb.RESUBMIT:
            with_input = " with the given input" if intent.input is not None else ""
            return f"run again{with_input}: {_each(failed)}"
        case Verb.SKIP:
            if any(step.undo_failed for step in failed):
                return f"count as undone by hand: {_each(failed)}"
            return f"count as done, with the result {intent.input or 'null'}: {_each(failed)}"
        case Verb.UNDO:
            return f"undo the order (there is no way back); {_ledger(order)}"
        case Verb.CANCEL:
            out = [step.name for step in order.steps if step.process_state is StepState.PROCESSING]
            waiting = f"wait for {', '.join(out)}, " if out else ""
            undo = "undo the order (there is no way back)"
            return f"start no new step, {waiting}then {undo}; {_ledger(order)}"
        case Verb.ACKNOWLEDGE:
            return "note that you have seen that it is in Error; nothing else changes"


def _failed(order: Order, intent: Intent) -> Sequence[StepRecord]:
    return [step for step in order.steps if is_failed(step) and intent.step in {None, step.name}]


def _each(failed: Sequence[StepRecord]) -> str:
    return "; ".join(
        ("undo of " if step.undo_failed else "")
        + step.name
        + (f" ({step.error.code}: {step.error.message})" if step.error else "")
        for step in failed
    )


def _ledger(order: Order) -> str:
    begun = [step.name for step in reversed(order.steps) if step.epoch > 0]
    if not begun:
        return "no step ever began"
    return (
        f"these steps began and are undone in this order, if they have an undo: {', '.join(begun)}"
    )


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
    parser.add_argument(
        "--by", metavar="NAME", help=f"your name in the journal (default: {OPERATOR}, or your user)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before sending")
    parser.add_argument("--dry-run", action="store_true", help="only print what would happen")
    parser.add_argument(
        "--wait",
        type=args.number("seconds", 0.001, 86_400),
        default=WAIT_S,
        metavar="SECONDS",
        help=f"how long to wait for the journal to show the change (default: {WAIT_S:g})",
    )
    parser.add_argument("--no-wait", action="store_true", help="send and do not wait")
    args.add_connection(parser)


def _prepare(verb: Verb, arguments: argparse.Namespace) -> Work:
    if (arguments.order_id is None) == (arguments.state is None):
        raise UsageError(f"say which order: `sas {verb.value} ORDER_ID`, or --state for many")
    wanted = selection.read(arguments)
    if wanted is not None and arguments.seq is not None:
        raise UsageError("--seq is what you saw of one order: it goes with ORDER_ID")
    if wanted is not None and verb is Verb.RESUBMIT and arguments.input is not None:
        raise UsageError("--input replaces one order's content: it goes with ORDER_ID")
    plan = Plan(
        intent=_intent(arguments, verb),
        bus=args.read_bus(arguments, os.environ),
        queues=read_queues(os.environ),
        sure=arguments.yes or verb is Verb.ACKNOWLEDGE,
        dry_run=arguments.dry_run,
        wait_s=None if arguments.no_wait else arguments.wait,
    )
    if wanted is None:
        return partial(_one, plan, arguments.order_id, arguments.seq)
    return partial(_many, _for_fingerprint(plan, wanted), wanted)


def _intent(arguments: argparse.Namespace, verb: Verb) -> Intent:
    by = arguments.by or os.environ.get(OPERATOR) or _user()
    if len(by) > NAME_LENGTH_MAX:
        raise UsageError(f"--by has {len(by)} characters: at most {NAME_LENGTH_MAX} are kept")
    if not by.strip() or not by.isprintable():  # a lone surrogate is not printable either
        raise UsageError(f"--by (or {OPERATOR}) is {by!r}: give a name that can be printed")
    if verb not in {Verb.RESUBMIT, Verb.SKIP}:
        return Intent(verb, by)
    given = _input(arguments.input) if arguments.input is not None else None
    return Intent(verb, by, arguments.step, given)


def _input(text: str) -> str:
    """Return the JSON text of --input."""
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
    order = await selection.load(store, order_id)
    if seq is not None and seq != order.seq:
        why = await _what_changed(store, order, seq)
        raise NotPossibleError(one_line(f"nothing was sent: {why}"))
    if no := refusal(order, plan.intent):
        raise NotPossibleError(one_line(f"{verb.value} of order {order_id} is not possible: {no}"))
    state = f"order {order_id} is {order.process_state.value} (seq {order.seq})"
    output.say(one_line(f"{state}; {verb.value} would {outlook(order, plan.intent)}"))
    if plan.dry_run:
        return 0
    if not plan.sure and not output.confirmed(f"{verb.value} order {order_id}"):
        return 1
    # A cancel is right however far the order has come meanwhile.
    seen = seq if verb is Verb.CANCEL else order.seq
    (ended,) = await _carry_out(plan, store, [Asked(order_id, seen, order.details.urgent)])
    return await _tell(plan, store, ended)


async def _many(plan: Plan, wanted: Wanted, store: StateStore) -> int:
    verb = plan.intent.verb
    found = [order async for order in selection.each(store, wanted)]
    possible = [order for order in found if not refusal(order, plan.intent)]
    _announce(plan, found, possible, wanted.limit)
    if not possible or plan.dry_run:
        return 0
    if not plan.sure and not output.confirmed(f"{verb.value} {output.orders(len(possible))}"):
        return 1
    seen = {o.order_id: None if verb is Verb.CANCEL else o.seq for o in possible}
    asked = [Asked(o.order_id, seen[o.order_id], o.details.urgent) for o in possible]
    return _tell_many(plan, await _carry_out(plan, store, asked))


def _announce(plan: Plan, found: list[Order], possible: list[Order], limit: int) -> None:
    verb = plan.intent.verb.value
    more = f" (the first {limit:,}: --limit takes more)" if len(found) == limit else ""
    kinds = selection.grouped(possible, plan.intent.step)
    output.say(f"{verb} of {output.orders(len(possible))}{more}" + (f": {kinds}" if kinds else ""))
    if left := len(found) - len(possible):
        output.say(f"{verb} is not possible for {output.orders(left)} more: left unchanged")


async def _carry_out(plan: Plan, store: StateStore, asked: list[Asked]) -> list[Ended]:
    sent = 0
    try:
        async with args.open_bus(plan.bus) as bus:
            for batch in _batches(asked):
                sent += len(batch)
                await _send(bus, batch, plan, sent_before=sent - len(batch), of=len(asked))
        if plan.wait_s is None:
            return [Ended(one) for one in asked]
        return await _wait(store, asked, plan.queues, plan.wait_s)
    except asyncio.CancelledError:
        output.complain(
            f"sas: interrupted: up to {sent:,} of {len(asked):,} commands were sent and will be "
            "carried out; look with sas list or sas show. To give the command again is safe"
            if sent
            else "sas: interrupted: nothing was sent"
        )
        raise


async def _tell(plan: Plan, store: StateStore, ended: Ended) -> int:
    """Print what became of one command; return the exit code."""
    asked, entry = ended.asked, ended.entry
    if plan.wait_s is None:
        output.say(f"sent, as command {asked.command_id}")
        return 0
    if entry is not None and ended.carried_out:
        order = await store.load(asked.order_id)
        now = order.process_state.value if order else "gone"
        output.say(one_line(f"done: seq {entry.seq}, {entry.what}; the order is {now}"))
        return 0
    output.complain(one_line(f"sas: {_why_not_done(ended, plan.wait_s)}"))
    return 1


def _tell_many(plan: Plan, ended: list[Ended]) -> int:
    """Print what became of many commands; return the exit code."""
    if plan.wait_s is None:
        output.say(f"sent: {len(ended):,}")
        return 0
    failed = [one for one in ended if not one.carried_out]
    output.say(f"sent {len(ended):,}, carried out {len(ended) - len(failed):,}")
    for one in failed[:10]:
        why = _why_not_done(one, plan.wait_s)
        output.complain(one_line(f"sas: order {one.asked.order_id}: {why}"))
    if len(failed) > 10:
        output.complain(f"sas: and {len(failed) - 10:,} more")
    return 1 if failed else 0


def _why_not_done(ended: Ended, wait_s: float) -> str:
    if ended.entry is not None:
        return "the command was dead-lettered: see operator-alerts and the function app's log"
    if ended.refused:
        return f"not carried out: {ended.refused}."
    return (
        f"not carried out within {wait_s:g} s: check that the function app runs, and look on "
        f"operator-alerts for refused/{ended.asked.command_id}; it may still be carried out later"
    )


# -- Sending, and waiting for the journal -----------------------------------------------------


def _batches(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    lanes = sorted(asked, key=lambda one: not one.urgent)  # a batch has one queue; urgent first
    return (lanes[start : start + SEND_MAX] for start in range(0, len(lanes), SEND_MAX))


async def _send(
    bus: MessageBus, batch: Sequence[Asked], plan: Plan, *, sent_before: int, of: int
) -> None:
    try:
        await bus.send([_message(one, plan.intent, plan.queues) for one in batch])
    except (BusUnavailableError, UndeliverableError) as failed:
        raise UnavailableError(
            f"{failed} {sent_before:,} of {of:,} commands were sent before. To give the "
            "command again is safe: an order that has changed refuses it."
        ) from None


def _message(asked: Asked, intent: Intent, queues: Queues) -> Message:
    """Return a command for the scheduler's queue, in the lane of its order."""
    command = CommandMessage(
        id=asked.command_id,
        order_id=asked.order_id,
        verb=intent.verb.value,
        by=intent.by,
        seq=asked.seq,
        step=intent.step,
        input=internal.raw(intent.input),
    )
    queue = lane(queues.scheduler, urgent=asked.urgent)
    return Message(queue, asked.command_id, internal.encode(command))


async def _wait(
    store: StateStore, asked: Sequence[Asked], queues: Queues, wait_s: float
) -> list[Ended]:
    """Return what became of each command, as far as known after ``wait_s`` without news."""
    gate = asyncio.Semaphore(selection.CONCURRENT)

    async def look(one: Asked) -> Ended:
        async with gate:
            return await _look_for(store, one, queues)

    ended: dict[str, Ended] = {}
    left, news_at = list(asked), time.monotonic()
    while left:
        for one in await asyncio.gather(*(look(one) for one in left)):
            if one.entry is not None or one.refused:
                ended[one.asked.command_id] = one
                news_at = time.monotonic()
        left = [one for one in left if one.command_id not in ended]
        if left and time.monotonic() - news_at >= wait_s:
            break
        await asyncio.sleep(POLL_S if left else 0)
    return [ended.get(one.command_id, Ended(one)) for one in asked]


async def _look_for(store: StateStore, asked: Asked, queues: Queues) -> Ended:
    """Return what became of one command so far."""
    cause = cause_of(queues.scheduler, asked.command_id)
    entry = await store.recorded(asked.order_id, cause)
    if entry is not None:
        return Ended(asked, entry)
    order = await store.load(asked.order_id)
    if order is not None and asked.seq in {order.seq, None}:
        return Ended(asked, None, await CommandRefusals(store).reason(asked.command_id))
    if asked.seq is None:
        return Ended(asked, None, GONE)
    # The order changed, by this command or before it arrived: only now the cause tells which.
    entry = await store.recorded(asked.order_id, cause)
    return Ended(asked, entry, "" if entry else await _what_changed(store, order, asked.seq))


async def _what_changed(store: StateStore, order: Order | None, seq: int) -> str:
    """Return what changed since the operator saw an order, in one sentence."""
    if order is None:
        return GONE
    now = f"the order is at seq {order.seq} ({order.process_state.value})"
    if order.seq < seq:
        return f"you gave seq {seq}, but {now}: check which seq you saw"
    since = [one for one in await store.journal(order.order_id) if one.seq > seq]
    changes = ", ".join(f"{one.seq} {one.what} by {one.by}" for one in since[:5])
    more = ", ..." if len(since) > 5 else ""
    return (
        f"you saw seq {seq}, but {now}; since then: {changes or 'nothing'}{more}. Look at it again"
    )


# -- The verbs --------------------------------------------------------------------------------

RESUBMIT = """\
Run the failed steps of an order in Error again, or its failed undos. Failures are counted from 0
again. The remote service gets the same idempotency key: it does nothing twice. --input has a key
of its own: the step's earlier calls are undone first.

  sas resubmit 10248
  sas resubmit 10248 --step charge-card --input '{"amount": 12.5}'
  sas resubmit --state error --fingerprint charge-card/timed-out
"""
SKIP = """\
Count a failed step of an order in Error as done (or a failed undo as undone), because you did it by
hand. --input is the result that later steps see.

  sas skip 10248 --step ship-goods --input '{"parcel": "P-17"}'
"""
UNDO = """\
Undo an order at once, whatever its state: every step that ever began, the last first. There is no
way back. To let the running calls of an order finish first, use sas cancel.

  sas undo 10248
"""
CANCEL = """\
Cancel an order under way: no new step starts, the running steps are awaited (or expire), then all
is undone. There is no way back. Without --seq the order is cancelled however far it has come.

  sas cancel 10248
"""
ACKNOWLEDGE = """\
Note in the journal that you have seen that an order is in Error, so that others need not look.
Nothing else changes; sas list shows your name. It does not ask before sending.

  sas acknowledge 10248 --by ann
"""

VERBS = tuple(
    args.Verb.with_store(
        verb.value, summary, description, partial(_add_arguments, verb), partial(_prepare, verb)
    )
    for verb, summary, description in (
        (Verb.RESUBMIT, "run the failed steps of an order again", RESUBMIT),
        (Verb.SKIP, "count a failed step as done", SKIP),
        (Verb.UNDO, "undo an order; there is no way back", UNDO),
        (Verb.CANCEL, "stop an order under way, and undo it", CANCEL),
        (Verb.ACKNOWLEDGE, "note that you have seen an order in Error", ACKNOWLEDGE),
    )
)
