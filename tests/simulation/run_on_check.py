"""Run on, every interleaving: handlers crash, locks run out, dead letters come in mid-chain.

The model is one order of two steps, in the protocol of ``sas.engine.run_on``. The decisions are
small here, because ``domain_protocol_check`` explores the real ones. What that model leaves out is
the subject of this one: who sends what a journal row records, if a handler dies on the way.

1. **Queues.** A message is received under a lock, and its deliveries are counted. A lost lock, or a
   crash, returns it. After ``deliveries_max`` it is a dead letter. A handler whose lock is lost runs
   on, so any number of handlers may work on one message.
2. **Handlers.** A handler has tasks, and each task is one action. Between two actions anything may
   happen. One action is a commit (the ETag makes it so), a look at the journal, a send, a call of a
   service, or the completion of the root. A message that is handed over gives the same handler the
   next tasks, and the root is completed when no task remains.
3. **Actors.** The scheduler decides first and looks for the cause last. An agent judges its request
   by time alone or by the stored order, calls, and replies or is silent. The dead-letter function
   finishes or fences. The supervisor resets a step, and leaves an out row until its messages are
   sent.
4. **Time.** The supervisor may expire a step at any moment, as often as ``Faults.early`` says. When
   nothing is under way, time passes for nothing.
5. **Faults** are budgets (``Faults``). No state is visited twice, so the whole is finite.

A remote service has one effect for a step, whatever is repeated. A notification is a mark on its
journal row: only the last row of an order has one. An order whose step fails too often is handed to
the operator, by an alert of the same kind. No undo: it uses the same messages.

**Promises** (``broken``, ``at_rest``). Every order ends: Processed with both effects, or with the
operator. Every notification reached its queue. If crashes are the only faults, no failure is
counted: the root of the chain lies in a queue, and excuses its step.

``Rules`` has the rules that the tests take away one by one. ``explore`` returns the shortest trace
to a broken promise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.simulation.domain_model_check import EXPLORED

BLOCKED, PENDING, PROCESSING, PROCESSED = "Blocked", "Pending", "Processing", "Processed"
ERROR, REJECTED, UNDONE = "Error", "Rejected", "Undone"
FAILURES_MAX = 1


class Message(NamedTuple):
    """A message. A wake has the seq of its journal row, the others have a step and an epoch.

    A message is its own id, and the cause of what follows from it. Only a request is no cause.
    """

    kind: str
    number: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        numbers = f"{self.number}.{self.epoch}" if self.epoch else str(self.number)
        return self.kind if self.kind in ("order", "supervisor") else f"{self.kind} {numbers}"

    @property
    def cause(self) -> Message:
        return self._replace(kind="reply") if self.kind == "request" else self


ORDER = Message("order")
SUPERVISOR = Message("supervisor")
"""In place of a root: the supervisor's timer has no message."""


class Step(NamedTuple):
    """One step of the order."""

    state: str
    epoch: int = 0
    failures: int = 0


class Row(NamedTuple):
    """A journal row; its seq is its place. A fence acts on nothing."""

    cause: Message | None
    messages: tuple[Message, ...] = ()
    notifies: bool = False
    is_fence: bool = False


class Task(NamedTuple):
    """What a handler does next, about a message or about the journal row ``seq``."""

    name: str
    message: Message = ORDER
    seq: int = 0


class Handler(NamedTuple):
    """A function that runs. ``root`` is its message.

    ``count`` numbers the delivery; DEAD for a letter. ``current`` is what is handled now, and
    ``collected`` is handed over next.
    """

    root: Message
    count: int
    locked: bool
    current: Message
    tasks: tuple[Task, ...]
    collected: tuple[Message, ...] = ()


DEAD = -1
"""Instead of a number of deliveries: the message is in ``dead-letters``, which never gives up."""


class Faults(NamedTuple):
    """How often each fault may happen. ``fail``: a handler raises, or a chain is at its bounds.

    ``undo``: the operator undoes an order that is Processed: in one action, with newer epochs.
    """

    crash: int = 0
    lock: int = 0
    silent: int = 0
    early: int = 0
    fail: int = 0
    undo: int = 0


