"""The commands of an operator: say what they would do, send them, and follow their results.

``ActPlan`` says what a command would do to each order, and which orders do not allow it. ``ActRun``
sends the commands of a plan. A command is a message to the scheduler, and nobody replies to the
sender, so ``ActRun`` reads the result from the table:

1. The scheduler carried the command out: the journal has a row whose cause is the command. If the
   row says ``fenced``, the command became a dead letter, and it was not carried out.
2. The scheduler refused the command: no row has this cause. The scheduler keeps the last reasons of
   refusals for some time (``CommandAnswers``).
3. The order has another seq than the command names: the scheduler refuses such a command. The
   journal tells what changed, even if the reason of the refusal is not kept any more.
4. None of these is true yet: the command waits in its queue, or the scheduler is handling it.
5. A resubmit was carried out: its steps run again, and end well or fail again.

A plan for many orders that is made and sent again does no harm. An order that has changed since is
left out, or refuses the command. An order that has not gets a command with the same id: Service Bus
drops it, or the scheduler finds its row in the journal.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from sas.bounds import EDITED_UNITS_MAX, utf16_units
from sas.codec import internal
from sas.codec.internal import REASON_LENGTH_MAX, CommandMessage, FaultBody
from sas.codec.payloads import UNREADABLE, encode_content, is_encoded
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, check_depth, parse
from sas.domain.command import awaiting, can_undo, why_not
from sas.domain.ids import cause_of, digest_id
from sas.domain.messages import JournalWord, Verb
from sas.domain.order import Direction, Fault, Order, OrderState, StepRecord, StepState
from sas.domain.queues import Queues, lane
from sas.engine.command_answers import CommandAnswers
from sas.features.callbacks.codec import CallbackKeys
from sas.operate import finding
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.operate.finding import OrderQuery, is_failed
from sas.operate.record import Record
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
LOOKS_AT_ONCE = 16
"""Commands whose results are looked for at the same time."""
GONE = "the order does not exist any more (finished orders are purged in the end)"
UNDER_WAY = frozenset({OrderState.PENDING, OrderState.PROCESSING, OrderState.ERROR})
_ENDED = frozenset({StepState.PROCESSED, StepState.ERROR, StepState.COMPENSATED})


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


class ActOutlook(Record, frozen=True, kw_only=True):
    """What a command would do to an order (``would``), or why it is not possible (``problem``).

    ``verb`` is the scheduler's word. An undo of an order under way is its ``cancel``, and a skip of
    a step that waits for a callback is its ``callback``. ``failed`` has the fingerprints of the
    steps that the command changes.
    """

    order_id: str
    verb: str
    process_state: str
    since: datetime
    seq: int
    failed: tuple[str, ...] = ()
    would: str = ""
    problem: str = ""


class ActResult(Record, frozen=True, kw_only=True):
    """The result of a command for one order, as far as it is known.

    ``carried_out`` is None if the result is not known. ``seq`` and ``what`` are those of its row in
    the journal. ``problem`` says why the command was not carried out, or how steps failed again.
    """

    order_id: str
    verb: str
    command: str
    carried_out: bool | None = None
    seq: int | None = None
    what: str | None = None
    process_state: str | None = None
    failed_again: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCommand:
    """One command for one order.

    ``verb`` is the scheduler's word. ``seq`` is the seq of the order when the operator saw it. If
    it is None, the command is carried out at any seq; the scheduler allows this for a cancel only.
    ``reruns`` has the numbers of the steps that it runs again.
    """

    order_id: str
    verb: Verb
    seq: int | None
    urgent: bool = False
    reruns: frozenset[int] = frozenset()
    command_id: str = field(default_factory=lambda: f"sas-{uuid.uuid4().hex}")


class WaitingCallback(Record, frozen=True, kw_only=True):
    """The callback that a step (or its undo) waits for until a moment.

    ``lacking`` says which setting is missing to know ``token`` or ``url``, and what to do.
    """

    order_id: str
    step: str
    direction: str
    until: datetime | None
    note: str | None
    url: str | None
    token: str | None
    lacking: str | None


# -- The plan: what a command would do, or why it cannot --------------------------------------


@dataclass(slots=True, kw_only=True)
class ActPlan:
    """What a command would do to orders: the possible acts, their commands, and the other acts.

    The reason of ``intent`` may still change. ``limited`` says that there may be more orders than
    the query allows.
    """

    intent: Intent
    acts: list[ActOutlook] = field(default_factory=list)
    commands: list[OrderCommand] = field(default_factory=list)
    others: list[ActOutlook] = field(default_factory=list)
    limited: bool = False

    @property
    def counts(self) -> str:
        """How often each failure occurs, in words."""
        return finding.in_words(Counter(name for act in self.acts for name in act.failed))

    def add(self, order: Order, *, seq: int | None = None, repeatable: bool = False) -> ActOutlook:
        """Add an order, and return what the command would do to it.

        With ``seq``, a cancel too is refused if the order has changed since. A ``repeatable``
        command has the same id each time it is made for the order at the same seq.
        """
        intent = command_for(order, self.intent)
        failed_steps = _failed_steps(order, intent)
        problem = refusal(order, self.intent)
        act = ActOutlook(
            order_id=order.order_id,
            verb=intent.verb.value,
            process_state=order.process_state.value,
            since=finding.since(order),
            seq=order.seq,
            failed=tuple(step.fingerprint for step in failed_steps),
            would="" if problem else outlook(order, intent),
            problem=problem,
        )
        if problem:
            self.others.append(act)
            return act
        # A cancel is meant even if the order has changed meanwhile.
        command = OrderCommand(
            order_id=order.order_id,
            verb=intent.verb,
            seq=seq if intent.verb is Verb.CANCEL else order.seq,
            urgent=order.details.urgent,
            reruns=frozenset(step.number for step in failed_steps if intent.verb is Verb.RESUBMIT),
        )
        if repeatable:
            same = digest_id(order.order_id, str(order.seq), repr(intent))
            command = replace(command, command_id=f"sas-{same}")
        self.acts.append(act)
        self.commands.append(command)
        return act


async def plan_one(
    store: StateStore, order_id: str, intent: Intent, *, seq: int | None = None
) -> ActPlan:
    """Plan a command for one order. ``seq`` is what the operator saw; None takes its seq now.

    Raises:
        UsageError: no order can have this id.
        NotPossibleError: there is no such order, it has changed since, or its state does not allow
            the command.
    """
    order = await finding.load(store, order_id)
    if seq not in {None, order.seq}:
        changes = await what_changed(store, order, seq or 0)
        raise NotPossibleError(f"nothing was sent: {changes}")
    plan = ActPlan(intent=intent)
    act = plan.add(order, seq=seq)
    if act.problem:
        raise NotPossibleError(
            f"nothing was sent: {intent.verb.value} of order {order_id} is not possible: "
            f"{act.problem}"
        )
    return plan


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
    async for order in finding.each(store, query):
        if order.order_id not in order_ids:
            order_ids.add(order.order_id)
            plan.add(order, repeatable=True)
            tell(len(order_ids))
    plan.limited = len(order_ids) >= query.limit
    return plan


def command_for(order: Order, intent: Intent) -> Intent:
    """Return the command by which the scheduler does to this order what an operator wants.

    An undo cancels an order under way: it starts no new step, and waits for the running calls. A
    skip answers the callback that a step waits for.
    """
    calls_out = [step for step in order.steps if step.process_state is StepState.PROCESSING]
    is_under_way = order.process_state in {OrderState.PENDING, OrderState.PROCESSING}
    if intent.verb is Verb.UNDO and not intent.at_once and (calls_out or is_under_way):
        return replace(intent, verb=Verb.CANCEL)
    awaiting_steps = [step.name for step in order.steps if step.awaits_callback]
    is_awaiting = intent.step in awaiting_steps or (intent.step is None and awaiting_steps)
    if intent.verb is Verb.SKIP and is_awaiting and not _failed_steps(order, intent):
        return replace(intent, verb=Verb.CALLBACK)
    return intent


def refusal(order: Order, intent: Intent) -> str:
    """Return why a command is not possible for an order; an empty text if it is possible."""
    if order.rejected:
        return "it was rejected, and no step began: submit it again"
    names = [step.name for step in order.steps]
    if intent.step is not None and intent.step not in names:
        return f"it has no step {intent.step!r}, only {', '.join(names)}"
    command = command_for(order, intent)
    if _is_possible(order, command):
        return ""
    in_error = order.process_state is OrderState.ERROR and command.verb is not Verb.CALLBACK
    if intent.step is not None and in_error:
        state = order.steps[names.index(intent.step)].process_state.value
        return f"the step must be in Error, and {intent.step} is {state}"
    reason = why_not(order, command.verb)
    if intent.verb is Verb.UNDO and command.verb is Verb.CANCEL and can_undo(order):
        return f"{reason}, and waits for the calls that run (--now does not wait for them)"
    return reason


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
    intent = command_for(order, intent)
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


# -- Sending, and following the results -------------------------------------------------------


class ActRun:
    """Sends the commands of a plan, and follows their results.

    ``sent`` is how many commands were sent, or may have been if sending was interrupted. ``done``
    is how many have their result. ``results`` has what is known of each order of the plan.
    """

    def __init__(self, plan: ActPlan, store: StateStore, queues: Queues) -> None:
        self.plan = plan
        self.sent = 0
        self.done = 0
        self._store = store
        self._queues = queues
        self._results = {
            command.order_id: ActResult(
                order_id=command.order_id,
                verb=command.verb.value,
                command=command.command_id,
            )
            for command in plan.commands
        }

    @property
    def results(self) -> list[ActResult]:
        """What is known of each order."""
        return list(self._results.values())

    async def send(
        self, bus: MessageBus, tell: Callable[[int], None] = lambda _count: None
    ) -> None:
        """Send the commands, those of urgent orders first. ``tell`` gets how many were sent.

        Raises:
            ServiceUnavailableError: the bus did not take them all. The text has how many it took.
        """
        commands = sorted(self.plan.commands, key=lambda command: not command.urgent)
        for start in range(0, len(commands), SEND_COMMANDS_MAX):
            batch = commands[start : start + SEND_COMMANDS_MAX]
            self.sent += len(batch)
            try:
                await bus.send([self._message(command) for command in batch])
            except (BusUnavailableError, UndeliverableError) as error:
                self.sent -= len(batch)
                raise ServiceUnavailableError(
                    f"{error} {self.sent:,} of {len(commands):,} commands were sent before. To "
                    "give the command again is safe: an order that has changed refuses it."
                ) from None
            tell(self.sent)

    async def follow(
        self, wait_s: float, tell: Callable[[int], None] = lambda _count: None
    ) -> list[ActResult]:
        """Follow the commands until each has its result, and return the results.

        It ends early when nothing new came for ``wait_s`` seconds. Then some results are not known
        yet, or some steps still run. ``tell`` gets how many orders are done.
        """
        waiting = deque(self.plan.commands)
        news_at, looks = time.monotonic(), 0
        while waiting:
            began_at = time.monotonic()
            commands = [waiting.popleft() for _ in range(min(LOOKS_AT_ONCE, len(waiting)))]
            before = [self._results[command.order_id] for command in commands]
            ended = await asyncio.gather(*map(self._look, commands))
            # A command without a result goes to the end of the line, so that one that never gets
            # its result does not delay the others.
            waiting += [
                command for command, is_done in zip(commands, ended, strict=True) if not is_done
            ]
            news = sum(self._results[result.order_id] != result for result in before)
            if news:
                news_at, looks = time.monotonic(), 0
                self.done = len(self.plan.commands) - len(waiting)
                tell(self.done)
            looks += len(commands) - news
            if time.monotonic() - news_at >= wait_s and looks >= len(waiting):
                break
            if waiting and 2 * news < len(commands):  # leave the table to the scheduler
                await asyncio.sleep(max(JOURNAL_POLL_S, time.monotonic() - began_at))
        for command in waiting:
            result = self._results[command.order_id]
            if result.carried_out is None:
                problem = (
                    f"not carried out within {wait_s:g} s: check that the function app runs, and "
                    f"look on operator-alerts for refused/{command.command_id}; it may still be "
                    "carried out later"
                )
                self._note(result, problem=problem)
        return self.results

    def _message(self, command: OrderCommand) -> Message:
        """Return the message of a command for the scheduler's queue, in the lane of its order."""
        intent = self.plan.intent
        message = CommandMessage(
            id=command.command_id,
            order_id=command.order_id,
            verb=command.verb.value,
            by=intent.by,
            seq=command.seq,
            step=intent.step,
            input=internal.raw(intent.input),
            error=FaultBody(intent.fault.code, intent.fault.message) if intent.fault else None,
            reason=intent.reason,
        )
        queue = lane(self._queues.scheduler, urgent=command.urgent)
        return Message(queue, command.command_id, internal.encode(message))

    def _note(self, result: ActResult, **members: object) -> ActResult:
        result = msgspec.structs.replace(result, **members)
        self._results[result.order_id] = result
        return result

    async def _look(self, command: OrderCommand) -> bool:
        """Look for the result of a command; return whether it is complete."""
        result = self._results[command.order_id]
        order = await self._store.load(command.order_id)
        state = order.process_state.value if order else "gone"
        if result.carried_out is None:
            result = await self._look_in_journal(command, order, state)
        if order is None or not result.carried_out:
            return result.carried_out is not None
        steps = [step for step in order.steps if step.number in command.reruns]  # 5.
        failure = _with_errors([step for step in steps if is_failed(step)])
        self._note(result, process_state=state, failed_again=bool(failure), problem=failure or None)
        return all(step.process_state in _ENDED and step.turn is None for step in steps)

    async def _look_in_journal(
        self, command: OrderCommand, order: Order | None, state: str
    ) -> ActResult:
        result = self._results[command.order_id]
        entry, reason = None, ""
        if order is None:
            reason = GONE
        elif order.seq != command.seq:  # 1. a command that was carried out has changed it
            cause = cause_of(self._queues.scheduler, command.command_id)
            entry = await self._store.recorded(command.order_id, cause)
        if entry is None and order is not None:
            if command.seq in {order.seq, None}:  # 2. 4.
                reason = await CommandAnswers(self._store).reason(command.command_id)
            else:  # 3.
                reason = await what_changed(self._store, order, command.seq or 0)
        if reason:
            problem = f"not carried out: {reason}."
            return self._note(result, carried_out=False, process_state=state, problem=problem)
        if entry is None:
            return result
        if entry.what is JournalWord.FENCED:
            problem = (
                "the command was dead-lettered: see operator-alerts and the function app's log"
            )
            return self._note(result, carried_out=False, seq=entry.seq, problem=problem)
        return self._note(result, carried_out=True, seq=entry.seq, what=str(entry.what))


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


def waiting_callbacks(order: Order, step: str | None, keys: CallbackKeys) -> list[WaitingCallback]:
    """Return the callbacks that an order waits for, or only that of a step.

    Raises:
        NotPossibleError: it waits for none.
    """
    steps = [
        record for record in order.steps if record.awaits_callback and step in {None, record.name}
    ]
    if not steps:
        raise NotPossibleError(f"order {order.order_id}: {why_not(order, Verb.CALLBACK)}")
    lacking = None
    if not keys:
        lacking = "not known here: set SAS_CALLBACK_KEY and SAS_CALLBACK_URL as the app has them"
    elif not keys.url:
        lacking = "not known here: set SAS_CALLBACK_URL as the app has it"
    callbacks = []
    for record in steps:
        callback = keys.callback_of(order, record) if keys else None
        callbacks.append(
            WaitingCallback(
                order_id=order.order_id,
                step=record.name,
                direction=record.direction.value,
                until=record.complete_by,
                note=record.note,
                url=callback.url if callback else None,
                token=callback.token if callback else None,
                lacking=lacking,
            )
        )
    return callbacks


# -- What an operator may give ---------------------------------------------------------------


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
