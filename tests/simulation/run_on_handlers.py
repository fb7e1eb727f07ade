"""What one action of a handler does to an order: a part of run_on_check, which explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

BLOCKED, PENDING, PROCESSING, PROCESSED = "Blocked", "Pending", "Processing", "Processed"
ERROR, REJECTED, UNDONE = "Error", "Rejected", "Undone"
DEAD = -1
"""Instead of a number of deliveries: the message is in ``dead-letters``, which never gives up."""


class Message(NamedTuple):
    """A message. A wake has the seq of its journal row, the others have a step and an epoch.

    A message is its own id, and the cause of what follows from it. A request has the cause of its
    reply. A check is a request that its silent agent put back until its step waits no more.
    """

    kind: str
    number: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number}.{self.epoch}" if self.epoch else self.kind

    @property
    def cause(self) -> Message:
        return self._replace(kind="reply") if self.kind in ("request", "check") else self


ORDER = Message("order")
SUPERVISOR = Message("supervisor")
"""In place of a root: the supervisor's timer has no message."""


class Step(NamedTuple):
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
    """What a handler does next, about a message or about the journal row (or queue) ``seq``."""

    name: str
    message: Message = ORDER
    seq: int = 0


class Handler(NamedTuple):
    """A function that runs. ``delivery`` is the number of that of its root; DEAD for a letter.

    ``current`` is what it handles now. ``collected`` is handed over next.
    """

    root: Message
    delivery: int
    locked: bool
    current: Message
    tasks: tuple[Task, ...]
    collected: tuple[Message, ...] = ()

    def __str__(self) -> str:
        return f"{self.root}, {'letter' if self.delivery == DEAD else f'delivery {self.delivery}'}"


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
    """Everything at one moment. ``ids`` are those that queues drop."""

    faults: Faults
    steps: tuple[Step, ...] = ()
    journal: tuple[Row, ...] = ()
    queued: tuple[tuple[Message, int], ...] = ((ORDER, 0),)
    handlers: tuple[Handler, ...] = ()
    out: tuple[int, ...] = ()
    effects: frozenset[int] = frozenset()
    notified: frozenset[int] = frozenset()
    aside: bool = False
    ids: frozenset[Message] = frozenset()

    def spend(self, fault: str) -> State:
        budget = getattr(self.faults, fault) - 1
        return self._replace(faults=self.faults._replace(**{fault: budget}))

    def recorded(self, cause: Message) -> int | None:
        return next((seq for seq, row in enumerate(self.journal) if row.cause == cause), None)

    def is_out(self, request: Message) -> bool:
        step = self.steps[request.number] if request.number < len(self.steps) else Step(REJECTED)
        return step.state == PROCESSING and step.epoch == request.epoch

    def with_step(self, number: int, step: Step) -> State:
        return self._replace(steps=(*self.steps[:number], step, *self.steps[number + 1 :]))

    def enqueue(self, items: Iterable[tuple[Message, int]]) -> State:
        return self._replace(queued=tuple(sorted((*self.queued, *items))))

    def without(self, handler: Handler) -> State:
        handlers = list(self.handlers)
        handlers.remove(handler)
        return self._replace(handlers=tuple(handlers))

    def begin(self, handler: Handler) -> State:
        """Add a handler. If it is free, it takes the next message of its chain."""
        if not handler.tasks and handler.collected:
            message, *rest = handler.collected
            task = Task("call" if message.kind == "request" else "decide", message)
            handler = handler._replace(current=message, tasks=(task,), collected=tuple(rest))
        if not handler.tasks and not handler.locked:
            return self  # nothing of it remains
        return self._replace(handlers=tuple(sorted((*self.handlers, handler))))


class Silent(Enum):
    """What an agent does with its request when it is silent past CompleteBy."""

    COMPLETES = 0
    LOOKS = 1
    """It looks whether the reply is recorded, and sends what follows."""
    FENCES = 2
    """It does as LOOKS, and fences the reply if it is not recorded."""
    WAITS = 3
    """It puts its request back until the step waits no more. Then it does as LOOKS."""


