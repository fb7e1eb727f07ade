"""`--func`: the real Functions Core Tools on the same settings, where they are installed."""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

from devstack.children import Child, describe_exit
from devstack.errors import NotInstalledError

_READY_S = 120.0
_STOP_S = 10.0


def run_core_tools(arguments: argparse.Namespace) -> int:
    """Run `func start` until SIGTERM or Ctrl-C, then 0; its own code (never 0) if it ends before.

    Raises:
        NotInstalledError: `func` is not on PATH.
        ChildFailedError: it did not listen within two minutes.
    """
    func = shutil.which("func")
    if func is None:
        raise NotInstalledError(
            "func was not found on PATH: install the Azure Functions Core Tools v4, or leave "
            "--func away to use the embedded host."
        )
    return asyncio.run(_run(func, arguments))


async def _run(func: str, arguments: argparse.Namespace) -> int:
    port = arguments.http_port or _free_port()
    argv = [func, "start", "--port", str(port)]
    if arguments.only:
        argv += ["--functions", *arguments.only]
    settings = dict(arguments.setting)
    settings |= {f"AzureWebJobs.{name}.Disabled": "true" for name in arguments.without}
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with tempfile.TemporaryDirectory(prefix="func-") as logs:
        child = Child(
            "func",
            argv,
            logs=Path(logs),
            env={**os.environ, **settings},
            cwd=arguments.app_dir,
            stderr_here=True,
        )
        child.start()
        try:
            await child.until(lambda: _answers(port), timeout_s=_READY_S)
            ready = {
                "ready": True,
                "func": True,
                "functions": arguments.only or [],
                "http_port": port,
            }
            sys.stdout.write(json.dumps({**ready, "pid": os.getpid(), "pids": [child.pid]}) + "\n")
            sys.stdout.flush()
            while child.alive and not stopping.is_set():  # noqa: ASYNC110  # a process is polled
                await asyncio.sleep(0.1)
        finally:
            code = await child.stop_async(signal.SIGINT, timeout_s=_STOP_S)
    if stopping.is_set():
        return 0
    sys.stderr.write(f"devstack.functions: func ended by itself with {describe_exit(code)}.\n")
    return code or 1


def _answers(port: int) -> bool | None:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return True if probe.connect_ex(("127.0.0.1", port)) == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
