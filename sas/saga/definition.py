"""The decorators: they take functions, and check them.

``SagaStep`` is generic in the order, in the results that its function takes, and in its own result.
So a type checker compares each function with the steps before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from sas.adapters.remote import HttpService, ServiceOptions
from sas.domain import workflow as domain
from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, WorkflowError
from sas.ports import LIMIT_MAX
from sas.saga.call import Call
from sas.saga.content import Kept, no_json, no_object, shown
from sas.saga.functions import Function, fits, function_of

O = TypeVar("O")  # noqa: E741  the order
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")


class StepOptions(TypedDict, total=False):
    """The options of ``Saga.step``, which says what they mean."""

    name: str
    agent: str
    limit: int
    inline: bool
    time_allowed: timedelta
    undo_time_allowed: timedelta
    drain_time: timedelta
    failures_max: int
    backoff: Backoff
    extended_wait: ExtendedWait


_OF_FUNCTION = ("name", "agent", "limit", "inline")
"""The options that belong to a step's function, and not to its place in a saga."""
_OF_UNDO = ("undo_time_allowed", "drain_time")


@dataclass(eq=False, kw_only=True, slots=True)
class Action(Generic[O, R]):
    """What one agent does for a step, and how it undoes that."""

    agent: str
    do: Function
    back: Function | None = None
    limit: int = 0
    inline: bool = False

    def __post_init__(self) -> None:
        """Refuse a wrong option, also of an alternative."""
        if type(self.limit) is not int or not 0 <= self.limit <= LIMIT_MAX:
            text = f"limit={self.limit!r}: give a whole number from 1 to {LIMIT_MAX}"
            raise WorkflowError(f"{self.do.where}: {text}")
        if type(self.inline) is not bool:
            raise WorkflowError(f"{self.do.where}: inline={self.inline!r}: give True or False")

    @overload
    def undo(self, function: Callable[[Call[O], R | None], Any], /) -> None: ...
    @overload
    def undo(self, function: Callable[[Call[O]], Any], /) -> None: ...
    def undo(self, function: Callable[..., Any], /) -> None:
        """Undo the step with this function. A decorator: ``@scan.undo``.

        It takes the call and the step's result, which is None if it is unknown, or the call alone.
        The call has the key of the step. It also undoes a call that may still arrive.

        Raises:
            WorkflowError: its parameters do not fit the step, or the step has an undo already.
        """
        undo = function_of(function, is_undo=True)
        if self.back is not None:
            raise WorkflowError(f"{undo.where}: {self.do.where} has an undo already")
        if len(undo.parameters) > 1 or not all(
            fits(parameter.shape, self.do.result) and fits(parameter.shape, type(None))
            for parameter in undo.parameters
        ):
            raise WorkflowError(
                f"{undo.where}: an undo takes the call, and the result if it needs it: "
                f"{shown(self.do.result)} | None"
            )
        if undo.order != self.do.order:
            raise WorkflowError(
                f"{undo.where}: its call is Call[{shown(undo.order)}], and the one of "
                f"{self.do.where} is Call[{shown(self.do.order)}]"
            )
        self.back = undo


@dataclass(eq=False, kw_only=True, slots=True)
class SagaStep(Action[O, R], Kept[R], Generic[O, P, R]):
    """A step: a function, and what belongs to it wherever it is used.

    It can be a step of several sagas: write ``@second.step(...)`` above ``@first.step(...)``.
    """

    name: str
    others: list[Action[O, R]]

    @property
    def shape(self) -> Any:
        """The type of its result."""
        return self.do.result

    def alternative(
        self, *, agent: str, limit: int = 0, inline: bool = False
    ) -> Callable[[Callable[Concatenate[Call[O], P], Awaitable[R] | R]], Action[O, R]]:
        """Let another agent do the step while the circuit of the first one is open.

        A decorator. The function takes and returns what the step's function does. What it returns
        has an ``undo`` too: a step is undone by the agent that did it.

        Raises:
            WorkflowError: the function takes or returns something else.
        """

        def decorate(
            function: Callable[Concatenate[Call[O], P], Awaitable[R] | R],
        ) -> Action[O, R]:
            do = function_of(function)
            same = [parameter.shape for parameter in self.do.parameters]
            if (do.result, do.order) != (self.do.result, self.do.order) or same != [
                parameter.shape for parameter in do.parameters
            ]:
                raise WorkflowError(
                    f"{do.where}: an alternative takes and returns what {self.do.where} does"
                )
            other: Action[O, R] = Action(agent=agent, do=do, limit=limit, inline=inline)
            self.others.append(other)
            return other

        return decorate


