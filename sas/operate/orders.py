"""One order with all that is known of it.

``explain`` answers for an order that the table has, ``queued`` for one that is only in a queue yet.
The terminal and the desk draw their answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.codec.record import record_of, to_line
from sas.codec.strict import MalformedError
from sas.domain.ids import parse_key_time
from sas.domain.messages import JournalEntry, Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord
from sas.domain.queues import Queues, lane
from sas.domain.texts import command, quoted
from sas.domain.workflow import Workflows
from sas.engine.delivery import BUG, DEPLOY_WAIT
from sas.features.circuit_breaker.guard import breakers
from sas.operate import finding, letters
from sas.operate.commands import Intent, act_on
from sas.operate.errors import NotPossibleError, ServiceUnavailableError
from sas.operate.finding import is_failed
from sas.operate.journal import Attempt, Fold, agents_of, attempts, folded, left_since
from sas.operate.letters import Letter, PeekResult
from sas.operate.messages import cause_of
from sas.operate.record import Record
from sas.operate.why import (
    Awaited,
    AwaitedMessage,
    Circuit,
    StepError,
    Waits,
    Whereabouts,
    attempt_error,
    circuit_of,
    held,
    story,
    waits_for,
    waits_of,
)
from sas.ports import QUEUE_DISABLED, QUEUE_MISSING, MessageBus, OtherVersionError, StateStore

IF_IT_LASTS = "If this lasts, check that the function app runs."
_UNUSABLE = {
    QUEUE_DISABLED: "Enable it: set its status to Active.",
    QUEUE_MISSING: "Create it, or correct the name.",
}
SUBMITTED = "Submitted"
"""The state of an order that no function has stored yet."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStory:
    """One step with its attempts. ``waits`` says what it waits for, if it is open.

    ``last_error`` is that of the last attempt, unless the step is done.
    """

    record: StepRecord
    waits: Waits | None
    agent: str | None
    last_error: StepError | None
    attempts: Sequence[Attempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStory:
    """One order and its journal, what they tell, and the acts that are possible.

    ``folds`` has the journal in words.
    """

    order: Order
    journal: Sequence[JournalEntry]
    story: str
    waits: Waits
    acts: tuple[Act, ...]
    steps: Sequence[StepStory]
    folds: Sequence[Fold]

    @property
    def rows_removed(self) -> int:
        """How many rows of its journal are not stored any more, from the first one on."""
        return self.journal[0].seq - 1 if self.journal else 0

    def line(self, complete_order: Order | None = None) -> str:
        """Return the story as JSON; with the content of ``complete_order``, if it is given."""
        content = complete_order is not None
        record = record_of(complete_order or self.order, self.journal, content=content)
        return to_line(record | {"Story": self.story, "Waits": self.waits, "Acts": self.acts})


class QueuedOrder(Record, frozen=True):
    """An order that the table does not have: submitted and not stored yet, or rejected.

    ``message_id`` names the message of a rejected order.
    """

    order_id: str
    process_state: str
    story: str
    waits: Waits
    message_id: str | None = None


def story_of(
    order: Order,
    journal: Sequence[JournalEntry],
    *,
    now: datetime,
    circuits: Mapping[str, Circuit],
    workflows: Workflows | None,
) -> OrderStory:
    """Return what an order, its journal and the circuits tell. The queues are not looked at."""
    agents = agents_of(order, journal, workflows)
    all_attempts = attempts(order, journal)
    waits = waits_for(order, now, agents=agents, circuits=circuits)
    return OrderStory(
        order=order,
        journal=journal,
        story=story(order, journal),
        waits=held(order, waits, left_since(journal)),
        acts=tuple(acts_of(order)),
        steps=[
            StepStory(
                record=step,
                waits=waits_of(step, now) if step.complete_by else None,
                agent=agents.get(step.number),
                last_error=attempt_error(step),
                attempts=[attempt for attempt in all_attempts if attempt.step == step.number],
            )
            for step in order.steps
        ],
        folds=folded(order, journal),
    )


def acts_of(order: Order) -> Iterator[Act]:
    """Yield the commands that are possible now."""
    failed_steps = tuple(step.name for step in order.steps if is_failed(step))
    awaiting_steps = tuple(step.name for step in order.steps if step.awaits_callback)
    has_calls = act_on(order, Intent(verb=Verb.UNDO, by="")).verb is Verb.CANCEL
    result = " --input RESULT" if order.direction is Direction.DO else ""
    typed = {
        Verb.RESUBMIT: ("resubmit", ""),
        Verb.SKIP: ("skip", f"--step {''.join(failed_steps[:1])}{result}"),
        Verb.CANCEL: ("undo", ""),
        Verb.UNDO: ("undo", "--now" * has_calls),
        Verb.ACKNOWLEDGE: ("show", "--acknowledge"),
        Verb.CALLBACK: ("callback", f"--step {''.join(awaiting_steps[:1])}"),
    }
    if not has_calls:
        del typed[Verb.CANCEL]
    if order.acknowledged_by:
        del typed[Verb.ACKNOWLEDGE]
    steps_of = {
        Verb.RESUBMIT: failed_steps,
        Verb.SKIP: failed_steps,
        Verb.CALLBACK: awaiting_steps,
    }
    for verb, (word, options) in typed.items():
        steps = steps_of.get(verb, ())
        intent = Intent(
            verb=verb,
            by="",
            step=steps[0] if steps and verb is Verb.CALLBACK else None,
            input="RESULT" if verb is Verb.SKIP else None,
            at_once=verb is Verb.UNDO,
        )
        act = act_on(order, intent)
        # Another act does the same if the scheduler's word is another one: a skip as a callback.
        if act.problem or act.verb is not verb:
            continue
        effect = act.would
        if verb is Verb.CALLBACK:
            effect = f"end {' or '.join(steps)} as the callback would: done, or refused"
        yield Act(
            verb=verb.value,
            command=command(f"sas {word}", order.order_id, options=options),
            effect=effect,
            steps=steps,
            final=verb in {Verb.UNDO, Verb.CANCEL},
            takes_input=bool(steps) and order.direction is Direction.DO,
        )


# -- The message that it waits for ------------------------------------------------------------


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
    shared = await breakers(store).all()
    circuits = {agent: circuit_of(agent, breaker.value) for agent, breaker in shared.items()}
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
        waits, letter, since = await _with_message(
            bus, order, waits, step=step, queues=queues, agents=agents
        )
        agent = waits.agent or _agent_of(letter, queues)
        waits = replace(waits, agent=agent, circuit=circuits.get(agent or ""))
    postponed_since = left_since(journal)
    if since is not None:
        waits = held(order, waits, since)
    elif letter is None and postponed_since is not None:
        text = "none: the supervisor postpones it"
        message = AwaitedMessage(place=Whereabouts.NONE, text=text, since=postponed_since)
        waits = replace(waits, message=message)
    return dataclasses.replace(order_story, waits=waits)


async def _with_command(
    bus: MessageBus | None, order: Order, waits: Waits, queues: Queues
) -> tuple[Waits, Letter | None]:
    """Look for a command for an order in Error that is still in the queues of the scheduler."""
    paths = [lane(queues.scheduler, urgent=urgent) for urgent in (False, True)]
    for letter in (await letters.read(bus, paths, queues)).letters if bus else ():
        with suppress(MalformedError, OtherVersionError):
            body = internal.decode(letter.peeked.body, CommandMessage)
            if body.order_id == order.order_id and body.seq in {None, order.seq}:
                message = _in_queue(letter, f"{body.verb} by {body.by} ")
                waits = replace(
                    waits,
                    kind=Awaited.COMMAND,
                    awaited="A scheduler, to carry out a command.",
                    then=IF_IT_LASTS,
                    todo="",
                    message=message,
                )
                return waits, letter
    return waits, None


async def _with_message(
    bus: MessageBus | None,
    order: Order,
    waits: Waits,
    *,
    step: StepRecord,
    queues: Queues,
    agents: set[str],
) -> tuple[Waits, Letter | None, datetime | None]:
    """Look for the message that moves a step on.

    It may be left to another instance, or another message of the order is, since the third value.
    If its queue cannot be used, the order waits for that queue.
    """
    if step.resting:
        text = "none: the supervisor sends one when the rest is over"
        message = AwaitedMessage(place=Whereabouts.NONE, text=text)
        return replace(waits, message=message), None, None
    if bus is None:
        text = "not looked for: no Service Bus namespace is configured"
        message = AwaitedMessage(place=Whereabouts.UNKNOWN, text=text)
        return replace(waits, message=message), None, None
    paths = letters.waiting_paths(order, step, queues, agents)
    contents = await letters.read(bus, paths, queues)
    # A dead letter of an application may name any order, and say anything of it.
    internals = [each for each in contents.letters if not queues.takes_orders(each.source)]
    place = letters.place_of(order, step, internals)
    since = min(
        (
            letter.left_since
            for letter in internals
            if letter.left_since and letter.order_id == order.order_id
        ),
        default=None,
    )
    if place is None:
        waits = replace(waits, message=_in_no_queue(step, contents.problems, agents))
        if len(agents) == 1 or not step.dispatched or step.awaits_callback:
            waits = _for_its_queue(waits, paths[: paths.index(queues.dead_letters)], contents)
        return waits, None, since
    letter, before = place
    message = replace(_in_queue(letter), before=before)
    return replace(waits, message=message), letter, since


def _for_its_queue(waits: Waits, paths: Sequence[str], contents: PeekResult) -> Waits:
    """Return that an order waits for the first of these queues that is missing or disabled."""
    for path in paths:
        for reason, todo in _UNUSABLE.items():
            if contents.problems.get(path, "").endswith(reason):
                return replace(
                    waits,
                    kind=Awaited.QUEUE,
                    awaited=f"Queue {path}, which cannot be used.",
                    then="With it, the order goes on by itself.",
                    todo=todo,
                )
    return waits


def _in_queue(letter: Letter, what: str = "") -> AwaitedMessage:
    """Return a message that was found; ``what`` it is, if it is not the usual one."""
    what = what or "scheduled " * letter.peeked.is_scheduled
    return AwaitedMessage(
        place=Whereabouts.IN_QUEUE,
        text=f"{what}in {letter.path}",
        queue=letter.path,
        since=letter.since,
    )


def _in_no_queue(
    step: StepRecord, problems: Mapping[str, str], agents: Collection[str]
) -> AwaitedMessage:
    place, text = Whereabouts.UNKNOWN, "not known, because the queue of its agent is not"
    if problems:
        text = f"not known: {next(iter(problems.values()))}"
    elif step.awaits_callback:
        place = Whereabouts.NONE
        text = "none: the callback comes by HTTP, and has not come"
    elif agents or not step.dispatched:
        place = Whereabouts.IN_HAND
        actor = "its agent" if step.dispatched else "a scheduler"
        text = (
            f"in no queue: {actor} is handling it. If its process died, the message comes again "
            "when its lock ends, within half a minute."
        )
    return AwaitedMessage(place=place, text=text)


def _agent_of(letter: Letter | None, queues: Queues) -> str | None:
    """Return the agent in whose queue a letter is; None if it is in another queue."""
    queue = letter.source.removesuffix("-urgent") if letter else ""
    if not queue.startswith(queues.agent_prefix):
        return None
    return queue.removeprefix(queues.agent_prefix)


# -- An order that is only in a queue ---------------------------------------------------------


async def queued(bus: MessageBus | None, queues: Queues, order_id: str) -> QueuedOrder:
    """Return an order that the table does not have.

    Raises:
        NotPossibleError: there is no such order.
        ServiceUnavailableError: ``orders-rejected`` cannot be read.
    """
    if bus is None:
        raise NotPossibleError(finding.no_such_order(order_id))
    if letter := await letters.submitted(bus, queues, order_id):
        return QueuedOrder(
            order_id=order_id,
            process_state=SUBMITTED,
            story="It was submitted, and has not begun.",
            waits=_to_begin(letter),
        )
    contents = await letters.read(bus, [queues.rejected], queues)
    if contents.problems:
        raise ServiceUnavailableError(
            f"there is no order {order_id!r} in the table, and whether it was rejected is not "
            f"known: {contents.problems[queues.rejected]}"
        )
    parts = letters.rejected_orders(contents.letters, queues)
    part = next((part for part in parts if part.order_id == order_id), None)
    if part is None:
        raise NotPossibleError(finding.no_such_order(order_id))
    message = AwaitedMessage(
        place=Whereabouts.IN_QUEUE,
        text=f"on {queues.rejected}, {part.id}",
        queue=queues.rejected,
        since=parse_key_time(part.at),
    )
    return QueuedOrder(
        order_id=order_id,
        process_state=OrderState.REJECTED.value,
        story=f"It was rejected and never began: {part.reason}: {cause_of(part)}.",
        waits=Waits(
            kind=Awaited.NOTHING,
            awaited="Nothing.",
            todo=f"Correct it and submit it again, or `{command('sas messages resend', part.id)}`.",
            message=message,
        ),
        message_id=part.id,
    )


def _to_begin(letter: Letter) -> Waits:
    """Return what an order waits for that no function has stored yet, by its message."""
    members, left_at = letter.members, letter.left_since
    version, bug = members.get("workflow_version"), letter.peeked.properties.get(BUG)
    number = "" if version is None else f" version {version}"
    workflow = quoted(f"{members.get('workflow')}{number}")
    waits = Waits(
        kind=Awaited.FUNCTION_APP,
        awaited="The function app, to take its message.",
        then=IF_IT_LASTS,
    )
    if left_at is not None:
        waits = Waits(
            kind=Awaited.DEPLOY,
            awaited=f"A deploy that has {workflow}: no instance has it.",
            then="Without it, the order is rejected.",
            todo="Deploy it, or correct the workflow that the order names and submit it again.",
            at=left_at + DEPLOY_WAIT,
        )
    elif bug is not None:
        waits = Waits(
            kind=Awaited.DEPLOY,
            awaited=f"A deploy that mends a bug: {quoted(bug)}.",
            todo="Deploy a mended version; do not submit the order again.",
        )
    return replace(waits, message=_in_queue(letter))