class State(NamedTuple):
    """Everything at one moment. ``effects``, ``notified`` and ``aside`` only grow."""

    steps: tuple[Step, ...]
    journal: tuple[Row, ...]
    queued: tuple[tuple[Message, int], ...]
    handlers: tuple[Handler, ...]
    out: tuple[int, ...]
    effects: frozenset[int]
    notified: frozenset[int]
    aside: bool
    ids: frozenset[Message]
    faults: Faults

    def spend(self, fault: str) -> State:
        return self._replace(
            faults=self.faults._replace(**{fault: getattr(self.faults, fault) - 1})
        )

    def recorded(self, cause: Message) -> int | None:
        return next((seq for seq, row in enumerate(self.journal) if row.cause == cause), None)

    def is_out(self, request: Message) -> bool:
        if self.steps[0].state == REJECTED:
            return False
        step = self.steps[request.number]
        return step.state == PROCESSING and step.epoch == request.epoch

    def with_step(self, number: int, step: Step) -> State:
        return self._replace(
            steps=tuple(step if at == number else other for at, other in enumerate(self.steps))
        )


class Look(Enum):
    """When an agent that ends without a reply looks whether its request is answered.

    Only OFF keeps the dead-letter function from looking, too, for a request nobody waits for.
    """

    OFF = 0
    SUPERSEDED = 1
    ALWAYS = 2


