"""The test kit: an adopter's sagas in the real engine, in virtual time, with faults by name."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, get_origin

import msgspec

from sas.adapters.remote import HttpService
from sas.codec import external
from sas.codec.external import Notification
from sas.domain.content import PayloadRef
from sas.domain.messages import Verb
from sas.domain.order import StepRecord, StepState, UndoStatus
from sas.environment import settings_of
from sas.ports import HeldError
from sas.saga import Saga, SagaStep, business_of
from sas.saga.content import decoded, encoded
from sas.testing.own_agents import (
    OURS,
    Late,
    Refusal,
    Script,
    StandIn,
    is_adopters,
)
from sas.testing.plan import Away, Chance, Item, Kill, Plan, Press, Submit
from sas.testing.platform import REPLIES_TO
from sas.testing.play import Played, play
from sas.testing.system import Project, System
from sas.testing.violation import Violation

O = TypeVar("O")  # noqa: E741  the order
R = TypeVar("R")
State: TypeAlias = Literal["Processed", "Compensated", "Error", "Rejected"]
Callbacks: TypeAlias = Mapping[str, object] | Mapping[SagaStep[Any, ..., Any], object]
INSTANCES = 2
__tracebackhide__ = True
"""pytest shows no line of this module where a test fails."""
_NONE: Mapping[str, object] = {}


class StoryError(AssertionError):
    """A function raised an error, or a rule of the pattern was broken. The text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedOrder:
    """What became of an order.

    ``state`` is how it ended: *Processed* (done), *Compensated* (undone), *Error* (it waits for an
    operator) or *Rejected* (it does not fit its type, or the saga's check refused it). ``steps``
    has the state of each step by name. ``reason`` is the code of what went wrong, such as a
    service's code of a refusal or ``timed-out``, and ``message`` its sentence; both are empty if
    nothing did. ``notifications`` are the kinds that its application got. In *Error*, ``needs``
    says what waits for the operator: a step or its undo, the code, and the sentence. ``story``
    tells what happened, a line for each event.
    """

    order_id: str
    state: State
    steps: Mapping[str, str]
    reason: str
    message: str
    notifications: Sequence[str]
    needs: str = field(repr=False)
    story: str = field(repr=False)
    results: Mapping[str, Any] = field(repr=False)

    def result(self, step: SagaStep[Any, ..., R]) -> R:
        """Return the result of a step, in the step's type.

        Raises:
            LookupError: the step has no result.
        """
        if step.name not in self.results:
            raise LookupError(f"step {step.name} of order {self.order_id} has no result")
        value: R = decoded(self.results[step.name], step.shape, f"the result of {step.name}")
        return value


