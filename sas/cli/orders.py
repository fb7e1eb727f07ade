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
from sas.cli.options import value
from sas.cli.screen import phrase, time_of
from sas.cli.status import circuit_words
from sas.cli.system import LiveSystem, run
from sas.codec.payloads import decode_order
from sas.codec.record import to_line
from sas.config import read_payload_codec
from sas.domain.messages import Verb
from sas.domain.order import Order
from sas.domain.texts import command
from sas.features.claim_check import ClaimCheck
from sas.operate import commands, finding, lists, orders
from sas.operate.commands import ActPlan, Intent
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.finding import OrderQuery
from sas.operate.journal import Fold
from sas.operate.lists import OrderList
from sas.operate.orders import OrderStory, QueuedOrder, StepStory
from sas.operate.rows import UNTOLD, OrderRow
from sas.operate.status import ENDED_MAX, IN_ERROR, SystemStatus
from sas.operate.why import AwaitedMessage, Circuit, StepError, Waits, spelled

State = Literal["error", "running", "finished", "processed", "compensated", "rejected"]
Acknowledge = Annotated[
    bool, typer.Option("--acknowledge", help="Note that you have seen that it is in Error.")
]
MIXED_STATES = {"all", "running", "finished"}
"""Lists of these have a column with the state of each order."""
CONDITIONS = {"error": "in Error", "running": "under way", "finished": "finished", "all": ""}

# -- sas list ---------------------------------------------------------------------------------