class Peeks(Enum):
    """How the supervisor reads the queues: all in one moment, or one after the other."""

    AT_ONCE = 0
    AGENT_FIRST = 1
    DOWNSTREAM = 2


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of the protocol, and what the world is like.

    ``inline`` has a bool for each step. ``poison``: the last step's call kills its handler. ``drops``: queues drop a repeated id.
    """

    inline: tuple[bool, ...] = (True, True)
    deliveries_max: int = 2
    walk: bool = True
    fence_reply: bool = True
    reply_look: Look = Look.ALWAYS
    first_only: bool = True
    excuse_root: bool = True
    peeks: Peeks = Peeks.AT_ONCE
    drops: bool = False
    poison: bool = False


Move = tuple[str, State]


class Progress(NamedTuple):
    """The state after a task, the tasks that remain, and what is handed over next."""

    state: State
    tasks: tuple[Task, ...]
    collected: tuple[Message, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class RunOnModel:
    """One order under some rules and faults."""

    rules: Rules
    faults: Faults

    def explore(self) -> list[str] | None:
        """Return the shortest trace to a broken promise, None if all are kept."""
        none: frozenset[int] = frozenset()
        begin = State(
            steps=(), journal=(), queued=((ORDER, 0),), handlers=(), out=(), effects=none,
            notified=none, aside=False, ids=frozenset(), faults=self.faults,
        )  # fmt: skip
        before: dict[State, tuple[str, State] | None] = {begin: None}
        waiting = deque([begin])
        while waiting:
            state = waiting.popleft()
            moves = list(self.moves(state))
            problem = self.broken(state) or (None if moves else self.at_rest(state))
            if problem is not None:
                return [*self._trace(state, before), problem]
            for label, after in moves:
                if after not in before:
                    before[after] = (label, state)
                    waiting.append(after)
        EXPLORED.append((f"run on: {self.rules} {self.faults}", len(before)))
        return None

    def _trace(self, state: State, before: dict[State, tuple[str, State] | None]) -> list[str]:
        labels: list[str] = []
        while (step := before[state]) is not None:
            label, state = step
            labels.append(label)
        return labels[::-1]

    # The promises.

    def broken(self, state: State) -> str | None:
        """Return what must not be at any moment."""
        only_crashes = not self.faults.lock and not self.faults.silent and not self.rules.poison
        if only_crashes and self.faults.crash + self.faults.fail < self.rules.deliveries_max:
            if any(step.failures for step in state.steps):
                return "a failure is counted, though there were only crashes"
            if state.aside:
                return "a message is put aside, though there were only crashes"
        letters = {message.kind for message, count in state.queued if count == DEAD}
        if self.rules.poison and letters - {"request"}:
            return "a message is a dead letter because of another one"
        done = {number for number, step in enumerate(state.steps) if step.state == PROCESSED}
        return None if done <= state.effects else "a step is Processed without its effect"

    def at_rest(self, state: State) -> str | None:
        """Return what must not be when nothing is under way and nothing is due."""
        states = {step.state for step in state.steps}
        if state.aside and states == {REJECTED}:
            return None
        if states not in ({PROCESSED}, {UNDONE}) and ERROR not in states:
            return f"the order rests: {state.steps}"
        notifying = {seq for seq, row in enumerate(state.journal) if row.notifies}
        return None if notifying <= state.notified else "a notification is lost"

    # What can happen next.

    def moves(self, state: State) -> Iterator[Move]:
        """Yield everything that can happen, with the state after it."""
        for item in dict.fromkeys(state.queued):
            yield self._receive(state, item)
        for handler in dict.fromkeys(state.handlers):
            yield from self._act(state, handler)
            yield from self._fail(state, handler)
        sending = {task.seq for handler in state.handlers for task in handler.tasks[-1:]
                   if task.name == "remove"}  # fmt: skip
        for seq in state.out:
            if seq not in sending:
                tasks = (*_sends(state.journal[seq], seq), Task("remove", seq=seq))
                yield f"the supervisor finds out row {seq}", _with(state, _supervisor(tasks))
        if state.faults.undo and {step.state for step in state.steps} == {PROCESSED}:
            undone = tuple(Step(UNDONE, step.epoch + 1) for step in state.steps)
            yield "the operator undoes the order", state._replace(steps=undone).spend("undo")
        idle = not (state.queued or state.handlers or state.out)
        if idle or state.faults.early:
            now = state if idle else state.spend("early")
            for number, step in enumerate(state.steps):
                if step.state in (PENDING, PROCESSING):
                    yield from self._due(now, number)

    def _receive(self, state: State, item: tuple[Message, int]) -> Move:
        message, count = item
        queued = list(state.queued)
        queued.remove(item)
        if count == DEAD:
            name = "dead" if message.kind == "request" else "fence"
        else:
            count += 1
            name = "decide" if message.kind != "request" else "call" if count == 1 else "begin"
        handler = Handler(message, count, True, message, (Task(name, message),))
        return f"{_text(handler)}: receive", _with(state._replace(queued=tuple(queued)), handler)

    def _fail(self, state: State, handler: Handler) -> Iterator[Move]:
        """Yield the faults of a handler."""
        root, count, locked = handler[:3]
        without = _without(state, handler)
        back = self._returned(root, count) if locked else []
        if state.faults.crash:
            yield f"{_text(handler)}: CRASH", _queue(without, back).spend("crash")
        if state.faults.lock and back:
            slow = handler._replace(locked=False)
            yield f"{_text(handler)}: LOCK LOST", _queue(_with(without, slow), back).spend("lock")
        if state.faults.fail and root != SUPERVISOR and count != DEAD:
            if handler.current != root:
                if handler.tasks and handler.tasks[0] != Task("send", handler.current):
                    tasks = (Task("send", handler.current),)
                    other = handler._replace(tasks=tasks, collected=())
                    yield f"{_text(handler)}: FAIL", _with(without, other).spend("fail")
            elif self.rules.deliveries_max > 1:  # the copy is no first delivery
                yield f"{_text(handler)}: PUT BACK", _queue(without, [(root, 1)]).spend("fail")

    def _returned(self, message: Message, count: int) -> list[tuple[Message, int]]:
        """Return a message in the queue to which it goes back."""
        return [(message, DEAD if count >= self.rules.deliveries_max else count)]

    def _due(self, state: State, number: int) -> Iterator[Move]:
        """Yield what the supervisor does about a due step."""
        step = state.steps[number]
        if step.state == PENDING:
            yield self._supervised(state, step, number)
        elif self.rules.peeks is Peeks.AT_ONCE:
            request = Message("request", number, step.epoch)
            if not any(self._excuses(state, request, queue) for queue in self._queues(request)):
                yield self._supervised(state, step, number)
        else:
            request = Message("request", number, step.epoch)
            tasks = [Task("peek", request, queue) for queue in self._queues(request)]
            handler = _supervisor((*tasks, Task("expire", request)))
            yield f"the supervisor begins to read the queues of {request}", _with(state, handler)

    def _queues(self, request: Message) -> list[int]:
        """Return the queues that are read for a step: 0 and 1 are those of the agents."""
        agent, orders, scheduler, replies = request.number, 2, 3, 4
        if not self.rules.excuse_root:
            return [agent, scheduler, replies]
        if self.rules.peeks is Peeks.DOWNSTREAM:
            return [orders, scheduler, 1 - agent, replies, agent, replies]
        return [agent, scheduler, replies, orders, 1 - agent]

    def _excuses(self, state: State, request: Message, queue: int) -> bool:
        """Return whether a message in a queue, locked or not, excuses a step."""
        messages = [message for message, count in state.queued if count != DEAD]
        messages += [
            handler.root for handler in state.handlers if handler.locked and handler.count != DEAD
        ]
        if queue == request.number:
            return request in messages
        kinds = {2: "order", 3: "wake", 4: "reply"}
        return any(
            message.number == queue
            if message.kind == "request"
            else kinds.get(queue) == message.kind
            for message in messages
        )

    def _supervised(self, state: State, step: Step, number: int) -> Move:
        """Have the supervisor wake, reset or give up a step."""
        seq = len(state.journal)
        row = Row(None, (Message("wake", seq),))
        after = step
        if step.state == PROCESSING:
            after = Step(PENDING, step.epoch, step.failures + 1)
            if after.failures > FAILURES_MAX:
                after, row = after._replace(state=ERROR), Row(None, notifies=True)
        tasks = (*_sends(row, seq), Task("remove", seq=seq))
        state = state.with_step(number, after)
        state = state._replace(journal=(*state.journal, row), out=(*state.out, seq))
        label = f"the supervisor: step {number} is {after.state}, {after.failures} failures"
        return label, _with(state, _supervisor(tasks))

    # What a handler does.

    def _act(self, state: State, handler: Handler) -> Iterator[Move]:
        """Yield the next action of a handler, in each way in which it may go."""
        without = _without(state, handler)
        if not handler.tasks:
            yield f"{_text(handler)}: complete", without
            return
        task, later = handler.tasks[0], handler.tasks[1:]
        if (
            task.name == "call"
            and self.rules.poison
            and task.message.number == len(state.steps) - 1
        ):
            back = self._returned(handler.root, handler.count) if handler.locked else []
            yield f"{_text(handler)}: POISON kills it", _queue(without, back)
            return
        if task.name == "expire":
            if state.is_out(task.message):
                step = state.steps[task.message.number]
                yield self._supervised(without, step, task.message.number)
            else:
                yield "the supervisor has nothing to do", without
            return
        for after, tasks, collected, note in self._done(without, handler, task, later):
            follower = handler._replace(tasks=tasks, collected=collected)
            about = f"row {task.seq}" if task.name in ("notify", "row", "remove") else task.message
            yield f"{_text(handler)}: {task.name} {about}{note}", _with(after, follower)

    def _done(
        self, state: State, handler: Handler, task: Task, later: tuple[Task, ...]
    ) -> Iterator[Progress]:
        """Yield the state after a task, the tasks that remain, and what is handed over next."""
        message, collected = task.message, handler.collected
        match task.name:
            case "send":
                yield Progress(self._sent(state, message), later, collected)
            case "notify":
                yield Progress(
                    state._replace(notified=state.notified | {task.seq}), later, collected
                )
            case "remove":
                out = tuple(seq for seq in state.out if seq != task.seq)
                yield Progress(state._replace(out=out), later, collected)
            case "aside":
                yield Progress(state._replace(aside=True), later, collected)
            case "peek":
                excused = self._excuses(state, message, task.seq)
                yield Progress(state, () if excused else later, collected)
            case "decide":
                decided = _decided(state, message, len(self.rules.inline))
                if decided is None or state.recorded(message) is not None:
                    yield Progress(state, (Task("look", message),), collected)
                    return
                after, row = decided
                seq = len(state.journal)
                after = after._replace(journal=(*state.journal, row))
                over = [sent for sent in row.messages if self._runs_on(handler, sent)]
                rest = row._replace(messages=tuple(m for m in row.messages if m not in over))
                yield Progress(after, _sends(rest, seq), (*collected, *over))
            case "look":
                yield Progress(state, (*self._followed(state, message), *later), collected)
            case "row":
                yield Progress(state, (*later, *_walked(state, task.seq, walk=True)), collected)
            case "begin":
                follows = self._followed(state, message.cause)
                yield Progress(state, follows or (Task("call", message),), collected)
            case "call":
                yield from self._called(state, handler, message)
            case "dead":
                tasks: tuple[Task, ...] = ()
                if state.is_out(message):
                    tasks = (Task("fence" if self.rules.fence_reply else "aside", message.cause),)
                elif self.rules.reply_look is not Look.OFF:
                    tasks = self._followed(state, message.cause)
                yield Progress(state, tasks, collected)
            case "fence":
                yield self._fenced(state, message)
            case name:
                raise AssertionError(name)

    def _called(self, state: State, handler: Handler, request: Message) -> Iterator[Progress]:
        """Yield how an agent may end. It judges by time alone, or finds itself superseded."""
        collected, look = handler.collected, self.rules.reply_look
        after = state._replace(effects=state.effects | {request.number})
        if self._runs_on(handler, request.cause):
            yield Progress(after, (), (*collected, request.cause))
        else:
            yield Progress(self._sent(after, request.cause), (), collected)
        follows = self._followed(state, request.cause)
        if not state.is_out(request):
            yield Progress(state, () if look is Look.OFF else follows, collected, ": superseded")
        if state.faults.silent:
            yield Progress(
                state.spend("silent"), follows if look is Look.ALWAYS else (), collected, ": silent"
            )

    def _sent(self, state: State, message: Message) -> State:
        """Return the state after a send. Some queues drop an id that they had before."""
        if not self.rules.drops:
            return _queue(state, [(message, 0)])
        if message in state.ids:
            return state
        return _queue(state._replace(ids=state.ids | {message}), [(message, 0)])

    def _fenced(self, state: State, cause: Message) -> Progress:
        """Finish a dead letter, or fence it."""
        seq = state.recorded(cause)
        if seq is not None:
            is_fence = state.journal[seq].is_fence
            return Progress(
                state, (Task("aside"),) if is_fence else self._followed(state, cause), ()
            )
        steps = state.steps or (Step(REJECTED),)
        journal = (*state.journal, Row(cause, is_fence=True))
        return Progress(state._replace(steps=steps, journal=journal), (Task("aside"),), ())

    def _runs_on(self, handler: Handler, message: Message) -> bool:
        if handler.count == DEAD or (self.rules.first_only and handler.count > 1):
            return False
        return message.kind != "request" or self.rules.inline[message.number]

    def _followed(self, state: State, cause: Message) -> tuple[Task, ...]:
        """Return the tasks that send what follows from a cause; none if it is not recorded."""
        seq = state.recorded(cause)
        if seq is None:
            return ()
        return _walked(state, seq, walk=self.rules.walk)


def _decided(state: State, message: Message, size: int) -> tuple[State, Row] | None:
    """Return the state after a message, and its row; None if there is nothing to decide."""
    seq, number = len(state.journal), message.number
    if message == ORDER:
        if state.steps:
            return None
        steps = (Step(PENDING), *(Step(BLOCKED) for _ in range(size - 1)))
        return state._replace(steps=steps), Row(message, (Message("wake", seq),))
    if message.kind == "reply":
        if not state.is_out(message):
            return None
        state = state.with_step(number, state.steps[number]._replace(state=PROCESSED))
        if number == len(state.steps) - 1:
            return state, Row(message, notifies=True)
        state = state.with_step(number + 1, Step(PENDING))
    for at, step in enumerate(state.steps):
        if step.state == PENDING:
            claimed = step._replace(state=PROCESSING, epoch=step.epoch + 1)
            return state.with_step(at, claimed), Row(
                message, (Message("request", at, claimed.epoch),)
            )
    return None


def _walked(state: State, seq: int, *, walk: bool) -> tuple[Task, ...]:
    """Return the tasks that send what a row recorded, if it was not handled, and walk on.

    A request whose step has a newer epoch is left out.
    """
    row = state.journal[seq]
    unhandled: list[Message] = []
    rows: list[Task] = []
    for message in row.messages:
        next_seq = state.recorded(message.cause) if walk else None
        if next_seq is not None:
            rows.append(Task("row", seq=next_seq))
        elif message.kind != "request" or state.steps[message.number].epoch == message.epoch:
            unhandled.append(message)
    return (*_sends(row._replace(messages=tuple(unhandled)), seq), *rows)


def _sends(row: Row, seq: int) -> tuple[Task, ...]:
    sends = tuple(Task("send", message) for message in row.messages)
    return (*sends, Task("notify", seq=seq)) if row.notifies else sends


def _supervisor(tasks: tuple[Task, ...]) -> Handler:
    return Handler(SUPERVISOR, 0, False, SUPERVISOR, tasks)


def _with(state: State, handler: Handler) -> State:
    """Return a state with a handler, which takes the next message of its chain if it is free."""
    if not handler.tasks and handler.collected:
        message, *rest = handler.collected
        name = "call" if message.kind == "request" else "decide"
        handler = handler._replace(
            current=message, tasks=(Task(name, message),), collected=tuple(rest)
        )
    if not handler.tasks and not handler.locked:
        return state  # nothing of it remains
    return state._replace(handlers=tuple(sorted((*state.handlers, handler))))


def _without(state: State, handler: Handler) -> State:
    handlers = list(state.handlers)
    handlers.remove(handler)
    return state._replace(handlers=tuple(handlers))


def _queue(state: State, items: Iterable[tuple[Message, int]]) -> State:
    return state._replace(queued=tuple(sorted((*state.queued, *items))))


def _text(handler: Handler) -> str:
    delivery = "letter" if handler.count == DEAD else f"delivery {handler.count}"
    return f"{handler.root}, {delivery}"
