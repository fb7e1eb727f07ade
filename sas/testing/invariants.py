"""The invariants: what must hold after every transition, message and call, and at the end.

docs/reliability.md says what the number of each invariant means. No check calls the decision that
it checks. It sees transitions, messages, calls and sweeps from outside, and computes by itself what
is right, because otherwise a mistake could hide itself. Only the ids, the codec and the rules of
workflows are those of the product. Each check reports what is wrong as a sentence, so that a
simulation can report all problems.

When each check runs, and what only this check can see:

a. **A transition, as it is committed** (``of_change``, ``Invariants.written``): no gap in the
   journal, no cause twice, a new epoch for each dispatch, the order of the steps, a wake for a
   step that is ready. Later transitions may repair such a mistake, so nobody would see it at the
   end.
b. **A message, as it is sent or completed** (``_was_sent``, ``_was_completed``): a message may
   leave its queue only if each wake and request that it caused was sent or held, or if the
   message was put back. The journal says what it caused. At the end the loss would not show,
   because the supervisor often repairs it later.
c. **A message that was given up** (``_was_given_up``, ``_was_put_aside``): once its dead letter was
   put aside, it has no effect. A transition alone cannot show that its cause was put aside before.
d. **A reply, as an agent sends it** (``_reply_is_sent``): not after CompleteBy, by the clock of the
   agent's own instance. The scheduler ignores a late reply, so neither the journal nor the end
   shows it.
e. **A call, just before it is made** (``_is_called``): the right key and the right agent. Older
   inputs of the step are undone before. Where a step has a drain time, an undo comes only when no
   earlier call can arrive any more. A service that keeps its rules hides such a mistake.
f. **A sweep, as it ends** (``_observe_sweeps``): it notes when the last whole sweep began. A
   deadline that had passed by then must have had its effect (``_has_missed_deadline``). This is
   checked at the next transition of the order, and at the end. So a late effect is found too.
g. **An error of a function** (``_is_sending``, ``_function_failed``): only a crash or an outage may
   raise. After any other error the message is put back, which hides an error that comes only once.
h. **The end** (``at_end``, ``left_over``): each order ended, its effects at the services match its
   state, each notification and alert of its journal arrived, and no other notification did. Each
   transition may be right while the order is stuck, or while an effect happened twice. Only the end
   and the ledger of the services show this.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

import msgspec

from sas.codec import external
from sas.codec.external import AlertMessage
from sas.codec.internal import Kind
from sas.codec.strict import Reason, convert
from sas.domain.change import Change, OutDue
from sas.domain.claim import is_out
from sas.domain.ids import cause_of, digest_id, idempotency_key, message_id, reply_id
from sas.domain.messages import (
    Alert,
    AlertKind,
    JournalEntry,
    JournalWord,
    Notice,
    Notify,
    Outgoing,
    Request,
    Wake,
)
from sas.domain.order import (
    CLOCK_SKEW,
    FINISHED,
    Direction,
    Dispatched,
    Order,
    OrderState,
    Ready,
    StepRecord,
    StepState,
    UndoStatus,
)
from sas.domain.queues import lane
from sas.domain.workflow import OnFailure, Rules, StepRules
from sas.engine.delivery import BUG, FIRST_ID
from sas.engine.in_flight import CLOSE_TO_COMPLETE_BY
from sas.engine.receiver import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, FAILED, FAILURES
from sas.features.incidents.rules import explained_by
from sas.ports import AgentCall, Callback, Message, UnavailableError
from sas.testing.bus import DEAD_LETTERS, Queued
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.system import AT_REST, SCHEDULER, System
from sas.testing.violation import Violation
from sas.testing.world import CrashError

READ_BY_PEOPLE = frozenset({REPLIES_TO, QUEUES.alerts, QUEUES.rejected})
RESTS = timedelta(minutes=6)
"""Longest time for which the supervisor may leave an order alone after a sweep failed for it."""
SWEEP_TIME = timedelta(seconds=20)
"""A sweep that takes longer may have left rows to the next sweep."""
_BASES = {
    lane(name, urgent=urgent): name
    for name in (QUEUES.orders, QUEUES.scheduler)
    for urgent in (False, True)
}
"""The queues whose messages are causes. The value is the ordinary lane of the queue."""
_REPLY = f'"kind":"{Kind.REPLY}"'.encode()
_CALLBACK = f'"kind":"{Kind.CALLBACK}"'.encode()
_ENDS = frozenset({StepState.PROCESSED, StepState.ERROR})


# --- a. one transition ---


def of_change(change: Change, rows: int, rules: Rules) -> Iterator[Violation]:
    """Yield what a new transition breaks. ``rows`` is the number of journal rows after it."""
    order, entry = change.after, change.entry
    place = f"order {order.order_id} seq {entry.seq} ({entry.what.value})"
    if not rows == entry.seq == order.seq:
        yield Violation(1, f"{place}: the journal has a gap")
    old_turns = [step.turn for step in change.before.steps] if change.before else []
    begins = [
        step.name
        for step, old in zip_longest(order.steps, old_turns)
        if isinstance(step.turn, Ready) and not isinstance(old, Ready)
    ]
    if begins and Wake() not in entry.messages:
        yield Violation(11, f"{place}: {begins[0]} is ready, and no scheduler is woken")
    if change.before is None:
        return
    for old, new in zip(change.before.steps, order.steps, strict=False):
        yield from _of_step(old, new, place)
        yield from _of_turn(change, old, new, rules=rules, place=place)
    if entry.cause is None and entry.messages and change.out_at is None:
        yield Violation(4, f"{place}: a timer's messages have no out row")
    if change.before.direction is Direction.UNDO and order.direction is Direction.DO:
        yield Violation(10, f"{place}: the order went back from undo to do")
    for message in entry.messages:
        if isinstance(message, Request) and message.epoch != order.steps[message.step].epoch:
            yield Violation(6, f"{place}: a request has another epoch than its step")


def _of_step(old: StepRecord, new: StepRecord, place: str) -> Iterator[Violation]:
    if new.undo is UndoStatus.TO_BE_UNDONE and new.awaits_callback:
        yield Violation(12, f"{place}: {new.name} waits for a callback, and its order is cancelled")
    if old.process_state is StepState.COMPENSATED and new != old:
        yield Violation(10, f"{place}: {new.name} changed after its undo was confirmed")


def _of_turn(
    change: Change, old: StepRecord, new: StepRecord, *, rules: Rules, place: str
) -> Iterator[Violation]:
    """Yield what is wrong with a step that was dispatched, reset or edited just now."""
    states = [step.process_state for step in change.after.steps]
    doing = new.process_state is StepState.PROCESSING
    if new.dispatched and not old.dispatched:
        if new.epoch != old.epoch + 1:
            yield Violation(6, f"{place}: {new.name} was dispatched without a new epoch")
        before = rules.steps[new.number].after if doing else rules.dependents(new.number)
        needed_state = StepState.PROCESSED if doing else StepState.COMPENSATED
        in_line = doing or new.process_state is StepState.COMPENSATING
        if in_line and any(states[number] is not needed_state for number in before):
            yield Violation(10, f"{place}: {new.name} was dispatched too early")
    resets = {JournalWord.STEP_RESET, JournalWord.UNDO_RESET}
    freed = old.dispatched and not new.dispatched
    if change.entry.what in resets and freed and new.failure_count != old.failure_count + 1:
        yield Violation(11, f"{place}: the timeout of {new.name} was not counted")
    step_rules = rules.steps[new.number]
    waits = step_rules.extended_wait.times if step_rules.extended_wait else 0
    if new.failures.extended_waits > waits:
        yield Violation(11, f"{place}: {new.name} rests once more than its workflow says")
    if new.call.edited != old.call.edited and new.call.generation != old.call.generation + 1:
        yield Violation(7, f"{place}: the edited input of {new.name} keeps its key")


# --- a running system ---


class Invariants:
    """Observes everything that happens in a system, and reports what breaks an invariant."""

    def __init__(self, system: System, broken: Callable[[Violation], None]) -> None:
        self._system, self._broken = system, broken
        self._sent_ids: set[str] = set()
        self._causes: set[tuple[str, str]] = set()
        self._given_up: set[str] = set()
        self._put_aside_causes: set[str] = set()
        self._put_aside_bodies: set[str] = set()
        self._complete_by: dict[tuple[str, int, Direction, int], datetime] = {}
        self._called: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._agents: dict[tuple[str, str], str] = {}
        self._ended: set[tuple[str, int, StepState]] = set()
        self._accepted: set[tuple[Any, ...]] = set()
        self._deadlines: dict[str, datetime] = {}
        self._swept_at = self._rests_until = system.world.clock.now()
        self._incidents: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """The names of incidents, with the names of those that their alert may have instead."""
        self._put_aside_ids: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        """Of each body, the ids under which it was put aside, with the name of their incident."""
        self._alerts: set[str] = set()
        self._alerted: set[tuple[str, str]] = set()
        self._arrives_until: dict[str, datetime] = {}
        agents = system.workflows.agents()
        self._not_needed = {QUEUES.alerts, QUEUES.rejected} | {
            QUEUES.agent(agent, urgent=urgent) for agent in agents for urgent in (False, True)
        }
        """Queues whose messages may be put aside without an alert. After a crash between the two
        sends, the alert is missing if the step no longer waits for its request."""
        system.bus.on_sent = self._was_sent
        system.bus.on_given_up = self._was_given_up
        system.bus.on_completed = self._was_completed
        system.store.on_removed = self._was_removed
        system.world.on_failed = self._function_failed
        system.world.on_sends = self._is_sending
        system.on_answered = self._was_answered
        for name, agent in system.agents.items():
            for direction in Direction:
                self._observe_calls(name, agent, direction)

        for host in system.hosts:
            self._observe_sweeps(host)

    def _say(self, number: int, text: str) -> None:
        self._broken(Violation(number, text))

    # --- a. transitions ---

    def written(self, change: Change) -> None:
        """Check a transition that was just committed."""
        order, entry = change.after, change.entry
        place = f"order {order.order_id} seq {entry.seq} ({entry.what.value})"
        stored = self._system.store.orders[order.order_id]
        if not order.rejected:  # its workflow may be unknown
            rules = self._system.rules_of(order)
            for violation in of_change(change, len(stored.journal), rules):
                self._broken(violation)
        for step in order.steps:
            if isinstance(step.turn, Dispatched):
                undoes = step.process_state is not StepState.PROCESSING
                direction = Direction.UNDO if undoes else Direction.DO
                dispatch = (order.order_id, step.number, direction, step.epoch)
                known_until = self._complete_by.get(dispatch)
                if known_until is None or known_until < step.turn.complete_by:
                    self._complete_by[dispatch] = step.turn.complete_by
        for old, new in zip(
            change.before.steps if change.before else (), order.steps, strict=False
        ):
            if new.failure_count > old.failure_count and self._untried(order.order_id, old):
                self._say(15, f"{place}: {old.name} is counted, and its request waits in its queue")
        if entry.cause is not None:
            self._of_cause(change, entry.cause, place)
        self._owed(change, place)

    def _of_cause(self, change: Change, cause: str, place: str) -> None:
        entry, order_id = change.entry, change.after.order_id
        if (order_id, cause) in self._causes:
            self._say(1, f"{place}: cause {cause} is recorded twice")
        self._causes.add((order_id, cause))
        if entry.what.acts:
            if entry.by.startswith("dead letters"):
                self._say(3, f"{place}: a dead letter led to it")
            if cause in self._put_aside_causes:
                self._say(3, f"{place}: its cause {cause} was put aside before")
        elif not self._may_fence(order_id, cause, entry.by):
            self._say(17, f"{place}: cause {cause} is fenced, and its queue never gave it up")
        queue, _, own_id = cause.partition(":")
        parts = own_id.split("/")
        if queue == QUEUES.scheduler and entry.what.acts and change.before and len(parts) > 3:
            number, direction, epoch = int(parts[1]), Direction(parts[2]), int(parts[3])
            if not _is_out(change.before, number, direction, epoch):
                self._say(6, f"{place}: reply {own_id} counts, and no such request is out")

    def _may_fence(self, order_id: str, cause: str, by: str) -> bool:
        """Return whether a cause may be recorded although nothing follows from it.

        Its queue gave its message up, or its actor let it go, because another handler may have it.
        """
        if cause in self._given_up:
            return True
        queue, _, own_id = cause.partition(":")
        name, *parts = own_id.split("/")
        is_wake = name == order_id and len(parts) == 2
        is_reply = name == order_id and len(parts) == 3
        is_callback = name in {"accepted", "sent", "callback"}
        is_let_go = is_wake or is_callback or (is_reply and by.startswith("agent "))
        return queue == QUEUES.scheduler and is_let_go

    def _untried(self, order_id: str, step: StepRecord) -> bool:
        """Return whether a timeout of a dispatched step must not count as its failure.

        That is so if no call went out, because its request still waits in a queue, or could not be
        sent while the queue is away, or comes when the root of its chain is redelivered. A step
        that was excused before is not checked: a timeout may count although its request waits in a
        queue that does not move.
        """
        if step.epoch in self._called[order_id, step.name] or step.complete_by is None:
            return False
        if isinstance(step.turn, Dispatched) and step.turn.excused:
            return False
        now, bus = self._system.world.clock.now(), self._system.bus
        if any(self._unsent_to_away(order_id, step)) or self._has_root(order_id, step):
            return True
        return any(
            queued.enqueued_at < step.complete_by - CLOCK_SKEW
            and (queued.expires_at is None or queued.expires_at > now)
            and _is_request(queued.message.body, order_id, step)
            for name, queue in bus.queues.items()
            if name.startswith(QUEUES.agent_prefix) and name not in self._system.subqueues
            for queued in queue.waiting
        )

    def _has_root(self, order_id: str, step: StepRecord) -> bool:
        """Return whether a request was handed over at most, and the root of its chain is queued."""
        stored, bus = self._system.store.orders[order_id], self._system.bus
        is_sent = any(
            message_id(order_id, entry.seq, index) in self._sent_ids
            for entry in stored.journal
            for index, item in enumerate(entry.messages)
            if isinstance(item, Request) and (item.step, item.epoch) == (step.number, step.epoch)
        )
        if is_sent or step.complete_by is None:
            return False
        for name, queue in bus.queues.items():
            is_orders = name.removesuffix("-urgent") == QUEUES.orders
            is_agents = name.startswith(QUEUES.agent_prefix)
            if not (is_orders or is_agents) or name in self._system.subqueues:
                continue
            for queued in (*queue.waiting, *queue.locked):
                body = msgspec.json.decode(queued.message.body)
                came_before = queued.enqueued_at < step.complete_by - CLOCK_SKEW
                if not came_before or body.get("order_id") != order_id or not bus.reachable(queue):
                    continue
                if is_orders or _was_answered(stored.order, body):
                    return True
        return False

    def _unsent_to_away(self, order_id: str, step: StepRecord) -> Iterator[bool]:
        """Yield whether the request of a dispatch was never sent, and its queue is away."""
        bus, stored = self._system.bus, self._system.store.orders[order_id]
        agent = self._system.rules_of(stored.order).steps[step.number].agents[step.call.route]
        queue = QUEUES.agent(agent, urgent=stored.order.details.urgent)
        for entry in stored.journal:
            for index, item in enumerate(entry.messages):
                if not isinstance(item, Request):
                    continue
                if (item.step, item.epoch) == (step.number, step.epoch):
                    unsent = message_id(order_id, entry.seq, index) not in self._sent_ids
                    yield unsent and not bus.reachable(bus.queues[queue])

    # --- b, c, d, g. messages ---

    def _was_sent(self, message: Message) -> None:
        self._sent_ids.add(message.message_id)
        if message.queue == QUEUES.rejected:
            self._was_put_aside(message)
        elif message.queue == QUEUES.alerts:
            alert = msgspec.json.decode(message.body, type=AlertMessage)
            self._alerts.add(alert.id)
            self._alerted.add((alert.kind, alert.scope or ""))
        elif message.queue in SCHEDULER and _CALLBACK in message.body:
            self._accepted.add(_callback_key(msgspec.json.decode(message.body)))

    def _was_put_aside(self, message: Message) -> None:
        rejection = convert(message.body, external.RejectedMessage)
        self._put_aside_bodies.add(rejection.body)
        if rejection.source_queue not in self._not_needed:
            own_id = rejection.id.rpartition("/")[0]
            scope = f"queue {rejection.source_queue}, reason {rejection.reason}"
            self._put_aside_ids[rejection.body][own_id] = (AlertKind.REJECTED.value, scope)
        base = _BASES.get(rejection.source_queue)
        if base is not None and rejection.reason == Reason.DEAD_LETTERED:
            cause = _cause(base, rejection.body.encode(), rejection.message_id or "")
            if cause is not None and cause in self._given_up:
                self._put_aside_causes.add(cause)

    def _was_given_up(self, queued: Queued) -> None:
        source = queued.source or queued.message.queue
        base = _BASES.get(source)
        if base is None and source.startswith(QUEUES.agent_prefix):  # its reply is fenced
            self._given_up.add(_reply_cause(queued.message.body))
        if base is not None:
            cause = _cause(base, queued.message.body, _first_id(queued.message))
            if cause is not None:
                self._given_up.add(cause)

    def _was_completed(self, queued: Queued) -> None:
        """Check that the messages of a completed cause were sent, or that it was put back."""
        message = queued.message
        is_letter = message.queue.removesuffix(DEAD_LETTERS) == QUEUES.dead_letters
        base = _BASES.get((queued.source or "") if is_letter else message.queue)
        is_callback = base == QUEUES.scheduler and _CALLBACK in message.body
        if is_callback:
            is_aside = message.body.decode() in self._put_aside_bodies
            is_kept = is_aside or self._is_back(message, *SCHEDULER)  # in the lane of its order
            self._callback_completed(message, is_kept=is_kept)
        if base is None or is_callback:
            return
        cause = _cause(base, message.body, _first_id(message))
        order_id = msgspec.json.decode(message.body).get("order_id")
        stored = self._system.store.orders.get(order_id)
        seq = stored.causes.get(digest_id(cause)) if stored and cause else None
        if stored is not None and seq is not None and stored.journal[seq - 1].what.acts:
            lost = self._unsent(stored.order, seq)
        elif is_letter:
            lost = [] if message.body.decode() in self._put_aside_bodies else ["it"]
        elif base == QUEUES.scheduler and stored is not None and seq is None:
            is_awaited = _REPLY in message.body and _is_out(stored.order, *_dispatch(message.body))
            lost = ["it"] if is_awaited else []
        else:
            return
        if lost and not self._is_back(message):
            self._say(2, f"{cause} is completed, and {', '.join(lost)} is lost")

    def _unsent(self, order: Order, seq: int, *, outside: bool = False) -> list[str]:
        """Return the messages of a journal row that were neither sent nor held."""
        losses = []
        held_ids = {message.message_id for message in self._held()}
        for index, item in enumerate(
            self._system.store.orders[order.order_id].journal[seq - 1].messages
        ):
            own_id = message_id(order.order_id, seq, index)
            if isinstance(item, Request) and order.steps[item.step].epoch != item.epoch:
                continue
            if own_id in self._sent_ids or own_id in held_ids:
                continue
            if self._was_handled(order, item, own_id):
                continue
            if outside or isinstance(item, Wake | Request):
                losses.append(f"{type(item).__name__.lower()} {own_id}")
        return losses

    def _was_handled(self, order: Order, item: Outgoing, own_id: str) -> bool:
        """Return whether a message was handed over, and its actor acted on it or had no need to.

        Or its actor put it back, and a copy of it waits. An agent's request may also be a reply by
        then, or a step that goes on, for which its agent asked for time. Or its agent was silent.
        """
        match item:
            case Wake():
                cause, forms = cause_of(QUEUES.scheduler, own_id), {own_id}
                needless = not any(isinstance(step.turn, Ready) for step in order.steps)
            case Request():
                direction = item.direction
                reply = reply_id(order.order_id, item.step, direction.value, item.epoch)
                cause, forms = cause_of(QUEUES.scheduler, reply), {own_id, reply}
                goes_on = any(f"{reply}/{check}" in self._sent_ids for check in (0, 1))
                is_silent = self._is_close(order.steps[item.step])
                is_over = not is_out(order, item.step, direction, item.epoch)
                needless = goes_on or is_silent or is_over
            case _:
                return False
        if needless or digest_id(cause) in self._system.store.orders[order.order_id].causes:
            return True
        queues = self._system.bus.queues.values()
        copies = [queued.message for queue in queues for queued in (*queue.waiting, *queue.locked)]
        copies += self._held()
        return any(f'"id":"{form}"'.encode() in copy.body for copy in copies for form in forms)

    def _is_close(self, step: StepRecord) -> bool:
        """Return whether CompleteBy has passed, or is so close that an agent may be silent."""
        now = self._system.world.clock.now()
        reserve = CLOSE_TO_COMPLETE_BY + CLOCK_SKEW
        return step.complete_by is not None and step.complete_by - reserve <= now

    def _is_sending(self, message: Message, now: datetime) -> None:
        """Check what an instance is about to send, by its own clock."""
        if FAILURES in message.properties or message.properties.get(DEAD_LETTER_REASON) == FAILED:
            why = message.properties.get(BUG) or message.properties.get(DEAD_LETTER_DESCRIPTION)
            self._say(14, f"the handling of message {message.message_id} failed: {why}")
        self._reply_is_sent(message, now)

    def _function_failed(self, queued: Queued, error: BaseException) -> None:
        """Check that a function fails only by a crash or an outage."""
        if not isinstance(error, UnavailableError | CrashError):
            reason = f"{type(error).__name__}: {error}"
            self._say(14, f"message {queued.message.message_id} is poison: {reason}")

    def _is_back(self, message: Message, *others: str) -> bool:
        """Return whether a copy of a message is on its queue, on one of ``others``, or held.

        A dead letter counts as a copy too, because the function of dead letters reads it, or an
        operator redrives it.
        """
        name = message.queue.removesuffix(DEAD_LETTERS)
        letters = {QUEUES.dead_letters, QUEUES.dead_letters + DEAD_LETTERS}
        names = {name, *others}
        subqueues = {queue_name + DEAD_LETTERS for queue_name in names} & self._system.subqueues
        paths = names | letters | subqueues
        queues = [self._system.bus.queues[path] for path in sorted(paths)]
        copies = [queued.message for queue in queues for queued in (*queue.waiting, *queue.locked)]
        copies += self._held()
        return any(copy.body == message.body for copy in copies)

    def _held(self) -> Iterator[Message]:
        return (item.message for item in self._system.store.held_messages.values())

    def _was_removed(self, due: OutDue) -> None:
        stored = self._system.store.orders[due.order_id]
        for lost in self._unsent(stored.order, due.seq, outside=True):
            self._say(4, f"the out row of seq {due.seq} is gone, and {lost} is not sent")

    def left_over(self) -> Iterator[Violation]:
        """Yield what should have happened and did not."""
        yield from (Violation(12, text) for text in self._owed_still())

    def _reply_is_sent(self, message: Message, now: datetime) -> None:
        """Check a reply when its agent sends it, by the clock of the agent's instance."""
        if message.queue not in SCHEDULER or _REPLY not in message.body:
            return
        if message.message_id.startswith("again/"):
            return  # a scheduler puts it back
        number, direction, epoch = _dispatch(message.body)
        order_id = msgspec.json.decode(message.body)["order_id"]
        until = self._complete_by.get((order_id, number, direction, epoch))
        if until is not None and until < now:
            late = (now - until).total_seconds()
            self._say(8, f"reply {message.message_id} is sent {late:.1f} s after CompleteBy")

    # --- e. calls ---

    def _observe_calls(self, name: str, agent: Any, direction: Direction) -> None:
        act = getattr(agent, direction.value)

        async def observed(call: AgentCall) -> Any:
            self._is_called(call, name, direction)
            return await act(call)

        setattr(agent, direction.value, observed)

    def _is_called(self, call: AgentCall, agent: str, direction: Direction) -> None:
        """Check a call of an agent, just before it is made."""
        self._was_called(call, agent)
        drain_time = self._drain_time(call)
        if direction is Direction.DO:
            self._older_are_undone(call)
            if drain_time is not None:
                latest = self._arrives_until.get(call.key, call.complete_by)
                self._arrives_until[call.key] = max(latest, call.complete_by + drain_time)
            return
        until, now = self._arrives_until.get(call.key), self._system.world.clock.now()
        if until is not None and now < until:
            early = (until - now).total_seconds()
            self._say(7, f"{call.key} is undone {early:.1f} s before its last call is cut off")

    def _drain_time(self, call: AgentCall) -> timedelta | None:
        order = self._system.store.orders[call.order_id].order
        number = next(step.number for step in order.steps if step.name == call.step)
        return self._system.rules_of(order).steps[number].drain_time

    def _was_called(self, call: AgentCall, agent: str) -> None:
        if self._agents.setdefault((call.order_id, call.step), agent) != agent:
            self._say(7, f"order {call.order_id}: step {call.step} is called at {agent} too")
        stored = self._system.store.orders.get(call.order_id)
        if stored is not None:
            step = next(record for record in stored.order.steps if record.name == call.step)
            self._called[call.order_id, call.step].add(step.epoch)
            if call.key not in keys_of(stored.order, step):
                self._say(7, f"order {call.order_id}: {call.key} is no key of step {call.step}")

    def _older_are_undone(self, call: AgentCall) -> None:
        prefix, _, last = call.key.rpartition("/")
        if prefix.count("/") == 0 or not last.isdecimal():
            return
        for generation in range(int(last)):
            older = prefix + (f"/{generation}" if generation else "")
            if not self._system.ledger.of(older).tombstone:
                self._say(7, f"{call.key} is done before {older} is undone")

    # --- callbacks ---

    def _callback_completed(self, message: Message, *, is_kept: bool) -> None:
        """Check a callback that leaves its queue: it ended its step, or it ``is_kept``."""
        claims = msgspec.json.decode(message.body)
        ends = StepState.PROCESSED if claims["outcome"] == "done" else StepState.ERROR
        if (
            not is_kept
            and claims["direction"] == Direction.DO.value
            and not self._has_ended(claims, ends)
        ):
            self._say(
                12,
                f"order {claims['order_id']}: a callback is completed, and it neither ended step "
                f"{claims['step']} nor is kept",
            )

    def _was_answered(self, callback: Callback, status: int) -> None:
        """Check the answer to a callback by HTTP."""
        claims = _claims(callback.token)
        place = f"order {claims['order_id']}: a callback for step {claims['step']}"
        if (
            status == 202
            and _callback_key(claims) not in self._accepted
            and not self._holds(claims)
        ):
            self._say(2, f"{place} is answered 202, and is neither sent nor held")
        done = any(self._has_ended(claims, end) for end in _ENDS)
        if status == 200 and claims["direction"] == Direction.DO.value and not done:
            self._say(12, f"{place} is answered 200, and its step has not ended")

    def _holds(self, claims: dict[str, Any]) -> bool:
        callbacks = [message.body for message in self._held() if _CALLBACK in message.body]
        return any(
            _callback_key(msgspec.json.decode(body)) == _callback_key(claims) for body in callbacks
        )

    def _has_ended(self, claims: dict[str, Any], ends: StepState) -> bool:
        """Return whether the step of a callback has ended in this state."""
        return (claims["order_id"], claims["step"], ends) in self._ended

    # --- a, f. what is owed ---

    def _owed(self, change: Change, place: str) -> None:
        """Check what a transition owes: an alert, an incident, the effect of a deadline."""
        order, entry = change.after, change.entry
        if order.rejected:
            return
        self._of_deadline(change, place)
        alerts = [message for message in entry.messages if isinstance(message, Alert)]
        steps_before = change.before.steps if change.before else ()
        for old, new in zip(steps_before, order.steps, strict=False):
            of_callback = (entry.cause or "").startswith(f"{QUEUES.scheduler}:callback/")
            is_over = old.process_state is StepState.PROCESSING is not new.process_state
            ends = _ENDS if of_callback and is_over else _ENDS & {new.process_state}
            self._ended |= {(order.order_id, new.number, end) for end in ends}
            fails = new.process_state is StepState.ERROR is not old.process_state
            if fails and not any(alert.step == new.number for alert in alerts):
                self._say(12, f"{place}: {new.name} failed, and no alert is sent")
        if self._is_incident(change) and change.incident is None:
            self._say(12, f"{place}: no incident is reported")
        if change.incident is not None:
            name = change.incident.kind, change.incident.scope
            explanation = explained_by(change.incident) or name
            names = {(kind.value, scope) for kind, scope in (name, explanation)}
            self._incidents.setdefault((name[0].value, name[1]), set()).update(names)

    def _is_incident(self, change: Change) -> bool:
        """Return whether operators must be told why an order waits."""
        if change.entry.what is JournalWord.WOKEN_AGAIN and change.before is not None:
            rules = self._system.rules_of(change.after)
            waited = _lengthened(change.before, change.after)
            return waited is not None and change.entry.at - waited.since >= rules.alert_after
        return change.entry.what is JournalWord.EXTENDED_WAIT

    # --- deadlines ---

    def _of_deadline(self, change: Change, place: str) -> None:
        order, entry = change.after, change.entry
        rules = self._system.rules_of(order)
        if entry.what is JournalWord.SUBMITTED and rules.deadline is not None:
            self._deadlines[order.order_id] = entry.at + rules.deadline
        ends_at = self._deadlines.get(order.order_id)
        overdue = entry.what in {JournalWord.OVERDUE, JournalWord.OVERDUE_UNDO}
        if overdue and (ends_at is None or entry.at < ends_at):
            self._say(12, f"{place}: it has no deadline, or it is not past it")
        if overdue:
            undoes = rules.on_failure is OnFailure.UNDO
            alerts = [message for message in entry.messages if isinstance(message, Alert)]
            is_reported = any(alert.alert is AlertKind.OVERDUE for alert in alerts)
            if not (order.direction is Direction.UNDO if undoes else is_reported):
                self._say(12, f"{place}: that is not what its workflow says")
        elif self._has_missed_deadline(order.order_id):
            self._say(12, f"{place}: it was past its deadline before, and nothing followed")
        elif order.direction is Direction.DO and order.process_state not in FINISHED:
            return
        self._deadlines.pop(order.order_id, None)

    def _has_missed_deadline(self, order_id: str) -> bool:
        """Return whether a whole sweep began after the deadline of an order, and it still waits."""
        ends_at = self._deadlines.get(order_id)
        return ends_at is not None and ends_at + 2 * CLOCK_SKEW < self._swept_at

    def _observe_sweeps(self, host: Any) -> None:
        sweep, clock = host.sweep, self._system.world.clock

        async def swept() -> Any:
            started_at = clock.now()
            report = await sweep()
            now, shards = clock.now(), len(self._system.store.shards)
            is_incomplete = report.failed or report.left_to_others or report.shards_failed
            if is_incomplete or report.shards_read < shards or now - started_at > SWEEP_TIME:
                self._rests_until = now + RESTS if report.led else self._rests_until
            elif started_at >= self._rests_until:
                self._swept_at = started_at
            return report

        host.sweep = swept

    def _owed_still(self) -> Iterator[str]:
        for order_id in self._deadlines:
            if self._has_missed_deadline(order_id):
                yield f"order {order_id} is past its deadline, and nothing followed"
        for (kind, scope), names in sorted(self._incidents.items()):
            if not names & self._alerted:
                yield f"no alert of the incident {kind} ({scope}) was sent"
        for ids in self._put_aside_ids.values():  # a dead letter may be put aside twice
            own_alerts = {f"{own_id}/alert" for own_id in ids}
            if not own_alerts & self._alerts and not {*ids.values()} & self._alerted:
                yield f"a message is put aside as {ids}, and no alert was sent"
        for shard, rows in self._system.store._due.items():  # noqa: SLF001  the twin of a table
            if rows:
                yield f"shard {shard} keeps {len(rows)} due rows for ever"


