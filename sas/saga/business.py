"""From sagas to the business that the engine knows: workflows as data, and an agent for each name.

An agent gets requests of several workflows. It finds the function by the names of the workflow and
the step.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import ModuleType
from typing import Any

from sas.adapters.remote import HttpService
from sas.codec.strict import convert
from sas.config import SettingError
from sas.domain.workflow import WorkflowError, Workflows
from sas.ports import LIMIT_MAX, AgentCall, Business, PayloadCodec
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
    workflows = Workflows(saga.workflow for saga in all_sagas)
    agents: dict[str, SagaAgent] = {}
    for saga in all_sagas:
        for place in saga.places:
            for action in (place.step, *place.step.others):
                agent = agents.setdefault(action.agent, SagaAgent(name=action.agent))
                agent.add(saga, place, action)
    services = [service for saga in all_sagas for service in saga.services]
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
    for saga in sagas:
        for service in saga.services:
            try:
                service.address()
            except LookupError as error:
                raise SettingError(str(error)) from None
        for place in saga.places:
            for action in (place.step, *place.step.others):
                for function in filter(None, (action.do, action.back)):
                    _check_callbacks(function)


def _check_callbacks(function: Function) -> None:
    for setting in ("SAS_CALLBACK_KEY", "SAS_CALLBACK_URL"):
        if function.mentions("callback", "wait_for_callback") and not os.environ.get(setting):
            raise SettingError(
                f"{setting} is missing, and {function.where} asks for a callback: set it "
                "(docs/settings.md)"
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
    place: StepPlace
    action: Action[Any, Any]

    def is_same(self, other: _Entry) -> bool:
        """Return whether a request need not say for which of the two it is."""
        before = [step.name for step in self.place.after]
        return self.action is other.action and before == [step.name for step in other.place.after]


@dataclass(eq=False, kw_only=True)
class SagaAgent:
    """The functions of one agent. It is a ``sas.ports.Agent``."""

    name: str
    limit: int = 0
    inline: bool = False
    services: Sequence[HttpService] = ()
    _entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)

    def add(self, saga: Saga[Any], place: StepPlace, action: Action[Any, Any]) -> None:
        """Add what this agent does for a step.

        Raises:
            WorkflowError: another version of the saga has another function for it, two steps
                contradict each other about the agent, or a limit is out of bounds.
        """
        entry = _Entry(place, action)
        first_entry = self._entries.setdefault((saga.name, place.step.name), entry)
        if not entry.is_same(first_entry):
            raise WorkflowError(
                f"{action.do.where}: another version of saga {saga.name!r} has a step "
                f"{place.step.name} of agent {self.name} with another function or other "
                f'predecessors: give the new one agent="{self.name}-2"'
            )
        if not isinstance(action.limit, int) or not 0 <= action.limit <= LIMIT_MAX:
            raise WorkflowError(
                f"{action.do.where}: limit={action.limit!r}: give a whole number from 1 to "
                f"{LIMIT_MAX}"
            )
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
        return self._entries[workflow, step].action.do

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
            await self._run(function, typed(call, function.order), *arguments)
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
        return self._entries[call.workflow, call.step]

    async def _run(self, function: Function, *arguments: object) -> Any:
        """Run a function; one that is not ``async def`` in a thread, which cannot be stopped."""
        if function.is_async:
            return await function.run(*arguments)
        context = contextvars.copy_context()  # carries the current trace into the thread
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, function.run, *arguments)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=self.name)
