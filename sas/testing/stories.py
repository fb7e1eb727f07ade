"""Stories that ``sas sim`` plays: orders, callbacks and faults that a seed draws.

A story is played with the kit, so it can be printed as a test. Its orders and callbacks are drawn
from the types of its saga. Every tenth story has no fault. Every sixth cancels an order while a
request of one step is on its way. These stories take the steps that have an undo in turn.
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec

from sas.saga import Saga
from sas.saga.content import shown
from sas.testing.kit import Kit, StoryError
from sas.testing.own_agents import Late, Refusal, bug_of_check
from sas.testing.shapes import UndrawableError, drawn

TRIES = 30
"""How many orders are drawn until one passes the saga's check."""
ORDERS = (1, 1, 1, 2, 3)
TIMES_S = (10.0, 180.0, 3600.0, 2 * 86_400.0)
"""Within these times faults begin: most early, some after a long wait."""
TIME_WEIGHTS = (30, 50, 10, 10)
OUTAGES_S = ((1, 20), (20, 180), (180, 2400), (3600, 8 * 3600))
OUTAGE_WEIGHTS = (6, 8, 5, 1)
LATE_S = 4 * 86_400


class NoOrderError(Exception):
    """No order for a saga can be drawn. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class StoryFault:
    """One call of a method of the kit, or of the stand-in of a service."""

    method: str
    values: Sequence[Any] = ()
    _: KW_ONLY
    named: Mapping[str, Any] = field(default_factory=dict)
    service: str | None = None

    def add_to(self, kit: Kit) -> None:
        """Let it happen in what the kit plays."""
        target: object = kit if self.service is None else kit.service(self.service)
        getattr(target, self.method)(*self.values, **self.named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Orders of a saga, with their callbacks and faults."""

    seed: int
    saga: Saga[Any]
    orders: Sequence[Any]
    callbacks: Mapping[str, object]
    faults: Sequence[StoryFault]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a story: the saga and the state of each order; or what was wrong.

    ``needs`` has the saga of each order in *Error*, and what waits for the operator.
    """

    seed: int
    ends: Sequence[tuple[str, str]]
    text: Sequence[str]
    needs: Sequence[tuple[str, str]] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stories:
    """The stories of an application. ``examples`` are contents of orders, as JSON holds them."""

    module: ModuleType
    sagas: Sequence[Saga[Any]]
    directory: Path
    examples: Sequence[bytes] = ()

    def story(self, seed: int) -> Story:
        """Return the story of a seed.

        Raises:
            NoOrderError: there is no order for its saga.
        """
        rng = random.Random(f"story {seed}")  # noqa: S311  it repeats itself
        if seed % 6 == 5 and (undoable := _undoable(self.sagas)):
            return self._cancelled(seed, *undoable[seed // 6 % len(undoable)], rng)
        saga = self.sagas[seed % len(self.sagas)]
        orders = [self._order(saga, rng) for _ in range(rng.choice(ORDERS))]
        return Story(
            seed=seed,
            saga=saga,
            orders=orders,
            callbacks=_callbacks(saga, rng, is_calm=seed % 10 == 0),
            faults=[] if seed % 10 == 0 else _faults(self._settings(), rng),
        )

    def _cancelled(self, seed: int, saga: Saga[Any], step: str, rng: random.Random) -> Story:
        """Return a story whose only fault is a cancel while a step's last request is on its way."""
        story = Story(
            seed=seed,
            saga=saga,
            orders=[self._order(saga, rng)],
            callbacks=_callbacks(saga, rng, is_calm=True),
            faults=[],
        )
        kit = Kit(self.directory)
        self._play(kit, story)
        services = kit._stand_ins.values()  # noqa: SLF001  also those that no saga here declares
        times = [call.at for service in services for call in service.calls if call.step == step]
        if not times:
            return story
        at = timedelta(seconds=math.ceil(max(times).total_seconds() * 100) / 100)
        return replace(story, faults=[StoryFault("cancel", named={"at": at})])

    def play(self, story: Story) -> Result:
        """Play a story. The same story ends in the same way."""
        return self._play(Kit(self.directory), story)

    def _play(self, kit: Kit, story: Story) -> Result:
        for fault in story.faults:
            fault.add_to(kit)
        error, ends, needs = "", [], []
        try:
            orders = kit.run_all(
                story.saga, story.orders, callbacks=story.callbacks, seed=story.seed
            )
            ends = [(story.saga.name, str(order.state)) for order in orders]
            needs = [(story.saga.name, order.needs) for order in orders if order.state == "Error"]
        except StoryError as failure:
            error = str(failure)
        text = kit.story.splitlines()
        return Result(seed=story.seed, ends=ends, text=text, needs=needs, error=error)

    def test_of(self, story: Story) -> str:
        """Return a story as the source of a test."""
        return _Source(self.module).test_of(story)

    def _settings(self) -> list[str]:
        """Return the settings of all services. A saga may use those that another one declares."""
        return sorted({service.setting for saga in self.sagas for service in saga.services})

    def _order(self, saga: Saga[Any], rng: random.Random) -> Any:
        """Return an order that the saga accepts: one of the examples, or a drawn one."""
        problem = ""
        examples = [order for text in self.examples if (order := _read(saga, text)) is not None]
        if examples:
            return rng.choice(examples)
        for _ in range(TRIES):
            try:
                order = msgspec.convert(drawn(saga.order, str(rng.random())), saga.order)
                _check(saga, order)
            except UndrawableError as error:
                problem = f"no order can be drawn: {error}"
                break
            except ValueError as error:
                problem = f"its check refuses every order that is drawn: {error}"
            else:
                return order
        raise NoOrderError(
            f"saga {saga.name!r}: {problem}. Write example orders into a file, as for `sas submit`"
            ', and name it in pyproject.toml: [tool.sas] orders = "orders.jsonl"'
        )


