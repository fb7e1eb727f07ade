"""From sagas to the business that the engine knows: workflows as data, and an agent for each name.

An agent gets requests of several workflows. It finds the function by the names of the workflow and
the step.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any

from sas.adapters.remote import HttpService
from sas.codec.strict import convert
from sas.config import SettingError
from sas.domain.workflow import SMOKE, WorkflowError, Workflows
from sas.ports import AgentCall, Business, PayloadCodec
from sas.saga.call import LaterError, result_of, typed
from sas.saga.content import decoded, encoded
from sas.saga.definition import Action, Saga, StepPlace
from sas.saga.functions import Function

THREADS_MAX = 32
"""Most functions that are not ``async def`` and run at once, for each agent."""


def business_of(sagas: Iterable[Saga[Any]], codec: PayloadCodec | None = None) -> Business:
    """Return the business of an app.

    Raises:
        WorkflowError: two sagas contradict each other.
    """
    all_sagas = tuple(sagas)
    strange = [saga for saga in all_sagas if not isinstance(saga, Saga)]
    if strange:
        raise WorkflowError(f"{strange[0]!r} is not a saga: give sagas, as in function_app(claims)")
    if any(saga.name == SMOKE.name for saga in all_sagas):
        raise WorkflowError(
            f"the saga {SMOKE.name!r} has the name of the test after a deployment: give it another"
        )
    workflows = Workflows(saga.workflow for saga in all_sagas)
    agents: dict[str, SagaAgent] = {}
    for saga in all_sagas:
        for place in saga.places:
            for action in (place.step, *place.step.others):
                agent = agents.setdefault(action.agent, SagaAgent(name=action.agent))
                agent.add(saga, place, action)
    services = _services_of(all_sagas)
    for agent in agents.values():
        agent.services = services
    return Business(
        workflows=workflows,
        agents=agents,
        checks={(saga.name, saga.version): _check_of(saga) for saga in all_sagas},
        limits={name: agent.limit for name, agent in agents.items() if agent.limit},
        inline=[name for name, agent in agents.items() if agent.inline],
        settings=list(dict.fromkeys(s.setting for s in services if s.has_setting)),
        results={(saga.name, saga.version): _checks_of_results(saga) for saga in all_sagas},
        codec=codec,
    )


def with_smoke(business: Business) -> Business:
    """Return the business of a function app: it also has the workflow that tests a deployment."""
    return replace(business, workflows=Workflows((*business.workflows, SMOKE)))


def _checks_of_results(saga: Saga[Any]) -> Mapping[str, Callable[[bytes], object]]:
    return {place.step.name: partial(convert, shape=place.step.shape) for place in saga.places}


def sagas_of(module: ModuleType) -> list[Saga[Any]]:
    """Return the sagas of a module."""
    return [member for member in vars(module).values() if isinstance(member, Saga)]


def check_settings(sagas: Iterable[Saga[Any]]) -> None:
    """Check the settings that the functions of sagas need.

    Raises:
        SettingError: the address of a service is missing, or a step asks for a callback and a
            setting of callbacks is missing.
    """
    all_sagas = tuple(sagas)
    for service in _services_of(all_sagas):
        try:
            service.address()
        except LookupError as error:
            raise SettingError(str(error)) from None
    for function in _functions_of(all_sagas):
        _check_callbacks(function)


def _functions_of(sagas: Iterable[Saga[Any]]) -> list[Function]:
    return [
        function
        for saga in sagas
        for place in saga.places
        for action in (place.step, *place.step.others)
        for function in (action.do, action.back)
        if function is not None
    ]


def _services_of(sagas: Sequence[Saga[Any]]) -> list[HttpService]:
    """Return the services of sagas, and those that a step names which it shares with others."""
    services = [service for saga in sagas for service in saga.services]
    for function in _functions_of(sagas):
        services += function.named(HttpService)
    return list(dict.fromkeys(services))


def _check_callbacks(function: Function) -> None:
    for setting in ("SAS_CALLBACK_KEY", "SAS_CALLBACK_URL"):
        if function.mentions("callback", "wait_for_callback") and not os.environ.get(setting):
            raise SettingError(
                f"{setting} is missing, and {function.where} asks for a callback: set it "
                "(sas docs settings)"
            )


def _check_of(saga: Saga[Any]) -> Callable[[bytes], object]:
    """Return the check of an order's content."""

    def check(payload: bytes) -> object:
        order = convert(payload, saga.order)
        if saga.check is not None:
            saga.check(order)
        return order

    return check


@dataclass(frozen=True, slots=True)
class _Entry:
    """What an agent does for a step of a saga. ``before`` are the steps whose results it gets."""

    place: StepPlace
    action: Action[Any, Any]
    before: frozenset[str]


