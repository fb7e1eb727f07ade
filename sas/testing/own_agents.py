"""The agents of an adopter in a simulation, and the model HTTP service that they call.

The service keeps the two rules of remote services. A repeated key has no second effect, and a key
is refused after its undo. So if an effect happens twice, the agent made a mistake.
"""

from __future__ import annotations

import json
import os
import random
import socket
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sas.adapters.remote import HttpService
from sas.ports import (
    AwaitCallback,
    Business,
    Call,
    Callback,
    Clock,
    RefusedError,
    TransientError,
    UnavailableError,
)
from sas.testing.plan import Faults
from sas.testing.remote import Effects, ModelService, RemoteLedger, SendCallback
from sas.testing.violation import Violation
from sas.testing.wire import (
    HttpAnswer,
    HttpRequest,
    NotSimulatedError,
    Serve,
    Session,
    problem,
)
from sas.testing.world import life_here, of_no_host

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_PATH = frozenset({"PUT", "DELETE"})
"""Methods that have one effect for each path, as HTTP says."""
_FAILS = (None, 500, 502, 503, 429)
_LOSES = (None, 500, 504)
"""The statuses of a call that fails before its effect, and of a lost answer. None means that the
connection is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnApplication:
    """The application of an adopter: its business, orders by workflow, and answers by call.

    ``make`` makes the business. ``answers`` are the answers of the model service. Their key is a
    method and a pattern of paths, such as ``POST /charges``. The first request of an effect gets
    the first answer, its repetition the next one, and later repetitions the last one. ``settings``
    are environment variables of the business, unless the machine has them already.
    """

    make: Callable[[], Business]
    orders: Mapping[str, Sequence[Any]]
    answers: Mapping[str, Sequence[Any]]
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Set the settings that the environment lacks, for as long as the block runs."""
        missing = {name: text for name, text in self.settings.items() if name not in os.environ}
        with patch.dict(os.environ, missing):
            yield

    def order_of(self, workflow: str, seed: object) -> Any:
        """Return the content of an order."""
        return random.Random(str(seed)).choice(self.orders[workflow])  # noqa: S311  it repeats

    def answer(self, call: str, number: int) -> Any:
        """Return an answer; None if none is given."""
        for pattern, answers in self.answers.items():
            if fnmatchcase(call, pattern):
                return answers[min(number, len(answers) - 1)]
        return None


@dataclass(slots=True, eq=False, kw_only=True)
class _Attempt:
    """One call of an agent, with the number of effects that it asked for, and its callback."""

    agent: OwnAgent
    call: Call
    doing: bool
    workflow: str
    requests: int = 0
    callback: Callback | None = None

    @property
    def step(self) -> str:
        return f"{self.workflow}: step {self.call.step}"


_attempt: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)


@dataclass(slots=True, eq=False, kw_only=True)
class _Effect:
    """One effect at the service: the attempt that asked for it, and its request.

    ``position`` is the number of the request within its attempt.
    """

    attempt: _Attempt
    position: int
    place: str
    key: str
    effect_id: str
    in_force: bool = True
    requests: int = 0

    @property
    def call(self) -> Call:
        return self.attempt.call

    def repeats(self, other: _Effect) -> bool:
        """Return whether this effect repeats the one of an earlier attempt at the same call."""
        same = (self.place, self.call.key) == (other.place, other.call.key)
        return same and self.position == other.position and self.attempt is not other.attempt


class OwnAgent(ModelService):
    """The agent of one name. It calls the adopter's agent of the instance that runs now."""

    def __init__(
        self,
        name: str,
        agents: OwnAgents,
        *,
        clock: Clock,
        ledger: RemoteLedger,
        rng: random.Random,
    ) -> None:
        super().__init__(clock, ledger, agents.faults, rng)
        self.name, self._agents = name, agents

    async def do(self, call: Call) -> Any:
        """Let the adopter's agent carry out a call."""
        return await self._attempted(call, doing=True)

    async def undo(self, call: Call) -> Any:
        """Let the adopter's agent undo a call."""
        return await self._attempted(call, doing=False)

    @property
    def serve(self) -> Serve:
        """The service that this agent calls."""
        return self._agents.serve

    async def arrive(self) -> None:
        """Let a request travel. Raise TransientError if it does not arrive."""
        await self._travel()

    async def _attempted(self, call: Call, *, doing: bool) -> Any:
        attempt = _Attempt(
            agent=self, call=call, doing=doing, workflow=self._agents.workflow_of[call.order_id]
        )

        def callback(within: timedelta) -> Callback:
            attempt.callback = call.callbacks(within)
            return attempt.callback

        attempt.call = replace(call, callbacks=callback)
        agent = self._agents.business().agents[self.name]
        outer_attempt = _attempt.set(attempt)
        try:
            result = await (agent.do if doing else agent.undo)(attempt.call)
        except (RefusedError, TransientError, UnavailableError):
            raise
        except Exception as error:
            self._agents.tell_bug(attempt, error)
            raise
        finally:
            _attempt.reset(outer_attempt)
        if isinstance(result, AwaitCallback) and attempt.callback is not None:
            self._goes_on(self._call_back_from_outside(attempt.callback, call, result.within))
        return result

    async def _call_back_from_outside(
        self, callback: Callback, call: Call, within: timedelta
    ) -> None:
        """Call back after some time, as somebody outside of the system does."""
        of_no_host()
        await self._clock.sleep(within.total_seconds() * self._rng.uniform(0, 1.1))
        answer = self._agents.application.answer(f"CALLBACK {call.step}", 0)
        result = answer or {"done_by": call.key}
        body = json.dumps({"outcome": "done", "result": result}).encode()
        while not (
            self._ledger.of(call.key).tombstone or await self._agents.send_callback(callback, body)
        ):
            await self._clock.sleep(self._rng.uniform(1, 5))


