"""What must hold after every transition, and once nothing is under way any more.

docs/reliability.md lists the invariants by number. Each check returns what is wrong as sentences,
so that a simulation can report all of it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sas.codec import outward
from sas.codec.outward import AlertMessage
from sas.codec.strict import convert
from sas.domain.change import Change
from sas.domain.ids import cause_of, idempotency_key, message_id
from sas.domain.messages import Alert, JournalEntry, JournalWord, Notice, Notify, Request, Wake
from sas.domain.order import Direction, Order, OrderState, Ready, StepRecord, StepState, UndoStatus
from sas.domain.workflow import Rules, StepRules
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.system import AT_REST, System

READ_BY_PEOPLE = frozenset({REPLIES_TO, QUEUES.alerts, QUEUES.rejected})


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold: its number, and what was seen.

    ``about`` says what a step of the adopter does wrong, in the same words for every order. The
    number is 0 where no invariant is concerned.
    """

    number: int
    text: str
    about: str = ""

    def __str__(self) -> str:
        return f"invariant {self.number}: {self.text}" if self.number else self.text


def of_change(change: Change, rows: int, rules: Rules) -> Iterator[Violation]:
    """Yield what a new transition breaks. ``rows`` is the number of journal rows after it."""
    order, entry = change.after, change.entry
    where = f"order {order.order_id} seq {entry.seq} ({entry.what.value})"
    if not rows == entry.seq == order.seq:
        yield Violation(1, f"{where}: the journal has a gap")
    old_turns = [step.turn for step in change.before.steps] if change.before else []
    begins = [
        step.name
        for step, old in zip_longest(order.steps, old_turns)
        if isinstance(step.turn, Ready) and not isinstance(old, Ready)
    ]
    if begins and Wake() not in entry.messages:
        yield Violation(11, f"{where}: {begins[0]} is ready, and no scheduler is woken")
    if change.before is None:
        return
    for old, new in zip(change.before.steps, order.steps, strict=False):
        yield from _of_step(old, new, where)
        yield from _of_turn(change, old, new, rules, where)
    if entry.cause is None and entry.messages and change.out_at is None:
        yield Violation(4, f"{where}: a timer's messages have no out row")
    if change.before.direction is Direction.UNDO and order.direction is Direction.DO:
        yield Violation(10, f"{where}: the order went back from undo to do")
    for message in entry.messages:
        if isinstance(message, Request) and message.epoch != order.steps[message.step].epoch:
            yield Violation(6, f"{where}: a request has another epoch than its step")


def _of_step(old: StepRecord, new: StepRecord, where: str) -> Iterator[Violation]:
    if new.epoch < old.epoch:
        yield Violation(6, f"{where}: the epoch of {new.name} became lower")
    if new.call.generation < old.call.generation:
        yield Violation(7, f"{where}: the generation of {new.name} became lower")
    if old.process_state is StepState.COMPENSATED and new != old:
        yield Violation(10, f"{where}: {new.name} changed after its undo was confirmed")


def _of_turn(
    change: Change, old: StepRecord, new: StepRecord, rules: Rules, where: str
) -> Iterator[Violation]:
    """Yield what is wrong with a step that was dispatched, reset or edited just now."""
    states = [step.process_state for step in change.after.steps]
    doing = new.process_state is StepState.PROCESSING
    if new.dispatched and not old.dispatched:
        if new.epoch != old.epoch + 1:
            yield Violation(6, f"{where}: {new.name} was dispatched without a new epoch")
        before = rules.steps[new.number].after if doing else rules.dependents(new.number)
        wanted = StepState.PROCESSED if doing else StepState.COMPENSATED
        in_line = doing or new.process_state is StepState.COMPENSATING
        if in_line and any(states[number] is not wanted for number in before):
            yield Violation(10, f"{where}: {new.name} was dispatched too early")
    resets = {JournalWord.STEP_RESET, JournalWord.UNDO_RESET}
    freed = old.dispatched and not new.dispatched
    if change.entry.what in resets and freed and new.failure_count != old.failure_count + 1:
        yield Violation(11, f"{where}: the timeout of {new.name} was not counted")
    own = rules.steps[new.number]
    waits = own.extended_wait.times if own.extended_wait else 0
    if new.failures.extended_waits > waits:
        yield Violation(11, f"{where}: {new.name} rests once more than its workflow says")
    if new.call.edited != old.call.edited and new.call.generation != old.call.generation + 1:
        yield Violation(7, f"{where}: the edited input of {new.name} keeps its key")


def at_end(system: System) -> Iterator[Violation]:
    """Yield the invariants that a system breaks once nothing is under way any more."""
    yield from _unread(system)
    yield from of_orders(system)
    yield from of_commands(system)


