"""An adopter's function, with the types of its annotations.

Every error names the function and the place of its definition.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from sas.domain.workflow import WorkflowError
from sas.saga.call import Call
from sas.saga.content import no_json, shown


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
        """Return whether its code uses one of these names."""
        return not {*names}.isdisjoint(self.run.__code__.co_names)


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


def fits(parameter_type: Any, value_type: Any) -> bool:
    """Return whether a parameter of a type takes such a value."""
    if parameter_type is Any or parameter_type == value_type:
        return True
    if get_origin(parameter_type) in {Union, types.UnionType}:
        members = (
            get_args(value_type)
            if get_origin(value_type) in {Union, types.UnionType}
            else (value_type,)
        )
        return all(
            any(fits(choice, member) for choice in get_args(parameter_type)) for member in members
        )
    return (
        isinstance(parameter_type, type)
        and isinstance(value_type, type)
        and issubclass(value_type, parameter_type)
    )


def _check_shape(run: Callable[..., Any], shape: Any) -> None:
    """Refuse a type that JSON cannot hold."""
    problem = no_json(shape)
    if problem:
        raise WorkflowError(
            f"{where(run)}: a result of the type {shown(shape)} cannot be kept as JSON ({problem}):"
            " return a msgspec.Struct, a dataclass, text, numbers, lists or dictionaries"
        )
