"""The agents of an adopter in a simulation, and the model HTTP service that they call.

The service keeps the two rules of remote services: the same key again has no second effect, and
after its undo a key is refused. So whatever happens twice is an agent's doing.
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
from sas.domain.order import Direction
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
from sas.testing.remote import Effects, ModelService, RemoteLedger, Tell
from sas.testing.violation import Violation
from sas.testing.wire import HttpAnswer, HttpRequest, NotSimulatedError
from sas.testing.world import life_here, of_no_host

KEY_HEADER = "idempotency-key"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_PATH = frozenset({"PUT", "DELETE"})
"""Methods that have one effect for each path, as HTTP says."""
_FAILS = (None, 500, 502, 503, 429)
_LOSES = (None, 500, 504, "late")
"""How a call fails before its effect, and how its answer is lost. None: the connection is cut."""


@dataclass(frozen=True, slots=True)
class Given:
    """What an adopter gives: how to make the business, orders by workflow, answers by call.

    A call is a method and a pattern of paths, such as ``POST /charges``. Its answers come one
    after another for each effect, the last one again and again. ``settings`` are environment
    variables of the business; the machine's own come first. Steps with ``no_effect`` have none at
    their service, on purpose, or not always.
    """

    make: Callable[[], Business]
    orders: Mapping[str, Sequence[Any]]
    answers: Mapping[str, Sequence[Any]]
    settings: Mapping[str, str] = field(default_factory=dict)
    no_effect: frozenset[str] = frozenset()

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


@dataclass(slots=True, eq=False)
class _Attempt:
    """One call of an agent: which of its requests had effects, and its callback."""

    agent: OwnAgent
    call: Call
    direction: Direction
    workflow: str
    requests: int = 0
    callback: Callback | None = None

    @property
    def step(self) -> str:
        return f"{self.workflow}: step {self.call.step}"


_attempt: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)


@dataclass(slots=True, eq=False)
class _Effect:
    """One effect at the service: what asked for it, and how."""

    attempt: _Attempt
    position: int
    place: str
    key: str | None
    text: str
    own_id: str
    in_force: bool = True
    lost: bool = False
    asked: int = 0


class OwnAgent(ModelService):
    """The agent of one name. Each life of an instance has an agent of its own behind it."""

    def __init__(
        self, name: str, own: OwnAgents, clock: Clock, ledger: RemoteLedger, rng: random.Random
    ) -> None:
        super().__init__(clock, ledger, own.faults, rng)
        self.name, self._own = name, own

    async def do(self, call: Call) -> Any:
        """Let the adopter's agent do it."""
        return await self._attempted(call, Direction.DO)

    async def undo(self, call: Call) -> Any:
        """Let the adopter's agent undo it."""
        return await self._attempted(call, Direction.UNDO)

    async def arrive(self, call: Call) -> None:
        """Let a request of a call travel; TransientError if it does not arrive."""
        await self._travel(call)

    async def _attempted(self, call: Call, direction: Direction) -> Any:
        attempt = _Attempt(self, call, direction, self._own.workflow_of[call.order_id])

        def callback(within: timedelta) -> Callback:
            attempt.callback = call.callbacks(within)
            return attempt.callback

        attempt.call = replace(call, callbacks=callback)
        agent = self._own.business().agents[self.name]
        before = _attempt.set(attempt)
        try:
            act = agent.do if direction is Direction.DO else agent.undo
            result = await act(attempt.call)
        except (RefusedError, TransientError, UnavailableError):
            raise
        except Exception as bug:
            self._own.tell_bug(attempt, bug)
            raise
        finally:
            _attempt.reset(before)
        if isinstance(result, AwaitCallback) and attempt.callback is not None:
            self._goes_on(self._told_outside(attempt.callback, call, result.within))
        return result

    async def _told_outside(self, callback: Callback, call: Call, within: timedelta) -> None:
        """Call back, like an outside party that has the address."""
        of_no_host()
        await self._clock.sleep(within.total_seconds() * self._rng.uniform(0, 1.1))
        result = self._own.given.answer(f"CALLBACK {call.step}", 0) or {"done_by": call.key}
        body = json.dumps({"outcome": "done", "result": result}).encode()
        while not (self._ledger.of(call.key).tombstone or await self._own.tell(callback, body)):
            await self._clock.sleep(self._rng.uniform(1, 5))


