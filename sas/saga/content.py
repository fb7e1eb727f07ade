"""The content of orders and results: JSON outside, the types of the adopter inside."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from sas.codec.strict import MalformedError, convert
from sas.ports import HeldError

R_co = TypeVar("R_co", covariant=True)


class Kept(Generic[R_co]):
    """Something with a result that is kept: a step, by its name. ``shape`` is the result's type."""

    name: str

    @property
    def shape(self) -> Any:
        """The type of its result."""
        raise NotImplementedError


def no_object(shape: Any) -> str:
    """Return why values of a type are no JSON objects; an empty text if they are."""
    schema = msgspec.json.schema(shape)
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    choices = schema.get("anyOf", [schema])
    is_object = all("$ref" in choice or choice.get("type") == "object" for choice in choices)
    return "" if is_object else "an order is a JSON object"


def decoded(value: object, shape: Any, what: str) -> Any:
    """Return a JSON value in its type.

    Raises:
        HeldError: it does not fit. The text names the member.
    """
    try:
        return convert(msgspec.json.encode(value), shape)
    except MalformedError as error:
        raise HeldError(f"{what} does not fit {shown(shape)}: {error}") from None


def encoded(value: object, shape: Any, what: str) -> Any:
    """Return a value as JSON holds it.

    Raises:
        HeldError: it is not of its type.
    """
    try:
        text = msgspec.json.encode(value)
        convert(text, shape)
        return msgspec.json.decode(text)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise HeldError(f"{what} is no {shown(shape)}: {error}") from None


def no_json(shape: Any) -> str:
    """Return why JSON cannot hold a type; an empty text if it can."""
    try:
        msgspec.json.schema(shape)
    except (TypeError, NameError) as error:
        text = str(error)
        return text if "\n" not in text else "it has no members that can be read"
    return ""


def shown(shape: Any) -> str:
    """Return a type as an adopter writes it."""
    return shape.__name__ if isinstance(shape, type) else str(shape).replace("typing.", "")
