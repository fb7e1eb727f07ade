"""Whether a command that a page, an alert or a script names is one that ``sas`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from sas.cli.main import OTHER_NAMES, app


@cache
def _sas() -> TyperGroup:
    return get_group(app())


def wrong_in(arguments: Sequence[str]) -> str:
    """Return what is wrong with a command, without running it; an empty text if nothing is."""
    command: Any = _sas()
    context: Any = None
    name: str | None = "sas"
    words = list(arguments)
    try:
        while isinstance(command, TyperGroup):
            context = command.make_context(name, words, parent=context)
            words = [*context._protected_args, *context.args]
            if not words and command.invoke_without_command:
                return ""
            name, command, words = command.resolve_command(context, words)
            if context.parent is None and name in OTHER_NAMES:
                return f"{name} is an old name"
        command.make_context(name, words, parent=context)
    except TyperException as error:
        return error.format_message()
    except typer.Exit:  # of --version or --help
        return ""
    return ""


def check_command(arguments: Sequence[str]) -> None:
    """Check that the verb, its options and its arguments exist."""
    assert wrong_in(arguments) == "", f"sas {' '.join(arguments)}"
