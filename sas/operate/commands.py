"""The commands of an operator: say what they would do, send them, and follow their results.

``ActPlan`` says what a command would do to each order, and which orders do not allow it. ``ActRun``
sends the commands of a plan. Each order has one record (``OrderAct``), which is filled on the way.
A command is a message to the scheduler, and nobody replies to the
sender, so ``ActRun`` reads the result from the table:

1. The scheduler carried the command out: the journal has a row whose cause is the command. If the
   row says ``fenced``, the command became a dead letter, and it was not carried out.
2. The scheduler refused the command: no row has this cause. The scheduler keeps the last reasons of
   refusals for some time (``CommandAnswers``).
3. The order has another seq than the command names: the scheduler refuses such a command. The
   journal tells what changed, even if the reason of the refusal is not kept any more.
4. None of these is true yet: the command waits in its queue, or the scheduler is handling it.
5. A resubmit or an undo was carried out: its steps run, or their undos, and end well or fail again.

A plan for many orders that is made and sent again does no harm. An order that has changed since is
left out, or refuses the command. An order that has not gets a command with the same id: Service Bus
drops it, or the scheduler finds its row in the journal.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

import msgspec

from sas.codec import internal
from sas.codec.internal import CommandMessage, FaultBody
from sas.codec.payloads import UNREADABLE, is_encoded
from sas.domain.command import awaiting, can_undo, why_not
from sas.domain.ids import cause_of, digest_id
from sas.domain.messages import JournalWord, Verb
from sas.domain.order import Direction, Fault, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues, lane
from sas.domain.texts import quoted
from sas.engine.command_answers import CommandAnswers
from sas.operate import finding
from sas.operate.errors import NotPossibleError, ServiceUnavailableError
from sas.operate.finding import OrderQuery, is_failed
from sas.operate.record import Record
from sas.ports import (
    BusUnavailableError,
    Message,
    MessageBus,
    StateStore,
    UndeliverableError,
)

JOURNAL_POLL_S = 0.25
SEND_COMMANDS_MAX = 100
"""Commands that are given to the bus in one call."""
LOOKS_AT_ONCE = 16
"""Commands whose results are looked for at the same time."""
GONE = "the order does not exist any more (finished orders are purged in the end)"
_CANCELLED = frozenset({OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR})
_ENDED = frozenset({StepState.PROCESSED, StepState.ERROR, StepState.COMPENSATED})


class Effect(Enum):
    """What a command would do to an order. ``_WOULD`` says it in words."""

    RUN_AGAIN = "run-again"
    COUNT_AS_DONE = "count-as-done"
    COUNT_AS_UNDONE = "count-as-undone"
    UNDO = "undo"
    CANCEL = "cancel"
    ACKNOWLEDGE = "acknowledge"
    END_AS_DONE = "end-as-done"
    END_AS_REFUSED = "end-as-refused"


class CommandRefusal(Enum):
    """Why a command is not possible (the first five), or was not carried out.

    ``WAITING``: it has no result yet, and may still be carried out.
    """

    REJECTED = "rejected"
    NO_SUCH_STEP = "no-such-step"
    STEP_NOT_IN_ERROR = "step-not-in-error"
    WRONG_STATE = "wrong-state"
    UNREADABLE = "unreadable"
    GONE = "gone"
    CHANGED = "changed"
    REFUSED = "refused"
    DEAD_LETTERED = "dead-lettered"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What an operator wants done with an order, or with several.

    ``at_once`` belongs to an undo: it does not wait for the running calls of an order under way.
    """

    verb: Verb
    by: str
    step: str | None = None
    input: str | None = None
    fault: Fault | None = None
    reason: str = ""
    at_once: bool = False


