"""One instance of the app: a small host, and Microsoft's worker core on the unpacked zip.

    python -m lab.rehearsal.instance PLAN_FILE

The host is the one of devstack: it receives, renews locks, settles, and runs timers and HTTP, with
the concurrency of host.json. Only the functions run elsewhere: in a process that sees the standard
library and the unpacked folder. The plan has the folder (``app``), the settings of the app and of
the host, the port for HTTP (null: none) and the functions of this instance. It prints one line of
JSON when it listens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from azure.functions.meta import Datum

from devstack.functions.bindings import read_bindings
from devstack.functions.host import Host
from devstack.functions.hostjson import load_host_json
from devstack.functions.indexing import IndexedFunction, Signature
from devstack.functions.invocation import Invoker, Result
from devstack.functions.settings import InvocationError, Settings
from devstack.tests import worker_core

PACKAGES = Path(".python_packages/lib/site-packages")
LINE_BYTES_MAX = 64 * 1024 * 1024


class Worker:
    """The worker process of an unpacked app."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.index: worker_core.Index = {}
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    async def start(
        cls, app_dir: Path, settings: Mapping[str, str], log: int | None = None
    ) -> Worker:
        """Start a worker that waits, and give it the app and its settings, as Azure does.

        ``log`` is the file of its records; None: standard error.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", worker_core.__file__),
            *(str(app_dir), str(app_dir / PACKAGES)),
            env={},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=LINE_BYTES_MAX,
        )
        worker = cls(process)
        worker._write(dict(settings))
        worker.index = await worker._line()
        return worker

    def _write(self, work: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work).encode() + b"\n")

    async def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(await self.process.stdout.readline() or b"{}")
        return line

    async def read(self) -> None:
        """Give each answer to the invocation that waits for it, until the process ends."""
        while answer := await self._line():
            self._waiting.pop(answer["id"]).set_result(answer)

    async def invoke(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the worker core to an invocation."""
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._write({"id": number, **work})
        return await future


class WorkerInvoker(Invoker):
    """Calls the functions in the worker process."""

    worker: Worker

    async def _call(
        self,
        function: IndexedFunction,
        datum: Datum,
        metadata: Mapping[str, Datum],
        *,
        invocation_id: str,  # the worker core gets one of its own
    ) -> Result:
        properties = {name: worker_core.packed(item) for name, item in metadata.items()}
        work = {"datum": worker_core.packed(datum), "metadata": properties}
        answer = await self.worker.invoke({"function": function.name, **work})
        if answer["status"] != "Success":
            raise InvocationError(answer["error"])
        outputs = {name: _datum(value) for name, value in answer["outputs"].items()}
        return Result(outputs, _datum(answer["returned"]) if answer["returned"] else None)


class InstanceHost(Host):
    """Listens for the functions of the worker's index."""

    worker: Worker

    def _index(self) -> Settings:
        settings = Settings.load(self.app_dir, overrides=self.settings)
        self.config = load_host_json(self.app_dir, settings)
        self.functions = [
            _indexed(name, bindings, settings, self.app_dir)
            for name, bindings in self.worker.index["indexed"].items()
            if name in (self.only or ())
        ]
        return settings

    def _new_invoker(self, settings: Settings) -> Invoker:
        invoker = WorkerInvoker(settings, timeout_s=None)
        invoker.worker = self.worker
        return invoker


def _indexed(
    name: str, bindings: list[dict[str, Any]], settings: Settings, folder: Path
) -> IndexedFunction:
    trigger, outputs = read_bindings(name, bindings, settings)
    return IndexedFunction(
        name=name,
        code=_elsewhere,
        bindings=bindings,
        signature=Signature(inputs={}, outputs={}, wants_context=False, is_async=True),
        trigger=trigger,
        outputs=outputs,
        directory=folder,
    )


async def _elsewhere() -> None:
    raise InvocationError("this function runs in the worker process")


def _datum(value: list[Any]) -> Datum:
    """Return an output of the worker core as a datum; an answer to HTTP has three parts."""
    if len(value) == 2:
        kind, content = value
        return Datum(content, kind)
    status, headers, body = value
    parts = {
        "status_code": Datum(str(status), "string"),
        "headers": {name: Datum(text, "string") for name, text in headers.items()},
        "body": Datum(body.encode(), "bytes"),
    }
    return Datum(parts, "http")


async def _run(plan: Mapping[str, Any]) -> int:
    app_dir = Path(plan["app"])
    worker = await Worker.start(app_dir, plan["settings"])
    if not worker.index.get("indexed"):
        sys.stderr.write(f"nothing is indexed: {worker.index.get('error', 'the worker ended')}\n")
        return 1
    reading = asyncio.create_task(worker.read())
    host = InstanceHost(
        app_dir, settings=plan["host"], only=plan["functions"], http_port=plan["http_port"]
    )
    host.worker = worker
    await host.start()
    index = {name: worker.index[name] for name in ("core", "capabilities")}
    print(json.dumps(index | {"indexed": list(worker.index["indexed"])}), flush=True)
    await reading  # the worker ends before the instance only if it failed
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(_run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
