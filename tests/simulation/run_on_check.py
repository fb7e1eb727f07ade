"""Run on, every interleaving: handlers crash, locks run out, dead letters come in mid-chain.

The model is one order of one or two steps, in the protocol of ``sas.engine.run_on``. The decisions
are small here, because ``domain_protocol_check`` explores the real ones. What that model leaves out
is the subject of this one: who sends what a journal row records, if a handler dies on the way.

1. **Queues.** A message is received under a lock, and its deliveries are counted. A lost lock or a
   crash returns it. After ``deliveries_max`` it is a dead letter. A handler whose lock is lost goes
   on, so several handlers may work on one message.
2. **Handlers.** A handler has tasks, and each task is one action. Between two actions anything may
   happen. One action is a commit (the ETag makes it so), a look at the journal, a send, a call of a
   service, or the completion of the root. A message that is handed over gives the same handler its
   next task. The root is completed when no task remains.
3. **Actors.** The scheduler decides first and looks for the cause last. An agent replies, is silent
   past CompleteBy, or finds that its step no longer waits. The dead-letter function finishes or
   fences. The supervisor resets a step, and leaves an out row until its messages are sent.
4. **Time.** The supervisor may find any step expired at any moment, ``Faults.early`` times. When
   nothing is under way, time passes for nothing.
5. **Faults** are budgets. No state is visited twice, so the whole is finite.

Two actions are one where the first reads only what stays true: a recorded cause stays recorded, and
a step that left an epoch never waits for it again. The same moves happen later then.

A remote service has one effect for a step, whatever is repeated. A notification is a mark on its
journal row: only the last row of an order has one. An order whose step fails too often is handed to
the operator by an alert, which is such a mark, too.

**Promises** (``broken``, ``at_rest``; no cycle in ``next``). Every order ends: Processed with all
effects, or with the operator. Every notification reached its queue. If crashes are the only faults,
no failure is counted and nothing is put aside: the root of the chain lies in a queue, and excuses
its step.

``Rules`` has the rules that the tests take away one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.domain_model_check import EXPLORED
from tests.simulation.run_on_handlers import (
    DEAD,
    ERROR,
    PENDING,
    PROCESSED,
    PROCESSING,
    REJECTED,
    SUPERVISOR,
    UNDONE,
    Faults,
    Handler,
    Handlers,
    Message,
    Peeks,
    Row,
    Rules,
    State,
    Step,
    Task,
    sends,
)

FAILURES_MAX = 1
ORDERS, SCHEDULER, REPLIES = 10, 11, 12
"""Queues. That of an agent has the number of its step."""
QUEUES = {"order": ORDERS, "wake": SCHEDULER, "reply": REPLIES}
Move = tuple[str, State]


@dataclass(frozen=True)
class RunOnModel:
    """One order under some rules and faults. ``next`` is the graph that was explored."""

    rules: Rules
    faults: Faults
    next: dict[State, list[State]] = field(default_factory=dict)

    def explore(self) -> list[str] | None:
        """Return the shortest trace to a broken promise, None if all are kept."""
        begin = State(self.faults)
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
        few = faults.crash + faults.fail + rules.poison < rules.deliveries_max
        crashes_alone = few and not (faults.lock or faults.silent or rules.poison)
        failed = state.aside or any(step.failures for step in state.steps)
        if crashes_alone and failed:
            return "a failure is counted, or a message put aside, after crashes alone"
        letters = {message.kind for message, count in state.queued if count == DEAD}
        if few and rules.poison and letters - {"request"}:
            return "a message is a dead letter because of another one"
        done = {number for number, step in enumerate(state.steps) if step.state == PROCESSED}
        return None if done <= state.effects else "a step is Processed without its effect"

    def moves(self, state: State) -> Iterator[Move]:
        """Yield everything that can happen, with the state after it."""
        checks = [item for item in state.queued if item[0].kind == "check"]
        for item in dict.fromkeys(state.queued):
            if not (item in checks and state.is_out(item[0])):
                yield _receive(state, item)
        for handler in dict.fromkeys(state.handlers):
            yield from self._act(state, handler)
            yield from self._fail(state, handler)
        last_tasks = [handler.tasks[-1] for handler in state.handlers if handler.tasks]
        for seq in state.out:
            if Task("remove", seq=seq) not in last_tasks:
                tasks = (*sends(state.journal[seq], seq), Task("remove", seq=seq))
                yield f"the supervisor finds out row {seq}", _supervised(state, *tasks)
        if state.faults.undo and {step.state for step in state.steps} == {PROCESSED}:
            undone = tuple(Step(UNDONE, step.epoch + 1) for step in state.steps)
            yield "the operator undoes the order", state._replace(steps=undone).spend("undo")
        idle = not (len(state.queued) > len(checks) or state.handlers or state.out)
        if idle or state.faults.early:
            for number in range(len(state.steps)):
                yield from self._due(state if idle else state.spend("early"), number)

    # The faults of handlers.

    def _fail(self, state: State, handler: Handler) -> Iterator[Move]:
        root, without = handler.root, state.without(handler)
        back = self._returned(handler)
        if state.faults.crash:
            yield f"{handler}: CRASH", without.enqueue(back).spend("crash")
        if state.faults.lock and back:
            slow = without.begin(handler._replace(locked=False))
            yield f"{handler}: LOCK LOST", slow.enqueue(back).spend("lock")
        if not state.faults.fail or root == SUPERVISOR or handler.delivery == DEAD:
            return
        send = Task("send", handler.current)
        if handler.current == root:
            if self.rules.deliveries_max > 1:  # its copy is no first delivery
                yield f"{handler}: PUT BACK", without.enqueue([(root, 1)]).spend("fail")
        elif handler.tasks and handler.tasks[0] != send:
            travels = handler._replace(tasks=(send,), collected=())
            yield f"{handler}: {handler.current} TRAVELS", without.begin(travels).spend("fail")

    def _returned(self, handler: Handler) -> list[tuple[Message, int]]:
        """Return what goes back to a queue if a handler loses its lock."""
        if not handler.locked:
            return []
        count = DEAD if handler.delivery >= self.rules.deliveries_max else handler.delivery
        return [(handler.root, count)]

    # The supervisor.

    def _due(self, state: State, number: int) -> Iterator[Move]:
        """Yield what the supervisor does about a step that is due."""
        step = state.steps[number]
        request = Message("request", number, step.epoch)
        queues = self._queues(number)
        if step.state == PENDING:
            yield _expire(state, number)
        elif step.state == PROCESSING and self.rules.peeks is not Peeks.AT_ONCE:
            tasks = [Task("peek", request, queue) for queue in queues]
            after = _supervised(state, *tasks, Task("expire", request))
            yield f"the supervisor begins to read the queues of {request}", after
        elif step.state == PROCESSING and not any(
            _excuses(state, request, queue) for queue in queues
        ):
            yield _expire(state, number)

    def _queues(self, number: int) -> list[int]:
        """Return the queues that are read for a step, in their order."""
        if not self.rules.excuse_root:
            return [number, SCHEDULER, REPLIES]
        if self.rules.peeks is Peeks.DOWNSTREAM:
            return [ORDERS, SCHEDULER, 1 - number, REPLIES, number, REPLIES]
        return [number, SCHEDULER, REPLIES, ORDERS, 1 - number]

    # What a handler does.

    def _act(self, state: State, handler: Handler) -> Iterator[Move]:
        """Yield the next action of a handler, in each way in which it may go."""
        without = state.without(handler)
        if not handler.tasks:
            yield f"{handler}: complete", without
            return
        task = handler.tasks[0]
        about = f"row {task.seq}" if task.name in ("notify", "row", "remove") else task.message
        last = len(state.steps) - 1
        match task.name:
            case "call" if self.rules.poison and task.message.number == last:
                yield f"{handler}: POISON kills it", without.enqueue(self._returned(handler))
            case "expire":
                out = state.is_out(task.message)
                yield _expire(without, task.message.number) if out else ("it is in time", without)
            case "peek":
                excused = _excuses(state, task.message, task.seq)
                tasks = () if excused else handler.tasks[1:]
                label = f"the supervisor reads queue {task.seq}"
                yield label, without.begin(handler._replace(tasks=tasks))
            case name:
                for after, tasks_after, collected, note in Handlers(self.rules).do(
                    without, handler
                ):
                    tasks = handler.tasks[1:] if tasks_after is None else tasks_after
                    over = (*handler.collected, *collected)
                    follower = handler._replace(tasks=tasks, collected=over)
                    yield f"{handler}: {name} {about}{note}", after.begin(follower)


def at_rest(state: State) -> str | None:
    """Return what must not be when nothing is under way and nothing is due."""
    states = {step.state for step in state.steps}
    if state.aside and states == {REJECTED}:
        return None
    if states not in ({PROCESSED}, {UNDONE}) and ERROR not in states:
        return f"the order rests: {state.steps}"
    notifying = {seq for seq, row in enumerate(state.journal) if row.notifies}
    return None if notifying <= state.notified else "a notification is lost"


def _receive(state: State, item: tuple[Message, int]) -> Move:
    message, count = item
    queued = list(state.queued)
    queued.remove(item)
    names = {"request": "call" if count == 0 else "begin", "check": "look"}
    if count == DEAD:
        names = {"request": "dead", "check": "look"}
    task = Task(names.get(message.kind, "fence" if count == DEAD else "decide"), message)
    if task.name == "look":
        task = task._replace(message=message.cause)
    number = count if count == DEAD else count + 1
    handler = Handler(message, delivery=number, locked=True, current=message, tasks=(task,))
    return f"{handler}: receive", state._replace(queued=tuple(queued)).begin(handler)


def _excuses(state: State, request: Message, queue: int) -> bool:
    """Return whether a message in a queue, locked or not, excuses a step."""
    messages = [message for message, count in state.queued if count != DEAD]
    messages += [
        handler.root for handler in state.handlers if handler.locked and handler.delivery != DEAD
    ]
    if queue == request.number:
        return request in messages
    return any(
        queue == (message.number if message.kind == "request" else QUEUES.get(message.kind))
        for message in messages
    )


def _expire(state: State, number: int) -> Move:
    """Have the supervisor wake, reset or give up a step."""
    seq, step = len(state.journal), state.steps[number]
    row = Row(None, (Message("wake", seq),))
    if step.state == PROCESSING:
        step = Step(PENDING, step.epoch, step.failures + 1)
        if step.failures > FAILURES_MAX:
            step, row = step._replace(state=ERROR), Row(None, notifies=True)
    state = state.with_step(number, step)
    state = state._replace(journal=(*state.journal, row), out=(*state.out, seq))
    label = f"the supervisor: step {number} is {step.state}, failures: {step.failures}"
    return label, _supervised(state, *sends(row, seq), Task("remove", seq=seq))


def _supervised(state: State, *tasks: Task) -> State:
    handler = Handler(SUPERVISOR, delivery=0, locked=False, current=SUPERVISOR, tasks=tasks)
    return state.begin(handler)
