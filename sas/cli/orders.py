"""``sas list`` and ``sas show``: many orders, and one order with what it waits for."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from sas.cli import act, application, options, screen
from sas.cli.screen import phrase, time_of
from sas.cli.system import LiveSystem, run
from sas.codec.payloads import decode_order
from sas.codec.record import record_of, to_line
from sas.config import read_payload_codec
from sas.domain.ids import check_order_id
from sas.domain.messages import Verb
from sas.features.claim_check import ClaimCheck
from sas.operate import commands, finding, orders
from sas.operate.commands import ActPlan, Intent
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.finding import OrderQuery
from sas.operate.journal import Fold
from sas.operate.orders import COUNTED_MAX, Beside, OrderList, OrderRow, OrderStory, QueuedOrder
from sas.operate.why import AwaitedMessage, Circuit, StepError, Waits, spelled

State = Literal["error", "running", "finished", "processed", "compensated", "rejected"]
MIXED_STATES = {"all", "running", "finished"}
"""Lists of these have a column with the state of each order."""
CONDITIONS = {"error": "in Error", "running": "under way", "finished": "finished", "all": ""}

# -- sas list ---------------------------------------------------------------------------------


def list_orders(  # noqa: PLR0913  one for each option
    *,
    state: Annotated[
        State | None,
        typer.Option(
            metavar="STATE",
            help="error, running, finished, processed, compensated or rejected.",
            show_default="error",
        ),
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Orders in every state, those in Error first.")
    ] = False,
    since: options.Since = None,
    workflow: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only orders of this workflow.", show_default=False),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="STEP/CODE", help="Only orders that failed in this way.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="At most so many.")
    ] = 50,
    as_json: options.Json = False,
    acknowledge: Annotated[
        bool,
        typer.Option("--acknowledge", help="Note that you have seen that these are in Error."),
    ] = False,
    by: options.By = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write all finished orders with content and journal to FILE (- is stdout).",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            min=0,
            max=36_500,
            help="With --to: only those that finished so many days ago.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List orders: those in Error by default, which wait for you.

    \b
    sas list
    sas list --state running --workflow order
    sas list --state error --fingerprint pay/card-declined --acknowledge
    sas list --to finished.jsonl --older-than 30

    Orders in Error come with the longest wait first, those under way with the first due first, and
    finished ones with the newest first. Orders with one fingerprint (STEP/CODE) failed alike: one
    command changes them all (sas resubmit --state error --fingerprint STEP/CODE).

    FILE appears when it is complete: JSON, one finished order a line, the oldest first. The content
    may be personal: protect it. Nothing is removed.
    """
    if to is not None:
        if state or is_all or since or workflow or fingerprint or acknowledge:
            raise UsageError("--to writes all finished orders: it goes with --older-than only")
        days = timedelta(days=older_than or 0)
        run(partial(_export, name=to, age=days, as_json=as_json))
    if older_than is not None:
        raise UsageError("--older-than goes with --to FILE")
    if state and is_all:
        raise UsageError(f"--all lists every state, and --state {state} one: give one of the two")
    if (fingerprint or acknowledge) and (is_all or state not in {None, "error"}):
        option = "--fingerprint" if fingerprint else "--acknowledge"
        raise UsageError(f"{option} is for orders in Error: it goes with --state error")
    if fingerprint and not all(fingerprint.partition("/")):
        raise UsageError(f"--fingerprint {fingerprint!r}: give STEP/CODE, as sas list shows it")
    query = OrderQuery(
        state="all" if is_all else state or "error",
        workflow=workflow,
        fingerprint=fingerprint,
        limit=limit,
        since=options.moment(since) if since else None,
    )
    operator = options.operator(by) if acknowledge else ""
    run(partial(_list, query=query, operator=operator, as_json=as_json))


async def _list(system: LiveSystem, *, query: OrderQuery, operator: str, as_json: bool) -> int:
    store = await system.store()
    bus = await system.bus_if_any() if query.state == "rejected" else None
    order_list = await orders.list_of(store, bus, query, queues=system.queues, now=screen.now())
    if as_json:
        for row in order_list.rows:
            screen.say(row.line())
    else:
        _print_list(order_list, query)
        for line in _beside(await orders.beside(store, query.state, screen.now())):
            screen.sentence(line)
    if order_list.problem:
        screen.complain(f"sas: {order_list.problem}")
    if operator:
        return await _acknowledge(system, order_list.rows, operator)
    return 1 if order_list.problem else 0


