"""The real decisions with unreliable messages and remote services: every interleaving.

The model is one order with a remote service for every route of every step. Messages arrive in any
order, late, twice or never. The time of a step may run out while its request or its reply is on the
way. A remote service refuses, no call can begin, an operator sends a command. Each fault has a
budget, and no state is visited twice, so the whole is finite. Two things are left out, because the
transition runner handles them and not the decisions: crashes between a commit and its sends, and
causes that are recorded already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from sas.domain import command
from sas.domain.change import Decision, Trigger, change_of
from sas.domain.claim import claim, is_cancelled
from sas.domain.command import resubmit, undo
from sas.domain.expire import Excuse, expire
from sas.domain.messages import Command, Outcome, Progress, Reply, Request, Verb, Wake
from sas.domain.order import Direction, Fault, Order, OrderState, StepState
from sas.domain.reply import answer, progressed
from sas.domain.workflow import OnFailure, Rules
from sas.features.callbacks.rules import CallbackResult, StepStatus, decide, status_of
from tests.simulation.domain_model_check import (
    DRAIN_TIME,
    EXPLORED,
    FAULT,
    LATE,
    Shut,
    find_cycle,
    shut_variations,
)
from tests.unit.domain_cases import SHAPES, T0, due_at, submitted, workflow_of

StepKey = tuple[str, str, bool, bool, bool, int, int, int, str, int, bool, bool]
OrderKey = tuple[StepKey, ...]
DO = Direction.DO.value
EDITED = '{"edited":true}'


class Budget(NamedTuple):
    """How often each fault may happen."""

    twice: int = 0
    lost: int = 0
    early: int = 0
    refused: int = 0
    operator: int = 0
    shut: int = 0
    waited: int = 0
    behind: int = 0

    def spend(self, fault: str) -> Budget:
        return self._replace(**{fault: getattr(self, fault) - 1})


UNRELIABLE = Budget(twice=1, lost=1, early=1)
MEDDLED = Budget(early=1, refused=1, operator=1)
LATE_TWICE = Budget(twice=1, early=2, operator=1)
ALL = Budget(twice=1, lost=1, early=1, refused=1, operator=1)


class Kind(Enum):
    """What is on the way."""

    WAKE = 0
    REQUEST = 1
    REPLY = 2
    EVENT = 3
    CALLBACK = 4
    AWAITS = 5


class Flying(NamedTuple):
    """One message on the way."""

    kind: int
    step: int = -1
    direction: str = ""
    epoch: int = 0
    outcome: str = ""
    generation: int = 0
    route: int = 0


def returned_as(callback: Flying) -> CallbackResult:
    outcome = Outcome(callback.outcome)
    return CallbackResult(
        order_id="order-1",
        step=callback.step,
        direction=Direction(callback.direction),
        generation=callback.generation,
        outcome=outcome,
        fault=FAULT if outcome is Outcome.REFUSED else None,
    )


class Effect(NamedTuple):
    """What a remote service knows of one key: one generation of one step at one route."""

    there: bool = False
    times_done: int = 0
    tombstone: bool = False


class State(NamedTuple):
    """Everything at one moment. ``remote`` is what the remote services know, by step, route and
    generation.
    """

    order: OrderKey
    flying: tuple[Flying, ...]
    remote: tuple[tuple[tuple[Effect, ...], ...], ...]
    budget: Budget


@dataclass(frozen=True)
class Remote:
    """How a remote service behaves. Two tests show that the first two rules are needed.

    ``closes`` says that the agent undoes older generations before it does a step under a new one,
    so no call under an older key can have an effect.
    """

    tombstones: bool = True
    idempotent: bool = True
    closes: bool = False

    def do(self, was: Effect) -> tuple[Effect, bool]:
        if was.tombstone and not was.there:
            return was, False
        if was.there and self.idempotent:
            return was, True
        return was._replace(there=True, times_done=was.times_done + 1), True

    def undo(self, was: Effect) -> Effect:
        return was._replace(there=False, tombstone=self.tombstones)


@dataclass
class Protocol:
    """One workflow under one budget of faults.

    With ``outside`` a remote service only passes on what it is asked to do. It happens outside, at
    any later time and once per key. A callback reports it; the callback waits while its step is not
    out. With ``awaits`` the agent says first that its step awaits the callback.
    """

    shape: str
    on_failure: OnFailure
    failures_max: int
    budget: Budget
    remote: Remote = field(default_factory=Remote)
    verbs: tuple[str, ...] = ("resubmit", "undo")
    drain_time: bool = False
    routes: int = 1
    outside: bool = False
    awaits: bool = False
    states_max: int = 4_000_000

    def __post_init__(self) -> None:
        workflow = workflow_of(
            SHAPES[self.shape],
            on_failure=self.on_failure,
            failures_max=self.failures_max,
            drain_time=DRAIN_TIME if self.drain_time else None,
            routes=self.routes,
        )
        self.rules: Rules = workflow.rules
        self.orders: dict[OrderKey, Order] = {}
        self.decided: dict[tuple[object, ...], tuple[OrderKey, tuple[Flying, ...]] | None] = {}
        self.states: list[State] = []
        self.next: dict[int, list[int]] = {}

    def __str__(self) -> str:
        return f"{self.shape}, {self.on_failure.value}, {self.failures_max}, {self.budget}"

    @property
    def scope(self) -> str:
        """What is explored, in full."""
        traits = {
            "a drain time": self.drain_time,
            "work outside": self.outside,
            "announced": self.awaits,
            f"{self.routes} routes": self.routes > 1,
            f"{self.remote}": self.remote != Remote(),
        }
        extras = "".join(f", {name}" for name, there in traits.items() if there)
        faults = ", ".join(f"{n} {name}" for name, n in self.budget._asdict().items() if n)
        shape = f"{self.shape}, {self.on_failure.value}, {self.failures_max} failures"
        return f"messages: {shape}{extras}; {faults}; {', '.join(self.verbs)}"

    # ------------------------------------------------------------------ exploring

    def check(self) -> None:
        """Fail on a state that breaks a property, and on a circle without faults."""
        assert self.explore() is None
        assert find_cycle(self.next) is None, f"{self}: an order goes round in circles"

    def explore(self) -> str | None:
        """Visit every reachable state; return what is wrong with the first bad one."""
        # Numbers stand for states from here on: the hash of a state is dear.
        numbers = {self.start(): 0}
        self.states = list(numbers)
        self.next = {}
        for number, state in enumerate(self.states):  # it grows meanwhile
            targets = []
            for target in self.successors(state):
                target_number = numbers.setdefault(target, len(numbers))
                if target_number == len(self.states):
                    self.states.append(target)
                targets.append(target_number)
            problem = self.violation(state) or (None if targets else self.violation_at_end(state))
            if problem:
                return f"{self}: {problem} in {state}"
            self.next[number] = targets
            assert len(numbers) <= self.states_max, f"{self}: too many states"
        EXPLORED.append((self.scope, len(numbers)))
        return None

    def start(self) -> State:
        order = submitted(self.rules).after
        remote = tuple(((Effect(),),) * self.routes for _ in order.steps)
        return State(self.keep(order), (Flying(Kind.WAKE.value),), remote, self.budget)

    def successors(self, state: State) -> Iterator[State]:
        for index, message in enumerate(state.flying):
            if index and state.flying[index - 1] == message:
                continue
            rest = state._replace(flying=state.flying[:index] + state.flying[index + 1 :])
            yield from self.delivered(rest, message)
            if state.budget.twice:
                again = state._replace(budget=state.budget.spend("twice"))
                yield from self.delivered(again, message)
            if state.budget.lost:
                yield rest._replace(budget=state.budget.spend("lost"))
        yield from self.time_passes(state)
        if state.budget.operator:
            for verb in self.verbs:
                spent = state._replace(budget=state.budget.spend("operator"))
                match verb:
                    case "skip":
                        yield from self.by_hand(spent)
                    case "callback":
                        yield from self.called_back_by_hand(spent)
                    case _:
                        yield from self.apply(spent, (verb,))

    def delivered(self, state: State, message: Flying) -> Iterator[State]:
        if message.kind == Kind.REQUEST.value:
            yield from self.agent(state, message)
            return
        if message.kind == Kind.EVENT.value:
            yield from self.happens(state, message)
            return
        if self.waits(state, message):
            return
        successors = list(self.apply(state, message))
        yield from successors or [state]
        if state.budget.shut:
            spent = state._replace(budget=state.budget.spend("shut"))
            for shut in filter(None, shut_variations(self.rules)):
                yield from self.apply(spent, message, shut)

    def by_hand(self, state: State) -> Iterator[State]:
        """Let the operator undo by hand where an undo failed, and skip it."""
        steps = self.orders[state.order].steps
        failed = [step for step in steps if step.process_state is StepState.ERROR]
        if not all(step.undo_failed for step in failed):
            return
        for step in failed:
            route = step.call.route
            undone = tuple(map(self.remote.undo, state.remote[step.number][route]))
            state = self.with_effects(state, step.number, route, undone)
        yield from self.apply(state, ("skip",))

    def called_back_by_hand(self, state: State) -> Iterator[State]:
        """Let the operator do what a step waits for and answer its callback, or refuse it."""
        for step in self.orders[state.order].steps:
            if step.awaits_callback:
                route, generation = step.call.route, step.call.generation
                effects = state.remote[step.number][route]
                effect, _ = self.remote.do(effects[generation])
                effects = (*effects[:generation], effect, *effects[generation + 1 :])
                after = self.with_effects(state, step.number, route, effects)
                yield from self.apply(after, ("answer", step.name))
                yield from self.apply(state, ("refuse", step.name))

    def agent(self, state: State, request: Flying) -> Iterator[State]:
        """Let the agent call its remote service, or say that no call could begin."""
        if state.budget.waited:
            spent = state._replace(budget=state.budget.spend("waited"))
            yield self.fly(spent, self.reply(request, Outcome.WAITED))
        yield from self.called(state, request)

    def called(self, state: State, request: Flying) -> Iterator[State]:
        """Let the remote service carry out a call, or refuse it without effect."""
        effects = state.remote[request.step][request.route]
        effects += (Effect(),) * (request.generation + 1 - len(effects))
        was = effects[request.generation]
        done = True
        if request.direction == Direction.DO.value:
            effect, done = self.remote.do(was)
            if self.remote.closes:
                closed = tuple(map(self.remote.undo, effects[: request.generation]))
                effects = (*closed, *effects[request.generation :])
            effects = (*effects[: request.generation], effect, *effects[request.generation + 1 :])
        else:  # every generation up to the request's, as the agent actor does
            undone = tuple(self.remote.undo(effect) for effect in effects[: request.generation + 1])
            effects = (*undone, *effects[request.generation + 1 :])
        if self.outside and request.direction == DO and not was.there and not was.tombstone:
            event = request._replace(kind=Kind.EVENT.value, epoch=0)
            awaits = request._replace(kind=Kind.AWAITS.value)
            effects = (*effects[: request.generation], was, *effects[request.generation + 1 :])
            after = self.with_effects(state, request.step, request.route, effects)
            yield self.fly(after, event, *[awaits] * self.awaits)
            return
        reply = self.reply(request, Outcome.DONE if done else Outcome.REFUSED)
        yield self.fly(self.with_effects(state, request.step, request.route, effects), reply)
        if state.budget.refused and not was.there:
            spent = state._replace(budget=state.budget.spend("refused"))
            yield self.fly(spent, self.reply(request, Outcome.REFUSED))
        if state.budget.refused and request.direction == Direction.UNDO.value:
            spent = state._replace(budget=state.budget.spend("refused"))
            yield self.fly(spent, self.reply(request, Outcome.REFUSED))

    def happens(self, state: State, event: Flying) -> Iterator[State]:
        """Let what was asked for happen outside, unless it was undone before."""
        effects = state.remote[event.step][event.route]
        was = effects[event.generation]
        effect, done = self.remote.do(was)
        effects = (*effects[: event.generation], effect, *effects[event.generation + 1 :])
        callback = event._replace(kind=Kind.CALLBACK.value, outcome=Outcome.DONE.value)
        after = self.with_effects(state, event.step, event.route, effects)
        yield self.fly(after, callback) if done else after
        if state.budget.refused and not was.there:
            spent = state._replace(budget=state.budget.spend("refused"))
            yield self.fly(spent, callback._replace(outcome=Outcome.REFUSED.value))

    def waits(self, state: State, message: Flying) -> bool:
        """Return whether a message is a callback that waits for its step to be out again."""
        if message.kind != Kind.CALLBACK.value:
            return False
        status = status_of(self.orders[state.order], returned_as(message))
        return status is StepStatus.WAITS

    @staticmethod
    def with_effects(state: State, step: int, route: int, effects: tuple[Effect, ...]) -> State:
        """Return the state in which the remote service of a route knows this of a step."""
        routes = state.remote[step]
        routes = (*routes[:route], effects, *routes[route + 1 :])
        return state._replace(remote=(*state.remote[:step], routes, *state.remote[step + 1 :]))

    def time_passes(self, state: State) -> Iterator[State]:
        """Let what is due be looked at: free when nothing is on the way, early otherwise.

        An undo that waits out the drain time is due once no call of its do can land any more.
        """
        if not all(self.waits(state, message) for message in state.flying):
            if not state.budget.early:
                return
            state = state._replace(budget=state.budget.spend("early"))
        for step in self.orders[state.order].steps:
            undoing = step.resting and step.process_state is StepState.COMPENSATING
            calls = (
                m.step for m in state.flying if (m.kind, m.direction) == (Kind.REQUEST.value, DO)
            )
            if step.complete_by is not None and not (undoing and step.number in calls):
                yield from self.apply(state, ("expire", step.number))
                if state.budget.behind:
                    spent = state._replace(budget=state.budget.spend("behind"))
                    yield from self.apply(spent, ("behind", step.number))

    # ------------------------------------------------------------------ deciding

    def apply(
        self, state: State, event: tuple[object, ...], shut: Shut = frozenset()
    ) -> Iterator[State]:
        """Decide about an event with the real functions; yield nothing if there is no decision."""
        key = (state.order, event, shut)
        if key not in self.decided:
            self.decided[key] = self.decide(self.orders[state.order], event, shut)
        outcome = self.decided[key]
        if outcome is not None:
            order, messages = outcome
            yield self.fly(state._replace(order=order), *messages)

    def decide(
        self, order: Order, event: tuple[object, ...], shut: Shut
    ) -> tuple[OrderKey, tuple[Flying, ...]] | None:
        decision = self.decision(order, event, replace(self.rules, unavailable=shut))
        if decision is None:
            return None
        change = change_of(order, decision, Trigger(by="test"), commit_id="c", now=LATE)
        messages = []
        for message in decision.messages:
            if isinstance(message, Wake):
                messages.append(Flying(Kind.WAKE.value))
            if isinstance(message, Request):
                before = order.steps[message.step].epoch
                assert message.epoch > before, f"a second claim of epoch {before}"
                request = Flying(
                    Kind.REQUEST.value, message.step, message.direction.value, message.epoch
                )
                route = change.after.steps[message.step].call.route
                messages.append(request._replace(generation=message.generation, route=route))
        return self.keep(change.after), tuple(messages)

    def decision(  # noqa: C901, PLR0911  a table
        self, order: Order, event: tuple[object, ...], rules: Rules
    ) -> Decision | None:
        if isinstance(event, Flying):
            if event.kind == Kind.WAKE.value:
                return claim(order, rules, now=LATE, instance="s")
            if event.kind == Kind.AWAITS.value:
                progress = Progress(
                    order_id=order.order_id,
                    step=event.step,
                    direction=Direction(event.direction),
                    epoch=event.epoch,
                    complete_by=LATE,
                    awaits=True,
                )
                return progressed(order, progress, rules, now=LATE, instance="s")
            if event.kind == Kind.CALLBACK.value:
                callback = returned_as(event)
                return decide(order, callback, rules, now=LATE, instance="s")
            outcome = Outcome(event.outcome)
            reply = Reply(
                order_id=order.order_id,
                step=event.step,
                direction=Direction(event.direction),
                epoch=event.epoch,
                outcome=outcome,
                fault=None if outcome is Outcome.DONE else FAULT,
            )
            return answer(order, reply, rules, now=LATE, instance="s")
        match event:
            case ("expire" | "behind" as name, int(number)):
                epoch = order.steps[number].epoch
                excuse = Excuse.WAITS if name == "behind" else None
                return expire(order, number, epoch, rules, now=LATE, excuse=excuse)
            case ("resubmit",):
                return resubmit(order, rules, now=LATE)
            case ("edit",):
                return resubmit(order, rules, now=LATE, edited=EDITED)
            case ("skip",):
                return command.skip(order, rules, now=LATE)
            case ("cancel",):
                return command.cancel(order, rules, now=LATE)
            case ("answer" | "refuse" as name, str(step)):
                ended = Command(
                    command_id="c",
                    order_id=order.order_id,
                    verb=Verb.CALLBACK,
                    seq=order.seq,
                    by="ann",
                    step=step,
                    fault=FAULT if name == "refuse" else None,
                )
                return command.decide(order, ended, rules, now=LATE, instance="s")
            case _:
                return undo(order, rules, now=LATE)

    def keep(self, order: Order) -> OrderKey:
        """Forget times, results and most of a fault, but no epoch: epochs fence the requests.

        A call that was made may still arrive: the last one may have begun just now.
        """
        steps = tuple(
            replace(
                due_at(s, T0),
                since=T0,
                call=replace(s.call, called_until=LATE if s.call.called_until else None),
                result=None,
                error=Fault(s.error.code, "") if s.error else None,
            )
            for s in order.steps
        )
        key = tuple(
            (
                s.process_state.value,
                s.direction.value,
                s.locked_by is not None,
                s.complete_by is not None,
                s.resting,
                s.failure_count,
                s.epoch,
                s.call.generation,
                s.error.code if s.error else "",
                s.call.route,
                s.undo_failed,
                s.awaits_callback,
            )
            for s in steps
        )
        self.orders.setdefault(key, replace(order, steps=steps, seq=1, stopped_at=None))
        return key

    @staticmethod
    def fly(state: State, *messages: Flying) -> State:
        return state._replace(flying=tuple(sorted(state.flying + messages)))

    @staticmethod
    def reply(request: Flying, outcome: Outcome) -> Flying:
        return request._replace(kind=Kind.REPLY.value, outcome=outcome.value)

    # ------------------------------------------------------------------ judging

    def violation(self, state: State) -> str | None:  # noqa: PLR0911  a table
        """Return which property this state breaks."""
        order = self.orders[state.order]
        for step, routes in zip(order.steps, state.remote, strict=True):
            if is_cancelled(step) and step.awaits_callback:
                return f"L2 cancelled step {step.name} waits for its callback"
            there = {number for number, effects in enumerate(routes) if self.there(effects)}
            if step.process_state is StepState.PROCESSED and step.call.route not in there:
                return f"S1 step {step.name} is Processed and its effect is absent"
            latest_effects = state.remote[step.number][step.call.route][step.call.generation :]
            if step.process_state is StepState.PROCESSED and not self.there(latest_effects):
                return f"S1 step {step.name} is Processed under the key of an older input"
            if step.process_state is StepState.COMPENSATED and there:
                return f"S2 step {step.name} is Compensated and its effect is there"
            if any(self.twice(effects) for effects in routes):
                return f"S1 the effect of step {step.name} came about twice"
            if there - {step.call.route}:
                return f"S5 step {step.name} is done where nobody undoes it"
        out = [m for m in set(state.flying) if m.kind == Kind.REQUEST.value]
        if len({(m.step, m.epoch) for m in out}) != len(out):
            return "S3 one dispatch has two requests"
        if len({step.direction for step in order.steps}) > 1:
            return "S4 some steps go forward and some back"
        return None

    @staticmethod
    def there(effects: tuple[Effect, ...]) -> bool:
        return any(effect.there for effect in effects)

    @staticmethod
    def twice(effects: tuple[Effect, ...]) -> bool:
        return sum(e.there for e in effects) > 1 or any(e.times_done > 1 for e in effects)

    def violation_at_end(self, state: State) -> str | None:
        """Return why an order may not stay like this, once nothing can happen any more."""
        order = self.orders[state.order]
        there = [sum(self.there(effects) for effects in routes) for routes in state.remote]
        match order.process_state:
            case OrderState.PROCESSED:
                return None if set(there) == {1} else "S1 Processed without every effect once"
            case OrderState.COMPENSATED:
                return "S2 Compensated with an effect left" if any(there) else None
            case OrderState.ERROR:
                return None
            case stuck:
                return f"L1 stuck in {stuck.value}"