@dataclass
class OwnAgents:
    """All agents of one simulation, and their service.

    ``broken`` hears of each fault of an agent, ``story`` of each request in a sentence.
    """

    given: Given
    clock: Clock
    ledger: RemoteLedger
    faults: Faults
    rng: random.Random
    limits: Mapping[str, Mapping[str, timedelta]]
    workflow_of: Mapping[str, str]
    tell: Tell
    broken: Callable[[Violation], None] = lambda _violation: None
    story: Callable[[str], None] = lambda _text: None
    _businesses: dict[object, Business] = field(default_factory=dict)
    _effects: defaultdict[str, list[_Effect]] = field(default_factory=lambda: defaultdict(list))
    """The effects of each agent."""
    _undone: set[tuple[str, str]] = field(default_factory=set)
    """The keys that are refused, with their agents."""
    _keyless: set[str] = field(default_factory=set)
    """The keys of calls that had an effect without a key: the service cannot refuse these."""

    def agent(self, name: str) -> OwnAgent:
        """Return the agent of a name."""
        return OwnAgent(name, self, self.clock, self.ledger, self.rng)

    def business(self) -> Business:
        """Return the business of the instance that runs now: what it keeps ends with it."""
        life = life_here()
        if life not in self._businesses:
            self._businesses[life] = self.given.make()
        return self._businesses[life]

    async def close(self) -> None:
        """Close the connections of every agent."""
        for business in self._businesses.values():
            for agent in business.agents.values():
                with suppress(Exception):
                    await agent.close()

    def tell_bug(self, attempt: _Attempt, bug: Exception) -> None:
        """Report an error that an agent must not raise."""
        frames = traceback.extract_tb(bug.__traceback__)
        frame = frames[min(1, len(frames) - 1)]
        what = bug if isinstance(bug, NotSimulatedError) else repr(bug)
        about = (
            f"{attempt.step}: its agent {attempt.agent.name} raised {type(bug).__name__} in "
            f"{frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
        )
        self.broken(Violation(0, f"{about}, for order {attempt.call.order_id}: {what}", about))

    # --- the service ---

    async def serve(self, request: HttpRequest) -> HttpAnswer | None:
        """Answer a request, in its time and with its faults."""
        attempt = _attempt.get()
        of_no_host()
        if attempt is None:
            return _problem(503, "not-simulated", "no agent's do or undo asks for this")
        agent, reads = attempt.agent, request.method in _READS
        if not reads:
            attempt.requests += 1
        position = attempt.requests
        key = _key_of(request, attempt.call)
        known = f"key {key}" if key else "no key"
        what = f"{request.method} {request.path} of agent {agent.name}, with {known}"
        self.story(what)
        answer: HttpAnswer | None
        asks = attempt.direction is Direction.DO and not reads
        try:
            await agent.arrive(attempt.call)
        except TransientError:
            answer = _failure(self.rng.choice(_FAILS), self.rng)
            if asks:
                self.ledger.unmet.add(attempt.call.key)
            self.story(f"{what}: {_told(answer)}, before any effect")
            return answer
        if reads:
            answer = self._read(request, attempt)
        elif asks:
            answer = self._do(request, attempt, position, key)
            if answer is None or answer.status >= 400:
                self.ledger.unmet.add(attempt.call.key)
        else:
            answer = self._undo(request, attempt, key)
        if answer is not None and answer.status < 300 and self._happens("lost_answer"):
            self.story(f"{what}: it has its effect, and its answer is lost")
            self._lose(attempt, position)
            self.ledger.disturbed.add(attempt.call.key)
            how = self.rng.choice(_LOSES)
            if how != "late":
                return _failure(how, self.rng)
            await self.clock.sleep(self.rng.uniform(5, 60))
        self.story(f"{what}: {_told(answer)}")
        return answer

    def _happens(self, fault: str) -> bool:
        return self.faults.happens(fault, self.rng)

    def _lose(self, attempt: _Attempt, position: int) -> None:
        for effect in self._effects[attempt.agent.name]:
            if effect.attempt is attempt and effect.position == position:
                effect.lost = True

    def _read(self, request: HttpRequest, attempt: _Attempt) -> HttpAnswer:
        text = _text(request)
        for effect in self._effects[attempt.agent.name]:
            if effect.in_force and _mentions(text, effect):
                return self._answer(request, effect)
        given = self.given.answer(f"{request.method} {request.path}", 0)
        return _json(given) if given is not None else _problem(404, "none", "there is none")

    def _do(
        self, request: HttpRequest, attempt: _Attempt, position: int, key: str | None
    ) -> HttpAnswer | None:
        """Have the effect once for each key."""
        agent, call = attempt.agent.name, attempt.call
        effects = self.ledger.of(call.key)
        if effects.refused is None:
            effects.refused = self._happens("refused")
        limit = self.limits.get(agent, {}).get(call.step)
        if limit is not None and self.clock.now() > call.complete_by + limit:
            return None
        gone = effects.tombstone and call.key not in self._keyless
        if gone or (key is not None and (agent, key) in self._undone):
            return _problem(409, "undone", "this key was undone")
        if effects.refused:
            return _problem(422, "out-of-stock", "there is none left")
        place = _place(request)
        for one in self._effects[agent]:
            if key is not None and (one.key, one.place) == (key, place) and one.in_force:
                self._check_owner(one, attempt)
                return self._answer(request, one)
        text = _text(request)
        number = sum(map(len, self._effects.values())) + 1
        made = _Effect(attempt, position, place, key, text, f"effect-{number:05}")
        self._check_once(made, effects)
        self._effects[agent].append(made)
        if key is None:
            self._keyless.add(call.key)
        effects.done = max(effects.done, 1)
        effects.in_force, effects.content = True, call.order
        return self._answer(request, made)

    def _check_owner(self, known: _Effect, attempt: _Attempt) -> None:
        """A key that another call used has no effect for this one."""
        first, call = known.attempt.call, attempt.call
        if first.key == call.key:
            return
        about = (
            f"{attempt.step} gives the key of another call: its agent {attempt.agent.name} must "
            "send call.key, or its effect does not happen"
        )
        self.broken(
            Violation(7, f"order {call.order_id}: {known.key} was of {first.key}: {about}", about)
        )

    def _check_once(self, made: _Effect, effects: Effects) -> None:
        """A later attempt at the same call must not have the same effect once more."""
        attempt = made.attempt
        for one in self._effects[attempt.agent.name]:
            if not (one.in_force and effects.in_force and one.place == made.place):
                continue
            if one.attempt.call.key != attempt.call.key:
                continue
            later = one.attempt is not attempt and one.position == made.position
            if not (later or (one.lost and one.text == made.text)):
                continue
            effects.done += 1
            why = "sends no Idempotency-Key" if made.key is None else "sends a new key each time"
            about = (
                f"{attempt.step} is not idempotent: its agent {attempt.agent.name} {why} with "
                f"{made.place}"
            )
            first, then = one.key or "no key", made.key or "no key"
            text = f"order {attempt.call.order_id}: {first}, then {then}: {about}"
            self.broken(Violation(7, text, about))
            return

    def _undo(self, request: HttpRequest, attempt: _Attempt, key: str | None) -> HttpAnswer:
        """Take back what the request names, and refuse its key from now on."""
        agent, call, text = attempt.agent.name, attempt.call, _text(request)
        if self._happens("undo_refused"):
            return _problem(409, "undo-refused", "it cannot be taken back")
        effects, all_effects = self.ledger.of(call.key), self._effects[agent]
        named = [one for one in all_effects if key is not None and one.key == key]
        same = [one for one in named if one.place.split("/")[1:2] == request.path.split("/")[1:2]]
        named = same or named or [one for one in all_effects if _mentions(text, one)]
        for one in named:
            one.in_force = False
            if one.key is not None:
                self._undone.add((agent, one.key))
        own = [one for one in all_effects if one.attempt.call.key == call.key]
        effects.in_force = effects.in_force and any(one.in_force for one in own)
        if key is not None:
            self._undone.add((agent, key))
        effects.tombstone = effects.tombstone or bool(named) or (key is not None and not own)
        if call.step in self.limits.get(agent, {}):
            effects.tombstone = False
            self._undone -= {(agent, one.key or "") for one in own} | {(agent, key or "")}
        if not named and key is None:
            return _problem(404, "none", "there is nothing of this name")
        given = self.given.answer(f"{request.method} {request.path}", 0)
        return _json({"undone": bool(named)} if given is None else given)

    def _answer(self, request: HttpRequest, effect: _Effect) -> HttpAnswer:
        given = self.given.answer(f"{request.method} {request.path}", effect.asked)
        effect.asked += 1
        if given is None:
            given = {"id": "{id}", "done_by": effect.attempt.call.key}
        text = json.dumps(given).replace("{id}", effect.own_id)
        return HttpAnswer(201, text.encode())


