"""Azurite, Microsoft's storage emulator: started, waited for and stopped.

What was measured and is built in here: telemetry must be turned off or Azurite calls out;
it saves every 5 s and writes the rest when it ends by SIGINT (`azurite-table` loses it on
SIGTERM), so SIGINT is what `stop` sends, and what it gets when this process is killed.
"""

import re
import shutil
import socket
import tempfile
from pathlib import Path
from signal import SIGINT
from types import TracebackType
from typing import Self

from devstack.children import Child
from devstack.directories import make_directory
from devstack.errors import ChildFailedError, DevstackError, NotInstalledError
from devstack.lifecycle import Runnable

# Published by Microsoft for every Azurite and storage emulator: no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SERVICES = ("blob", "queue", "table")
FIXED_PORTS = {"blob": 10000, "queue": 10001, "table": 10002}

_PACKAGE = Path(__file__).with_name("azurite") / "node_modules" / "azurite" / "dist" / "src"
_READY_S = 30.0
_STOP_S = 4.0
_ATTEMPTS = 5


class Azurite(Runnable):
    """One Azurite, on 127.0.0.1, as a context manager (`with` and `async with`).

        with Azurite() as azurite:
            TableServiceClient.from_connection_string(azurite.connection_string)

    Only the table service runs unless others are named.
    """

    def __init__(
        self,
        location: Path | str | None = None,
        *,
        services: tuple[str, ...] = ("table",),
        ports: dict[str, int] | None = None,
        logs: Path | None = None,
    ) -> None:
        """Describe an Azurite.

        `location` is the directory of its data, None keeps everything in memory.
        `ports` fixes the port of a service; the others get free ones. `logs` is a
        directory for its output, a temporary one when None.

        Raises:
            DevstackError: an unknown service.
        """
        unknown = sorted(set(services) - set(SERVICES))
        if unknown or not services:
            raise DevstackError(
                f"Azurite has the services blob, queue and table; {', '.join(unknown) or 'none'} "
                "is not one of them."
            )
        self.location = None if location is None else Path(location)
        self.services = tuple(name for name in SERVICES if name in services)
        self.ports: dict[str, int] = {}
        self.child: Child | None = None
        self._wanted = dict(ports or {})
        self._logs = logs
        self._own_logs: Path | None = None

    @property
    def connection_string(self) -> str:
        """For every storage SDK, and for `AzureWebJobsStorage`.

        Raises:
            DevstackError: it was not started.
        """
        if not self.ports:
            raise DevstackError("Azurite has no connection string before it is started.")
        endpoints = "".join(
            f"{name.capitalize()}Endpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            for name, port in self.ports.items()
        )
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"

    def start(self) -> None:
        """Start it and wait (blocking) until every service listens.

        Raises:
            NotInstalledError: Node or the npm package is missing.
            DevstackError: the location cannot be written.
            ChildFailedError: it did not come up; the message ends with what it printed.
        """
        for attempt in range(_ATTEMPTS):
            child, wanted = self._launch()
            try:
                self.ports = child.wait_until(
                    lambda c=child, w=wanted: self._listening(c, w),  # type: ignore[misc]
                    timeout_s=_READY_S,
                )
            except ChildFailedError as error:
                self._another_attempt(child, error, attempt)
            else:
                return

    async def start_async(self) -> None:
        """The same as `start`, without blocking the loop."""
        for attempt in range(_ATTEMPTS):
            child, wanted = self._launch()
            try:
                self.ports = await child.until(
                    lambda c=child, w=wanted: self._listening(c, w),  # type: ignore[misc]
                    timeout_s=_READY_S,
                )
            except ChildFailedError as error:
                self._another_attempt(child, error, attempt)
            except BaseException:
                self.stop()
                raise
            else:
                return

    def _another_attempt(self, child: Child, error: ChildFailedError, attempt: int) -> None:
        """Return if another port may help; another process can take one between look and bind."""
        taken = "EADDRINUSE" in child.tail()
        child.stop(SIGINT, timeout_s=_STOP_S)
        if taken and not self._wanted and attempt < _ATTEMPTS - 1:
            return
        self._ended()
        if taken:
            ports = ", ".join(str(port) for port in self._wanted.values())
            raise ChildFailedError(
                f"Azurite cannot have port {ports or 'any'}: something else listens there; "
                "stop it, or ask for free ports."
            ) from None
        raise error

    def _launch(self) -> tuple[Child, dict[str, int]]:
        node = require_node()
        if self._logs is None and self._own_logs is None:
            self._own_logs = Path(tempfile.mkdtemp(prefix="azurite-"))
        wanted = {name: self._wanted.get(name) or _free_port() for name in self.services}
        program = "azurite.js" if len(self.services) > 1 else f"{self.services[0]}/main.js"
        logs = self._logs or self._own_logs or Path()
        argv = [node, str(_PACKAGE / program), *self._flags(wanted)]
        self.child = Child("azurite", argv, logs=logs, cwd=logs, dies_by=SIGINT)
        self.child.start()
        return self.child, wanted

    def _flags(self, wanted: dict[str, int]) -> list[str]:
        names = SERVICES if len(self.services) > 1 else self.services
        flags = ["--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        for name in names:
            flags += [f"--{name}Host", "127.0.0.1", f"--{name}Port", str(wanted.get(name, 0))]
        if self.location is None:
            return [*flags, "--inMemoryPersistence"]
        return [*flags, "--location", str(make_directory(self.location).resolve())]

    @staticmethod
    def _listening(child: Child, wanted: dict[str, int]) -> dict[str, int] | None:
        """Its own words count, not an open port: that could be a stranger's."""
        said = "\n".join(child.out_lines())
        for port in wanted.values():
            if not re.search(rf"successfully (listening at|started on) \S*:{port}\b", said):
                return None
        return dict(wanted)

    def stop(self, *, timeout_s: float = _STOP_S) -> None:
        """Stop it (blocking), data on disk kept; to stop twice is no error.

        After `timeout_s` seconds it is killed, and what it had not written yet is lost.
        """
        if self.child is not None:
            self.child.stop(SIGINT, timeout_s=timeout_s)
        self._ended()

    async def stop_async(self) -> None:
        """The same as `stop`, without blocking the loop."""
        if self.child is not None:
            await self.child.stop_async(SIGINT, timeout_s=_STOP_S)
        self._ended()

    def _ended(self) -> None:
        self.child = None
        self.ports = {}
        self._forget_logs()

    def _forget_logs(self) -> None:
        if self._own_logs is not None:
            shutil.rmtree(self._own_logs, ignore_errors=True)
            self._own_logs = None

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop_async()


def require_node() -> str:
    """The path of Node, once it is known that Azurite's package is there too.

    Raises:
        NotInstalledError: one of them is missing; the sentence says what to run.
    """
    node = shutil.which("node")
    if node is None:
        raise NotInstalledError(
            "Node was not found on PATH: install Node 20 or newer (Azurite needs it)."
        )
    if not (_PACKAGE / "azurite.js").exists():
        raise NotInstalledError(
            "Azurite is not installed in devstack/azurite/node_modules: run `make setup`."
        )
    return node


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
