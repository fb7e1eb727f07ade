"""Child processes that end with this process, and temporary directories that do not pile up.

Theory of operation
===================

A test or `devstack up` can be killed with `kill -9`, and then none of its code runs any more. A
broker that stayed behind would keep its port, and the next start would fail. So the end of a child
must not depend on code in this process.

1. **Start.** `Child.start` does not run the command itself. It runs `die_with_parent.py` with our
   pid and the command. On Linux that program asks the kernel to kill it when its parent dies. Then
   it becomes the command (`exec`), which keeps the pid and the request. If we die before the
   program has asked, it sees another parent and ends without running the command. On other systems
   the program stays as a watcher, looks for its parent every 0.2 s, and kills the command when the
   parent has gone.
2. **Threads.** For Linux "the parent" is the *thread* that starts the child. Start children on a
   thread that lives as long as they should, such as the main thread.
3. **Grandchildren** do not get the signal, because a fork clears the request. So a caller that
   runs a command in a shell puts `exec` before it: then the shell becomes the command.
4. **A session of its own.** Each child has one, so a Ctrl-C at the terminal reaches only this
   process, which then stops its children in the right order. The child's own children are in its
   process group, so `kill` ends them too if the child still runs.
5. **Output goes to files**, not to pipes. A child never waits for a reader of its output, it can
   still write when we are dead, and the last lines are there after a crash. A second start of the
   same child appends to its files, so `_from` keeps where the output of this start begins.
6. **Ready.** A broker or a host prints a JSON line when it listens, and Azurite a sentence. `until`
   polls for that line and for the exit code. It reads the exit code first. Then a child that
   prints its line and ends at once is not reported as failed: it was ready.
7. **Stop.** The child gets a signal and some time. If it still runs after that, its whole group
   gets SIGKILL. `stopping` is set before the signal, so that nobody takes this end for a crash.
8. **Two ways to wait.** Waiting for a child is written once, as generators that yield when they
   have to wait (`Steps`). `wait_for` runs them with a blocking sleep, `wait_for_async` on the loop.
9. **Temporary directories.** A directory cannot end with its process, so a later process removes
   it. The owner holds a lock (`flock`) on a file in the directory, and the kernel frees the lock
   when the owner dies. A new `Scratch` removes each directory with its prefix whose lock is free.
   It leaves directories of the last minute alone, because their owner may be about to lock them.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from devstack.inputs import ChildFailedError

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work on processes that yields whenever it has to wait, and returns a T at its end."""

_POLL_S = 0.02
_TAIL_LINES = 12
_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")
_LOCK_FILE = ".held"
_YOUNG_S = 60.0
"""A younger directory may belong to a process that has not locked it yet."""


