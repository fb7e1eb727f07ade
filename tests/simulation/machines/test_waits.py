"""A step that goes on: it is checked again, awaits a callback, is cancelled, and gets more time.

The machine holds every message itself, so any may come late, twice or never. It posts callbacks
under every token that was ever issued. The model says for each what the endpoint must answer, and
what the callback does when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from sas.codec import internal
from sas.codec.internal import CallbackMessage, RequestMessage, raw
from sas.domain.order import UndoStatus
from sas.domain.queues import lane
from sas.domain.workflow import OnFailure, Workflow
from sas.ports import AgentCall, AwaitCallback, Callback, Message, RefusedError, StillRunning
from sas.testing.clock import START
from tests.simulation.machines.kit import AsyncMachine, sequences
from tests.unit.actors_kit import ALLOWED, CHAIN, KEYS, QUEUES, command, kit, order
from tests.unit.callbacks_kit import post

STOCK = QUEUES.agent("stock")
ALLOWED_S = ALLOWED.total_seconds()
FAILURES_MAX = 1
CHECK_AFTER_S, AWAITS_S, EXPIRES_S = 40, 20, 600


@dataclass(kw_only=True)
class Token:
    """A token that the agent was given, and the answers that were accepted under it, in order."""

    callback: Callback
    direction: str
    generation: int
    accepted: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class WaitModel:
    """One step. ``until`` is its CompleteBy while a request is out, or a callback is awaited."""

    undoes: bool
    state: str = "Pending"
    epoch: int = 0
    generation: int = 0
    failures: int = 0
    is_out: bool = False
    awaits: bool = False
    cancelled: bool = False
    undo_failed: bool = False
    until: float = 0.0
    error: str = ""

    @property
    def is_undo(self) -> bool:
        return self.state in {"Compensating", "Compensated"} or self.undo_failed

    def claim(self, now: float) -> None:
        if self.state in {"Pending", "Compensating"} and not self.is_out:
            self.state = "Processing" if self.state == "Pending" else self.state
            self.epoch, self.is_out, self.until = self.epoch + 1, True, now + ALLOWED_S

    def ends(self, state: str, *, failures: int = 0) -> None:
        self.state, self.failures, self.is_out, self.awaits = state, failures, False, False
        self.cancelled = False

    def fails(self, error: str) -> None:
        self.error, self.undo_failed = error, self.is_undo
        self.ends("Error", failures=self.failures)
        if self.undoes and not self.undo_failed:
            self.ends("Compensating")

    def answer(self, now: float, outcome: str, error: str = "") -> None:
        """An agent, a callback or an operator ends the dispatch that is out."""
        if self.cancelled:
            self.ends("Compensating")
            self.claim(now)
        elif outcome == "done":
            self.ends("Compensated" if self.is_undo else "Processed")
        else:
            self.fails(error)
            self.claim(now)

    def worked(self, now: float, work: str) -> None:
        """The agent answers. A cancelled step gets no more time, and awaits nothing."""
        if work in {"done", "refused"} or (self.cancelled and work == "await"):
            self.answer(now, work, "by the service")
        elif not self.cancelled:
            seconds = AWAITS_S if work == "await" else CHECK_AFTER_S + ALLOWED_S
            self.until = max(self.until, now + seconds)
            self.awaits = work == "await"

    def expires(self, now: float) -> None:
        """The supervisor: nobody is asked again who had the whole time for a callback."""
        if not self.is_out or self.until > now:
            return
        if self.cancelled:
            self.ends("Compensating")
            return
        self.failures += 1
        if self.failures <= FAILURES_MAX and (self.is_undo or not self.awaits):
            self.ends("Compensating" if self.is_undo else "Pending", failures=self.failures)
        else:
            self.fails("timed-out")

    def status(self, token: Token, answer: str) -> str:
        """What a callback under a token can do now."""
        if token.generation != self.generation or (token.direction == "undo") != self.is_undo:
            return "closed"
        if self.state in {"Processing", "Compensating"}:
            return "out" if self.is_out else "waits"
        if self.state == "Error":
            return "already" if answer == self.error else "waits"
        return "waits" if self.state == "Pending" else "already"

    def command(self, now: float, verb: str) -> None:
        is_over = self.state in {"Processed", "Compensated"}
        match verb:
            case "resubmit" | "edit" if self.state == "Error":
                if verb == "resubmit" or not self.undo_failed:
                    self.generation += verb == "edit"
                    self.ends("Compensating" if self.undo_failed else "Pending")
                    self.undo_failed = False
            case "undo" if not self.is_undo:
                self.ends("Compensating")
            case "cancel" if not self.is_undo and not is_over and not self.cancelled:
                self.cancelled = self.is_out and not self.awaits
                if not self.cancelled:
                    self.ends("Compensating")
            case "callback" if self.awaits:
                self.answer(now, "done")


def happens(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


AGES = st.sampled_from((0, 0, 0, 1, 2))
ANSWERS = st.sampled_from(("done 1", "done 1", "done 2", "refused 1", "refused 2"))
WORK = st.sampled_from(("still", "still", "await", "await", "await", "done", "refused"))
VERBS = st.sampled_from(("resubmit", "resubmit", "edit", "edit", "undo", "callback"))
LIFE = st.one_of(
    happens("an_agent_works", AGES, WORK),
    happens("an_agent_works", st.just(1), WORK),
    happens("a_callback_is_posted", AGES, ANSWERS),
    happens("a_callback_is_read", AGES),
    happens("a_callback_comes", AGES, ANSWERS),
    happens("a_callback_comes", AGES, ANSWERS),
    happens("an_operator_acts", VERBS),
    happens("an_operator_acts", st.sampled_from(("resubmit", "edit"))),
    happens("time_passes", st.sampled_from((5, 5, 20, 300))),
    happens("its_time_is_over", st.booleans()),
    happens("a_scheduler_wakes"),
    happens("an_order_is_cancelled_while_a_call_is_out", WORK),
    happens("an_input_is_replaced", st.sampled_from(("refused", "refused", "done", "await"))),
)


class Waits(AsyncMachine):
    """One order of one step."""

    @initialize(policy=st.sampled_from(OnFailure), awaits=st.booleans(), urgent=st.booleans())
    def submit(self, policy: OnFailure, *, awaits: bool, urgent: bool) -> None:
        step = replace(CHAIN.steps[0], failures_max=FAILURES_MAX)
        self.system = kit(Workflow("chain", version=1, steps=(step,), on_failure=policy))
        self.system.supervisor._excuses = Mock(of=AsyncMock(return_value=None))
        self.model = WaitModel(undoes=policy is OnFailure.UNDO)
        self.seen: set[str] = set()
        self.wakes: list[Message] = []
        self.requests: list[tuple[float, RequestMessage, Message]] = []
        self.callbacks: list[tuple[float, Message]] = []
        self.posted: dict[str, tuple[Token, str]] = {}
        self.acted: set[str] = set()
        self.tokens: list[Token] = []
        self.commands = self.too_late = 0
        queues = (QUEUES.scheduler, STOCK)
        self.lanes = {lane(queue, urgent=urgent): queue for queue in queues}
        self.other_lanes = [lane(queue, urgent=not urgent) for queue in queues]
        self.run(self.system.hand(Message(lane(QUEUES.orders, urgent=urgent), "m-1", order())))
        self.collect()
        self.a_scheduler_wakes()
        if awaits:
            self.an_agent_works(0, "await")

    @property
    def now(self) -> float:
        return (self.system.clock.now() - START).total_seconds()

    def collect(self) -> None:
        """Have the scheduler read replies and progress. Keep all other messages.

        All are in the order's lane.
        """
        assert not any(self.system.bus.queues[name].waiting for name in self.other_lanes)
        queues = [self.system.bus.queues[name] for name in self.lanes]
        for _ in range(9):
            messages = [queued for queue in queues for queued in queue.waiting]
            for queue in queues:
                queue.waiting.clear()
            for queued in messages:
                message, at = queued.message, (queued.visible_at - START).total_seconds()
                is_request = self.lanes[message.queue] == STOCK
                if is_request and message.message_id in self.seen:
                    continue  # a repeated cause sends the same request again
                self.seen.add(message.message_id)
                if is_request:
                    request = internal.decode(message.body, RequestMessage)
                    self.requests.append((at, request, message))
                elif b'"kind":"callback"' in message.body:
                    self.callbacks.append((at, message))
                elif b'"kind":"wake"' in message.body:
                    self.wakes.append(message)
                else:
                    self.run(self.system.hand(message))

    @rule(event=LIFE)
    def something_happens(self, event: tuple[Any, ...]) -> None:
        name, *arguments = event
        getattr(self, name)(*arguments)

    def time_passes(self, seconds: float) -> None:
        self.run(self.system.later(max(seconds, 0)))

    def a_scheduler_wakes(self) -> None:
        while self.wakes:
            self.run(self.system.hand(self.wakes.pop()))
            self.model.claim(self.now)
        self.collect()

    def an_order_is_cancelled_while_a_call_is_out(self, work: str) -> None:
        self.a_scheduler_wakes()
        self.an_operator_acts("cancel")
        self.an_agent_works(0, work)

    def an_input_is_replaced(self, work: str) -> None:
        self.an_operator_acts("edit")
        self.a_scheduler_wakes()
        self.an_agent_works(0, work)

    def its_time_is_over(self, wakes: bool) -> None:
        if self.model.is_out:
            self.time_passes(self.model.until - self.now)
        for _ in range(2):
            self.run(self.system.sweep())
            self.model.expires(self.now)
        self.collect()
        if wakes:
            self.a_scheduler_wakes()

    def an_agent_works(self, age: int, work: str) -> None:
        """A request is received once. It may be an old one, or a check of work that goes on."""
        if not self.requests:
            return
        at, request, message = self.requests.pop(-1 - age % len(self.requests))
        self.time_passes(at - self.now)
        model, now, calls, older = self.model, self.now, list[AgentCall](), set[str]()
        is_current = model.is_out and request.epoch == model.epoch

        async def answers(call: AgentCall) -> Any:
            if call.key != request.idempotency_key:
                older.add(call.key)
                return None  # an older generation is undone first
            calls.append(call)
            return self.worked(call, request, work)

        agent = self.system.agents["stock"]
        agent.script.clear()
        agent.then(*[answers] * (1 + request.generation))
        self.run(self.system.hand(message))
        self.collect()
        assert not calls or len(older) == request.generation
        assert is_current or not calls or now < (request.complete_by - START).total_seconds()
        if is_current and calls:
            assert now < (calls[0].complete_by - START).total_seconds() <= model.until
            assert not model.awaits, "no call goes out while a callback is awaited"
            model.worked(now, work)
        elif is_current and not model.awaits and not model.cancelled:
            assert model.until - now < ALLOWED_S * 2 / 3 or request.checks, "it must call"
            until = self.until()
            assert model.until <= until <= max(model.until, now + ALLOWED_S + 2)
            model.until = until

    def worked(self, call: AgentCall, request: RequestMessage, work: str) -> Any:
        """Return what the agent answers."""
        match work:
            case "still":
                return StillRunning(timedelta(seconds=CHECK_AFTER_S))
            case "await":
                callback = call.callback(timedelta(seconds=EXPIRES_S))
                direction, generation = request.direction, request.generation
                token = Token(callback=callback, direction=direction, generation=generation)
                if all(other.callback.token != callback.token for other in self.tokens):
                    self.tokens.append(token)
                return AwaitCallback(timedelta(seconds=AWAITS_S))
            case "refused":
                raise RefusedError("declined", "by the service")
        return {"n": 0}

    def a_callback_comes(self, age: int, answer: str) -> None:
        self.a_callback_is_posted(age, answer)
        self.a_callback_is_read(0)

    def a_callback_is_posted(self, age: int, answer: str) -> None:
        if not self.tokens:
            return
        token = self.tokens[-1 - age % len(self.tokens)]
        outcome, number = answer.split()
        body: dict[str, Any] = {"outcome": outcome, "result": int(number)}
        if outcome == "refused":
            body = {"outcome": outcome, "error": {"code": "declined", "message": number}}
        expected = self.expected_answer(token, answer)
        before = len(self.callbacks)
        reply = self.run(post(self.system, token.callback.token, body))
        self.collect()
        assert reply.code == expected
        is_new = expected == "accepted" and answer not in token.accepted
        assert len(self.callbacks) == before + is_new
        if is_new:
            token.accepted.append(answer)
            message = internal.decode(self.callbacks[-1][1].body, CallbackMessage)
            self.posted[message.id] = token, answer

    def expected_answer(self, token: Token, answer: str) -> str:
        status = self.model.status(token, answer)
        if token.callback.expires <= self.system.clock.now():
            return "expired"
        if status in {"closed", "already"}:
            return "too-late" if status == "closed" else "already"
        ids = {answer: own_id for own_id, (owner, answer) in self.posted.items() if owner is token}
        for earlier in token.accepted:
            if earlier == answer:
                return "accepted"
            if ids[earlier] not in self.acted:
                return "other-result"
        return "accepted"

    def a_callback_is_read(self, age: int) -> None:
        """Late, or once more. It does what a callback under its token can do then."""
        if not self.callbacks:
            return
        at, message = self.callbacks[-1 - age % len(self.callbacks)]
        self.time_passes(at - self.now)
        own_id = internal.decode(message.body, CallbackMessage).id
        token, answer = self.posted[own_id]
        status = "acted" if own_id in self.acted else self.model.status(token, answer)
        before = len(self.callbacks)
        self.run(self.system.hand(message))
        if status == "out":
            self.acted.add(own_id)
            self.model.answer(self.now, answer.split()[0], answer)
        self.too_late += status == "closed"
        self.collect()
        assert len(self.callbacks) == before + (status == "waits")
        assert status != "waits" or self.callbacks[-1][0] > self.now

    def an_operator_acts(self, verb: str) -> None:
        self.commands += 1
        seq, own_id = self.system.order().seq, f"w-{self.commands}"
        if verb == "edit":
            message = command("resubmit", seq, own_id, input=raw('{"lines":[]}'))
        else:
            message = command(verb, seq, own_id)
        self.run(self.system.hand(message))
        self.model.command(self.now, verb)
        self.collect()

    def until(self) -> float:
        complete_by = self.system.order().steps[0].complete_by
        assert complete_by is not None
        return (complete_by - START).total_seconds()

    @invariant()
    def the_step_is_that_of_the_model(self) -> None:
        (step,), model = self.system.order().steps, self.model
        assert (
            step.process_state.value,
            step.epoch,
            step.call.generation,
            step.failure_count,
            step.dispatched,
            step.awaits_callback,
            step.undo is UndoStatus.TO_BE_UNDONE,
        ) == (
            model.state,
            model.epoch,
            model.generation,
            model.failures,
            model.is_out,
            model.awaits,
            model.cancelled,
        )
        assert not model.is_out or self.until() == model.until
        if model.awaits:  # the command gives a callback to a person
            claims = KEYS.read(KEYS.callback_of(self.system.order(), step).token)
            direction = "undo" if model.is_undo else "do"
            assert (claims.direction, claims.generation) == (direction, model.generation)
        assert [rejection.reason for rejection in self.system.rejected()] == [
            "too-late"
        ] * self.too_late


TestWaits = sequences(Waits, examples=120, steps=30)
