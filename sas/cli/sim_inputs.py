"""Read the files of a project for ``sas sim --agents own``: settings, example orders, answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sas.cli.application import App, load
from sas.cli.reading import Defaults, InputError, read_items
from sas.operate.errors import UsageError
from sas.ports import Business

if TYPE_CHECKING:
    from sas.testing.own_agents import OwnApplication

FILE = "sim.json"
EXAMPLE_ORDERS_MAX = 200
"""How many example orders are read at most."""
_MEMBERS = {"orders", "answers"}
_SEE = f"docs/your-own-workflow.md, section 10, says what {FILE} holds"


def own_application(app: App, directory: Path) -> OwnApplication:
    """Return an application with the example orders and the answers of its ``sim.json``.

    Settings that the environment does not have come from ``local.settings.json``.

    Raises:
        UsageError: the application or a file is missing, or cannot be used.
    """
    from sas.testing.own_agents import OwnApplication  # noqa: PLC0415  # slow to import

    make = functools.partial(_business, app)
    content = _sim_file(directory / FILE)
    path, answers = content.get("orders"), content.get("answers", {})
    if not isinstance(path, str) or not isinstance(answers, dict):
        raise UsageError(f'{FILE}: give {{"orders": "FILE", "answers": {{...}}}}; {_SEE}')
    answer_lists = {
        call: answer if isinstance(answer, list) and answer else [answer]
        for call, answer in answers.items()
    }
    application = OwnApplication(
        make=make,
        orders={},
        answers=answer_lists,
        settings=_settings(directory / "local.settings.json"),
    )
    with application.environment():
        business = make()
    orders = _accepted_orders(business, _orders(directory / path), path)
    return replace(application, orders=orders)


def _business(app: App) -> Business:
    business = load(app)
    if not isinstance(business, Business):
        raise UsageError(f"{app.label} has no agents: --agents own needs a Business")
    return business


def _settings(path: Path) -> dict[str, str]:
    """Return the settings that the Functions host on this machine would take from this file."""
    values = _read(path).get("Values") if path.exists() else None
    return {name: str(text) for name, text in values.items()} if isinstance(values, dict) else {}


def _sim_file(path: Path) -> dict[str, Any]:
    content = _read(path)
    unknown_names = sorted(set(content) - _MEMBERS)
    if unknown_names:
        members = ", ".join(sorted(_MEMBERS))
        raise UsageError(
            f"{FILE} has the unknown member {unknown_names[0]!r}: give {members}; {_SEE}"
        )
    return content


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: {_SEE}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a JSON object: {_SEE}")
    return content


def _orders(path: Path) -> list[bytes]:
    """Return the contents of the first orders of a file. Its form is that of ``sas submit``."""
    try:
        with path.open("rb") as source:
            items = read_items(source, Defaults("responses-of-nobody", lambda: "none"))
            return [
                msgspec.json.encode(item.order.order) for item in islice(items, EXAMPLE_ORDERS_MAX)
            ]
    except (OSError, ValueError, InputError) as error:  # ValueError: the path has a NUL
        raise UsageError(f"{str(path)!r}, which {FILE} names, cannot be read: {error}") from None


def _accepted_orders(
    business: Business, contents: Sequence[bytes], path: str
) -> Mapping[str, Sequence[Any]]:
    """Return for each workflow, by name, the orders that pass its check."""
    orders: dict[str, list[Any]] = {}
    for name in sorted({workflow.name for workflow in business.workflows}):
        check = business.checks.get((name, business.workflows.find(name).version))
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
