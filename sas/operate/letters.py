"""Read messages in queues for operators, and judge dead letters by the state of their orders.

This module only peeks at queues. It locks and removes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

from sas.codec import internal
from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.internal import Kind, RequestMessage
from sas.codec.orders import salvage
from sas.codec.strict import MalformedError, Reason, convert, parse
from sas.domain.ids import URGENT_SUFFIX, cause_of, check_agent, parse_key_time, reply_id
from sas.domain.messages import JournalEntry
from sas.domain.order import Order, StepRecord
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.engine.delivery import FIRST_ID, LEFT_SINCE
from sas.engine.receiver import FIRST_AT, SOURCE
from sas.operate import finding
from sas.ports import (
    BusUnavailableError,
    MessageBus,
    OtherVersionError,
    Peeked,
    StateStore,
)

READ_MAX = 1000
"""How many messages of a queue are read at most."""
PEEKS_AT_ONCE = 8
"""Queues that are read at the same time."""
_OF_A_REQUEST = (Kind.REQUEST, Kind.REPLY, Kind.PROGRESS)


class DeadLetterFate(Enum):
    """What would happen if a dead letter were sent again."""

    SAFE = "safe to send again"
    DONE = "already done"
    GONE = "order gone"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a dead letter, and the reason in a sentence."""

    fate: DeadLetterFate
    why: str

    def __str__(self) -> str:
        return f"{self.fate.value}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message in a queue. ``path`` names the queue or its dead-letter subqueue.

    ``source`` is the queue that gave a dead letter up; for other messages it is the queue itself.
    ``order_id`` comes from the body, and a sender can forge it. Dead letters get a ``verdict`` when
    they are judged. ``queues`` say in which queues alerts and rejected messages lie: any sender can
    write a body that looks like one, but no application may send there.
    """

    path: str
    queues: Queues
    peeked: Peeked
    source: str
    order_id: str | None
    verdict: Verdict | None = None

    @property
    def since(self) -> datetime:
        """Since when the message waits. A message that was put back keeps its age."""
        return moment_of(self.peeked.properties.get(FIRST_AT)) or self.peeked.enqueued_at

    @property
    def left_since(self) -> datetime | None:
        """Since when it is left to an instance that has its workflow; None if nobody left it."""
        return moment_of(self.peeked.properties.get(LEFT_SINCE))

    @property
    def members(self) -> dict[str, Any]:
        """The members of its body; none if the body is no JSON object."""
        with suppress(ValueError):
            members = parse(self.peeked.body)
            return members if isinstance(members, dict) else {}
        return {}

    @property
    def alert(self) -> AlertMessage | None:
        """The alert in its body; None in any other queue, and for any other body."""
        if self._is_in(self.queues.alerts):
            with suppress(MalformedError):
                return convert(self.peeked.body, AlertMessage)
        return None

    @property
    def rejected(self) -> RejectedMessage | None:
        """The rejected message, or the part of one, in its body; None as for ``alert``."""
        if self._is_in(self.queues.rejected):
            with suppress(MalformedError):
                return convert(self.peeked.body, RejectedMessage)
        return None

    def _is_in(self, queue: str) -> bool:
        """Return whether it lies in a queue, or in its subqueue of dead letters."""
        return self.path.removesuffix(DEAD_LETTER_SUBQUEUE) == queue

    @property
    def whole(self) -> tuple[str, str]:
        """A key that all parts of a rejected message have, and no other message."""
        part = self.rejected
        return self.path, part.id.rpartition("/")[0] if part else f"#{self.peeked.sequence}"


def moment_of(text: str | None) -> datetime | None:
    """Return the moment of a text that a sender may have written; None if it is none.

    A year of 9999 is none either: nothing could be added to it.
    """
    with suppress(ValueError):
        moment = parse_key_time(text or "")
        return moment if moment.year < 9999 else None
    return None


@dataclass(frozen=True, slots=True)
class PeekResult:
    """The messages of several queues. ``problems`` says, by queue, why a queue cannot be read."""

    letters: Sequence[Letter]
    problems: dict[str, str]


async def read(bus: MessageBus, paths: Iterable[str], queues: Queues) -> PeekResult:
    """Return at most ``READ_MAX`` messages of each of these queues, one queue after the other."""
    gate = asyncio.Semaphore(PEEKS_AT_ONCE)
    problems: dict[str, str] = {}

    async def peek(path: str) -> list[Letter]:
        async with gate:
            try:
                messages = await bus.peek(path, READ_MAX)
                return [letter_of(path, message, queues) for message in messages]
            except BusUnavailableError as error:
                problems[path] = str(error)
                return []

    letters = await asyncio.gather(*map(peek, dict.fromkeys(paths)))
    return PeekResult([*chain.from_iterable(letters)], problems)


def letter_of(path: str, message: Peeked, queues: Queues) -> Letter:
    """Return a peeked message together with its queue, its source and its OrderID."""
    queue = path.removesuffix(DEAD_LETTER_SUBQUEUE)
    source = message.source or message.properties.get(SOURCE) or queue
    order_id = order_of(message.body)
    return Letter(path=path, queues=queues, peeked=message, source=source, order_id=order_id)


def order_of(body: bytes) -> str | None:
    """Return the OrderID in the body of a message of any kind; None if the body has none."""
    order_id = salvage(body).order_id
    if order_id is None:
        with suppress(ValueError, TypeError, KeyError):
            order_id = parse(body)["data"]["order_id"]
    return order_id if isinstance(order_id, str) else None


def dead_letter_paths(queues: Queues, agents: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the path of ``dead-letters``, and of the dead-letter subqueue of every queue."""
    names = dict.fromkeys((*queues.own(agents), *others))
    return [queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in names)]


