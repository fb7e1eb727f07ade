"""``sas list``, ``sas show`` and ``sas export``: what became of orders."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from sas.cli import arguments as args
from sas.cli import health, output, selection
from sas.cli.arguments import Verb, Work
from sas.cli.output import one_line, time_of
from sas.codec.outward import RejectedMessage
from sas.codec.record import record_of, to_line
from sas.config import read_queues
from sas.domain.ids import key_time, parse_key_time
from sas.domain.messages import (
    Alert,
    JournalEntry,
    Notify,
    Outgoing,
    Request,
    StepChange,
    Wake,
)
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues
from sas.features.claim_check import ClaimCheck
from sas.operate import finding, letters
from sas.operate.errors import NotPossibleError, UnavailableError, UsageError
from sas.operate.finding import STATES, Wanted, is_failed
from sas.operate.why import Fold, folded, spelled
from sas.ports import MessageBus, StateStore, Summary

Record = dict[str, Any]

# -- sas list ---------------------------------------------------------------------------------

LIST = """\
List orders: of those that wait the longest waiting first, of those that ended the newest first. The
state is one of

  error        waiting for an operator (the default); with the step, its error, its fingerprint
  running      under way: a step is ready, with its agent, being undone, or resting; the first due
               first
  finished     processed, compensated (undone) or rejected; or one of these alone
  rejected     never begun: also those on the queue orders-rejected, where a namespace is configured

A fingerprint is STEP/CODE. Orders with the same fingerprint failed alike; one command can change
them all (sas resubmit --state error --fingerprint STEP/CODE).

  sas list
  sas list --state processed --since 1h --limit 10 --json
"""


def _add_list(parser: argparse.ArgumentParser) -> None:
    selection.add_arguments(parser, STATES, default="error", limit=50)
    args.add_json(parser)
    args.add_connection(parser)


def _list(arguments: argparse.Namespace) -> Work:
    wanted = selection.read(arguments) or Wanted("error")
    if wanted.state in {"error", "running"}:
        return partial(_list_loaded, wanted=wanted, as_json=arguments.json)
    return partial(_list_finished, arguments, wanted)


async def _list_loaded(store: StateStore, wanted: Wanted, *, as_json: bool) -> int:
    found, failures = 0, Counter[str]()
    async for order in finding.each(store, wanted):
        found += 1
        failures.update(finding.fingerprints(order))
        if found == 1 and not as_json:
            output.say(_heading("Why"))
        record = record_of(order, (), content=False)
        output.say(to_line(record) if as_json else _list_line(order))
    if as_json:
        return 0
    what = "in Error" if wanted.state == "error" else "under way"
    _list_end(f"{output.orders(found)} {what}", finding.in_words(failures), found, wanted.limit)
    await _check_workflow(store, wanted, found)
    if active := await health.incidents(store):
        kinds = ", ".join(sorted({one.kind.value for one in active}))
        output.say(f"incidents of the system: {kinds}; see `sas incidents`")
    return 0


async def _list_finished(arguments: argparse.Namespace, wanted: Wanted, store: StateStore) -> int:
    found = [(one.at, _finished_record(one)) for one in await _finished_in_store(store, wanted)]
    problem = ""
    if wanted.state == "rejected" and wanted.workflow is None:
        parts, problem = await _rejected_in_queue(arguments, wanted)
        known = {record["OrderID"] for _, record in found}
        found += [(at, record) for at, record in parts if record["OrderID"] not in known]
        found = sorted(found, key=lambda one: one[0], reverse=True)[: wanted.limit]
    if found and not arguments.json:
        output.say(_heading("Why"))
    for at, record in found:
        output.say(to_line(record) if arguments.json else _finished_line(at, record))
    if not arguments.json:
        states = finding.in_words(Counter(str(record["ProcessState"]) for _, record in found))
        _list_end(f"{output.orders(len(found))} finished", states, len(found), wanted.limit)
        await _check_workflow(store, wanted, len(found))
    if problem:
        output.complain(f"sas: {output.one_line(problem)}")
    return 1 if problem else 0


async def _finished_in_store(store: StateStore, wanted: Wanted) -> list[Summary]:
    return await finding.newest_finished(store, wanted, output.now())


async def _rejected_in_queue(
    arguments: argparse.Namespace, wanted: Wanted
) -> tuple[list[tuple[datetime, Record]], str]:
    """Return the rejected orders on their queue, or why it was not read."""
    async with args.open_bus_if_any(arguments) as bus:
        queues = read_queues(os.environ)
        if bus is None:
            return [], (
                f"no Service Bus namespace is configured: orders on {queues.rejected} are not "
                "shown (--connection)"
            )
        read = await letters.read(bus, [queues.rejected])
    parts = (part for _, part in letters.rejected_orders(read.letters))
    found = [(parse_key_time(part.at), rejected_record(part)) for part in parts]
    first = wanted.since
    return (
        [one for one in found if first is None or one[0] >= first],
        read.problems.get(queues.rejected, ""),
    )


async def _check_workflow(store: StateStore, wanted: Wanted, found: int) -> None:
    """Say that a workflow is unknown: its name may be mistyped.

    Raises:
        NotPossibleError: nothing was found, and the table remembers other workflows only.
    """
    if found or wanted.workflow is None:
        return
    values = await store.shared_values("workflow-")
    known = {name.removeprefix("workflow-").rpartition("-")[0] for name in values}
    if known and wanted.workflow not in known:
        raise NotPossibleError(
            f"no workflow {wanted.workflow!r} ever ran here: known are {', '.join(sorted(known))}"
        )


def _list_end(said: str, parts: str, found: int, limit: int) -> None:
    more = f" (the first {limit:,}; --limit shows more)" if found == limit else ""
    output.say((f"{said}: {parts}" if parts else said) + more)


def _heading(last: str) -> str:
    return output.row((f"{'Since':<20}", f"{'Order':<20}", f"{'Workflow':<18}", "State", last))


def _list_line(order: Order) -> str:
    parts = [
        f"{time_of(finding.since(order)):<20}",
        f"{order.order_id:<20}",
        f"{f'{order.details.workflow}/{order.details.version}':<18}",
        order.process_state.value,
    ]
    parts += [
        f"{finding.fingerprint(step)}: {step.error.message}"
        for step in order.steps
        if step.error and is_failed(step)
    ]
    if order.undone_because:
        parts.append(f"(undone: {order.undone_because})")
    if order.acknowledged_by:
        parts.append(f"(seen by {order.acknowledged_by})")
    return output.row(parts)


def _finished_line(at: datetime, record: Record) -> str:
    name, workflow = record["OrderID"], record.get("Workflow") or "-"
    parts = [f"{time_of(at):<20}", f"{name:<20}", f"{workflow:<18}", str(record["ProcessState"])]
    if said := record.get("Description"):
        parts.append(f"{record['Reason']}: {said}")
    if because := record.get("UndoneBecause"):
        parts.append(str(because))
    return output.row(parts)


def _finished_record(one: Summary) -> Record:
    return {
        "OrderID": one.order_id,
        "ProcessState": one.process_state.value,
        "SettledAt": key_time(one.at),
        "Workflow": one.workflow,
        "UndoneBecause": one.undone_because,
    }


# -- sas show ---------------------------------------------------------------------------------

SHOW = """\
Show one order: its state, its steps with their errors and undos, its journal (when, what, by whom,
why, which steps changed, which messages were sent), and what to do next. Many rows of waiting are
one row with their count; --json has them all.

  sas show 10248
  sas show 10248 --last 5
  sas show 10248 --json --content