def _cause(base: str, body: bytes, own_id: str) -> str | None:
    """Return the cause of a message, or None."""
    message = msgspec.json.decode(body)
    if base == QUEUES.orders:  # an operator's redrive names the submission in the body
        return cause_of(base, message.get("submission_id") or own_id)
    body_id = message.get("id")
    return cause_of(base, body_id) if isinstance(body_id, str) else None


def _reply_cause(body: bytes) -> str:
    """Return the cause of the reply to a request."""
    request = msgspec.json.decode(body)
    direction = request["direction"]
    reply = reply_id(request["order_id"], request["step"], direction, request["epoch"])
    return cause_of(QUEUES.scheduler, reply)


def _first_id(message: Message) -> str:
    return message.properties.get(FIRST_ID, message.message_id)


def _dispatch(body: bytes) -> tuple[int, Direction, int]:
    """Return the step, direction and epoch of a message of an agent."""
    fields = msgspec.json.decode(body)
    return fields["step"], Direction(fields["direction"]), fields["epoch"]


def _is_request(body: bytes, order_id: str, step: StepRecord) -> bool:
    fields = msgspec.json.decode(body)
    dispatch = (fields["order_id"], fields["step"], fields["epoch"])
    return dispatch == (order_id, step.number, step.epoch)


def _was_answered(order: Order, request: dict[str, Any]) -> bool:
    """Return whether a request was the last one of its step that an agent answered."""
    for step in order.steps:
        undoes = step.process_state is StepState.COMPENSATING
        is_next = step.dispatched and undoes and request.get("epoch") == step.epoch - 1
        is_newest = not step.dispatched and request.get("epoch") == step.epoch
        if request.get("step") == step.number and (is_newest or is_next):
            return True
    return False