def list_orders(  # noqa: PLR0913  one for each option
    *,
    state: Annotated[
        State | None,
        value("STATE", "error (default), running, finished, processed, compensated or rejected."),
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Orders in every state, those in Error first.")
    ] = False,
    since: options.Since = None,
    workflow: Annotated[str | None, value("NAME", "Only orders of this workflow.")] = None,
    fingerprint: Annotated[
        str | None, value("STEP/CODE", "Only orders that failed in this way.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="At most so many of a state.")
    ] = 50,
    as_json: options.Json = False,
    acknowledge: Acknowledge = False,
    by: options.By = None,
    to: Annotated[
        str | None,
        value("FILE", "Write all finished orders with content and journal to FILE (- is stdout)."),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            min=0,
            max=36_500,
            help="With --to: only those that finished so many days ago.",
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
        run(partial(_export, name=to, age=timedelta(days=older_than or 0), as_json=as_json))
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
    bus = await system.bus_if_any() if query.state in lists.READS_QUEUE else None
    answer = await lists.list_of(store, bus, query, queues=system.queues, now=screen.now())
    if as_json:
        for row in answer.rows:
            screen.say(row.line())
    else:
        _print_list(answer, query)
        for line in _others(answer.status, query.state):
            screen.sentence(line)
    if answer.problem:
        screen.complain(f"sas: {answer.problem}")
    if operator:
        order_ids = [row.order_id for row in answer.rows if row.acknowledged_by is None]
        return await _acknowledge(system, order_ids, operator)
    return 1 if answer.problem else 0


def _print_list(answer: OrderList, query: OrderQuery) -> None:
    rows, is_mixed = answer.rows, query.state in MIXED_STATES
    if rows:
        columns = {
            "Since": [time_of(row.since) for row in rows],
            "Order": [screen.order_name(row.order_id) for row in rows],
            "Workflow": [_workflow(row) for row in rows],
            "State": [row.process_state or "" for row in rows if is_mixed],
            "Step": [row.step for row in rows],
            "Why": [_why(row) for row in rows],
        }
        columns = {name: cells for name, cells in columns.items() if any(cells) or name == "Why"}
        screen.table(list(columns), zip(*columns.values(), strict=True), folds="Why")
    number, counts = len(rows), Counter[str]()
    if query.state == "error":
        number = answer.failed_count
        counts.update({group.fingerprint: group.count for group in answer.groups})
    elif is_mixed:
        counts.update(row.process_state or "unreadable" for row in rows)
    condition = CONDITIONS.get(query.state, query.state.capitalize())
    title = f"{screen.count(number, 'order')} {condition}".rstrip()
    words = f": {finding.in_words(counts)}" if counts else ""
    more = f" (the first {query.limit:,}; --limit shows more)" if answer.is_cut else ""
    screen.sentence(f"{title}{words}{more}")
    names = [group.fingerprint for group in answer.groups if group.count > 1]
    if names and names[0] != UNTOLD:
        line = command("sas resubmit --fingerprint", names[0])
        if line:
            screen.sentence(f"If their cause is repaired: {line}")


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


def _others(status: SystemStatus, state: str) -> Iterator[str]:
    """Yield what else there is, with the command that shows it."""
    ended_count = sum(status.ended.values())
    more = " or more" if ended_count >= ENDED_MAX else ""
    texts: dict[str, tuple[int, str]] = {
        "error": (status.in_error, f"{status.in_error:,} in Error"),
        "running": (status.under_way, f"{status.under_way:,} under way"),
        "finished": (ended_count, f"{ended_count:,}{more} finished in the last hour"),
    }
    texts.pop(state if state in {"error", "running"} else "finished")
    others = {name: text for name, (count, text) in texts.items() if count}
    if others and state != "all":
        options_text = f"--state {next(iter(others))}" if len(others) == 1 else "--all"
        line = command("sas list", options=options_text)
        yield f"{', '.join(others.values())}: {line}"
    problems = [problem for problem in status.problems if problem.about != IN_ERROR]
    if problems:
        things = screen.count(len(problems), "thing is", "things are")
        yield f"{things} wrong: {' '.join(problem.text for problem in problems)} See sas status"


async def _acknowledge(system: LiveSystem, order_ids: Sequence[str], operator: str) -> int:
    """Note that an operator has seen that these orders are in Error; return the exit code."""
    intent = Intent(verb=Verb.ACKNOWLEDGE, by=operator)
    unreadable: dict[str, str] = {}
    loaded = await finding.load_all(await system.store(), order_ids, unreadable)
    acts = [commands.act_on(order, intent) for order in loaded]
    acts += commands.unread(unreadable, intent)
    possible_acts = [order_act for order_act in acts if not order_act.problem]
    run = await act.carry_out(ActPlan(intent=intent, acts=possible_acts), system)
    problems = [result for result in (*acts, *run.results) if result.problem]
    for result in problems:
        screen.complain(f"sas: order {result.order_id}: {result.problem}")
    number = screen.count(sum(not result.problem for result in run.results), "order")
    screen.complain(f"{operator} has seen {number} in Error: it is in the journal")
    return 1 if problems else 0


async def _export(system: LiveSystem, *, name: str, age: timedelta, as_json: bool) -> int:
    store = await system.store()
    count = 0
    with _writing(name) as file:
        async for lines in lists.export_lines(store, screen.now() - age):
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
    """Make a file that only its owner can read, because the orders may hold personal data.

    One that is there already is refused: another user may have made it, to read it.
    """
    return os.open(path, flags | os.O_EXCL, 0o600)


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
    acknowledge: Acknowledge = False,
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
    workflows = application.workflows_if_any(app)
    operator = options.operator(by) if acknowledge else ""

    async def show(system: LiveSystem) -> int:
        store = await system.store()
        bus = await system.bus_if_any()
        try:
            order = await finding.load(store, order_id)
        except NotPossibleError:
            queued = await orders.queued(bus, system.queues, order_id)
            if as_json:
                screen.say(queued.line())
            else:
                _print_waits(order_id, queued.process_state, queued)
            return 0
        if operator:  # it is refused before anything is printed
            await commands.plan_one(store, order_id, Intent(verb=Verb.ACKNOWLEDGE, by=operator))
        story = await orders.explain(
            store,
            bus,
            order,
            await store.journal(order_id),
            queues=system.queues,
            now=screen.now(),
            workflows=workflows,
        )
        if as_json:
            whole = await ClaimCheck(store).fetch_all(order) if content else None
            screen.say(story.line(whole and decode_order(whole, read_payload_codec(os.environ))))
        else:
            _print_story(story, journal=journal)
        return await _acknowledge(system, [order_id], operator) if operator else 0

    run(show)


def _print_waits(order_id: str, state: str, answer: OrderStory | QueuedOrder) -> None:
    """Print what happened to an order, and what it waits for."""
    screen.sentence(f"{screen.order_name(order_id)} is {state}. {answer.story}")
    screen.facts(_waits(answer.waits))


def _print_story(story: OrderStory, *, journal: bool) -> None:
    order = story.order
    _print_waits(order.order_id, order.process_state.value, story)
    if story.acts:
        screen.say("")
        screen.table(
            ("You can",),
            [(act.command or act.verb,) for act in story.acts],
            below=[[act.effect] for act in story.acts],
        )
    screen.say("")
    screen.facts(_head(order))
    screen.say("")
    screen.table(
        ("Step", "ProcessState", "FailureCount", "CompleteBy", "Undo"),
        [
            (
                step.name,
                step.process_state.value,
                str(step.failure_count),
                time_of(step.complete_by),
                step.undo.value,
            )
            for step in order.steps
        ],
        below=[list(_below(step, story.waits)) for step in story.steps],
    )
    screen.say("")
    if not journal:
        rows = screen.count(len(story.journal), "row")
        line = command("sas show", order.order_id, options="--journal")
        screen.sentence(f"Its journal has {rows}: {line or '--journal'}")
        return
    if story.rows_removed:
        screen.sentence(f"(journal rows 1 to {story.rows_removed} were removed)")
    screen.sentence(*(line for fold in story.folds for line in _journal_lines(fold)))


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
    return f"{circuit_words(circuit)}: {circuit.why}"


def _error(error: StepError) -> str:
    attempt = f" (attempt {error.epoch}.{error.attempt}, {time_of(error.at)})" if error.at else ""
    return f"{error.code}: {error.message}{attempt}"


def _head(order: Order) -> list[tuple[str, str]]:
    details = order.details
    correlation = f"correlation {details.correlation_id}"
    correlation = correlation if details.correlation_id else "no correlation id"
    return [
        (
            "workflow",
            f"{details.workflow} version {details.version}{', urgent' * details.urgent}",
        ),
        ("submitted", time_of(details.submitted_at)),
        ("LockedBy", order.locked_by or "-"),
        ("CompleteBy", time_of(order.complete_by)),
        ("FailureCount", str(order.failure_count)),
        ("seq", str(order.seq)),
        ("answers to", f"{details.reply_queue}, {correlation}"),
        ("stopped", time_of(order.stopped_at) if order.stopped_at else ""),
        ("deadline", time_of(order.deadline) if order.deadline else ""),
        ("seen by", order.acknowledged_by or ""),
        ("undone", order.undone_because or ""),
    ]


def _below(step: StepStory, waits: Waits) -> Iterator[str]:
    """Yield the lines below a step: its error, the last attempt, its agent, and what it waits for,
    unless that is what the order waits for.
    """
    record = step.record
    if record.error:
        yield f"{record.error.code}: {record.error.message}"
    if step.last_error:
        yield f"last error: {_error(step.last_error)}"
    if step.waits and record.name != waits.step:
        yield f"waits for: {step.waits.awaited}"
    if record.locked_by:
        yield f"LockedBy {record.locked_by}"
    if record.call.route:
        yield f"with agent number {record.call.route + 1} of the step"


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
        yield f"        -> {message}"
