"""What ``sas sim --agents own`` reads of a project: settings, example orders, answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
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
    from sas.testing.own_agents import OwnApplication

FILE = "sim.json"
ORDERS_MAX = 200
"""Example orders that are read."""
_MEMBERS = {"orders", "answers"}
_HOW = f"docs/your-own-workflow.md, section 10, says what {FILE} holds"


def given_of(app: str, directory: Path) -> OwnApplication:
    """Return the business of an application, and what ``sim.json`` of its project gives.

    Settings that the environment lacks come from ``local.settings.json``.

    Raises:
        UsageError: something is missing or cannot be used.
    """
    from sas.testing.own_agents import OwnApplication  # noqa: PLC0415  # slow to import

    make = functools.partial(_business, app if ":" in app else f"{app}:business")
    said = _given(directory / FILE)
    path, answers = said.get("orders"), said.get("answers", {})
    if not isinstance(path, str) or not isinstance(answers, dict):
        raise UsageError(f'{FILE}: give {{"orders": "FILE", "answers": {{...}}}}; {_HOW}')
    several = {
        call: answer if isinstance(answer, list) and answer else [answer]
        for call, answer in answers.items()
    }
    given = OwnApplication(
        make=make, orders={}, answers=several, settings=_settings(directory / "local.settings.json")
    )
    with given.environment():
        business = make()
    return replace(given, orders=_fitting(business, _orders(directory / path), path))


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
