"""The commands of an operator: say what a command would do, send it, and wait for its result.

A command is a message to the scheduler. Nobody replies to the sender, so the sender reads the
result from the table:

1. The scheduler carried the command out: the journal has a row whose cause is the command. If the
   row says ``fenced``, the command became a dead letter, and it was not carried out.
2. The scheduler refused the command: no row has this cause. The scheduler keeps the last reasons of
   refusals for some time (``CommandAnswers``).
3. The order has another seq than the command names: the scheduler refuses such a command. The
   journal tells what changed, even if the reason of the refusal is not kept any more.
4. None of these is true yet: the command waits in its queue, or the scheduler is handling it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sas.bounds import EDITED_UNITS_MAX, utf16_units
from sas.codec import internal
from sas.codec.internal import REASON_LENGTH_MAX, CommandMessage, FaultBody
from sas.codec.payloads import UNREADABLE, encode_content, is_encoded
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, check_depth, parse
from sas.domain.command import awaiting, can_undo, why_not
from sas.domain.ids import cause_of
from sas.domain.messages import JournalEntry, JournalWord, Verb
from sas.domain.order import Direction, Fault, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues, lane
from sas.engine.command_answers import CommandAnswers
from sas.operate import finding
from sas.operate.errors import ServiceUnavailableError, UsageError
from sas.operate.finding import is_failed
from sas.ports import (
    BusUnavailableError,
    Message,
    MessageBus,
    PayloadCodec,
    StateStore,
    UndeliverableError,
)

OPERATOR_NAME_LENGTH_MAX = 100
JOURNAL_POLL_S = 0.25
SEND_COMMANDS_MAX = 100
"""Commands that are given to the bus in one call."""
GONE = "the order does not exist any more (finished orders are purged in the end)"
UNDER_WAY = frozenset({OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What an operator wants done with an order, or with several."""

    verb: Verb
    by: str
    step: str | None = None
    input: str | None = None
    fault: Fault | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCommand:
    """One command for one order. ``seq`` is the seq of the order when the operator saw it.

    If ``seq`` is None, the command is carried out at any seq. The scheduler allows this for a
    cancel only.
    """

    order_id: str
    seq: int | None
    urgent: bool = False
    command_id: str = field(default_factory=lambda: f"sas-{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: its journal row, or why the scheduler refused the command.

    If there is neither a row nor a refusal, the result is not known yet.
    """

    command: OrderCommand
    entry: JournalEntry | None = None
    refusal: str = ""

    @property
    def carried_out(self) -> bool:
        """Whether the scheduler carried the command out."""
        return self.entry is not None and self.entry.what is not JournalWord.FENCED


# -- What a command would do, or why it cannot ------------------------------------------------


def checked_input(body: bytes, name: str, codec: PayloadCodec | None) -> str:
    """Return the JSON text that an operator gives to a step, encoded if there is a codec.

    ``name`` is the place where the operator gave the text. The error names it.

    Raises:
        UsageError: the text is not JSON, is nested too deeply, or is too large.
    """
    try:
        parse(body)
        text = body.decode().strip()
        check_depth(text, CONTENT_DEPTH_MAX)
        text = text if is_encoded(text) else encode_content(text, codec)
    except MalformedError as error:
        raise UsageError(f"{name}: {error}") from None
    if utf16_units(text) > EDITED_UNITS_MAX:
        form = ", encrypted," if is_encoded(text) else ""
        raise UsageError(f"{name}{form} has over {EDITED_UNITS_MAX:,} characters: give less")
    return text


def check_name(by: str, name: str) -> str:
    """Return an operator's name ``by`` if the journal can keep it.

    ``name`` is the place where the operator gave it. The error names it.

    Raises:
        UsageError: the operator's name is too long, or cannot be printed.
    """
    if len(by) > OPERATOR_NAME_LENGTH_MAX:
        raise UsageError(
            f"{name} has {len(by)} characters: at most {OPERATOR_NAME_LENGTH_MAX} are kept"
        )
    if not by.strip() or not by.isprintable():  # a lone surrogate is not printable either
        raise UsageError(f"{name} is {by!r}: give a name that can be printed")
    return by


def check_reason(text: str, name: str) -> str:
    """Return an operator's reason on one line.

    ``name`` is the place where the operator gave it. The error names it.

    Raises:
        UsageError: the reason is too long, or cannot be printed.
    """
    reason = " ".join(text.split())
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(
            f"{name} has {len(reason)} characters: at most {REASON_LENGTH_MAX} are kept"
        )
    if not reason.isprintable():
        raise UsageError(f"{name} is {reason!r}: give text that can be printed")
    return reason


def refusal_by_hand(code: str, text: str) -> Fault:
    """Return the fault of a step that an operator refuses in the place of its callback.

    Raises:
        UsageError: the code is empty, or one of the two is too long or cannot be printed.
    """
    code = check_reason(code, "the code of the refusal")
    if not code:
        raise UsageError("the code of the refusal is empty: give one, such as not-approved")
    text = check_reason(text, "the text of the refusal")
    return Fault(code, text or "an operator refused it, and gave no reason")


def refusal(order: Order, intent: Intent) -> str:
    """Return why a command is not possible for an order; an empty text if it is possible."""
    if order.rejected:
        return "it was rejected, and no step began: submit it again"
    names = [step.name for step in order.steps]
    if intent.step is not None and intent.step not in names:
        return f"it has no step {intent.step!r}, only {', '.join(names)}"
    if _is_possible(order, intent):
        return ""
    in_error = order.process_state is OrderState.ERROR and intent.verb is not Verb.CALLBACK
    if intent.step is not None and in_error:
        state = order.steps[names.index(intent.step)].process_state.value
        return f"the step must be in Error, and {intent.step} is {state}"
    return why_not(order, intent.verb)


def _is_possible(order: Order, intent: Intent) -> bool:
    match intent.verb:
        case Verb.RESUBMIT | Verb.SKIP:
            return bool(_failed_steps(order, intent))
        case Verb.UNDO:
            return can_undo(order)
        case Verb.CANCEL:
            return order.process_state in UNDER_WAY and order.direction is Direction.DO
        case Verb.ACKNOWLEDGE:
            return order.process_state is OrderState.ERROR
        case Verb.CALLBACK:
            return awaiting(order, intent.step) is not None


def outlook(order: Order, intent: Intent) -> str:
    """Return what a command would do. The caller has checked that the command is possible."""
    failed_steps = _failed_steps(order, intent)
    match intent.verb:
        case Verb.RESUBMIT:
            with_input = " with the given input" if intent.input is not None else ""
            return f"run again{with_input}: {_with_errors(failed_steps)}"
        case Verb.SKIP:
            return _skipping(failed_steps, intent)
        case Verb.UNDO:
            return f"undo the order (there is no way back); {_steps_to_undo(order)}"
        case Verb.CANCEL:
            return _cancelling(order)
        case Verb.ACKNOWLEDGE:
            return "note that you have seen that it is in Error; nothing else changes"
        case Verb.CALLBACK:
            return _ending(awaiting(order, intent.step), intent)


def _skipping(failed_steps: Sequence[StepRecord], intent: Intent) -> str:
    if any(step.undo_failed for step in failed_steps):
        return f"count as undone by hand: {_with_errors(failed_steps)}"
    result = UNREADABLE if is_encoded(intent.input or "") else intent.input
    ending = "; later steps will see null" if result is None else f", with the result {result}"
    return f"count as done{ending}: {_with_errors(failed_steps)}"


def _cancelling(order: Order) -> str:
    running_steps = [
        step.name
        for step in order.steps
        if step.process_state is StepState.PROCESSING and not step.awaits_callback
    ]
    waiting = f"wait for {', '.join(running_steps)}, " if running_steps else ""
    undo = "undo the order (there is no way back)"
    return f"start no new step, {waiting}then {undo}; {_steps_to_undo(order)}"


def _ending(step: StepRecord | None, intent: Intent) -> str:
    """Return how a callback by hand ends the step that waits for it."""
    undoing = step is not None and step.direction is Direction.UNDO
    name = "" if step is None else f"{'the undo of ' * undoing}{step.name}"
    if intent.fault is not None:
        then = (
            "the order then waits in Error"
            if undoing
            else "the order is then undone, or waits in Error, as its workflow says"
        )
        return f"end {name} as refused ({intent.fault.code}: {intent.fault.message}); {then}"
    if undoing:
        return f"end {name} as done"
    result = UNREADABLE if is_encoded(intent.input or "") else intent.input
    return f"end {name} as done, with the result {result or 'null'}"


def _failed_steps(order: Order, intent: Intent) -> Sequence[StepRecord]:
    return [step for step in order.steps if is_failed(step) and intent.step in {None, step.name}]


def _with_errors(steps: Sequence[StepRecord]) -> str:
    return "; ".join(
        ("undo of " if step.undo_failed else "")
        + step.name
        + (f" ({step.error.code}: {step.error.message})" if step.error else "")
        for step in steps
    )


def _steps_to_undo(order: Order) -> str:
    names = [step.name for step in reversed(order.steps) if step.epoch > 0]
    if not names:
        return "no step ever began"
    return (
        f"these steps began and are undone in this order, if they have an undo: {', '.join(names)}"
    )


# -- Sending, and waiting for the journal -----------------------------------------------------


def batches(commands: Sequence[OrderCommand]) -> Iterator[Sequence[OrderCommand]]:
    """Yield the commands in batches, those of urgent orders first."""
    by_lane = sorted(commands, key=lambda command: not command.urgent)
    return (
        by_lane[start : start + SEND_COMMANDS_MAX]
        for start in range(0, len(by_lane), SEND_COMMANDS_MAX)
    )


async def send(
    bus: MessageBus,
    batch: Sequence[OrderCommand],
    intent: Intent,
    queues: Queues,
    *,
    sent_before: int = 0,
    total: int = 1,
) -> None:
    """Send a batch of commands.

    Before this batch, ``sent_before`` of ``total`` commands were sent. The error tells these
    numbers.

    Raises:
        ServiceUnavailableError: the bus did not take the batch.
    """
    try:
        await bus.send([_message(command, intent, queues) for command in batch])
    except (BusUnavailableError, UndeliverableError) as error:
        raise ServiceUnavailableError(
            f"{error} {sent_before:,} of {total:,} commands were sent before. To give the "
            "command again is safe: an order that has changed refuses it."
        ) from None


def _message(command: OrderCommand, intent: Intent, queues: Queues) -> Message:
    """Return the message of a command for the scheduler's queue, in the lane of its order."""
    message = CommandMessage(
        id=command.command_id,
        order_id=command.order_id,
        verb=intent.verb.value,
        by=intent.by,
        seq=command.seq,
        step=intent.step,
        input=internal.raw(intent.input),
        error=FaultBody(intent.fault.code, intent.fault.message) if intent.fault else None,
        reason=intent.reason,
    )
    queue = lane(queues.scheduler, urgent=command.urgent)
    return Message(queue, command.command_id, internal.encode(message))


async def wait(
    store: StateStore, commands: Sequence[OrderCommand], queues: Queues, wait_s: float
) -> list[CommandResult]:
    """Wait for the result of each command, and return the results in the order of the commands.

    When no new result came for ``wait_s`` seconds, the waiting ends. Then some results may not be
    known yet.
    """
    gate = asyncio.Semaphore(finding.LOADS_AT_ONCE)

    async def look(command: OrderCommand) -> CommandResult:
        async with gate:
            return await _look_for(store, command, queues)

    results: dict[str, CommandResult] = {}
    remaining, last_result_at = list(commands), time.monotonic()
    while remaining:
        for result in await asyncio.gather(*(look(command) for command in remaining)):
            if result.entry is not None or result.refusal:
                results[result.command.command_id] = result
                last_result_at = time.monotonic()
        remaining = [command for command in remaining if command.command_id not in results]
        if remaining and time.monotonic() - last_result_at >= wait_s:
            break
        await asyncio.sleep(JOURNAL_POLL_S if remaining else 0)
    return [results.get(command.command_id, CommandResult(command)) for command in commands]


async def _look_for(store: StateStore, command: OrderCommand, queues: Queues) -> CommandResult:
    """Return the result of one command, as far as it is known now."""
    cause = cause_of(queues.scheduler, command.command_id)
    entry = await store.recorded(command.order_id, cause)  # 1.
    if entry is not None:
        return CommandResult(command, entry)
    order = await store.load(command.order_id)
    if order is not None and command.seq in {order.seq, None}:
        # 2. 4. An empty reason means that the result is not known yet.
        reason = await CommandAnswers(store).reason(command.command_id)
        return CommandResult(command, refusal=reason)
    if command.seq is None:
        return CommandResult(command, refusal=GONE)
    # 3. The order is gone, or has another seq. Perhaps this command changed the seq after the look
    # at the journal above. So look for its cause once more.
    entry = await store.recorded(command.order_id, cause)
    if entry is not None:
        return CommandResult(command, entry)
    return CommandResult(command, refusal=await what_changed(store, order, command.seq))


_ENDED = frozenset({StepState.PROCESSED, StepState.ERROR, StepState.COMPENSATED})


def resubmitted(order: Order, intent: Intent) -> frozenset[int]:
    """Return the numbers of the steps that a resubmit runs again; none for other commands."""
    failed_steps = _failed_steps(order, intent) if intent.verb is Verb.RESUBMIT else ()
    return frozenset(step.number for step in failed_steps)


async def wait_for_steps(
    store: StateStore, steps_by_order: Mapping[str, frozenset[int]], wait_s: float
) -> dict[str, Order]:
    """Wait until the steps that run again have ended, for ``wait_s`` seconds at most.

    ``steps_by_order`` has the numbers of these steps by OrderID. Return the orders by OrderID,
    without those that do not exist any more.
    """
    orders: dict[str, Order] = {}
    remaining, until = dict(steps_by_order), time.monotonic() + wait_s
    while remaining:
        for order in await finding.load_all(store, list(remaining)):
            orders[order.order_id] = order
        remaining = {
            name: steps
            for name, steps in remaining.items()
            if name in orders and not _have_ended(orders[name], steps)
        }
        if time.monotonic() >= until:
            break
        await asyncio.sleep(JOURNAL_POLL_S if remaining else 0)
    return orders


def _have_ended(order: Order, steps: frozenset[int]) -> bool:
    rerun_steps = [order.steps[number] for number in steps if number < len(order.steps)]
    return all(step.process_state in _ENDED and step.turn is None for step in rerun_steps)


def failed_again(order: Order, steps: frozenset[int]) -> str:
    """Return which of these steps have failed again, and how; an empty text if none has failed."""
    failed_steps = [step for step in order.steps if step.number in steps and is_failed(step)]
    return _with_errors(failed_steps)


async def what_changed(store: StateStore, order: Order | None, seq: int) -> str:
    """Return in one sentence what changed since the operator saw an order."""
    if order is None:
        return GONE
    position = f"the order is at seq {order.seq} ({order.process_state.value})"
    if order.seq < seq:
        return f"you gave seq {seq}, but {position}: check which seq you saw"
    entries = [entry for entry in await store.journal(order.order_id) if entry.seq > seq]
    changes = ", ".join(f"{entry.seq} {entry.what} by {entry.by}" for entry in entries[:5])
    changes = (changes or "nothing") + (", ..." if len(entries) > 5 else "")
    return f"you saw seq {seq}, but {position}; since then: {changes}. Look at it again"


def why_not_done(result: CommandResult, wait_s: float) -> str:
    """Return why a command was not carried out within ``wait_s``, and what to do."""
    if result.entry is not None:
        return "the command was dead-lettered: see operator-alerts and the function app's log"
    if result.refusal:
        return f"not carried out: {result.refusal}."
    command_id = result.command.command_id
    return (
        f"not carried out within {wait_s:g} s: check that the function app runs, and look on "
        f"operator-alerts for refused/{command_id}; it may still be carried out later"
    )
