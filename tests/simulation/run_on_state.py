"""The order of run_on_check, which explains it: its steps, its journal, and its handlers."""

from __future__ import annotations

from typing import NamedTuple

BLOCKED, PENDING, PROCESSING, PROCESSED = "Blocked", "Pending", "Processing", "Processed"
ERROR, REJECTED, UNDONE = "Error", "Rejected", "Undone"
SENDS = ("send", "send again", "notify", "aside", "remove")
"""Tasks that only write, in one way."""
DEAD = -1
"""Instead of a number of deliveries: the message is in ``dead-letters``, which never gives up."""


class Message(NamedTuple):
    """A message. A wake has the seq of its journal row, the others have a step and an epoch.

    A message is its own id, and the cause of what follows from it. A request has the cause of its
    reply.
    """

    kind: str
    number: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number}.{self.epoch}" if self.epoch else self.kind

    @property
    def cause(self) -> Message:
        return self._replace(kind="reply") if self.kind == "request" else self


ORDER = Message("order")


class Item(NamedTuple):
    """A message in its queue, or as a handler received it."""

    message: Message
    deliveries: int = 0
    again: bool = False

    @property
    def is_first(self) -> bool:
        return self.deliveries == 1 and not self.again


SUPERVISOR = Item(Message("supervisor"))
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
    """What a handler does next, about a message or about the journal row ``seq``."""

    name: str
    message: Message = ORDER
    seq: int = 0


class Handler(NamedTuple):
    """A function that runs. ``current`` is what it handles. ``collected`` is handed over next."""

    root: Item
    locked: bool
    current: Message
    tasks: tuple[Task, ...]
    collected: tuple[Message, ...] = ()

    def __str__(self) -> str:
        count = "letter" if self.root.deliveries == DEAD else f"delivery {self.root.deliveries}"
        return f"{self.root.message}, {count}{' of a marked one' if self.root.again else ''}"


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
    """Everything at one moment. ``out`` are the rows that have an out row."""

    faults: Faults
    steps: tuple[Step, ...] = ()
    journal: tuple[Row, ...] = ()
    handlers: tuple[Handler, ...] = ()
    out: tuple[int, ...] = ()
    notified: frozenset[int] = frozenset()
    aside: bool = False

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

    def with_row(self, row: Row) -> State:
        return self._replace(journal=(*self.journal, row))

    def enqueue(self, item: Item) -> State:
        """Begin the next delivery of a message."""
        message, is_letter = item.message, item.deliveries == DEAD
        root = item if is_letter else item._replace(deliveries=item.deliveries + 1)
        if message.kind == "request":
            name = "dead" if is_letter else "call" if root.is_first else "begin"
        else:
            name = "fence" if is_letter else "decide"
        return self.begin(Handler(root, locked=True, current=message, tasks=(Task(name, message),)))

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
        may_return = handler.locked and (self.faults.crash or self.faults.lock)
        if not handler.tasks and not may_return:
            return self  # nothing of it remains
        return self._replace(handlers=tuple(sorted((*self.handlers, handler))))


def after_task(state: State, task: Task) -> State:
    """Return the state after a task that sends or removes something: one of SENDS."""
    name, message, seq = task
    match name:
        case "notify":
            return state._replace(notified=state.notified | {seq})
        case "remove":
            return state._replace(out=tuple(row for row in state.out if row != seq))
        case "aside":
            return state._replace(aside=True)
        case _:
            return state.enqueue(Item(message, again=name == "send again"))


def decide(state: State, message: Message, size: int) -> tuple[State, Row] | None:
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


def sends(row: Row, seq: int, *, again: bool = False) -> tuple[Task, ...]:
    """Return the tasks that send what a row records."""
    tasks = tuple(Task("send again" if again else "send", message) for message in row.messages)
    return (*tasks, Task("notify", seq=seq)) if row.notifies else tasks
