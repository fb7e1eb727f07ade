"""A broker, Azurite and host processes, composed; for demos, end-to-end tests and `up`.

    async with Stack(app_dir, groups=[["submission"], ["agent_payment"]]) as stack:
        client = ServiceBusClient.from_connection_string(stack.servicebus_connection)
        stack.kill("agent_payment")                  # kill -9
        await stack.start_group(["agent_payment"])   # and again

Each group is a host process (or several) that runs only its functions, as Azure Flex scales
them apart. Whatever happens, every process is stopped at the end; if this process is killed,
the kernel kills them (see `devstack.tether`).
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devstack.azurite import FIXED_PORTS, Azurite
from devstack.children import Child
from devstack.directories import Scratch, make_directory
from devstack.emulators import SERVICEBUS, STORAGE, local_values
from devstack.errors import ChildFailedError, DevstackError
from devstack.groups import HostProcess, environment, file_name, named
from devstack.lifecycle import AsyncRunnable

__all__ = ["HostProcess", "Stack"]

_READY_S = 60.0
_WATCH_EVERY_S = 0.1
_DRAIN_S = 2.0
_EXIT_S = 0.8
_STOP_S = 2.5
_LEAST_S = 0.5
_BROKER_PORTS = (5672, 5300)
_HTTP_PORT = 7071


class Stack(AsyncRunnable):
    """Azure on one machine for one function app, as an async context manager.

    `config` is the emulator's Config.json (a path, or its content); by default the app's
    `Config.json` or `infra/emulator/Config.json`. `settings` are app settings of every
    host process; connections to an emulator in local.settings.json are pointed at this
    stack by themselves. `groups` says which functions run in which process (all in one
    by default), `processes` how many of each. `data` keeps messages, tables and timers
    in a directory; `logs` keeps the output files (else they go with the stack). `ports`
    is "free" or "fixed" (5672, 5300, 10002, 7071). `drain_s`: see the host. `core_tools` runs
    `func` from PATH instead of the embedded host, one process a group.
    """

    def __init__(  # noqa: PLR0913  # keyword-only options, each with its default
        self,
        app_dir: Path | str,
        *,
        config: Path | str | Mapping[str, Any] | None = None,
        settings: Mapping[str, str] | None = None,
        groups: Sequence[Sequence[str]] | Mapping[str, Sequence[str]] | None = None,
        processes: int = 1,
        without: Iterable[str] = (),
        data: Path | str | None = None,
        logs: Path | str | None = None,
        ports: str = "free",
        broker_arguments: Sequence[str] = (),
        drain_s: float = _DRAIN_S,
        core_tools: bool = False,
    ) -> None:
        """Describe a stack; see the class for the arguments.

        Raises:
            DevstackError: a value that makes no sense.
        """
        if ports not in {"free", "fixed"} or processes < 1:
            raise DevstackError('ports is "free" or "fixed", and processes is at least 1.')
        if core_tools and processes > 1:
            raise DevstackError("The Core Tools run one process a group: leave processes at 1.")
        self.app_dir = Path(app_dir).resolve()
        self.processes: list[HostProcess] = []
        self.servicebus_connection = ""
        self.storage_connection = ""
        self.management_port: int | None = None
        self.logs = Path(logs).resolve() if logs else Path()
        self.settings: dict[str, str] = dict(settings or {})
        self._groups = named(groups)
        self._count = processes
        self._without = list(without)
        self._config = config
        self._data = Path(data).resolve() if data else None
        self._own_logs = logs is None
        self._scratch: Scratch | None = None
        self._fixed = ports == "fixed"
        self._broker_arguments = list(broker_arguments)
        self._drain_s = drain_s
        self._core_tools = core_tools
        self.broker: Child | None = None
        self.azurite: Azurite | None = None
        self._unwatched: set[Child] = set()
        self._made: dict[str, int] = {}

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Start the broker and Azurite together, then the groups; returns when all listen.

        Raises:
            DevstackError: something did not start; everything is stopped again by then.
        """
        try:
            self._make_logs()
            await asyncio.gather(self._start_broker(), self._start_azurite())
            await asyncio.gather(
                *(self.start_group(functions, name=name) for name, functions in self._groups)
            )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the hosts, then Azurite and the broker: within `drain_s` + 2.5 seconds, always."""
        end = time.monotonic() + self._drain_s + _STOP_S
        limit_s = self._drain_s + _EXIT_S
        hosts = [one.child.stop_async(timeout_s=limit_s) for one in self.processes]
        stops = asyncio.gather(*hosts, return_exceptions=True)
        try:
            await asyncio.shield(stops)
        finally:
            self._stop_services(end)

    def _stop_services(self, end: float) -> None:
        for one in self.processes:
            if one.alive:
                one.child.kill()
        if self.broker is not None:
            self.broker.stopping = True
            self.broker.send_signal(signal.SIGTERM)  # it ends while Azurite does
        if self.azurite is not None:
            self.azurite.stop(timeout_s=max(_LEAST_S, end - time.monotonic()))
        if self.broker is not None:
            self.broker.stop(timeout_s=max(_LEAST_S, end - time.monotonic()))
        if self._scratch is not None:
            self._scratch.close()

    def _make_logs(self) -> None:
        if self._own_logs:
            self._scratch = Scratch("devstack-")
            self.logs = self._scratch.path
        make_directory(self.logs)
        if self._data is not None:
            make_directory(self._data)

    async def _start_broker(self) -> None:
        amqp, management = _BROKER_PORTS if self._fixed else (0, 0)
        argv = [sys.executable, "-m", "devstack.servicebus"]
        argv += ["--config", str(self._config_file()), "--port", str(amqp)]
        argv += ["--management-port", str(management), *self._broker_arguments]
        if self._data is not None:
            argv += ["--data", str(self._data / "servicebus")]
        self.broker = Child("servicebus", argv, logs=self.logs, env=environment())
        self.broker.start()
        ready = await self.broker.until(self.broker.ready_line, timeout_s=_READY_S)
        self.servicebus_connection = str(ready["connection_string"])
        self.management_port = ready.get("management_port") or None

    async def _start_azurite(self) -> None:
        ports = {"table": FIXED_PORTS["table"]} if self._fixed else None
        location = self._data / "azurite" if self._data else None
        self.azurite = Azurite(location, ports=ports, logs=self.logs)
        await self.azurite.start_async()
        self.storage_connection = self.azurite.connection_string

    def _config_file(self) -> Path:
        if isinstance(self._config, Mapping):
            path = self.logs / "Config.json"
            path.write_text(json.dumps(self._config))
            return path
        if self._config is not None:
            return Path(self._config).resolve()
        places = [self.app_dir / "Config.json", self.app_dir / "infra" / "emulator" / "Config.json"]
        for place in places:
            if place.exists():
                return place
        raise DevstackError(
            f"Which queues are there? Neither {places[0]} nor {places[1]} exists: name the "
            "emulator's Config.json with --config."
        )

    # ------------------------------------------------------------------ groups

    async def start_group(
        self, functions: Sequence[str], *, name: str | None = None, processes: int | None = None
    ) -> list[HostProcess]:
        """Start host processes that run only `functions` (an empty list: all of them).

        Raises:
            ChildFailedError: one did not get ready.
        """
        group = name or "+".join(functions) or "all"
        count = self._count if processes is None else processes
        started = [self._spawn(group, functions, number) for number in range(count)]
        for one in started:
            one.child.start()
            self.processes.append(one)
        for one in started:
            ready = await one.child.until(one.child.ready_line, timeout_s=_READY_S)
            one.functions, one.http_port = list(ready["functions"]), ready["http_port"]
        return started

    def group(self, name: str) -> list[HostProcess]:
        """The processes of a group that run now, the oldest first."""
        return [one for one in self.processes if one.group == name and one.alive]

    def kill(self, which: str | int) -> list[int]:
        """`kill -9` the group of that name, or the one process with that pid; their pids.

        Raises:
            DevstackError: nothing of that name or pid runs.
        """
        hit = [one for one in self.processes if one.alive and which in {one.group, one.pid}]
        if not hit:
            raise DevstackError(f"Nothing to kill: {which!r} is no group or pid that runs now.")
        for one in hit:
            self._unwatched.add(one.child)
            one.child.kill()
        self.processes = [one for one in self.processes if one not in hit]
        return [one.pid for one in hit]

    async def stop_group(self, name: str) -> None:
        """Stop a group in an orderly way: SIGTERM, work in hand finished, messages settled."""
        hit = self.group(name)
        self._unwatched |= {one.child for one in hit}
        stops = [one.child.stop_async(timeout_s=self._drain_s + _EXIT_S) for one in hit]
        await asyncio.gather(*stops)
        self.processes = [one for one in self.processes if one not in hit]

    @property
    def http_port(self) -> int | None:
        """The port of the first process that serves HTTP functions."""
        return next((one.http_port for one in self.processes if one.http_port), None)

    def children(self) -> list[Child]:
        """Every child process: the broker, Azurite, the hosts."""
        services = [self.broker, self.azurite.child if self.azurite else None]
        return [one for one in services if one is not None] + [p.child for p in self.processes]

    def lost(self) -> list[HostProcess]:
        """Host processes that somebody else killed, each told once: for who starts them again."""
        hit = [
            one
            for one in self.processes
            if one.child.killed and not one.child.stopping and one.child not in self._unwatched
        ]
        self._unwatched |= {one.child for one in hit}
        self.processes = [one for one in self.processes if one not in hit]
        return hit

    def check(self) -> None:
        """Raise if a child died that nobody had killed or stopped.

        Raises:
            ChildFailedError: which one, how, and the last it said.
        """
        for child in self.children():
            if not child.alive and not child.stopping and child not in self._unwatched:
                if self._scratch is not None:
                    self._scratch.keep()  # somebody will want to read its logs
                raise ChildFailedError(f"{child.describe_end()}\nIts logs stay in {self.logs}.")

    async def watch(self) -> None:
        """Return never; raise as `check` does as soon as a child dies."""
        while True:
            self.check()
            await asyncio.sleep(_WATCH_EVERY_S)

    def _spawn(self, group: str, functions: Sequence[str], number: int) -> HostProcess:
        made = self._made[group] = self._made.get(group, 0) + 1
        name = "host-" + file_name(group) + (f"-{made}" if made > 1 else "")
        secondary = number > 0 or any(not one.secondary for one in self.group(group))
        argv = [sys.executable, "-m", "devstack.functions", str(self.app_dir)]
        argv += ["--func"] if self._core_tools else ["--drain", str(self._drain_s)]
        if functions:
            argv += ["--only", ",".join(functions)]
        if self._without:
            argv += ["--except", ",".join(self._without)]
        if self._data is not None and not self._core_tools:
            argv += ["--data", str(self._data / "functions")]
        if secondary:
            argv.append("--secondary")
        elif self._fixed:
            argv += ["--http-port", str(_HTTP_PORT)]
        settings = environment() | self.host_settings()
        child = Child(name, argv, logs=self.logs, env=settings)
        return HostProcess(group, child, secondary=secondary)

    def host_settings(self) -> dict[str, str]:
        """The app settings of every host process: connections of this stack, then `settings`."""
        connections = {SERVICEBUS: self.servicebus_connection, STORAGE: self.storage_connection}
        return local_values(self.app_dir, connections) | self.settings