AnyStep = SagaStep[Any, ..., Any]
_S: TypeAlias = SagaStep[O, ..., Any]
Many: TypeAlias = tuple[_S[O], _S[O], _S[O], _S[O], _S[O], _S[O], _S[O], *tuple[_S[O], ...]]
"""Seven steps or more. A checker compares the results of up to six; the import all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """A step's place in a saga."""

    step: AnyStep
    after: Sequence[AnyStep]
    options: StepOptions


class StepDecorator(Generic[O, P]):
    """Takes the function of a step whose predecessors have these results."""

    def __init__(self, saga: Saga[O], after: Sequence[AnyStep], options: StepOptions) -> None:
        self._saga = saga
        self._after = after
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[Call[O], P], Awaitable[R]], /
    ) -> SagaStep[O, P, R]: ...
    @overload
    def __call__(self, function: SagaStep[O, P, R], /) -> SagaStep[O, P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Call[O], P], R], /) -> SagaStep[O, P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Add the step to the saga.

        Raises:
            WorkflowError: the function does not fit the steps before it.
        """
        options = self._options
        if isinstance(function, SagaStep):
            twice = [name for name in _OF_FUNCTION if name in options]
            if twice:
                raise WorkflowError(
                    f"{function.do.where}: give {twice[0]} in its lowest decorator, because it "
                    "belongs to the function"
                )
            step: AnyStep = function
        else:
            do = function_of(function)
            unknown = sorted({*options} - {*StepOptions.__annotations__})
            if unknown:
                raise WorkflowError(
                    f"{do.where}: a step has no option {unknown[0]}: the options are after, "
                    f"{', '.join(StepOptions.__annotations__)}"
                )
            name = options.get("name") or do.run.__name__.strip("_").replace("_", "-")
            step = SagaStep(
                name=name,
                agent=options.get("agent") or name,
                do=do,
                limit=options.get("limit", 0),
                inline=options.get("inline", False),
                others=[],
            )
        self._saga.add(StepPlace(step=step, after=self._after, options=options))
        return step


class Saga(Generic[O]):
    """A workflow whose steps succeed or fail as one: an order is completed, or it is undone.

    ``name`` and ``version`` are what orders name. ``order`` is the type of an order's content, a
    ``msgspec.Struct`` or a dataclass. ``check`` gets each order that is submitted, and raises
    ValueError with the sentence that the application gets. After any other error, which is a bug,
    the order waits for the deploy that mends it.

    With ``OnFailure.HOLD`` a failed order waits for an operator, and is not undone. ``deadline`` is
    the time allowed for the whole order: an order past it is undone, or with HOLD an operator is
    alerted. With ``notify_steps`` the application is notified of each step that took effect. If no
    scheduler claims a ready step within ``pickup``, one is woken again; after ``alert_after`` an
    operator is alerted.

    Raises:
        WorkflowError: the definition is wrong. The text names the function.
    """

    def __init__(  # noqa: PLR0913  each is an option
        self,
        name: str,
        order: type[O],
        *,
        version: int = 1,
        check: Callable[[O], None] | None = None,
        on_failure: OnFailure = OnFailure.UNDO,
        notify_steps: bool = False,
        deadline: timedelta | None = None,
        pickup: timedelta = timedelta(seconds=30),
        alert_after: timedelta = timedelta(minutes=10),
    ) -> None:
        problem = no_json(order) or no_object(order)
        if problem:
            raise WorkflowError(
                f"saga {name!r}: its orders cannot be read as {shown(order)} ({problem}): give a "
                "msgspec.Struct or a dataclass"
            )
        self.name = name
        self.order = order
        self.check = check
        self.services: list[HttpService] = []
        self.places: list[StepPlace] = []
        self.version = version
        self._rest: dict[str, Any] = {
            "on_failure": on_failure,
            "notify_steps": notify_steps,
            "deadline": deadline,
            "pickup": pickup,
            "alert_after": alert_after,
        }

    def service(self, setting: str, **options: Unpack[ServiceOptions]) -> HttpService:
        """Return a remote service whose address is in a setting. The app does not start without it.

        Args:
            setting: the name of the setting: an environment variable.
            name: what errors call the service. Default: the setting without ``_URL``.
            attempt_seconds: the time for one attempt. Default: 30.
            headers: an async function that returns the headers that sign in, before each attempt.
            tls: an ``ssl.SSLContext``, for example with a client certificate.
        """
        service = HttpService(setting, **options)
        self.services.append(service)
        return service

    @overload
    def step(
        self, *, after: tuple[()] = (), **options: Unpack[StepOptions]
    ) -> StepDecorator[O, []]: ...
    @overload
    def step(
        self, *, after: SagaStep[O, ..., A], **options: Unpack[StepOptions]
    ) -> StepDecorator[O, [A]]: ...
    @overload
    def step(
        self, *, after: tuple[SagaStep[O, ..., A]], **options: Unpack[StepOptions]
    ) -> StepDecorator[O, [A]]: ...
    @overload
    def step(
        self,
        *,
        after: tuple[SagaStep[O, ..., A], SagaStep[O, ..., B]],
        **options: Unpack[StepOptions],
    ) -> StepDecorator[O, [A, B]]: ...
    @overload
    def step(
        self,
        *,
        after: tuple[SagaStep[O, ..., A], SagaStep[O, ..., B], SagaStep[O, ..., C]],
        **options: Unpack[StepOptions],
    ) -> StepDecorator[O, [A, B, C]]: ...
    @overload
    def step(
        self,
        *,
        after: tuple[
            SagaStep[O, ..., A], SagaStep[O, ..., B], SagaStep[O, ..., C], SagaStep[O, ..., D]
        ],
        **options: Unpack[StepOptions],
    ) -> StepDecorator[O, [A, B, C, D]]: ...
    @overload
    def step(
        self,
        *,
        after: tuple[
            SagaStep[O, ..., A],
            SagaStep[O, ..., B],
            SagaStep[O, ..., C],
            SagaStep[O, ..., D],
            SagaStep[O, ..., E],
        ],
        **options: Unpack[StepOptions],
    ) -> StepDecorator[O, [A, B, C, D, E]]: ...
    @overload
    def step(
        self,
        *,
        after: tuple[
            SagaStep[O, ..., A],
            SagaStep[O, ..., B],
            SagaStep[O, ..., C],
            SagaStep[O, ..., D],
            SagaStep[O, ..., E],
            SagaStep[O, ..., F],
        ],
        **options: Unpack[StepOptions],
    ) -> StepDecorator[O, [A, B, C, D, E, F]]: ...
    @overload
    def step(self, *, after: Many[O], **options: Unpack[StepOptions]) -> StepDecorator[O, ...]: ...
    def step(self, *, after: Any = (), **options: Unpack[StepOptions]) -> Any:
        """Make a function a step of this saga: a decorator.

        Args:
            after: the steps that must be done first, in the order of the function's parameters.
                Without it the step begins at once, in parallel to others.
            time_allowed: for the step with all its retries. Default: a minute. A step that goes on
                later or waits for a callback gets more.
            failures_max: after so many timeouts the step is tried once more, then it fails.
                Default: 3.
            backoff: a rest between timeouts: ``Backoff(first=timedelta(seconds=10))``. Default:
                none.
            extended_wait: long rests past ``failures_max``: ``ExtendedWait(timedelta(hours=1))``.
                Default: none.
            undo_time_allowed: for its undo. Default: ``time_allowed``.
            drain_time: how long a call may still arrive at a service that cannot refuse a key after
                its undo. The undo waits for that time. Default: the service can.
            name: the step's name in orders and messages. Default: that of the function, with
                hyphens.
            agent: steps that call the same service share an agent: a queue, two functions, a
                circuit breaker. Default: the step's name.
            limit: how many calls of the agent may be in flight, over all instances. Default: any
                number.
            inline: its service answers within milliseconds, so it is called at once and not by a
                queue. Default: False.

        The last four belong to the function: a step of several sagas has them in its lowest
        decorator. The others belong to each saga.

        Raises:
            WorkflowError: the function does not fit.
        """
        before = (after,) if isinstance(after, SagaStep) else tuple(after)
        strange = [step for step in before if not isinstance(step, SagaStep)]
        if strange:
            raise WorkflowError(
                f"saga {self.name!r}: after={strange[0]!r} is not a step: name functions that are "
                "steps, as in after=(scan, reserve)"
            )
        return StepDecorator[Any, ...](self, before, options)

    def add(self, place: StepPlace) -> None:
        """Add a step. ``StepDecorator`` calls this.

        Raises:
            WorkflowError: it does not fit the steps before it.
        """
        do = place.step.do
        if do.order != self.order:
            raise WorkflowError(
                f"{do.where}: its call is Call[{shown(do.order)}], and the orders of saga "
                f"{self.name!r} are {shown(self.order)}: sagas that share a step have one type of "
                "orders"
            )
        earlier = [other.step for other in self.places]
        for step in place.after:
            if step not in earlier:
                raise WorkflowError(
                    f"{do.where} comes after {step.name}, which is not a step of saga {self.name!r}"
                )
        if place.step in earlier:
            raise WorkflowError(f"{do.where} is a step of saga {self.name!r} already")
        for step in earlier:
            if step.name == place.step.name:
                raise WorkflowError(
                    f"{do.where}: {step.do.where} is the step {step.name!r} of saga {self.name!r} "
                    "already: give another name="
                )
        if len(do.parameters) != len(place.after):
            names = ", ".join(step.name for step in place.after) or "no step"
            raise WorkflowError(
                f"{do.where} takes {len(do.parameters)} results, and it comes after {names}: give "
                "it a parameter for each step in `after`"
            )
        for parameter, step in zip(do.parameters, place.after, strict=True):
            if not fits(parameter.shape, step.shape):
                raise WorkflowError(
                    f"{do.where}: its parameter {parameter.name} is {shown(parameter.shape)}, and "
                    f"the result of {step.name} is {shown(step.shape)}"
                )
        self.places.append(place)
        self._check_options(place)

    def _check_options(self, place: StepPlace) -> None:
        """Refuse a name, a time or a number that is out of bounds, with the function's name."""
        try:
            data = domain.Step(
                place.step.name,
                agent=place.step.agent,
                undo=_undo_of(place.options),
                **_rules_of(place.options),
            )
            domain.Workflow(self.name, version=self.version, steps=(data,), **self._rest)
        except WorkflowError as error:
            self.places.remove(place)
            raise WorkflowError(f"{place.step.do.where}: {error}") from None

    def before(self, place: StepPlace) -> list[AnyStep]:
        """Return the steps that come before a step, directly or through others."""
        before = list(place.after)
        for other in reversed(self.places[: self.places.index(place)]):
            if other.step in before:
                before += [step for step in other.after if step not in before]
        return before

    def _needed(self, place: StepPlace) -> list[AnyStep]:
        """Return the steps in ``after``, without those that another one of them waits for."""
        places = {other.step.name: other for other in self.places}
        return [
            step
            for step in place.after
            if not any(step in self.before(places[other.name]) for other in place.after)
        ]

    def _check_named(self, place: StepPlace) -> None:
        """Refuse a function that asks for the result of a step that does not come before it."""
        before = self.before(place)
        steps = [other.step for other in self.places]
        for function in (place.step.do, place.step.back):
            if function is None or not function.mentions("result"):
                continue
            for step in function.named(SagaStep):
                if step in steps and step not in (*before, place.step):
                    raise WorkflowError(
                        f"{function.where} asks for the result of {step.name}, which does not come "
                        f"before {place.step.name}: name it in `after`"
                    )

    @property
    def workflow(self) -> domain.Workflow:
        """The workflow as data.

        Raises:
            WorkflowError: a name, a time or a number is out of bounds.
        """
        if not self.places:
            raise WorkflowError(f"saga {self.name!r} has no step: write @{self.name}.step()")
        for place in self.places:
            self._check_named(place)
        steps = tuple(_as_data(place, self._needed(place)) for place in self.places)
        return domain.Workflow(self.name, version=self.version, steps=steps, **self._rest)


def _as_data(place: StepPlace, needed: Sequence[AnyStep]) -> domain.Step:
    step, options = place.step, place.options
    actions = (step, *step.others)
    undo = None
    if any(action.back for action in actions):
        bare = [action for action in actions if action.back is None]
        if bare:
            raise WorkflowError(f"{bare[0].do.where} has no undo, and the other agents have one")
        undo = _undo_of(options)
    else:
        pointless = [name for name in _OF_UNDO if name in options]
        if pointless:
            raise WorkflowError(f"{step.do.where} has {pointless[0]} and no undo")
    return domain.Step(
        step.name,
        agent=step.agent,
        after=tuple(earlier.name for earlier in needed),
        undo=undo,
        alternatives=tuple(other.agent for other in step.others),
        **_rules_of(options),
    )


def _undo_of(options: StepOptions) -> domain.Undo:
    allowed = options.get("time_allowed", timedelta(seconds=60))
    return domain.Undo(
        time_allowed=options.get("undo_time_allowed", allowed),
        drain_time=options.get("drain_time"),
    )


def _rules_of(options: StepOptions) -> dict[str, Any]:
    """Return the options that the step of a workflow has too, by the same names."""
    other = (*_OF_FUNCTION, *_OF_UNDO)
    return {name: value for name, value in options.items() if name not in other}
