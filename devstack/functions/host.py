"""The host starts and stops what one app needs: settings, index, listeners, timers and HTTP.

    async with Host(app_dir, settings={"ServiceBusConnection": broker.connection_string}) as host:
        ...   # function_app.py runs; host.http_port answers

A process can run one host at a time, because the app uses the environment and the imports of the
process.

Theory of operation
===================

1. **Settings.** The host merges local.settings.json, the environment and its `settings`, and puts
   them into `os.environ`, where the app reads them. It also reads host.json. `stop` restores the
   environment.
2. **Index.** The host imports function_app.py and reads the functions with their bindings, as
   Azure does at a deployment. A function that the host cannot run raises a HostError, with one
   sentence for each problem. At this point the host has received no message. (A wrong route of an
   HTTP function is found only in step 5.)
3. **Listeners.** Each function with a Service Bus trigger gets a pump (see `pumps`), which runs in
   a task. All pumps share one `Clients` and one `Invoker`.
4. **Opening.** `start` waits up to 30 s until every queue is open. A queue that does not exist, or
   a broker that does not answer, fails the start instead of leaving a function that never runs.
5. **Timers and HTTP** start last, because their functions may send to the queues.
6. **Running.** An exception of a function never ends a pump or a timer: the message is abandoned,
   the request gets status 500, the timer waits for its next time. If an error ends a pump or a
   timer itself, the host sets `failed`, and the command ends the process with exit code 1. If a
   function exceeds functionTimeout, all functions that run now fail, `timed_out` is set, and the
   command starts the process again.
7. **Stopping.** Pumps receive no more, the HTTP port closes, and running functions have `drain_s`
   seconds to end. Then the host cancels the functions that still run. It does not settle their
   messages, so Service Bus delivers them again. Senders and clients close after that, because
   running functions use them.

If `start` fails or is cancelled, it calls `stop`, which undoes the steps that were done: `_scope`
holds what undoes each step, and `_running` holds the tasks.
"""

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from devstack.functions.bindings import (
    HttpTrigger,
    ServiceBusOutput,
    ServiceBusTrigger,
    TimerTrigger,
)
from devstack.functions.hostjson import HostConfig, load_host_json
from devstack.functions.http import HttpServer
from devstack.functions.indexing import IndexedFunction, all_of, bind, find, imported, select
from devstack.functions.invocation import Counts, Invoker
from devstack.functions.pumps import Pump
from devstack.functions.service_bus import Clients, Listener
from devstack.functions.settings import HostError, Settings
from devstack.functions.timers import Timer
from devstack.lifecycle import AsyncRunnable

_log = logging.getLogger("devstack.functions")
_OPEN_S = 30.0
_SUBQUEUE = re.compile(r"(/\$transfer)?/\$deadletterqueue$")