"""
FIELDS = ("Step", "ProcessState", "FailureCount", "LockedBy", "CompleteBy", "Undo")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("order_id", metavar="ORDER_ID")
    args.add_connection(parser)
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
            order = await ClaimCheck(store).fetch_all(order)
        if arguments.json:
            rows = journal[-last:] if last else journal
            output.say(to_line(record_of(order, rows, content=arguments.content)))
        else:
            for line in page(order, journal, output.now(), last):
                output.say(line)
        return 0

    return show


async def _load(arguments: argparse.Namespace, store: StateStore) -> Order | None:
    """Return the order; None if it was rejected at the door, and that was shown.

    Raises:
        UsageError, NotPossibleError: no order can have this id, or none has it.
        UnavailableError: whether it was rejected cannot be read.
    """
    order_id: str = arguments.order_id
    try:
        return await finding.load(store, order_id)
    except NotPossibleError:
        async with args.open_bus_if_any(arguments) as bus:
            part = await rejected_part(bus, read_queues(os.environ), order_id)
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
        ("next", f"correct it and submit it again, or `sas rejected resend {part.id}`"),
    )
    for line in output.facts(facts):
        output.say(line)
    return None


def page(
    order: Order, journal: Sequence[JournalEntry], now: datetime, last: int = 0
) -> Iterator[str]:
    """Yield the lines of one order's page, with the last rows of its journal (0: with all).

    Many rows of waiting are one row with their count.
    """
    yield from _head(order)
    yield ""
    yield from output.table(
        FIELDS, [_row(step) for step in order.steps], [_below(step) for step in order.steps]
    )
    yield ""
    if journal and journal[0].seq > 1:
        yield f"(journal rows 1 to {journal[0].seq - 1} were removed)"
    folds = folded(journal)
    shown = folds[-last:] if last else folds
    if len(shown) < len(folds):
        yield f"(the last {len(shown):,} of {len(folds):,} rows; without --last all are shown)"
    for fold in shown:
        yield from _run(fold) if fold.is_run else _entry(order, fold.entries[0])
    yield ""
    yield "next: " + one_line(advice(order, now))


def advice(order: Order, now: datetime) -> str:
    """Return what an operator does next, in one sentence."""
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
    failed = next(step for step in order.steps if is_failed(step))
    name, step = order.order_id, failed.name
    if failed.undo_failed:
        where = "" if failed.direction is Direction.UNDO else " at an earlier agent"
        return (
            f"the undo of {step}{where} failed: repair what its error says, then "
            f"`sas resubmit {name}` tries the undo again, or `sas skip {name} --step {step}` "
            "after you undid it by hand."
        )
    return (
        f"repair what the error of {step} says, then `sas resubmit {name}`; or "
        f"`sas skip {name} --step {step}` if you did the step by hand; or `sas undo {name}`."
    )


def _while_under_way(order: Order, now: datetime) -> str:
    open_steps = [step for step in order.steps if step.complete_by is not None]
    if not open_steps:
        return "no step is open: report this as a bug, with this page."
    step = min(open_steps, key=lambda one: one.complete_by or now)
    until = time_of(step.complete_by)
    if step.complete_by is not None and step.complete_by < now:
        return (
            f"{step.name} was due at {until} and the supervisor has not looked at it yet: if this "
            "lasts longer than a minute, check that the function app runs."
        )
    if step.resting:
        then = "undone" if step.direction is Direction.UNDO else "tried again"
        return f"nothing to do: {step.name} rests until {until}, then it is {then}."
    if step.dispatched:
        return f"nothing to do: {step.name} is with its agent, which has until {until}."
    return f"nothing to do: {step.name} is ready; a scheduler claims it by {until}."


def _head(order: Order) -> Iterator[str]:
    details = order.details
    yield one_line(f"order {order.order_id}  {order.process_state.value}  (seq {order.seq})")
    urgent = ", urgent" if details.urgent else ""
    yield f"  workflow      {details.workflow} version {details.version}{urgent}"
    yield f"  submitted     {time_of(details.submitted_at)}"
    yield f"  LockedBy      {one_line(order.locked_by or '-')}"
    yield f"  CompleteBy    {time_of(order.complete_by)}"
    yield f"  FailureCount  {order.failure_count}"
    own = f"correlation {details.correlation_id}" if details.correlation_id else "no correlation id"
    yield one_line(f"  answers to    {details.reply_queue}, {own}")
    if order.settled_at is not None:
        yield f"  settled       {time_of(order.settled_at)}"
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
        step.undo.status.value,
    )


def _below(step: StepRecord) -> list[str]:
    """Return the lines below a step: its error, when it is tried again, its agents, progress."""
    said = [f"{step.error.code}: {step.error.message}"] if step.error else []
    last, ended = step.last_error, {StepState.PROCESSED, StepState.COMPENSATED}
    if last is not None and step.process_state not in ended:
        where = f"epoch {last.epoch}, attempt {last.attempt}, {time_of(last.at)}"
        said.append(f"last error ({where}): {last.kind}: {last.message}")
    if step.resting:
        then = "undone" if step.direction is Direction.UNDO else "tried again"
        said.append(f"resting until {time_of(step.complete_by)}, then it is {then}")
    if step.call.route:
        said.append(f"with agent number {step.call.route + 1} of the step")
    others = [str(route + 1) for route in step.undo.routes if route != step.call.route]
    if others:
        said.append(f"to be undone at agent number {', '.join(others)} too")
    return [*said, step.note] if step.note else said


def _entry(order: Order, entry: JournalEntry) -> Iterator[str]:
    why = f": {entry.reason}" if entry.reason else ""
    said = [f"{entry.seq:>4}", _exactly(entry.at), f"{entry.what:<16} by {entry.by}{why}"]
    if entry.changes:
        said.append(", ".join(_change(order, one) for one in entry.changes))
    yield output.row(said)
    for message in entry.messages:
        yield one_line(f"        -> {_sent(order, message)}")


def _run(fold: Fold) -> Iterator[str]:
    """Yield the one row for many rows of waiting."""
    first, last = fold.entries[0], fold.entries[-1]
    took = f"to {last.seq}, over {spelled(last.at - first.at)}"
    count = f"{len(fold.entries):,} rows: {fold.words}"
    yield output.row((f"{first.seq:>4}", _exactly(first.at), count, took))


def _exactly(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _change(order: Order, one: StepChange) -> str:
    edited = " with its input edited" if one.edited else ""
    same = one.before is one.after
    states = one.after.value if same else f"{one.before.value} -> {one.after.value}"
    return f"{_name(order, one.step)}: {states}{edited}"


def _sent(order: Order, message: Outgoing) -> str:
    """Return which message a journal row sent, in a few words."""
    match message:
        case Wake():
            return "wake a scheduler"
        case Request():
            what = f"{message.direction.value} {_name(order, message.step)}"
            by = time_of(message.complete_by)
            agent = f", agent number {message.route + 1}" if message.route else ""
            return f"request: {what}, epoch {message.epoch}, by {by}{agent}"
        case Notify():
            of = f" {_name(order, message.step)}" if message.step is not None else ""
            why = f" ({message.fault.code})" if message.fault else ""
            return f"notify the application: {message.notice.value}{of}{why}"
        case Alert():
            return f"alert {message.alert.value}: {message.text}"


def _name(order: Order, step: int) -> str:
    return order.steps[step].name if 0 <= step < len(order.steps) else f"step {step}"


# -- Rejected orders --------------------------------------------------------------------------


async def rejected_part(
    bus: MessageBus | None, queues: Queues, order_id: str
) -> RejectedMessage | None:
    """Return the newest rejected message of an order, if one lies on ``orders-rejected``.

    Raises:
        UnavailableError: the queue cannot be read.
    """
    if bus is None:
        return None
    found = await letters.read(bus, [queues.rejected])
    if found.problems:
        raise UnavailableError(
            f"there is no order {order_id!r} in the table, and whether it was rejected is not "
            f"known: {found.problems[queues.rejected]}"
        )
    parts = letters.rejected_orders(found.letters)
    return next((part for _, part in parts if part.order_id == order_id), None)


def rejected_record(part: RejectedMessage) -> Record:
    """Return a rejected order as one JSON object. Its body may be personal, and is left out."""
    return {
        "OrderID": part.order_id,
        "ProcessState": OrderState.REJECTED.value,
        "SettledAt": part.at,
        "CorrelationID": part.correlation_id,
        "Reason": part.reason,
        "Description": part.description,
        "SourceQueue": part.source_queue,
        "MessageId": part.id,
    }


# -- sas export -------------------------------------------------------------------------------

EXPORT = """\
Write finished orders (processed, compensated, rejected) with their content and their journals, one
JSON object a line, the oldest first. FILE appears when it is complete; - writes to stdout at once.
Nothing is removed. The content may be personal: protect the file.

  sas export --older-than 30 finished.jsonl
