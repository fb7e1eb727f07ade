"""Which process listens on a port: its pid and its command."""

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
class Listener:
    """A process that listens, or the `devstack up` that started it."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid}: {self.command}"


def listeners(ports: Iterable[int]) -> dict[int, Listener]:
    """Find who listens on each port. A process of another user stays unknown."""
    wanted = set(ports)
    if not wanted:
        return {}
    found = _by_proc(wanted) if (_PROC / "net" / "tcp").exists() else _by_lsof(wanted)
    return {port: _starter(pid) for port, pid in found.items()}


def _by_proc(wanted: set[int]) -> dict[int, int]:
    sockets: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == _LISTENS and port in wanted:
                    sockets[f"socket:[{fields[9]}]"] = port
    return {sockets[link]: pid for pid, link in _open_sockets() if link in sockets}


def _open_sockets() -> Iterator[tuple[int, str]]:
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    yield int(process.name), str(descriptor.readlink())


def _by_lsof(wanted: set[int]) -> dict[int, int]:
    options = ("-nP", "-sTCP:LISTEN", "-t")
    pids = {port: output_of("lsof", f"-iTCP:{port}", *options).split() for port in wanted}
    return {port: int(found[0]) for port, found in pids.items() if found}


def _starter(pid: int) -> Listener:
    """Name the `devstack up` that started a process: stopping that one ends all its parts."""
    parent, own = _parent_and_command(pid)
    command = _parent_and_command(parent)[1] if parent else ""
    if re.search(r"(^|[\s/])devstack up\b", command):  # the module, or the console script
        return Listener(parent, command[:_COMMAND_LENGTH_MAX])
    return Listener(pid, own[:_COMMAND_LENGTH_MAX] or "its command is not known")


def _parent_and_command(pid: int) -> tuple[int, str]:
    if _PROC.joinpath("self").exists():
        with suppress(OSError, ValueError, IndexError):
            # The name in brackets may contain spaces.
            stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            return int(stat[1]), " ".join(word.decode(errors="replace") for word in words).strip()
        return 0, ""
    told = output_of("ps", "-o", "ppid=,command=", "-p", str(pid))
    parent, _, command = told.strip().partition(" ")
    return (int(parent), command.strip()) if parent.isdigit() else (0, "")


def output_of(program: str, *arguments: str) -> str:
    """What a program on PATH prints within ten seconds; nothing if it cannot run."""
    path = shutil.which(program)
    if path is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        ran = subprocess.run(  # noqa: S603  # the program that PATH names, no shell
            [path, *arguments], capture_output=True, text=True, timeout=10, check=False
        )
        return ran.stdout
    return ""