@dataclass(eq=False)
class Host(AsyncRunnable):
    """Runs the functions of one app in this process; `async with` or `start` runs it.

    `settings` override the environment and local.settings.json. `only` names the functions to run
    (None: those that host.json names, or all), and `without` those to leave out. `http_port` 0
    takes a free port. `listener` is a TCP socket for HTTP, bound or not; a caller that keeps it
    open keeps the port after this host has stopped. `status_dir` keeps timer status over restarts.
    `drain_s` limits the wait for running functions at the end. A `secondary` host runs neither
    timers nor HTTP. `allow_remote` allows connections to services that are not on this machine.
    """

    app_dir: Path
    _: KW_ONLY
    settings: Mapping[str, str] = field(default_factory=dict)
    only: Sequence[str] | None = None
    without: Sequence[str] = ()
    http_port: int | None = 0
    listener: socket.socket | None = None
    status_dir: Path | None = None
    drain_s: float = 10.0
    secondary: bool = False
    allow_remote: bool = False

    def __post_init__(self) -> None:
        self.app_dir = Path(self.app_dir).resolve()
        self.functions: list[IndexedFunction] = []
        self.config = HostConfig()
        self.failed: asyncio.Event = asyncio.Event()
        """Set when an error has ended a listener or a timer; the error is in the log."""
        self._requested_port, self.http_port = self.http_port or 0, None
        self._scope = contextlib.AsyncExitStack()
        self._running: dict[asyncio.Task[None], Pump | Timer] = {}
        self._invoker: Invoker | None = None
        self._http: HttpServer | None = None

    @property
    def counts(self) -> Mapping[str, Counts]:
        """Invocations by function: running, succeeded, failed."""
        return self._invoker.counts if self._invoker is not None else {}

    @property
    def queues(self) -> dict[str, bool]:
        """The queues that the bindings name, and whether each requires sessions."""
        queues: dict[str, bool] = {}
        bindings = (
            binding
            for function in self.functions
            for binding in (function.trigger, *function.outputs)
        )
        for binding in bindings:
            if isinstance(binding, ServiceBusTrigger | ServiceBusOutput):
                name = _SUBQUEUE.sub("", binding.queue.lower())
                sessions = isinstance(binding, ServiceBusTrigger) and binding.sessions
                queues[name] = queues.get(name, False) or sessions
        return queues

    async def start(self) -> None:
        """Index the app, start everything, wait until every queue is open; or raise HostError."""
        start = time.perf_counter()
        try:
            settings = self._index()
            await self._listen(settings)
        except BaseException:
            await self.stop(drain_s=0)
            raise
        names = ", ".join(function.name for function in self.functions)
        _log.info("Host started in %.2f s: %s", time.perf_counter() - start, names)

    async def check(self) -> None:
        """Index the app as `start` does, or raise HostError; listen to nothing."""
        try:
            self._index()
        finally:
            await self.stop()

    def _index(self) -> Settings:
        # 1. Settings.
        settings = Settings.load(
            self.app_dir, overrides=self.settings, allow_remote=self.allow_remote
        )
        self.config = load_host_json(self.app_dir, settings)
        self._scope.enter_context(settings.in_environment())
        # 2. Index.
        functions = find(self._scope.enter_context(imported(self.app_dir)))
        only = self.only if self.only is not None else self.config.functions
        enabled = []
        for function in select(functions, only=only, without=self.without):
            if settings.disabled(function.name):
                _log.info("Function %s is disabled by its setting", function.name)
            else:
                enabled.append(function)
        self.functions = [
            function
            for function in all_of(lambda entry: bind(entry, self.app_dir, settings), enabled)
            if not self.secondary or isinstance(function.trigger, ServiceBusTrigger)
        ]
        if self.config.not_applied:
            _log.info("host.json: this host ignores %s", ", ".join(self.config.not_applied))
        return settings

    async def _listen(self, settings: Settings) -> None:
        invoker = self._invoker = self._new_invoker(settings)
        self.timed_out = invoker.timed_out  # then the process starts again, as the worker in Azure
        self._scope.callback(invoker.close)
        options = self.config.service_bus
        clients = Clients(options)
        self._scope.push_async_callback(clients.close)
        # 3. Listeners.
        openings: dict[str, Awaitable[None]] = {}
        timers: list[Timer] = []
        for function in self.functions:
            trigger, name = function.trigger, function.name
            if isinstance(trigger, ServiceBusTrigger):
                listener = Listener(
                    function=function,
                    trigger=trigger,
                    invoker=invoker,
                    clients=clients,
                    options=options,
                )
                pump = listener.pump()
                openings[f"{name}: the queue {trigger.queue}"] = pump.opened
                self._run(pump, name)
            elif isinstance(trigger, TimerTrigger):
                timer = Timer(
                    function=function,
                    trigger=trigger,
                    invoker=invoker,
                    send_outputs=clients.send_outputs,
                    status_dir=self.status_dir,
                )
                timers.append(timer)
        # 4. Wait until every queue is open, so that a wrong queue fails the start.
        await _wait_until_open(openings)
        # 5. Timers and HTTP start last, because their functions may send to the queues.
        for timer in timers:
            self._run(timer, timer.function.name)
        if any(isinstance(function.trigger, HttpTrigger) for function in self.functions):
            self._http = HttpServer(
                functions=self.functions,
                invoker=invoker,
                clients=clients,
                options=self.config.http,
                body_bytes_max=settings.body_bytes_max(),
            )
            self._scope.push_async_callback(self._http.stop)
            tcp_socket = self.listener.dup() if self.listener else socket.socket()
            try:
                self.http_port = await self._http.start(self._requested_port, tcp_socket)
            except OSError as error:
                raise HostError(
                    f"The host cannot listen on port {self._requested_port} ({error.strerror}): "
                    "stop the process that uses it, or take a free one: --http-port 0, or for `up` "
                    "--ports free."
                ) from error

    def _new_invoker(self, settings: Settings) -> Invoker:
        return Invoker(settings, timeout_s=self.config.function_timeout_s)

    def _run(self, runner: Pump | Timer, name: str) -> None:
        task = asyncio.create_task(self._guard(runner, name), name=f"host {name}")
        self._running[task] = runner

    async def _guard(self, runner: Pump | Timer, name: str) -> None:
        try:
            await runner.run()
        except Exception:  # noqa: BLE001  # `failed` reports any error
            # 6. A pump or timer ended; an exception of a function does not come here.
            _log.exception("Function %s has no listener any more", name)
            self.failed.set()

    async def stop(self, *, drain_s: float | None = None) -> None:
        """Receive no more, wait up to `drain_s` seconds for running functions, settle, close.

        If a function still runs after that, its message is delivered again when its lock ends.
        """
        # 7. Drain. A message that is not settled in time is delivered again.
        limit_s = self.drain_s if drain_s is None else drain_s
        for runner in self._running.values():
            runner.stop()
        drain = asyncio.ensure_future(self._http.drain(limit_s)) if self._http else None
        if self._running:
            _, pending = await asyncio.wait(self._running, timeout=limit_s)
            for task in pending:
                task.cancel()
            if pending:
                _log.warning("%d listeners were cancelled after %g s", len(pending), limit_s)
                await asyncio.wait(pending)
        if drain is not None:
            await drain
        self._running, self._http, self.http_port = {}, None, None
        await self._scope.aclose()


async def _wait_until_open(openings: Mapping[str, Awaitable[None]]) -> None:
    try:
        results = await asyncio.wait_for(
            asyncio.gather(*openings.values(), return_exceptions=True), _OPEN_S
        )
    except TimeoutError as error:
        raise HostError(
            f"Service Bus did not open {', '.join(openings)} within {_OPEN_S:g} s: does it run?"
        ) from error
    problems = [
        f"{place} cannot be received from ({type(error).__name__}: {str(error).splitlines()[0]})"
        for place, error in zip(openings, results, strict=True)
        if isinstance(error, BaseException)
    ]
    if problems:
        raise HostError(
            "; ".join(problems) + ": create the queue, or correct its name or connection."
        )
