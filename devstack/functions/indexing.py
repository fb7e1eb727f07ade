"""Import function_app.py once and read its functions; refuse each wrong function with a sentence.

The checks of names and annotations follow `azure_functions_runtime.functions` 1.3. So this host
accepts the functions that Microsoft's Python worker accepts, except those with a binding that it
does not run.
"""

import importlib
import inspect
import json
import logging
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import azure.functions as func
from azure.functions import meta

from devstack.functions.bindings import IndexingError, Output, Trigger, read_bindings
from devstack.functions.settings import HostError, Settings

_log = logging.getLogger("devstack.functions")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
SCRIPT = "function_app.py"
_RETRIED = "a timer waits for its schedule, a message comes again up to MaxDeliveryCount"
GENERIC = "generic"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,126}")


@dataclass(frozen=True)
class BoundParameter:
    """The conversion of a parameter: by the converter of a binding, or none (generic)."""

    converter: str
    annotation: Any = None


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The parameters of a function and its return value."""

    inputs: dict[str, BoundParameter]
    outputs: dict[str, BoundParameter]
    wants_context: bool
    is_async: bool
    returns: BoundParameter | None = None


@dataclass(frozen=True, kw_only=True)
class FoundFunction:
    """A function as its decorators describe it. Its settings are not resolved yet."""

    name: str
    code: Callable[..., Any]
    bindings: list[dict[str, Any]]
    signature: Signature


@dataclass(frozen=True)
class IndexedFunction(FoundFunction):
    """One function of the app that can run."""

    trigger: Trigger
    outputs: tuple[Output, ...]
    directory: Path


@contextmanager
def imported(app_dir: Path) -> Iterator[ModuleType]:
    """Import function_app.py, or raise IndexingError; at the end remove it from `sys.modules`.

    Within, the app's directory comes first on the path. If it was not on it before, the app's other
    modules are removed too.
    """
    script = app_dir / SCRIPT
    if not script.exists():
        raise IndexingError(f"{script} does not exist: name the directory of a function app.")
    root, modules = app_dir.resolve(), set(sys.modules)
    previous_module = sys.modules.pop(script.stem, None)
    on_path = str(app_dir) in sys.path
    sys.path.insert(0, str(app_dir))
    try:
        yield _import(script)
    finally:
        sys.path.remove(str(app_dir))
        if not on_path:
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if name not in modules and file and Path(file).resolve().is_relative_to(root):
                    del sys.modules[name]
        sys.modules.pop(script.stem, None)
        if previous_module is not None:
            sys.modules[script.stem] = previous_module


def _import(script: Path) -> ModuleType:
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(script.stem)
    except (Exception, SystemExit) as error:
        text, kind = str(error).rstrip("."), type(error).__name__
        reason = f"{kind}: {text}{_place(error, script.parent)}"
        file = getattr(sys.modules.get(type(error).__module__), "__file__", None)
        if file and _is_of_app(Path(file), script.parent.resolve()):
            reason = f"{text} ({kind})"  # the app's own error says what to do: no line number
        raise IndexingError(f"{script.name} cannot be imported: {reason}.") from error
    path = Path(module.__file__ or "").resolve()
    if path != script.resolve():
        raise IndexingError(f"import function_app found {path}, not {script}: correct PYTHONPATH.")
    return module


def _place(error: BaseException, app_dir: Path) -> str:
    """The place of an error: the last of the app's own lines in the traceback."""
    root = app_dir.resolve()
    places = [
        f" at {path.relative_to(root)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_of_app(path := Path(frame.filename).resolve(), root)
    ]
    return places[-1] if places else ""


def _is_of_app(path: Path, root: Path) -> bool:
    """Whether a file belongs to the app, and not to an installed package."""
    return path.is_relative_to(root) and "site-packages" not in path.parts


