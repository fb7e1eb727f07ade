"""The application of a project: ``app`` of ``[tool.sas]`` in pyproject.toml, or ``--app``.

All verbs that need workflows or agents find them here, by one rule.
"""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from sas.cli import screen
from sas.domain.workflow import Workflows
from sas.environment import settings_of
from sas.operate.errors import UsageError
from sas.ports import Business

PROJECT_FILE = "pyproject.toml"
FUNCTIONS = "function_app.py"
HOW = f'write app = "MODULE" under [tool.sas] in {PROJECT_FILE}, or give --app MODULE'
"""How to name the application."""
PLAIN_ERRORS = (ImportError, AttributeError, TypeError, ValueError)
"""Errors whose text says enough without the name of their class."""


class ProjectTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[tool.sas]`` of a project. ``orders`` is a file of example orders."""

    app: str | None = None
    orders: str | None = None
    applications: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """An application: MODULE or MODULE:NAME, the folder from which it is imported, its project.

    ``label`` says in errors which application it is, and who named it.
    """

    name: str
    folder: Path
    label: str
    table: ProjectTable


def named(argument: str | None) -> App:
    """Return the application that ``--app`` names, or else the project.

    Raises:
        UsageError: neither names one, or the project's file cannot be used.
    """
    app = _named(argument)
    if app is None:
        raise UsageError(f"no application is named: {HOW}")
    return app


def _named(argument: str | None) -> App | None:
    here = Path.cwd()
    if argument is not None:
        table = table_of(here)
        return App(name=argument, folder=here, label=f"--app {argument}", table=table)
    for folder in (here, *here.parents):
        if (folder / PROJECT_FILE).is_file():
            return in_folder(folder)
    return None


def _is_trusted(path: Path) -> bool:
    """Return whether the code of a folder may run, or what a file names.

    It belongs to this user, and is no place for everybody, as /tmp is. Or it belongs to the
    administrator, and nobody else may put files there.
    """
    status = path.stat()
    if status.st_uid != (os.getuid() if hasattr(os, "getuid") else 0):
        return status.st_uid == 0 and not status.st_mode & stat.S_IWOTH
    shared = stat.S_ISVTX | stat.S_IWOTH
    return status.st_mode & shared != shared


def in_folder(folder: Path) -> App | None:
    """Return the application that the project in a folder names, if it names one.

    Raises:
        UsageError: the project's file cannot be used, or may be of another user.
    """
    table, file = table_of(folder), folder / PROJECT_FILE
    if file.is_file() and not (_is_trusted(folder) and _is_trusted(file)):
        raise UsageError(
            f"{file} is of another user, or lies in a folder of another user, or of everybody, and "
            "the code there is not run: go to the project, or give --app"
        )
    label = f"app {table.app!r} of {folder / PROJECT_FILE}"
    if table.app is None:
        return None
    return App(name=table.app, folder=folder, label=label, table=table)


def table_of(folder: Path) -> ProjectTable:
    """Return the table ``[tool.sas]`` of the project in a folder; an empty one if it has none.

    Raises:
        UsageError: the file cannot be read, or the table is wrong.
    """
    file = folder / PROJECT_FILE
    if not file.is_file():
        return ProjectTable()
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("sas", {})
        return msgspec.convert(table, ProjectTable)
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{file}: [tool.sas] cannot be read: {error}") from None


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
    try:
        with importing(app.folder):
            application = _found(app.name)
    except Exception as error:  # noqa: BLE001  it is the application's own code
        kind = "" if isinstance(error, PLAIN_ERRORS) else f"{type(error).__name__}: "
        raise UsageError(f"{app.label} cannot be loaded: {kind}{error}") from None
    if isinstance(application, Business | Workflows):
        return application
    raise UsageError(f"{app.label} is {type(application).__name__}: give a module or a saga")


@contextmanager
def importing(folder: Path) -> Iterator[None]:
    """Import from a folder before all others while this context lasts, and after them at its end.

    Only the folder of the application that was named is trusted so far. What the command itself
    imports later never comes from there.
    """
    path = str(folder.resolve())
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)
        if path not in sys.path:
            sys.path.append(path)


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


def function_apps() -> list[Any]:
    """Return the function apps of function_app.py in this directory. Raises as its import does."""
    members = vars(import_module(Path(FUNCTIONS).stem)).values()
    return [member for member in members if type(member).__name__ == "FunctionApp"]


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