def _print_list(order_list: OrderList, query: OrderQuery) -> None:
    rows = order_list.rows
    if rows:
        columns = {
            "Since": [time_of(row.since) for row in rows],
            "Order": [row.order_id for row in rows],
            "Workflow": [_workflow(row) for row in rows],
            "State": [row.process_state or "" for row in rows],
            "Step": [row.step for row in rows],
            "Why": [_why(row) for row in rows],
        }
        if query.state not in MIXED_STATES:
            del columns["State"]
        columns = {name: cells for name, cells in columns.items() if any(cells) or name == "Why"}
        screen.table(list(columns), zip(*columns.values(), strict=True), folds="Why")
    condition = CONDITIONS.get(query.state, query.state.capitalize())
    counts = (
        [f"{group.count:,} {group.fingerprint}" for group in order_list.groups[:10]]
        if query.state == "error"
        else [
            f"{count:,} {name or 'unreadable'}"
            for name, count in Counter(row.process_state for row in rows).items()
        ]
        if query.state in MIXED_STATES
        else []
    )
    number = order_list.failed_count if query.state == "error" else len(rows)
    title = f"{screen.count(number, 'order')} {condition}".rstrip()
    note = f" (the first {query.limit:,}; --limit shows more)" if order_list.is_cut else ""
    screen.sentence(title + (f": {', '.join(counts)}" if counts else "") + note)


def _workflow(row: OrderRow) -> str:
    return f"{row.workflow}/{row.version}" if row.version is not None else row.workflow or "-"


def _why(row: OrderRow) -> str:
    """Return why an order is in its state, until when, why it was undone, and who has seen it."""
    parts = [row.why]
    if row.until:
        parts.append(f"({phrase('until', row.until)})")
    if row.undone_because and row.undone_because not in row.why:
        parts.append(f"(undone: {row.undone_because})")
    if row.acknowledged_by:
        parts.append(f"(seen by {row.acknowledged_by})")
    return " ".join(part for part in parts if part)


def _beside(beside: Beside) -> Iterator[str]:
    """Yield what else there is, with the command that shows it."""
    counts = {
        "error": (beside.in_error, "in Error"),
        "running": (beside.under_way, "under way"),
        "finished": (beside.finished_lately, "finished in the last hour"),
    }
    others = {
        state: f"{number:,}{' or more' * (number == COUNTED_MAX)} {words}"
        for state, (number, words) in counts.items()
        if number
    }
    if others:
        options_text = f"--state {next(iter(others))}" if len(others) == 1 else "--all"
        yield f"{', '.join(others.values())}: sas list {options_text}"
    if beside.incidents:
        number = len(beside.incidents)
        verb = "incident is" if number == 1 else "incidents are"
        yield f"{number:,} {verb} active: {'; '.join(beside.incidents)}: sas status"


async def _acknowledge(system: LiveSystem, rows: Sequence[OrderRow], operator: str) -> int:
    """Note that an operator has seen that these orders are in Error; return the exit code."""
    intent = Intent(verb=Verb.ACKNOWLEDGE, by=operator)
    order_ids = [row.order_id for row in rows if row.acknowledged_by is None]
    loaded = await finding.load_all(await system.store(), order_ids)
    acts = [commands.act_on(order, intent) for order in loaded]
    run = await act.carry_out(ActPlan(intent=intent, acts=acts), system)
    problems = [result for result in run.results if result.problem]
    for result in problems:
        screen.complain(f"sas: order {result.order_id}: {result.problem}")
    number = screen.count(run.sent - len(problems), "order")
    screen.complain(f"{operator} has seen {number} in Error: it is in the journal")
    return 1 if problems else 0


async def _export(system: LiveSystem, *, name: str, age: timedelta, as_json: bool) -> int:
    store = await system.store()
    count = 0
    with _writing(name) as file:
        async for lines in orders.export_lines(store, screen.now() - age):
            file.writelines(f"{line}\n" for line in lines)
            count += len(lines)
    if as_json and name != "-":
        screen.say(to_line({"Exported": count, "File": name}))
    else:
        screen.complain(f"exported {screen.count(count, 'order')}")
    return 0


