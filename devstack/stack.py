"""A broker, Azurite and host processes together, for demos, end-to-end tests and `devstack up`.

    async with Stack(app_dir, groups=[["submission"], ["agent_payment"]]) as stack:
        client = ServiceBusClient.from_connection_string(stack.servicebus_connection)
        stack.kill("agent_payment")                  # kill -9
        await stack.start_group(["agent_payment"])   # start it again

Each group is one or more host processes that run only its functions, as Azure Flex scales each
group of functions by itself.

Theory of operation
===================

1. **Start.** The broker and Azurite start side by side, because neither needs the other. If no
   Config.json names the queues, a process indexes the app before the broker starts, and prints the
   queues of its bindings. Then the commands of `beside` start, and the hosts once the ports of
   `needs` are in use: an order that waits in a queue calls the services at once. All of them have
   the addresses of the broker and of Azurite in their environment. A service or a host counts as
   started when it has printed that it listens, a command at once. If a part fails, `start` stops
   the children that have started, and raises the error with the last lines of that part.
2. **Groups.** In each group one process is the primary. It serves HTTP and runs the timers;
   otherwise a timer would fire once in each process. The other processes only receive messages.
   After the primary is killed, the next process that starts in its group is the primary.
3. **Running.** `watch` looks at every child ten times a second. If a child has ended and this stack
   did not end it, `watch` starts it again on its ports, after a pause that grows while the child
   does not run for long. A broker or Azurite without `data` would come back empty, so there `watch`
   raises an error. A caller that wants to kill a host, and to start another one later, uses `kill`,
   which also takes the process out of `processes`. A caller that starts nothing again uses `check`.
4. **A killed host** loses no message: each message that it had not settled is delivered again when
   its lock ends, to another process of the group or to the next one. With `data`, a killed broker
   or Azurite loses nothing that it has answered.
5. **Stop.** Hosts and commands stop first, because the hosts settle their messages and write to
   the table during the drain, and need both services for it. Then Azurite and the broker stop, at
   the same time. If `stop` is cancelled, it still ends every process, but does not wait for the
   drain.
6. **If this process is killed**, all children end with it (see `children`).
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devstack import doctor
from devstack.azurite import FIXED_PORT, Azurite
from devstack.children import Child, Scratch
from devstack.functions.settings import remote_host
from devstack.inputs import ChildFailedError, DevstackError, load_object, make_directory
from devstack.lifecycle import AsyncRunnable
from devstack.servicebus import read_config

_READY_S = 60.0
"""Time for a broker or a host to be ready."""
_WATCH_EVERY_S = 0.1
_PAUSE_S = 1.0
"""Time before a child that has ended starts again; it doubles until the child runs for long."""
_PAUSE_S_MAX = 30.0
_LONG_S = 60.0
_COMMANDS_S = 15.0
"""Time for the commands beside to use their ports."""
_DRAIN_S = 2.0
_EXIT_S = 0.8
"""Time for a host to end after its drain."""
_STOP_S = 2.5
"""Time from the end of the drain until Azurite and the broker have to be stopped."""
_STOP_S_MIN = 0.5
"""Time for Azurite, and then for the broker, if the hosts took all of it."""
_BROKER_PORTS = (5672, 5300)
EMULATOR = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
"""The connection of an emulator at its usual port."""
_HTTP_PORT = 7071


class HostProcess(Child):
    """One host process of a stack."""

    group = ""
    functions: Sequence[str] = ()
    ignores: Sequence[str] = ()
    """Settings of host.json that it does not apply."""
    http_port: int | None = None
    secondary = False
    """Another process of the group runs the timers and HTTP functions."""


class _Command(Child):
    """A command beside the host. It counts as started at once."""

    def ready_line(self) -> dict[str, Any]:
        return {}


class Stack(AsyncRunnable):
    """Azure on one machine for one function app. `async with` starts and stops it.

    - `config`: the emulator's Config.json, as a path or as its content (default: the app's
      `Config.json` or `infra/emulator/Config.json`; without either, the queues of its bindings).
    - `settings`: app settings of every host process. Emulator connections in
      local.settings.json are replaced by the addresses of this stack.
    - `groups`: the functions of each group, as lists or as lists by the group's name (default: one
      group with all functions).
    - `processes`: host processes per group.
    - `without`: functions that run in no group.
    - `data`: a directory that keeps messages, tables and timer status.
    - `logs`: a directory for output files (default: a temporary one).
    - `ports`: "free", or "fixed" (5672, 5300, 10002, 7071).
    - `drain_s`: seconds that running functions get at the end.
    - `allow_remote`: allow connections to services that are not on this machine.
    - `beside`: shell commands that run too. Their environment has the host's settings, and with
      `data` this directory as DEVSTACK_DATA.
    - `needs`: the ports of these commands, and what each is for; `problems` says which is busy.
    """

    def __init__(  # noqa: PLR0913  # keyword-only options, each with its default
        self,
        app_dir: Path | str,
        *,
        config: Path | str | Mapping[str, Any] | None = None,
        settings: Mapping[str, str] | None = None,
        groups: Sequence[Sequence[str]] | Mapping[str, Sequence[str]] = ((),),
        processes: int = 1,
        without: Iterable[str] = (),
        data: Path | str | None = None,
        logs: Path | str | None = None,
        ports: str = "free",
        drain_s: float = _DRAIN_S,
        allow_remote: bool = False,
        beside: Sequence[str] = (),
        needs: Mapping[int, str] | None = None,
    ) -> None:
        """Describe a stack (see the class), or raise DevstackError for a wrong value."""
        if ports not in {"free", "fixed"} or processes < 1:
            raise DevstackError('ports is "free" or "fixed", and processes is at least 1.')
        self.app_dir = Path(app_dir).resolve()
        self.processes: list[HostProcess] = []
        self.servicebus_connection, self.storage_connection = EMULATOR, "UseDevelopmentStorage=true"
        self.management_port: int | None = None
        self.logs = Path(logs).resolve() if logs else Path()
        self.settings: dict[str, str] = dict(settings or {})
        self.broker: Child | None = None
        self.azurite: Azurite | None = None
        self._groups: list[tuple[str | None, Sequence[str]]] = (
            [*groups.items()]
            if isinstance(groups, Mapping)
            else [(None, names) for names in groups]
        )
        self.beside: list[Child] = []
        self._commands = beside
        self._needs = dict(needs or {})
        self._processes_per_group = processes
        self._without = list(without)
        self._config = config
        self._data = Path(data).resolve() if data else None
        self._own_logs = logs is None
        self._scratch: Scratch | None = None
        self._fixed = ports == "fixed"
        self._drain_s = drain_s
        self._allow_remote = allow_remote
        self._started_per_group: dict[str, int] = {}

    def problems(self) -> list[str]:
        """Return what keeps this stack from starting, a sentence each, for `up` and `doctor`."""
        checks: list[Callable[[], Iterable[str] | None]] = [
            doctor.check_packages,
            doctor.check_node,
            self._check_ports,
            self._check_data,
            self._check_app,
            self._check_queues,
        ]
        problems: list[str] = []
        for check in checks:
            try:
                problems += check() or ()
            except DevstackError as error:
                problems.append(str(error))
        return problems

    def _check_ports(self) -> list[str]:
        advice = "say --ports free" + (" and change those of --needs" if self._needs else "")
        ports = (doctor.PORTS if self._fixed else {}) | self._needs
        return doctor.busy_ports(ports, advice)

    def _check_data(self) -> None:
        if self._data is not None:
            make_directory(self._data)

    def _check_app(self) -> None:
        doctor.check_app(self.app_dir, self.host_settings(), allow_remote=self._allow_remote)

    def _check_queues(self) -> None:
        if config := self._config_file():
            read_config(config)

    async def index(self) -> dict[str, Any]:
        """Import and index the app in a process of its own, as a host does, or raise DevstackError.

        The result has the app's `queues`, and the settings of host.json that a host `ignores`.
        """
        groups = [functions for _, functions in self._groups]
        # An empty group means all functions.
        names = [name for functions in groups for name in functions] if all(groups) else []
        argv = [*self._host_argv(names), "--check"]
        env = _environment() | self.host_settings()
        process = await asyncio.to_thread(
            subprocess.run, argv, env=env, capture_output=True, text=True
        )
        if process.returncode:
            lines = [line for line in process.stderr.splitlines() if not line.startswith("{")]
            raise DevstackError("\n".join(lines).removeprefix("devstack.functions: "))
        index: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return index

    async def start(self) -> None:
        """Start everything and wait until it listens; if a part fails, stop and raise its error."""
        try:
            if self._own_logs:
                self._scratch = Scratch("devstack-")
                self.logs = self._scratch.path
            for directory in filter(None, (self.logs, self._data)):
                make_directory(directory)
            # 1. Both services, then the commands, then the hosts.
            await _all(self._start_broker(), self._start_azurite())
            await self._start_commands()
            await _all(*(self.start_group(names, name=name) for name, names in self._groups))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the hosts, then Azurite and the broker, within `drain_s` + 3 seconds."""
        # 5. Hosts and commands first.
        deadline = time.monotonic() + self._drain_s + _STOP_S
        limit_s = self._drain_s + _EXIT_S
        stops = (child.stop_async(timeout_s=limit_s) for child in (*self.processes, *self.beside))
        try:
            await asyncio.shield(asyncio.gather(*stops, return_exceptions=True))
        finally:
            for child in (*self.processes, *self.beside):
                child.kill()
            if self.broker is not None:
                self.broker.stopping = True
                self.broker.send_signal(signal.SIGTERM)  # the broker ends while Azurite ends
            if self.azurite is not None:
                self.azurite.stop(timeout_s=max(_STOP_S_MIN, deadline - time.monotonic()))
            if self.broker is not None:
                self.broker.stop(timeout_s=max(_STOP_S_MIN, deadline - time.monotonic()))
            if self._scratch is not None:
                self._scratch.close()

    async def _start_broker(self) -> None:
        amqp, management = _BROKER_PORTS if self._fixed else (0, 0)
        config = self._config_file()
        if config is None:
            config = self.logs / "Config.json"
            config.write_text(json.dumps(_config_of((await self.index())["queues"])))
        argv = [sys.executable, "-P", "-m", "devstack.servicebus", "--config", str(config)]
        argv += ["--port", str(amqp), "--management-port", str(management)]
        if self._data is not None:
            argv += ["--data", str(self._data / "servicebus")]
        self.broker = Child("servicebus", argv, logs=self.logs, env=_environment())
        ready = await self.broker.start_async(timeout_s=_READY_S)
        self.servicebus_connection = str(ready["connection_string"])
        self.management_port = ready.get("management_port") or None
        # 3. It has the same ports after each start.
        argv[argv.index("--port") + 1] = str(ready["port"])
        argv[argv.index("--management-port") + 1] = str(ready["management_port"])

    async def _start_azurite(self) -> None:
        location = self._data / "azurite" if self._data else None
        port = FIXED_PORT if self._fixed else 0
        self.azurite = Azurite(location, port=port, logs=self.logs)
        await self.azurite.start_async()
        self.storage_connection = self.azurite.connection_string

    async def _start_commands(self) -> None:
        """Start the commands, and wait a while until they use their ports."""
        env = _environment() | self.host_settings()
        if self._data is not None:
            env["DEVSTACK_DATA"] = str(self._data)
        for number, command in enumerate(self._commands, 1):
            argv = ["/bin/sh", "-c", f"exec {command}"]
            self.beside.append(_Command(f"beside-{number}", argv, logs=self.logs, env=env))
            self.beside[-1].start()
        deadline = time.monotonic() + _COMMANDS_S
        while any(child.alive for child in self.beside) and time.monotonic() < deadline:
            if all(map(_accepts, self._needs)):
                break
            await asyncio.sleep(_WATCH_EVERY_S)

    def _config_file(self) -> Path | None:
        if isinstance(self._config, Mapping):
            path = self.logs / "Config.json"
            path.write_text(json.dumps(self._config))
            return path
        if self._config is not None:
            return Path(self._config).resolve()
        places = [self.app_dir / "Config.json", self.app_dir / "infra" / "emulator" / "Config.json"]
        return next((place for place in places if place.exists()), None)

    async def start_group(
        self, functions: Sequence[str], *, name: str | None = None, processes: int | None = None
    ) -> list[HostProcess]:
        """Start processes that run only `functions` ([]: all), or raise ChildFailedError."""
        group = name or "+".join(functions) or "all"
        count = self._processes_per_group if processes is None else processes
        hosts = [self._describe(group, functions, number) for number in range(count)]
        for host in hosts:
            host.start()
            self.processes.append(host)
        for host in hosts:
            ready = await host.until(host.ready_line, timeout_s=_READY_S)
            host.functions, host.http_port = list(ready["functions"]), ready["http_port"]
            host.ignores = ready.get("ignores", ())
            # 3. It has the same port after each start.
            if host.http_port and "--http-port" not in host.argv:
                host.argv += ["--http-port", str(host.http_port)]
        return hosts

    def _describe(self, group: str, functions: Sequence[str], number: int) -> HostProcess:
        """Describe a process of a group; `number` is its index among those that start together."""
        started = self._started_per_group.get(group, 0) + 1
        self._started_per_group[group] = started
        file_name = "".join(c if c.isalnum() or c in "-_+" else "-" for c in group)[:80]
        name = f"host-{file_name}" + (f"-{started}" if started > 1 else "")
        env = _environment() | self.host_settings()
        # 2. If the group has a primary process, the others are secondary.
        secondary = number > 0 or any(not host.secondary for host in self.group(group))
        argv = [*self._host_argv(functions), "--drain", str(self._drain_s)]
        argv += ["--data", str(self._data / "functions")] if self._data else []
        argv += ["--secondary"] if secondary else []
        argv += ["--http-port", str(_HTTP_PORT)] if self._fixed and not secondary else []
        host = HostProcess(name, argv, logs=self.logs, env=env)
        host.group, host.secondary = group, secondary
        return host

    def _host_argv(self, functions: Sequence[str]) -> list[str]:
        argv = [sys.executable, "-P", "-m", "devstack.functions", str(self.app_dir)]
        argv += ["--allow-remote"] * self._allow_remote
        argv += ["--only", ",".join(functions)] if functions else []
        return argv + (["--except", ",".join(self._without)] if self._without else [])

    def host_settings(self) -> dict[str, str]:
        """The app settings of every host process: `settings` override this stack's connections."""
        connections = local_values(
            self.app_dir, self.servicebus_connection, self.storage_connection
        )
        return connections | self.settings

    def group(self, name: str) -> list[HostProcess]:
        """The running processes of a group, the oldest first."""
        return [host for host in self.processes if host.group == name and host.alive]

    def kill(self, target: str | int) -> list[int]:
        """`kill -9` a group or the process with a pid; return the pids, or raise DevstackError."""
        hosts = [host for host in self.processes if host.alive and target in {host.group, host.pid}]
        if not hosts:
            raise DevstackError(f"{target!r} is not a group or pid that runs now: check the name.")
        for host in hosts:
            host.kill()
            self.processes.remove(host)
        return [host.pid for host in hosts]

    @property
    def http_port(self) -> int | None:
        """The port of the first process that serves HTTP functions."""
        return next((host.http_port for host in self.processes if host.http_port), None)

    def children(self) -> list[Child]:
        """Every child process: the broker, Azurite, the hosts and the commands."""
        services = [self.broker, self.azurite.child if self.azurite else None]
        return [*(child for child in services if child is not None), *self.processes, *self.beside]

    def check(self) -> None:
        """Raise ChildFailedError if a child ended and this stack did not end it."""
        for child in self.children():
            if not child.alive and not child.stopping:
                raise self._failure(child)

    def _failure(self, child: Child) -> ChildFailedError:
        if self._scratch is not None:
            self._scratch.keep()  # the logs in it explain the failure
        return ChildFailedError(f"{child.describe_end()}\nIts logs stay in {self.logs}.")

    async def watch(self, report: Callable[[str], None]) -> None:
        """Start each child again that ends, until cancelled; `report` gets a text for each event.

        Raise ChildFailedError if the broker or Azurite ends and its data was in memory.
        """
        tasks: dict[Child, asyncio.Task[None]] = {}
        try:
            while True:
                for child in self.children():
                    if child not in tasks:
                        tasks[child] = asyncio.create_task(self._keep(child, report))
                    elif tasks[child].done():
                        tasks[child].result()
                await asyncio.sleep(_WATCH_EVERY_S)
        finally:
            await _cancel(tasks.values())

    async def _keep(self, child: Child, report: Callable[[str], None]) -> None:
        """Start a child again whenever it ends, until this stack stops it."""
        pause_s, problem = 0.0, ""
        while True:
            since = time.monotonic()
            while not problem:
                if child.alive:
                    await asyncio.sleep(_WATCH_EVERY_S)
                elif child.stopping:
                    return
                else:
                    child.kill_group()  # what it had started may hold its port
                    problem = child.describe_end()
            if self._data is None and child not in [*self.processes, *self.beside]:
                raise self._failure(child)
            lasted = time.monotonic() - since > _LONG_S
            pause_s = _PAUSE_S if lasted or not pause_s else min(2 * pause_s, _PAUSE_S_MAX)
            line, _, output = problem.partition("\n")
            report(f"{line.rstrip(':.')}; it starts again in {pause_s:g} s.\n{output}".rstrip())
            await asyncio.sleep(pause_s)
            try:
                await child.start_async(timeout_s=_READY_S)
            except ChildFailedError as error:
                if child.stopping:
                    return
                child.kill_group()
                problem = str(error)
            else:
                report(f"{child.name} runs again: pid {child.pid}.")
                problem = ""