def shrunk(story: Story, fails: Callable[[Story], bool]) -> Story:
    """Return the shortest story that still fails: fewer orders, faults, and odd callbacks."""
    for order in story.orders if len(story.orders) > 1 else ():
        if fails(candidate := replace(story, orders=[order])):
            story = candidate
            break
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for place in range(len(story.faults)):
            faults = [fault for number, fault in enumerate(story.faults) if number != place]
            if fails(candidate := replace(story, faults=faults)):
                story, is_shorter = candidate, True
                break
    for name in story.callbacks:
        callbacks = {step: answer for step, answer in story.callbacks.items() if step != name}
        if fails(candidate := replace(story, callbacks=callbacks)):
            story = candidate
    return story


def _read(saga: Saga[Any], text: bytes) -> Any:
    """Return an example as an order of a saga; None if it is none."""
    try:
        order = msgspec.json.decode(text, type=saga.order)
        _check(saga, order)
    except ValueError:
        return None
    return order


def _check(saga: Saga[Any], order: Any) -> None:
    """Have the saga check an order.

    Raises:
        ValueError: it refuses the order.
        NoOrderError: the check has a bug.
    """
    try:
        if saga.check is not None:
            saga.check(order)
    except ValueError:
        raise
    except Exception as error:
        raise NoOrderError(bug_of_check(saga.name, error)) from error


def _undoable(sagas: Sequence[Saga[Any]]) -> list[tuple[Saga[Any], str]]:
    """Return each step that has an undo, with its saga."""
    return [
        (saga, place.step.name)
        for saga in sagas
        for place in saga.places
        if any(action.back for action in (place.step, *place.step.others))
    ]


def _callbacks(saga: Saga[Any], rng: random.Random, *, is_calm: bool) -> dict[str, object]:
    """Draw the answers of people and systems outside: most come, some refuse, some are late."""
    answers: dict[str, object] = {}
    for place in saga.places:
        step = place.step
        actions = (step, *step.others)
        if not any(action.do.mentions("wait_for_callback") for action in actions):
            continue
        try:
            answer = msgspec.convert(drawn(step.shape, str(rng.random())), step.shape)
        except UndrawableError as error:
            raise NoOrderError(
                f"saga {saga.name!r}: the callback of {step.name}: {error}"
            ) from None
        kind = 1.0 if is_calm else rng.random()
        if kind < 0.1:
            continue
        if kind < 0.25:
            answer = Refusal("refused", "somebody outside refuses")
        elif kind < 0.4:
            answer = Late(answer, timedelta(seconds=rng.randrange(LATE_S)))
        answers[step.name] = answer
    return answers


