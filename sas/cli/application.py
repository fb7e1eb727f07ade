"""The application of a project: ``app`` of ``[tool.sas]`` in pyproject.toml, or ``--app``.

All verbs that need workflows or agents find them here, by one rule.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sas.cli import screen
from sas.domain.workflow import Workflows
from sas.environment import settings_of
from sas.operate.errors import UsageError
from sas.ports import Business

PROJECT_FILE = "pyproject.toml"
HOW = f'write app = "MODULE" under [tool.sas] in {PROJECT_FILE}, or give --app MODULE'
"""How to name the application."""
PLAIN_ERRORS = (ImportError, AttributeError, TypeError, ValueError)
"""Errors whose text says enough without the name of their class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The name of an application, and the folder from which it is imported.

    The name is MODULE or MODULE:NAME. ``label`` says in errors which application it is, and who
    named it. ``orders`` is a file of example orders, in the same folder.
    """

    name: str
    folder: Path
    label: str
    orders: str | None = None


def named(argument: str | None) -> App:
    """Return the application that ``--app`` names, or else the project.

    Raises:
        UsageError: neither names one, or the project's file cannot be used.
    """
    app = _named(argument)
    if app is None:
        raise UsageError(f"no application is named: {HOW}")
    return app


def workflows_of(argument: str | None) -> Workflows:
    """Return the workflows of the application that ``--app`` names, or else the project.

    Raises:
        UsageError: neither names one, or it cannot be loaded.
    """
    return workflows_in(load(named(argument)))


def workflows_if_any(argument: str | None) -> Workflows | None:
    """Return the same for a verb that only shows more with them; None if no application is named.

    If the application of the project cannot be loaded, this prints why and returns None: an
    operator needs the verb all the same.

    Raises:
        UsageError: the application that ``--app`` names cannot be loaded.
    """
    if argument is not None:
        return workflows_of(argument)
    try:
        app = _named(None)
        return None if app is None else workflows_in(load(app))
    except UsageError as error:
        screen.complain(f"sas: {error}. Going on without it")
        return None


def agents_if_any(argument: str | None) -> set[str]:
    """Return the agents of these workflows; raises as ``workflows_if_any``."""
    definitions = workflows_if_any(argument)
    return set() if definitions is None else set(definitions.agents())


def workflows_in(application: Workflows | Business) -> Workflows:
    """Return the workflows of a loaded application."""
    return application.workflows if isinstance(application, Business) else application


def load(app: App) -> Workflows | Business:
    """Import an application.

    Raises:
        UsageError: it cannot be imported, or defines no workflows.
    """
    module = app.name.partition(":")[0]
    if "/" in module or module.startswith(".") or not module:
        raise UsageError(f"{app.label} is no module: give one, like orders or orders:saga")
    folder = str(app.folder.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        application = _found(app.name)
    except Exception as error:  # noqa: BLE001  it is the application's own code
        kind = "" if isinstance(error, PLAIN_ERRORS) else f"{type(error).__name__}: "
        raise UsageError(f"{app.label} cannot be loaded: {kind}{error}") from None
    if isinstance(application, Business | Workflows):
        return application
    raise UsageError(f"{app.label} is {type(application).__name__}: give a module or a saga")


@contextmanager
def local_settings(project: Path) -> Iterator[None]:
    """Give the process the settings of ``local.settings.json`` that its environment lacks."""
    settings = settings_of(project)
    missing = {name: text for name, text in settings.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _found(name: str) -> Any:
    """Return the business of a module's sagas, or what MODULE:NAME names.

    That is a saga, or what our own tests play: workflows, a business, or a function of one.
    """
    from sas.saga import Saga, business_of, sagas_of  # noqa: PLC0415  # slow to import

    module_name, _, attribute = name.partition(":")
    module = import_module(module_name)
    if not attribute:
        sagas = sagas_of(module)
        if not sagas:
            raise ValueError(f"{module_name} has no saga: write one, as in orders = Saga(...)")
        return business_of(sagas)
    definition = getattr(module, attribute)
    if isinstance(definition, Saga):
        return business_of([definition])
    return definition() if callable(definition) else definition


def _named(argument: str | None) -> App | None:
    if argument is not None:
        file = Path(PROJECT_FILE)
        orders = table_of(file).get("orders") if file.is_file() else None
        return App(name=argument, folder=Path(), label=f"--app {argument}", orders=orders)
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / PROJECT_FILE
        if file.is_file():
            return _in_project(file, Path() if folder == here else folder)
    return None


def _in_project(file: Path, folder: Path) -> App | None:
    """Return the application that a project's file names; None if it names none."""
    table = table_of(file)
    name = table.get("app")
    if name is None:
        return None
    label = f"app {name!r} of {file}"
    return App(name=name, folder=folder, label=label, orders=table.get("orders"))


_TEXTS = ("app", "orders")
_LISTS = ("applications", "bound", "settings")


def table_of(file: Path) -> dict[str, Any]:
    """Return the table ``[tool.sas]`` of a project's file; ``{}`` if it has none.

    ``app`` and ``orders`` are texts; ``applications``, ``bound`` and ``settings`` lists of texts.

    Raises:
        UsageError: the file cannot be read, or the table is wrong.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("sas", {})
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if not isinstance(table, dict) or not table.keys() <= {*_TEXTS, *_LISTS}:
        members = ", ".join((*_TEXTS, *_LISTS))
        raise UsageError(f'{file}: [tool.sas] has only {members}, like app = "orders"')
    for member, value in table.items():
        is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
        if not (is_list if member in _LISTS else isinstance(value, str)):
            example = f'{member} = ["web"]' if member in _LISTS else 'app = "orders"'
            kind = "list of texts" if member in _LISTS else "text"
            raise UsageError(f"{file}: {member} of [tool.sas] is no {kind}: write {example}")
    return table
