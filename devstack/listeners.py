"""Find the process that listens on a port: its pid and its command."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LISTENS = "0A"
_COMMAND_LENGTH_MAX = 100


@dataclass(frozen=True)
class ListeningProcess:
    """A process that listens on a port, or the `devstack up` that started it."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid}: {self.command}"


def listeners(ports: Iterable[int]) -> dict[int, ListeningProcess]:
    """Find the process that listens on each port; processes of other users are not found."""
    numbers = set(ports)
    if not numbers:
        return {}
    pids = _by_proc(numbers) if (_PROC / "net" / "tcp").exists() else _by_lsof(numbers)
    return {port: _starter(pid) for port, pid in pids.items()}


def _by_proc(ports: set[int]) -> dict[int, int]:
    sockets: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == _LISTENS and port in ports:
                    sockets[f"socket:[{fields[9]}]"] = port
    return {sockets[link]: pid for pid, link in _open_sockets() if link in sockets}


def _open_sockets() -> Iterator[tuple[int, str]]:
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    yield int(process.name), str(descriptor.readlink())


def _by_lsof(ports: set[int]) -> dict[int, int]:
    options = ("-nP", "-sTCP:LISTEN", "-t")
    outputs = {port: output_of("lsof", f"-iTCP:{port}", *options).split() for port in ports}
    return {port: int(pids[0]) for port, pids in outputs.items() if pids}


def _starter(pid: int) -> ListeningProcess:
    """Return the `devstack up` that started a process, because to stop it ends all its parts.

    If no `devstack up` started the process, return the process itself.
    """
    parent, command = _parent_and_command(pid)
    starter = _parent_and_command(parent)[1] if parent else ""
    if re.search(r"(^|[\s/])devstack up\b", starter):  # the module, or the console script
        return ListeningProcess(parent, starter[:_COMMAND_LENGTH_MAX])
    return ListeningProcess(pid, command[:_COMMAND_LENGTH_MAX] or "its command is not known")


def _parent_and_command(pid: int) -> tuple[int, str]:
    if _PROC.joinpath("self").exists():
        with suppress(OSError, ValueError, IndexError):
            # The fields after the process's name, which is in brackets and may contain spaces.
            stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            return int(stat[1]), " ".join(word.decode(errors="replace") for word in words).strip()
        return 0, ""
    output = output_of("ps", "-o", "ppid=,command=", "-p", str(pid))
    parent, _, command = output.strip().partition(" ")
    return (int(parent), command.strip()) if parent.isdigit() else (0, "")


def output_of(program: str, *arguments: str) -> str:
    """Return what a program on PATH prints; "" if it cannot run, or takes over ten seconds."""
    path = shutil.which(program)
    if path is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.run(  # noqa: S603  # the program that PATH names, no shell
            [path, *arguments], capture_output=True, text=True, timeout=10, check=False
        )
        return process.stdout
    return ""
