"""Read messages in queues for operators, and judge dead letters by the state of their orders.

This module only peeks at queues. It locks and removes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from sas.codec import internal
from sas.codec.external import RejectedMessage
from sas.codec.internal import (
    CallbackMessage,
    CommandMessage,
    Envelope,
    Kind,
    ProgressMessage,
    ReplyMessage,
    RequestMessage,
    WakeMessage,
)
from sas.codec.orders import salvage
from sas.codec.strict import MalformedError, Reason, convert
from sas.domain.ids import URGENT_SUFFIX, cause_of, check_agent, parse_key_time, reply_id
from sas.domain.messages import JournalEntry
from sas.domain.order import Order, StepRecord
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.engine.delivery import DEPLOY_WAIT, FAILING_CHECK, FIRST_ID, LEFT_SINCE
from sas.engine.receiver import FIRST_AT, SOURCE
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
# msgspec can decode into a union, but the type hint of ``internal.decode`` names one class only.
_INTERNAL_MESSAGE: type[Envelope] = (
    WakeMessage | CommandMessage | ReplyMessage | ProgressMessage | CallbackMessage  # type: ignore[assignment]
)
DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"


LetterKey = tuple[str, int]
"""The path and the sequence number of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message in a queue. ``path`` names the queue or its dead-letter subqueue.

    ``source`` is the queue that gave a dead letter up; for other messages it is the queue itself.
    ``order_id`` comes from the body, and a sender can forge it.
    """

    path: str
    peeked: Peeked
    source: str
    order_id: str | None

    @property
    def key(self) -> LetterKey:
        """What no other message has: the path and the sequence number."""
        return self.path, self.peeked.sequence

    @property
    def since(self) -> datetime:
        """Since when the message waits. A message that was put back keeps its age."""
        return _moment(self.peeked.properties.get(FIRST_AT)) or self.peeked.enqueued_at

    @property
    def left_since(self) -> datetime | None:
        """Since when it is left to an instance that has its workflow; None if nobody left it."""
        return _moment(self.peeked.properties.get(LEFT_SINCE))


def _moment(text: str | None) -> datetime | None:
    """Return the moment of a text that a sender may have written; None if it is none."""
    with suppress(ValueError):
        return parse_key_time(text or "")
    return None


@dataclass(frozen=True, slots=True)
class PeekResult:
    """The messages of several queues. ``problems`` says, by queue, why a queue cannot be read."""

    letters: Sequence[Letter]
    problems: dict[str, str]


async def read(
    bus: MessageBus,
    paths: Iterable[str],
    limit: int = READ_MAX,
    tell: Callable[[int], None] = lambda _count: None,
) -> PeekResult:
    """Return at most ``limit`` messages of each of these queues, one queue after the other.

    ``tell`` gets how many queues are read.
    """
    gate = asyncio.Semaphore(PEEKS_AT_ONCE)
    names = list(dict.fromkeys(paths))
    count = 0

    async def peek(path: str) -> list[Peeked] | str:
        nonlocal count
        async with gate:
            try:
                return await bus.peek(path, limit)
            except BusUnavailableError as error:
                return str(error)
            finally:
                count += 1
                tell(count)

    answers = await asyncio.gather(*map(peek, names))
    letters: list[Letter] = []
    problems: dict[str, str] = {}
    for path, answer in zip(names, answers, strict=True):
        if isinstance(answer, str):
            problems[path] = answer
        else:
            letters += [letter_of(path, message) for message in answer]
    return PeekResult(letters, problems)


def letter_of(path: str, message: Peeked) -> Letter:
    """Return a peeked message together with its queue, its source and its OrderID."""
    queue = path.removesuffix(DEAD_LETTER_SUBQUEUE)
    source = message.source or message.properties.get(SOURCE) or queue
    return Letter(path=path, peeked=message, source=source, order_id=order_of(message.body))


def order_of(body: bytes) -> str | None:
    """Return the OrderID in the body of a message of any kind; None if the body has none."""
    order_id = salvage(body).order_id
    if order_id is None:
        with suppress(ValueError, TypeError, KeyError):
            order_id = json.loads(body)["data"]["order_id"]
    return order_id if isinstance(order_id, str) else None


def rejected_of(message: Peeked) -> RejectedMessage | None:
    """Return the decoded body of a message of ``orders-rejected``; None for any other body."""
    with suppress(MalformedError):
        return convert(message.body, RejectedMessage)
    return None


def dead_letter_paths(queues: Queues, agents: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the path of ``dead-letters``, and of the dead-letter subqueue of every queue."""
    names = dict.fromkeys((*queues.own(agents), *others))
    return [queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in names)]