@dataclass(kw_only=True)
class OwnAgents:
    """All agents of one simulation, and their service.

    ``broken`` gets each mistake of an agent, ``story`` gets a sentence for each request, and
    ``stop`` is called after a bug of an agent.
    """

    application: OwnApplication
    clock: Clock
    ledger: RemoteLedger
    faults: Faults
    rng: random.Random
    drain_times: Mapping[str, Mapping[str, timedelta]]
    workflow_of: Mapping[str, str]
    send_callback: SendCallback
    broken: Callable[[Violation], None] = lambda _violation: None
    stop: Callable[[], None] = lambda: None
    story: Callable[[str], None] = lambda _text: None
    _businesses: dict[object, Business] = field(default_factory=dict)
    _effects: defaultdict[str, list[_Effect]] = field(default_factory=lambda: defaultdict(list))
    """The effects of each agent."""

    def agent(self, name: str) -> OwnAgent:
        """Return the agent of a name."""
        return OwnAgent(name, self, clock=self.clock, ledger=self.ledger, rng=self.rng)

    def business(self) -> Business:
        """Return the business of the instance that runs now. Its memory ends with the instance."""
        life = life_here()
        if life not in self._businesses:
            self._businesses[life] = self.application.make()
        return self._businesses[life]

    async def close(self) -> None:
        """Close the connections of every agent."""
        for business in self._businesses.values():
            for agent in business.agents.values():
                with suppress(Exception):
                    await agent.close()

    def tell_bug(self, attempt: _Attempt, error: Exception) -> None:
        """Report an error that an agent must not raise."""
        frames = traceback.extract_tb(error.__traceback__)
        frame = frames[min(1, len(frames) - 1)]
        cause = error if isinstance(error, NotSimulatedError) else repr(error)
        about = (
            f"{attempt.step}: its agent {attempt.agent.name} raised {type(error).__name__} in "
            f"{frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
        )
        self.broken(Violation(0, f"{about}, for order {attempt.call.order_id}: {cause}", about))
        self.stop()

    # --- the service ---

    async def serve(self, request: HttpRequest) -> HttpAnswer | None:
        """Answer a request, after some time and with faults by chance. None cuts the connection."""
        attempt = _attempt.get()
        of_no_host()
        method = request.method
        assert attempt is not None  # noqa: S101  a session exists only during a call
        asks = attempt.doing and method not in _READS
        attempt.requests += asks
        position = attempt.requests
        key = request.key or (request.path if method in _BY_PATH else "")
        sentence = (
            f"{method} {request.path} of agent {attempt.agent.name}, with key {key or 'none'}"
        )
        self.story(sentence)
        try:
            await attempt.agent.arrive()
        except TransientError:
            answer = _failure(method, self.rng.choice(_FAILS))
        else:
            if method in _READS:
                answer = self._answer(request, "", 0)
            elif asks:
                answer = self._do(request, attempt, position, key)
            else:
                answer = self._undo(request, attempt, key)
            if answer is not None and answer.status < 300 and self._happens("lost_answer"):
                self.story(f"{sentence}: it has its effect, and its answer is lost")
                return _failure(method, self.rng.choice(_LOSES))
        if asks and (answer is None or answer.status >= 400):
            self.ledger.unmet.add(attempt.call.key)
        outcome = "the connection is cut" if answer is None else f"answered {answer.status}"
        self.story(f"{sentence}: {outcome}")
        return answer

    def _happens(self, fault: str) -> bool:
        return self.faults.happens(fault, self.rng)

    def _do(
        self, request: HttpRequest, attempt: _Attempt, position: int, key: str
    ) -> HttpAnswer | None:
        """Have the effect once for each key."""
        agent, call = attempt.agent.name, attempt.call
        effects = self.ledger.of(call.key)
        if effects.refused is None:
            effects.refused = self._happens("refused")
        limit = self.drain_times.get(agent, {}).get(call.step)
        if limit is not None and self.clock.now() > call.complete_by + limit:
            return None
        if effects.tombstone:
            return problem(request.method, 409, "undone", "this key was undone")
        if effects.refused:
            return problem(request.method, 422, "out-of-stock", "there is none left")
        place = f"{request.method} {request.path}"
        in_force = [effect for effect in self._effects[agent] if effect.in_force]
        for effect in in_force:
            if key and (effect.key, effect.place) == (key, place):
                if effect.call.key != call.key:
                    self._say(attempt, f"gives with {place} the key of another call", effects)
                return self._answered(request, effect)
        number = sum(map(len, self._effects.values())) + 1
        new_effect = _Effect(
            attempt=attempt,
            position=position,
            place=place,
            key=key,
            effect_id=f"effect-{number:05}",
        )
        if not key:
            self._say(attempt, f"sends no Idempotency-Key with {place}", effects)
        elif any(map(new_effect.repeats, in_force)):
            self._say(attempt, f"sends a new key each time with {place}", effects)
        self._effects[agent].append(new_effect)
        effects.done = max(effects.done, 1)
        effects.in_force, effects.content = True, call.order
        return self._answered(request, new_effect)

    def _say(self, attempt: _Attempt, does: str, effects: Effects) -> None:
        effects.done += 1
        about = f"{attempt.step}: its agent {attempt.agent.name} {does}"
        self.broken(Violation(7, f"order {attempt.call.order_id}: {about}", about))

    def _undo(self, request: HttpRequest, attempt: _Attempt, key: str) -> HttpAnswer:
        """Take back the effects that a request names by key or id. Refuse the call afterwards."""
        agent, call = attempt.agent.name, attempt.call
        if self._happens("undo_refused"):
            return problem(request.method, 409, "undo-refused", "it cannot be taken back")
        text = f"{request.path} {request.body}"
        targets = [
            effect
            for effect in self._effects[agent]
            if effect.key == key or effect.effect_id in text
        ]
        for effect in targets:
            effect.in_force = False
        call_effects = [effect for effect in self._effects[agent] if effect.call.key == call.key]
        effects = self.ledger.of(call.key)
        effects.in_force = any(effect.in_force for effect in call_effects)
        effects.tombstone = call.step not in self.drain_times.get(agent, {})
        if not (targets or request.key):
            return problem(request.method, 404, "none", "there is nothing of this name")
        return self._answer(request, "", 0)

    def _answered(self, request: HttpRequest, effect: _Effect) -> HttpAnswer:
        effect.requests += 1
        return self._answer(request, effect.effect_id, effect.requests - 1)

    def _answer(self, request: HttpRequest, effect_id: str, number: int) -> HttpAnswer:
        content = self.application.answer(f"{request.method} {request.path}", number)
        text = json.dumps({"id": "{id}"} if content is None else content).replace("{id}", effect_id)
        return HttpAnswer(method=request.method, status=200, body=text.encode())


