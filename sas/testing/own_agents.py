"""The functions of an adopter in a simulation, and the remote services that they call.

The model of a service keeps the two rules of remote services. A repeated key has no second effect,
and a key is refused after its undo. So if an effect happens twice, or stays after its undo, a
function made a mistake.

A service answers each request by what the test set (``StandIn.answer``). Otherwise it answers with
a value of the type that the function asks for (``sas.testing.shapes``).
"""

from __future__ import annotations

import os
import random
import socket
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from sas.adapters.remote import HttpService
from sas.codec.results import encode_result
from sas.domain.texts import shortened
from sas.ports import (
    AgentCall,
    AwaitCallback,
    Business,
    Callback,
    Clock,
    HeldError,
    Later,
    RefusedError,
    TransientError,
    UnavailableError,
)
from sas.saga import Saga, business_of
from sas.saga.definition import Action
from sas.testing.clock import START
from sas.testing.plan import Faults
from sas.testing.remote import Effects, ModelService, RemoteLedger, SendCallback
from sas.testing.shapes import drawn_answer
from sas.testing.violation import Violation
from sas.testing.wire import HttpAnswer, HttpRequest, NotSimulatedError, Session, problem
from sas.testing.world import life_here, of_no_host

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_PATH = frozenset({"PUT", "DELETE"})
"""Methods that have one effect for each path, as HTTP says."""
_FAILS = (None, 500, 502, 503, 429)
_LOSES = (None, 500, 504)
"""The statuses of a call that fails before its effect, and of a lost answer. None means that the
connection is cut."""
CHECKS_MAX = 500
"""How often a step may ask to be called again later, before its story counts as endless."""
OURS = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
CALLBACK_KEY, CALLBACK_URL = "SAS_CALLBACK_KEY", "SAS_CALLBACK_URL"
KEY_OF_CALLBACKS = "a-key-for-the-simulation-of-callbacks"
URL_OF_CALLBACKS = "https://app.example/api/callbacks"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal: a code for programs, and a sentence for people.

    In ``callbacks`` of ``Kit.run`` it is the answer of somebody outside.
    """

    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Late:
    """An answer by callback (a result or a ``Refusal``) so much time after it was first asked for.

    If the step was called again meanwhile, the answer goes to its newest address.
    """

    answer: object
    after: timedelta


@dataclass(slots=True, eq=False, kw_only=True)
class ServiceRequest:
    """One request to a service, sent so much time (``at``) after the story began.

    ``status`` is that of the answer that the function got. It is None if the function got none.
    """

    order_id: str
    step: str
    method: str
    path: str
    key: str
    body: Any = field(repr=False)
    at: timedelta
    status: int | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path} of step {self.step}, order {self.order_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An answer that a test set. ``times_left`` has how often it is still given."""

    method: str
    path: str
    status: int
    content: bytes | None
    times_left: list[int]

    def fits(self, request: HttpRequest) -> bool:
        is_left = not self.times_left or self.times_left[0] > 0
        fits = request.method == self.method and fnmatchcase(request.path, self.path)
        return is_left and fits


