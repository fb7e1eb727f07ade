"""How a program on this machine finds the Service Bus namespace and the table.

``settings`` is what the command ``sas``, the desk and the Python client use. In this order:

1. the profile that was asked for (``sas --env NAME``), from ``~/.config/sas/profiles.toml`` or from
   ``.sas.toml`` in this directory or above it;
2. environment variables;
3. ``.devstack/env`` in this directory or above it, which ``devstack up`` writes while it runs.

One of them is used whole: commands never go to one system while the table is that of another.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

CONNECTION = "ServiceBus"
"""Setting of the Functions connection: a connection string, or for a managed identity
``ServiceBus__fullyQualifiedNamespace`` in its place.
"""
OF_BUS = (CONNECTION, f"AzureWebJobs{CONNECTION}", f"{CONNECTION}__fullyQualifiedNamespace")
OF_TABLES = ("SAS_TABLES", "SAS_TABLES__endpoint", "AzureWebJobsStorage")
DEVSTACK = Path(".devstack", "env")
IN_PROJECT = ".sas.toml"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")
_EXAMPLE = """[prod]
namespace = "NAME.servicebus.windows.net"
tables = "https://ACCOUNT.table.core.windows.net\""""


class ProfileError(ValueError):
    """There is no such profile, or a file cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """The settings of this program, and where the connections among them come from."""

    settings: Mapping[str, str]
    source: str
    is_plain: bool = False
    """Only environment variables were there to be used."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One environment of a profiles file."""

    name: str
    settings: Mapping[str, str]
    path: Path
    wrong: str = ""
    """Why it cannot be used, and what to do."""


