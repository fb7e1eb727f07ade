"""How a program on this machine finds the Service Bus namespace and the table.

``here`` is what the command ``sas``, the desk and the Python client use. In this order:

1. environment variables;
2. ``.devstack/env`` in this directory or above it, which ``devstack up`` writes while it runs.

The two are never mixed. Otherwise commands could go to one system while the table is another's.
With a stack, the settings of callbacks that the environment lacks come from the
``local.settings.json`` beside it, as the app of the stack has them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TextIO

CONNECTION = "ServiceBus"
"""Setting of the Functions connection: a connection string, or for a managed identity
``ServiceBus__fullyQualifiedNamespace`` in its place.
"""
OF_BUS = (CONNECTION, f"AzureWebJobs{CONNECTION}", f"{CONNECTION}__fullyQualifiedNamespace")
OF_TABLES = ("SAS_TABLES", "SAS_TABLES__endpoint", "AzureWebJobsStorage")
OF_CALLBACKS = ("SAS_CALLBACK_KEY", "SAS_CALLBACK_URL")
STACK = Path(".devstack", "env")
NOTHING = (
    f"nothing runs here (no {STACK} in this directory or above): start `make up` or `devstack up`"
)


class StackError(ValueError):
    """The ``.devstack/env`` of this directory cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Here:
    """The settings of this program. ``stack`` names the stack that they come from, if any."""

    settings: Mapping[str, str]
    stack: str | None = None


def here(environ: Mapping[str, str] | None = None, directory: Path | None = None) -> Here:
    """Return the settings of a program in this directory.

    Raises:
        StackError: the stack that wrote ``.devstack/env`` has ended, or the file is not ours.
    """
    env = dict(os.environ if environ is None else environ)
    path = None if names_a_system(env) else _upwards(directory or Path.cwd())
    if path is None:
        return Here(env)
    settings, stack = _of_stack(path)
    local = settings_of(path.parent.parent)
    callbacks = {
        name: local[name] for name in OF_CALLBACKS if local.get(name) and not env.get(name)
    }
    return Here(env | callbacks | settings, f"{path} ({stack})")


def settings_of(directory: Path) -> dict[str, str]:
    """Return the settings that the Functions host would take from ``local.settings.json``."""
    try:
        values = json.loads((directory / "local.settings.json").read_text("utf-8")).get("Values")
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return {name: str(text) for name, text in values.items()} if isinstance(values, dict) else {}


def names_a_system(env: Mapping[str, str]) -> bool:
    """Return whether settings name a namespace or a table."""
    return any(env.get(name) for name in (*OF_BUS, *OF_TABLES))


def service_bus(env: Mapping[str, str]) -> str | None:
    """Return the connection string, or the host name of the namespace, that settings have."""
    return next((env[name] for name in OF_BUS if env.get(name)), None)


def _upwards(directory: Path) -> Path | None:
    start = directory.resolve()
    return next((p / STACK for p in (start, *start.parents) if (p / STACK).is_file()), None)


def _of_stack(path: Path) -> tuple[dict[str, str], str]:
    """Return the settings of the stack that runs, and its name."""
    try:
        with path.open(encoding="utf-8") as file:
            is_ours = not hasattr(os, "getuid") or os.fstat(file.fileno()).st_uid == os.getuid()
            (stack, settings), runs = _parsed(file.read() if is_ours else ""), _is_held(file)
    except OSError as error:
        raise StackError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError:  # no closing quotation, or no UTF-8
        raise StackError(f"{path} was changed by hand: remove it, and start again") from None
    if not is_ours:
        raise StackError(
            f"{path} belongs to another user and is not used: name the system with environment "
            "variables"
        )
    if not runs:
        raise StackError(
            f"{path} is that of a stack that has ended ({stack}): start it again, or remove the "
            "file"
        )
    return settings, stack


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    words = shlex.split(text, comments=True)
    pairs = (word.partition("=") for before, word in pairwise(words) if before == "export")
    stack = text.partition("\n")[0].lstrip("# ")
    return stack, {name: value for name, _, value in pairs}


def _is_held(file: TextIO) -> bool:
    """Return whether the stack that wrote the file runs: it holds a lock on it."""
    try:
        import fcntl  # noqa: PLC0415  # not on Windows, where devstack does not run either
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