@dataclass(slots=True, eq=False)
class StandIn:
    """The model of a remote service. It keeps the two rules, and remembers what happened.

    ``calls`` has every request that a function sent, the repeated ones too. ``effects`` has those
    whose effect is in force: at most one for each key::

        bank = saga.service("BANK_URL")
        saga.run(claims, claim, callbacks=approved)
        assert [effect.path for effect in bank.effects] == ["/payments"]
    """

    setting: str
    _: KW_ONLY
    calls: list[ServiceRequest] = field(default_factory=list)
    _answers: list[_Answer] = field(default_factory=list)
    _effects: list[_Effect] = field(default_factory=list)
    _undone: set[str] = field(default_factory=set)
    _away: bool = False

    @property
    def effects(self) -> list[ServiceRequest]:
        """The requests whose effect is in force, in the order in which they had it."""
        return [effect.request for effect in self._effects if effect.in_force]

    def answer(
        self,
        method: str,
        path: str,
        status: int = 200,
        body: object = None,
        *,
        code: str = "refused",
        times: int | None = None,
    ) -> None:
        """Answer these requests so. Without a body, the body has the type that is asked for.

        Only an answer below 400 has an effect. The others are problems (RFC 9457) with this code.
        The answer that was set last counts first. One with ``times`` counts only so often::

            carrier.answer("GET", "/deliveries/*", body={"state": "delivered"})
            carrier.answer("GET", "/deliveries/*", body={"state": "on-its-way"}, times=2)
            carrier.answer("POST", "/deliveries", 503, times=1)

        Args:
            method: the HTTP method.
            path: the path below the service's address. ``*`` stands for any text.
            status: the HTTP status.
            body: the JSON of the answer: a struct, a dataclass or plain data.
            code: the code of a refusal, if the status is 400 or more.
            times: how often this answer is given; None is always.
        """
        content = None if body is None else msgspec.json.encode(body)
        if body is None and status >= 400:
            content = problem(method, status, code, f"{code} ({status})").body
        self._answers.append(
            _Answer(
                method=method.upper(),
                path=path,
                status=status,
                content=content,
                times_left=[] if times is None else [times],
            )
        )

    def _answer_to(self, request: HttpRequest) -> _Answer | None:
        """Return the answer that the test set for a request, and count it."""
        for answer in reversed(self._answers):
            if answer.fits(request):
                if answer.times_left:
                    answer.times_left[0] -= 1
                return answer
        return None


@dataclass(slots=True, eq=False, kw_only=True)
class _Attempt:
    """One call of a function, with the number of effects that it asked for, and its callback."""

    agent: OwnAgent
    call: AgentCall
    doing: bool
    requests: int = 0
    callback: Callback | None = None

    @property
    def step(self) -> str:
        verb = "" if self.doing else "the undo of "
        return f"{verb}step {self.call.step}"

    @property
    def action(self) -> Action[Any, Any]:
        """The functions of the step that its agent has."""
        sagas = self.agent._agents.script.sagas  # noqa: SLF001
        places = [place for saga in sagas for place in saga.places]
        step = next(place.step for place in places if place.step.name == self.call.step)
        return next(other for other in (step, *step.others) if other.agent == self.agent.name)

    @property
    def where(self) -> str:
        """The name of its function, with file and line."""
        function = self.action.do if self.doing else self.action.back
        return function.where if function else "no function"


