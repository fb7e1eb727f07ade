"""`devstack up [APP_DIR]`, `devstack install` and `devstack doctor`; or `python -m devstack`."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from devstack.azurite import install
from devstack.children import Child, Scratch, complete_lines, escaped, is_error, readable
from devstack.doctor import has_azurite
from devstack.env_file import EnvFile, export_lines
from devstack.inputs import PROCESSES_MAX, DevstackError, add_app_options, needed_port
from devstack.lifecycle import stop_event
from devstack.stack import Stack

_FOLLOW_EVERY_S = 0.2
_INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m devstack`."""
    command = argparse.ArgumentParser(
        prog="devstack",
        description="Azure on one machine: a Service Bus broker, Azurite and a Functions host.",
    )
    verbs = command.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start all three and show where they run")
    doctor_help = "show what `up` with the same options lacks on this machine, and how to fix it"
    for add in (up.add_argument, verbs.add_parser("doctor", help=doctor_help).add_argument):
        add(
            "app_dir",
            type=Path,
            nargs="?",
            default=Path(),
            metavar="APP_DIR",
            help="the directory of function_app.py (default: here)",
        )
        add(
            "--config", type=Path, metavar="FILE", help="the emulator's Config.json with the queues"
        )
        add_app_options(add, only=[])
        add(
            "--processes",
            type=int,
            default=1,
            metavar="N",
            help="host processes on the same queues",
        )
        add(
            "--ports",
            choices=["fixed", "free"],
            default="fixed",
            help="the usual ports (5672, 5300, 10002, 7071), or free ones",
        )
        add("--data", type=Path, metavar="DIR", help="keep messages, tables and timer status here")
        add(
            "--with",
            dest="beside",
            action="append",
            default=[],
            metavar="COMMAND",
            help="also run this command, with the host's settings in its environment",
        )
        add(
            "--needs",
            type=needed_port,
            action="append",
            default=[],
            metavar="PORT=NAME",
            help="a port that this command needs: it is checked before the start",
        )
        add("-v", "--verbose", action="store_true", help="show all log lines, by component")
    verbs.add_parser("install", help="install Azurite with npm for this user (up does so too)")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code: 0 for success, 1 for a failure, 2 for bad usage.

    After a Ctrl-C it is 0 for `up`, and 130 for the other verbs.
    """
    arguments = parser().parse_args(argv)
    try:
        if arguments.verb == "install":
            _print(f"Azurite is in {install()}.")
            return 0
        if arguments.verb == "doctor":
            return asyncio.run(report(_stack(arguments, arguments.data)))
        # A part that is killed starts again with its data, also without --data.
        with closing(Scratch("devstack-data-")) as scratch:
            stack = _stack(arguments, arguments.data or scratch.path)
            _make_ready(stack)
            return asyncio.run(_up(stack, verbose=arguments.verbose))
    except DevstackError as error:
        print(f"devstack: {error}", file=sys.stderr)  # noqa: T201  # the command's answer
        return 1
    except KeyboardInterrupt:  # only before `_up` handles Ctrl-C: no stack runs yet
        _print("Stopped.")
        return 0 if arguments.verb == "up" else _INTERRUPTED


def _stack(arguments: argparse.Namespace, data: Path | None) -> Stack:
    if not 1 <= arguments.processes <= PROCESSES_MAX:
        raise DevstackError(f"--processes must be at least 1 and at most {PROCESSES_MAX}.")
    return Stack(
        arguments.app_dir,
        config=arguments.config,
        settings=dict(arguments.setting),
        groups={"host": arguments.only},
        without=arguments.without,
        processes=arguments.processes,
        data=data,
        ports=arguments.ports,
        allow_remote=arguments.allow_remote,
        beside=arguments.beside,
        needs=dict(arguments.needs),
    )


def _make_ready(stack: Stack) -> None:
    """Raise DevstackError if the stack cannot start; install Azurite if it is missing."""
    if problems := stack.problems():
        raise DevstackError("\n".join(problems))
    if not has_azurite():
        _print("Azurite is not installed: npm installs it for this user (a minute, once).")
        _print(f"Azurite is in {install()}.")


async def report(stack: Stack) -> int:
    """Print what keeps a stack from starting; return 1 if something does, else 0."""
    problems = stack.problems()
    if not problems:
        try:
            ignored = (await stack.index())["ignores"]
        except DevstackError as error:
            problems = str(error).splitlines()
    if problems:
        _print("\n".join(f"- {problem}" for problem in problems))
        return 1
    if not has_azurite():
        _print("Azurite is not installed: `devstack up` installs it with npm (once).")
    if ignored:
        _print(f"The host ignores these settings of host.json: {', '.join(ignored)}.")
    _print("Nothing is missing: `devstack up` will start.")
    return 0


async def _up(stack: Stack, *, verbose: bool) -> int:
    """Run the stack. Return 0 after a signal; raise DevstackError when a part has ended."""
    env_file = EnvFile(stack.app_dir)
    tasks = [
        asyncio.create_task(stop_event().wait()),
        asyncio.create_task(_run(stack, env_file, verbose=verbose)),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if stack.children():
            _print("Stopping.")
        env_file.remove()
        await stack.stop()
    _print("Everything is stopped.")
    return 0


async def _run(stack: Stack, env_file: EnvFile, *, verbose: bool) -> None:
    await stack.start()
    try:
        env_file.write(stack.host_settings())
        hint = (
            f"They are in {env_file.path}, where programs may look. Only other programs need "
            "these lines."
        )
    except DevstackError as error:
        hint = str(error)
    _print(_screen(stack, hint, verbose=verbose))
    await asyncio.gather(stack.watch(_print), _follow_logs(stack, verbose=verbose))


def _screen(stack: Stack, hint: str, *, verbose: bool) -> str:
    """The processes with their addresses, and the settings as lines to paste.

    `hint` tells where else to find the settings.
    """
    endpoint = stack.servicebus_connection.removeprefix("Endpoint=sb://").split(";")[0]
    rows = [("broker", _pid(stack.broker), f"amqp://{endpoint}")]
    if stack.management_port:
        rows.append(("management", _pid(stack.broker), f"http://127.0.0.1:{stack.management_port}"))
    if stack.azurite is not None:
        address = f"http://127.0.0.1:{stack.azurite.port}"
        rows.append(("azurite table", _pid(stack.azurite.child), address))
    for host in stack.processes:
        address = f"http://127.0.0.1:{host.http_port}  " if host.http_port else ""
        rows.append(("host", _pid(host), address + ", ".join(host.functions)))
    if ignored := {name: "" for host in stack.processes for name in host.ignores}:
        rows.append(("host.json", "", f"the host ignores {', '.join(ignored)}"))
    commands = [(child, child.argv[-1].removeprefix("exec ")) for child in stack.beside]
    rows += [(child.name, _pid(child), command) for child, command in commands]
    lines = [f"Azure on this machine, for {stack.app_dir}", ""]
    lines += [f"  {name:<14} {pid:<12} {details}" for name, pid, details in rows]
    lines += ["", "The settings of the host, for another shell:", ""]
    lines += [*export_lines(stack.host_settings()), "", hint]
    logs = "below" if verbose else f"in {stack.logs}; errors are shown below (-v shows all)"
    lines += ["A process that dies starts again with its data: try `kill -9` with a pid."]
    return "\n".join([*lines, f"Logs are {logs}. Ctrl-C stops everything."])


def _pid(child: Child | None) -> str:
    return f"pid {child.pid if child else '-'}"


async def _follow_logs(stack: Stack, *, verbose: bool) -> None:
    """Print new log lines, each after the name of its child: all lines, or errors only."""
    offsets: dict[Path, int] = {}
    while True:
        for child in stack.children():
            for path in (child.log_path, child.out_path):
                lines, offsets[path] = complete_lines(path, offsets.get(path, 0))
                for line in lines:
                    if verbose or child in stack.beside or is_error(line):
                        _print(f"[{child.name}] {escaped(line if verbose else readable(line))}")
        await asyncio.sleep(_FOLLOW_EVERY_S)


def _print(text: str) -> None:
    """Print; go on without output when the reader has closed the pipe or terminal."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for good


if __name__ == "__main__":
    sys.exit(main())
