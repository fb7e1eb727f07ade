"""Run on, every interleaving: handlers crash, locks run out, dead letters come in mid-chain.

The model is one order of one or two steps, in the protocol of ``sas.engine.run_on``. The decisions
are small here, because ``domain_protocol_check`` explores the real ones. What that model leaves out
is the subject of this one: who sends what a journal row records, if a handler dies on the way.

1. **Queues.** A message is received under a lock, and its deliveries are counted. A lost lock or a
   crash returns it. After ``deliveries_max`` it is a dead letter. A handler whose lock is lost goes
   on, so several handlers may work on one message. A message that still waits in a queue is here a
   handler that has not begun: nothing tells them apart.
2. **First deliveries.** A message has a mark (``sas.engine.delivery.AGAIN``) if a walk sent it, or
   if it was put back: by the receiver, or by an agent whose delivery was not first. A delivery is
   first if its count is 1 and its message has no mark. Only first deliveries run on.
3. **Handlers.** A handler has tasks, and each task is one action. Between two actions anything may
   happen. One action is a commit (the ETag makes it so), a look at the journal, a send, a call of a
   service, or the completion of the root. A message that is handed over gives the same handler its
   next task. The root is completed when no task remains.
4. **Actors.** The scheduler decides first and looks for the cause last. An agent whose delivery is
   not first looks for its reply before it calls. Then it replies, is silent past CompleteBy, or
   finds that its step no longer waits. The dead-letter function finishes or fences. The supervisor
   resets a step, and leaves an out row until its messages are sent.
5. **Time.** The supervisor may find any step expired at any moment, ``Faults.early`` times. When
   nothing is under way but handlers that lost their locks, time passes for nothing.
6. **Faults** are budgets. No state is visited twice, so the whole is finite.

Two actions are one where the first reads only what stays true: a recorded cause stays recorded, and
a step that left an epoch never waits for it again. The same moves happen later then. When nothing
can cut off a send any more, it goes first: whatever comes before it can come after it, too.

A notification is a mark on its journal row: only the last row of an order has one. An order whose
step fails too often is handed to the operator by an alert, which is such a mark, too.

**Promises** (``broken``, ``at_rest``; no cycle in ``next``). Every order ends: Processed, or with
the operator. Every notification reached its queue. If crashes are the only faults, no failure is
counted and nothing is put aside: the root of the chain lies in a queue, and excuses its step.

``Rules`` has the rules that the tests take away one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.domain_model_check import EXPLORED
from tests.simulation.run_on_state import (
    DEAD,
    ERROR,
    ORDER,
    PENDING,
    PROCESSED,
    PROCESSING,
    REJECTED,
    SENDS,
    SUPERVISOR,
    UNDONE,
    Faults,
    Handler,
    Item,
    Message,
    Row,
    State,
    Step,
    Task,
    after_task,
    decide,
    sends,
)

FAILURES_MAX = 1


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of the protocol, and what the world is like.

    ``inline`` has a bool for each step. ``marks``: messages that may be handled already have their
    mark. ``look_first``: an agent whose delivery is not first looks for its reply before it calls.
    ``look_last``: a superseded or dead-lettered request looks for it. Its reply is fenced if the
    agent is silent in a delivery that is not first (``fence_silent``), or by its dead letter
    (``fence_dead``). ``fence_wake``: a wake that finds nothing to do in such a delivery fences its
    cause.
    """

    inline: tuple[bool, ...] = (True, True)
    deliveries_max: int = 2
    walk: bool = True
    marks: bool = True
    fence_silent: bool = True
    fence_dead: bool = True
    fence_wake: bool = True
    look_first: bool = True
    look_last: bool = True
    first_only: bool = True
    excuse_root: bool = True


Move = tuple[str, State]