def _is_out(order: Order, number: int, direction: Direction, epoch: int) -> bool:
    """Return whether an agent has this request now. The code under test decides this by itself."""
    step = order.steps[number] if not order.rejected and number < len(order.steps) else None
    if step is None or not step.dispatched or step.epoch != epoch:
        return False
    return (step.process_state is StepState.PROCESSING) == (direction is Direction.DO)


def _claims(token: str) -> dict[str, Any]:
    payload = base64.urlsafe_b64decode(token.partition(".")[0] + "==")
    return dict(msgspec.json.decode(payload))


def _callback_key(claims: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a callback ends. A token and its message on the queue have the same key."""
    names = ("order_id", "submission", "step", "direction", "generation")
    return tuple(claims.get(name) for name in names)


def _lengthened(before: Order, after: Order) -> StepRecord | None:
    """Return the step whose ready turn was made longer, as it was before; None if there is none."""
    for old, new in zip(before.steps, after.steps, strict=True):
        if isinstance(old.turn, Ready) and isinstance(new.turn, Ready) and old.turn != new.turn:
            return old
    return None


# --- h. the end ---


def at_end(system: System) -> Iterator[Violation]:
    """Yield the invariants that a system breaks once nothing is under way any more."""
    yield from _unread(system)
    yield from of_orders(system)
    yield from of_commands(system)


def of_orders(system: System) -> Iterator[Violation]:
    """Yield the invariants that the submitted orders break."""
    notified, alerted = _notified(system), _alerted(system)
    aside = _bodies_put_aside(system)
    for order_id in system.unknown:
        if Notice.REJECTED not in notified[order_id].values() or order_id not in aside:
            yield Violation(
                12,
                f"order {order_id} of an unknown workflow got no notification that it is rejected",
            )
    for order_id in system.submitted:
        stored = system.store.orders.get(order_id)
        if system.is_refused(order_id):
            if Notice.REJECTED not in notified[order_id].values():
                yield Violation(12, f"order {order_id} got no notification that it is rejected")
            continue
        if stored is None or stored.order.process_state not in AT_REST:
            about = f"it never ended: {_open_step(stored.order) if stored else 'it is gone'}"
            yield Violation(12, f"order {order_id}: {about}", about)
            continue
        yield from _of_order(
            system,
            stored.order,
            journal=stored.journal,
            notified_ids=notified[order_id],
            alerted=alerted,
        )


def _open_step(order: Order) -> str:
    """Return what an order that has not ended still waits for, in words."""
    step = next((step for step in order.steps if step.complete_by is not None), None)
    if step is None:
        return f"it is {order.process_state.value}, and no step is open"
    error = step.last_error
    why = f". Its last error is {error.kind}: {error.message}" if error else ""
    return f"step {step.name} is still {step.process_state.value}{why}"


def _unread(system: System) -> Iterator[Violation]:
    for queue in system.bus.queues.values():
        waiting = [queued for queued in queue.waiting if not system.world.resting(queued)]
        count = len(waiting) + len(queue.locked)
        if count and queue.name not in READ_BY_PEOPLE | system.subqueues:
            yield Violation(12, f"{count} messages lie in queue {queue.name}")


def _bodies_put_aside(system: System) -> str:
    """Return the text of all messages that were put aside, also of those that were sent again."""
    return "".join((*_rejected_bodies(system), *(body.decode() for body in system.redriven)))


def _rejected_bodies(system: System) -> list[str]:
    return [message.body.decode() for message in system.bus.messages(QUEUES.rejected)]


def _notified(system: System) -> defaultdict[str, dict[str, Notice]]:
    """Return the notifications of each order, by id: the kind of each."""
    notices: defaultdict[str, dict[str, Notice]] = defaultdict(dict)
    for message in system.bus.messages(REPLIES_TO):
        event = external.decode_notification(message.body)
        notices[event.data.order_id][event.id] = Notice(external.notice_of(event.type))
    return notices


def _alerted(system: System) -> dict[str, str]:
    """Return the kind of each alert, by its id."""
    messages = system.bus.messages(QUEUES.alerts)
    return {message.message_id: convert(message.body, AlertMessage).kind for message in messages}


def _of_order(
    system: System,
    order: Order,
    *,
    journal: Sequence[JournalEntry],
    notified_ids: dict[str, Notice],
    alerted: dict[str, str],
) -> Iterator[Violation]:
    state = order.process_state
    notified = Counter(notified_ids.values())
    place = f"order {order.order_id} ({state.value})"
    if state is OrderState.REJECTED:
        is_resent = any(order.order_id in body.decode() for body in system.redriven)
        bodies = [body for body in _rejected_bodies(system) if order.order_id in body]
        # A letter that ``dead-letters`` gives up may lose its source. Nothing is believed then.
        is_unknown = any('"source_queue":"unknown"' in body for body in bodies)
        count = notified[Notice.REJECTED]
        if (not count and not is_unknown) or (count > 1 and not is_resent):
            yield Violation(12, f"{place} got {notified[Notice.REJECTED]} notifications 'rejected'")
        if not bodies:
            yield Violation(2, f"{place} lies on no queue: nobody can send it again")
        return
    for step in order.steps:
        yield from _effects(system, order, step, journal=journal, place=place)
    yield from _messages(order, journal, notified_ids=notified_ids, alerted=alerted, place=place)
    yield from _of_state(state, notified, place)


def _messages(
    order: Order,
    journal: Sequence[JournalEntry],
    *,
    notified_ids: dict[str, Notice],
    alerted: dict[str, str],
    place: str,
) -> Iterator[Violation]:
    """Yield a violation unless exactly the messages of the journal were sent."""
    due: Counter[Notice] = Counter()
    submitted = False
    for entry in journal:
        submitted = submitted or entry.what is JournalWord.SUBMITTED
        # An operator may send the order again, and each time its queue may give it up again.
        due[Notice.REJECTED] += not submitted and not entry.what.acts
        for index, message in enumerate(entry.messages):
            own_id = message_id(order.order_id, entry.seq, index)
            if isinstance(message, Notify):
                due[message.notice] += 1
                if own_id not in notified_ids:
                    yield Violation(2, f"{place} got no notification {message.notice.value!r}")
            elif isinstance(message, Alert) and own_id not in alerted:
                yield Violation(2, f"{place}: no alert {message.alert.value} was sent")
    notified = Counter(notified_ids.values())
    excess = {
        notice.value: count - due[notice]
        for notice, count in notified.items()
        if count > due[notice]
    }
    if excess:
        yield Violation(1, f"{place} got notifications that its journal does not have: {excess}")


def _of_state(state: OrderState, notified: Counter[Notice], place: str) -> Iterator[Violation]:
    """Yield a violation if the notifications of an order contradict its end."""
    if bool(notified[Notice.UNDONE]) != (state is OrderState.COMPENSATED):
        yield Violation(4, f"{place} got {notified[Notice.UNDONE]} notifications 'undone'")
    if state is OrderState.PROCESSED and notified[Notice.COMPLETED] != 1:
        yield Violation(4, f"{place} got {notified[Notice.COMPLETED]} notifications 'completed'")
    if state is OrderState.ERROR and not notified[Notice.FAILED]:
        yield Violation(4, f"{place} got no notification 'failed'")


def keys_of(order: Order, step: StepRecord) -> list[str]:
    """Return every key under which a step may have had its effect."""
    generations = range(step.call.generation + 1)
    return [idempotency_key(order.order_id, step.name, number) for number in generations]


def in_force(system: System, order: Order, step: StepRecord) -> int:
    """Return how many effects of a step are in force at its services."""
    by_key = system.ledger.by_key
    return sum(by_key[key].in_force for key in keys_of(order, step) if key in by_key)


def skipped(step: StepRecord, journal: Sequence[JournalEntry]) -> bool:
    """Return whether a step is Processed because an operator skipped or ended it."""
    return any(
        (
            entry.what is JournalWord.SKIPPED
            or (entry.what is JournalWord.STEP_PROCESSED and entry.by.startswith("operator "))
        )
        and step.number in {change.step for change in entry.changes}
        for entry in journal
    )


def _effects(
    system: System,
    order: Order,
    step: StepRecord,
    *,
    journal: Sequence[JournalEntry],
    place: str,
) -> Iterator[Violation]:
    """Yield what is wrong with the effects of a step at its service.

    Processed means that its effect exists once; Compensated means that no effect exists. Steps that
    an operator skipped or undid by hand, and steps without an undo, are left out.
    """
    place = f"{place}: {step.name}"
    rules = system.rules_of(order).steps[step.number]
    limited = rules.drain_time is not None
    keys = keys_of(order, step)
    all_effects = [system.ledger.by_key[key] for key in keys if key in system.ledger.by_key]
    count = in_force(system, order, step)
    if not limited and any(effects.done > 1 for effects in all_effects):
        yield Violation(7, f"{place} had its effect twice: a repeated call did not find the first")
    if not limited and count > 1:
        yield Violation(7, f"{place} has {count} effects in force under several keys")
    if order.process_state is OrderState.PROCESSED and not skipped(step, journal):
        if not count and system.owes_effect(keys):
            about = (
                f"step {step.name} is Processed, and its service did not do it: its function must "
                "not catch TransientError"
            )
            yield Violation(10, f"order {order.order_id}: {about}", about)
        contents = [effects.content for effects in all_effects if effects.in_force]
        if count and step.call.edited and contents != [json.loads(step.call.edited)]:
            yield Violation(7, f"{place} was done with an older input")
    if order.process_state is OrderState.COMPENSATED and count and not _may_stay(step, rules):
        effect = system.own_agents.left_by_undo(keys) if system.own_agents else ""
        about = f"the undo of step {step.name} leaves its effect in force{effect}"
        yield Violation(10, f"order {order.order_id}: {about}", about)


def _may_stay(step: StepRecord, rules: StepRules) -> bool:
    """Return whether the effect of a step may stay, because it has no undo or one by hand."""
    return rules.undo_time_allowed is None or step.undo is UndoStatus.BY_HAND


def of_commands(system: System) -> Iterator[Violation]:
    """Yield a violation for each command that is not carried out once, refused or put aside."""
    alerted = _alerted(system)
    aside = _bodies_put_aside(system)
    for command_id, (_, seq_shown) in system.commands.items():
        entries = recorded(system, command_id)
        executions = [entry for entry in entries if entry.what is not JournalWord.FENCED]
        is_refused = f"refused/{command_id}" in alerted
        if not (executions or is_refused or command_id in aside):
            yield Violation(13, f"command {command_id} was lost")
        if executions and is_refused:
            yield Violation(13, f"command {command_id} was carried out and refused")
        if len(entries) > 1:
            yield Violation(13, f"command {command_id} was carried out {len(entries)} times")
        if executions and seq_shown is not None and executions[0].seq != seq_shown + 1:
            yield Violation(13, f"command {command_id} was carried out on a stale page")


def recorded(system: System, command_id: str) -> list[JournalEntry]:
    """Return the transitions that have a command for their cause."""
    stored = system.store.orders.get(system.commands[command_id][0])
    cause = cause_of(QUEUES.scheduler, command_id)
    return [entry for entry in stored.journal if entry.cause == cause] if stored else []
