"""What is seen of a system while it runs: each message, call and transition, and what is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from sas.codec import outward
from sas.codec.internal import Kind
from sas.codec.strict import Reason, convert
from sas.domain.change import Change, HeldDue, OutDue
from sas.domain.ids import cause_of, digest_id, message_id
from sas.domain.messages import Request, Wake
from sas.domain.order import (
    CLOCK_SKEW,
    Direction,
    Dispatched,
    Order,
    StepRecord,
    StepState,
)
from sas.domain.queues import lane
from sas.engine.receiver import FIRST_ID
from sas.ports import Call, Clock, Message, MessageBus, Peeked, UnavailableError
from sas.testing.bus import DEAD_LETTERS, Queued
from sas.testing.invariants import Violation, keys_of, of_change
from sas.testing.later import Later
from sas.testing.platform import QUEUES
from sas.testing.system import CALLBACKS, System
from sas.testing.world import CrashError

Broken = Callable[[Violation], None]
_BASES = {
    lane(name, urgent=urgent): name
    for name in (QUEUES.orders, QUEUES.scheduler, QUEUES.replies, QUEUES.callbacks)
    for urgent in (False, True)
}
"""The ordinary lane of each queue whose messages are causes."""
_REPLY = f'"kind":"{Kind.REPLY}"'.encode()


class Watch:
    """Observes everything that happens in a system, and reports what breaks an invariant."""

    def __init__(self, system: System, broken: Broken) -> None:
        self._system, self._broken = system, broken
        self._sent: dict[tuple[str, str], bytes] = {}
        self._sent_ids: set[str] = set()
        self._causes: set[tuple[str, str]] = set()
        self._given_up: set[str] = set()
        self._aside: set[str] = set()
        self._aside_bodies: set[str] = set()
        self._until: dict[tuple[str, int, Direction, int], datetime] = {}
        self._called: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._agents: dict[tuple[str, str], str] = {}
        self.asked_again: Counter[tuple[str, str]] = Counter()
        self._later = Later(system, self._say)
        system.bus.on_sent = self._was_sent
        system.bus.on_given_up = self._was_given_up
        system.bus.on_completed = self._was_completed
        system.store.on_removed = self._was_removed
        system.world.on_failed = self._failed
        for name, agent in system.agents.items():
            self._hear(name, agent, system)

    def _say(self, number: int, text: str) -> None:
        self._broken(Violation(number, text))

    # --- transitions ---

    def written(self, change: Change) -> None:
        """Check a transition that was just committed."""
        order, entry = change.after, change.entry
        where = f"order {order.order_id} seq {entry.seq} ({entry.what.value})"
        stored = self._system.store.orders[order.order_id]
        if not order.rejected:  # its workflow may be unknown
            rules = self._system.rules_of(order)
            for violation in of_change(change, len(stored.journal), rules):
                self._broken(violation)
        for step in order.steps:
            if isinstance(step.turn, Dispatched):
                undoes = step.process_state is not StepState.PROCESSING
                direction = Direction.UNDO if undoes else Direction.DO
                which = (order.order_id, step.number, direction, step.epoch)
                latest = self._until.get(which)
                if latest is None or latest < step.turn.complete_by:
                    self._until[which] = step.turn.complete_by
        for old, new in zip(
            change.before.steps if change.before else (), order.steps, strict=False
        ):
            if new.failure_count > old.failure_count and self._untried(order.order_id, old):
                self._say(15, f"{where}: {old.name} is counted, and its request waits in its queue")
        if entry.cause is not None:
            self._of_cause(change, entry.cause, where)
        self._later.written(change)

    def _of_cause(self, change: Change, cause: str, where: str) -> None:
        entry, order_id = change.entry, change.after.order_id
        if (order_id, cause) in self._causes:
            self._say(1, f"{where}: cause {cause} is recorded twice")
        self._causes.add((order_id, cause))
        if entry.what.acts:
            if entry.by.startswith("dead letters"):
                self._say(3, f"{where}: a dead letter led to it")
            if cause in self._aside:
                self._say(3, f"{where}: its cause {cause} was put aside before")
        elif cause not in self._given_up and not cause.startswith(f"{QUEUES.callbacks}:"):
            self._say(17, f"{where}: cause {cause} is fenced, and its queue never gave it up")
        queue, _, own = cause.partition(":")
        parts = own.split("/")
        if queue == QUEUES.replies and entry.what.acts and change.before and len(parts) > 3:
            number, direction, epoch = int(parts[1]), Direction(parts[2]), int(parts[3])
            if not _is_out(change.before, number, direction, epoch):
                self._say(6, f"{where}: reply {own} counts, and no such request is out")

    def _untried(self, order_id: str, step: StepRecord) -> bool:
        """Return whether no call went out for a dispatch, and its request waits in a queue still,
        or could not be sent because that is away.

        A request in a queue that does not move is counted after some excuses.
        """
        if step.epoch in self._called[order_id, step.name] or step.complete_by is None:
            return False
        if isinstance(step.turn, Dispatched) and step.turn.excused:
            return False
        now, bus = self._system.world.clock.now(), self._system.bus
        if any(self._unsent_to_away(order_id, step)):
            return True
        return any(
            one.enqueued_at < step.complete_by - CLOCK_SKEW
            and (one.expires_at is None or one.expires_at > now)
            and _is_request(one.message.body, order_id, step)
            for name, queue in bus.queues.items()
            if name.startswith(QUEUES.agent_prefix)
            and _BASES.get(name.removesuffix(DEAD_LETTERS)) != QUEUES.replies
            and name not in self._system.subqueues
            for one in queue.waiting
        )

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

    # --- messages ---

    def _was_sent(self, message: Message) -> None:
        self._sent_ids.add(message.message_id)
        self._later.was_sent(message)
        if message.queue == QUEUES.rejected:
            self._was_put_aside(message)
        if _BASES.get(message.queue) != QUEUES.replies:
            return
        key = (message.queue, message.message_id)
        before = self._sent.setdefault(key, message.body)
        if before != message.body and _dispatch(before) != _dispatch(message.body):
            self._say(5, f"MessageId {message.message_id} is used for two replies")

    def _was_put_aside(self, message: Message) -> None:
        kept = convert(message.body, outward.RejectedMessage)
        self._aside_bodies.add(kept.body)
        base = _BASES.get(kept.source_queue)
        if base is not None and kept.reason == Reason.DEAD_LETTERED:
            cause = _cause(base, kept.body.encode(), kept.message_id or "")
            if cause is not None and cause in self._given_up:
                self._aside.add(cause)

    def _was_given_up(self, queued: Queued) -> None:
        base = _BASES.get(queued.source or queued.message.queue)
        if base is not None:
            cause = _cause(base, queued.message.body, _first_id(queued.message))
            if cause is not None:
                self._given_up.add(cause)

    def _was_completed(self, queued: Queued) -> None:
        """Check that the messages of a completed cause were sent, or that it was put back."""
        message = queued.message
        is_letter = message.queue.removesuffix(DEAD_LETTERS) == QUEUES.dead_letters
        base = _BASES.get((queued.source or "") if is_letter else message.queue)
        if base == QUEUES.callbacks:
            is_aside = message.body.decode() in self._aside_bodies
            kept = is_aside or self._is_back(message, *CALLBACKS)  # in the lane of its order
            self._later.callback_completed(message, kept=kept)
        if base is None or base == QUEUES.callbacks:
            return
        cause = _cause(base, message.body, _first_id(message))
        order_id = msgspec.json.decode(message.body).get("order_id")
        stored = self._system.store.orders.get(order_id)
        seq = stored.causes.get(digest_id(cause)) if stored and cause else None
        if stored is not None and seq is not None and stored.journal[seq - 1].what.acts:
            lost = self._unsent(stored.order, seq)
        elif is_letter:
            lost = [] if message.body.decode() in self._aside_bodies else ["it"]
        elif base == QUEUES.replies and stored is not None and seq is None:
            counts = _REPLY in message.body and _is_out(stored.order, *_dispatch(message.body))
            lost = ["it"] if counts else []
        else:
            return
        if lost and not self._is_back(message):
            self._say(2, f"{cause} is completed, and {', '.join(lost)} is lost")

    def _unsent(self, order: Order, seq: int, *, outside: bool = False) -> list[str]:
        """Return what a journal row says is to be sent, and is neither sent nor held."""
        found = []
        held = {one.message_id for one in self._system.store._held.values()}  # noqa: SLF001
        for index, item in enumerate(
            self._system.store.orders[order.order_id].journal[seq - 1].messages
        ):
            own_id = message_id(order.order_id, seq, index)
            if isinstance(item, Request) and order.steps[item.step].epoch != item.epoch:
                continue
            if own_id in self._sent_ids or own_id in held:
                continue
            if outside or isinstance(item, Wake | Request):
                found.append(f"{type(item).__name__.lower()} {own_id}")
        return found

    def _failed(self, queued: Queued, failed: BaseException) -> None:
        """Check that no message is poison: a function fails only if it dies or for an outage."""
        if not isinstance(failed, UnavailableError | CrashError):
            why = f"{type(failed).__name__}: {failed}"
            self._say(14, f"message {queued.message.message_id} is poison: {why}")

    def _is_back(self, message: Message, *others: str) -> bool:
        """Return whether a copy of a message is on its queue, one of ``others``, or held.

        A copy in a subqueue is one too: an operator redrives it (see ``left_over``).
        """
        name = message.queue.removesuffix(DEAD_LETTERS)
        names = {name, *others}
        paths = names | {one + DEAD_LETTERS for one in names} & self._system.subqueues
        queues = [self._system.bus.queues[path] for path in sorted(paths)]
        copies = [one.message for queue in queues for one in (*queue.waiting, *queue.locked)]
        copies += self._system.store._held.values()  # noqa: SLF001
        return any(one.body == message.body for one in copies)

    def _was_removed(self, due: OutDue | HeldDue) -> None:
        if isinstance(due, OutDue):
            stored = self._system.store.orders[due.order_id]
            for lost in self._unsent(stored.order, due.seq, outside=True):
                self._say(4, f"the out row of seq {due.seq} is gone, and {lost} is not sent")

    def left_over(self) -> Iterator[Violation]:
        """Yield what should have happened, and dead letters that an operator should have sent."""
        yield from (Violation(12, text) for text in self._later.left_over())
        for path in sorted(self._system.subqueues):
            queue = self._system.bus.queues[path]
            for queued in (*queue.waiting, *queue.locked):
                if self._is_needed(queued):
                    yield Violation(12, f"{queued.message.message_id} lies in {path} for ever")

    def _is_needed(self, letter: Queued) -> bool:
        """Return whether an order, or a command, still waits for a dead letter."""
        base, body = _BASES.get(letter.source or ""), letter.message.body
        stored = self._system.store.orders.get(msgspec.json.decode(body).get("order_id"))
        if base == QUEUES.orders:
            return stored is None or stored.order.rejected
        if base == QUEUES.callbacks:
            return self._later.is_awaited(body)
        if stored is None:
            return False
        cause = _cause(base, body, _first_id(letter.message)) if base else None
        if cause is not None and digest_id(cause) in stored.causes:
            return False
        return base == QUEUES.scheduler or _is_out(stored.order, *_dispatch(body))

    def answers(self, message: Message, now: datetime) -> None:
        """Check a reply at the moment at which its agent sends it, by the clock of its instance."""
        if message.message_id.startswith("again/") or _REPLY not in message.body:
            return  # a scheduler puts it back
        number, direction, epoch = _dispatch(message.body)
        order_id = msgspec.json.decode(message.body)["order_id"]
        until = self._until.get((order_id, number, direction, epoch))
        if until is not None and until < now:
            late = (now - until).total_seconds()
            self._say(8, f"reply {message.message_id} is sent {late:.1f} s after CompleteBy")

    # --- calls ---

    def _hear(self, name: str, agent: Any, system: System) -> None:
        do, undo = agent.do, agent.undo

        async def done(call: Call) -> Any:
            self._was_called(call, name)
            self._later.called(call)
            self._older_are_undone(call)
            known = system.ledger.by_key.get(call.key)
            self.asked_again[call.order_id, call.step] += known is not None and known.in_force
            return await do(call)

        async def undone(call: Call) -> Any:
            self._was_called(call, name)
            self._later.called_to_undo(call)
            return await undo(call)

        agent.do, agent.undo = done, undone

    def _was_called(self, call: Call, agent: str) -> None:
        if self._agents.setdefault((call.order_id, call.step), agent) != agent:
            self._say(7, f"order {call.order_id}: step {call.step} is called at {agent} too")
        stored = self._system.store.orders.get(call.order_id)
        if stored is not None:
            step = next(one for one in stored.order.steps if one.name == call.step)
            self._called[call.order_id, call.step].add(step.epoch)
            if call.key not in keys_of(stored.order, step):
                self._say(7, f"order {call.order_id}: {call.key} is no key of step {call.step}")

    def _older_are_undone(self, call: Call) -> None:
        prefix, _, last = call.key.rpartition("/")
        if prefix.count("/") == 0 or not last.isdecimal():
            return
        for generation in range(int(last)):
            older = prefix + (f"/{generation}" if generation else "")
            if not self._system.ledger.of(older).tombstone:
                self._say(7, f"{call.key} is done before {older} is undone")


class Ear:
    """The bus of one instance. ``watch`` sees its replies before they are sent."""

    def __init__(self, bus: MessageBus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self.watch: Watch | None = None

    async def send(self, messages: Sequence[Message]) -> None:
        """See ``MessageBus.send``."""
        for message in messages:
            if self.watch is not None and _BASES.get(message.queue) == QUEUES.replies:
                self.watch.answers(message, self._clock.now())
        await self._bus.send(messages)

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        return await self._bus.peek(queue, limit)

    async def close(self) -> None:
        """See ``MessageBus.close``."""
        await self._bus.close()


def _cause(base: str, body: bytes, own_id: str) -> str | None:
    """Return the cause of a message, or None."""
    message = msgspec.json.decode(body)
    if base == QUEUES.orders:  # an operator's redrive names the submission in the body
        return cause_of(base, message.get("submission_id") or own_id)
    said = message.get("id")
    return cause_of(base, said) if isinstance(said, str) else None


def _first_id(message: Message) -> str:
    return message.properties.get(FIRST_ID, message.message_id)


def _dispatch(body: bytes) -> tuple[int, Direction, int]:
    """Return the step, direction and epoch of a message of an agent."""
    said = msgspec.json.decode(body)
    return said["step"], Direction(said["direction"]), said["epoch"]


def _is_request(body: bytes, order_id: str, step: StepRecord) -> bool:
    said = msgspec.json.decode(body)
    return (said["order_id"], said["step"], said["epoch"]) == (order_id, step.number, step.epoch)


def _is_out(order: Order, number: int, direction: Direction, epoch: int) -> bool:
    """Return whether an agent is asked for this just now. The code under test has its own words."""
    step = order.steps[number] if not order.rejected and number < len(order.steps) else None
    if step is None or not step.dispatched or step.epoch != epoch:
        return False
    return (step.process_state is StepState.PROCESSING) == (direction is Direction.DO)