_attempt: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)
_shape: ContextVar[Any] = ContextVar("shape", default=None)
"""The type of the answer that the current request asks for."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Effect:
    """One effect at a service: the attempt that asked for it, and its request.

    ``position`` is the number of the request within its attempt. ``names`` are the texts and whole
    numbers of its answer, by one of which an undo may name it.
    """

    attempt: _Attempt
    position: int
    request: ServiceRequest
    names: set[str] = field(default_factory=set)
    in_force: bool = True
    requests: int = 0

    @property
    def place(self) -> str:
        return f"{self.request.method} {self.request.path}"

    def repeats(self, other: _Effect) -> bool:
        """Return whether this effect repeats the one of an earlier attempt at the same call."""
        same = (self.place, self.attempt.call.key) == (other.place, other.attempt.call.key)
        return same and self.position == other.position and self.attempt is not other.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the sagas of an adopter are played with.

    ``orders`` has the content of each order, as JSON holds it. ``callbacks`` has the answer that
    somebody outside gives to a step, by the step's name: a result, a ``Refusal`` or a ``Late``. A
    step without an answer gets none. ``settings`` are environment variables, unless the machine has
    them already.
    """

    sagas: Sequence[Saga[Any]]
    services: dict[str, StandIn]
    orders: Mapping[str, Any]
    callbacks: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def business(self) -> Business:
        """Return a new business of the sagas."""
        return business_of(self.sagas)

    def service(self, setting: str) -> StandIn:
        """Return the service of a setting."""
        return self.services.setdefault(setting, StandIn(setting))

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Give the sagas their settings for as long as the block runs. No real address is used."""
        missing = {name: text for name, text in self.settings.items() if name not in os.environ}
        settings = [service.setting for saga in self.sagas for service in saga.services]
        addresses = {setting: _address(setting) for setting in settings}
        callbacks = {CALLBACK_KEY: KEY_OF_CALLBACKS, CALLBACK_URL: URL_OF_CALLBACKS}
        with patch.dict(os.environ, missing | addresses | callbacks):
            yield


class OwnAgent(ModelService):
    """The agent of one name. It calls the adopter's functions in the instance that runs now."""

    def __init__(self, name: str, agents: OwnAgents) -> None:
        super().__init__(agents.clock, agents.ledger, agents.faults, agents.rng)
        self.name, self._agents = name, agents

    async def do(self, call: AgentCall) -> Any:
        """Let the adopter's function carry out a call."""
        return await self._attempted(call, doing=True)

    async def undo(self, call: AgentCall) -> Any:
        """Let the adopter's function undo a call."""
        return await self._attempted(call, doing=False)

    async def _attempted(self, call: AgentCall, *, doing: bool) -> Any:
        attempt = _Attempt(agent=self, call=call, doing=doing)

        def callback(within: timedelta) -> Callback:
            attempt.callback = call.callbacks(within)
            return attempt.callback

        attempt.call = replace(call, callbacks=callback)
        agent = self._agents.business().agents[self.name]
        outer_attempt = _attempt.set(attempt)
        try:
            result = await (agent.do if doing else agent.undo)(attempt.call)
            if doing and not isinstance(result, Later):
                encode_result(result, self.name)
        except (RefusedError, TransientError, UnavailableError):
            raise
        except Exception as error:
            self._agents.tell_bug(attempt, error)
            raise
        finally:
            _attempt.reset(outer_attempt)
        if isinstance(result, Later):
            self._agents.goes_on_later(attempt, result)
        if isinstance(result, AwaitCallback) and attempt.callback is not None:
            answer = self._agents.script.callbacks.get(call.step)
            if answer is not None:
                self._goes_on(self._call_back(call, attempt.callback, answer, result.within))
        return result

    async def _call_back(
        self, call: AgentCall, callback: Callback, answer: object, within: timedelta
    ) -> None:
        """Call back after some time, as somebody outside of the system does."""
        of_no_host()
        seconds = within.total_seconds() * self._rng.uniform(0, 0.9)
        first_ask = self._agents.first_asks.setdefault(call.key, self._clock.now())
        if isinstance(answer, Late):
            seconds = (first_ask + answer.after - self._clock.now()).total_seconds()
            answer = answer.answer
        await self._clock.sleep(seconds)
        body: dict[str, Any] = {"outcome": "done", "result": answer}
        if isinstance(answer, Refusal):
            error = {"code": answer.code, "message": answer.message or answer.code}
            body = {"outcome": "refused", "error": error}
        while not await self._agents.send_callback(callback, msgspec.json.encode(body)):
            await self._clock.sleep(self._rng.uniform(1, 5))


