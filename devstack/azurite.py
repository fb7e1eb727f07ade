"""Azurite, Microsoft's storage emulator, as a child process.

Azurite sends telemetry unless an option turns it off. It saves its data every 5 seconds and when
it receives SIGINT, so `stop` sends SIGINT. `azurite/guard.js` runs in its process and keeps web
pages out. With data on disk, so does `azurite/journal.js`: a journal keeps each answered change
over `kill -9`.

Only the pinned Azurite runs: the one in this package's directory, or the one that `install` put
into this user's cache. A node_modules of a project or above it, and PATH, may be anybody's.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from signal import SIGINT
from typing import Any, Self

from devstack.children import Child, Scratch, Steps, free_port, wait_for, wait_for_async
from devstack.inputs import ChildFailedError, DevstackError, NotInstalledError, make_directory

# Published by Microsoft for every storage emulator; not a secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
FIXED_PORT = 10002

_PACKAGE = Path(__file__).parent / "azurite"
"""Its package.json and package-lock.json pin Azurite. A working copy has node_modules here too."""
_GUARD, _JOURNAL = _PACKAGE / "guard.js", _PACKAGE / "journal.js"
_MAIN = Path("azurite/dist/src/table/main.js")
_INSTALL_S = 900
_READY_S = 30.0
_STOP_S = 4.0
_ATTEMPTS_MAX = 5


class _Process(Child):
    """Azurite's own process."""

    def ready_line(self) -> dict[str, Any] | None:
        """Return a dict once Azurite has printed that it listens, and None before.

        To try the port would prove nothing, because another process could listen on it.
        """
        pattern = r"successfully (listening at|started on) \S*:\d+"
        return {} if re.search(pattern, "\n".join(self.out_lines())) else None


@dataclass(eq=False)
class Azurite:
    """The table service of Azurite on 127.0.0.1.

        with Azurite() as azurite:
            TableServiceClient.from_connection_string(azurite.connection_string)

    `async with` does the same without blocking the loop. `location` is the directory for the data;
    None keeps the data in memory. `port` 0 takes a free port. `logs` is the directory for Azurite's
    output; None uses a temporary one. `tls` is a certificate and its key (PEM files): Azurite then
    speaks HTTPS alone, and takes tokens of an identity beside its key (it does not check who signed
    them).
    """

    location: Path | None = None
    _: KW_ONLY
    port: int = 0
    logs: Path | None = None
    tls: tuple[Path, Path] | None = None

    def __post_init__(self) -> None:
        self._fixed_port, self.port = self.port, 0
        self.child: Child | None = None
        self._scratch: Scratch | None = None

    @property
    def connection_string(self) -> str:
        """The connection string for storage SDKs; raises DevstackError before the start."""
        if not self.port:
            raise DevstackError("Azurite has no connection string before it is started.")
        account = f"AccountName={ACCOUNT};AccountKey={KEY}"
        scheme = self.endpoint.partition(":")[0]
        return f"DefaultEndpointsProtocol={scheme};{account};TableEndpoint={self.endpoint};"

    @property
    def endpoint(self) -> str:
        """The address of the tables."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/{ACCOUNT}"

    def start(self) -> None:
        """Start Azurite and wait (blocking) until it listens, or raise DevstackError."""
        wait_for(self._start_steps())

    async def start_async(self) -> None:
        """Do the same as `start` without blocking the loop."""
        await wait_for_async(self._start_steps())

    def _start_steps(self) -> Steps[None]:
        """Start on a port; if another process takes this free port first, try another one."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            port = self._fixed_port or free_port()
            child = self.child = self._launch(port)
            try:
                yield from child.until_steps(child.ready_line, _READY_S)
            except BaseException as error:
                is_busy = isinstance(error, ChildFailedError) and "EADDRINUSE" in child.tail()
                self.stop()
                if not is_busy:
                    raise
                if self._fixed_port or attempt == _ATTEMPTS_MAX:
                    raise ChildFailedError(
                        f"Azurite cannot have port {port}: another process listens there; stop it, "
                        "or ask for free ports."
                    ) from None
            else:
                self.port = port
                return

    def _launch(self, port: int) -> Child:
        node, program = _node(), _program()
        if self.logs is None and self._scratch is None:
            self._scratch = Scratch("azurite-")
        logs = self.logs or (self._scratch.path if self._scratch else Path())
        argv = [node, "--require", str(_GUARD)]
        argv += [] if self.location is None else ["--require", str(_JOURNAL)]
        argv += [str(program), "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        argv += ["--tableHost", "127.0.0.1", "--tablePort", str(port)]
        if self.tls is not None:
            certificate, key = self.tls
            argv += ["--oauth", "basic", "--cert", str(certificate), "--key", str(key)]
        if self.location is None:
            argv.append("--inMemoryPersistence")
        else:
            argv += ["--location", str(make_directory(self.location).resolve())]
        child = _Process("azurite", argv, logs=logs, cwd=logs)
        child.start()
        return child

    def stop(self, *, timeout_s: float = _STOP_S) -> None:
        """Stop Azurite (blocking) and keep the data on disk; a second call does nothing.

        If Azurite still runs after `timeout_s` seconds, it is killed.
        """
        wait_for(self._stop_steps(timeout_s))

    async def stop_async(self) -> None:
        """Do the same as `stop` without blocking the loop."""
        await wait_for_async(self._stop_steps(_STOP_S))

    def _stop_steps(self, timeout_s: float) -> Steps[None]:
        if self.child is not None:
            yield from self.child.stop_steps(SIGINT, timeout_s)
        self.child, self.port = None, 0
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_async()


def require_node() -> str:
    """Return the path of Node; raise NotInstalledError if Node or Azurite is missing."""
    node = _node()
    _program()
    return node


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        raise NotInstalledError("Node was not found on PATH: install Node 20 or newer for Azurite.")
    return node


def _program() -> Path:
    """Return the program of Azurite's table service, or raise NotInstalledError."""
    for root in (_PACKAGE, _cache()):
        place = root / "node_modules" / _MAIN
        if place.exists():
            return place
    raise NotInstalledError(
        f"Azurite is not installed in {_cache()}: run `devstack install` (npm installs it there)."
    )


def install() -> Path:
    """Install the pinned Azurite with npm for this user (blocking), or raise DevstackError."""
    _node()
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("npm was not found on PATH: install Node 20 or newer with npm.")
    target = make_directory(_cache())
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(_PACKAGE / name, target / name)
    argv = [npm, "ci", "--prefix", str(target), "--no-fund", "--no-audit", "--loglevel=error"]
    try:
        process = subprocess.run(  # noqa: S603  # the npm that PATH names
            argv, cwd=target, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChildFailedError(f"npm could not install Azurite: {error}.") from error
    if process.returncode:
        output = process.stderr.strip()[-500:]
        raise ChildFailedError(
            f"npm could not install Azurite (is its registry reached?): {output}"
        )
    return target / "node_modules" / _MAIN


def _cache() -> Path:
    """Return the directory that `install` fills. Each version of Azurite has its own."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    version = json.loads((_PACKAGE / "package.json").read_text())["dependencies"]["azurite"]
    cache = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return cache / "devstack" / f"azurite-{version}"
