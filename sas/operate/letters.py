"""Messages in queues, for operators: the order of each, and what became of the work that it asks
for. Queues are peeked: nothing is locked or removed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from sas.codec import internal
from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.internal import (
    CallbackMessage,
    CommandMessage,
    Envelope,
    Kind,
    ProgressMessage,
    ReplyMessage,
    WakeMessage,
)
from sas.codec.orders import salvage
from sas.codec.strict import MalformedError, convert
from sas.domain.ids import URGENT_SUFFIX, cause_of, check_agent, parse_key_time
from sas.domain.messages import JournalEntry
from sas.domain.order import Order, StepRecord
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.engine.receiver import FIRST_AT, FIRST_ID, SOURCE
from sas.ports import (
    BusUnavailableError,
    MessageBus,
    OtherVersionError,
    Peeked,
    StateStore,
)

READ_MAX = 1000
"""Messages of one queue that are read at most."""
AT_ONCE = 8
"""Queues that are read at the same time."""
# msgspec takes a union as a type.
_INTERNAL: type[Envelope] = (
    WakeMessage | CommandMessage | ReplyMessage | ProgressMessage | CallbackMessage  # type: ignore[assignment]
)
WHY, WHY_TEXT = "DeadLetterReason", "DeadLetterErrorDescription"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message in a queue. ``path`` is the queue's, or that of its dead-letter subqueue.

    ``source`` is the queue that gave a dead letter up. ``order_id`` is what the body says: a
    sender can forge it.
    """

    path: str
    peeked: Peeked
    source: str
    order_id: str | None

    @property
    def since(self) -> datetime:
        """Since when it is in the queue. A message that was put back keeps its age."""
        first = self.peeked.properties.get(FIRST_AT)
        with suppress(ValueError):
            return parse_key_time(first) if first else self.peeked.enqueued_at
        return self.peeked.enqueued_at


@dataclass(frozen=True, slots=True)
class Read:
    """What was found in several queues. ``problems`` says by queue why it cannot be read."""

    letters: Sequence[Letter]
    problems: dict[str, str]


async def read(bus: MessageBus, paths: Iterable[str], limit: int = READ_MAX) -> Read:
    """Return the messages of these queues, each queue in its own order."""
    gate = asyncio.Semaphore(AT_ONCE)
    names = list(dict.fromkeys(paths))

    async def peeked(path: str) -> list[Peeked] | str:
        async with gate:
            try:
                return await bus.peek(path, limit)
            except BusUnavailableError as away:
                return str(away)

    answers = await asyncio.gather(*map(peeked, names))
    found: list[Letter] = []
    problems: dict[str, str] = {}
    for path, answer in zip(names, answers, strict=True):
        if isinstance(answer, str):
            problems[path] = answer
        else:
            found += [letter_of(path, one) for one in answer]
    return Read(found, problems)


def letter_of(path: str, one: Peeked) -> Letter:
    """Return a message with the queue that it belongs to."""
    queue = path.removesuffix(DEAD_LETTER_SUBQUEUE)
    source = one.source or one.properties.get(SOURCE) or queue
    return Letter(path=path, peeked=one, source=source, order_id=order_of(one.body))


def order_of(body: bytes) -> str | None:
    """Return the order id that the body of any message names."""
    found = salvage(body).order_id
    if found is None:
        with suppress(ValueError, TypeError, KeyError):
            found = json.loads(body)["data"]["order_id"]
    return found if isinstance(found, str) else None


def alert_of(one: Peeked) -> AlertMessage | None:
    """Return the alert that a message holds, if it is one."""
    with suppress(MalformedError):
        return convert(one.body, AlertMessage)
    return None


def who_worked(alert: AlertMessage) -> str:
    """Return the agent of an alert, and how often its step was dispatched, as far as is known."""
    agent = f"agent {alert.agent}" if alert.agent else ""
    times = alert.attempts
    tried = "" if times is None else "1 attempt" if times == 1 else f"{times} attempts"
    return ", ".join(filter(None, (agent, tried)))


