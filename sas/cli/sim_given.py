"""What ``sas sim`` reads of a project: settings, example orders, answers, times of services."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sas.cli.reading import Defaults, InputError, read_items
from sas.cli.workflows import made
from sas.operate.errors import UsageError
from sas.ports import Blocking, Business

if TYPE_CHECKING:
    from sas.domain.workflow import Workflows
    from sas.testing.own_agents import Given

FILE = "sim.json"
ORDERS_MAX = 200
"""Example orders that are read."""
SECONDS_MAX = 86_400.0
"""The longest time that a service may be given."""
_MEMBERS = {"orders", "answers", "no_effect", "service_seconds"}
_HOW = f"docs/your-own-workflow.md, section 10, says what {FILE} holds"


def given_of(app: str, directory: Path) -> Given:
    """Return the business of an application, and what ``sim.json`` of its project gives.

    Settings that the environment lacks come from ``local.settings.json``.

    Raises:
        UsageError: something is missing or cannot be used.
    """
    from sas.testing.own_agents import Given  # noqa: PLC0415  # slow to import

    make = functools.partial(_business, app if ":" in app else f"{app}:business")
    said = _given(directory / FILE)
    path, answers = said.get("orders"), said.get("answers", {})
    if not isinstance(path, str) or not isinstance(answers, dict):
        raise UsageError(f'{FILE}: give {{"orders": "FILE", "answers": {{...}}}}; {_HOW}')
    several = {
        call: answer if isinstance(answer, list) and answer else [answer]
        for call, answer in answers.items()
    }
    given = Given(make, {}, several, _settings(directory / "local.settings.json"))
    with given.environment():
        business = make()
    known = {step.name for workflow in business.workflows for step in workflow.steps}
    no_effect = said.get("no_effect", [])
    if not isinstance(no_effect, list) or not all(isinstance(one, str) for one in no_effect):
        raise UsageError(f'{FILE}: "no_effect" is a list of names of steps; {_HOW}')
    _check_known("no_effect", no_effect, known)
    orders = _fitting(business, _orders(directory / path), path)
    return replace(given, orders=orders, no_effect=frozenset(no_effect))


def seconds_of(directory: Path, workflows: Workflows) -> dict[str, tuple[float, float]]:
    """Return how long services take, by step or agent, as ``sim.json`` says if it is there.

    Raises:
        UsageError: it cannot be used.
    """
    path = directory / FILE
    said = _given(path).get("service_seconds", {}) if path.exists() else {}
    if not isinstance(said, dict):
        raise UsageError(f'{FILE}: "service_seconds" is an object: {{"STEP": SECONDS}}; {_HOW}')
    steps = {step.name for workflow in workflows for step in workflow.steps}
    _check_known("service_seconds", said, steps | workflows.agents())
    return {name: _range(name, given) for name, given in said.items()}


def _range(name: str, given: Any) -> tuple[float, float]:
    """Return the least and the most seconds; a number alone is both."""
    ends = given if isinstance(given, list) else [given, given]
    numbers = [one for one in ends if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(ends) == len(numbers) == 2 and 0 <= numbers[0] <= numbers[1] <= SECONDS_MAX:
        return float(numbers[0]), float(numbers[1])
    raise UsageError(
        f'{FILE}: "service_seconds" of {name} is {json.dumps(given)}: give seconds from 0 to '
        f"{SECONDS_MAX:g}, or [LEAST, MOST]"
    )


def _check_known(member: str, names: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        there = ", ".join(sorted(known))
        raise UsageError(f'{FILE}: "{member}" names {unknown[0]}, which is none of {there}')


def _business(app: str) -> Business:
    business = made(app)
    if not isinstance(business, Business):
        raise UsageError(f"--app {app} has no agents: --agents own needs a Business")
    blocking = sorted(name for name, one in business.agents.items() if isinstance(one, Blocking))
    if blocking:
        raise UsageError(
            f"agent {blocking[0]} is Blocking: threads and their sockets cannot be simulated. "
            "Leave --agents own out, or write it with async"
        )
    return business


def _settings(path: Path) -> dict[str, str]:
    """Return the settings that the Functions host would set on this machine."""
    values = _read(path).get("Values") if path.exists() else None
    return {name: str(text) for name, text in values.items()} if isinstance(values, dict) else {}


def _given(path: Path) -> dict[str, Any]:
    said = _read(path)
    unknown = sorted(set(said) - _MEMBERS)
    if unknown:
        members = ", ".join(sorted(_MEMBERS))
        raise UsageError(f"{FILE} has the unknown member {unknown[0]!r}: give {members}; {_HOW}")
    return said


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: {_HOW}") from None
    except (OSError, ValueError, RecursionError) as wrong:
        raise UsageError(f"{path} cannot be read: {wrong}") from None
    if not isinstance(said, dict):
        raise UsageError(f"{path} is not a JSON object: {_HOW}")
    return said


def _orders(path: Path) -> list[bytes]:
    """Return the contents of the first orders of a file that ``sas submit`` can read."""
    try:
        with path.open("rb") as source:
            items = islice(read_items(source, Defaults("responses-of-nobody")), ORDERS_MAX)
            return [msgspec.json.encode(item.order.order) for item in items]
    except (OSError, ValueError, InputError) as wrong:  # a NUL in a path is a ValueError
        raise UsageError(f"{str(path)!r}, which {FILE} names, cannot be read: {wrong}") from None


def _fitting(
    business: Business, contents: Sequence[bytes], path: str
) -> Mapping[str, Sequence[Any]]:
    """Return the orders that pass the check of each workflow."""
    found: dict[str, list[Any]] = {}
    for name in sorted({workflow.name for workflow in business.workflows}):
        check = business.checks.get(name)
        found[name], why = [], ""
        for content in contents:
            try:
                if check is not None:
                    check(content)
                found[name].append(json.loads(content))
            except ValueError as wrong:
                why = str(wrong)
        if not found[name]:
            raise UsageError(f"{FILE}: no order in {path} passes the check of {name}: {why}")
    return found