def _place(request: HttpRequest) -> str:
    """Return what a request asks for, without what differs from order to order."""
    if request.method in _BY_PATH:
        return f"{request.method} /{request.path.split('/')[1]}"
    return f"{request.method} {request.path}"


def _text(request: HttpRequest) -> str:
    return f"{request.target}\n{request.body.decode('utf-8', 'replace')}"


def _key_of(request: HttpRequest, call: Call) -> str | None:
    """Return the key of a request: of the header, or wherever it gives the key of its call."""
    if header := request.headers.get(KEY_HEADER):
        return header
    given = f"{request.headers}\n{_text(request)}"
    if call.key in given or call.key.replace("/", "%2F") in given:
        return call.key
    several = request.path.count("/") > 1
    return f"{request.path} of {call.key}" if request.method in _BY_PATH and several else None


def _mentions(text: str, effect: _Effect) -> bool:
    """Return whether a request names an effect by its id, or by the order of both."""
    call = effect.attempt.call
    by_order = call.order_id in text and call.order_id in effect.text
    return effect.own_id in text or call.key in text or by_order


def _failure(how: object, rng: random.Random) -> HttpAnswer | None:
    if not isinstance(how, int):
        return None
    answer = _problem(how, "failed", "try again")
    asks = how in {429, 503} and rng.random() < 0.5
    return replace(answer, retry_after=rng.randint(1, 5)) if asks else answer


