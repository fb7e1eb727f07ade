"""The verbs that repair orders: ``resubmit``, ``skip``, ``undo``, ``callback``.

Each verb shows what it would do, asks, sends its commands to the scheduler, and follows the results
(``sas.operate.commands``). When a command arrives, the scheduler checks again whether it is
possible, because the order may have changed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sas.cli import options, screen, system
from sas.cli.options import value
from sas.cli.system import LiveSystem
from sas.config import read_callback_keys, read_payload_codec
from sas.domain.messages import Verb
from sas.domain.order import OrderState
from sas.domain.texts import command, quoted
from sas.operate import callbacks, commands, finding, inputs
from sas.operate.commands import ActPlan, ActRun, Intent, OrderAct
from sas.operate.errors import UsageError
from sas.operate.finding import OrderQuery

COMMAND_WAIT_S = 30.0
LINES_MAX = 20
"""Of many orders, so many are named. A dry run names all."""
MANY = "Many orders at once"
JSON = "JSON, @FILE, or - for stdin"

SomeOrderID = Annotated[
    str | None,
    typer.Argument(metavar="ORDER_ID", help="The order (or --state for many).", show_default=False),
]
Text = str | None
StepName = Annotated[Text, value("NAME", "Only this step.", name="--step")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
    """The options of every verb that changes orders. A wait of 0 s means: do not wait."""

    seq: Annotated[int | None, value("N", "Refuse if it has changed since.")] = None
    by: options.By = None
    reason: options.Reason = ""
    yes: options.Yes = False
    dry_run: options.DryRun = False
    wait: Annotated[
        float,
        typer.Option(
            min=0, max=86_400, metavar="SECONDS", help="How long to wait for news (0: not at all)."
        ),
    ] = COMMAND_WAIT_S
    as_json: options.Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyOptions(ActOptions):
    """The options of a verb that changes one order or many."""

    state: Annotated[
        Literal["error", "running", "processed"] | None,
        value("STATE", "error, running or processed.", panel=MANY),
    ] = None
    fingerprint: Annotated[
        Text, value("STEP/CODE", "Orders in Error that failed in this way.", panel=MANY)
    ] = None
    workflow: Annotated[Text, value("NAME", "Only orders of this workflow.", panel=MANY)] = None
    since: Annotated[
        Text,
        value("WHEN", "Only since then: 30m, 1h, 2d, or a time in UTC.", panel=MANY),
    ] = None
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000, metavar="N", help="At most N orders.", rich_help_panel=MANY
        ),
    ] = 1000


# -- The verbs --------------------------------------------------------------------------------


@options.spread
def resubmit(
    order_id: SomeOrderID = None,
    *,
    step: StepName = None,
    content: Annotated[
        Text, value("JSON", f"{JSON}: what the step gets instead of the order.", name="--input")
    ] = None,
    chosen: ManyOptions,
) -> None:
    """Run the failed steps (or failed undos) of an order again.

    \b
      sas resubmit 10248
      sas resubmit 10248 --step charge-card --input '{"amount": 12.5}'
      sas resubmit --state error --fingerprint charge-card/timed-out

    The service gets the same idempotency key, so it does nothing twice. With --input the step gets
    a new key, and its earlier calls are undone first. Ends with 1 if a step fails again.
    Interrupted, it goes on where it was when it is given again.
    """
    if order_id is None and content is not None:
        raise UsageError("--input replaces one order's content: it goes with ORDER_ID")
    _change(order_id, Verb.RESUBMIT, chosen, step=step, content=content)


@options.spread
def skip(
    order_id: SomeOrderID = None,
    *,
    step: StepName = None,
    content: Annotated[Text, value("JSON", f"{JSON}: its result.", name="--input")] = None,
    chosen: ManyOptions,
) -> None:
    """Count a step as done because you did it by hand.

    \b
      sas skip 10248 --step ship-goods --input '{"parcel": "P-17"}'

    It is for a step in Error, and for one that waits for a callback. --input is the result that
    later steps read; without it they see null. A failed undo counts as undone.
    """
    _change(order_id, Verb.SKIP, chosen, step=step, content=content)


@options.spread
def undo(
    order_id: SomeOrderID = None,
    *,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the calls that run.")] = False,
    chosen: ManyOptions,
) -> None:
    """Undo an order. There is no way back.

    \b
      sas undo 10248
      sas undo --state running --workflow order

    Every step that began is undone, the last one first. An order under way starts no new step, and
    its running calls end or expire first. It never waits for a person's callback. --now does not
    wait for the calls either. An order under way is undone even if it changes meanwhile, unless you
    give --seq.
    """
    _change(order_id, Verb.UNDO, chosen, at_once=now)


@options.spread
def callback(
    order_id: options.OrderID,
    *,
    step: StepName = None,
    answer: Annotated[Text, value("JSON", f"{JSON}: it is done, with this result.")] = None,
    refuse: Annotated[Text, value("CODE", "It is refused; CODE is for programs.")] = None,
    text: Annotated[Text, value("TEXT", "With --refuse: why (default: the reason).")] = None,
    chosen: ActOptions,
) -> None:
    """Show the callback that a step waits for, or end it by hand.

    \b
      sas callback 10248
      sas callback 10248 --answer '{"amount": 80}'
      sas callback 10248 --step approve --refuse too-expensive --text "at most 50 a day"

    The address allows to end this one step, so treat it as a secret. To make it, the command needs
    SAS_CALLBACK_KEY and SAS_CALLBACK_URL as the app has them; of an app that runs here it takes
    them from local.settings.json. --answer and --refuse need no key. The journal has your name.
    """
    if answer is not None and refuse is not None:
        raise UsageError("--answer says that the step is done, --refuse that it is not: give one")
    if text is not None and refuse is None:
        raise UsageError("--text says why a step is refused: it goes with --refuse CODE")
    if answer is None and refuse is None:
        _show_callbacks(order_id, step, as_json=chosen.as_json)
    fault = None
    if refuse is not None:
        fault = inputs.refusal_by_hand(refuse, text or chosen.reason)
    _change(
        order_id, Verb.CALLBACK, chosen, step=step, content=answer, option="--answer", fault=fault
    )


def _show_callbacks(order_id: str, step: str | None, *, as_json: bool) -> None:
    async def work(system: LiveSystem) -> int:
        keys = read_callback_keys(os.environ)
        order = await finding.load(await system.store(), order_id)
        for callback in callbacks.waiting_callbacks(order, step, keys):
            if as_json:
                screen.say(callback.line())
                continue
            undoing = "the undo of " if callback.direction == "undo" else ""
            note = f": {quoted(callback.note)}" if callback.note else ""
            until = screen.phrase("until", callback.until)
            screen.sentence(f"{undoing}{callback.step} waits for the callback {until}{note}")
            answer, refuse = (
                command("sas callback", order_id, options=f"--step {callback.step} {end}")
                for end in ("--answer RESULT", "--refuse CODE --text TEXT")
            )
            address = callback.lacking or ""
            screen.facts([("answer", answer), ("refuse", refuse), ("address", address)])
            if callback.token:  # whole, so that it can be copied
                screen.say(callback.url or f"token  {callback.token}")
        return 0

    system.run(work)


# -- What is wanted ---------------------------------------------------------------------------


def read_text(text: str) -> bytes:
    """Return the text of an argument: itself, of a file (@FILE), or of stdin (-).

    Raises:
        UsageError: the file cannot be read.
    """
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {text[1:]}: {error.strerror}") from None


def _query(order_id: str | None, verb: Verb, chosen: ManyOptions) -> OrderQuery | None:
    """Return which orders are meant; None if it is the one with ORDER_ID."""
    state = chosen.state or ("error" if chosen.fingerprint else None)
    if order_id is None and state is None:
        raise UsageError(f"say which order: `sas {verb.value} ORDER_ID`, or --state for many")
    if order_id is not None and (state or chosen.workflow or chosen.since):
        raise UsageError(
            f"ORDER_ID {order_id!r} names one order, and --state, --fingerprint, --workflow and "
            "--since choose many: give one of the two"
        )
    if state is None:
        return None
    if chosen.fingerprint and (state != "error" or not all(chosen.fingerprint.partition("/"))):
        raise UsageError(
            f"--fingerprint {chosen.fingerprint} with --state {state}: give STEP/CODE as sas list "
            "shows it, for orders in Error"
        )
    if chosen.seq is not None:
        raise UsageError("--seq is what you saw of one order: it goes with ORDER_ID")
    return OrderQuery(
        state=state,
        workflow=chosen.workflow,
        fingerprint=chosen.fingerprint,
        limit=chosen.limit,
        since=options.moment(chosen.since) if chosen.since else None,
    )


# -- Say it, ask, send it, follow it ----------------------------------------------------------


def _change(
    order_id: str | None,
    verb: Verb,
    chosen: ActOptions,
    *,
    content: str | None = None,
    option: str = "--input",
    **intention: Any,
) -> None:
    """Run a verb. ``option`` has the content; ``intention`` is the rest of its intent."""
    query = _query(order_id, verb, chosen) if isinstance(chosen, ManyOptions) else None

    async def work(system: LiveSystem) -> int:
        text = None
        if content is not None:
            codec = read_payload_codec(os.environ)
            text = inputs.checked_input(read_text(content), option, codec)
        by = options.operator(chosen.by)
        reason = inputs.check_text(chosen.reason, "--reason")
        intent = Intent(verb=verb, by=by, reason=reason, input=text, **intention)
        store = await system.store()
        if query is None:
            plan = await commands.plan_one(store, order_id or "", intent, seq=chosen.seq)
            action = f"{verb.value} order {order_id}"
        else:
            with screen.progress("reading orders") as tell:
                plan = await commands.plan_many(store, query, intent, tell)
            action = f"{verb.value} {screen.count(len(plan.acts), 'order')}"
        if not chosen.as_json:
            _preview(plan, is_one=query is None, names_all=chosen.dry_run)
        elif chosen.dry_run:
            for act in plan.acts + plan.others:
                screen.say(act.line())
        if chosen.dry_run or not plan.acts:
            return 0
        if not chosen.yes and not screen.confirmed(action):
            return 1
        run = await carry_out(plan, system, chosen.wait)
        return _tell(run, chosen, is_one=query is None)

    system.run(work)


def _preview(plan: ActPlan, *, is_one: bool, names_all: bool) -> None:
    verb = plan.intent.verb.value
    if is_one:
        (act,) = plan.acts
        state = f"order {act.order_id} is {act.process_state} (seq {act.seq})"
        screen.sentence(f"{state}; {verb} would {act.would}")
        return
    heading = f"{verb} of {screen.count(len(plan.acts), 'order')}"
    note = " (--limit takes more)" * plan.limited
    counts = f": {plan.counts}" if plan.counts else ""
    screen.sentence(f"{heading}{note}{counts}")
    rows = [
        (act.order_id, act.process_state or "", ", ".join(act.failed), screen.time_of(act.since))
        for act in plan.acts[: None if names_all else LINES_MAX]
    ]
    if rows:
        screen.table(("Order", "State", "Failed", "Since"), rows, folds="Failed")
    if more := len(plan.acts) - len(rows):
        screen.sentence(f"and {more:,} more (--dry-run names all)")
    if waiting := sum(act.verb is Verb.CANCEL for act in plan.acts):
        screen.sentence(
            f"{screen.count(waiting, 'order')} under way: start no new step, and wait for running "
            "calls first (--now does not)"
        )
    for problem, number in Counter(act.problem for act in plan.others).most_common():
        screen.sentence(
            f"{verb} is not possible for {screen.count(number, 'order')} more: {problem}"
        )


async def carry_out(plan: ActPlan, system: LiveSystem, wait_s: float = COMMAND_WAIT_S) -> ActRun:
    """Send the commands of a plan, and follow their results with a bar. Interrupted, say how far.

    Raises:
        ServiceUnavailableError: the bus did not take them all.
    """
    run = ActRun(plan, await system.store(), system.queues)
    total = len(plan.acts)
    try:
        bus = await system.bus()
        with screen.progress("commands sent", total) as tell:
            await run.send(bus, tell)
        system.waits_for = "the scheduler"
        if wait_s:
            with screen.progress(f"{plan.intent.verb.value} of orders", total) as tell:
                await run.follow(wait_s, tell)
    except asyncio.CancelledError:
        screen.complain(
            f"sas: interrupted: up to {run.sent:,} of {total:,} commands were sent, and are carried"
            f" out; {run.done:,} are done. The same command again goes on: it leaves out what has "
            "changed, and does nothing twice"
            if run.sent
            else "sas: interrupted: nothing was sent"
        )
        raise
    return run


def _tell(run: ActRun, chosen: ActOptions, *, is_one: bool) -> int:
    """Print the results; return the exit code."""
    results = run.results
    problems = [result for result in results if result.problem]
    code = 1 if problems else 0
    if chosen.as_json:
        for result in results:
            screen.say(result.line())
        return code
    carried_out = [result for result in results if result.carried_out]
    if not is_one:
        counts = f"sent {len(results):,}"
        if chosen.wait:
            counts += f", carried out {len(carried_out):,}"
        if failed := sum(result.failed_again for result in results):
            counts += f", failed {failed:,}"
        screen.sentence(counts)
    elif not chosen.wait:
        screen.sentence(f"sent, as command {results[0].command}")
    elif carried_out:
        (result,) = carried_out
        screen.sentence(_ending(result))
    for result in problems[:LINES_MAX]:
        failure = "partly undone: " if result.verb is Verb.UNDO else "failed again: "
        failure *= result.failed_again
        screen.complain(f"sas: order {result.order_id}: {failure}{result.problem}")
    if len(problems) > LINES_MAX:
        screen.complain(f"sas: and {len(problems) - LINES_MAX:,} more: sas list shows them")
    return code


def _ending(result: OrderAct) -> str:
    """Return how a command for one order ended that was carried out."""
    ending = f"seq {result.row}, {result.what}; the order is {result.process_state}"
    if result.verb is Verb.CANCEL and result.process_state != OrderState.COMPENSATED.value:
        return f"accepted: {ending}. It is undone when the calls that run have ended"
    return f"{'carried out' if result.problem else 'done'}: {ending}"