"""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file to write; - for stdout")
    parser.add_argument(
        "--older-than",
        type=args.number("days", 0, 36_500),
        default=0.0,
        metavar="DAYS",
        help="only orders that finished at least so many days ago (default: all)",
    )


def _export(arguments: argparse.Namespace) -> Work:
    until = output.now() - timedelta(days=arguments.older_than)

    async def export(store: StateStore) -> int:
        count = 0
        with _writing(arguments.file) as file:
            async for orders in _finished(store, until):
                lines = await asyncio.gather(*(_export_line(store, one, until) for one in orders))
                found = [line for line in lines if line is not None]
                file.writelines(f"{line}\n" for line in found)
                count += len(found)
        output.complain(f"exported {output.orders(count)}")
        return 0

    return export


async def _export_line(store: StateStore, order: Order, until: datetime) -> str | None:
    """Return an order as a line; None if it was purged or is under way again by now."""
    while True:
        journal = await store.journal(order.order_id)
        line = to_line(record_of(await ClaimCheck(store).fetch_all(order), journal, content=True))
        now = await store.load(order.order_id)
        if now is None or not _ended(now, until):
            return None
        if now.token == order.token:
            return line
        order = now


async def _finished(store: StateStore, until: datetime) -> AsyncIterator[Sequence[Order]]:
    """Yield finished orders, a few at a time: their content is read at once."""
    async for batch in finding.summaries(store, in_error=False, until=until):
        ids = [one.order_id for one in batch]
        for start in range(0, len(ids), finding.CONCURRENT):
            loaded = await finding.load_all(store, ids[start : start + finding.CONCURRENT])
            yield [order for order in loaded if _ended(order, until)]


def _ended(order: Order, until: datetime) -> bool:
    in_error = order.process_state is OrderState.ERROR
    return order.settled_at is not None and order.settled_at <= until and not in_error


@contextmanager
def _writing(name: str) -> Iterator[TextIO]:
    """Open a file to write. It gets its name when it is complete."""
    if name == "-":
        with output.written():
            yield sys.stdout
            sys.stdout.flush()
        return
    part = Path(f"{name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(name)
    except OSError as wrong:
        raise UsageError(f"cannot write {name}: {wrong.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    """Open a file that only its owner can read: the content may be personal."""
    return os.open(path, flags, 0o600)


VERBS = (
    Verb.with_store(
        "list", "list orders in Error (or under way, or finished)", LIST, _add_list, _list
    ),
    Verb.with_store(
        "show", "show one order: steps, journal, what to do next", SHOW, _add_show, _show
    ),
    Verb.with_store("export", "write finished orders to a file", EXPORT, _add_export, _export),
)