def rejected_of(one: Peeked) -> RejectedMessage | None:
    """Return the rejected message that a message holds, if it is one."""
    with suppress(MalformedError):
        return convert(one.body, RejectedMessage)
    return None


def dead_letter_paths(queues: Queues, agents: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the paths of dead letters: ``dead-letters``, and the subqueue of every queue."""
    own = dict.fromkeys((*queues.own(agents), *others))
    return [queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in own)]


def agents_here(queues: Queues, folder: Path = Path()) -> set[str]:
    """Return the agents whose queues ``infra/queues.json`` of a project names, if it is there."""
    prefix, found = queues.agent_prefix, set()
    for one in expected_queues(folder):
        name = one.removeprefix(prefix)
        if one.startswith(prefix) and one not in {
            queues.replies,
            lane(queues.replies, urgent=True),
        }:
            with suppress(ValueError):
                found.add(check_agent(name))
    return found


def expected_queues(folder: Path = Path()) -> dict[str, dict[str, Any]]:
    """Return the properties of each queue in ``infra/queues.json``; nothing if it is not there."""
    try:
        said = json.loads((folder / "infra" / "queues.json").read_text(encoding="utf-8"))
        kinds = said["kinds"]
        return {one["name"]: kinds[one["kind"]]["properties"] for one in said["queues"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# -- The message that an order waits for ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the message that an order waits for, with ``before`` messages in front of it."""

    letter: Letter
    before: int


def waiting_paths(order: Order, step: StepRecord, queues: Queues, agents: set[str]) -> list[str]:
    """Return the queues that may hold the next message of a step, the likeliest first."""
    urgent = order.details.urgent
    if step.dispatched:
        names = [queues.agent(name, urgent=urgent) for name in sorted(agents)]
        names.append(lane(queues.replies, urgent=urgent))
    else:
        names = [lane(queues.scheduler, urgent=urgent)]
    return [*names, queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in names)]


def place_of(order: Order, step: StepRecord, letters: Sequence[Letter]) -> Place | None:
    """Return the place of a step's message; None if it is in none of the queues read."""
    before: dict[str, int] = {}
    for letter in letters:
        if letter.order_id == order.order_id and _is_for(letter, step):
            return Place(letter, before.get(letter.path, 0))
        before[letter.path] = before.get(letter.path, 0) + (not letter.peeked.is_scheduled)
    return None


def _is_for(letter: Letter, step: StepRecord) -> bool:
    said = _members(letter.peeked.body)
    kind = said.get("kind")
    if not step.dispatched:
        return kind in (Kind.WAKE, Kind.COMMAND)
    return (
        kind in (Kind.REQUEST, Kind.REPLY, Kind.PROGRESS)
        and said.get("step") == step.number
        and said.get("epoch") == step.epoch
    )