def agents_here(queues: Queues, folder: Path = Path()) -> set[str]:
    """Return the agents whose queues ``infra/queues.json`` names, if that file can be read."""
    prefix, agents = queues.agent_prefix, set()
    for queue in expected_queues(folder):
        if queue.startswith(prefix):
            with suppress(ValueError):
                agents.add(check_agent(queue.removeprefix(prefix)))
    return agents


def expected_queues(folder: Path = Path()) -> list[str]:
    """Return the queues in ``infra/queues.json``, if that file can be read."""
    try:
        content = json.loads((folder / "infra" / "queues.json").read_text(encoding="utf-8"))
        return [queue["name"] for queue in content["queues"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


# -- The message that an order waits for ------------------------------------------------------


async def submitted(bus: MessageBus, queues: Queues, order_id: str) -> Letter | None:
    """Return the message of an order that no function has stored yet; None if there is none.

    The operator may have no right to read its queue. Then there is none.
    """
    queue = queues.orders_for(order_id)
    contents = await read(bus, [lane(queue, urgent=urgent) for urgent in (False, True)], queues)
    return next((letter for letter in contents.letters if letter.order_id == order_id), None)


def waiting_paths(order: Order, step: StepRecord, queues: Queues, agents: set[str]) -> list[str]:
    """Return the queues that may hold the next message of a step, the most likely ones first."""
    urgent = order.details.urgent
    names = [lane(queues.scheduler, urgent=urgent)]
    if step.dispatched and not step.awaits_callback:
        names = [*(queues.agent(name, urgent=urgent) for name in sorted(agents)), *names]
    return [*names, queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in names)]


def place_of(
    order: Order, step: StepRecord, letters: Sequence[Letter]
) -> tuple[Letter, int] | None:
    """Return the message of a step, and how many messages are in front of it in its queue.

    Scheduled messages do not count. Return None if none of these letters is that message.
    """
    counts = Counter[str]()
    for letter in letters:
        if letter.order_id == order.order_id and _is_for(letter, step):
            return letter, counts[letter.path]
        counts[letter.path] += not letter.peeked.is_scheduled
    return None


def _is_for(letter: Letter, step: StepRecord) -> bool:
    members = letter.members
    kind = members.get("kind")
    if not step.dispatched:
        return kind in (Kind.WAKE, Kind.COMMAND)
    if members.get("step") != step.number:
        return False
    if step.awaits_callback:
        return kind == Kind.CALLBACK
    return kind in _OF_A_REQUEST and members.get("epoch") == step.epoch


# -- The fate of a dead letter ----------------------------------------------------------------


async def judged(
    store: StateStore | None,
    letters: Sequence[Letter],
    queues: Queues,
    unreadable: dict[str, str],
) -> tuple[list[Letter], dict[str, Order]]:
    """Return these letters, the dead ones with their verdicts; and their orders by their ids.

    Without a store, no order is known. ``unreadable`` gets why an order cannot be read, by its id.

    Raises:
        UnavailableError: the table does not answer, or a journal cannot be read.
    """
    ids = dict.fromkeys(letter.order_id for letter in letters if letter.order_id)
    loaded = await finding.load_all(store, list(ids), unreadable) if store else []
    orders = {order.order_id: order for order in loaded}
    gate = asyncio.Semaphore(PEEKS_AT_ONCE)

    async def with_verdict(letter: Letter) -> Letter:
        if not is_dead(letter, queues):
            return letter
        known_store = None if letter.order_id in unreadable else store
        async with gate:
            verdict = await judge(known_store, letter, orders.get(letter.order_id or ""), queues)
        return replace(letter, verdict=verdict)

    return await asyncio.gather(*map(with_verdict, letters)), orders


def is_dead(letter: Letter, queues: Queues) -> bool:
    """Return whether a queue gave this message up."""
    return letter.path.endswith(DEAD_LETTER_SUBQUEUE) or letter.path == queues.dead_letters


async def judge(
    store: StateStore | None, letter: Letter, order: Order | None, queues: Queues
) -> Verdict:
    """Return what would happen if a dead letter were sent again, by the state of its order.

    Without a store, the order is not known.
    """
    is_alert = letter.source.removesuffix(URGENT_SUFFIX) == queues.alerts
    if is_alert or queues.is_response(letter.source):
        return Verdict(DeadLetterFate.SAFE, "its reader may get it twice, under the same id")
    if letter.order_id is None:
        return Verdict(DeadLetterFate.UNKNOWN, "its body names no order")
    if store is None:
        return Verdict(DeadLetterFate.UNKNOWN, "the state of its order cannot be read")
    if order is not None and not (order.rejected and queues.takes_orders(letter.source)):
        return await _judge_by_journal(store, letter, order, queues)
    if not queues.takes_orders(letter.source):
        return Verdict(DeadLetterFate.GONE, "there is no such order (it may have been purged)")
    why = (
        "the order was given up, and a new submission runs it"
        if order
        else "there is no such order: it would be submitted now"
    )
    return Verdict(DeadLetterFate.SAFE, why)


async def _judge_by_journal(
    store: StateStore, letter: Letter, order: Order, queues: Queues
) -> Verdict:
    state = f"the order is {order.process_state.value}"
    try:
        cause = _cause_of(letter, queues)
    except (MalformedError, OtherVersionError) as error:
        return Verdict(DeadLetterFate.UNKNOWN, f"its body cannot be read: {error}")
    if cause is None:
        return Verdict(DeadLetterFate.UNKNOWN, f"{state}: look at it")
    entry = await store.recorded(order.order_id, cause)
    if entry is not None:
        return _of_recorded(entry, state)
    if queues.takes_orders(letter.source):
        return Verdict(DeadLetterFate.DONE, f"it was submitted before, and {state}")
    if letter.members.get("kind") in _OF_A_REQUEST:
        return _of_request(letter, order)
    return Verdict(DeadLetterFate.SAFE, f"nothing was recorded of it; {state}")


def _cause_of(letter: Letter, queues: Queues) -> str | None:
    """Return the cause under which the journal records what a message leads to.

    For a request this is the reply of its agent: the agent may have died while the order ran on.
    Return None if the queue of the message leads to no row.

    Raises:
        MalformedError, OtherVersionError: its body cannot be read.
    """
    queue, message = letter.source.removesuffix(URGENT_SUFFIX), letter.peeked
    if queues.takes_orders(letter.source):
        first_id = message.properties.get(FIRST_ID, message.message_id)
        return cause_of(queues.orders, str(letter.members.get("submission_id") or first_id))
    if queue == queues.scheduler:
        return cause_of(queue, internal.decode_for_scheduler(message.body).id)
    if queue.startswith(queues.agent_prefix):
        request = internal.decode(message.body, RequestMessage)
        reply = reply_id(request.order_id, request.step, request.direction, request.epoch)
        return cause_of(queues.scheduler, reply)
    return None


def _of_recorded(entry: JournalEntry, state: str) -> Verdict:
    """Return the fate of a message whose cause the journal row ``entry`` records.

    If the row has messages, the process may have died after the commit and before it sent them. So
    it is safe to send the dead letter again: the recorded messages are then sent under the same
    ids, and none of them counts twice.
    """
    position = f"(seq {entry.seq})"
    if not entry.what.acts:
        return Verdict(DeadLetterFate.DONE, f"it was fenced {position}; {state}")
    effect = f"it led to {entry.what!s} {position}"
    if not entry.messages:
        return Verdict(DeadLetterFate.DONE, f"{effect}; {state}")
    return Verdict(DeadLetterFate.SAFE, f"{effect}, and may not have sent its messages")


def _of_request(letter: Letter, order: Order) -> Verdict:
    number, epoch = letter.members.get("step"), letter.members.get("epoch")
    if not isinstance(number, int) or not 0 <= number < len(order.steps):
        return Verdict(DeadLetterFate.UNKNOWN, "its body names no step of the order")
    step = order.steps[number]
    if step.dispatched and step.epoch == epoch:
        return Verdict(DeadLetterFate.SAFE, f"{step.name} still waits for it (epoch {epoch})")
    state = f"{step.name} is {step.process_state.value} at epoch {step.epoch}"
    return Verdict(DeadLetterFate.DONE, f"{state}: epoch {epoch} is over")


# -- Rejected orders --------------------------------------------------------------------------


def is_internal(part: RejectedMessage, queues: Queues) -> bool:
    """Return whether a rejected message came from a part of the system, or is a callback."""
    queue = part.source_queue.removesuffix(URGENT_SUFFIX)
    return queue == queues.scheduler or queue.startswith(queues.agent_prefix)


def is_outgoing(part: RejectedMessage, queues: Queues) -> bool:
    """Return whether a rejected message is a notification or an alert that nobody took."""
    return part.source_queue == queues.alerts or queues.is_response(part.source_queue)


def is_order(part: RejectedMessage, queues: Queues) -> bool:
    """Return whether a rejected message is an order that never began.

    Another message may name an order too, and that order goes on. This is so for a message inside
    the system, a callback, a notification, and a second order with an id that is taken.
    """
    is_taken = part.reason == Reason.ORDER_ID_TAKEN
    other = is_internal(part, queues) or is_outgoing(part, queues)
    return bool(part.order_id) and not is_taken and not other


def rejected_orders(letters: Sequence[Letter], queues: Queues) -> list[RejectedMessage]:
    """Return the first part of each rejected order, the newest first."""
    parts = [letter.rejected for letter in letters]
    first_parts = [part for part in parts if part and part.part == 1 and is_order(part, queues)]
    return sorted(first_parts, key=lambda part: part.at, reverse=True)
