"""The command line: one ready line in JSON on standard output, logs on standard error."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from devstack.directories import make_directory
from devstack.errors import DevstackError
from devstack.functions.core_tools import run_core_tools
from devstack.functions.host import Host
from devstack.functions.logs import configure_logs
from devstack.functions.workers import run_workers
from devstack.numbers import PROCESSES_MAX

_log = logging.getLogger("devstack.functions")
_THREADS_S = 0.2
_DRAIN_MAX_S = 86400


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m devstack.functions`."""
    found = argparse.ArgumentParser(
        prog="python -m devstack.functions",
        description="Run a Python v2 function app without the Functions Core Tools.",
    )
    add = found.add_argument
    add("app_dir", type=Path, metavar="APP_DIR", help="the directory of function_app.py")
    add("--http-port", type=int, default=0, metavar="N", help="port of HTTP triggers (0: free)")
    add("--processes", type=int, default=1, metavar="N", help="host processes on the same queues")
    add("--only", type=_names, metavar="NAME[,NAME]", help="run these functions only")
    add("--except", type=_names, dest="without", default=[], metavar="NAME[,NAME]",
        help="run all functions but these")  # fmt: skip
    add("--setting", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="an app setting; beats the environment and local.settings.json")  # fmt: skip
    add("--data", type=Path, metavar="DIR", help="where timers remember their last run")
    add("--drain", type=float, default=10.0, metavar="S",
        help="seconds that work in hand may take after SIGTERM (default 10)")  # fmt: skip
    add("--respawn", action="store_true", help="start a worker process again when it dies")
    add("--func", action="store_true", help="start the real Core Tools (func) instead")
    add("--secondary", action="store_true", help=argparse.SUPPRESS)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 after a SIGTERM or Ctrl-C, 1 when something failed, 2 for bad usage."""
    arguments = parser().parse_args(argv)
    _check(arguments)
    try:
        if arguments.func:
            return run_core_tools(arguments)
        if arguments.processes > 1:
            return run_workers(arguments)
        return _leave(asyncio.run(_run_here(arguments)))
    except DevstackError as error:
        print(f"devstack.functions: {error}", file=sys.stderr)  # noqa: T201  # the command's answer
        return 1
    except KeyboardInterrupt:
        return 0


def _check(arguments: argparse.Namespace) -> None:
    """End with code 2 and a sentence where flags make no sense, alone or together."""
    if (
        not 1 <= arguments.processes <= PROCESSES_MAX
        or not 0 <= arguments.drain <= _DRAIN_MAX_S
        or not 0 <= arguments.http_port <= 65535
    ):
        parser().error(
            f"--processes is at least 1 and at most {PROCESSES_MAX}, --drain between 0 and "
            f"{_DRAIN_MAX_S} seconds, --http-port between 0 and 65535."
        )
    if arguments.func and (arguments.processes > 1 or arguments.data or arguments.respawn):
        parser().error(
            "--func starts one Core Tools, which knows no --processes, --data or --respawn: leave "
            "them out."
        )


async def _run_here(arguments: argparse.Namespace) -> int:
    configure_logs("Information")
    app_dir = arguments.app_dir.resolve()
    host = Host(
        app_dir,
        settings=dict(arguments.setting),
        only=arguments.only,
        without=arguments.without,
        http_port=arguments.http_port,
        status_dir=make_directory(arguments.data.resolve()) if arguments.data else None,
        drain_s=arguments.drain,
        secondary=arguments.secondary,
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if app_dir.is_dir():
        os.chdir(app_dir)
    starting = asyncio.ensure_future(host.start())
    await _either(starting, stopping.wait())
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return 0
    starting.result()
    configure_logs(host.config.log_level)
    print(ready_line(host), flush=True)  # noqa: T201  # the one line on standard output
    await _either(stopping.wait(), host.failed.wait())
    _log.info("Stopping: work in hand has %g s", arguments.drain)
    failed = host.failed.is_set()
    await host.stop()
    return 1 if failed else 0


def _leave(code: int) -> int:
    """Return `code`; end at once where a sync function still holds its thread after the drain.

    The interpreter would wait for that thread, for ever perhaps.
    """
    end = time.monotonic() + _THREADS_S
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    held = [one.name for one in others if not one.daemon and not _ended(one, end)]
    if held:
        _log.warning("Left running: %s; what they had in hand comes again", ", ".join(held))
        logging.shutdown()
        os._exit(code)
    return code


def _ended(thread: threading.Thread, end: float) -> bool:
    thread.join(max(0.0, end - time.monotonic()))
    return not thread.is_alive()


def ready_line(host: Host) -> str:
    """What is running where, as one line of JSON."""
    return json.dumps(
        {
            "ready": True,
            "functions": [one.name for one in host.functions],
            "http_port": host.http_port,
            "pid": os.getpid(),
            "pids": [os.getpid()],
        }
    )


async def _either(*awaitables: object) -> None:
    tasks = [asyncio.ensure_future(one) for one in awaitables]  # type: ignore[call-overload]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, given in zip(tasks, awaitables, strict=True):
        if task is not given:  # one of ours, made from a coroutine
            task.cancel()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one function")
    return names


def _setting(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value
