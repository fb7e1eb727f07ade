"""A function's parameters against its bindings, judged as the Python worker judges them.

The rules are those of `azure_functions_runtime.functions` 1.3, in our own words: what
indexes here indexes there, and what is refused there is refused here.
"""

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import azure.functions as func
from azure.functions import meta

from devstack.functions.errors import IndexingError

GENERIC = "generic"


@dataclass(frozen=True)
class BoundParameter:
    """How one parameter is converted: by a binding's converter, or as it comes (generic)."""

    converter: str
    annotation: Any = None


@dataclass(frozen=True)
class Signature:
    """What a function wants to be called with, and what it gives back."""

    inputs: dict[str, BoundParameter]
    outputs: dict[str, BoundParameter]
    wants_context: bool
    is_async: bool
    returns: BoundParameter | None = None
    return_binding: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def read_signature(
    name: str, function: Callable[..., Any], bindings: list[dict[str, Any]]
) -> Signature:
    """Check `function` against `bindings` (one dict each, as in function.json).

    Raises:
        IndexingError: they do not fit; the sentence says how.
    """
    parameters = set(inspect.signature(function).parameters)
    annotations = _hints(name, function)
    bound = {str(b["name"]): b for b in bindings if b["name"] != "$return"}
    returned = next((b for b in bindings if b["name"] == "$return"), None)
    wants_context = _context(name, parameters, bound, annotations)
    _same_names(name, parameters - {"context"} if wants_context else parameters, set(bound))
    inputs: dict[str, BoundParameter] = {}
    outputs: dict[str, BoundParameter] = {}
    for parameter, binding in bound.items():
        is_out = str(binding["direction"]) == "OUT"
        one = _parameter(name, parameter, binding, annotations, is_out=is_out)
        (outputs if is_out else inputs)[parameter] = one
    return Signature(
        inputs=inputs,
        outputs=outputs,
        wants_context=wants_context,
        is_async=inspect.iscoroutinefunction(function),
        returns=_returned(name, returned, annotations) if returned else None,
        return_binding=str(returned["type"]) if returned else None,
    )


def converter_for(binding: str) -> Any:
    """The azure-functions converter of a binding type, or None (then it is generic)."""
    registry: Any = meta.get_binding_registry()  # type: ignore[no-untyped-call]
    return registry.get(binding)


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise IndexingError(
            f"Function {name}: an annotation names something that is not defined: {error}."
        ) from error


def _context(
    name: str, parameters: set[str], bound: dict[str, Any], annotations: dict[str, Any]
) -> bool:
    if "context" not in parameters or "context" in bound:
        return False
    annotation = annotations.get("context", func.Context)
    if not isinstance(annotation, type) or annotation.__name__ != "Context":
        raise IndexingError(
            f"Function {name}: the parameter context must be an azure.functions.Context, "
            f"not {annotation!r}."
        )
    return True


def _same_names(name: str, parameters: set[str], bound: set[str]) -> None:
    unbound = sorted(parameters - bound)
    if unbound:
        raise IndexingError(
            f"Function {name} has the parameter {', '.join(unbound)}, which no binding names: "
            f"rename it to the binding's arg_name ({', '.join(sorted(bound)) or 'none'})."
        )
    missing = sorted(bound - parameters)
    if missing:
        raise IndexingError(
            f"Function {name} has a binding named {', '.join(missing)} but no such parameter: "
            "add it, or correct arg_name."
        )


def _parameter(
    name: str, parameter: str, binding: dict[str, Any], annotations: dict[str, Any], *, is_out: bool
) -> BoundParameter:
    kind = str(binding["type"])
    if parameter not in annotations:
        return BoundParameter(kind)
    annotation = annotations[parameter]
    where = f"Function {name}, parameter {parameter}"
    says_out = (typing.get_origin(annotation) or annotation) is func.Out
    if is_out != says_out:
        wanted = "azure.functions.Out[...]" if is_out else "no azure.functions.Out"
        raise IndexingError(f"{where}: its annotation must be {wanted}, as the binding says.")
    if says_out:
        arguments = typing.get_args(annotation)
        if len(arguments) != 1:
            raise IndexingError(f"{where}: write Out[str] or Out[bytes].")
        annotation = arguments[0]
    _plain(where, annotation)
    converter = GENERIC if annotation in (str, bytes) and converter_for(kind) else kind
    if not _accepts(converter, annotation, is_out=is_out):
        raise IndexingError(
            f"{where}: the annotation {_named(annotation)} does not fit a {kind} binding."
        )
    return BoundParameter(converter, annotation)


def _plain(where: str, annotation: Any) -> None:
    """The worker takes classes and typing.List[...], but no unions and no list[...]."""
    if isinstance(annotation, types.GenericAlias):
        raise IndexingError(
            f"{where}: the Python worker refuses {annotation!r}; write typing.List[...]."
        )
    origin = typing.get_origin(annotation)
    is_union = origin in (typing.Union, types.UnionType)
    if is_union or not (isinstance(annotation, type) or origin is not None):
        raise IndexingError(
            f"{where}: the Python worker refuses the annotation {annotation!r}; name one class."
        )


def _accepts(converter: str, annotation: Any, *, is_out: bool) -> bool:
    if converter == GENERIC:
        return True
    found = converter_for(converter)
    try:
        if is_out:
            return bool(found.check_output_type_annotation(annotation))
        return bool(found.check_input_type_annotation(annotation))
    except (TypeError, AttributeError):  # issubclass() of something that is no class
        return False


def _returned(name: str, binding: dict[str, Any], annotations: dict[str, Any]) -> BoundParameter:
    kind = str(binding["type"])
    annotation = annotations.get("return")
    if annotation is None or annotation is type(None):
        return BoundParameter(kind)
    where = f"Function {name}, its return value"
    _plain(where, annotation)
    if not _accepts(kind, annotation, is_out=True):
        raise IndexingError(
            f"{where}: the annotation {_named(annotation)} does not fit a {kind} binding."
        )
    return BoundParameter(kind, annotation)


def _named(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or repr(annotation)
