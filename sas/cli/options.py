"""The options that several verbs share."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from sas.cli import screen
from sas.operate.errors import UsageError
from sas.operate.inputs import check_name


def value(
    metavar: str, text: str, *, name: str | None = None, panel: str | None = None
) -> OptionInfo:
    """Return an option with a value. ``panel`` is the heading of its group in the help."""
    option: OptionInfo = typer.Option(
        *([name] if name else []),
        metavar=metavar,
        help=text,
        show_default=False,
        rich_help_panel=panel,
    )
    return option


OrderID = Annotated[str, typer.Argument(metavar="ORDER_ID", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
App = Annotated[
    str | None,
    value("MODULE", "The application (default: app of tool.sas in pyproject.toml)."),
]
By = Annotated[str | None, value("NAME", "Your name (default: SAS_OPERATOR).")]
Reason = Annotated[str, value("TEXT", "Why you do this, for the journal.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before sending.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would happen.")]
Since = Annotated[str | None, value("WHEN", "Only since then: 30m, 1h, 2d, or a time in UTC.")]

OPERATOR_SETTING = "SAS_OPERATOR"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"([0-9]{1,9})([smhdw])")


def operator(by: str | None) -> str:
    """Return the name of the operator as the journal keeps it: ``--by``, the setting, or the user.

    Raises:
        UsageError: there is no name, or the journal does not take it.
    """
    try:
        name = by or os.environ.get(OPERATOR_SETTING) or getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise UsageError(
            f"your user has no name here: give --by NAME or set {OPERATOR_SETTING}"
        ) from None
    return check_name(name, "--by" if by else OPERATOR_SETTING)


def moment(text: str) -> datetime:
    """Return the moment that an option names, such as ``30m`` (30 minutes ago) or a time.

    A time without a zone is in UTC.

    Raises:
        UsageError: the text names no moment.
    """
    span = _SPAN.fullmatch(text)
    if span:
        number, unit = span.groups()
        try:
            return screen.now() - timedelta(**{_UNITS[unit]: int(number)})
        except (OverflowError, ValueError):
            pass
    try:
        instant = datetime.fromisoformat(text)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text[:40]!r} is not a time: give one like 1h, 2026-11-21 or 2026-11-21T03:00"
        ) from None


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the members of a verb's ``chosen`` (a dataclass) as options of the verb."""
    *parameters, chosen = signature(verb, eval_str=True).parameters.values()
    shared = signature(chosen.annotation, eval_str=True).parameters
    parameters += shared.values()

    @wraps(verb)
    def run(*positional: Any, **named: Any) -> None:
        members = {name: named.pop(name) for name in shared}
        verb(*positional, **named, chosen=chosen.annotation(**members))

    vars(run)["__signature__"] = Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