@dataclass(kw_only=True)
class OwnAgents:
    """All agents of one simulation.

    ``broken`` gets each mistake of a function, ``failed`` an error that ends the story. ``story``
    gets a sentence for each request. ``on_later`` gets the time for which a step goes on.
    """

    script: Script
    seed: int
    clock: Clock
    ledger: RemoteLedger
    faults: Faults
    rng: random.Random
    drain_times: Mapping[str, Mapping[str, timedelta]]
    send_callback: SendCallback
    broken: Callable[[Violation], None] = lambda _violation: None
    failed: Callable[[Violation, Exception | None], None] = lambda _violation, _error: None
    story: Callable[[str], None] = lambda _text: None
    on_later: Callable[[timedelta], None] = lambda _span: None
    _businesses: dict[object, Business] = field(default_factory=dict)
    _checks: dict[tuple[str, bool], int] = field(default_factory=dict)
    first_asks: dict[str, datetime] = field(default_factory=dict)
    """When a callback was asked for first, by the key of the call."""

    def agent(self, name: str) -> OwnAgent:
        """Return the agent of a name."""
        return OwnAgent(name, self)

    def business(self) -> Business:
        """Return the business of the instance that runs now. Its memory ends with the instance."""
        life = life_here()
        if life not in self._businesses:
            self._businesses[life] = self.script.business()
        return self._businesses[life]

    def turn(self, setting: str, *, is_away: bool) -> None:
        """Take a service away, or bring it back."""
        self.script.service(setting)._away = is_away  # noqa: SLF001

    async def close(self) -> None:
        """Close the connections of every agent."""
        for business in self._businesses.values():
            for agent in business.agents.values():
                with suppress(Exception):
                    await agent.close()

    def tell_bug(self, attempt: _Attempt, error: Exception) -> None:
        """Report an error that a function must not raise."""
        place, code = attempt.where, ""
        if line := _line_of(error):
            place, code = _place_of(line), f": {line.line}"
        about = f"{attempt.step} raised {_shown(error)} in {place}{code}"
        if isinstance(error, HeldError | NotSimulatedError):
            about = f"{attempt.step} fails in {place}: {error}"
        self._fail(attempt, about, error)

    def watched(self, check: Callable[[bytes], object], saga: str) -> Callable[[bytes], object]:
        """Return a check of orders whose bug ends the story."""

        def watched(content: bytes) -> object:
            try:
                return check(content)
            except ValueError:
                raise
            except Exception as error:
                text = bug_of_check(saga, error)
                self.failed(Violation(0, text, text), error)
                raise

        return watched

    def goes_on_later(self, attempt: _Attempt, later: Later) -> None:
        """Take note of a step that goes on. One that never ends fails the story."""
        span = later.within if isinstance(later, AwaitCallback) else later.check_after
        self.on_later(span)
        does = "waits for a callback" if isinstance(later, AwaitCallback) else "is called again in"
        self.story(f"order {attempt.call.order_id}: {attempt.step} {does} {span} {later.note}")
        if not isinstance(later, AwaitCallback):
            key = attempt.call.key, attempt.doing
            self._checks[key] = self._checks.get(key, 0) + 1
            if self._checks[key] >= CHECKS_MAX:
                about = f"{attempt.step} asked {CHECKS_MAX} times to be called again later"
                self._fail(attempt, about, None)

    def _fail(self, attempt: _Attempt, about: str, error: Exception | None) -> None:
        text = f"order {attempt.call.order_id}: {about}"
        self.failed(Violation(0, text, about), error)

    def left_by_undo(self, keys: Sequence[str]) -> str:
        """Return an effect that is in force for one of these keys, and the undo that left it."""
        for service in self.script.services.values():
            for effect in service._effects:  # noqa: SLF001
                if effect.in_force and effect.attempt.call.key in keys:
                    undo = replace(effect.attempt, doing=False).where
                    return f": {effect.place} at {service.setting} is not taken back by {undo}"
        return ""

    # --- the services ---

    async def serve(self, request: HttpRequest, setting: str) -> HttpAnswer | None:
        """Answer a request, after some time and with faults by chance. None cuts the connection."""
        attempt = _attempt.get()
        assert attempt is not None  # noqa: S101  a session exists only during a call
        of_no_host()
        service, method = self.script.service(setting), request.method
        asks = attempt.doing and method not in _READS
        attempt.requests += asks
        record = ServiceRequest(
            order_id=attempt.call.order_id,
            step=attempt.call.step,
            method=method,
            path=request.path,
            key=request.key or (request.path if method in _BY_PATH else ""),
            body=request.body,
            at=self.clock.now() - START,
        )
        service.calls.append(record)
        answer: HttpAnswer | None
        if not await self._arrives(service):
            answer = _failure(method, self.rng.choice(_FAILS))
        elif method in _READS:
            answer = self._answer(service, request, None)
        elif asks:
            answer = self._do(service, request, record, attempt)
        else:
            answer = self._undo(service, request, record, attempt)
        if answer is not None and answer.status < 300 and self._happens("lost_answer"):
            self.story(f"{setting}: {record}: done, and the answer is lost")
            answer = _failure(method, self.rng.choice(_LOSES))
        if asks and (answer is None or answer.status >= 500):
            self.ledger.unmet.add(attempt.call.key)
        record.status = None if answer is None else answer.status
        outcome = "no answer" if answer is None else _told(answer)
        self.story(f"{setting}: {record}: {outcome}")
        return answer

    async def _arrives(self, service: StandIn) -> bool:
        """Let a request travel. Return whether it arrives."""
        await self.clock.sleep(self.rng.uniform(0.0, self.faults.seconds_max))
        if service._away or self._happens("transient"):  # noqa: SLF001
            return False
        if self._happens("hangs"):
            await self.clock.sleep(self.rng.uniform(5, 60))
        return True

    def _happens(self, fault: str) -> bool:
        return self.faults.happens(fault, self.rng)

    def _do(
        self,
        service: StandIn,
        request: HttpRequest,
        record: ServiceRequest,
        attempt: _Attempt,
    ) -> HttpAnswer | None:
        """Have the effect once for each key."""
        call, all_effects = attempt.call, service._effects  # noqa: SLF001
        effects = self.ledger.of(call.key)
        limit = self.drain_times.get(attempt.agent.name, {}).get(call.step)
        if limit is not None and self.clock.now() > call.complete_by + limit:
            return None
        if call.key in service._undone:  # noqa: SLF001
            return problem(request.method, 409, "undone", "this key was undone")
        new_effect = _Effect(attempt=attempt, position=attempt.requests, request=record)
        in_force = [effect for effect in all_effects if effect.in_force]
        for effect in in_force:
            same = (effect.request.key, effect.place) == (record.key, new_effect.place)
            if record.key and same:
                if effect.attempt.call.key != call.key:
                    self._say(attempt, f"gives with {effect.place} the key of another call")
                return self._answer(service, request, effect)
        answer = self._answer(service, request, new_effect)
        if answer.status >= 400:
            return answer
        if not record.key:
            self._say(attempt, f"sends no Idempotency-Key with {new_effect.place}", effects)
        elif any(map(new_effect.repeats, in_force)):
            self._say(attempt, f"sends a new key each time with {new_effect.place}", effects)
        all_effects.append(new_effect)
        effects.done = max(effects.done, 1)
        effects.in_force, effects.content = True, call.order
        return answer

    def _say(self, attempt: _Attempt, does: str, effects: Effects | None = None) -> None:
        if effects is not None:
            effects.done += 1
        about = f"{attempt.step} {does}, in {attempt.where}"
        self.broken(Violation(7, f"order {attempt.call.order_id}: {about}", about))

    def _undo(
        self,
        service: StandIn,
        request: HttpRequest,
        record: ServiceRequest,
        attempt: _Attempt,
    ) -> HttpAnswer:
        """Take back the effects that a request names by key or id. Refuse the call afterwards."""
        call = attempt.call
        answer = self._answer(service, request, None)
        if answer.status >= 400:
            return answer
        names = _leaves(request.body) | set(request.path.split("/"))
        targets = [
            effect
            for effect in service._effects  # noqa: SLF001
            if effect.request.order_id == call.order_id
            and (effect.request.key == record.key or not names.isdisjoint(effect.names))
        ]
        for effect in targets:
            effect.in_force = False
        effects = self.ledger.of(call.key)
        effects.in_force = any(
            effect.in_force
            for other in self.script.services.values()
            for effect in other._effects  # noqa: SLF001
            if effect.attempt.call.key == call.key
        )
        if call.step not in self.drain_times.get(attempt.agent.name, {}):
            effects.tombstone = True
            service._undone.add(call.key)  # noqa: SLF001
        if not (targets or request.key):
            return problem(request.method, 404, "none", "there is nothing of this name")
        return answer

    def _answer(self, service: StandIn, request: HttpRequest, effect: _Effect | None) -> HttpAnswer:
        """Return the answer that the test set, or else one of the type that is asked for."""
        shape = _shape.get()
        answer = service._answer_to(request)  # noqa: SLF001
        number = len([call for call in service.calls if call.path == request.path])
        if effect is not None:
            number = effect.requests
            effect.requests += 1
        if answer is not None and (answer.content is not None or answer.status >= 400):
            content = answer.content or b""
        elif shape is None:
            content = b""
        else:
            place = f"{service.setting} {request.method} {request.path} {request.key}"
            content = msgspec.json.encode(drawn_answer(shape, f"{self.seed} {place}", number))
        status = 200 if answer is None else answer.status
        if effect is not None and status < 300 and content:
            effect.names |= _leaves(msgspec.json.decode(content))
        return HttpAnswer(method=request.method, status=status, body=content)