class OrderAct(Record, frozen=True, kw_only=True):
    """What a command would do to one order, then how it was sent, then its result.

    The plan: ``verb`` is the scheduler's word. An undo of an order under way is its ``cancel``, and
    a skip of a step that waits for a callback is its ``callback``. ``seq`` is that of the order
    when it was read; with ``any_seq`` the command is carried out even if the order has changed
    since, which the scheduler allows for a cancel only. ``failed`` has the fingerprints of the
    steps that the command changes. ``would`` says in words what its ``effect`` is, or ``problem``
    what its ``refusal`` is. Of an order that cannot be read only its id and the problem are known.

    The result: ``carried_out`` is None if it is not known. ``row`` and ``what`` are the seq and the
    word of its row in the journal. ``process_state`` is the state after it. ``problem`` says in
    words what the ``refusal`` is, or how steps failed again.
    """

    order_id: str
    verb: Verb
    process_state: str | None = None
    since: datetime | None = None
    seq: int = 0
    urgent: bool = False
    any_seq: bool = False
    failed: tuple[str, ...] = ()
    effect: Effect | None = None
    would: str = ""
    command: str = ""
    carried_out: bool | None = None
    row: int | None = None
    what: str = ""
    failed_again: bool = False
    refusal: CommandRefusal | None = None
    problem: str = ""


# -- The plan: what a command would do, or why it cannot --------------------------------------


@dataclass(slots=True, kw_only=True)
class ActPlan:
    """What a command would do to orders: the possible acts, and the others.

    The reason of ``intent`` may still change. ``limited`` says that there may be more orders than
    the query allows.
    """

    intent: Intent
    acts: list[OrderAct] = field(default_factory=list)
    others: list[OrderAct] = field(default_factory=list)
    limited: bool = False

    @property
    def counts(self) -> str:
        """How often each failure occurs, in words."""
        return finding.in_words(Counter(name for act in self.acts for name in act.failed))


async def plan_one(
    store: StateStore, order_id: str, intent: Intent, *, seq: int | None = None
) -> ActPlan:
    """Plan a command for one order. ``seq`` is what the operator saw; None takes its seq now.

    A cancel without ``seq`` is meant even if the order changes meanwhile.

    Raises:
        UsageError: no order can have this id.
        NotPossibleError: there is no such order, it has changed since, or its state does not allow
            the command.
    """
    order = await finding.load(store, order_id)
    if seq not in {None, order.seq}:
        changes = await what_changed(store, order, seq or 0)
        raise NotPossibleError(f"nothing was sent: {changes}")
    act = act_on(order, intent)
    if act.problem:
        raise NotPossibleError(
            f"nothing was sent: {intent.verb.value} of order {order_id} is not possible: "
            f"{act.problem}"
        )
    any_seq = act.any_seq and seq is None
    act = msgspec.structs.replace(act, command=f"sas-{uuid.uuid4().hex}", any_seq=any_seq)
    return ActPlan(intent=intent, acts=[act])


async def plan_many(
    store: StateStore,
    query: OrderQuery,
    intent: Intent,
    tell: Callable[[int], None] = lambda _count: None,
) -> ActPlan:
    """Plan a command for each order that a query chooses. ``tell`` gets how many were read.

    If the query names a fingerprint, the command is for the step of that fingerprint. So another
    failed step of such an order stays as it is. If the intent names a step, it is for that step.
    """
    if query.fingerprint and intent.step is None and intent.verb in {Verb.RESUBMIT, Verb.SKIP}:
        intent = replace(intent, step=query.fingerprint.partition("/")[0])
    plan = ActPlan(intent=intent)
    order_ids: set[str] = set()  # an order that changes meanwhile may come twice
    unreadable: dict[str, str] = {}
    async for order in finding.each(store, query, unreadable):
        if order.order_id not in order_ids:
            order_ids.add(order.order_id)
            act = act_on(order, intent)
            (plan.others if act.problem else plan.acts).append(act)
            tell(len(order_ids))
    plan.others += unread(unreadable, intent)
    plan.limited = len(order_ids) >= query.limit
    return plan


def unread(unreadable: Mapping[str, str], intent: Intent) -> list[OrderAct]:
    """Return the orders that cannot be read, with why, as orders that do not allow a command."""
    return [
        OrderAct(
            order_id=order_id,
            verb=intent.verb,
            refusal=CommandRefusal.UNREADABLE,
            problem=f"it cannot be read: {why}",
        )
        for order_id, why in unreadable.items()
    ]