class Progress(NamedTuple):
    """The state after a task, and what follows for its handler; None: its later tasks."""

    state: State
    tasks: tuple[Task, ...] | None = None
    collected: tuple[Message, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class RunOnModel:
    """One order under some rules and faults. ``next`` is the graph that was explored."""

    rules: Rules
    faults: Faults
    next: dict[State, list[State]] = field(default_factory=dict)

    def explore(self, first_moves: Sequence[str] = ()) -> list[str] | None:
        """Return the shortest trace to a broken promise, None if all are kept.

        ``first_moves`` are the beginnings of the labels of the moves that come first.
        """
        begin = State(self.faults).enqueue(Item(ORDER))
        for text in first_moves:
            begin = next(after for label, after in self.moves(begin) if label.startswith(text))
        before: dict[State, Move | None] = {begin: None}
        waiting = deque([begin])
        while waiting:
            state = waiting.popleft()
            moves = list(self.moves(state))
            problem = self.broken(state) or (None if moves else at_rest(state))
            if problem is not None:
                trace = [problem]
                while (move := before[state]) is not None:
                    label, state = move
                    trace.insert(0, label)
                return trace
            self.next[state] = [after for _, after in moves]
            for label, after in moves:
                if after not in before:
                    before[after] = (label, state)
                    waiting.append(after)
        EXPLORED.append((f"run on: {self.rules} {self.faults}", len(before)))
        return None

    def broken(self, state: State) -> str | None:
        """Return what must not be at any moment."""
        faults, rules = self.faults, self.rules
        few = faults.crash + faults.fail < rules.deliveries_max
        crashes_alone = few and not (faults.lock or faults.silent)
        if crashes_alone and (state.aside or any(step.failures for step in state.steps)):
            return "a failure is counted, or a message put aside, after crashes alone"
        return None

    def moves(self, state: State) -> Iterator[Move]:
        """Yield everything that can happen, with the state after it."""
        crash, _, _, early, fail, _ = state.faults
        if not (crash or early or fail):
            for handler in state.handlers:
                if handler.tasks and handler.tasks[0].name in SENDS:
                    yield from self._act(state, handler)
                    return
        for handler in dict.fromkeys(state.handlers):
            yield from self._act(state, handler)
            yield from self._fail(state, handler)
        for seq in state.out:
            last = Task("remove", seq=seq)
            if all(last not in handler.tasks for handler in state.handlers):
                yield f"the supervisor finds out row {seq}", _supervised(state, seq)
        if state.faults.undo and {step.state for step in state.steps} == {PROCESSED}:
            undone = tuple(Step(UNDONE, step.epoch + 1) for step in state.steps)
            yield "the operator undoes the order", state._replace(steps=undone).spend("undo")
        yield from self._time(state)

    def _time(self, state: State) -> Iterator[Move]:
        """Yield what the supervisor does about each step that is due."""
        is_idle = not (state.out or any(handler.locked for handler in state.handlers))
        if is_idle or state.faults.early:
            state = state if is_idle else state.spend("early")
            for number, step in enumerate(state.steps):
                is_due = step.state == PROCESSING and not self._is_excused(state, number)
                if is_due or step.state == PENDING:
                    yield _expire(state, number)

    def _is_excused(self, state: State, number: int) -> bool:
        """Return whether a message in a queue, locked or not, excuses a step."""
        return any(
            self._excuses(state, handler.root.message, number)
            for handler in state.handlers
            if handler.locked and handler.root.deliveries != DEAD
        )

    def _excuses(self, state: State, message: Message, number: int) -> bool:
        if message.kind != "request":
            return self.rules.excuse_root or message != ORDER
        if message.number == number:
            return state.is_out(message)
        step = state.steps[message.number]  # a root, if its step was answered
        is_newest = step.state != PROCESSING and step.epoch == message.epoch
        return is_newest and self.rules.excuse_root

    # What a handler does.

    def _act(self, state: State, handler: Handler) -> Iterator[Move]:
        """Yield the next action of a handler, in each way in which it may go."""
        without = state.without(handler)
        if not handler.tasks:
            yield f"{handler}: complete", without
            return
        task = handler.tasks[0]
        about = f"row {task.seq}" if task.name in ("notify", "row", "remove") else task.message
        for progress in self._progress(without, handler, task):
            tasks = handler.tasks[1:] if progress.tasks is None else progress.tasks
            over = (*handler.collected, *progress.collected)
            follower = handler._replace(tasks=tasks, collected=over)
            label = f"{handler}: {task.name} {about}{progress.note}"
            yield label, progress.state.begin(follower)

    def _progress(self, state: State, handler: Handler, task: Task) -> Iterator[Progress]:
        """Yield each way in which a task may go."""
        name, message, seq = task
        match name:
            case "row":
                yield Progress(state, (*handler.tasks[1:], *self._walked(state, seq)))
            case "look":
                yield Progress(state, self._followed(state, message))
            case "begin":  # no first delivery: its agent looks before it calls
                is_replied = self.rules.look_first and state.recorded(message.cause) is not None
                call = (Task("call", message),)
                yield Progress(state, self._followed(state, message.cause) if is_replied else call)
            case "call":
                yield from self._call(state, handler, message)
            case "dead":
                follows = self._followed(state, message.cause) if self.rules.look_last else ()
                fence = Task("fence" if self.rules.fence_dead else "aside", message.cause)
                yield Progress(state, (fence,) if state.is_out(message) else follows)
            case "fence":
                yield self._fence(state, handler, message)
            case "decide":
                yield self._decide(state, handler, message)
            case _:
                yield Progress(after_task(state, task))

    def _decide(self, state: State, handler: Handler, message: Message) -> Progress:
        """Commit, or look in an action of its own."""
        decision = decide(state, message, len(self.rules.inline))
        is_recorded = state.recorded(message) is not None
        if decision is None or is_recorded:
            must_fence = self.rules.fence_wake and not handler.root.is_first
            if message.kind == "wake" and must_fence and not is_recorded:
                return Progress(state.with_row(Row(message, is_fence=True)), (), (), ": fenced")
            return Progress(state, (Task("look", message),))
        after, row = decision
        over = tuple(message for message in row.messages if self._runs_on(handler, message))
        rest = tuple(message for message in row.messages if message not in over)
        tasks = sends(row._replace(messages=rest), len(state.journal))
        return Progress(after.with_row(row), tasks, over)

    def _call(self, state: State, handler: Handler, request: Message) -> Iterator[Progress]:
        """End a request. What it reads can be read last, so it is one action with the call."""
        if self._runs_on(handler, request.cause):
            yield Progress(state, (), (request.cause,))
        else:
            yield Progress(state.enqueue(Item(request.cause)), ())
        if not state.is_out(request):
            follows = self._followed(state, request.cause) if self.rules.look_last else ()
            yield Progress(state, follows, (), ": superseded")
        if state.faults.silent:
            fences = self.rules.fence_silent and not handler.root.is_first
            tasks = (Task("fence", request.cause),) if fences else ()
            yield Progress(state.spend("silent"), tasks, (), ": silent")

    def _fence(self, state: State, handler: Handler, cause: Message) -> Progress:
        """Send what follows from a cause, or fence it. The message of a letter is put aside.

        An agent fences only while the step waits for the reply.
        """
        is_letter, seq = handler.root.deliveries == DEAD, state.recorded(cause)
        if seq is not None and not state.journal[seq].is_fence:
            return Progress(state, self._walked(state, seq))
        if seq is None and (is_letter or state.is_out(cause)):
            state = state._replace(steps=state.steps or (Step(REJECTED),))
            state = state.with_row(Row(cause, is_fence=True))
        return Progress(state, (Task("aside"),) if is_letter else ())

    def _runs_on(self, handler: Handler, message: Message) -> bool:
        if handler.root.deliveries == DEAD or (self.rules.first_only and not handler.root.is_first):
            return False
        return message.kind != "request" or self.rules.inline[message.number]

    def _followed(self, state: State, cause: Message) -> tuple[Task, ...]:
        """Return the tasks that send what follows from a cause; none if it is not recorded."""
        seq = state.recorded(cause)
        return () if seq is None else self._walked(state, seq)

    def _walked(self, state: State, seq: int) -> tuple[Task, ...]:
        """Return the tasks that send what a row recorded, if it was not handled, and walk on.

        A request whose step has a newer epoch is left out.
        """
        row, unhandled, rows = state.journal[seq], [], []
        for message in row.messages:
            next_seq = state.recorded(message.cause) if self.rules.walk else None
            if next_seq is not None:
                rows.append(Task("row", seq=next_seq))
            elif message.kind != "request" or state.steps[message.number].epoch == message.epoch:
                unhandled.append(message)
        rest = row._replace(messages=tuple(unhandled))
        return (*sends(rest, seq, again=self.rules.marks), *rows)

    # The faults of handlers.

    def _fail(self, state: State, handler: Handler) -> Iterator[Move]:
        without = state.without(handler)
        if state.faults.crash:
            yield f"{handler}: CRASH", self._returned(without.spend("crash"), handler)
        if state.faults.lock and handler.locked:
            slow = without.spend("lock").begin(handler._replace(locked=False))
            yield f"{handler}: LOCK LOST", self._returned(slow, handler)
        root, current = handler.root, handler.current
        if not (state.faults.fail and handler.tasks) or root.deliveries in (0, DEAD):
            return
        tasks = [Task("send again" if self.rules.marks else "send", current)]  # by the receiver
        if current != root.message or (current.kind == "request" and root.is_first):
            tasks.append(Task("send", current))  # by its chain, or by its agent
        for task in tasks if handler.tasks[0] not in tasks else []:
            ends = handler._replace(tasks=(task,), collected=())
            yield f"{handler}: FAILS, {task.name} {current}", without.begin(ends).spend("fail")

    def _returned(self, state: State, handler: Handler) -> State:
        """Return the state after a handler lost its lock, if it had one."""
        root = handler.root
        if root.deliveries >= self.rules.deliveries_max:
            root = root._replace(deliveries=DEAD)
        return state.enqueue(root) if handler.locked else state


def at_rest(state: State) -> str | None:
    """Return what must not be when nothing is under way and nothing is due."""
    states = {step.state for step in state.steps}
    if state.aside and states == {REJECTED}:
        return None
    if states not in ({PROCESSED}, {UNDONE}) and ERROR not in states:
        return f"the order rests: {state.steps}"
    notifying = {seq for seq, row in enumerate(state.journal) if row.notifies}
    return None if notifying <= state.notified else "a notification is lost"


def _expire(state: State, number: int) -> Move:
    """Have the supervisor wake, reset or give up a step."""
    seq, step = len(state.journal), state.steps[number]
    row = Row(None, (Message("wake", seq),))
    if step.state == PROCESSING:
        step = Step(PENDING, step.epoch, step.failures + 1)
        if step.failures > FAILURES_MAX:
            step, row = step._replace(state=ERROR), Row(None, notifies=True)
    state = state.with_step(number, step).with_row(row)._replace(out=(*state.out, seq))
    label = f"the supervisor: step {number} is {step.state}, failures: {step.failures}"
    return label, _supervised(state, seq)


def _supervised(state: State, seq: int) -> State:
    """Have the supervisor send what a row records, and remove its out row."""
    tasks = (*sends(state.journal[seq], seq), Task("remove", seq=seq))
    return state.begin(Handler(SUPERVISOR, locked=False, current=SUPERVISOR.message, tasks=tasks))
