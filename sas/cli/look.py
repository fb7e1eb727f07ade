"""``sas show``: show one order: its state, its steps and its journal."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record, one_line, time_of
from sas.codec.external import RejectedMessage
from sas.codec.payloads import decode_order
from sas.codec.record import record_of, to_line
from sas.config import read_payload_codec, read_queues
from sas.domain.ids import key_time, parse_key_time
from sas.domain.messages import (
    JournalEntry,
    Outgoing,
    Request,
)
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues
from sas.features.claim_check import ClaimCheck
from sas.operate import finding, letters
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.operate.finding import is_failed
from sas.operate.letters import Submitted
from sas.operate.why import MENDED, Fold, change, folded, sent, spelled
from sas.ports import MessageBus, StateStore

SHOW = """\
Show one order: its state, its steps with their errors and undos, its journal (when, what, by whom,
why, which steps changed, which messages were sent), and what to do next. Many rows of waiting are
one row with their count; --json has them all.

  sas show 10248
  sas show 10248 --last 5
  sas show 10248 --json --content
"""
APP_RUNS = "nothing, or check that the function app runs if this lasts"
STEP_COLUMNS = ("Step", "ProcessState", "FailureCount", "LockedBy", "CompleteBy", "Undo")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("order_id", metavar="ORDER_ID")
    args.add_json(parser, "one JSON object instead of text")
    parser.add_argument(
        "--last",
        type=args.number("rows", 1, 1_000_000, whole=True),
        metavar="N",
        help="only the last N rows of the journal",
    )
    parser.add_argument(
        "--content",
        action="store_true",
        help="with --json: also the order's content and the agents' results (may be personal)",
    )


def _show(arguments: argparse.Namespace) -> Work:
    if arguments.content and not arguments.json:
        raise UsageError("--content needs --json: the text shows no content")

    async def show(store: StateStore) -> int:
        order = await _load(arguments, store)
        if order is None:
            return 0
        journal = await store.journal(order.order_id)
        last = int(arguments.last or 0)
        if arguments.content:
            complete_order = await ClaimCheck(store).fetch_all(order)
            order = decode_order(complete_order, read_payload_codec(os.environ))
        if arguments.json:
            rows = journal[-last:] if last else journal
            output.say(to_line(record_of(order, rows, content=arguments.content)))
        else:
            for line in page(order, journal, output.now(), last):
                output.say(line)
        return 0

    return show


async def _load(arguments: argparse.Namespace, store: StateStore) -> Order | None:
    """Return the order. If it is only in a queue, print that and return None.

    Raises:
        UsageError: no order can have this id.
        NotPossibleError: no order has this id.
        ServiceUnavailableError: no order in the table has this id, and ``orders-rejected`` cannot
            be read.
    """
    order_id: str = arguments.order_id
    try:
        return await finding.load(store, order_id)
    except NotPossibleError:
        queues = read_queues(os.environ)
        async with args.open_bus_if_any() as bus:
            if submitted := await letters.submitted(bus, queues, order_id):
                say_submitted(order_id, submitted, as_json=arguments.json)
                return None
            part = await rejected_part(bus, queues, order_id)
        if part is None:
            raise
    if arguments.json:
        output.say(to_line(rejected_record(part)))
        return None
    output.say(one_line(f"order {order_id}  {OrderState.REJECTED.value}"))
    facts = (
        ("rejected", time_of(parse_key_time(part.at))),
        ("why", f"{part.reason}: {part.description}"),
        ("from", f"{part.source_queue}, correlation {part.correlation_id or '-'}"),
        ("message", part.id),
        ("next", f"correct it and submit it again, or `sas messages resend {part.id}`"),
    )
    for line in output.facts(facts):
        output.say(line)
    return None


def page(
    order: Order, journal: Sequence[JournalEntry], now: datetime, last: int = 0
) -> Iterator[str]:
    """Yield the lines of one order's page, with the ``last`` rows of its journal (0: all rows).

    The rows of a long wait are shown as one row with their number.
    """
    yield from _head(order)
    yield ""
    yield from output.table(
        STEP_COLUMNS,
        [_row(step) for step in order.steps],
        [_below(step, now) for step in order.steps],
    )
    yield ""
    if journal and journal[0].seq > 1:
        yield f"(journal rows 1 to {journal[0].seq - 1} were removed)"
    folds = folded(journal)
    shown_folds = folds[-last:] if last else folds
    if len(shown_folds) < len(folds):
        count, total = len(shown_folds), len(folds)
        yield f"(the last {count:,} of {total:,} rows; without --last all are shown)"
    for fold in shown_folds:
        yield from _wait_row(fold) if fold.is_run else _entry(order, fold.entries[0])
    yield ""
    yield "next: " + one_line(advice(order, now))


def advice(order: Order, now: datetime) -> str:
    """Return in one sentence what an operator can do next."""
    name = order.order_id
    match order.process_state:
        case OrderState.REJECTED:
            return "no step began; the application corrects the order and submits it again."
        case OrderState.PROCESSED:
            return f"nothing to do; `sas undo {name}` would undo the whole order."
        case OrderState.COMPENSATED:
            return "nothing to do: the whole order is undone; this id cannot be run again."
        case OrderState.ERROR:
            return _after_failure(order)
        case _:
            return _while_under_way(order, now)


def _after_failure(order: Order) -> str:
    failed_step = next(step for step in order.steps if is_failed(step))
    name, step = order.order_id, failed_step.name
    if failed_step.undo_failed:
        return (
            f"the undo of {step} failed: repair what its error says, then "
            f"`sas resubmit {name}` tries the undo again, or `sas skip {name} --step {step}` "
            "after you undid it by hand."
        )
    return (
        f"repair what the error of {step} says, then `sas resubmit {name}`; or, if you did the "
        f"step by hand, `sas skip {name} --step {step} --input RESULT` (later steps read RESULT); "
        f"or `sas undo {name}`."
    )


def _while_under_way(order: Order, now: datetime) -> str:  # noqa: PLR0911  one for each wait
    open_steps = [step for step in order.steps if step.complete_by is not None]
    if not open_steps:
        return "no step is open: report this as a bug, with this page."
    step = min(open_steps, key=lambda step: step.complete_by or now)
    by = output.phrase("by", step.complete_by)
    if step.complete_by is not None and step.complete_by < now:
        due = f"due {time_of(step.complete_by)}"
        return (
            f"{step.name} was {due}, and the supervisor has not looked at it yet: if this lasts "
            "longer than a minute, check that the function app runs."
        )
    if step.resting:
        action = "undone" if step.direction is Direction.UNDO else "tried again"
        until = output.phrase("until", step.complete_by)
        return f"nothing to do: {step.name} rests {until}, then it is {action}."
    if (bug := finding.bug_of(step, now)) is not None:
        return f"deploy a mended version of the agent of {step.name} ({bug.message}). {MENDED}"
    if step.awaits_callback:
        return f"nothing to do: {finding.doing_of(step, now)}; {of_callback(order, step)}."
    if step.dispatched:
        return f"nothing to do: {step.name} is with its agent, to be done {by}."
    return f"nothing to do: {step.name} is ready; a scheduler claims it {by}."


def of_callback(order: Order, step: StepRecord) -> str:
    """Return what an operator can do about a step that waits for a callback."""
    return (
        f"`sas callback {order.order_id} --step {step.name}` shows where it is to be sent, and can "
        "end the step by hand"
    )


def _head(order: Order) -> Iterator[str]:
    details = order.details
    yield one_line(f"order {order.order_id}  {order.process_state.value}  (seq {order.seq})")
    urgent = ", urgent" if details.urgent else ""
    yield f"  workflow      {details.workflow} version {details.version}{urgent}"
    yield f"  submitted     {time_of(details.submitted_at)}"
    yield f"  LockedBy      {one_line(order.locked_by or '-')}"
    yield f"  CompleteBy    {time_of(order.complete_by)}"
    yield f"  FailureCount  {order.failure_count}"
    correlation = (
        f"correlation {details.correlation_id}" if details.correlation_id else "no correlation id"
    )
    yield one_line(f"  answers to    {details.reply_queue}, {correlation}")
    if order.stopped_at is not None:
        yield f"  stopped       {time_of(order.stopped_at)}"
    if order.deadline is not None:
        yield f"  deadline      {time_of(order.deadline)}"
    if order.acknowledged_by is not None:
        yield one_line(f"  seen by       {order.acknowledged_by}")
    if order.undone_because is not None:
        yield one_line(f"  undone        {order.undone_because}")


def _row(step: StepRecord) -> tuple[str, ...]:
    return (
        step.name,
        step.process_state.value,
        str(step.failure_count),
        step.locked_by or "-",
        time_of(step.complete_by),
        step.undo.value,
    )


def _below(step: StepRecord, now: datetime) -> list[str]:
    """Return the lines below a step: errors, until when it rests, its agent, its progress."""
    lines = [f"{step.error.code}: {step.error.message}"] if step.error else []
    error, ended_states = step.last_error, {StepState.PROCESSED, StepState.COMPENSATED}
    if error is not None and step.process_state not in ended_states:
        attempt = f"epoch {error.epoch}, attempt {error.attempt}, {time_of(error.at)}"
        again = f"; it is called again {output.phrase('by', error.again_by)}"
        again = again if finding.bug_of(step, now) else ""
        lines.append(f"last error ({attempt}): {error.kind}: {error.message}{again}")
    if step.resting:
        action = "undone" if step.direction is Direction.UNDO else "tried again"
        lines.append(f"resting {output.phrase('until', step.complete_by)}, then it is {action}")
    if step.call.route:
        lines.append(f"with agent number {step.call.route + 1} of the step")
    if step.awaits_callback:
        return [*lines, f"waits for the callback {finding.until_callback(step)}"]
    return [*lines, step.note] if step.note else lines


def _entry(order: Order, entry: JournalEntry) -> Iterator[str]:
    reason = f": {entry.reason}" if entry.reason else ""
    cells = [f"{entry.seq:>4}", _exact_time(entry.at), f"{entry.what:<16} by {entry.by}{reason}"]
    if entry.changes:
        cells.append(", ".join(change(order, step_change) for step_change in entry.changes))
    yield output.row(cells)
    for message in entry.messages:
        yield one_line(f"        -> {_sent(order, message)}")


def _wait_row(fold: Fold) -> Iterator[str]:
    """Yield the one row that stands for all rows of a long wait."""
    first_entry, last_entry = fold.entries[0], fold.entries[-1]
    extent = f"to {last_entry.seq}, over {spelled(last_entry.at - first_entry.at)}"
    count = f"{len(fold.entries):,} rows: {fold.words}"
    yield output.row((f"{first_entry.seq:>4}", _exact_time(first_entry.at), count, extent))


def _exact_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _sent(order: Order, message: Outgoing) -> str:
    until = message.complete_by if isinstance(message, Request) else None
    return sent(order, message, when=f", {output.phrase('by', until)}")


# -- Orders that are not stored ---------------------------------------------------------------


def say_submitted(order_id: str, submitted: Submitted, *, as_json: bool) -> None:
    """Print what an order waits for whose message is still in a queue of orders."""
    letter, until = submitted.letter, submitted.until
    cause, todo = "The function app, to take its message.", APP_RUNS
    if until is not None:
        cause = f"A deploy that has {submitted.workflow}: no instance has it."
        todo = "deploy it, or correct the workflow that the order names and submit it again"
    elif submitted.bug is not None:
        cause = f"A deploy that mends its check: {submitted.bug}."
        todo = "deploy a mended version; do not submit the order again"
    if as_json:
        record = {
            "OrderID": order_id,
            "WaitsFor": cause,
            "Message": {"Queue": letter.path, "Since": key_time(letter.since)},
            "Workflow": submitted.workflow,
            "RejectedAt": key_time(until) if until else None,
            "Todo": todo,
        }
        output.say(to_line(record))
        return
    output.say(output.one_line(f"{order_id} was submitted, and has not begun."))
    scheduled = "scheduled in" if letter.peeked.is_scheduled else "in"
    rejected = f"it is rejected about {time_of(until)}" if until else ""
    facts = (
        ("waits for", cause),
        ("message", f"{scheduled} {letter.path}, {time_of(letter.since)}"),
        ("then", rejected),
        ("do", todo),
    )
    for line in output.facts(facts):
        output.say(line)


# -- Rejected orders --------------------------------------------------------------------------


async def rejected_part(
    bus: MessageBus | None, queues: Queues, order_id: str
) -> RejectedMessage | None:
    """Return the newest rejected message of an order, if one is on ``orders-rejected``.

    Raises:
        ServiceUnavailableError: the queue cannot be read.
    """
    if bus is None:
        return None
    contents = await letters.read(bus, [queues.rejected])
    if contents.problems:
        raise ServiceUnavailableError(
            f"there is no order {order_id!r} in the table, and whether it was rejected is not "
            f"known: {contents.problems[queues.rejected]}"
        )
    parts = letters.rejected_orders(contents.letters, queues)
    return next((part for part in parts if part.order_id == order_id), None)


def rejected_record(part: RejectedMessage) -> Record:
    """Return the JSON object of a rejected order. Its body is left out: it may be personal."""
    return {
        "OrderID": part.order_id,
        "ProcessState": OrderState.REJECTED.value,
        "StoppedAt": part.at,
        "CorrelationID": part.correlation_id,
        "Reason": part.reason,
        "Description": part.description,
        "SourceQueue": part.source_queue,
        "MessageId": part.id,
    }


VERBS = (
    Subcommand.with_store(
        "show",
        "show one order: steps, journal, what to do next",
        description=SHOW,
        add_arguments=_add_show,
        prepare=_show,
    ),
)