def is_adopters(file: str) -> bool:
    """Return whether a line of code is the adopter's own: not ours, and of no library."""
    return not file.startswith((OURS, "<", *_LIBRARIES))


def bug_of_check(saga: str, error: Exception) -> str:
    """Return what the check of a saga raised, and its line, in a sentence without its full stop."""
    line = _line_of(error)
    place = f" in {_place_of(line)}" if line else ""
    return f"the check of saga {saga} raised {_shown(error)}{place}"


def _line_of(error: Exception) -> traceback.FrameSummary | None:
    """Return the innermost line of the adopter's own code; None if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if is_adopters(frame.filename)), None)


def _place_of(line: traceback.FrameSummary) -> str:
    return f"{line.name} ({Path(line.filename).name}:{line.lineno})"


def _shown(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _told(answer: HttpAnswer) -> str:
    return f"{answer.status} {shortened(answer.body.decode(), 200)}".rstrip()


def _leaves(value: Any) -> set[str]:
    """Return the texts and whole numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(_leaves, value))
    is_name = isinstance(value, str | int) and not isinstance(value, bool)
    return {str(value)} if is_name and str(value) else set()


def _failure(method: str, status: int | None) -> HttpAnswer | None:
    return None if status is None else problem(method, status, "failed", "try again")


