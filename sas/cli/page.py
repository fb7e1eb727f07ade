"""One order on a page for people: the roll-up, its steps, its journal, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from sas.cli.output import one_line
from sas.domain.messages import Alert, JournalEntry, Notify, Outgoing, Request, Wake
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState

FIELDS = ("Step", "ProcessState", "FailureCount", "LockedBy", "CompleteBy", "Undo")


def lines(order: Order, journal: Sequence[JournalEntry], now: datetime) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _head(order)
    yield ""
    yield from _steps(order.steps)
    yield ""
    if journal and journal[0].seq > 1:
        yield f"(journal rows 1 to {journal[0].seq - 1} were removed)"
    for entry in journal:
        yield from _entry(order, entry)
    yield ""
    yield "next: " + one_line(advice(order, now))


def time_of(moment: datetime | None) -> str:
    """Return a moment for people, in UTC."""
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def orders(count: int) -> str:
    """Return how many orders, in words."""
    return {0: "no order", 1: "1 order"}.get(count, f"{count:,} orders")


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines whose columns stand below each other; foreign text does no harm."""
    safe = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*safe, strict=True)]
    for row in safe:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def is_failed(step: StepRecord) -> bool:
    """Return whether a step is in Error."""
    return step.process_state is StepState.ERROR


def advice(order: Order, now: datetime) -> str:
    """Return what an operator does next, in one sentence."""
    name = order.order_id
    match order.process_state:
        case OrderState.REJECTED:
            return "nothing of it was begun; the application submits it again, put right."
        case OrderState.PROCESSED:
            return f"nothing to do; `sas undo {name}` would undo all of it."
        case OrderState.COMPENSATED:
            return "nothing to do: all of it is undone; it cannot be run again under this id."
        case OrderState.ERROR:
            return _after_failure(order)
        case _:
            return _while_under_way(order, now)


def _after_failure(order: Order) -> str:
    failed = next(step for step in order.steps if is_failed(step))
    name, step = order.order_id, failed.name
    if failed.undo_failed:
        where = "" if failed.direction is Direction.UNDO else " at an agent asked before"
        return (
            f"the undo of {step}{where} failed: put right what its error says, then "
            f"`sas resubmit {name}` tries the undo again, or `sas skip {name} --step {step}` once "
            "it is undone by hand."
        )
    return (
        f"put right what the error of {step} says, then `sas resubmit {name}`; or "
        f"`sas skip {name} --step {step}` if it was done by hand; or `sas undo {name}`."
    )


def _while_under_way(order: Order, now: datetime) -> str:
    turns = [step for step in order.steps if step.complete_by is not None]
    if not turns:
        return "it waits for no step: report this as a bug, with this page."
    step = min(turns, key=lambda one: one.complete_by or now)
    until = time_of(step.complete_by)
    if step.complete_by is not None and step.complete_by < now:
        return (
            f"{step.name} was due at {until} and the supervisor has not looked yet: if this stays "
            "so for a minute, check that the function app runs."
        )
    if step.resting:
        return f"nothing to do: {step.name} rests until {until}, then it is tried again."
    if step.dispatched:
        return f"nothing to do: {step.name} is with its agent, who has until {until}."
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


def _steps(steps: Sequence[StepRecord]) -> Iterator[str]:
    rows = table([FIELDS, *(_row(step) for step in steps)])
    for row, step in zip(rows, (None, *steps), strict=True):
        yield row
        if step is not None and step.error is not None:
            yield one_line(f"    {step.error.code}: {step.error.message}")
        if step is not None and (asked := _asked(step)):
            yield f"    {asked}"
        if step is not None and step.note is not None:
            yield one_line(f"    {step.note}")


def _asked(step: StepRecord) -> str:
    """Return which of several agents a step is with, where that is not simply the first."""
    at = [f"with its agent number {step.call.route + 1}"] if step.call.route else []
    others = [str(route + 1) for route in step.undo.routes if route != step.call.route]
    if others:
        at.append(f"to be undone at its agent number {', '.join(others)} too")
    return ", ".join(at)


def _row(step: StepRecord) -> tuple[str, ...]:
    return (
        step.name,
        step.process_state.value + (" (resting)" if step.resting else ""),
        str(step.failure_count),
        step.locked_by or "-",
        time_of(step.complete_by),
        step.undo.status.value,
    )


def _entry(order: Order, entry: JournalEntry) -> Iterator[str]:
    at = entry.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    yield one_line(f"{entry.seq:>4}  {at}  {entry.what:<16} by {entry.by}")
    for message in entry.messages:
        yield one_line(f"        -> {sent(order, message)}")


def sent(order: Order, message: Outgoing) -> str:
    """Return what a journal row had sent, in a few words."""
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
            return f"tell the application: {message.notice.value}{of}{why}"
        case Alert():
            return f"alert {message.alert.value}: {message.text}"


def _name(order: Order, number: int) -> str:
    known = 0 <= number < len(order.steps)
    return order.steps[number].name if known else f"step {number}"