# 8. Two ways to carry out the same steps.
def wait_for(steps: Steps[T]) -> T:
    """Carry out the steps, blocking this thread."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        time.sleep(_POLL_S)


async def wait_for_async(steps: Steps[T]) -> T:
    """Carry out the steps without blocking the event loop."""
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await asyncio.sleep(_POLL_S)
    finally:
        steps.close()


@dataclass(eq=False)
class Child:
    """One child process and its two output files; `start` starts it."""

    name: str
    argv: list[str]
    _: KW_ONLY
    logs: Path
    """An existing directory; output is appended to `NAME.out` and `NAME.log` in it."""
    env: Mapping[str, str] | None = None
    """The whole environment; None means the one of this process."""
    cwd: Path | None = None
    stopping: bool = field(default=False, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _from: dict[Path, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.out_path = self.logs / f"{self.name}.out"
        self.log_path = self.logs / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """The process id (on systems other than Linux: the watcher's)."""
        if self._process is None:
            raise ChildFailedError(f"{self.name} was not started yet.")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None before the process has ended."""
        return None if self._process is None else self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the process runs now."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once, or raise ChildFailedError."""
        self.stopping = False
        # 1. The program that becomes or watches the command, and ends it when we die.
        launcher = [sys.executable, "-I", "-S", str(_DIE_WITH_PARENT)]
        launcher += [str(os.getpid())]
        # 5. Output goes to files.
        with self.out_path.open("ab") as out, self.log_path.open("ab") as log:
            self._from = {self.out_path: out.tell(), self.log_path: log.tell()}
            try:
                self._process = subprocess.Popen(  # noqa: S603  # our own commands, no shell
                    [*launcher, *self.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    env=self.env,
                    cwd=self.cwd,
                    start_new_session=True,  # 4. a Ctrl-C at the terminal reaches only us
                )
            except OSError as error:
                raise ChildFailedError(f"{self.name} cannot be started: {error}.") from error

    def out_lines(self) -> list[str]:
        """The complete lines on standard output since the last start."""
        return complete_lines(self.out_path, self._from.get(self.out_path, 0))[0]

    def ready_line(self) -> dict[str, Any] | None:
        """The JSON object that the child prints on one line when it is ready; None before."""
        for line in self.out_lines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    ready: dict[str, Any] = json.loads(line)
                    return ready
        return None

    def tail(self) -> str:
        """The last lines of both files since the last start, for an error message."""
        lines: list[str] = []
        for path in (self.out_path, self.log_path):
            with contextlib.suppress(OSError):
                text = path.read_bytes()[self._from.get(path, 0) :].decode(errors="replace")
                lines += text.splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  | {escaped(readable(line))}" for line in lines)

    @property
    def killed(self) -> bool:
        """Whether SIGKILL or SIGTERM ended it, which `kill` and a kernel without memory send."""
        return self.exit_code in {-signal.SIGKILL, -signal.SIGTERM}

    def describe_end(self) -> str:
        """How the process ended, with its last lines if they can explain the end."""
        end = f"{self.name} died with {describe_exit(self.exit_code or 0)}"
        if self.killed:
            return f"{end}: a person, a program or a lack of memory killed it."
        return f"{end}:\n{self.tail()}"

    def until_steps(self, condition: Callable[[], T | None], timeout_s: float) -> Steps[T]:
        """Wait until `condition` returns something other than None; see `until` for the errors."""
        deadline = time.monotonic() + timeout_s
        while True:
            exit_code = self.exit_code  # 6. It is read before the condition.
            result = condition()
            if result is not None:
                return result
            if exit_code is not None:
                problem = f"ended with {describe_exit(exit_code)} before it was ready"
                raise ChildFailedError(f"{self.name} {problem}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ChildFailedError(
                    f"{self.name} was not ready within {timeout_s:g} s:\n{self.tail()}"
                )
            yield

    async def until(self, condition: Callable[[], T | None], *, timeout_s: float) -> T:
        """Return what `condition` returns once it is not None.

        Raise ChildFailedError if the child ends before that, or after `timeout_s` seconds.
        """
        return await wait_for_async(self.until_steps(condition, timeout_s))

    async def start_async(self, *, timeout_s: float) -> dict[str, Any]:
        """Start the process and return its ready line; raise ChildFailedError as `until` does."""
        self.start()
        return await self.until(self.ready_line, timeout_s=timeout_s)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Kill the process and its group with SIGKILL, and wait for the end of the process.

        If it has ended, call this at once: later the system may give its id to another process.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: only zombies
            os.killpg(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def kill(self) -> None:
        """Stop the process as `kill_group` does; nobody takes this end for a crash."""
        self.stopping = True
        if self.alive:
            self.kill_group()

    def stop_steps(self, number: int, timeout_s: float) -> Steps[int]:
        """Send a signal, wait, and kill the process; see `stop`."""
        # 7. Stop.
        self.stopping = True
        if self._process is None:
            return 0
        self.send_signal(number)
        deadline = time.monotonic() + timeout_s
        while self.alive and time.monotonic() < deadline:
            yield
        self.kill()
        return self._process.wait()

    def stop(self, number: int = signal.SIGTERM, *, timeout_s: float = 5.0) -> int:
        """Send a signal, wait (blocking), and kill the process after `timeout_s` seconds.

        Returns the exit code; 0 when the process was never started.
        """
        return wait_for(self.stop_steps(number, timeout_s))

    async def stop_async(self, number: int = signal.SIGTERM, *, timeout_s: float = 5.0) -> int:
        """Do the same as `stop` without blocking the loop."""
        return await wait_for_async(self.stop_steps(number, timeout_s))


class Scratch:
    """A temporary directory that `close` removes, or a later process after a `kill -9` (9).

    The process holds a lock on a file in the directory. A later `Scratch` with the same prefix
    removes every directory that is older than a minute and whose lock is free. A directory without
    that file stays.
    """

    def __init__(self, prefix: str) -> None:
        for lock_file in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK_FILE}"):
            _remove_if_unused(lock_file)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # 9. From here on the directory is in use, until this process ends.
        self._lock = (self.path / _LOCK_FILE).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def keep(self) -> None:
        """Let the directory stay, so that a person can read it later."""
        (self.path / _LOCK_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the directory, unless `keep` was called."""
        if (self.path / _LOCK_FILE).exists():
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_unused(lock_file: Path) -> None:
    # An OSError means that the directory is in use. What another user made is not opened: a pipe
    # would hold this process for ever.
    with contextlib.suppress(OSError):
        if lock_file.lstat().st_uid != os.getuid():
            return
        with lock_file.open() as lock:
            if time.time() - os.fstat(lock.fileno()).st_mtime < _YOUNG_S:
                return  # its owner may be about to lock it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)


def free_port() -> int:
    """Return a TCP port that is free at this moment.

    The port lies below those that a system gives to outgoing connections, so that no such
    connection takes it.
    """
    while True:
        port = random.randrange(10_000, 32_000)  # noqa: S311  not a secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def complete_lines(path: Path, start: int) -> tuple[list[str], int]:
    """The complete lines of a file from the byte `start` on, and the byte where they end."""
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        content = file.read()
    complete = content[: content.rfind(b"\n") + 1]
    return complete.decode(errors="replace").splitlines(), start + len(complete)


def _log_record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def readable(line: str) -> str:
    """A log line in a form for people: a JSON line becomes time, level and message."""
    record = _log_record(line)
    if not {"time", "level", "message"} <= record.keys():
        return line
    return f"{str(record['time'])[11:19]} {record['level']} {record['message']}"


def escaped(text: str) -> str:
    """A text of a log as a terminal may have it: what it would obey or hide is escaped.

    Lines after the first are indented, so that none looks like one of another child.
    """
    lines = text.split("\n")
    return "\n    ".join(
        "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
        for line in lines
    )


def is_error(line: str) -> bool:
    """Whether a JSON log line reports an error."""
    return _log_record(line).get("level") in {"ERROR", "CRITICAL"}


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 3` or `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-code, -code)}"