def _address(setting: str) -> str:
    return f"https://{setting.lower().replace('_', '-')}.example"


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Keep functions from the real world, and make their random numbers the same for each seed.

    ``HttpService`` reaches the model service, and signs in nowhere. No socket connects. The ids of
    ``uuid4`` come from the seed.
    """
    rng = random.Random(seed)  # noqa: S311  it repeats itself
    request_of, state = HttpService.request, random.getstate()

    async def no_headers(_service: HttpService) -> Mapping[str, str]:
        return {}

    def address(service: HttpService) -> str:
        return _address(service.setting)

    async def request(service: HttpService, call: Any, method: str, *rest: Any, **more: Any) -> Any:
        shape = more["shape"] if "shape" in more else rest[2]
        outer = _shape.set(shape)
        try:
            return await request_of(service, call, method, *rest, **more)
        finally:
            _shape.reset(outer)

    def session(service: HttpService) -> Session:
        attempt = _attempt.get()

        async def serve(request: HttpRequest) -> HttpAnswer | None:
            if attempt is None:
                text = "no function of a step asks for this"
                return problem(request.method, 503, "not-simulated", text)
            return await attempt.agent._agents.serve(request, service.setting)  # noqa: SLF001

        return Session(_address(service.setting), service._attempt_seconds, serve)  # noqa: SLF001

    def refuse(opened: socket.socket, where: object, *_given: object) -> None:
        opened.close()
        raise NotSimulatedError(f"a function connects to {where} by a socket of its own")

    def resolve(host: object, *_given: object, **_how: object) -> None:
        raise NotSimulatedError(f"a function asks for the address of {host} by itself")

    with ExitStack() as patches:
        patches.callback(random.setstate, state)
        patches.enter_context(patch.object(os, "urandom", rng.randbytes))
        patches.enter_context(patch.object(socket.socket, "connect", refuse))
        patches.enter_context(patch.object(socket.socket, "connect_ex", refuse))
        patches.enter_context(patch.object(socket, "getaddrinfo", resolve))
        patches.enter_context(patch.object(HttpService, "sign_in", no_headers))
        patches.enter_context(patch.object(HttpService, "address", address))
        patches.enter_context(patch.object(HttpService, "request", request))
        patches.enter_context(patch.object(HttpService, "_session", session))
        yield
