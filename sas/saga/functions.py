"""An adopter's function, with the types of its annotations.

Every error names the function and the place of its definition.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from sas.domain.workflow import WorkflowError
from sas.saga.call import Call
from sas.saga.content import no_json, shown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter after the call, with its type."""

    name: str
    shape: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of an adopter: what it takes and returns.

    ``order`` is the type of the order, ``parameters`` are those after the call, ``result`` is the
    type of what it returns.
    """

    run: Callable[..., Any]
    order: Any
    parameters: Sequence[Parameter]
    result: Any

    @property
    def is_async(self) -> bool:
        """Whether it is ``async def``. Another function runs in a thread."""
        return inspect.iscoroutinefunction(self.run)

    @property
    def where(self) -> str:
        """Its name and place, for an error text."""
        return where(self.run)

    def mentions(self, *names: str) -> bool:
        """Return whether its code, or a function of its module that it calls, uses these names."""
        return any(not {*names}.isdisjoint(code.co_names) for code in self._codes())

    def named(self, kind: type[T]) -> list[T]:
        """Return the objects of a kind that its code names, or a function that it calls."""
        members = self.run.__globals__
        names = dict.fromkeys(name for code in self._codes() for name in code.co_names)
        return [members[name] for name in names if isinstance(members.get(name), kind)]

    def _codes(self) -> list[types.CodeType]:
        """Return its code, that inside it, and that of the functions of its module it names."""
        codes: list[types.CodeType] = []
        waiting = [self.run.__code__]
        while waiting:
            code = waiting.pop()
            if code in codes:
                continue
            codes.append(code)
            waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
            for name in code.co_names:
                helper = self.run.__globals__.get(name)
                if inspect.isfunction(helper) and helper.__module__ == self.run.__module__:
                    waiting.append(helper.__code__)
        return codes


def function_of(run: Callable[..., Any], *, is_undo: bool = False) -> Function:
    """Return a function with its types.

    Raises:
        WorkflowError: an annotation is missing or cannot be used.
    """
    if not inspect.isfunction(run):
        raise WorkflowError(f"{run!r} is not a function: a step is a function, written with def")
    parameters = list(inspect.signature(run).parameters.values())
    if any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        raise WorkflowError(f"{where(run)}: give it plain parameters, without * and /")
    try:
        hints = get_type_hints(run, include_extras=True)
    except (NameError, TypeError) as error:
        raise WorkflowError(
            f"{where(run)}: its annotations cannot be read ({error}): import or define their types "
            "at the top of the module"
        ) from None
    names = [parameter.name for parameter in parameters]
    missing = [name for name in (*names, "return") if name not in hints]
    if missing and not (is_undo and missing == ["return"]):
        what = "its result" if missing[0] == "return" else f"its parameter {missing[0]}"
        raise WorkflowError(f"{where(run)}: give {what} a type")
    if not names or get_origin(hints[names[0]]) is not Call:
        raise WorkflowError(f"{where(run)}: its first parameter is the call: call: Call[Order]")
    result = hints.get("return")
    if not is_undo:
        _check_shape(run, result)
    return Function(
        run=run,
        order=get_args(hints[names[0]])[0],
        parameters=[Parameter(name, hints[name]) for name in names[1:]],
        result=result,
    )


def where(run: Callable[..., Any]) -> str:
    """Return the name of a function, and the file and line of its definition."""
    code = run.__code__
    return f"{run.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def fits(parameter_type: Any, value_type: Any) -> bool:  # noqa: PLR0911  one for each kind
    """Return whether a parameter of a type can take such a value. In doubt it can.

    A type checker knows better. This finds plain mismatches, such as results in the wrong order.
    """
    target, source = _plain(parameter_type), _plain(value_type)
    if target == source or target in {Any, object} or source is Any:
        return True
    if get_origin(source) in _UNIONS:
        return all(fits(target, member) for member in get_args(source))
    if get_origin(target) in _UNIONS:
        return any(fits(member, source) for member in get_args(target))
    classes = get_origin(target) or target, get_origin(source) or source
    if not all(isinstance(each, type) for each in classes) or getattr(
        target, "_is_protocol", False
    ):
        return True
    if target is float and source is int:
        return True
    if not issubclass(classes[1], classes[0]):
        return False
    pairs = zip(get_args(target), get_args(source), strict=False)
    return len(get_args(target)) != len(get_args(source)) or all(fits(*pair) for pair in pairs)


_UNIONS = {Union, types.UnionType}


def _plain(shape: Any) -> Any:
    """Return a type without what only narrows it."""
    if get_origin(shape) is Annotated:
        return _plain(get_args(shape)[0])
    if isinstance(shape, NewType):
        return _plain(shape.__supertype__)
    if get_origin(shape) is Literal:
        kinds = tuple(dict.fromkeys(map(type, get_args(shape))))
        return Union[kinds]  # noqa: UP007  of a tuple
    return type(None) if shape is None else shape


def _check_shape(run: Callable[..., Any], shape: Any) -> None:
    """Refuse a type that JSON cannot hold."""
    problem = no_json(shape)
    if problem:
        raise WorkflowError(
            f"{where(run)}: a result of the type {shown(shape)} cannot be kept as JSON ({problem}):"
            " return a msgspec.Struct, a dataclass, text, numbers, lists or dictionaries"
        )
