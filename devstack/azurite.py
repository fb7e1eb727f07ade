"""Azurite, Microsoft's storage emulator, as a child process.

Azurite sends telemetry unless it is told not to. It saves its data every 5 seconds, and when it
receives SIGINT. At SIGTERM it loses unsaved data. So `stop` sends SIGINT. If this process is
killed, Azurite receives SIGINT too.
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
FIXED_PORT = 10002

_PROGRAM = Path(__file__).parent / "azurite/node_modules/azurite/dist/src/table/main.js"
_READY_S = 30.0
_STOP_S = 4.0
_ATTEMPTS_MAX = 5


class Azurite(Runnable):
    """The table service of Azurite on 127.0.0.1.

        with Azurite() as azurite:
            TableServiceClient.from_connection_string(azurite.connection_string)

    `async with` does the same without blocking the loop.
    """

    def __init__(
        self, location: Path | str | None = None, *, port: int = 0, logs: Path | None = None
    ) -> None:
        """`location` is the directory for its data; None keeps the data in memory.

        `port` 0 takes a free port. `logs` is the directory for its output; None uses a temporary
        one.
        """
        self.location = None if location is None else Path(location)
        self.port = 0
        self.child: Child | None = None
        self._fixed_port = port
        self._logs = logs
        self._scratch: Scratch | None = None

    @property
    def connection_string(self) -> str:
        """The connection string for storage SDKs; DevstackError before the start."""
        if not self.port:
            raise DevstackError("Azurite has no connection string before it is started.")
        endpoint = f"TableEndpoint=http://127.0.0.1:{self.port}/{ACCOUNT};"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint}"

    def start(self) -> None:
        """Start Azurite and wait (blocking) until it listens, or raise DevstackError."""
        wait_for(self._start_steps())

    async def start_async(self) -> None:
        """Do the same as `start` without blocking the loop."""
        await wait_for_async(self._start_steps())

    def _start_steps(self) -> Steps[None]:
        """Start; try another free port when another process takes it in the meantime."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            port = self._fixed_port or free_port()
            child = self.child = self._launch(port)
            try:
                yield from child.until_steps(lambda c=child, p=port: _listens(c, p), _READY_S)  # type: ignore[misc]
            except ChildFailedError:
                taken = "EADDRINUSE" in child.tail()
                if taken and not self._fixed_port and attempt < _ATTEMPTS_MAX:
                    child.stop(SIGINT, timeout_s=_STOP_S)
                    continue
                self.stop()
                if not taken:
                    raise
                raise ChildFailedError(
                    f"Azurite cannot have port {port}: another process listens there; stop it, or "
                    "ask for free ports."
                ) from None
            except BaseException:
                self.stop()
                raise
            self.port = port
            return

    def _launch(self, port: int) -> Child:
        node = require_node()
        if self._logs is None and self._scratch is None:
            self._scratch = Scratch("azurite-")
        logs = self._logs or (self._scratch.path if self._scratch else Path())
        argv = [node, str(_PROGRAM), "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        argv += ["--tableHost", "127.0.0.1", "--tablePort", str(port)]
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
        self.port = 0
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_async()


def _listens(child: Child, port: int) -> bool | None:
    """Read Azurite's own output: an open port could belong to another process."""
    text = rf"successfully (listening at|started on) \S*:{port}\b"
    return True if re.search(text, "\n".join(child.out_lines())) else None


def require_node() -> str:
    """Return the path of Node; raise NotInstalledError if Node or Azurite is missing."""
    node = shutil.which("node")
    if node is None:
        raise NotInstalledError("Node was not found on PATH: install Node 20 or newer for Azurite.")
    if not _PROGRAM.exists():
        raise NotInstalledError(
            "Azurite is not in devstack/azurite/node_modules: run `make setup`."
        )
    return node