def settings(
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Found:
    """Return the settings of a profile, or without a name those of this directory.

    Raises:
        ProfileError: there is no such profile, its file cannot be read, or the stack that wrote
            ``.devstack/env`` has ended.
    """
    env = dict(os.environ if environ is None else environ)
    here = directory or Path.cwd()
    if name is not None:
        profile = _named(name, profiles(env, here))
        kept = {key: value for key, value in env.items() if not _names_a_system(key)}
        return Found({**kept, **profile.settings}, f"profile {name} of {profile.path}")
    path = _upwards(here, DEVSTACK)
    if any(env.get(key) for key in (*OF_BUS, *OF_TABLES)):
        beside = _differing(path, env)
        other = f", not {beside}" if beside else ""
        return Found(env, f"environment variables{other}", is_plain=not other)
    if path is None:
        nothing = "nothing: no environment variable names a system, and no stack runs here"
        return Found(env, nothing, is_plain=True)
    found, who = _of_stack(path)
    return Found(env | found, f"{path} ({who})")


def profiles(environ: Mapping[str, str], directory: Path) -> Mapping[str, Profile]:
    """Return every profile, the wrong ones too. One's own file wins over the project's.

    Raises:
        ProfileError: a file cannot be read.
    """
    base = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config")
    own, project = Path(base, "sas", "profiles.toml"), _upwards(directory, Path(IN_PROJECT))
    found: dict[str, Profile] = {}
    for path in (project, own):
        if path is not None and path.is_file():
            found |= {one.name: one for one in _read(path)}
    return dict(sorted(found.items()))


def nothing_here(env: Mapping[str, str]) -> str | None:
    """Return what to start, where no setting names a system and no stack runs; None elsewhere."""
    named = any(env.get(key) for key in (*OF_BUS, *OF_TABLES))
    if named or _upwards(Path.cwd(), DEVSTACK) is not None:
        return None
    return (
        f"nothing runs here (no {DEVSTACK} in this directory or above): start `make up` or "
        "`devstack up`; or name a system with"
    )


def service_bus(env: Mapping[str, str]) -> str | None:
    """Return the connection string, or the host name of the namespace, that settings have."""
    return next((env[name] for name in OF_BUS if env.get(name)), None)


def _names_a_system(key: str) -> bool:
    systems = (f"{CONNECTION}__", "SAS_TABLES__")
    return key in {*OF_BUS, *OF_TABLES, "SAS_TABLE"} or key.startswith(systems)


def _named(name: str, known: Mapping[str, Profile]) -> Profile:
    good = [one.name for one in known.values() if not one.wrong]
    found = known.get(name) or (None if good else next(iter(known.values()), None))
    if found is not None and found.wrong:
        raise ProfileError(found.wrong)
    if found is not None:
        return found
    if not known:
        raise ProfileError(
            f"there is no profile {name[:60]!r}: write one to ~/.config/sas/profiles.toml, or to "
            f"{IN_PROJECT} in the project:\n{_EXAMPLE}"
        )
    raise ProfileError(f"there is no profile {name[:60]!r}: give one of {', '.join(good)}")


def _upwards(directory: Path, name: Path) -> Path | None:
    here = directory.resolve()
    return next((p / name for p in (here, *here.parents) if (p / name).is_file()), None)


# -- Profiles ---------------------------------------------------------------------------------


def _read(path: Path) -> Iterator[Profile]:
    import tomllib  # noqa: PLC0415  # a function app, which starts cold, reads no profile

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise ProfileError(f"{path} cannot be read ({wrong.strerror})") from None
    except (ValueError, RecursionError) as wrong:  # no TOML, or no UTF-8
        raise ProfileError(f"{path} is not TOML: {wrong}") from None
    for name, members in found.items():
        try:
            yield Profile(name, _settings_of(path, name, members), path)
        except ProfileError as wrong:
            yield Profile(name, {}, path, str(wrong))


def _settings_of(path: Path, name: str, members: Any) -> dict[str, str]:
    if not isinstance(members, dict) or not _NAME.fullmatch(name):
        raise ProfileError(
            f"{path}: {name[:60]!r} is not a profile: begin each with [NAME], for instance\n"
            f"{_EXAMPLE}"
        )
    where = f"{path}, [{name}]"
    names = {"namespace": OF_BUS[2], "tables": OF_TABLES[1], "table": "SAS_TABLE"}
    others = members.get("settings", {})
    unknown = ", ".join(sorted(members.keys() - names - {"settings"}))
    if unknown:
        raise ProfileError(
            f"{where}: {unknown} is not known: give {', '.join(names)}, and other settings under "
            "[NAME.settings]"
        )
    flat = {names[key]: value for key, value in members.items() if key != "settings"}
    if not isinstance(others, dict) or not all(
        isinstance(value, str) for value in (*flat.values(), *others.values())
    ):
        raise ProfileError(f'{where}: each value is a text in quotes, as in table = "orders"')
    return flat | others


# -- The stack on this machine ----------------------------------------------------------------


def _of_stack(path: Path) -> tuple[dict[str, str], str]:
    """Return the settings of the stack that runs, and which it is."""
    try:
        with path.open(encoding="utf-8") as file:
            is_ours = not hasattr(os, "getuid") or os.fstat(file.fileno()).st_uid == os.getuid()
            (who, found), runs = _parsed(file.read() if is_ours else ""), _is_held(file)
    except OSError as wrong:
        raise ProfileError(f"{path} cannot be read ({wrong.strerror})") from None
    except ValueError:  # no closing quotation, or no UTF-8
        raise ProfileError(f"{path} was changed by hand: remove it, and start again") from None
    if not is_ours:
        raise ProfileError(
            f"{path} belongs to another user and is not used: name the system with --env, or with "
            "environment variables"
        )
    if not runs:
        raise ProfileError(
            f"{path} is that of a stack that has ended ({who}): start it again, or remove the file"
        )
    return found, who


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    words = shlex.split(text, comments=True)
    pairs = (word.partition("=") for before, word in pairwise(words) if before == "export")
    who = text.partition("\n")[0].lstrip("# ")
    return who, {name: value for name, _, value in pairs}


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


def _differing(path: Path | None, env: Mapping[str, str]) -> Path | None:
    """Return the file of a stack that runs here and is another one than the environment's."""
    if path is None:
        return None
    try:
        found, _ = _of_stack(path)
    except ProfileError:
        return None
    return path if any(env.get(name) != value for name, value in found.items()) else None