def _failure(method: str, status: int | None) -> HttpAnswer | None:
    return None if status is None else problem(method, status, "failed", "try again")


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Keep agents from the real world, and make their random numbers the same for each seed.

    ``HttpService`` reaches the model service, and signs in nowhere. No socket connects. The ids of
    ``uuid4`` come from the seed.
    """
    rng = random.Random(seed)  # noqa: S311  it repeats itself

    async def no_headers(_service: HttpService) -> Mapping[str, str]:
        return {}

    def session(service: HttpService) -> Session:
        attempt = _attempt.get()
        serve = attempt.agent.serve if attempt else _nobody
        return Session(service._base_url, service._attempt_seconds, serve)  # noqa: SLF001

    def refuse(opened: socket.socket, where: object, *_given: object) -> None:
        opened.close()
        raise NotSimulatedError(f"an agent connects to {where} by a socket of its own")

    with ExitStack() as patches:
        patches.enter_context(patch.object(os, "urandom", rng.randbytes))
        patches.enter_context(patch.object(socket.socket, "connect", refuse))
        patches.enter_context(patch.object(socket.socket, "connect_ex", refuse))
        patches.enter_context(patch.object(HttpService, "sign_in", no_headers))
        patches.enter_context(patch.object(HttpService, "_session", session))
        yield


async def _nobody(request: HttpRequest) -> HttpAnswer:
    return problem(request.method, 503, "not-simulated", "no agent's do or undo asks for this")
