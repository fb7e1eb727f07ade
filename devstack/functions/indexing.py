"""function_app.py imported once and its functions read, or refused in a sentence."""

import importlib
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import azure.functions as func

from devstack.functions.bindings import Output, Trigger, read_bindings
from devstack.functions.errors import IndexingError
from devstack.functions.settings import Settings
from devstack.functions.signatures import Signature, read_signature

_log = logging.getLogger("devstack.functions")
SCRIPT = "function_app.py"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,126}")


@dataclass(frozen=True)
class IndexedFunction:
    """One function of the app: its code and everything its bindings say."""

    name: str
    code: Callable[..., Any]
    trigger: Trigger
    outputs: tuple[Output, ...]
    signature: Signature
    directory: Path


@contextmanager
def imported(app_dir: Path) -> Iterator[ModuleType]:
    """Import `app_dir`/function_app.py afresh; on exit the modules it brought are forgotten.

    Raises:
        IndexingError: it is not there, or its import failed.
    """
    script = app_dir / SCRIPT
    if not script.exists():
        raise IndexingError(f"{script} does not exist: name the directory of a function app.")
    before = dict(sys.modules)
    previous = sys.modules.pop(script.stem, None)
    on_path = str(app_dir) in sys.path
    if not on_path:
        sys.path.insert(0, str(app_dir))
    try:
        yield _import(script)
    finally:
        if not on_path:
            sys.path.remove(str(app_dir))
            _forget(app_dir, before)
        sys.modules.pop(script.stem, None)
        if previous is not None:
            sys.modules[script.stem] = previous


def _import(script: Path) -> ModuleType:
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(script.stem)
    except (Exception, SystemExit) as error:
        raise IndexingError(
            f"{script.name} cannot be imported: {type(error).__name__}: {error}"
            f"{_place(error, script.parent)}."
        ) from error
    found = Path(module.__file__ or "").resolve()
    if found != script.resolve():
        raise IndexingError(
            f"import function_app found {found}, not {script}: remove the other one from "
            "PYTHONPATH."
        )
    return module


def _place(error: BaseException, app_dir: Path) -> str:
    """Where in the app it was raised, unless the message says so itself."""
    root = app_dir.resolve()
    frames = [
        (Path(frame.filename).resolve(), frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    own = [
        f"{path.relative_to(root)}:{line}"
        for path, line in frames
        if path.is_relative_to(root) and "site-packages" not in path.parts
    ]
    return f" at {own[-1]}" if own else ""


def _forget(app_dir: Path, before: dict[str, ModuleType]) -> None:
    root = app_dir.resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name not in before and file and Path(file).resolve().is_relative_to(root):
            del sys.modules[name]


@dataclass(frozen=True)
class FoundFunction:
    """A function as its decorators describe it, settings not yet resolved."""

    name: str
    code: Callable[..., Any]
    bindings: list[dict[str, Any]]
    signature: Signature


def find(module: ModuleType) -> list[FoundFunction]:
    """Find and check the functions of an imported function_app, as the worker does.

    Raises:
        IndexingError: what the worker or the host would refuse.
    """
    functions = [_read(built) for built in _built(_register(module))]
    if not functions:
        raise IndexingError(f"{SCRIPT} registers no function: decorate one with a trigger.")
    seen: dict[str, str] = {}
    for one in functions:
        other = seen.setdefault(one.name.lower(), one.name)
        if other is not one.name:
            raise IndexingError(
                f"The functions {other} and {one.name} differ in case only: the host would "
                "confuse them; rename one."
            )
    return functions


def select(
    functions: Iterable[FoundFunction],
    *,
    only: Iterable[str] | None = None,
    without: Iterable[str] | None = None,
) -> list[FoundFunction]:
    """Keep those named in `only` (all, when None) and not in `without`.

    Raises:
        IndexingError: a name that no function has, or nothing is left.
    """
    functions = list(functions)
    names = {one.name.lower() for one in functions}
    for wanted in (*(only or ()), *(without or ())):
        if wanted.lower() not in names:
            known = ", ".join(sorted(one.name for one in functions))
            raise IndexingError(f"There is no function {wanted!r} in this app; it has {known}.")
    keep = names if only is None else {name.lower() for name in only}
    keep = keep - {name.lower() for name in without or ()}
    left = [one for one in functions if one.name.lower() in keep]
    if not left:
        raise IndexingError("No function is left to run: name at least one.")
    return left


def bind(found: FoundFunction, app_dir: Path, settings: Settings) -> IndexedFunction:
    """Resolve the settings and connections of one function's bindings.

    Only for functions that will run: the others need no connection.

    Raises:
        IndexingError: a binding that this host does not run.
        SettingsError: a setting or connection that a binding names is not defined.
    """
    trigger, outputs = read_bindings(found.name, found.bindings, settings)
    return IndexedFunction(
        found.name, found.code, trigger, tuple(outputs), found.signature, app_dir
    )


def _register(module: ModuleType) -> func.FunctionRegister:
    apps = [
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, func.FunctionRegister)
    ]
    if not apps:
        raise IndexingError(
            f"{SCRIPT} has no azure.functions.FunctionApp at its top level: add "
            "`app = func.FunctionApp()`."
        )
    if len(apps) > 1:
        names = ", ".join(name for name, _ in apps)
        raise IndexingError(
            f"{SCRIPT} has more than one FunctionApp at its top level ({names}): keep one and "
            "register the others as blueprints."
        )
    return apps[0][1]


def _built(app: func.FunctionRegister) -> list[Any]:
    try:
        return list(app.get_functions())
    except ValueError as error:
        raise IndexingError(f"{SCRIPT}: {error}") from error


def _read(built: Any) -> FoundFunction:
    name = str(built.get_function_name())
    if not _NAME.fullmatch(name):
        raise IndexingError(
            f"{name!r} is no function name: begin with a letter, then letters, digits, _ or -, "
            "at most 127 in all."
        )
    if built.http_type in {"wsgi", "asgi"}:
        raise IndexingError(f"Function {name}: this host runs no ASGI or WSGI apps.")
    bindings = json.loads(built.get_function_json())["bindings"]
    triggers = {binding["type"] for binding in bindings}
    if built.get_setting("retry_policy") is not None and "serviceBusTrigger" in triggers:
        _log.warning(
            "Function %s: @app.retry does not apply to Service Bus triggers, here as in Azure; "
            "the queue's MaxDeliveryCount does.",
            name,
        )
    code = built.get_user_function()
    return FoundFunction(name, code, bindings, read_signature(name, code, bindings))