def of_orders(system: System) -> Iterator[Violation]:
    """Yield the invariants that the submitted orders break."""
    notified, alerted = _notified(system), _alerted(system)
    aside = _aside(system)
    for order_id in system.unknown:
        if Notice.REJECTED not in notified[order_id].values() or order_id not in aside:
            yield Violation(
                12,
                f"order {order_id} of an unknown workflow got no notification that it is rejected",
            )
    for order_id in system.submitted:
        stored = system.store.orders.get(order_id)
        if stored is None or stored.order.process_state not in AT_REST:
            state = "gone" if stored is None else stored.order.process_state.value
            yield Violation(12, f"order {order_id} never ended: {state}")
            continue
        yield from _of_order(system, stored.order, stored.journal, notified[order_id], alerted)


def _unread(system: System) -> Iterator[Violation]:
    for queue in system.bus.queues.values():
        waiting = [one for one in queue.waiting if not system.world.resting(one)]
        lying = len(waiting) + len(queue.locked)
        if lying and queue.name not in READ_BY_PEOPLE | system.subqueues:
            yield Violation(12, f"{lying} messages lie in queue {queue.name}")


def _aside(system: System) -> str:
    """Return what was put aside, also what an operator sent again."""
    return "".join((*_lying_aside(system), *(body.decode() for body in system.redriven)))


def _lying_aside(system: System) -> list[str]:
    return [one.body.decode() for one in system.bus.messages(QUEUES.rejected)]


def _notified(system: System) -> defaultdict[str, dict[str, Notice]]:
    """Return the notifications of each order, by id: the kind of each."""
    found: defaultdict[str, dict[str, Notice]] = defaultdict(dict)
    for message in system.bus.messages(REPLIES_TO):
        event = outward.decode_notification(message.body)
        found[event.data.order_id][event.id] = Notice(outward.notice_of(event.type))
    return found


def _alerted(system: System) -> dict[str, str]:
    """Return the kind of each alert, by its id."""
    messages = system.bus.messages(QUEUES.alerts)
    return {one.message_id: convert(one.body, AlertMessage).kind for one in messages}


def _of_order(
    system: System,
    order: Order,
    journal: Sequence[JournalEntry],
    notified_ids: dict[str, Notice],
    alerted: dict[str, str],
) -> Iterator[Violation]:
    state = order.process_state
    notified = Counter(notified_ids.values())
    where = f"order {order.order_id} ({state.value})"
    if state is OrderState.REJECTED:
        again = any(order.order_id in body.decode() for body in system.redriven)
        if not notified[Notice.REJECTED] or (notified[Notice.REJECTED] > 1 and not again):
            yield Violation(12, f"{where} got {notified[Notice.REJECTED]} notifications 'rejected'")
        if not any(order.order_id in one for one in _lying_aside(system)):
            yield Violation(2, f"{where} lies on no queue: nobody can send it again")
        return
    for step in order.steps:
        yield from _effects(system, order, step, journal, where)
    if _replayed(journal) != _moved(order):
        yield Violation(1, f"{where}: its journal, replayed, leads to other states of its steps")
    yield from _messages(order, journal, notified_ids, alerted, where)
    yield from _of_state(state, notified, where)
    if order.order_id not in {touched for touched, _ in system.commands.values()}:
        yield from _of_untouched(system, order, notified, where)


def _replayed(journal: Sequence[JournalEntry]) -> dict[int, StepState]:
    """Return the states of steps to which a journal leads; Pending ones are left out."""
    states: dict[int, StepState] = {}
    for entry in journal:
        for one in entry.changes:
            if states.get(one.step, StepState.PENDING) is not one.before:
                return {}
            states[one.step] = one.after
    return {step: state for step, state in states.items() if state is not StepState.PENDING}


def _moved(order: Order) -> dict[int, StepState]:
    states = {one.number: one.process_state for one in order.steps}
    return {step: state for step, state in states.items() if state is not StepState.PENDING}


def _messages(
    order: Order,
    journal: Sequence[JournalEntry],
    notified_ids: dict[str, Notice],
    alerted: dict[str, str],
    where: str,
) -> Iterator[Violation]:
    """Yield a violation unless exactly the messages of the journal were sent."""
    due: Counter[Notice] = Counter()
    submitted = False
    for entry in journal:
        submitted = submitted or entry.what is JournalWord.SUBMITTED
        # Each time that an operator sent the order again, its queue may have given it up again.
        due[Notice.REJECTED] += not submitted and not entry.what.acts
        for index, message in enumerate(entry.messages):
            own_id = message_id(order.order_id, entry.seq, index)
            if isinstance(message, Notify):
                due[message.notice] += 1
                if own_id not in notified_ids:
                    yield Violation(2, f"{where} got no notification {message.notice.value!r}")
            elif isinstance(message, Alert) and own_id not in alerted:
                yield Violation(2, f"{where}: no alert {message.alert.value} was sent")
    notified = Counter(notified_ids.values())
    more = {one.value: count - due[one] for one, count in notified.items() if count > due[one]}
    if more:
        yield Violation(1, f"{where} got notifications that its journal does not have: {more}")


