"""What a workflow definition may hold. A refusal says where, and what to write instead."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

from sas.domain.policies import (
    TIME_ALLOWED_MAX,
    TIME_ALLOWED_MIN,
    Backoff,
    ExtendedWait,
    OnFailure,
    Undo,
)

SHOWN_MAX = 60
_NOTHING = timedelta(0)
_TEXT = (str,), "a text"
_WHOLE = (int,), "a whole number"
_TIME = (timedelta,), "a timedelta, as in timedelta(seconds=30)"
_TIME_OR_NONE = (timedelta, type(None)), "a timedelta, as in timedelta(seconds=30), or None"

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "name": _TEXT,
    "agent": _TEXT,
    "version": _WHOLE,
    "failures_max": _WHOLE,
    "times": _WHOLE,
    "factor": ((int, float), "a number"),
    "time_allowed": _TIME,
    "pickup": _TIME,
    "alert_after": _TIME,
    "first": _TIME,
    "most": _TIME,
    "time": _TIME,
    "deadline": _TIME_OR_NONE,
    "call_limit": _TIME_OR_NONE,
    "notify_steps": ((bool,), "True or False"),
    "after": ((tuple, list, type(None)), 'names in a tuple, as in after=("book-room",), or None'),
    "alternatives": ((tuple, list), 'names in a tuple, as in alternatives=("paypal",)'),
    "on_failure": ((OnFailure,), "OnFailure.HOLD or OnFailure.UNDO"),
    "undo": ((Undo, type(None)), "Undo() or None"),
    "backoff": ((Backoff,), "a Backoff(...)"),
    "extended_wait": ((ExtendedWait, type(None)), "an ExtendedWait(...) or None"),
    "steps": ((tuple, list), "a tuple; of one step, with its comma: steps=(Step(...),)"),
}
"""Of every field of a definition: of what kinds its value is, and that in words."""


class WorkflowError(ValueError):
    """A workflow is defined wrongly; the message says where and what to change."""


def check_kinds(where: str, definition: Any) -> None:
    """Refuse a definition with a value of the wrong kind, which would fail at some order later.

    Raises:
        WorkflowError: naming the field, its value, and what to give.
    """
    for member in fields(definition):
        if member.init:
            kinds, wanted = _KINDS[member.name]
            value = getattr(definition, member.name)
            if not isinstance(value, kinds):
                shown = repr(value)[:SHOWN_MAX]
                raise WorkflowError(f"{where}: {member.name}={shown}: give {wanted}")


def check_span(where: str, what: str, span: timedelta, least: timedelta = TIME_ALLOWED_MIN) -> None:
    """Refuse a span of time out of bounds.

    Raises:
        WorkflowError: naming the bounds.
    """
    if not least <= span <= TIME_ALLOWED_MAX:
        from_ = "0" if least == _NOTHING else str(least)
        raise WorkflowError(f"{where}: {what} lies between {from_} and {TIME_ALLOWED_MAX}")


def check_patience(where: str, step: Any) -> None:
    """Refuse times, rests and counts of a step that make no sense.

    Raises:
        WorkflowError: naming which, and the bounds.
    """
    wait, undo, backoff = step.extended_wait, step.undo, step.backoff
    for part, definition in (("undo", undo), ("extended_wait", wait), ("backoff", backoff)):
        if definition is not None:
            check_kinds(f"{where} {part}", definition)
    for time in (
        step.time_allowed,
        *([undo.time_allowed] if undo else []),
        *([wait.time] if wait else []),
    ):
        check_span(where, "a time allowed (or waited)", time)
    limit = (undo.call_limit if undo else None) or _NOTHING
    for rest in (limit, backoff.first, backoff.most):
        check_span(where, "a rest or a call limit", rest, _NOTHING)
    if backoff.first > backoff.most:
        raise WorkflowError(
            f"{where}: its backoff begins with {backoff.first}, over its most, {backoff.most}: "
            "give a longer most, or a shorter first"
        )
    if not 1 <= backoff.factor <= 100:
        raise WorkflowError(f"{where}: the factor of a backoff lies between 1 and 100")
    if not 0 <= step.failures_max <= 1000:
        raise WorkflowError(f"{where}: failures_max lies between 0 and 1000")
    if wait is not None and not 1 <= wait.times <= 1000:
        raise WorkflowError(f"{where}: an extended wait is made 1 to 1000 times")
