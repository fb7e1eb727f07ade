"""The commands of an operator: what one would do, sending it, and what became of it.

A command that is carried out leaves its cause in the journal. A command that is refused leaves
nothing there; then the order has a later seq than the command names, or the scheduler keeps for a
while why it refused.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sas.bounds import EDITED_UNITS_MAX, utf16_units
from sas.codec import internal
from sas.codec.internal import REASON_LENGTH_MAX, CommandMessage
from sas.codec.payloads import UNREADABLE, encode_content, is_encoded
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, check_depth, parse
from sas.domain.command import can_undo, why_not
from sas.domain.ids import cause_of
from sas.domain.messages import JournalEntry, JournalWord, Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues, lane
from sas.engine.command_answers import CommandAnswers
from sas.operate import finding
from sas.operate.errors import UnavailableError, UsageError
from sas.operate.finding import is_failed
from sas.ports import (
    BusUnavailableError,
    Message,
    MessageBus,
    PayloadCodec,
    StateStore,
    UndeliverableError,
)

NAME_LENGTH_MAX = 100
POLL_S = 0.25
SEND_MAX = 100
"""Commands handed to the bus at once."""
GONE = "the order does not exist any more (finished orders are purged in the end)"
UNDER_WAY = frozenset({OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What an operator wants of an order, or of several."""

    verb: Verb
    by: str
    step: str | None = None
    input: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
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


def checked_input(body: bytes, name: str, codec: PayloadCodec | None) -> str:
    """Return the JSON text that a step gets as its input, encoded if there is a codec.

    ``name`` says where it was given.

    Raises:
        UsageError: it is not JSON, nests too deep, or is too large.
    """
    try:
        parse(body)
        made = body.decode().strip()
        check_depth(made, CONTENT_DEPTH_MAX)
        made = made if is_encoded(made) else encode_content(made, codec)
    except MalformedError as wrong:
        raise UsageError(f"{name}: {wrong}") from None
    if utf16_units(made) > EDITED_UNITS_MAX:
        how = ", encrypted," if is_encoded(made) else ""
        raise UsageError(f"{name}{how} has over {EDITED_UNITS_MAX:,} characters: give less")
    return made


def check_name(by: str, name: str) -> str:
    """Return an operator's name, as the journal keeps it; ``name`` says where it was given.

    Raises:
        UsageError: it is too long, or cannot be printed.
    """
    if len(by) > NAME_LENGTH_MAX:
        raise UsageError(f"{name} has {len(by)} characters: at most {NAME_LENGTH_MAX} are kept")
    if not by.strip() or not by.isprintable():  # a lone surrogate is not printable either
        raise UsageError(f"{name} is {by!r}: give a name that can be printed")
    return by


def check_reason(text: str, name: str) -> str:
    """Return an operator's reason on one line; ``name`` says where it was given.

    Raises:
        UsageError: it is too long, or cannot be printed.
    """
    reason = " ".join(text.split())
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(
            f"{name} has {len(reason)} characters: at most {REASON_LENGTH_MAX} are kept"
        )
    if not reason.isprintable():
        raise UsageError(f"{name} is {reason!r}: give text that can be printed")
    return reason


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
            given = UNREADABLE if is_encoded(intent.input or "") else intent.input
            how = "; later steps will see null" if given is None else f", with the result {given}"
            return f"count as done{how}: {_each(failed)}"
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


# -- Sending, and waiting for the journal -----------------------------------------------------


def batches(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    """Yield the commands in batches that each have one queue, the urgent lane first."""
    lanes = sorted(asked, key=lambda one: not one.urgent)  # a batch has one queue; urgent first
    return (lanes[start : start + SEND_MAX] for start in range(0, len(lanes), SEND_MAX))


async def send(
    bus: MessageBus,
    batch: Sequence[Asked],
    intent: Intent,
    queues: Queues,
    *,
    sent_before: int = 0,
    of: int = 1,
) -> None:
    """Send a batch of commands, ``sent_before`` of all (``of``) were sent already.

    Raises:
        UnavailableError: the bus did not take them.
    """
    try:
        await bus.send([_message(one, intent, queues) for one in batch])
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
        reason=intent.reason,
    )
    queue = lane(queues.scheduler, urgent=asked.urgent)
    return Message(queue, asked.command_id, internal.encode(command))


async def wait(
    store: StateStore, asked: Sequence[Asked], queues: Queues, wait_s: float
) -> list[Ended]:
    """Return what became of each command, as far as known after ``wait_s`` without news."""
    gate = asyncio.Semaphore(finding.CONCURRENT)

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
        return Ended(asked, None, await CommandAnswers(store).reason(asked.command_id))
    if asked.seq is None:
        return Ended(asked, None, GONE)
    # The order changed, by this command or before it arrived: only now the cause tells which.
    entry = await store.recorded(asked.order_id, cause)
    return Ended(asked, entry, "" if entry else await what_changed(store, order, asked.seq))


_ENDED = frozenset({StepState.PROCESSED, StepState.ERROR, StepState.COMPENSATED})


def resubmitted(order: Order, intent: Intent) -> frozenset[int]:
    """Return the steps that a resubmit runs again, by number."""
    failed = _failed(order, intent) if intent.verb is Verb.RESUBMIT else ()
    return frozenset(step.number for step in failed)


async def outcomes(
    store: StateStore, again: Mapping[str, frozenset[int]], wait_s: float
) -> dict[str, Order]:
    """Return the orders whose steps run again, once those steps ended or ``wait_s`` has passed."""
    found: dict[str, Order] = {}
    left, until = dict(again), time.monotonic() + wait_s
    while left:
        for order in await finding.load_all(store, list(left)):
            found[order.order_id] = order
        left = {
            name: steps
            for name, steps in left.items()
            if name in found and not _have_ended(found[name], steps)
        }
        if time.monotonic() >= until:
            break
        await asyncio.sleep(POLL_S if left else 0)
    return found


def _have_ended(order: Order, steps: frozenset[int]) -> bool:
    mine = [order.steps[number] for number in steps if number < len(order.steps)]
    return all(step.process_state in _ENDED and step.turn is None for step in mine)


def failed_again(order: Order, steps: frozenset[int]) -> str:
    """Return how steps that ran again have failed; an empty text if none has."""
    mine = [step for step in order.steps if step.number in steps and is_failed(step)]
    return _each(mine)


async def what_changed(store: StateStore, order: Order | None, seq: int) -> str:
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


def why_not_done(ended: Ended, wait_s: float) -> str:
    """Return why a command was not carried out within ``wait_s``, and what to do."""
    if ended.entry is not None:
        return "the command was dead-lettered: see operator-alerts and the function app's log"
    if ended.refused:
        return f"not carried out: {ended.refused}."
    return (
        f"not carried out within {wait_s:g} s: check that the function app runs, and look on "
        f"operator-alerts for refused/{ended.asked.command_id}; it may still be carried out later"
    )