def _faults(settings: Sequence[str], rng: random.Random) -> list[StoryFault]:
    faults = [
        StoryFault(method, [round(share_max * rng.random(), 3)])
        for method, chance, share_max in (
            ("answers_lost", 0.4, 0.8),
            ("calls_fail", 0.3, 0.8),
            ("calls_hang", 0.2, 0.8),
            ("functions_die", 0.4, 0.1),
        )
        if rng.random() < chance
    ]
    if rng.random() < 0.2:
        faults.append(StoryFault("every_message_twice"))
    for _ in range(rng.choice((0, 0, 1, 1, 2)) if settings else 0):
        ((shortest, longest),) = rng.choices(OUTAGES_S, OUTAGE_WEIGHTS)
        lasts = timedelta(seconds=rng.randint(shortest, longest))
        faults.append(StoryFault("away", [rng.choice(settings), lasts], named={"at": _moment(rng)}))
    if settings and rng.random() < 0.25:
        values = [rng.choice(("POST", "POST", "POST", "PUT", "GET")), "*", 422]
        faults.append(StoryFault("answer", values, service=rng.choice(settings)))
    faults += [
        StoryFault("restart", named={"at": _moment(rng)}) for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    if rng.random() < 0.15:
        faults.append(StoryFault("cancel", named={"at": _moment(rng)}))
    return faults


def _moment(rng: random.Random) -> timedelta:
    (within,) = rng.choices(TIMES_S, TIME_WEIGHTS)
    return timedelta(seconds=round(rng.uniform(0, within), 1))


class _Source:
    """The source of a test, with the imports that it needs."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._imports: defaultdict[str, set[str]] = defaultdict(set)

    def test_of(self, story: Story) -> str:
        """Return the test."""
        saga = next(name for name, member in vars(self._module).items() if member is story.saga)
        self._imports[self._module.__name__].add(saga)
        self._imports["sas.testing"].add("Kit")
        lines = [self._fault(fault) for fault in story.faults]
        orders = [self._code(order) for order in story.orders]
        verb, order = ("run", orders[0]) if len(orders) == 1 else ("run_all", self._list(orders))
        values = [saga, order]
        if story.callbacks:
            values.append(f"callbacks={self._code(dict(story.callbacks))}")
        values.append(f"seed={story.seed}")
        lines += [f"saga.{verb}(", *(f"    {value}," for value in values), ")"]
        imports: dict[bool, list[str]] = {True: [], False: []}
        for module, names in sorted(self._imports.items()):
            is_standard = module.partition(".")[0] in sys.stdlib_module_names
            imports[is_standard].append(f"from {module} import {', '.join(sorted(names))}")
        gap = [""] if imports[True] else []
        head = [*imports[True], *gap, *imports[False], "", ""]
        head.append(f"def test_story_{story.seed}(saga: Kit) -> None:")
        return "\n".join([*head, *(f"    {line}" for line in lines)])

    def _fault(self, fault: StoryFault) -> str:
        target = "saga" if fault.service is None else f'saga.service("{fault.service}")'
        values = [self._code(value) for value in fault.values]
        values += [f"{name}={self._code(value)}" for name, value in fault.named.items()]
        return f"{target}.{fault.method}({', '.join(values)})"

    def _code(self, value: Any) -> str:  # noqa: PLR0911  a case for each
        match value:
            case timedelta():
                self._imports["datetime"].add("timedelta")
                return f"timedelta(seconds={value.total_seconds():.12g})"
            case date() | time():
                kind = type(value)
                self._imports["datetime"].add(kind.__name__)
                return f'{kind.__name__}.fromisoformat("{value.isoformat()}")'
            case Decimal() | UUID():
                return f'{self._class(value)}("{value}")'
            case Enum():
                return f"{self._class(value)}.{value.name}"
            case dict():
                members = (f"{self._code(key)}: {self._code(item)}" for key, item in value.items())
                return f"{{{', '.join(members)}}}"
            case list():
                return self._list([self._code(item) for item in value])
            case set() | frozenset() | tuple() if type(value) in {set, frozenset, tuple}:
                return f"{type(value).__name__}({self._list([self._code(item) for item in value])})"
            case str() | bytes() | bool() | int() | float() | None:
                return repr(value) if not isinstance(value, str) else _quoted(value)
        return f"{self._class(value)}({', '.join(self._members(value))})"

    def _members(self, value: Any) -> list[str]:
        if isinstance(value, msgspec.Struct):
            names: Sequence[str] = value.__struct_fields__
        elif dataclasses.is_dataclass(value):
            names = [member.name for member in dataclasses.fields(value)]
        else:
            names = getattr(value, "_fields", ())
        return [f"{name}={self._code(getattr(value, name))}" for name in names]

    def _class(self, value: Any) -> str:
        kind = type(value)
        module = "sas.testing" if kind.__module__.startswith("sas.testing.") else kind.__module__
        name = shown(kind).partition(".")[0]
        self._imports[module].add(name)
        return shown(kind)

    @staticmethod
    def _list(items: Sequence[str]) -> str:
        return f"[{', '.join(items)}]"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode() if text.isprintable() else repr(text)
