"""Azurite, Microsoft's storage emulator, as a child process.

Azurite sends telemetry unless it is told not to. It saves its data every 5 seconds and when it
ends by SIGINT; `azurite-table` loses unsaved data at SIGTERM. So `stop` sends SIGINT, and Azurite
also gets SIGINT when this process is killed.
"""

import re
import shutil
from pathlib import Path
from signal import SIGINT
from typing import Self

from devstack.children import Child, Scratch, Steps, free_port, wait_for, wait_for_async
from devstack.inputs import ChildFailedError, DevstackError, NotInstalledError, make_directory
from devstack.lifecycle import Runnable

# Published by Microsoft for every storage emulator; not a secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SERVICES = ("blob", "queue", "table")
FIXED_PORTS = {"blob": 10000, "queue": 10001, "table": 10002}

_PACKAGE = Path(__file__).with_name("azurite") / "node_modules" / "azurite" / "dist" / "src"
_READY_S = 30.0
_STOP_S = 4.0
_ATTEMPTS_MAX = 5


class Azurite(Runnable):
    """One Azurite on 127.0.0.1, as a context manager (`with` and `async with`).

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
        """Describe an Azurite, or raise DevstackError.

        `location` is the directory for its data; None keeps the data in memory. `ports` fixes
        the port of a service; other services get free ports. `logs` is the directory for its
        output; None uses a temporary one.
        """
        unknown = sorted(set(services) - set(SERVICES))
        if unknown or not services:
            wrong = ", ".join(unknown) or "none"
            raise DevstackError(
                f"Azurite has the services blob, queue and table; {wrong} is wrong."
            )
        self.location = None if location is None else Path(location)
        self.services = tuple(name for name in SERVICES if name in services)
        self.ports: dict[str, int] = {}
        self.child: Child | None = None
        self._fixed_ports = dict(ports or {})
        self._logs = logs
        self._scratch: Scratch | None = None

    @property
    def connection_string(self) -> str:
        """The connection string for storage SDKs; DevstackError before the start."""
        if not self.ports:
            raise DevstackError("Azurite has no connection string before it is started.")
        endpoints = "".join(
            f"{name.capitalize()}Endpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            for name, port in self.ports.items()
        )
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"

    def start(self) -> None:
        """Start Azurite and wait (blocking) until it listens, or raise DevstackError."""
        wait_for(self._start_steps())

    async def start_async(self) -> None:
        """Do the same as `start` without blocking the loop."""
        await wait_for_async(self._start_steps())

    def _start_steps(self) -> Steps[None]:
        """Start; try other free ports when another process takes one in the meantime."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            wanted = {name: self._fixed_ports.get(name) or free_port() for name in self.services}
            child = self.child = self._launch(wanted)
            try:
                yield from child.until_steps(lambda c=child, w=wanted: _listens(c, w), _READY_S)  # type: ignore[misc]
            except ChildFailedError:
                taken = "EADDRINUSE" in child.tail()
                if taken and not self._fixed_ports and attempt < _ATTEMPTS_MAX:
                    child.stop(SIGINT, timeout_s=_STOP_S)
                    continue
                self.stop()
                if not taken:
                    raise
                ports = ", ".join(str(port) for port in self._fixed_ports.values())
                raise ChildFailedError(
                    f"Azurite cannot have port {ports or 'any'}: another process listens there; "
                    "stop it, or ask for free ports."
                ) from None
            except BaseException:
                self.stop()
                raise
            self.ports = wanted
            return

    def _launch(self, ports: dict[str, int]) -> Child:
        node = require_node()
        if self._logs is None and self._scratch is None:
            self._scratch = Scratch("azurite-")
        logs = self._logs or (self._scratch.path if self._scratch else Path())
        several = len(self.services) > 1
        program = _PACKAGE / ("azurite.js" if several else f"{self.services[0]}/main.js")
        argv = [node, str(program), "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        for name in SERVICES if several else self.services:
            argv += [f"--{name}Host", "127.0.0.1", f"--{name}Port", str(ports.get(name, 0))]
        if self.location is None:
            argv.append("--inMemoryPersistence")
        else:
            argv += ["--location", str(make_directory(self.location).resolve())]
        child = Child("azurite", argv, logs=logs, cwd=logs, dies_by=SIGINT)
        child.start()
        return child

    def stop(self, *, timeout_s: float = _STOP_S) -> None:
        """Stop Azurite (blocking); data on disk is kept, and a second call does nothing.

        After `timeout_s` seconds it is killed and loses unsaved data.
        """
        if self.child is not None:
            self.child.stop(SIGINT, timeout_s=timeout_s)
        self._forget()

    async def stop_async(self) -> None:
        """Do the same as `stop` without blocking the loop."""
        if self.child is not None:
            await self.child.stop_async(SIGINT, timeout_s=_STOP_S)
        self._forget()

    def _forget(self) -> None:
        self.child = None
        self.ports = {}
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_async()


def _listens(child: Child, ports: dict[str, int]) -> bool | None:
    """Read Azurite's own output: an open port could belong to another process."""
    output = "\n".join(child.out_lines())
    for port in ports.values():
        if not re.search(rf"successfully (listening at|started on) \S*:{port}\b", output):
            return None
    return True


def require_node() -> str:
    """Return the path of Node; raise NotInstalledError if Node or Azurite is missing."""
    node = shutil.which("node")
    if node is None:
        raise NotInstalledError("Node was not found on PATH: install Node 20 or newer for Azurite.")
    if not (_PACKAGE / "azurite.js").exists():
        raise NotInstalledError(
            "Azurite is not in devstack/azurite/node_modules: run `make setup`."
        )
    return node