def _problem(status: int, kind: str, detail: str) -> HttpAnswer:
    return HttpAnswer(status, json.dumps({"type": kind, "detail": detail}).encode())


def _json(given: Any) -> HttpAnswer:
    return HttpAnswer(200, json.dumps(given).encode())


def _told(answer: HttpAnswer | None) -> str:
    return "the connection is cut" if answer is None else f"answered {answer.status}"


async def _no_headers(_service: HttpService) -> Mapping[str, str]:
    return {}


@contextmanager
def alone(seed: int) -> Iterator[None]:
    """Keep agents from the world outside, and let what they draw at random repeat itself.

    No socket connects, except those that the event loop replaces. Ids of ``uuid`` come from the
    seed. No service is signed in to, so no token is asked for.
    """
    drawn = random.Random(seed)  # noqa: S311  it repeats itself

    def refuse(opened: socket.socket, where: object, *_given: object) -> None:
        opened.close()
        attempt = _attempt.get()
        who = f"agent {attempt.agent.name}" if attempt else "an agent"
        raise NotSimulatedError(f"{who} connects to {where} by a socket of its own")

    with ExitStack() as patches:
        patches.enter_context(patch.object(os, "urandom", drawn.randbytes))
        patches.enter_context(patch.object(socket.socket, "connect", refuse))
        patches.enter_context(patch.object(socket.socket, "connect_ex", refuse))
        patches.enter_context(patch.object(HttpService, "sign_in", _no_headers))
        with suppress(ImportError):  # with aiodns, aiohttp would ask a name server
            from aiohttp import ThreadedResolver  # noqa: PLC0415  # slow to import

            patches.enter_context(patch("aiohttp.connector.DefaultResolver", ThreadedResolver))
        yield
