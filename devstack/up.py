"""`devstack up`: a stack with one screen, until Ctrl-C or until something dies."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from devstack.children import is_error, readable
from devstack.doctor import busy_ports, check_packages
from devstack.errors import DevstackError
from devstack.numbers import PROCESSES_MAX
from devstack.stack import HostProcess, Stack

__all__ = ["HostProcess", "Stack", "run_up"]

_FOLLOW_EVERY_S = 0.2


def run_up(arguments: argparse.Namespace) -> int:
    """Start a stack and wait; 0 after Ctrl-C or SIGTERM.

    Raises:
        DevstackError: something did not start, or died later. Everything is stopped by then.
    """
    return asyncio.run(_up(arguments))


async def _up(arguments: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants it ignored
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stack = _stack(arguments)
    tasks = [asyncio.create_task(stopping.wait()), asyncio.create_task(_run(stack, arguments))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        _say("Stopping.")
        await stack.stop()
    _say("Everything is stopped.")
    return 0


async def _run(stack: Stack, arguments: argparse.Namespace) -> None:
    await stack.start()
    _say(screen(stack, verbose=arguments.verbose))
    await asyncio.gather(stack.watch(), _follow(stack, whole=arguments.verbose))


def _stack(arguments: argparse.Namespace) -> Stack:
    app_dir = arguments.app_dir.resolve()
    if not (app_dir / "function_app.py").exists():
        raise DevstackError(
            f"{app_dir} has no function_app.py: name the directory of a function app."
        )
    if lacking := check_packages():
        raise DevstackError(" ".join(lacking))
    if not 1 <= arguments.processes <= PROCESSES_MAX:
        raise DevstackError(f"--processes must be at least 1 and at most {PROCESSES_MAX}.")
    if arguments.ports == "fixed" and (busy := busy_ports()):
        raise DevstackError(" ".join(busy))
    only = [name for name in arguments.only.split(",") if name]
    return Stack(
        app_dir,
        config=arguments.config,
        settings=dict(_setting(text) for text in arguments.setting),
        groups={"host": only},
        without=[name for name in arguments.without.split(",") if name],
        processes=arguments.processes,
        data=arguments.data,
        ports=arguments.ports,
        core_tools=arguments.func,
    )


def _setting(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise DevstackError(f"--setting {text!r} is no NAME=VALUE.")
    return name, value


def screen(stack: Stack, *, verbose: bool) -> str:
    """What runs where, and the connection strings to copy."""
    rows = [("broker", _pid(stack.broker), _endpoint(stack.servicebus_connection))]
    if stack.management_port:
        rows.append(("management", _pid(stack.broker), f"http://127.0.0.1:{stack.management_port}"))
    if stack.azurite is not None:
        for service, port in stack.azurite.ports.items():
            where = f"http://127.0.0.1:{port}"
            rows.append((f"azurite {service}", _pid(stack.azurite.child), where))
    for host in stack.processes:
        where = f"http://127.0.0.1:{host.http_port}  " if host.http_port else ""
        what = ", ".join(host.functions) or "func, with every function"
        rows.append(("host", f"pid {host.pid}", where + what))
    lines = [f"Azure on this machine, for {stack.app_dir}", ""]
    lines += [f"  {name:<14} {pid:<12} {where}" for name, pid, where in rows]
    settings = stack.host_settings()
    lines += ["", "To copy (the host has them already):", ""]
    lines += [f"  {n}={v}" for n, v in settings.items() if v in _connections(stack)]
    where = "below" if verbose else f"in {stack.logs}, errors below (-v: all of them)"
    return "\n".join([*lines, "", f"Logs are {where}. Ctrl-C stops everything."])


def _connections(stack: Stack) -> set[str]:
    return {stack.servicebus_connection, stack.storage_connection}


def _pid(child: object) -> str:
    return f"pid {getattr(child, 'pid', '-')}"


def _endpoint(connection: str) -> str:
    parts = dict(part.split("=", 1) for part in connection.split(";") if "=" in part)
    return parts.get("Endpoint", "?").replace("sb://", "amqp://")


async def _follow(stack: Stack, *, whole: bool) -> None:
    """Print what the components write, or errors alone, each line under its component's name."""
    read: dict[Path, int] = {}
    while True:
        for child in stack.children():
            for path in (child.log_path, child.out_path):
                for line in _new_lines(path, read):
                    if whole:
                        _say(f"[{child.name}] {line}")
                    elif is_error(line):
                        _say(f"[{child.name}] {readable(line)}")
        await asyncio.sleep(_FOLLOW_EVERY_S)


def _new_lines(path: Path, read: dict[Path, int]) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(read.get(path, 0))
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    read[path] = read.get(path, 0) + len(whole)
    return whole.decode(errors="replace").splitlines()


def _say(text: str) -> None:
    """Print; where nobody reads any more (a closed pipe or terminal) go on in silence."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for good