class Peeks(Enum):
    """How the supervisor reads the queues: all in one moment, or one after the other."""

    AT_ONCE = 0
    AGENT_FIRST = 1
    DOWNSTREAM = 2


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of the protocol, and what the world is like.

    ``inline`` has a bool for each step. ``reply_look``: a superseded request, or the dead letter of
    one, looks whether its reply is recorded. ``drops``: queues drop a repeated id. ``poison``: the
    last step's call kills its handler. ``out_rows``: a row that notifies has an out row, whoever
    committed it.
    """

    inline: tuple[bool, ...] = (True, True)
    deliveries_max: int = 2
    walk: bool = True
    fence_reply: bool = True
    reply_look: bool = True
    silent: Silent = Silent.FENCES
    first_only: bool = True
    excuse_root: bool = True
    peeks: Peeks = Peeks.AT_ONCE
    drops: bool = False
    poison: bool = False
    out_rows: bool = False


class Progress(NamedTuple):
    """The state after a task, and what follows for its handler; None: its later tasks."""

    state: State
    tasks: tuple[Task, ...] | None = None
    collected: tuple[Message, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Handlers:
    """Does the tasks of handlers. ``Supervisor`` tasks are in run_on_check."""

    rules: Rules

    def do(self, state: State, handler: Handler) -> Iterator[Progress]:
        """Yield each way in which the first task of a handler may go."""
        do: dict[str, Callable[[State, Handler, Task], Iterable[Progress]]] = {
            "decide": self._decide,
            "call": self._call,
            "dead": self._dead,
            "fence": self._fence,
        }
        task = handler.tasks[0]
        message, seq = task.message, task.seq
        match task.name:
            case "send":
                yield Progress(self._sent(state, message))
            case "notify":
                yield Progress(state._replace(notified=state.notified | {seq}))
            case "remove":
                yield Progress(state._replace(out=tuple(row for row in state.out if row != seq)))
            case "aside":
                yield Progress(state._replace(aside=True))
            case "look":
                yield Progress(state, self._followed(state, message))
            case "row":
                yield Progress(state, (*handler.tasks[1:], *_walked(state, seq, walk=True)))
            case "begin":  # no first delivery: its agent looks before it calls
                follows = self._followed(state, message.cause)
                yield Progress(state, follows or (Task("call", message),))
            case name:
                yield from do[name](state, handler, task)

    def _decide(self, state: State, handler: Handler, task: Task) -> Iterator[Progress]:
        """Commit, or look in an action of its own."""
        decided = _decided(state, task.message, len(self.rules.inline))
        if decided is None or state.recorded(task.message) is not None:
            yield Progress(state, (Task("look", task.message),))
            return
        after, row = decided
        seq = len(state.journal)
        over = tuple(message for message in row.messages if self._runs_on(handler, message))
        rest = tuple(message for message in row.messages if message not in over)
        after = after._replace(journal=(*state.journal, row))
        tasks = sends(row._replace(messages=rest), seq)
        if row.notifies and self.rules.out_rows:
            after, tasks = after._replace(out=(*state.out, seq)), (*tasks, Task("remove", seq=seq))
        yield Progress(after, tasks, over)

    def _call(self, state: State, handler: Handler, task: Task) -> Iterator[Progress]:
        """End a request. What it reads can be read last, so it is one action with the call."""
        request, silent = task.message, self.rules.silent
        after = state._replace(effects=state.effects | {request.number})
        if self._runs_on(handler, request.cause):
            yield Progress(after, (), (request.cause,))
        else:
            yield Progress(self._sent(after, request.cause), ())
        follows = self._followed(state, request.cause)
        if not state.is_out(request):
            yield Progress(state, follows if self.rules.reply_look else (), (), ": superseded")
        if state.faults.silent:
            state = state.spend("silent")
            tasks = follows if silent is Silent.LOOKS else ()
            if silent is Silent.FENCES:
                tasks = (Task("fence", request.cause),)
            elif silent is Silent.WAITS:
                state = self._sent(state, request._replace(kind="check"))
            yield Progress(state, tasks, (), ": silent")

    def _dead(self, state: State, _handler: Handler, task: Task) -> Iterator[Progress]:
        """Load the order of a dead-lettered request."""
        tasks: tuple[Task, ...] = ()
        if state.is_out(task.message):
            tasks = (Task("fence" if self.rules.fence_reply else "aside", task.message.cause),)
        elif self.rules.reply_look:
            tasks = self._followed(state, task.message.cause)
        yield Progress(state, tasks)

    def _fence(self, state: State, handler: Handler, task: Task) -> Iterator[Progress]:
        """Send what follows from a cause, or fence it. The message of a letter is put aside."""
        seq = state.recorded(task.message)
        if seq is None:
            steps = state.steps or (Step(REJECTED),)
            journal = (*state.journal, Row(task.message, is_fence=True))
            state = state._replace(steps=steps, journal=journal)
        elif not state.journal[seq].is_fence:
            yield Progress(state, self._followed(state, task.message))
            return
        yield Progress(state, (Task("aside"),) if handler.delivery == DEAD else ())

    def _sent(self, state: State, message: Message) -> State:
        if not self.rules.drops:
            return state.enqueue([(message, 0)])
        if message in state.ids:
            return state
        return state._replace(ids=state.ids | {message}).enqueue([(message, 0)])

    def _runs_on(self, handler: Handler, message: Message) -> bool:
        if handler.delivery == DEAD or (self.rules.first_only and handler.delivery > 1):
            return False
        return message.kind != "request" or self.rules.inline[message.number]

    def _followed(self, state: State, cause: Message) -> tuple[Task, ...]:
        """Return the tasks that send what follows from a cause; none if it is not recorded."""
        seq = state.recorded(cause)
        return () if seq is None else _walked(state, seq, walk=self.rules.walk)


def _decided(state: State, message: Message, size: int) -> tuple[State, Row] | None:
    """Return the state after a message, and its row; None if there is nothing to decide."""
    if message == ORDER:
        steps = (Step(PENDING), *(Step(BLOCKED) for _ in range(size - 1)))
        row = Row(message, (Message("wake", len(state.journal)),))
        return None if state.steps else (state._replace(steps=steps), row)
    if message.kind == "reply":
        if not state.is_out(message):
            return None
        number = message.number
        state = state.with_step(number, state.steps[number]._replace(state=PROCESSED))
        if number == size - 1:
            return state, Row(message, notifies=True)
        state = state.with_step(number + 1, Step(PENDING))
    for number, step in enumerate(state.steps):
        if step.state == PENDING:
            claimed = step._replace(state=PROCESSING, epoch=step.epoch + 1)
            row = Row(message, (Message("request", number, claimed.epoch),))
            return state.with_step(number, claimed), row
    return None


def _walked(state: State, seq: int, *, walk: bool) -> tuple[Task, ...]:
    """Return the tasks that send what a row recorded, if it was not handled, and walk on.

    A request whose step has a newer epoch is left out.
    """
    row, unhandled, rows = state.journal[seq], [], []
    for message in row.messages:
        next_seq = state.recorded(message.cause) if walk else None
        if next_seq is not None:
            rows.append(Task("row", seq=next_seq))
        elif message.kind != "request" or state.steps[message.number].epoch == message.epoch:
            unhandled.append(message)
    return (*sends(row._replace(messages=tuple(unhandled)), seq), *rows)


def sends(row: Row, seq: int) -> tuple[Task, ...]:
    """Return the tasks that send what a row records."""
    tasks = tuple(Task("send", message) for message in row.messages)
    return (*tasks, Task("notify", seq=seq)) if row.notifies else tasks
