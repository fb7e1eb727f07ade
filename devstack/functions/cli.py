"""The command `python -m devstack.functions`: it runs one host in this process.

It prints one JSON line when the host is ready, and logs on standard error. `devstack up
--processes N` starts several such processes.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from devstack.functions.host import Host
from devstack.functions.hostjson import LOG_LEVELS
from devstack.functions.invocation import CURRENT
from devstack.inputs import DevstackError, add_app_options, make_directory
from devstack.lifecycle import stop_event

_log = logging.getLogger("devstack.functions")
_THREADS_S = 0.2
"""How long the command waits at its end for sync functions that still run."""
_DRAIN_S_MAX = 86400
_GRACE_S = 2.0
"""Time after functionTimeout for the invoker to act, before the watching thread acts."""
_WATCH_EVERY_S = 1.0


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m devstack.functions`."""
    options = argparse.ArgumentParser(
        prog="python -m devstack.functions",
        description="Run a Python v2 function app without the Functions Core Tools.",
    )
    add = options.add_argument
    add("app_dir", type=Path, metavar="APP_DIR", help="the directory of function_app.py")
    add("--http-port", type=int, default=0, metavar="N", help="port of HTTP triggers (0: free)")
    add_app_options(add, only=None)
    add("--data", type=Path, metavar="DIR", help="the directory of the timer status")
    add(
        "--drain",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds that running functions get after SIGTERM (default 10)",
    )
    add("--check", action="store_true", help="read the app as at a start, and end")
    add("--secondary", action="store_true", help=argparse.SUPPRESS)
    add("--listener", type=int, help=argparse.SUPPRESS)  # a file descriptor, from `_restarter`
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. The exit code is 0 after a signal, 1 for a failure, 2 for bad usage."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = parser().parse_args(argv)
    _check(arguments)
    configure_logs("Information")
    try:
        with socket.socket(fileno=arguments.listener) as listener:
            restart = _restarter(argv, listener)
            code = asyncio.run(_run_host(arguments, listener, restart))
            return restart() if code is None else _leave(code)
    except DevstackError as error:
        print(f"devstack.functions: {error}", file=sys.stderr)  # noqa: T201  # the command's answer
        return 1
    except KeyboardInterrupt:
        return 0


def _check(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.drain <= _DRAIN_S_MAX or not 0 <= arguments.http_port <= 65535:
        parser().error(
            f"--drain is between 0 and {_DRAIN_S_MAX} seconds, --http-port between 0 and 65535."
        )


class _JsonFormatter(logging.Formatter):
    """Writes each record as one JSON line: time, level, logger, message, and its invocation."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        current = CURRENT.get()
        if current is not None:
            line["invocation"], line["function"] = current
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logs(level: str) -> None:
    """Let every logger of the process log to standard error, from this level of host.json on.

    Microsoft's worker does not filter loggers either, so `azure` logs here what it logs in Azure.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=LOG_LEVELS[level], handlers=[handler], force=True)


def _print_ready(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201  # the ready line


def _restarter(argv: Sequence[str], listener: socket.socket) -> Callable[[], NoReturn]:
    """Return a function that starts this command again, with the same process id and HTTP socket.

    The socket stays open meanwhile, so clients that connect wait, and no other process can take
    the port.
    """
    directory, environ = Path.cwd(), dict(os.environ)
    command = [sys.executable, "-P", "-m", "devstack.functions", *argv]
    if "--listener" not in argv:
        command += ["--listener", str(listener.fileno())]
    listener.set_inheritable(False)  # the app's child processes do not get the socket

    def restart() -> NoReturn:
        os.chdir(directory)
        listener.set_inheritable(True)
        os.execve(sys.executable, command, environ)  # noqa: S606  # no shell

    return restart


def _watch_loop(host: Host, stopping: asyncio.Event, restart: Callable[[], NoReturn]) -> None:
    """Start the process again when a function blocks the event loop longer than functionTimeout.

    The invoker cannot do that, because its timeout runs on the blocked loop. In Azure another
    process has the clock; here it is a thread. A process that is stopping ends instead.
    """
    loop = asyncio.get_running_loop()

    def watch() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            while True:
                time.sleep(_WATCH_EVERY_S)
                limit_s = host.config.function_timeout_s
                answered = threading.Event()
                loop.call_soon_threadsafe(answered.set)
                if limit_s is None or answered.wait(limit_s + _GRACE_S):
                    continue
                if names := [name for name, counts in host.counts.items() if counts.running]:
                    text = "The event loop was blocked past functionTimeout while %s ran: %s"
                    if stopping.is_set():
                        _log.error(text, ", ".join(names), "the process ends")
                        os._exit(int(host.failed.is_set()))
                    _log.error(text, ", ".join(names), "the process starts again, as in Azure")
                    restart()

    threading.Thread(target=watch, name="watch-loop", daemon=True).start()


async def _run_host(
    arguments: argparse.Namespace, listener: socket.socket, restart: Callable[[], NoReturn]
) -> int | None:
    """Run the host; return the exit code, or None to start again after a function's timeout."""
    app_dir = arguments.app_dir.resolve()
    host = Host(
        app_dir,
        settings=dict(arguments.setting),
        only=arguments.only,
        without=arguments.without,
        http_port=arguments.http_port,
        listener=listener,
        status_dir=make_directory(arguments.data.resolve()) if arguments.data else None,
        drain_s=arguments.drain,
        secondary=arguments.secondary,
        allow_remote=arguments.allow_remote,
    )
    stopping = stop_event()
    if app_dir.is_dir():
        os.chdir(app_dir)
    if arguments.check:
        await host.check()
        _print_ready({"queues": host.queues, "ignores": host.config.not_applied})
        return 0
    _watch_loop(host, stopping, restart)
    starting = asyncio.ensure_future(host.start())
    await _first_of(asyncio.wait([starting]), stopping.wait())
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return 0
    starting.result()
    configure_logs(host.config.log_level)
    _print_ready(
        {
            "ready": True,
            "functions": [function.name for function in host.functions],
            "http_port": host.http_port,
            "pid": os.getpid(),
            "ignores": host.config.not_applied,
        }
    )
    await _first_of(stopping.wait(), host.failed.wait(), host.timed_out.wait())
    failed = host.failed.is_set()
    if failed:
        stopping.set()
    if stopping.is_set():
        _log.info("Stopping: running functions get %g s", arguments.drain)
        listener.close()
    else:
        _log.warning("A function exceeded functionTimeout: the process starts again, as in Azure")
    await host.stop()
    return int(failed) if stopping.is_set() else None


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _leave(code: int) -> int:
    """Return `code`. If a sync function still runs on its thread, exit the process instead.

    Otherwise the interpreter would wait for that thread.
    """
    deadline = time.monotonic() + _THREADS_S
    main_thread = threading.current_thread()
    threads = [
        thread
        for thread in threading.enumerate()
        if thread is not main_thread and not thread.daemon
    ]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if running := [thread.name for thread in threads if thread.is_alive()]:
        _log.warning("Left running: %s; their messages are delivered again", ", ".join(running))
        logging.shutdown()
        os._exit(code)
    return code