def find(module: ModuleType) -> list[FoundFunction]:
    """Find the functions of an imported app, or raise IndexingError for what the worker refuses."""
    try:
        app_functions = list(_app(module).get_functions())
    except ValueError as error:
        raise IndexingError(f"{SCRIPT}: {error}") from error
    functions = all_of(_read, app_functions)
    if not functions:
        raise IndexingError(f"{SCRIPT} registers no function: decorate one with a trigger.")
    names: dict[str, str] = {}
    for function in functions:
        other_name = names.setdefault(function.name.lower(), function.name)
        if other_name is not function.name:
            raise IndexingError(
                f"The functions {other_name} and {function.name} differ in case only: rename one."
            )
    return functions


def all_of(work: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
    """Do the work for each item; raise one IndexingError with the problems of all items."""
    results: list[Outcome] = []
    problems: list[str] = []
    for item in items:
        try:
            results.append(work(item))
        except HostError as error:
            problems.append(str(error))
    if problems:
        raise IndexingError("\n".join(problems))
    return results


def _app(module: ModuleType) -> func.FunctionRegister:
    members = vars(module).items()
    apps = {name: value for name, value in members if isinstance(value, func.FunctionRegister)}
    if not apps:
        raise IndexingError(
            f"{SCRIPT} has no azure.functions.FunctionApp at its top level: add one."
        )
    if len(apps) > 1:
        raise IndexingError(
            f"{SCRIPT} has more than one FunctionApp at its top level ({', '.join(apps)}): keep "
            "one and register the others as blueprints."
        )
    return next(iter(apps.values()))


def _read(app_function: Any) -> FoundFunction:
    name = str(app_function.get_function_name())
    if not _NAME.fullmatch(name):
        raise IndexingError(
            f"{name!r} is not a valid function name: use a letter, then letters, digits, _ or -."
        )
    if app_function.http_type in {"wsgi", "asgi"}:
        raise IndexingError(
            f"Function {name}: this host does not run ASGI or WSGI apps; write its routes with "
            "@app.route."
        )
    bindings = json.loads(app_function.get_function_json())["bindings"]
    code = app_function.get_user_function()
    if app_function.get_settings_dict("retry_policy"):
        _log.warning("Function %s: @app.retry has no effect here: %s", name, _RETRIED)
    try:
        return FoundFunction(
            name=name, code=code, bindings=bindings, signature=_signature(code, bindings)
        )
    except ValueError as error:
        raise IndexingError(f"Function {name}: {error}") from error


def select(
    functions: Iterable[FoundFunction],
    *,
    only: Iterable[str] | None = None,
    without: Iterable[str] | None = None,
) -> list[FoundFunction]:
    """Keep the functions in `only` (None: all) and not in `without`, or raise IndexingError."""
    functions = list(functions)
    names = {function.name.lower() for function in functions}
    for name in (*(only or ()), *(without or ())):
        if name.lower() not in names:
            existing = ", ".join(sorted(function.name for function in functions))
            raise IndexingError(f"There is no function {name!r} in this app; it has {existing}.")
    selection = names if only is None else {name.lower() for name in only}
    selection = selection - {name.lower() for name in without or ()}
    if not selection:
        raise IndexingError("No function is left to run: name at least one.")
    return [function for function in functions if function.name.lower() in selection]


def bind(function: FoundFunction, app_dir: Path, settings: Settings) -> IndexedFunction:
    """Resolve the settings of a function that will run, or raise IndexingError or SettingsError."""
    trigger, outputs = read_bindings(function.name, function.bindings, settings)
    return IndexedFunction(**vars(function), trigger=trigger, outputs=outputs, directory=app_dir)


def converter_for(binding: str) -> Any:
    """The azure-functions converter of a binding type; None for a generic binding."""
    registry: Any = meta.get_binding_registry()  # type: ignore[no-untyped-call]
    return registry.get(binding)


def _signature(function: Callable[..., Any], bindings: list[dict[str, Any]]) -> Signature:
    """Match parameters with bindings; raise ValueError if the worker refuses them."""
    try:
        annotations = typing.get_type_hints(function)
    except NameError as error:
        raise ValueError(f"an annotation names something that is not defined: {error}.") from error
    names = set(inspect.signature(function).parameters)
    by_name = {str(binding["name"]): binding for binding in bindings}
    return_binding = by_name.pop("$return", None)
    wants_context = "context" in names and "context" not in by_name
    if wants_context:
        names.remove("context")
        annotation = annotations.get("context", func.Context)
        if not isinstance(annotation, type) or annotation.__name__ != "Context":
            raise ValueError("the parameter context must be an azure.functions.Context.")
    if unbound := sorted(names - by_name.keys()):
        raise ValueError(
            f"it has the parameter {', '.join(unbound)}, which no binding names: rename it to the "
            f"binding's arg_name ({', '.join(sorted(by_name)) or 'none'})."
        )
    if missing := ", ".join(sorted(by_name.keys() - names)):
        raise ValueError(f"it has a binding named {missing} but no such parameter: add it.")
    parameters = {name: _parameter(binding, annotations) for name, binding in by_name.items()}
    return Signature(
        inputs={name: part for name, part in parameters.items() if not _is_out(by_name[name])},
        outputs={name: part for name, part in parameters.items() if _is_out(by_name[name])},
        wants_context=wants_context,
        is_async=inspect.iscoroutinefunction(function),
        returns=_return_value(return_binding, annotations) if return_binding else None,
    )


def _is_out(binding: dict[str, Any]) -> bool:
    return str(binding["direction"]) == "OUT"


def _parameter(binding: dict[str, Any], annotations: dict[str, Any]) -> BoundParameter:
    kind, name, is_out = str(binding["type"]), binding["name"], _is_out(binding)
    if name not in annotations:
        return BoundParameter(kind)
    annotation = annotations[name]
    if is_out != ((typing.get_origin(annotation) or annotation) is func.Out):
        kinds = "azure.functions.Out[...]" if is_out else "something other than Out"
        raise ValueError(f"the annotation of {name} must be {kinds}, as the binding says.")
    if is_out:
        arguments = typing.get_args(annotation)
        if len(arguments) != 1:
            raise ValueError(f"the annotation of {name} must be Out[str] or Out[bytes].")
        annotation = arguments[0]
    converter = GENERIC if annotation in (str, bytes) and converter_for(kind) else kind
    _check_annotation(annotation, converter, kind, is_out=is_out)
    return BoundParameter(converter, annotation)


def _return_value(binding: dict[str, Any], annotations: dict[str, Any]) -> BoundParameter:
    kind, annotation = str(binding["type"]), annotations.get("return")
    if annotation is None or annotation is type(None):
        return BoundParameter(kind)
    _check_annotation(annotation, kind, kind, is_out=True)
    return BoundParameter(kind, annotation)


def _check_annotation(annotation: Any, converter: str, kind: str, *, is_out: bool) -> None:
    """Refuse what the worker refuses: unions, `list[...]`, classes that do not fit the binding."""
    origin = typing.get_origin(annotation)
    builtin = isinstance(annotation, types.GenericAlias)
    is_class = isinstance(annotation, type) or origin not in (None, typing.Union, types.UnionType)
    if builtin or not is_class:
        hint = "write typing.List[...]" if builtin else "name one class"
        raise ValueError(f"the Python worker refuses the annotation {annotation!r}; {hint}.")
    if not _accepts(converter, annotation, is_out=is_out):
        name = getattr(annotation, "__name__", None) or repr(annotation)
        raise ValueError(f"the annotation {name} does not fit a {kind} binding.")


def _accepts(converter: str, annotation: Any, *, is_out: bool) -> bool:
    if converter == GENERIC:
        return True
    rules = converter_for(converter)
    try:
        if is_out:
            return bool(rules.check_output_type_annotation(annotation))
        return bool(rules.check_input_type_annotation(annotation))
    except (TypeError, AttributeError):  # issubclass() of something that is not a class
        return False