def act_on(order: Order, intent: Intent) -> OrderAct:
    """Return what a command would do to an order, or why it cannot.

    The command has the same id each time it is made for the order at the same seq.
    """
    command = _command_for(order, intent)
    effect = _effect(order, command)
    refusal, problem = (None, "") if effect else _refusal(order, intent, command.verb)
    digest = digest_id(order.order_id, str(order.seq), repr(command))
    return OrderAct(
        order_id=order.order_id,
        verb=command.verb,
        process_state=order.process_state.value,
        since=finding.since(order),
        seq=order.seq,
        urgent=order.details.urgent,
        any_seq=command.verb is Verb.CANCEL,
        failed=tuple(step.fingerprint for step in _failed_steps(order, command)),
        effect=effect,
        would=_in_words(effect, order, command) if effect else "",
        command=f"sas-{digest}",
        refusal=refusal,
        problem=problem,
    )


def _command_for(order: Order, intent: Intent) -> Intent:
    """Return the command by which the scheduler does to this order what an operator wants.

    An undo cancels an order under way: it starts no new step, and waits for the running calls. A
    skip answers the callback that a step waits for.
    """
    has_calls = any(step.process_state is StepState.PROCESSING for step in order.steps)
    is_under_way = order.process_state in {OrderState.PENDING, OrderState.PROCESSING}
    if intent.verb is Verb.UNDO and not intent.at_once and (has_calls or is_under_way):
        return replace(intent, verb=Verb.CANCEL)
    is_awaiting = any(
        step.awaits_callback and intent.step in {None, step.name} for step in order.steps
    )
    if intent.verb is Verb.SKIP and is_awaiting and not _failed_steps(order, intent):
        return replace(intent, verb=Verb.CALLBACK)
    return intent


def _refusal(order: Order, intent: Intent, verb: Verb) -> tuple[CommandRefusal, str]:
    """Return why the scheduler's ``verb`` is not possible for an order, also in words."""
    if order.rejected:
        return CommandRefusal.REJECTED, "it was rejected, and no step began: submit it again"
    states = {step.name: step.process_state.value for step in order.steps}
    if intent.step is not None and intent.step not in states:
        return (
            CommandRefusal.NO_SUCH_STEP,
            f"it has no step {intent.step!r}, only {', '.join(states)}",
        )
    in_error = order.process_state is OrderState.ERROR and verb is not Verb.CALLBACK
    if intent.step is not None and in_error:
        state = states[intent.step]
        problem = f"the step must be in Error, and {intent.step} is {state}"
        return CommandRefusal.STEP_NOT_IN_ERROR, problem
    reason = why_not(order, verb)
    if intent.verb is Verb.UNDO and verb is Verb.CANCEL and can_undo(order):
        reason += ", and waits for the calls that run (--now does not wait for them)"
    return CommandRefusal.WRONG_STATE, reason


def _effect(order: Order, intent: Intent) -> Effect | None:
    """Return what a command would do to an order; None if it is not possible."""
    effect = None
    if order.rejected or intent.step not in {None, *(step.name for step in order.steps)}:
        return effect
    steps = _failed_steps(order, intent)
    match intent.verb:
        case Verb.RESUBMIT if steps:
            effect = Effect.RUN_AGAIN
        case Verb.SKIP if steps:
            is_undone = any(step.undo_failed for step in steps)
            effect = Effect.COUNT_AS_UNDONE if is_undone else Effect.COUNT_AS_DONE
        case Verb.UNDO if can_undo(order):
            effect = Effect.UNDO
        case Verb.CANCEL if order.process_state in _CANCELLED and order.direction is Direction.DO:
            effect = Effect.CANCEL
        case Verb.ACKNOWLEDGE if order.process_state is OrderState.ERROR:
            effect = Effect.ACKNOWLEDGE
        case Verb.CALLBACK if awaiting(order, intent.step):
            effect = Effect.END_AS_REFUSED if intent.fault else Effect.END_AS_DONE
    return effect


_WOULD = {
    Effect.RUN_AGAIN: "run again{given}: {failed}",
    Effect.COUNT_AS_DONE: "count as done{result}: {failed}",
    Effect.COUNT_AS_UNDONE: "count as undone by hand: {failed}",
    Effect.UNDO: "undo the order (there is no way back); {undone}",
    Effect.CANCEL: "start no new step, {calls}then undo the order (there is no way back); {undone}",
    Effect.ACKNOWLEDGE: "note that you have seen that it is in Error; nothing else changes",
    Effect.END_AS_DONE: "end {awaiting} as done{result}",
    Effect.END_AS_REFUSED: "end {awaiting} as refused ({fault}); the order {then}",
}