class Kit:
    """Plays orders through the real engine. It is the fixture ``saga`` of the pytest plugin.

    The scheduler, the supervisor, the retries and the queues are the real ones, over a table and
    queues in memory, in two instances. The functions of the saga are the adopter's own. Their
    services are models (``service``). Settings come from the environment, then from
    ``local.settings.json``. A service has no real address here::

        def test_a_refused_payment_leaves_nothing(saga: Kit) -> None:
            bank = saga.service("BANK_URL")
            bank.answer("POST", "/payments", 422, code="no-account")
            order = saga.run(claims, claim, callbacks={"approve": Approval(allowed=Decimal(80))})
            assert order.state == "Compensated"
            assert not bank.effects

    Time is virtual: two days take milliseconds. This is the time of the engine and of
    ``asyncio.sleep`` only: ``datetime.now()`` and ``time.sleep`` are the machine's.

    In every run the rules of the pattern are checked: an effect happens once however often its call
    is repeated, an undone order leaves no effect, nothing is lost. If an assertion of the test
    fails, the report shows the story. Faults are set before ``run``, and hold for every later one.
    Those of a share end two hours after the last wait or outage, so that every order can end.
    """

    def __init__(self, project: Path = Path()) -> None:
        self._project = project
        self._stand_ins: dict[str, StandIn] = {}
        self._faults: list[Item] = []
        self._cancels: list[float] = []
        self._orders = 0
        self._stories: list[str] = []

    @property
    def story(self) -> str:
        """What happened in all runs so far."""
        return "\n".join(self._stories)

    def service(self, setting: str) -> StandIn:
        """Return the model of the service whose address is in this setting."""
        return self._stand_ins.setdefault(setting, StandIn(setting))

    # --- faults ---

    def away(self, setting: str, lasts: timedelta, *, at: timedelta = timedelta(0)) -> None:
        """Take a service away: it does not answer for so long, from ``at`` on.

        A day away takes some seconds if an order waits for it: the engine tries every half minute.
        """
        self.service(setting)
        self._faults.append(Away(at.total_seconds(), lasts.total_seconds(), f"service {setting}"))

    def answers_lost(self, share: float = 0.5) -> None:
        """Let services lose this share of their answers, after the effect."""
        self._faults.append(Chance("lost_answer", share))

    def calls_fail(self, share: float = 0.5) -> None:
        """Let this share of the calls to services fail, before the effect."""
        self._faults.append(Chance("transient", share))

    def calls_hang(self, share: float = 0.5) -> None:
        """Let services take up to a minute for this share of the calls."""
        self._faults.append(Chance("hangs", share))

    def functions_die(self, share: float = 0.05) -> None:
        """Let functions die between any two of their steps, at this share of the places."""
        self._faults.append(Chance("crash", share))

    def every_message_twice(self) -> None:
        """Deliver each message twice at once."""
        self._faults.append(Chance("twice", 1.0))

    def restart(self, *, at: timedelta) -> None:
        """Kill all instances at this time, and start them again."""
        self._faults.append(Kill(at.total_seconds()))

    def cancel(self, *, at: timedelta) -> None:
        """Let an operator cancel the orders at this time after the first was submitted."""
        self._cancels.append(at.total_seconds())

    # --- orders ---

    def run(
        self, saga: Saga[O], order: O, *, callbacks: Callbacks = _NONE, seed: int = 0
    ) -> PlayedOrder:
        """Play an order to its end, and return what became of it.

        ``callbacks`` has the answers to ``Call.wait_for_callback``, by the step or its name: a
        result, a ``Refusal``, or one of them ``Late``. A step that is not named gets no answer, and
        its time runs out. Each run begins at a time of its own; the services remember earlier runs.
        The same ``seed`` plays the same story.

        Raises:
            StoryError: a function raised an error (the text names its line), or a rule is broken.
            TypeError: an order is not of the saga's class, or a callback does not have its type. An
                order with a member that does not fit is *Rejected*, as in production.
            LookupError: there is no such step or service.
        """
        (played,) = self.run_all(saga, [order], callbacks=callbacks, seed=seed)
        return played

    def run_all(
        self, saga: Saga[O], orders: Sequence[O], *, callbacks: Callbacks = _NONE, seed: int = 0
    ) -> list[PlayedOrder]:
        """Play several orders at the same time. They are submitted a second apart. See ``run``."""
        contents = {}
        for order in orders:
            self._orders += 1
            contents[f"O-{self._orders}"] = _order_content(order, saga.order)
        self._check_services(saga)
        script = Script(
            sagas=[saga],
            services=self._stand_ins,
            orders=contents,
            callbacks=_answers(saga, callbacks),
            settings=settings_of(self._project),
        )
        items: list[Item] = [
            Submit(at_s=float(number), order_id=order_id, workflow=saga.name)
            for number, order_id in enumerate(contents)
        ]
        items += self._faults
        items += [
            Press(at_s=at_s, order_id=order_id, verb=Verb.CANCEL)
            for at_s in self._cancels
            for order_id in contents
        ]
        project = Project.of(business_of([saga]).workflows, self._project, script)
        played = play(project, Plan(seed, INSTANCES, tuple(items)), tell=True)
        self._stories += played.story
        if played.violations:
            raise StoryError(_sentences(played.violations)) from _trimmed(played.error)
        return [_order(played, order_id) for order_id in contents]

    def _check_services(self, saga: Saga[Any]) -> None:
        """Refuse a service that no function can call: it is a slip of the pen."""
        names = sorted({service.setting for service in saga.services})
        if self._stand_ins.keys() <= set(names):
            return
        others = {thing.setting for thing in gc.get_objects() if type(thing) is HttpService}
        unknown = sorted(self._stand_ins.keys() - others)
        if unknown:
            raise LookupError(
                f"there is no service {unknown[0]}: saga {saga.name!r} has {', '.join(names)}"
            )