def _accepts(port: int) -> bool:
    """Whether a process accepts connections on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _all(*works: Coroutine[Any, Any, object]) -> None:
    """Do all of it at once; if a part fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _environment() -> dict[str, str]:
    """This process's environment, with this package on the import path of Python."""
    root = Path(__file__).resolve().parent.parent
    installed = root.name in {"site-packages", "dist-packages"}  # Python finds it by itself
    paths = [] if installed else [str(root)]
    paths += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _config_of(queues: Mapping[str, bool]) -> dict[str, Any]:
    """The content of a Config.json; `queues` tells for each queue whether it requires sessions."""
    entries = [
        {"Name": name, "Properties": {"RequiresSession": requires_session}}
        for name, requires_session in queues.items()
    ]
    return {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": entries}]}}


def local_values(app_dir: Path, servicebus: str, storage: str) -> dict[str, str]:
    """The settings that point the app's emulator connections at this stack.

    An app's local.settings.json names the emulators at their usual ports, and a stack replaces
    these values. It also adds `AzureWebJobsStorage`, and `ServiceBusConnection` if no setting of
    the file names the broker. A value that names a real account stays, so that the host can refuse
    it.
    """
    path = app_dir / "local.settings.json"
    content = load_object(path).get("Values", {}) if path.exists() else {}
    values = content if isinstance(content, dict) else {}
    replacements: dict[str, str] = {}
    for name, value in values.items():
        text = str(value).replace(" ", "").lower()
        if "usedevelopmentemulator=true" in text:
            replacements[name] = servicebus
        elif "usedevelopmentstorage=true" in text:
            replacements[name] = storage
    defaults = {"AzureWebJobsStorage": storage}
    if servicebus not in replacements.values():
        defaults["ServiceBusConnection"] = servicebus
    real = {name.lower() for name, value in values.items() if remote_host(name, str(value))}
    defaults = {name: value for name, value in defaults.items() if name.lower() not in real}
    return defaults | replacements