def _in_words(effect: Effect, order: Order, intent: Intent) -> str:
    """Return the effect of a command on an order in one sentence."""
    step = awaiting(order, intent.step)
    undoing = step is not None and step.direction is Direction.UNDO
    result = f", with the result {_shown(intent)}"
    if intent.input is None and intent.verb is Verb.SKIP:
        result = "; later steps will see null"
    calls = ", ".join(
        step.name
        for step in order.steps
        if step.process_state is StepState.PROCESSING and not step.awaits_callback
    )
    names = ", ".join(step.name for step in reversed(order.steps) if step.epoch > 0)
    began = f"these steps began and are undone in this order, if they have an undo: {names}"
    then = "is then undone, or waits in Error, as its workflow says"
    fault = intent.fault
    return _WOULD[effect].format(
        given=" with the given input" * (intent.input is not None),
        failed=_with_errors(_failed_steps(order, intent)),
        result="" if undoing else result,
        calls=f"wait for {calls}, " * bool(calls),
        undone=began if names else "no step ever began",
        awaiting=f"{'the undo of ' * undoing}{step.name}" if step else "",
        fault=f"{fault.code}: {fault.message}" if fault else "",
        then="then waits in Error" if undoing else then,
    )


def _shown(intent: Intent) -> str:
    text = intent.input or "null"
    return UNREADABLE if is_encoded(text) else text


def _failed_steps(order: Order, intent: Intent) -> Sequence[StepRecord]:
    return [step for step in order.steps if is_failed(step) and intent.step in {None, step.name}]


def _error(fault: Fault) -> str:
    return quoted(f"{fault.code}: {fault.message}", Fault.MESSAGE_LENGTH_MAX)


def _with_errors(steps: Sequence[StepRecord]) -> str:
    return "; ".join(
        ("undo of " if step.undo_failed else "")
        + step.name
        + (f" ({_error(step.error)})" if step.error else "")
        for step in steps
    )


# -- Sending, and following the results -------------------------------------------------------


