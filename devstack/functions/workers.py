"""`--processes N`: several host processes over the same queues, as Azure has instances.

The first serves HTTP and timers, which Azure makes singletons or balances; the others
listen to queues only. A worker that dies is reported; then all stop with a code other than
zero, or, with `--respawn`, it is started again as Azure would.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devstack.children import Child, describe_exit
from devstack.errors import ChildFailedError
from devstack.functions.logs import configure_logs

_log = logging.getLogger("devstack.functions")
_READY_S = 60.0
_WATCH_EVERY_S = 0.1
_RESPAWN_AFTER_S = 0.5
_CLOSE_S = 3.0


def run_workers(arguments: argparse.Namespace) -> int:
    """Run N workers until SIGTERM or Ctrl-C; 1 when one died and was not to be respawned."""
    configure_logs("Information")
    with tempfile.TemporaryDirectory(prefix="functions-") as logs:
        return asyncio.run(_Workers(arguments, Path(logs)).run())


class _Workers:
    def __init__(self, arguments: argparse.Namespace, logs: Path) -> None:
        self._arguments = arguments
        self._stopping = asyncio.Event()
        self._children = [
            Child(
                f"worker-{number}",
                [sys.executable, "-m", "devstack.functions", *_argv(arguments, number)],
                logs=logs,
                stderr_here=True,
            )
            for number in range(arguments.processes)
        ]

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        try:
            for child in self._children:
                child.start()
            ready = [await self._ready(child) for child in self._children]
            if not self._stopping.is_set():
                self._print(ready)
            return await self._watch()
        finally:
            limit_s = self._arguments.drain + _CLOSE_S
            stops = [child.stop_async(timeout_s=limit_s) for child in self._children]
            await asyncio.gather(*stops)

    async def _ready(self, child: Child) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return {} if self._stopping.is_set() else child.ready_line()

        return await child.until(found, timeout_s=_READY_S)

    def _print(self, ready: Sequence[dict[str, Any]]) -> None:
        line = {**ready[0], "pid": os.getpid(), "pids": [one["pid"] for one in ready]}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    async def _watch(self) -> int:
        while not self._stopping.is_set():
            for child in self._children:
                if not child.alive and not await self._died(child):
                    return 1
            await asyncio.sleep(_WATCH_EVERY_S)
        return 0

    async def _died(self, child: Child) -> bool:
        """Whether to go on without stopping everything."""
        how = describe_exit(child.exit_code or 0)
        if not self._arguments.respawn:
            _log.error("%s (pid %d) died with %s: stopping all", child.name, child.pid, how)
            return False
        _log.error("%s (pid %d) died with %s: starting it again", child.name, child.pid, how)
        await asyncio.sleep(_RESPAWN_AFTER_S)
        child.start()
        try:
            await self._ready(child)
        except ChildFailedError as error:
            _log.error("%s did not come back: %s", child.name, error)  # a sentence
            return False
        _log.info("%s runs again as pid %d", child.name, child.pid)
        return True


def _argv(arguments: argparse.Namespace, number: int) -> list[str]:
    argv = [str(arguments.app_dir.resolve()), "--drain", str(arguments.drain)]
    if arguments.only:
        argv += ["--only", ",".join(arguments.only)]
    if arguments.without:
        argv += ["--except", ",".join(arguments.without)]
    for name, value in arguments.setting:
        argv += ["--setting", f"{name}={value}"]
    if arguments.data:
        argv += ["--data", str(arguments.data.resolve())]
    if number:
        return [*argv, "--secondary"]
    return [*argv, "--http-port", str(arguments.http_port)]
