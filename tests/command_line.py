"""Whether a command that a page, an alert or a script names is one that ``sas`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from sas.cli.main import OLD_NAMES, app


def check_command(arguments: Sequence[str]) -> None:
    """Check that the verb, its options and its arguments exist, without running it."""
    command: Any = get_group(app)
    context, words = None, list(arguments)
    try:
        while isinstance(command, TyperGroup):
            context = command.make_context("sas", words, parent=context)
            name, command, words = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            assert name not in OLD_NAMES, f"sas {' '.join(arguments)}: an old name"
        command.make_context(name, words, parent=context)
    except TyperException as error:
        pytest.fail(f"sas {' '.join(arguments)}: {error.format_message()}")
