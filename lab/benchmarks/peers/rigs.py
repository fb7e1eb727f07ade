"""Each peer's processes: its servers, its workers, and the address that the driver takes.

Workers run the saga's code; they are what the recovery run kills. Servers keep its state.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from devstack.children import Child, free_port
from devstack.stack import Stack
from lab.benchmarks.peers.install import PROJECT, command_of, library_path, python_of

READY_S = 60.0
LOCAL = "127.0.0.1"


class Rig(ABC):
    """One peer, from ``start`` to ``stop``."""

    name: ClassVar[str]
    title: ClassVar[str]
    durability: ClassVar[str]
    """What is on disk when a step has ended."""
    client: ClassVar[str]
    """The name in the driver's ``CLIENTS``."""
    installed_as: ClassVar[str | None]
    """The name in ``install.NEEDS``; None if nothing is installed for it."""

    def __init__(self, folder: Path, services: Mapping[str, str], step_s: float) -> None:
        self.folder = folder
        self.services = dict(services)
        self.step_s = step_s
        self.address = ""
        """What the driver takes; known after ``start``."""
        self._servers: list[Child] = []
        self._workers: list[Child] = []
        self._started = 0

    @abstractmethod
    async def start(self) -> None:
        """Start the servers and the workers, and wait until both are ready."""

    @abstractmethod
    async def start_workers(self) -> None:
        """Start the workers, and wait until they are ready."""

    def kill_workers(self) -> None:
        """``kill -9`` the workers, with the processes that they started."""
        for worker in self._workers:
            worker.kill()
        self._workers = []

    async def stop(self) -> None:
        """Stop all processes."""
        for child in [*self._workers, *self._servers]:
            await child.stop_async(timeout_s=5)

    def pids(self) -> dict[str, list[int]]:
        """Return the processes of the workers and of the servers."""
        return {
            "workers": [worker.pid for worker in self._workers],
            "servers": [server.pid for server in self._servers],
        }

    @property
    def python(self) -> str:
        """The Python that runs this peer's workers and driver."""
        return python_of(self.installed_as) if self.installed_as else sys.executable

    def environment(self) -> dict[str, str]:
        """Return the environment of the peer's Python."""
        return {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "PEERS_SERVICES": json.dumps(self.services),
            "PEERS_STEP_SECONDS": str(self.step_s),
        }

    def child(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> Child:
        """Start a process of this peer."""
        self._started += 1
        environment = {**self.environment(), **(env or {})}
        child = Child(
            f"{name}-{self._started}", argv, logs=self.folder, env=environment, cwd=PROJECT
        )
        child.start()
        return child

    def app(self, module: str, *arguments: str) -> Child:
        """Start a worker: a module of ``benchmarks.peers.apps``."""
        worker = self.child(
            module, [self.python, "-m", f"lab.benchmarks.peers.apps.{module}", *arguments]
        )
        self._workers.append(worker)
        return worker


class Ours(Rig):
    """This project: the broker and Azurite on disk, one embedded host."""

    name, title, installed_as, client = "ours", "ours, queued agents", None, "own"
    durability = "here up to 5 s may be lost (Azurite); in Azure nothing"
    inline = ""
    """The agents that are called in the function of the message that asked for them."""

    async def start(self) -> None:
        settings = {
            f"ORDERS_{name.upper()}_URL": self.services[name]
            for name in ("stock", "payment", "shipping", "mail", "carrier")
        }
        settings["ORDERS_TIME_ALLOWED_SECONDS"] = str(int(self.step_s))
        settings["ORDERS_INLINE_AGENTS"] = self.inline
        self._stack = Stack(
            PROJECT,
            settings=settings,
            groups={"app": []},
            data=self.folder / "data",
            logs=self.folder,
        )
        await self._stack.start()
        self.address = self._stack.servicebus_connection

    async def start_workers(self) -> None:
        await self._stack.start_group([], name="app")

    def kill_workers(self) -> None:
        self._stack.kill("app")

    async def stop(self) -> None:
        await self._stack.stop()

    def pids(self) -> dict[str, list[int]]:
        workers = [child.pid for child in self._stack.group("app")]
        servers = [child.pid for child in self._stack.children() if child.pid not in workers]
        return {"workers": workers, "servers": servers}


class OursInline(Ours):
    """The same, with no queue before the three agents."""

    name, title = "ours-inline", "ours, inline agents"
    inline = "inventory,payment,shipping"


class Restate(Rig):
    """Restate's native server, and one Hypercorn process with the workflow."""

    name, title, installed_as = "restate", "Restate 1.7.12 (native server)", "restate"
    durability, client = "all (RocksDB, fsync)", "http"

    async def start(self) -> None:
        node, ingress, admin, self._port = (free_port() for _ in range(4))
        env = {
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_ADDRESS": f"{LOCAL}:{node}",
            "RESTATE_INGRESS__BIND_ADDRESS": f"{LOCAL}:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"{LOCAL}:{admin}",
        }
        argv = [command_of("restate", "restate-server"), "--no-logo"]
        argv += ["--base-dir", str(self.folder / "data")]
        server = self.child("restate-server", argv, env)
        self._servers.append(server)
        health = f"http://{LOCAL}:{admin}/health"
        await server.until(lambda: _answers(health), timeout_s=READY_S)
        await self.start_workers()
        await self._register(admin, server)
        self.address = f"http://{LOCAL}:{ingress}/Saga/{{id}}/run"

    async def _register(self, admin: int, server: Child) -> None:
        body = json.dumps({"uri": f"http://{LOCAL}:{self._port}"}).encode()
        url = f"http://{LOCAL}:{admin}/deployments"
        await server.until(lambda: _answers(url, body), timeout_s=READY_S)
        ready = f"http://{LOCAL}:{admin}/services/Saga"
        await server.until(lambda: _answers(ready), timeout_s=READY_S)

    async def start_workers(self) -> None:
        app = self.app("restate_app", str(self._port))
        await app.until(lambda: _listens(self._port), timeout_s=READY_S)


class Dbos(Rig):
    """PostgreSQL as Debian configures it, and one process that runs workflow and steps."""

    name, title, installed_as = "dbos", "DBOS 3.4.0 on PostgreSQL, inline", "dbos"
    durability, client = "all (fsync)", "http"
    how = "inline"
    """How the workflow calls a step: see ``dbos_app``."""

    async def start(self) -> None:
        postgres, self._port = free_port(), free_port()
        await self._start_postgres(postgres)
        self._database = f"postgresql://postgres@{LOCAL}:{postgres}/dbos"
        await self.start_workers()
        self.address = f"http://{LOCAL}:{self._port}/orders/{{id}}"

    async def _start_postgres(self, port: int) -> None:
        data, env = self.folder / "data", {"LD_LIBRARY_PATH": library_path("dbos"), "LC_ALL": "C"}
        data.mkdir()
        become = _unprivileged(data)
        init = [command_of("dbos", "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust"]
        result = await asyncio.to_thread(
            subprocess.run,
            [*become, *init, "-E", "UTF8", "--no-sync"],
            env={**os.environ, **env},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise OSError(f"initdb failed: {result.stderr.strip()}")
        argv = [*become, command_of("dbos", "postgres"), "-D", str(data), "-p", str(port)]
        argv += ["-c", f"listen_addresses={LOCAL}", "-c", "unix_socket_directories="]
        server = self.child("postgres", argv, env)
        self._servers.append(server)
        ready = "ready to accept connections"
        await server.until(lambda: _says(server.log_path, ready), timeout_s=READY_S)

    async def start_workers(self) -> None:
        app = self.app("dbos_app", self._database, str(self._port), self.how)
        await app.until(lambda: _listens(self._port), timeout_s=READY_S)


class DbosQueued(Dbos):
    """The same, with each step on a queue of DBOS."""

    name, title, how = "dbos-queued", "DBOS 3.4.0 on PostgreSQL, queued", "queued"


class Temporal(Rig):
    """Temporal's development server with its state in an SQLite file, and one worker process."""

    name, title, installed_as = "temporal", "Temporal 1.32 dev server, in a file", "temporal"
    durability, client = "all (SQLite, fsync)", "temporal"

    async def start(self) -> None:
        port = free_port()
        argv = [command_of("temporal", "temporal"), "server", "start-dev", "--headless"]
        argv += ["--ip", LOCAL, "--port", str(port), "--log-level", "error"]
        argv += ["--db-filename", str(self.folder / "temporal.db")]
        server = self.child("temporal", argv)
        self._servers.append(server)
        self.address = f"{LOCAL}:{port}"
        await server.until(lambda: _listens(port), timeout_s=READY_S)
        await self.start_workers()

    async def start_workers(self) -> None:
        self.app("temporal_app", self.address)


class Celery(Rig):
    """Redis with its append-only file, and a Celery worker with one process a core, its default."""

    name, title, installed_as = "celery", "Celery 5.7.0 chain on Redis", "celery"
    durability, client = "the last second may be lost; nothing keeps the saga's state", "celery"

    async def start(self) -> None:
        port = free_port()
        argv = [command_of("celery", "redis-server"), "--port", str(port), "--bind", LOCAL]
        argv += ["--dir", str(self.folder), "--appendonly", "yes"]
        server = self.child("redis", argv, {"LD_LIBRARY_PATH": library_path("celery")})
        self._servers.append(server)
        self.address = f"redis://{LOCAL}:{port}/0"
        await server.until(lambda: _listens(port), timeout_s=READY_S)
        await self.start_workers()

    async def start_workers(self) -> None:
        argv = [self.python, "-m", "celery", "-A", "lab.benchmarks.peers.apps.celery_app"]
        worker = self.child("celery", [*argv, "worker", "--loglevel", "INFO"])
        self._workers.append(worker)
        await worker.until(lambda: _says(worker.log_path, " ready."), timeout_s=READY_S)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "REDIS_URL": self.address}


RIGS: dict[str, type[Rig]] = {
    rig.name: rig for rig in (Restate, Celery, Dbos, OursInline, Ours, DbosQueued, Temporal)
}
"""In the order of the visits: ours in the middle, because each peer is compared with them."""


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of processes and of all that they started, reaped ones included."""
    cpu_s_of: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it ended meanwhile
            pid = int(entry.name)
            cpu_s_of[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append(pid)
    total, queue = 0.0, list(pids)
    while queue:
        pid = queue.pop()
        total += cpu_s_of.get(pid, 0.0)
        queue += children.get(pid, [])
    return total


def _unprivileged(data: Path) -> list[str]:
    """Return how to start PostgreSQL, which refuses to run as root, and give it its folder."""
    if os.getuid():
        return []
    names = {user.pw_name for user in pwd.getpwall()}
    user = next(name for name in ("postgres", "nobody") if name in names)
    shutil.chown(data, user)
    for folder in (data.parent, data.parent.parent):
        folder.chmod(0o755)
    number = pwd.getpwnam(user)
    # A change of user clears the signal that ends a process with its parent: set it again.
    return [
        "setpriv",
        f"--reuid={number.pw_uid}",
        f"--regid={number.pw_gid}",
        "--clear-groups",
        "--pdeathsig",
        "KILL",
    ]


def _listens(port: int) -> bool | None:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return True if probe.connect_ex((LOCAL, port)) == 0 else None


def _answers(url: str, body: bytes | None = None) -> bool | None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310  our own server
            return True if answer.status < 300 else None
    except OSError:
        return None


def _says(path: Path, text: str) -> bool | None:
    return True if text in path.read_text(errors="replace") else None
