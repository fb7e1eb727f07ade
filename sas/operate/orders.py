"""Orders as records: one order with all that is known of it, and many as rows of a list.

``explain`` answers for an order that the table has, ``queued`` for one that is only in a queue yet.
``list_of`` answers for many orders, and ``export_lines`` gives finished ones with their content.
The terminal and the desk draw these records.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from msgspec.structs import replace

from sas.codec import internal
from sas.codec.external import RejectedMessage
from sas.codec.internal import CommandMessage
from sas.codec.record import record_of, to_line
from sas.codec.strict import MalformedError
from sas.domain.change import StepDue
from sas.domain.ids import parse_key_time
from sas.domain.messages import JournalEntry, Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState, UndoStatus
from sas.domain.queues import Queues, lane
from sas.domain.workflow import Workflows
from sas.engine.delivery import DEPLOY_WAIT, FAILING_CHECK
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker
from sas.features.claim_check import ClaimCheck
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents
from sas.operate import finding, letters
from sas.operate.commands import Intent, act_on
from sas.operate.errors import NotPossibleError, ServiceUnavailableError
from sas.operate.finding import OrderQuery, is_failed
from sas.operate.journal import Attempt, Fold, agents_of, attempts, folded, left_since
from sas.operate.letters import Letter
from sas.operate.record import Record
from sas.operate.why import (
    AwaitedMessage,
    Circuit,
    StepError,
    Waits,
    attempt_error,
    circuit_of,
    held,
    story,
    waits_for,
    waits_of,
)
from sas.ports import CorruptOrderError, MessageBus, OtherVersionError, StateStore, Summary

COUNTED_MAX = 1000
"""Other orders are counted up to this number only: a list must not take long for them."""
IN_ERROR_MAX = 10_000
"""Orders in Error are counted and grouped up to this number."""
LATELY = timedelta(hours=1)
"""Orders that finished within this time count as finished lately."""
IF_IT_LASTS = "If this lasts, check that the function app runs."
SUBMITTED = "Submitted"
"""The state of an order that no function has stored yet."""


# -- One order --------------------------------------------------------------------------------


class StepStory(Record, frozen=True):
    """One step. ``awaited`` says what it waits for, and ``doing`` in two words, if it is open.

    ``epoch`` counts its requests, ``edits`` the inputs that an operator gave it, and ``route`` is
    the number of its agent among several.
    """

    number: int
    name: str
    process_state: str
    failure_count: int
    locked_by: str | None
    complete_by: datetime | None
    undo: str
    epoch: int
    edits: int
    route: int
    failed: bool
    awaits_callback: bool
    awaited: str
    doing: str
    agent: str | None
    circuit: Circuit | None
    error: StepError | None
    last_error: StepError | None
    attempts: tuple[Attempt, ...]


class Act(Record, frozen=True):
    """A command that is possible now: how it is typed, and its effect.

    ``steps`` has the names of the steps of which one may be chosen. A ``final`` act cannot be taken
    back. ``takes_input`` says that it may have JSON: the input of a step, or its result.
    """

    verb: str
    command: str
    effect: str
    steps: tuple[str, ...] = ()
    final: bool = False
    takes_input: bool = False


class OrderStory(Record, frozen=True):
    """One order, its steps, its journal, and the acts that are possible.

    The first ``rows_removed`` of the ``rows`` of its journal are not stored any more.
    """

    order_id: str
    process_state: str
    seq: int
    story: str
    waits: Waits
    acts: tuple[Act, ...]
    workflow: str
    version: int
    urgent: bool
    undoing: bool
    submitted_at: datetime
    stopped_at: datetime | None
    deadline: datetime | None
    locked_by: str | None
    complete_by: datetime | None
    failure_count: int
    reply_queue: str
    correlation_id: str | None
    acknowledged_by: str | None
    undone_because: str | None
    steps: tuple[StepStory, ...]
    journal: tuple[Fold, ...]
    rows: int
    rows_removed: int


def story_of(
    order: Order,
    journal: Sequence[JournalEntry],
    *,
    now: datetime,
    circuits: Mapping[str, Breaker],
    workflows: Workflows | None,
) -> OrderStory:
    """Return what an order, its journal and the circuits tell. The queues are not looked at."""
    agents = agents_of(order, journal, workflows)
    all_attempts = attempts(order, journal)
    details = order.details
    waits = waits_for(order, now, agents=agents, circuits=circuits)
    return OrderStory(
        order_id=order.order_id,
        process_state=order.process_state.value,
        seq=order.seq,
        story=story(order, journal),
        waits=held(order, waits, left_since(journal)),
        acts=tuple(acts_of(order)),
        workflow=details.workflow,
        version=details.version,
        urgent=details.urgent,
        undoing=order.direction is Direction.UNDO,
        submitted_at=details.submitted_at,
        stopped_at=order.stopped_at,
        deadline=order.deadline,
        locked_by=order.locked_by,
        complete_by=order.complete_by,
        failure_count=order.failure_count,
        reply_queue=details.reply_queue,
        correlation_id=details.correlation_id,
        acknowledged_by=order.acknowledged_by,
        undone_because=order.undone_because,
        steps=tuple(
            StepStory(
                number=step.number,
                name=step.name,
                process_state=step.process_state.value,
                failure_count=step.failure_count,
                locked_by=step.locked_by,
                complete_by=step.complete_by,
                undo="" if step.undo is UndoStatus.NOT_DECIDED else step.undo.value,
                epoch=step.epoch,
                edits=step.call.generation,
                route=step.call.route,
                failed=is_failed(step),
                awaits_callback=step.awaits_callback,
                awaited=waits_of(step, now).awaited if step.complete_by else "",
                doing=waits_of(step, now).doing if step.complete_by else "",
                agent=agents.get(step.number),
                circuit=circuit_of(agents.get(step.number), circuits),
                error=StepError(code=step.error.code, message=step.error.message)
                if step.error
                else None,
                last_error=attempt_error(step),
                attempts=tuple(attempt for attempt in all_attempts if attempt.step == step.number),
            )
            for step in order.steps
        ),
        journal=tuple(folded(order, journal)),
        rows=journal[-1].seq if journal else 0,
        rows_removed=journal[0].seq - 1 if journal else 0,
    )


def acts_of(order: Order) -> Iterator[Act]:
    """Yield the commands that are possible now."""
    failed_steps = tuple(step.name for step in order.steps if is_failed(step))
    awaiting_steps = tuple(step.name for step in order.steps if step.awaits_callback)
    undoing = order.direction is Direction.UNDO
    waits_for_calls = act_on(order, Intent(verb=Verb.UNDO, by="")).verb is Verb.CANCEL
    for verb in Verb:
        steps = {
            Verb.RESUBMIT: failed_steps,
            Verb.SKIP: failed_steps,
            Verb.CALLBACK: awaiting_steps,
        }.get(verb, ())
        step = awaiting_steps[0] if awaiting_steps and verb is Verb.CALLBACK else None
        text = "RESULT" if verb is Verb.SKIP else None
        at_once = verb is Verb.UNDO
        act = act_on(order, Intent(verb=verb, by="", step=step, input=text, at_once=at_once))
        if act.problem or (verb is Verb.ACKNOWLEDGE and order.acknowledged_by):
            continue
        if act.verb is not verb or (verb is Verb.CANCEL and not waits_for_calls):
            continue  # another act does the same, such as the callback of a step to be skipped
        effect = act.would
        if verb is Verb.CALLBACK:
            effect = f"end {' or '.join(steps)} as the callback would: done, or refused"
        yield Act(
            verb=verb.value,
            command=f"sas {_typed(verb, order, steps, waits_for_calls=waits_for_calls)}",
            effect=effect,
            steps=steps,
            final=verb in {Verb.UNDO, Verb.CANCEL},
            takes_input=bool(steps) and not undoing,
        )


def _typed(verb: Verb, order: Order, steps: Sequence[str], *, waits_for_calls: bool) -> str:
    """Return how a command is typed after ``sas``."""
    order_id = shlex.quote(order.order_id)
    match verb:
        case Verb.CANCEL:
            return f"undo {order_id}"
        case Verb.UNDO:
            return f"undo {order_id}{' --now' * waits_for_calls}"
        case Verb.ACKNOWLEDGE:
            return f"show {order_id} --acknowledge"
        case Verb.SKIP:
            result = " --input RESULT" if order.direction is Direction.DO else ""
            return f"skip {order_id} --step {steps[0]}{result}"
        case Verb.CALLBACK:
            return f"callback {order_id} --step {steps[0]}"
        case Verb.RESUBMIT:
            return f"resubmit {order_id}"


async def explain(
    store: StateStore,
    bus: MessageBus | None,
    order: Order,
    journal: Sequence[JournalEntry],
    *,
    queues: Queues,
    now: datetime,
    workflows: Workflows | None = None,
) -> OrderStory:
    """Return an order with the message that it waits for, if the queues can be peeked for it.

    Raises:
        StoreUnavailableError: the table does not answer.
    """
    breakers_by_agent = await breakers(store).all()
    circuits = {agent: shared.value for agent, shared in breakers_by_agent.items()}
    order_story = story_of(order, journal, now=now, circuits=circuits, workflows=workflows)
    waits = order_story.waits
    step = next((step for step in order.steps if step.name == waits.step), None)
    letter: Letter | None = None
    since: datetime | None = None
    if step is not None and is_failed(step):
        waits, letter = await _with_command(bus, order, waits, queues)
        since = letter.left_since if letter else None
    elif step is not None:
        agents = {waits.agent} if waits.agent else {*circuits, *letters.agents_here(queues)}
        message, letter, since = await _message(bus, order, step=step, queues=queues, agents=agents)
        agent = waits.agent or _agent_of(letter, queues)
        waits = replace(waits, message=message, agent=agent, circuit=circuit_of(agent, circuits))
    postponed_since = left_since(journal)
    if since is not None:
        waits = held(order, waits, since)
    elif letter is None and postponed_since is not None:
        message = AwaitedMessage(text="none: the supervisor postpones it", since=postponed_since)
        waits = replace(waits, message=message)
    return replace(order_story, waits=waits)


async def _with_command(
    bus: MessageBus | None, order: Order, waits: Waits, queues: Queues
) -> tuple[Waits, Letter | None]:
    """Look for a command for an order in Error that is still in the queues of the scheduler."""
    if bus is None:
        return waits, None
    paths = [lane(queues.scheduler, urgent=urgent) for urgent in (False, True)]
    for letter in (await letters.read(bus, paths)).letters:
        with suppress(MalformedError, OtherVersionError):
            command = internal.decode(letter.peeked.body, CommandMessage)
            if command.order_id == order.order_id and command.seq in {None, order.seq}:
                message = AwaitedMessage(
                    text=f"{command.verb} by {command.by} in {letter.path}",
                    queue=letter.path,
                    since=letter.since,
                )
                awaited = "A scheduler, to carry out a command."
                return (
                    replace(waits, awaited=awaited, then=IF_IT_LASTS, todo="", message=message),
                    letter,
                )
    return waits, None


async def _message(
    bus: MessageBus | None, order: Order, *, step: StepRecord, queues: Queues, agents: set[str]
) -> tuple[AwaitedMessage, Letter | None, datetime | None]:
    """Look for the message that moves a step on.

    It may be left to another instance, or another message of the order is, since the third value.
    """
    if step.resting:
        text = "none: the supervisor sends one when the rest is over"
        return AwaitedMessage(text=text), None, None
    if bus is None:
        text = "not looked for: no Service Bus namespace is configured"
        return AwaitedMessage(text=text), None, None
    contents = await letters.read(bus, letters.waiting_paths(order, step, queues, agents))
    place = letters.place_of(order, step, contents.letters)
    since = min(
        (
            letter.left_since
            for letter in contents.letters
            if letter.left_since and letter.order_id == order.order_id
        ),
        default=None,
    )
    if place is None:
        text = _in_no_queue(step, contents.problems, agents)
        return AwaitedMessage(text=text), None, since
    letter, before = place
    return replace(_message_in(letter), before=before), letter, since


def _message_in(letter: Letter) -> AwaitedMessage:
    scheduled = "scheduled " if letter.peeked.is_scheduled else ""
    return AwaitedMessage(
        text=f"{scheduled}in {letter.path}", queue=letter.path, since=letter.since
    )


def _in_no_queue(step: StepRecord, problems: Mapping[str, str], agents: Collection[str]) -> str:
    if problems:
        return f"not known: {next(iter(problems.values()))}"
    if step.awaits_callback:
        return "none: the callback comes by HTTP, and has not come"
    if step.dispatched and not agents:
        return "not known, because the queue of its agent is not"
    actor = "its agent" if step.dispatched else "a scheduler"
    return (
        f"in no queue: {actor} is handling it. If its process died, it comes again within half a "
        "minute: when the lock of the message ends with which the order began to run on"
    )


def _agent_of(letter: Letter | None, queues: Queues) -> str | None:
    """Return the agent in whose queue a letter is; None if it is in another queue."""
    queue = letter.source.removesuffix("-urgent") if letter else ""
    if queue == queues.replies or not queue.startswith(queues.agent_prefix):
        return None
    return queue.removeprefix(queues.agent_prefix)


# -- An order that is only in a queue ---------------------------------------------------------


class QueuedOrder(Record, frozen=True):
    """An order that the table does not have: submitted and not stored yet, or rejected.

    ``rejected_at`` is when it was rejected, or when it is if no instance has its workflow until
    then. The members after it are those of a rejected order.
    """

    order_id: str
    process_state: str
    story: str
    waits: Waits
    workflow: str | None = None
    rejected_at: datetime | None = None
    reason: str | None = None
    description: str | None = None
    correlation_id: str | None = None
    source_queue: str | None = None
    message_id: str | None = None


async def queued(bus: MessageBus | None, queues: Queues, order_id: str) -> QueuedOrder:
    """Return an order that the table does not have.

    Raises:
        NotPossibleError: there is no such order.
        ServiceUnavailableError: ``orders-rejected`` cannot be read.
    """
    if bus is None:
        raise NotPossibleError(finding.no_such_order(order_id))
    if letter := await letters.submitted(bus, queues, order_id):
        return _submitted(order_id, letter)
    contents = await letters.read(bus, [queues.rejected])
    if contents.problems:
        raise ServiceUnavailableError(
            f"there is no order {order_id!r} in the table, and whether it was rejected is not "
            f"known: {contents.problems[queues.rejected]}"
        )
    parts = letters.rejected_orders(contents.letters, queues)
    part = next((part for part in parts if part.order_id == order_id), None)
    if part is None:
        raise NotPossibleError(finding.no_such_order(order_id))
    todo = f"Correct it and submit it again, or `sas messages resend {part.id}`."
    return QueuedOrder(
        order_id=order_id,
        process_state=OrderState.REJECTED.value,
        story=f"It was rejected and never began: {part.description.rstrip('.')}.",
        waits=Waits(
            awaited="Nothing.",
            todo=todo,
            message=AwaitedMessage(text=f"on {queues.rejected}, {part.id}", queue=queues.rejected),
        ),
        rejected_at=parse_key_time(part.at),
        reason=part.reason,
        description=part.description,
        correlation_id=part.correlation_id,
        source_queue=part.source_queue,
        message_id=part.id,
    )


def _submitted(order_id: str, letter: Letter) -> QueuedOrder:
    """Return an order by its message. It is rejected if no instance has its workflow in time."""
    members, left_at = letter.members, letter.left_since
    version, bug = members.get("workflow_version"), letter.peeked.properties.get(FAILING_CHECK)
    workflow = f"{members.get('workflow')}" + ("" if version is None else f" version {version}")
    until = left_at + DEPLOY_WAIT if left_at else None
    waits = Waits(awaited="The function app, to take its message.", then=IF_IT_LASTS)
    if until is not None:
        waits = Waits(
            awaited=f"A deploy that has {workflow}: no instance has it.",
            then="Without it, the order is rejected.",
            todo="Deploy it, or correct the workflow that the order names and submit it again.",
            at=until,
        )
    elif bug is not None:
        waits = Waits(
            awaited=f"A deploy that mends its check: {bug}.",
            todo="Deploy a mended version; do not submit the order again.",
        )
    return QueuedOrder(
        order_id=order_id,
        process_state=SUBMITTED,
        story="It was submitted, and has not begun.",
        waits=replace(waits, message=_message_in(letter)),
        workflow=workflow,
        rejected_at=until,
    )


# -- Many orders ------------------------------------------------------------------------------


class OrderRow(Record, frozen=True):
    """One order in a list. ``process_state`` is None if only a due row of it is known.

    ``since`` is when it came into its state. ``step`` is the step that failed, or the open one at
    which the supervisor looks first, at ``until``. ``why`` says why the order is in its state, or
    what it waits for. ``message_id`` names the message of a rejected order that the table lacks.
    """

    order_id: str
    process_state: str | None
    workflow: str = ""
    version: int | None = None
    since: datetime | None = None
    submitted_at: datetime | None = None
    seq: int | None = None
    step: str = ""
    why: str = ""
    until: datetime | None = None
    fingerprints: tuple[str, ...] = ()
    undone_because: str | None = None
    acknowledged_by: str | None = None
    urgent: bool = False
    steps_done: int = 0
    steps: int = 0
    message_id: str | None = None


class FailedAlike(Record, frozen=True):
    """The orders of a list that failed alike, and how many of them are ``partly_undone``.

    ``why`` is the error of the first of them, if possible of one in which nothing else failed.
    """

    fingerprint: str
    count: int
    since: datetime | None
    why: str
    partly_undone: int = 0


class Beside(Record, frozen=True):
    """What there is beside the orders of a list; None was not counted, as the list shows it.

    Numbers end at ``COUNTED_MAX``. ``incidents`` has a headline of each active incident, those
    first that need somebody.
    """

    in_error: int | None = None
    under_way: int | None = None
    finished_lately: int | None = None
    incidents: tuple[str, ...] = ()


class OrderList(Record, frozen=True):
    """The orders that a query finds. If it ``is_cut``, there may be more of them.

    ``groups`` and ``failed_count`` are of all orders in Error that the query finds, up to
    ``IN_ERROR_MAX``. ``problem`` says why the orders on ``orders-rejected`` could not be
    read, if so.
    """

    rows: tuple[OrderRow, ...]
    groups: tuple[FailedAlike, ...]
    failed_count: int
    is_cut: bool
    problem: str = ""


def row_of(order: Order, now: datetime) -> OrderRow:
    """Return a loaded order as a row of a list."""
    failed_steps = [step for step in order.steps if is_failed(step)]
    open_steps = [step for step in order.steps if step.complete_by is not None]
    open_steps.sort(key=lambda step: step.complete_by or now)
    steps = failed_steps or open_steps
    done = {StepState.PROCESSED, StepState.COMPENSATED}
    return OrderRow(
        order_id=order.order_id,
        process_state=order.process_state.value,
        workflow=order.details.workflow,
        version=order.details.version,
        since=finding.since(order) if order.steps else order.stopped_at,
        submitted_at=order.details.submitted_at,
        seq=order.seq,
        step=steps[0].name if steps else "",
        why=order.error_text or " ".join(waits_of(step, now).awaited for step in open_steps),
        until=order.complete_by,
        fingerprints=order.fingerprints,
        undone_because=order.undone_because,
        acknowledged_by=order.acknowledged_by,
        urgent=order.details.urgent,
        steps_done=sum(step.process_state in done for step in order.steps),
        steps=len(order.steps),
    )


def row_of_summary(summary: Summary) -> OrderRow:
    """Return what an index row tells of an order that is not loaded."""
    return OrderRow(
        order_id=summary.order_id,
        process_state=summary.process_state.value,
        workflow=summary.workflow,
        version=summary.version,
        since=summary.at,
        submitted_at=summary.submitted_at,
        step=", ".join(name.partition("/")[0] for name in summary.fingerprints[:1]),
        fingerprints=summary.fingerprints,
        why=summary.error_text
        or (f"undone: {summary.undone_because}" if summary.undone_because else ""),
        undone_because=summary.undone_because,
        acknowledged_by=summary.acknowledged_by,
    )


def _row_of_part(part: RejectedMessage) -> OrderRow:
    return OrderRow(
        order_id=part.order_id or "",
        process_state=OrderState.REJECTED.value,
        since=parse_key_time(part.at),
        why=f"{part.reason}: {part.description}",
        message_id=part.id,
    )


def groups_of(rows: Iterable[OrderRow]) -> list[FailedAlike]:
    """Return the failures of these orders by fingerprint, the most frequent first."""
    rows_by_fingerprint: dict[str, list[OrderRow]] = {}
    for row in rows:
        for fingerprint in row.fingerprints:
            rows_by_fingerprint.setdefault(fingerprint, []).append(row)
    return [
        FailedAlike(
            fingerprint=fingerprint,
            count=len(members),
            since=members[0].since,
            why=min(members, key=lambda row: len(row.fingerprints)).why,
            partly_undone=sum(row.undone_because is not None for row in members),
        )
        for fingerprint, members in sorted(
            rows_by_fingerprint.items(), key=lambda item: -len(item[1])
        )
    ]


async def rows_in_error(
    store: StateStore, in_error: Sequence[Summary], now: datetime
) -> list[OrderRow]:
    """Return orders in Error as rows; ``in_error`` has their index rows.

    One is loaded only if an older version wrote its index row. If it cannot be read, its row says
    so.
    """
    gate = asyncio.Semaphore(finding.LOADS_AT_ONCE)

    async def row(summary: Summary) -> OrderRow | None:
        if summary.fingerprints:
            return row_of_summary(summary)
        async with gate:
            try:
                order = await store.load(summary.order_id)
            except (CorruptOrderError, OtherVersionError) as error:
                return replace(row_of_summary(summary), why=f"it cannot be read: {error}")
        return row_of(order, now) if order is not None else None

    rows = await asyncio.gather(*map(row, in_error))
    # An order that was taken up again leaves Error a moment before its index row is removed.
    return [row for row in rows if row and row.process_state == OrderState.ERROR.value]


async def list_of(
    store: StateStore, bus: MessageBus | None, query: OrderQuery, *, queues: Queues, now: datetime
) -> OrderList:
    """Return the orders that a query finds. In the state ``all`` those in Error come first.

    The orders on ``orders-rejected`` are in the list of rejected orders.

    Raises:
        NotPossibleError: nothing was found, and no such workflow ever ran here.
        StoreUnavailableError: the table does not answer.
    """
    rows: list[OrderRow] = []
    groups: list[FailedAlike] = []
    failed_count, problem = 0, ""
    for state in ("error", "running", "finished") if query.state == "all" else (query.state,):
        if len(rows) == query.limit:
            break
        part = OrderQuery(
            state=state,
            workflow=query.workflow,
            fingerprint=query.fingerprint,
            limit=query.limit - len(rows),
            since=query.since,
        )
        if state == "error":
            found_rows = await _rows_in_error(store, part, now)
            failed_count, groups = len(found_rows), groups_of(found_rows)
            rows += found_rows[: part.limit]
            continue
        if state == "running":
            unreadable: dict[str, str] = {}
            rows += [row_of(order, now) async for order in finding.each(store, part, unreadable)]
            rows += [
                OrderRow(order_id=order_id, process_state=None, why=f"it cannot be read: {why}")
                for order_id, why in unreadable.items()
            ]
            continue
        summaries = await finding.newest_finished(store, part, now)
        rows += [row_of_summary(summary) for summary in summaries]
        if state == "rejected" and query.workflow is None:
            queue_rows, problem = await _rejected_in_queue(store, bus, query, queues)
            rows = sorted([*rows, *queue_rows], key=lambda row: row.since or now, reverse=True)
            rows = rows[: query.limit]
    if not rows and query.workflow is not None:
        await _check_workflow(store, query.workflow)
    return OrderList(
        rows=tuple(rows),
        groups=tuple(groups),
        failed_count=failed_count,
        is_cut=len(rows) == query.limit,
        problem=problem,
    )


async def _rows_in_error(store: StateStore, query: OrderQuery, now: datetime) -> list[OrderRow]:
    """Return all orders in Error that a query finds, without its limit."""
    in_error = [
        summary
        for summary in await store.attention(IN_ERROR_MAX, since=query.since)
        if summary.process_state is OrderState.ERROR and finding.may_match(summary, query)
    ]
    rows = await rows_in_error(store, in_error, now)
    return [row for row in rows if query.fingerprint in {None, *row.fingerprints}]


async def _rejected_in_queue(
    store: StateStore, bus: MessageBus | None, query: OrderQuery, queues: Queues
) -> tuple[list[OrderRow], str]:
    """Return the orders that are only on ``orders-rejected``, and why it cannot be read, if so."""
    if bus is None:
        return [], (
            f"no Service Bus namespace is configured: orders on {queues.rejected} are not shown"
        )
    contents = await letters.read(bus, [queues.rejected])
    rows = [_row_of_part(part) for part in letters.rejected_orders(contents.letters, queues)]
    if query.since is not None:
        rows = [row for row in rows if row.since and row.since >= query.since]
    rows = rows[: query.limit]
    order_ids = list(dict.fromkeys(row.order_id for row in rows))
    stored = {order.order_id for order in await finding.load_all(store, order_ids)}
    rows = [row for row in rows if row.order_id not in stored]
    return rows, contents.problems.get(queues.rejected, "")


async def _check_workflow(store: StateStore, workflow: str) -> None:
    """Refuse the name of a workflow that never ran here, because it may be mistyped.

    Raises:
        NotPossibleError: the table remembers only other workflows.
    """
    values = await store.shared_values("workflow-")
    known_names = {name.removeprefix("workflow-").rpartition("-")[0] for name in values}
    if known_names and workflow not in known_names:
        names = ", ".join(sorted(known_names))
        raise NotPossibleError(f"no workflow {workflow!r} ever ran here: known are {names}")


async def beside(store: StateStore, state: str, now: datetime) -> Beside:
    """Return what there is beside a list of the orders in a state.

    Raises:
        StoreUnavailableError: the table does not answer.
    """

    async def in_error() -> int:
        return len(await store.attention(COUNTED_MAX))

    async def finished_lately() -> int:
        return len(await store.finished(COUNTED_MAX, since=now - LATELY))

    async def under_way() -> int:
        parts = await asyncio.gather(
            *(store.due(shard, finding.END_OF_TIME, COUNTED_MAX) for shard in store.shards)
        )
        order_ids = {due.order_id for part in parts for due in part if isinstance(due, StepDue)}
        return min(len(order_ids), COUNTED_MAX)

    async def incidents() -> tuple[str, ...]:
        shared = await active_incidents(store).all()
        active = [
            incident.value
            for incident in shared.values()
            if incident.value is not None and not rules.is_over(incident.value, now)
        ]
        active.sort(key=lambda incident: not incident.needs_you)
        return tuple(incident.headline for incident in active)

    async def nothing() -> None:
        return None

    is_all = state == "all"
    is_finished = state not in {"error", "running"}
    error_count, under_way_count, finished_count, headlines = await asyncio.gather(
        nothing() if is_all or state == "error" else in_error(),
        nothing() if is_all or state == "running" else under_way(),
        nothing() if is_finished else finished_lately(),
        incidents(),
    )
    return Beside(
        in_error=error_count,
        under_way=under_way_count,
        finished_lately=finished_count,
        incidents=headlines,
    )


# -- Finished orders with their content -------------------------------------------------------


async def export_lines(store: StateStore, until: datetime) -> AsyncIterator[Sequence[str]]:
    """Yield each order that finished at ``until`` or before as a line of JSON, the oldest first.

    A line has the order, its content and its journal: docs/contract/exported-order.schema.json.
    They come a few at a time. Their contents are read in parallel.
    """
    async for batch in finding.summaries(store, in_error=False, until=until):
        ids = [summary.order_id for summary in batch]
        for start in range(0, len(ids), finding.LOADS_AT_ONCE):
            orders = await finding.load_all(store, ids[start : start + finding.LOADS_AT_ONCE])
            lines = await asyncio.gather(
                *(_export_line(store, order, until) for order in orders if _has_ended(order, until))
            )
            yield [line for line in lines if line is not None]


async def _export_line(store: StateStore, order: Order, until: datetime) -> str | None:
    """Return an order as a line; None if it was purged, or does not match any more.

    The order and its journal are read one after the other. If the order changed meanwhile, both are
    read again.
    """
    while True:
        journal = await store.journal(order.order_id)
        line = to_line(record_of(await ClaimCheck(store).fetch_all(order), journal, content=True))
        reloaded = await store.load(order.order_id)
        if reloaded is None or not _has_ended(reloaded, until):
            return None
        if reloaded.token == order.token:
            return line
        order = reloaded


def _has_ended(order: Order, until: datetime) -> bool:
    """Return whether an order finished at ``until`` or before."""
    in_error = order.process_state is OrderState.ERROR
    return order.stopped_at is not None and order.stopped_at <= until and not in_error