def _order_content(order: object, shape: Any) -> Any:
    """Return an order as JSON holds it. If it is of its class, submission says whether it fits."""
    if (get_origin(shape) or shape) not in type(order).__mro__:
        return _content(order, shape, "the order")
    try:
        return msgspec.json.decode(msgspec.json.encode(order))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"the order cannot be sent as JSON: {error}") from None


def _content(value: object, shape: Any, what: str) -> Any:
    try:
        return encoded(value, shape, what)
    except HeldError as error:
        raise TypeError(str(error)) from None


def _answers(saga: Saga[Any], callbacks: Callbacks) -> dict[str, object]:
    """Return the answers by the names of steps, as JSON holds results."""
    shapes = {place.step.name: place.step.shape for place in saga.places}
    answers: dict[str, object] = {}
    for step, answer in callbacks.items():
        name = step.name if isinstance(step, SagaStep) else step
        if name not in shapes:
            raise LookupError(
                f"saga {saga.name!r} has no step {name!r}: it has {', '.join(shapes)}"
            )
        late = answer if isinstance(answer, Late) else None
        result = late.answer if late else answer
        if not isinstance(result, Refusal):
            result = _content(result, shapes[name], f"the callback of {name}")
        answers[name] = Late(result, late.after) if late else result
    return answers


def _sentences(violations: Sequence[Violation]) -> str:
    """Return what is wrong. Mistakes of a function are told once each, and without what follows."""
    mistakes: dict[str, str] = {}
    for violation in violations:
        if violation.about:
            mistakes.setdefault(violation.about, violation.text)
    return "\n".join(mistakes.values() or dict.fromkeys(map(str, violations)))


def _trimmed(error: Exception | None) -> Exception | None:
    """Return an error with a traceback that begins at the adopter's own code, without ours."""
    if error is None:
        return None
    traces: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_adopters(file) or (traces and not file.startswith(OURS)):
            traces.append(trace)
        trace = trace.tb_next
    for trace, next_trace in zip_longest(traces, traces[1:]):
        trace.tb_next = next_trace
    return error.with_traceback(traces[0] if traces else None)


def _order(played: Played, order_id: str) -> PlayedOrder:
    system = played.system
    assert system is not None  # noqa: S101  a script was played
    stored = system.store.orders.get(order_id)
    steps = stored.order.steps if stored else ()
    events = _notifications(system, order_id)
    errors = [event.data.error for event in events if event.data.error is not None]
    results = {}
    for step in steps:
        text: str | bytes | None
        match step.result:
            case PayloadRef() as reference:
                text = system.store.payloads[order_id][reference.sha256]
            case text:
                pass
        if text is not None:
            results[step.name] = msgspec.json.decode(text)
    state: Any = stored.order.process_state.value if stored else "Rejected"
    return PlayedOrder(
        order_id=order_id,
        state=state,
        steps={step.name: step.process_state.value for step in steps},
        reason=errors[0].code if errors else "",
        message=errors[0].message if errors else "",
        notifications=[str(external.notice_of(event.type)) for event in events],
        needs="; ".join(map(_need, filter(_is_in_error, steps))),
        story="\n".join(played.story),
        results=results,
    )


def _is_in_error(step: StepRecord) -> bool:
    return step.process_state is StepState.ERROR


def _need(step: StepRecord) -> str:
    verb = "the undo of step" if step.undo is UndoStatus.FAILED else "step"
    code, message = (step.error.code, step.error.message) if step.error else ("", "")
    return f"{verb} {step.name} failed ({code}): {message}"


def _notifications(system: System, order_id: str) -> list[Notification]:
    """Return the notifications of an order, each once."""
    events = [
        external.decode_notification(message.body) for message in system.bus.messages(REPLIES_TO)
    ]
    unique = {event.id: event for event in events}
    return [event for event in unique.values() if event.data.order_id == order_id]
