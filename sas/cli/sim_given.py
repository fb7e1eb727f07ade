"""Read what ``sas sim --agents own`` needs of a project: settings, example orders, answers."""

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
from sas.cli.workflows import load_application
from sas.operate.errors import UsageError
from sas.ports import Blocking, Business

if TYPE_CHECKING:
    from sas.testing.own_agents import OwnApplication

FILE = "sim.json"
EXAMPLE_ORDERS_MAX = 200
"""The most example orders that are read."""
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
    content = _given(directory / FILE)
    path, answers = content.get("orders"), content.get("answers", {})
    if not isinstance(path, str) or not isinstance(answers, dict):
        raise UsageError(f'{FILE}: give {{"orders": "FILE", "answers": {{...}}}}; {_HOW}')
    answer_lists = {
        call: answer if isinstance(answer, list) and answer else [answer]
        for call, answer in answers.items()
    }
    inputs = OwnApplication(
        make=make,
        orders={},
        answers=answer_lists,
        settings=_settings(directory / "local.settings.json"),
    )
    with inputs.environment():
        business = make()
    return replace(inputs, orders=_fitting(business, _orders(directory / path), path))


def _business(app: str) -> Business:
    business = load_application(app)
    if not isinstance(business, Business):
        raise UsageError(f"--app {app} has no agents: --agents own needs a Business")
    blocking = sorted(
        name for name, agent in business.agents.items() if isinstance(agent, Blocking)
    )
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
    content = _read(path)
    unknown_names = sorted(set(content) - _MEMBERS)
    if unknown_names:
        members = ", ".join(sorted(_MEMBERS))
        raise UsageError(
            f"{FILE} has the unknown member {unknown_names[0]!r}: give {members}; {_HOW}"
        )
    return content


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: {_HOW}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a JSON object: {_HOW}")
    return content


def _orders(path: Path) -> list[bytes]:
    """Return the contents of the first orders of a file that ``sas submit`` can read."""
    try:
        with path.open("rb") as source:
            items = islice(read_items(source, Defaults("responses-of-nobody")), EXAMPLE_ORDERS_MAX)
            return [msgspec.json.encode(item.order.order) for item in items]
    except (OSError, ValueError, InputError) as error:  # a NUL in a path is a ValueError
        raise UsageError(f"{str(path)!r}, which {FILE} names, cannot be read: {error}") from None


def _fitting(
    business: Business, contents: Sequence[bytes], path: str
) -> Mapping[str, Sequence[Any]]:
    """Return the orders that pass the check of each workflow."""
    orders: dict[str, list[Any]] = {}
    for name in sorted({workflow.name for workflow in business.workflows}):
        check = business.checks.get(name)
        orders[name], problem = [], ""
        for content in contents:
            try:
                if check is not None:
                    check(content)
                orders[name].append(json.loads(content))
            except ValueError as error:
                problem = str(error)
        if not orders[name]:
            raise UsageError(f"{FILE}: no order in {path} passes the check of {name}: {problem}")
    return orders