class ActRun:
    """Sends the commands of a plan, and follows their results.

    ``sent`` is how many commands were sent, or may have been if sending was interrupted. ``done``
    is how many have their result.
    """

    def __init__(self, plan: ActPlan, store: StateStore, queues: Queues) -> None:
        self.plan = plan
        self.sent = 0
        self.done = 0
        self._store = store
        self._queues = queues
        self._acts = {act.order_id: act for act in plan.acts}

    @property
    def results(self) -> list[OrderAct]:
        """What is known of each order."""
        return list(self._acts.values())

    async def send(
        self, bus: MessageBus, tell: Callable[[int], None] = lambda _count: None
    ) -> None:
        """Send the commands, those of urgent orders first. ``tell`` gets how many were sent.

        Raises:
            ServiceUnavailableError: the bus did not take them all. The text has how many it took.
        """
        acts = sorted(self.plan.acts, key=lambda act: not act.urgent)
        for start in range(0, len(acts), SEND_COMMANDS_MAX):
            batch = acts[start : start + SEND_COMMANDS_MAX]
            self.sent += len(batch)
            try:
                await bus.send([self.message(act) for act in batch])
            except (BusUnavailableError, UndeliverableError) as error:
                self.sent -= len(batch)
                raise ServiceUnavailableError(
                    f"{error} {self.sent:,} of {len(acts):,} commands were sent before. To "
                    "give the command again is safe: an order that has changed refuses it."
                ) from None
            tell(self.sent)

    def message(self, act: OrderAct) -> Message:
        """Return the message of a command for the scheduler's queue, in the lane of its order."""
        intent = self.plan.intent
        message = CommandMessage(
            id=act.command,
            order_id=act.order_id,
            verb=act.verb.value,
            by=intent.by,
            seq=None if act.any_seq else act.seq,
            step=intent.step,
            input=internal.raw(intent.input),
            error=FaultBody(intent.fault.code, intent.fault.message) if intent.fault else None,
            reason=intent.reason,
        )
        queue = lane(self._queues.scheduler, urgent=act.urgent)
        return Message(queue, act.command, internal.encode(message))

    async def follow(
        self, wait_s: float, tell: Callable[[int], None] = lambda _count: None
    ) -> list[OrderAct]:
        """Follow the commands until each has its result, and return the results.

        It ends early when nothing new came for ``wait_s`` seconds. Then some results are not known
        yet, or some steps still run. ``tell`` gets how many orders are done.
        """
        waiting = deque(self._acts)
        news_at, looks = time.monotonic(), 0
        while waiting:
            began_at = time.monotonic()
            order_ids = [waiting.popleft() for _ in range(min(LOOKS_AT_ONCE, len(waiting)))]
            before = [self._acts[order_id] for order_id in order_ids]
            ended = await asyncio.gather(*map(self._look, before))
            # A command without a result goes to the end of the line, so that one that never gets
            # its result does not delay the others.
            waiting += [name for name, is_done in zip(order_ids, ended, strict=True) if not is_done]
            news = sum(self._acts[act.order_id] != act for act in before)
            if news:
                news_at, looks = time.monotonic(), 0
                self.done = len(self._acts) - len(waiting)
                tell(self.done)
            looks += len(before) - news
            if time.monotonic() - news_at >= wait_s and looks >= len(waiting):
                break
            if waiting and 2 * news < len(before):  # leave the table to the scheduler
                await asyncio.sleep(max(JOURNAL_POLL_S, time.monotonic() - began_at))
        for act in map(self._acts.__getitem__, waiting):
            if act.carried_out is None:
                self._note(
                    act,
                    refusal=CommandRefusal.WAITING,
                    problem=f"not carried out within {wait_s:g} s: check that the function app "
                    f"runs, and look on operator-alerts for refused/{act.command}; it may still be "
                    "carried out later",
                )
        return self.results

    def _note(self, act: OrderAct, **members: object) -> OrderAct:
        act = msgspec.structs.replace(act, **members)
        self._acts[act.order_id] = act
        return act

    async def _look(self, act: OrderAct) -> bool:
        """Look for the result of a command; return whether it is complete."""
        order = await self._store.load(act.order_id)
        if act.carried_out is None:
            act = await self._look_in_journal(act, order)
        if order is None or not act.carried_out:
            return act.carried_out is not None
        state = order.process_state  # 5.
        if act.verb is Verb.UNDO:
            steps = [step for step in order.steps if step.undo_failed]
            has_ended = state is not OrderState.COMPENSATING
        else:
            reruns = act.failed if act.verb is Verb.RESUBMIT else ()
            names = {fingerprint.partition("/")[0] for fingerprint in reruns}
            steps = [step for step in order.steps if step.name in names]
            has_ended = all(step.process_state in _ENDED and step.turn is None for step in steps)
        failure = _with_errors([step for step in steps if is_failed(step)])
        self._note(act, process_state=state.value, failed_again=bool(failure), problem=failure)
        return has_ended

    async def _look_in_journal(self, act: OrderAct, order: Order | None) -> OrderAct:
        if order is None:
            problem = f"not carried out: {GONE}."
            return self._refused(act, CommandRefusal.GONE, problem, process_state="gone")
        if order.seq != act.seq:  # 1. a command that was carried out has changed it
            cause = cause_of(self._queues.scheduler, act.command)
            entry = await self._store.recorded(act.order_id, cause)
            if entry is not None and entry.what is not JournalWord.FENCED:
                return self._note(act, carried_out=True, row=entry.seq, what=str(entry.what))
            if entry is not None:
                problem = "the command was dead-lettered: see operator-alerts and the app's log"
                return self._refused(act, CommandRefusal.DEAD_LETTERED, problem, row=entry.seq)
        refusal = CommandRefusal.REFUSED
        if act.any_seq or order.seq == act.seq:  # 2. 4.
            reason = await CommandAnswers(self._store).reason(act.command)
        else:  # 3.
            refusal, reason = (
                CommandRefusal.CHANGED,
                await what_changed(self._store, order, act.seq),
            )
        if not reason:
            return act
        state = order.process_state.value
        problem = f"not carried out: {reason}."
        return self._refused(act, refusal, problem, process_state=state)

    def _refused(
        self, act: OrderAct, refusal: CommandRefusal, problem: str, **members: object
    ) -> OrderAct:
        return self._note(act, carried_out=False, refusal=refusal, problem=problem, **members)


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