def agents_here(queues: Queues, folder: Path = Path()) -> set[str]:
    """Return the agents whose queues ``infra/queues.json`` names, if that file can be read."""
    prefix, agents = queues.agent_prefix, set()
    # The reply queues have the prefix of agents' queues too.
    reply_queues = {queues.replies, lane(queues.replies, urgent=True)}
    for queue in expected_queues(folder):
        if queue.startswith(prefix) and queue not in reply_queues:
            with suppress(ValueError):
                agents.add(check_agent(queue.removeprefix(prefix)))
    return agents


def expected_queues(folder: Path = Path()) -> dict[str, dict[str, Any]]:
    """Return the properties of each queue in ``infra/queues.json``, if that file can be read."""
    try:
        content = json.loads((folder / "infra" / "queues.json").read_text(encoding="utf-8"))
        kinds = content["kinds"]
        return {queue["name"]: kinds[queue["kind"]]["properties"] for queue in content["queues"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# -- An order that is not stored yet ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The message of an order that no function has stored yet, and the workflow that it names.

    ``until`` is when the order is rejected, if no instance has its workflow until then. It is None
    if no instance left the message to others. ``bug`` is the error of the check that it waits for.
    """

    letter: Letter
    workflow: str
    until: datetime | None
    bug: str | None


async def submitted(bus: MessageBus | None, queues: Queues, order_id: str) -> Submitted | None:
    """Return the message of an order in its queue of orders; None if there is none.

    The operator may have no right to read this queue. Then there is none.
    """
    if bus is None:
        return None
    queue = queues.orders_for(order_id)
    contents = await read(bus, [lane(queue, urgent=urgent) for urgent in (False, True)])
    letter = next((letter for letter in contents.letters if letter.order_id == order_id), None)
    if letter is None:
        return None
    members = _members(letter.peeked.body)
    workflow, version = members.get("workflow"), members.get("workflow_version")
    since = letter.left_since
    return Submitted(
        letter=letter,
        workflow=f"{workflow} version {version}" if version is not None else f"{workflow}",
        until=since + DEPLOY_WAIT if since else None,
        bug=letter.peeked.properties.get(FAILING_CHECK),
    )


# -- The message that an order waits for ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the message that an order waits for.

    ``before`` is how many messages are in front of it. Scheduled messages do not count.
    """

    letter: Letter
    before: int


def waiting_paths(order: Order, step: StepRecord, queues: Queues, agents: set[str]) -> list[str]:
    """Return the queues that may hold the next message of a step, the most likely ones first."""
    urgent = order.details.urgent
    if step.awaits_callback:
        names = [lane(queues.callbacks, urgent=urgent)]
    elif step.dispatched:
        names = [queues.agent(name, urgent=urgent) for name in sorted(agents)]
        names.append(lane(queues.replies, urgent=urgent))
    else:
        names = [lane(queues.scheduler, urgent=urgent)]
    return [*names, queues.dead_letters, *(name + DEAD_LETTER_SUBQUEUE for name in names)]


def place_of(order: Order, step: StepRecord, letters: Sequence[Letter]) -> Place | None:
    """Return the place of a step's message; None if none of these letters is that message."""
    counts = Counter[str]()
    for letter in letters:
        if letter.order_id == order.order_id and _is_for(letter, step):
            return Place(letter, counts[letter.path])
        counts[letter.path] += not letter.peeked.is_scheduled
    return None


def _is_for(letter: Letter, step: StepRecord) -> bool:
    members = _members(letter.peeked.body)
    kind = members.get("kind")
    if not step.dispatched:
        return kind in (Kind.WAKE, Kind.COMMAND)
    if step.awaits_callback:
        return kind == Kind.CALLBACK and members.get("step") == step.number
    return (
        kind in (Kind.REQUEST, Kind.REPLY, Kind.PROGRESS)
        and members.get("step") == step.number
        and members.get("epoch") == step.epoch
    )


def _members(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        members = json.loads(body)
        return members if isinstance(members, dict) else {}
    return {}


# -- The fate of a dead letter ----------------------------------------------------------------


class DeadLetterFate(Enum):
    """What would happen if a dead letter were sent again."""

    SAFE = "safe to send again"
    DONE = "already done"
    GONE = "order gone"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a dead letter, the reason in a sentence, and the order if there is one."""

    fate: DeadLetterFate
    why: str
    order: Order | None = None


async def judge_all(
    store: StateStore | None, letters: Iterable[Letter], queues: Queues
) -> dict[LetterKey, Verdict]:
    """Return the verdict of each dead letter among these, by its key."""
    gate = asyncio.Semaphore(PEEKS_AT_ONCE)
    dead = [letter for letter in letters if is_dead(letter, queues)]

    async def verdict(letter: Letter) -> Verdict:
        async with gate:
            return await judge(store, letter, queues)

    verdicts = await asyncio.gather(*map(verdict, dead))
    return {letter.key: verdict for letter, verdict in zip(dead, verdicts, strict=True)}


def is_dead(letter: Letter, queues: Queues) -> bool:
    """Return whether a queue gave this message up."""
    return letter.path.endswith(DEAD_LETTER_SUBQUEUE) or letter.path == queues.dead_letters


async def judge(store: StateStore | None, letter: Letter, queues: Queues) -> Verdict:
    """Return what would happen if a dead letter were sent again, by the state of its order.

    Without a store, the orders are not known.
    """
    order = await store.load(letter.order_id) if store and letter.order_id else None
    source = letter.source.removesuffix(URGENT_SUFFIX)
    if letter.source.startswith(queues.response_prefix) or source == queues.alerts:
        return Verdict(DeadLetterFate.SAFE, "its reader may get it twice, under the same id", order)
    if letter.order_id is None:
        return Verdict(DeadLetterFate.UNKNOWN, "its body names no order")
    if store is None:
        return Verdict(DeadLetterFate.UNKNOWN, "the state of its order cannot be read")
    if queues.takes_orders(letter.source):
        return await _of_submission(store, letter, order, queues)
    if order is None:
        return Verdict(DeadLetterFate.GONE, "there is no such order (it may have been purged)")
    return await _of_internal(store, letter, order=order, queue=source, queues=queues)


async def _of_submission(
    store: StateStore, letter: Letter, order: Order | None, queues: Queues
) -> Verdict:
    if order is None:
        return Verdict(DeadLetterFate.SAFE, "there is no such order: it would be submitted now")
    if order.rejected:
        return Verdict(
            DeadLetterFate.SAFE, "the order was given up, and a new submission runs it", order
        )
    members, message = _members(letter.peeked.body), letter.peeked
    name = members.get("submission_id") or message.properties.get(FIRST_ID, message.message_id)
    entry = await store.recorded(order.order_id, cause_of(queues.orders, str(name)))
    if entry is not None:
        return _of_recorded(entry, order)
    state = order.process_state.value
    return Verdict(DeadLetterFate.DONE, f"the order was submitted and is {state}", order)


def _of_recorded(entry: JournalEntry, order: Order) -> Verdict:
    """Return the fate of a message whose cause the journal row ``entry`` records.

    If the row has messages, the process may have died after the commit and before it sent them. So
    it is safe to send the dead letter again: the recorded messages are then sent under the same
    ids, and none of them counts twice.
    """
    position, state = f"(seq {entry.seq})", order.process_state.value
    if not entry.what.acts:
        return Verdict(
            DeadLetterFate.DONE, f"it was fenced {position}; the order is {state}", order
        )
    effect = f"it led to {entry.what!s} {position}"
    if not entry.messages:
        return Verdict(DeadLetterFate.DONE, f"{effect}; the order is {state}", order)
    return Verdict(DeadLetterFate.SAFE, f"{effect}, and may not have sent its messages", order)


async def _of_internal(
    store: StateStore, letter: Letter, *, order: Order, queue: str, queues: Queues
) -> Verdict:
    if queue not in {queues.scheduler, queues.replies, queues.callbacks}:
        if queue.startswith(queues.agent_prefix):
            return await _of_agents_request(store, letter, order, queues)
        return Verdict(
            DeadLetterFate.UNKNOWN, f"the order is {order.process_state.value}: look at it", order
        )
    try:
        message = internal.decode(letter.peeked.body, _INTERNAL_MESSAGE)
    except (MalformedError, OtherVersionError) as error:
        return Verdict(DeadLetterFate.UNKNOWN, f"its body cannot be read: {error}", order)
    entry = await store.recorded(order.order_id, cause_of(queue, message.id))
    if entry is not None:
        return _of_recorded(entry, order)
    if isinstance(message, ReplyMessage | ProgressMessage):
        return _of_request(letter, order)
    state = order.process_state.value
    return Verdict(DeadLetterFate.SAFE, f"nothing was recorded of it; the order is {state}", order)


async def _of_agents_request(
    store: StateStore, letter: Letter, order: Order, queues: Queues
) -> Verdict:
    """Return the fate of a request. If its agent replied, it may have died while it ran on."""
    try:
        request = internal.decode(letter.peeked.body, RequestMessage)
    except (MalformedError, OtherVersionError) as error:
        return Verdict(DeadLetterFate.UNKNOWN, f"its body cannot be read: {error}", order)
    reply = reply_id(order.order_id, request.step, request.direction, request.epoch)
    entry = await store.recorded(order.order_id, cause_of(queues.replies, reply))
    return _of_request(letter, order) if entry is None else _of_recorded(entry, order)


def _of_request(letter: Letter, order: Order) -> Verdict:
    members = _members(letter.peeked.body)
    number, epoch = members.get("step"), members.get("epoch")
    if not isinstance(number, int) or not 0 <= number < len(order.steps):
        return Verdict(DeadLetterFate.UNKNOWN, "its body names no step of the order", order)
    step = order.steps[number]
    if step.dispatched and step.epoch == epoch:
        return Verdict(
            DeadLetterFate.SAFE, f"{step.name} still waits for it (epoch {epoch})", order
        )
    state = step.process_state.value
    return Verdict(
        DeadLetterFate.DONE,
        f"{step.name} is {state} at epoch {step.epoch}: epoch {epoch} is over",
        order,
    )


# -- Rejected orders --------------------------------------------------------------------------


def is_internal(part: RejectedMessage, queues: Queues) -> bool:
    """Return whether a rejected message came from a part of the system, or is a callback."""
    queue = part.source_queue.removesuffix(URGENT_SUFFIX)
    shared_queues = {queues.scheduler, queues.replies, queues.callbacks}
    return queue in shared_queues or queue.startswith(queues.agent_prefix)


def is_outgoing(part: RejectedMessage, queues: Queues) -> bool:
    """Return whether a rejected message is a notification or an alert that nobody took."""
    return part.source_queue == queues.alerts or part.source_queue.startswith(
        queues.response_prefix
    )


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
    parts = [rejected_of(letter.peeked) for letter in letters]
    first_parts = [part for part in parts if part and part.part == 1 and is_order(part, queues)]
    return sorted(first_parts, key=lambda part: part.at, reverse=True)