def _of_state(state: OrderState, notified: Counter[Notice], where: str) -> Iterator[Violation]:
    """Yield a violation if the notifications of an order contradict its end."""
    if bool(notified[Notice.UNDONE]) != (state is OrderState.COMPENSATED):
        yield Violation(4, f"{where} got {notified[Notice.UNDONE]} notifications 'undone'")
    if state is OrderState.PROCESSED and notified[Notice.COMPLETED] != 1:
        yield Violation(4, f"{where} got {notified[Notice.COMPLETED]} notifications 'completed'")
    if state is OrderState.ERROR and not notified[Notice.FAILED]:
        yield Violation(4, f"{where} got no notification 'failed'")


def _of_untouched(
    system: System, order: Order, notified: Counter[Notice], where: str
) -> Iterator[Violation]:
    """Yield violations of rules that hold only for an order without an operator's command."""
    state = order.process_state
    processed = state is OrderState.PROCESSED
    if notified[Notice.COMPLETED] and not processed:
        yield Violation(4, f"{where} got a notification 'completed'")
    steps = len(order.steps) * system.rules_of(order).notify_steps
    if processed and notified[Notice.STEP_COMPLETED] != steps:
        yield Violation(
            4, f"{where} got notifications of {notified[Notice.STEP_COMPLETED]} of {steps} steps"
        )
    if (
        notified[Notice.FAILED]
        and order.direction is Direction.DO
        and state is not OrderState.ERROR
    ):
        yield Violation(4, f"{where} got a notification 'failed'")


def keys_of(order: Order, step: StepRecord) -> list[str]:
    """Return every key under which a step may have had its effect."""
    generations = range(step.call.generation + 1)
    return [idempotency_key(order.order_id, step.name, number) for number in generations]


def in_force(system: System, order: Order, step: StepRecord) -> int:
    """Return how many effects of a step are in force at its services."""
    by_key = system.ledger.by_key
    return sum(by_key[key].in_force for key in keys_of(order, step) if key in by_key)


def skipped(step: StepRecord, journal: Sequence[JournalEntry]) -> bool:
    """Return whether a step is Processed because an operator skipped it."""
    return any(
        entry.what is JournalWord.SKIPPED and step.number in {one.step for one in entry.changes}
        for entry in journal
    )


def _effects(
    system: System, order: Order, step: StepRecord, journal: Sequence[JournalEntry], where: str
) -> Iterator[Violation]:
    """Yield what is wrong with the effects of a step at its service.

    Processed means that its effect exists once; Compensated means that no effect exists. Steps that
    an operator skipped or undid by hand, and steps without an undo, are left out.
    """
    where = f"{where}: {step.name}"
    rules = system.rules_of(order).steps[step.number]
    limited = rules.drain_time is not None
    keys = keys_of(order, step)
    known = [system.ledger.by_key[key] for key in keys if key in system.ledger.by_key]
    count = in_force(system, order, step)
    if not limited and any(effects.done > 1 for effects in known):
        yield Violation(7, f"{where} had its effect twice: a repeated call did not find the first")
    if not limited and count > 1:
        yield Violation(7, f"{where} has {count} effects in force under several keys")
    if order.process_state is OrderState.PROCESSED and not skipped(step, journal):
        if not count and system.owes_effect(step.name, keys):
            about = (
                f"{order.details.workflow}: step {step.name} is Processed, and its service failed "
                "or refused it: its agent must raise that error"
            )
            yield Violation(10, f"{where} has no effect", about)
        contents = [effects.content for effects in known if effects.in_force]
        if count and step.call.edited and contents != [json.loads(step.call.edited)]:
            yield Violation(7, f"{where} was done with an older input")
    if order.process_state is OrderState.COMPENSATED and count and not _left(step, rules):
        about = f"{order.details.workflow}: the undo of step {step.name} leaves its effect in force"
        yield Violation(10, f"{where} is still in force", about)


def _left(step: StepRecord, rules: StepRules) -> bool:
    """Return whether the effect of a step may stay: it has no undo, or it was undone by hand."""
    return rules.undo_time_allowed is None or step.undo is UndoStatus.BY_HAND


def of_commands(system: System) -> Iterator[Violation]:
    """Yield a violation for each command that is not carried out once, refused or put aside."""
    alerted = _alerted(system)
    aside = _aside(system)
    for command_id, (_, seen) in system.commands.items():
        done = recorded(system, command_id)
        carried = [one for one in done if one.what is not JournalWord.FENCED]
        refused = f"refused/{command_id}" in alerted
        if not (carried or refused or command_id in aside):
            yield Violation(13, f"command {command_id} was lost")
        if carried and refused:
            yield Violation(13, f"command {command_id} was carried out and refused")
        if len(done) > 1:
            yield Violation(13, f"command {command_id} was carried out {len(done)} times")
        if carried and seen is not None and carried[0].seq != seen + 1:
            yield Violation(13, f"command {command_id} was carried out on a stale page")


def recorded(system: System, command_id: str) -> list[JournalEntry]:
    """Return the transitions that have a command for their cause."""
    stored = system.store.orders.get(system.commands[command_id][0])
    cause = cause_of(QUEUES.scheduler, command_id)
    return [one for one in stored.journal if one.cause == cause] if stored else []
