"""The host: settings, index, listeners, timers and HTTP of one app, started and stopped.

    async with Host(app_dir, settings={"ServiceBusConnection": broker.connection_string}) as host:
        ...   # function_app.py runs; host.http_port answers

A process can run one host at a time, because the app uses the environment and the imports of the
process.
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

    `settings` override the environment and local.settings.json. `only` and `without` name
    functions. `http_port` 0 takes a free port. `listener` is a TCP socket for HTTP, bound or not;
    the caller keeps it open to keep the port after this host. `status_dir` keeps timer status over
    restarts. `drain_s` limits the wait for running functions at the end. A `secondary` host runs
    neither timers nor HTTP. `allow_remote` allows connections to services that are not on this
    machine.
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
        """Set when a listener or timer has ended by an error, which is in the log."""
        self._wanted_port, self.http_port = self.http_port or 0, None
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
        found: dict[str, bool] = {}
        for one in (one for f in self.functions for one in (f.trigger, *f.outputs)):
            if isinstance(one, ServiceBusTrigger | ServiceBusOutput):
                name = _SUBQUEUE.sub("", one.queue.lower())
                sessions = isinstance(one, ServiceBusTrigger) and one.sessions
                found[name] = found.get(name, False) or sessions
        return found

    async def start(self) -> None:
        """Index the app and listen, or raise HostError; return when every queue's link is open."""
        began = time.perf_counter()
        try:
            settings = self._index()
            await self._listen(settings)
        except BaseException:
            await self.stop(drain_s=0)
            raise
        names = ", ".join(one.name for one in self.functions)
        _log.info("Host started in %.2f s: %s", time.perf_counter() - began, names)

    async def check(self) -> None:
        """Index the app as `start` does, or raise HostError; listen to nothing."""
        try:
            self._index()
        finally:
            await self.stop()

    def _index(self) -> Settings:
        settings = Settings.load(
            self.app_dir, overrides=self.settings, allow_remote=self.allow_remote
        )
        self.config = load_host_json(self.app_dir, settings)
        self._scope.enter_context(settings.in_environment())
        found = find(self._scope.enter_context(imported(self.app_dir)))
        only = self.only if self.only is not None else self.config.functions
        chosen = select(found, only=only, without=self.without)
        for name in [one.name for one in chosen if settings.disabled(one.name)]:
            _log.info("Function %s is disabled by its setting", name)
        bound = all_of(
            lambda one: bind(one, self.app_dir, settings),
            [one for one in chosen if not settings.disabled(one.name)],
        )
        self.functions = [
            one for one in bound if not self.secondary or isinstance(one.trigger, ServiceBusTrigger)
        ]
        if self.config.not_applied:
            _log.info("host.json: this host ignores %s", ", ".join(self.config.not_applied))
        return settings

    async def _listen(self, settings: Settings) -> None:
        invoker = self._invoker = Invoker(settings, timeout_s=self.config.function_timeout_s)
        self.timed_out = invoker.timed_out  # in Azure the worker starts again then
        self._scope.callback(invoker.close)
        options = self.config.service_bus
        clients = Clients(options)
        self._scope.push_async_callback(clients.close)
        opening: dict[str, Awaitable[None]] = {}
        timers: list[Timer] = []
        for function in self.functions:
            trigger, name = function.trigger, function.name
            if isinstance(trigger, ServiceBusTrigger):
                pump = Listener(
                    function=function,
                    trigger=trigger,
                    invoker=invoker,
                    clients=clients,
                    options=options,
                ).pump()
                opening[f"{name}: the queue {trigger.queue}"] = pump.opened
                self._run(pump, name)
            elif isinstance(trigger, TimerTrigger):
                finish, status_dir = clients.send_outputs, self.status_dir
                timers.append(
                    Timer(
                        function=function,
                        trigger=trigger,
                        invoker=invoker,
                        finish=finish,
                        status_dir=status_dir,
                    )
                )
        await _wait_until_open(opening)
        for timer in timers:
            self._run(timer, timer.function.name)
        if any(isinstance(one.trigger, HttpTrigger) for one in self.functions):
            self._http = HttpServer(
                functions=self.functions,
                invoker=invoker,
                clients=clients,
                route_prefix=self.config.route_prefix,
            )
            self._scope.push_async_callback(self._http.stop)
            listener = self.listener.dup() if self.listener else socket.socket()
            try:
                self.http_port = await self._http.start(self._wanted_port, listener)
            except OSError as error:
                raise HostError(
                    f"The host cannot listen on port {self._wanted_port} ({error.strerror}): stop "
                    "the process that uses it, or take a free one: --http-port 0, or for `up` "
                    "--ports free."
                ) from error

    def _run(self, runner: Pump | Timer, name: str) -> None:
        task = asyncio.create_task(self._guard(runner, name), name=f"host {name}")
        self._running[task] = runner

    async def _guard(self, runner: Pump | Timer, name: str) -> None:
        try:
            await runner.run()
        except Exception:  # noqa: BLE001  # `failed` reports any error
            _log.exception("Function %s has no listener any more", name)
            self.failed.set()

    async def stop(self, *, drain_s: float | None = None) -> None:
        """Receive no more, wait up to `drain_s` seconds for running functions, settle, close.

        A message whose function still runs then is delivered again when its lock ends.
        """
        limit_s = self.drain_s if drain_s is None else drain_s
        for runner in self._running.values():
            runner.stop()
        answering = asyncio.ensure_future(self._http.drain(limit_s)) if self._http else None
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=limit_s)
            for task in late:
                task.cancel()
            if late:
                _log.warning("%d listeners were cancelled after %g s", len(late), limit_s)
                await asyncio.wait(late)
        if answering is not None:
            await answering
        self._running, self._http, self.http_port = {}, None, None
        await self._scope.aclose()


async def _wait_until_open(opening: Mapping[str, Awaitable[None]]) -> None:
    try:
        results = await asyncio.wait_for(
            asyncio.gather(*opening.values(), return_exceptions=True), _OPEN_S
        )
    except TimeoutError as error:
        raise HostError(
            f"Service Bus did not open {', '.join(opening)} within {_OPEN_S:g} s: does it run?"
        ) from error
    problems = [
        f"{where} cannot be received from ({type(error).__name__}: {str(error).splitlines()[0]})"
        for where, error in zip(opening, results, strict=True)
        if isinstance(error, BaseException)
    ]
    if problems:
        raise HostError(
            "; ".join(problems) + ": create the queue, or correct its name or connection."
        )