@contextmanager
def _writing(name: str) -> Iterator[TextIO]:
    """Open a file to write. The file gets its name only when it is complete."""
    if name == "-":
        with screen.written():
            yield sys.stdout
            sys.stdout.flush()
        return
    partial_file = Path(f"{name}.{os.getpid()}.part")
    try:
        with open(partial_file, "w", encoding="utf-8", opener=_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial_file.replace(name)
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial_file.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    """Open a file that only its owner can read, because the orders may hold personal data."""
    return os.open(path, flags, 0o600)


# -- sas show ---------------------------------------------------------------------------------


def show_order(
    order_id: options.OrderID,
    *,
    journal: Annotated[bool, typer.Option("--journal", help="Also print the journal.")] = False,
    as_json: options.Json = False,
    content: Annotated[
        bool,
        typer.Option("--content", help="With --json: also content and results (may be personal)."),
    ] = False,
    acknowledge: Annotated[
        bool,
        typer.Option("--acknowledge", help="Note that you have seen that the order is in Error."),
    ] = False,
    by: options.By = None,
    app: options.App = None,
) -> None:
    """Show one order: what it waits for, what you can do, its journal.

    \b
    sas show 10248
    sas show 10248 --journal
    sas show 10248 --json --content

    The queues are peeked for the message that the order waits for. For this you need the role
    Azure Service Bus Data Receiver on them; without it the rest is shown. An order that no function
    has stored yet, or that was rejected, is looked for in its queue.
    """
    if content and not as_json:
        raise UsageError("--content needs --json: the text shows no content")
    try:
        check_order_id(order_id)
    except ValueError as error:
        raise UsageError(str(error)) from None
    workflows = application.workflows_if_any(app)
    operator = options.operator(by) if acknowledge else ""

    async def show(system: LiveSystem) -> int:
        store = await system.store()
        order = await store.load(order_id)
        bus = await system.bus_if_any()
        if order is None:
            queued = await orders.queued(bus, system.queues, order_id)
            screen.say(queued.line()) if as_json else _print_queued(queued)
            return 0
        intent = Intent(verb=Verb.ACKNOWLEDGE, by=operator)
        if operator and (reason := commands.act_on(order, intent).problem):
            raise NotPossibleError(f"acknowledge of order {order_id} is not possible: {reason}")
        rows = await store.journal(order_id)
        story = await orders.explain(
            store,
            bus,
            order,
            rows,
            queues=system.queues,
            now=screen.now(),
            workflows=workflows,
        )
        if content:
            complete_order = await ClaimCheck(store).fetch_all(order)
            order = decode_order(complete_order, read_payload_codec(os.environ))
        if as_json:
            members = {"Story": story.story, "Waits": story.waits, "Acts": story.acts}
            screen.say(to_line(record_of(order, rows, content=content) | members))
        else:
            _print_story(story, journal=journal)
        if operator:
            return await _acknowledge(system, [orders.row_of(order, screen.now())], operator)
        return 0

    run(show)


def _print_queued(order: QueuedOrder) -> None:
    screen.sentence(f"{order.order_id} is {order.process_state}. {order.story}")
    rejected = order.process_state != orders.SUBMITTED
    screen.facts(
        [
            *_waits(order.waits),
            ("reason", order.reason or ""),
            ("rejected", time_of(order.rejected_at) if rejected else ""),
            ("from", order.source_queue or ""),
            ("correlation", order.correlation_id or ""),
        ]
    )


def _print_story(order: OrderStory, *, journal: bool) -> None:
    screen.sentence(f"{order.order_id} is {order.process_state}. {order.story}")
    screen.facts(_waits(order.waits))
    if order.acts:
        screen.say("")
        screen.table(
            ("You can",),
            [(act.command,) for act in order.acts],
            below=[[act.effect] for act in order.acts],
        )
    screen.say("")
    screen.facts(_head(order))
    screen.say("")
    screen.table(
        ("Step", "ProcessState", "FailureCount", "CompleteBy", "Undo"),
        [
            (
                step.name,
                step.process_state,
                str(step.failure_count),
                time_of(step.complete_by),
                step.undo or "-",
            )
            for step in order.steps
        ],
        below=[list(_below(step)) for step in order.steps],
    )
    screen.say("")
    if not journal:
        screen.sentence(
            f"Its journal has {screen.count(order.rows, 'row')}: "
            f"sas show {order.order_id} --journal"
        )
        return
    if order.rows_removed:
        screen.sentence(f"(journal rows 1 to {order.rows_removed} were removed)")
    screen.sentence(*(line for fold in order.journal for line in _journal_lines(fold)))


def _waits(waits: Waits) -> list[tuple[str, str]]:
    error = waits.last_error
    return [
        ("waits for", waits.awaited),
        (
            "step",
            f"{waits.step}, attempt {waits.attempt}, FailureCount {waits.failure_count}"
            if waits.step
            else "",
        ),
        ("agent", (waits.agent or f"not known: {application.HOW}") if waits.step else ""),
        ("circuit", _circuit(waits.circuit) if waits.agent else ""),
        ("message", _message(waits.message) if waits.message else ""),
        ("until", time_of(waits.at) if waits.at else ""),
        ("last error", _error(error) if error else ""),
        ("next call", phrase("by", waits.called_by) if waits.called_by else ""),
        ("then", waits.then),
        ("do", waits.todo or "nothing"),
    ]


def _message(message: AwaitedMessage) -> str:
    since = f", {time_of(message.since)}" if message.since else ""
    before = f", {message.before:,} before it" if message.before is not None else ""
    return f"{message.text}{since}{before}"


def _circuit(circuit: Circuit | None) -> str:
    if circuit is None or not circuit.is_open:
        return "closed: calls go out"
    until = f", {phrase('until', circuit.until)}" if circuit.until else ""
    why_open = f": {circuit.why}" if circuit.why else ""
    return f"{circuit.state} since {time_of(circuit.since)}{until}{why_open}"


def _error(error: StepError) -> str:
    attempt = f" (attempt {error.epoch}.{error.attempt}, {time_of(error.at)})" if error.at else ""
    return f"{error.code}: {error.message}{attempt}"


def _head(order: OrderStory) -> list[tuple[str, str]]:
    urgent = ", urgent" if order.urgent else ""
    correlation = f"correlation {order.correlation_id}"
    correlation = correlation if order.correlation_id else "no correlation id"
    return [
        ("workflow", f"{order.workflow} version {order.version}{urgent}"),
        ("submitted", time_of(order.submitted_at)),
        ("LockedBy", order.locked_by or "-"),
        ("CompleteBy", time_of(order.complete_by)),
        ("FailureCount", str(order.failure_count)),
        ("seq", str(order.seq)),
        ("answers to", f"{order.reply_queue}, {correlation}"),
        ("stopped", time_of(order.stopped_at) if order.stopped_at else ""),
        ("deadline", time_of(order.deadline) if order.deadline else ""),
        ("seen by", order.acknowledged_by or ""),
        ("undone", order.undone_because or ""),
    ]


def _below(step: orders.StepStory) -> Iterator[str]:
    """Yield the lines below a step: its error, the last attempt, what it waits for, its agent."""
    if step.error:
        yield f"{step.error.code}: {step.error.message}"
    if step.last_error:
        yield f"last error: {_error(step.last_error)}"
    if step.awaited:
        yield f"waits for: {step.awaited}"
    if step.locked_by:
        yield f"LockedBy {step.locked_by}"
    if step.route:
        yield f"with agent number {step.route + 1} of the step"


def _journal_lines(fold: Fold) -> Iterator[str]:
    """Yield a row of the journal with its messages, or one line for all rows of a long wait."""
    row, last = fold.rows[0], fold.rows[-1]
    start = f"{row.seq:>4}  {row.at:%Y-%m-%d %H:%M:%S}.{row.at.microsecond // 1000:03}Z"
    if fold.is_run:
        extent = f"to {last.seq}, over {spelled(last.at - row.at)}"
        yield f"{start}  {len(fold.rows):,} rows: {fold.words}  {extent}"
        return
    reason = f": {row.reason}" if row.reason else ""
    changes = f"  {', '.join(row.changes)}" if row.changes else ""
    yield f"{start}  {row.what:<16} by {row.by}{reason}{changes}"
    for message in row.messages:
        until = f", {phrase('by', message.complete_by)}" if message.complete_by else ""
        yield f"        -> {message.text}{until}"
