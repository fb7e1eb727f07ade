"""Checks the calls of Bicep modules against the modules' parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.infra_bicep import BicepFile, Node, Parameter, members
from tools.infra_values import Choice, Kind, Object, Unknown, Value, value_of

PYTHON: Mapping[str, type] = {
    "string": str,
    "int": int,
    "bool": bool,
    "array": list,
    "object": Object,
}


def check_calls(files: Mapping[Path, BicepFile]) -> list[str]:
    """Return every argument that the called module's parameter does not take, a sentence each."""
    problems: list[str] = []
    for file in files.values():
        for module in file.modules:
            callee = files.get((file.path.parent / module.target).resolve())
            body = module.properties()
            if callee is None or "params" not in body:
                continue
            at = f"{file.path.name}:{module.line}: module {module.symbol}"
            for name, argument in members(body["params"]).items():
                if name in callee.parameters:
                    problems += _check(callee, callee.parameters[name], argument, file, at)
    return problems


def _check(
    callee: BicepFile, parameter: Parameter, argument: Node, file: BicepFile, at: str
) -> list[str]:
    value = value_of(argument, file)
    found = [_wrong(callee, parameter, each) for each in _each(value)]
    return [f"{at}: {parameter.name}: {said}" for said in found if said]


def _each(value: Value) -> list[Value]:
    if isinstance(value, Choice):  # a choice may be among choices
        return [one for each in value.values for one in _each(each)]
    return [value]


def _wrong(callee: BicepFile, parameter: Parameter, value: Value) -> str | None:
    if isinstance(value, Unknown):
        return None
    if isinstance(value, Kind):
        right = value.name == parameter.type
        return None if right else f"{parameter.type} is wanted, not {value.name}"
    if type(value) is not PYTHON[parameter.type]:
        return f"{parameter.type} is wanted, not {value!r}"
    if "allowed" in parameter.decorators:
        allowed = value_of(parameter.decorators["allowed"].children[1].children[0], callee)
        if isinstance(allowed, list) and value not in allowed:
            return f"{value!r} is none of {allowed}"
    return _outside(parameter, value)


def _outside(parameter: Parameter, value: Value) -> str | None:
    size = len(value) if isinstance(value, (str, list)) else value
    if isinstance(size, bool) or not isinstance(size, int):
        return None
    for name, beyond in (("minLength", -1), ("minValue", -1), ("maxLength", 1), ("maxValue", 1)):
        if name in parameter.decorators:
            bound = int(parameter.decorators[name].children[1].text.strip("()"))
            if (size - bound) * beyond > 0:
                return f"{value!r} breaks @{name}({bound})"
    return None