class EscapedError(Exception):
    """What is no ordinary error left a function: a mistake in it, like any other."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} left the function: {error}")
        self.__traceback__ = error.__traceback__


def _first(group: BaseExceptionGroup[LaterError]) -> LaterError:
    error = group.exceptions[0]
    return error if isinstance(error, LaterError) else _first(error)


@dataclass(eq=False, kw_only=True)
class SagaAgent:
    """The functions of one agent. It is a ``sas.ports.Agent``."""

    name: str
    limit: int = 0
    inline: bool = False
    services: Sequence[HttpService] = ()
    _entries: dict[tuple[str, str], list[_Entry]] = field(default_factory=dict)
    """By saga and step. Versions that share a step may have other steps before it."""

    def add(self, saga: Saga[Any], place: StepPlace, action: Action[Any, Any]) -> None:
        """Add what this agent does for a step.

        Raises:
            WorkflowError: another version of the saga has another function for it, or two steps
                contradict each other about the agent.
        """
        before = frozenset(step.name for step in saga.before(place))
        entry = _Entry(place, action, before)
        entries = self._entries.setdefault((saga.name, place.step.name), [])
        if any(other.action is not action for other in entries):
            raise WorkflowError(
                f"{action.do.where}: another version of saga {saga.name!r} has another function "
                f"for the step {place.step.name} of agent {self.name}: give the new function "
                f'agent="{self.name}-2"'
            )
        after = [step.name for step in place.after]
        for other in entries:
            if other.before == before and [step.name for step in other.place.after] != after:
                raise WorkflowError(
                    f"{action.do.where}: another version of saga {saga.name!r} has the same steps "
                    "before it, and others in `after`: write the new one as a function of its own, "
                    f'with agent="{self.name}-2"'
                )
        entries.append(entry)
        for option in ("limit", "inline"):
            value, mine = getattr(action, option), getattr(self, option)
            if value and mine and value != mine:
                raise WorkflowError(
                    f"{action.do.where}: {option}={value!r}, and another step of agent "
                    f"{self.name} has {mine!r}: give it once"
                )
            setattr(self, option, value or mine)

    def function(self, workflow: str, step: str) -> Function:
        """Return the function of a step."""
        return self._entries[workflow, step][0].action.do

    async def do(self, call: AgentCall) -> Any:
        """Run the function of a step; see ``sas.ports.Agent``."""
        entry = self._entry(call)
        function = entry.action.do
        results: list[Any] = [
            result_of(step, call.results.get(step.name)) for step in entry.place.after
        ]
        try:
            result = await self._run(function, typed(call, function.order), *results)
        except LaterError as wait:
            return wait.later
        return encoded(result, function.result, f"what {function.run.__name__} returned")

    async def undo(self, call: AgentCall) -> Any:
        """Run the undo of a step; see ``sas.ports.Agent``."""
        entry = self._entry(call)
        function = entry.action.back
        if function is None:
            return None
        arguments: list[Any] = []
        if function.parameters:
            step, result = entry.place.step, call.own_result
            if result is not None:
                result = decoded(result, step.shape, f"the result of {step.name}")
            arguments = [result]
        try:
            await self._run(function, typed(call, function.order, undoing=True), *arguments)
        except LaterError as wait:
            return wait.later
        return None

    async def close(self) -> None:
        """Close the connections of the services, and let the threads go."""
        for service in self.services:
            await service.close()
        if "_threads" in self.__dict__:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _entry(self, call: AgentCall) -> _Entry:
        """Return the entry of a request: the one whose earlier steps fit its results best.

        A step that was skipped may have no result.
        """
        entries = self._entries[call.workflow, call.step]
        return min(entries, key=lambda entry: len(entry.before ^ call.results.keys()))

    async def _run(self, function: Function, *arguments: object) -> Any:
        """Run a function; one that is not ``async def`` in a thread, which cannot be stopped.

        Raises:
            LaterError: the step has not ended yet.
            EscapedError: a cancellation or an exit left the function, which would end our own task.
        """
        try:
            if function.is_async:
                return await function.run(*arguments)
            context = contextvars.copy_context()  # carries the current trace into the thread
            loop = asyncio.get_running_loop()
            work = partial(context.run, function.run, *arguments)
            result: Any = await loop.run_in_executor(self._threads, work)
            return await result if inspect.isawaitable(result) else result
        except BaseExceptionGroup as group:
            later, others = group.split(LaterError)
            if later is not None and others is None:
                raise _first(later) from None
            raise EscapedError(group) from group
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EscapedError(error) from error
        except SystemExit as error:
            raise EscapedError(error) from error

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=self.name)