def _members(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        said = json.loads(body)
        return said if isinstance(said, dict) else {}
    return {}


# -- What became of the work that a dead letter asks for --------------------------------------


class Fate(Enum):
    """What sending a dead letter again would do."""

    SAFE = "safe to redrive"
    DONE = "already done"
    GONE = "order gone"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a dead letter, with the reason in a sentence, and the state of its order."""

    fate: Fate
    why: str
    order: Order | None = None


async def judge(store: StateStore, letter: Letter, queues: Queues) -> Verdict:
    """Return what sending a dead letter again would do, by the state of its order."""
    if letter.order_id is None:
        return Verdict(Fate.UNKNOWN, "its body names no order: look at it with sas queues peek")
    order = await store.load(letter.order_id)
    source = letter.source.removesuffix(URGENT_SUFFIX)
    if queues.takes_orders(letter.source):
        return await _of_submission(store, letter, order, queues)
    if letter.source.startswith(queues.response_prefix) or source == queues.alerts:
        return Verdict(Fate.SAFE, "its reader may get it twice, under the same id", order)
    if order is None:
        return Verdict(Fate.GONE, "there is no such order (it may have been purged)")
    return await _of_internal(store, letter, order=order, queue=source, queues=queues)


async def _of_submission(
    store: StateStore, letter: Letter, order: Order | None, queues: Queues
) -> Verdict:
    if order is None:
        return Verdict(Fate.SAFE, "there is no such order: it would be submitted now")
    if order.rejected:
        return Verdict(Fate.SAFE, "the order was given up, and a new submission runs it", order)
    said, sent = _members(letter.peeked.body), letter.peeked
    name = said.get("submission_id") or sent.properties.get(FIRST_ID, sent.message_id)
    entry = await store.recorded(order.order_id, cause_of(queues.orders, str(name)))
    if entry is not None:
        return _of_recorded(entry, order)
    state = order.process_state.value
    return Verdict(Fate.DONE, f"the order was submitted and is {state}", order)


def _of_recorded(entry: JournalEntry, order: Order) -> Verdict:
    """Return the fate of a message that led to ``entry``.

    Its function may have died before it sent the messages of that transition. Only the same
    message, sent again, sends them for certain: under the same ids, so none counts twice.
    """
    where, state = f"(seq {entry.seq})", order.process_state.value
    if not entry.what.acts:
        return Verdict(Fate.DONE, f"it was fenced {where}; the order is {state}", order)
    led = f"it led to {entry.what!s} {where}"
    if not entry.messages:
        return Verdict(Fate.DONE, f"{led}; the order is {state}", order)
    return Verdict(Fate.SAFE, f"{led}, and may not have sent its messages", order)


async def _of_internal(
    store: StateStore, letter: Letter, order: Order, queue: str, queues: Queues
) -> Verdict:
    if queue not in {queues.scheduler, queues.replies, queues.callbacks}:
        if queue.startswith(queues.agent_prefix):
            return _of_request(letter, order)
        return Verdict(Fate.UNKNOWN, f"the order is {order.process_state.value}: look at it", order)
    try:
        message = internal.decode(letter.peeked.body, _INTERNAL)
    except (MalformedError, OtherVersionError) as wrong:
        return Verdict(Fate.UNKNOWN, f"its body cannot be read: {wrong}", order)
    entry = await store.recorded(order.order_id, cause_of(queue, message.id))
    if entry is not None:
        return _of_recorded(entry, order)
    if isinstance(message, ReplyMessage | ProgressMessage):
        return _of_request(letter, order)
    state = order.process_state.value
    return Verdict(Fate.SAFE, f"nothing was recorded of it; the order is {state}", order)


def _of_request(letter: Letter, order: Order) -> Verdict:
    said = _members(letter.peeked.body)
    number, epoch = said.get("step"), said.get("epoch")
    if not isinstance(number, int) or not 0 <= number < len(order.steps):
        return Verdict(Fate.UNKNOWN, "its body names no step of the order", order)
    step = order.steps[number]
    if step.dispatched and step.epoch == epoch:
        return Verdict(Fate.SAFE, f"{step.name} still waits for it (epoch {epoch})", order)
    state = step.process_state.value
    return Verdict(
        Fate.DONE, f"{step.name} is {state} at epoch {step.epoch}: epoch {epoch} is over", order
    )


# -- Rejected orders --------------------------------------------------------------------------


def rejected_orders(letters: Sequence[Letter]) -> list[tuple[Letter, RejectedMessage]]:
    """Return the first part of each rejected message that names an order, the newest first."""
    found = [(one, rejected_of(one.peeked)) for one in letters]
    said = [(one, part) for one, part in found if part is not None]
    named = [(one, part) for one, part in said if part.order_id and part.part == 1]
    return sorted(named, key=lambda pair: pair[1].at, reverse=True)
