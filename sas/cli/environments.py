"""``--env`` of every verb, and ``sas env``: which system the command works on."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sas import profiles
from sas.cli import output
from sas.cli.arguments import Verb
from sas.codec.record import to_line
from sas.operate.errors import UsageError
from sas.profiles import Found, ProfileError

DESCRIPTION = """\
Show the environments (profiles) of `sas --env NAME`, and what is used without it. Profiles are in
~/.config/sas/profiles.toml, or in .sas.toml in this directory or above it. With your own sign-in
(az login) they need no secret:

  [prod]
  namespace = "NAME.servicebus.windows.net"
  tables = "https://ACCOUNT.table.core.windows.net"
  table = "orders"                    # only if SAS_TABLE differs from orders
  settings = { SAS_QUEUE_ORDERS = "in" }   # only if others differ

Without --env, `sas` uses environment variables, or else .devstack/env in this directory or above
it: `devstack up` writes it while it runs.

  sas env list
  sas env show prod
  sas --env prod list
"""
_SECRET = re.compile(r"(?i)((?:SharedAccessKey|AccountKey|SharedAccessSignature)=)[^;]+")
_SECRET_NAME = re.compile(r"(?i)key|secret|password|token")


def add_globals(parser: argparse.ArgumentParser, default: object = None) -> None:
    """Add the options that may come before or after the verb."""
    parser.add_argument(
        "--env", metavar="NAME", default=default, help="the environment (profile): see `sas env`"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=default or False,
        help="say on stderr which environment is used",
    )


@contextmanager
def chosen(arguments: argparse.Namespace) -> Iterator[None]:
    """Let the process's environment be that of the system to work on, as long as this lasts.

    Raises:
        UsageError: there is no such profile, or a file cannot be used.
    """
    named = [getattr(arguments, name) for name in _CONNECTS if hasattr(arguments, name)]
    if not named or (any(named) and arguments.env is None):
        yield  # it connects to nothing, or to what its own arguments say
        return
    found = _found(arguments.env)
    if arguments.verbose or (not found.is_plain and output.columns(sys.stderr)):
        output.complain(f"sas: using {found.source}")
    before = dict(os.environ)
    _replace(found.settings)
    try:
        yield
    finally:
        _replace(before)


_CONNECTS = ("storage", "connection")
"""Arguments of the verbs that reach a system."""


def _replace(settings: Mapping[str, str]) -> None:
    for name in os.environ.keys() - settings.keys():
        del os.environ[name]
    os.environ.update(settings)


def _found(name: str | None) -> Found:
    try:
        return profiles.settings(name)
    except ProfileError as wrong:
        raise UsageError(str(wrong)) from None


# -- sas env ----------------------------------------------------------------------------------


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "show"], nargs="?", default="list")
    parser.add_argument("name", metavar="NAME", nargs="?", help="show: the profile (default: none)")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.action == "show":
        return _show(_found(arguments.name or arguments.env), as_json=arguments.json)
    if arguments.name:
        raise UsageError("sas env list has no NAME: `sas env show NAME` shows one")
    try:
        known = profiles.profiles(os.environ, Path.cwd())
    except ProfileError as wrong:
        raise UsageError(str(wrong)) from None
    rows = [
        (one.name, *(_told(one.settings, names) for names in _SHOWN.values()), str(one.path))
        for one in known.values()
        if not one.wrong
    ]
    for one in known.values():
        if one.wrong:
            output.complain(f"sas: {one.wrong}")
    heading = ("Environment", *_SHOWN, "From")
    if arguments.json:
        for row in rows:
            output.say(to_line(dict(zip(heading, row, strict=True))))
        return 0
    for line in output.table(heading, rows) if rows else ():
        output.say(line)
    output.say(_without_env())
    return 0


_SHOWN: Mapping[str, tuple[str, ...]] = {
    "Namespace": profiles.OF_BUS,
    "Tables": profiles.OF_TABLES,
    "Table": ("SAS_TABLE",),
}


def _told(settings: Mapping[str, str], names: tuple[str, ...]) -> str:
    found = next(((name, settings[name]) for name in names if settings.get(name)), None)
    return masked(*found) if found else "-"


def _without_env() -> str:
    try:
        return f"without --env: {profiles.settings().source}"
    except ProfileError as wrong:
        return f"without --env: {wrong}"


def _show(found: Found, *, as_json: bool) -> int:
    plain = {
        name: masked(name, value)
        for name, value in sorted(found.settings.items())
        if name in {*profiles.OF_BUS, *profiles.OF_TABLES}
        or name.startswith(("SAS_", "ServiceBus"))
    }
    if as_json:
        output.say(to_line({"Source": found.source, "Settings": plain}))
        return 0
    output.say(f"from {found.source}")
    for line in output.facts([(f"  {name}", value) for name, value in plain.items()]):
        output.say(line)
    return 0


def masked(name: str, value: str) -> str:
    """Return a setting without its secrets."""
    text = _SECRET.sub(r"\1***", value)
    return "***" if text == value and _SECRET_NAME.search(name) else text


VERBS = (Verb("env", "show the environments, and which one is used", DESCRIPTION, _add, _run),)
