"""Read what people write: options, directories, JSON files.

Each function returns a value, or raises an error with one sentence that says what to do.
"""

import argparse
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES_MAX = 64
"""Host processes of a group. Each takes about 60 MB, and a second of CPU at its start."""

# Each pattern matches strings first, so that `//` inside a string does not start a comment.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)
_KINDS = {list: "a list", str: "a string", bool: "a boolean"}


class DevstackError(Exception):
    """An error for the person who runs `devstack`: one sentence that says what to do."""


class ChildFailedError(DevstackError):
    """A child process did not start, or ended although nobody stopped it."""


class NotInstalledError(DevstackError):
    """Software is missing on this machine; the sentence says how to install it."""


def make_directory(path: Path) -> Path:
    """Create the directory `path` if it is missing; return it, or raise DevstackError.

    Only this user can read a new one: it has orders and logs.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DevstackError(
            f"{path} cannot be a directory for data ({error.strerror}): name another one."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise DevstackError(f"{path} cannot be written: name another directory.")
    return path


def whole_number(text: str) -> int | None:
    """Read a number of at most 15 ASCII digits; return None for any other text.

    `str.isdigit` alone also accepts characters that `int` refuses, such as a superscript two.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def setting_pair(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`; a type for argparse."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} must have the form NAME=VALUE")
    return name, value


def needed_port(text: str) -> tuple[int, str]:
    """Split `PORT=NAME`; a type for argparse."""
    digits, name = setting_pair(text)
    port = whole_number(digits)
    if not port or port > 65535:
        raise argparse.ArgumentTypeError(f"{digits!r} must be a port, from 1 to 65535")
    return port, name


def name_list(text: str) -> list[str]:
    """Split `NAME,NAME`; a type for argparse."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one function")
    return names


def add_app_options(add: Callable[..., object], *, only: list[str] | None) -> None:
    """Add the options that `devstack up` and the host share; `only` is the default of --only."""
    names_form = "NAME[,NAME]"
    add("--only", type=name_list, default=only, metavar=names_form, help="run these functions only")
    add(
        "--except",
        type=name_list,
        dest="without",
        default=[],
        metavar=names_form,
        help="do not run these functions",
    )
    add(
        "--setting",
        type=setting_pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an app setting; overrides the environment and local.settings.json",
    )
    add(
        "--allow-remote",
        action="store_true",
        help="allow connections to services that are not on this machine",
    )


def load_object(
    source: Path | str, error_class: type[DevstackError] = DevstackError
) -> dict[str, Any]:
    """Read the JSON object of a file (Path) or of a text (str), or raise `error_class`.

    Comments and trailing commas are allowed, as in host.json and local.settings.json.
    """
    place = source if isinstance(source, Path) else "the text"
    try:
        text = source.read_text(encoding="utf-8-sig") if isinstance(source, Path) else source
        content = json.loads(without_comments(text))
    except (OSError, ValueError, RecursionError) as error:
        raise error_class(f"{place} {_problem(error)}.") from error
    if not isinstance(content, dict):
        kind = _KINDS.get(type(content), "a number or null")
        raise error_class(f"{place} must hold a JSON object ({{...}}), not {kind}.")
    return content


def _problem(error: Exception) -> str:
    match error:
        case OSError():
            return f"cannot be read ({error.strerror or error}): check the path"
        case UnicodeDecodeError():
            return "is not UTF-8 text: save it as UTF-8"
        case json.JSONDecodeError():
            return f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        case RecursionError():
            return "nests too deep: use fewer levels"
    return "holds a number of too many digits: shorten it"


def without_comments(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that lines and columns stay the same."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)

    return _STRING_OR_COMMA.sub(blank, _STRING_OR_COMMENT.sub(blank, text))
