"""Child processes that are waited for, logged to files and always stopped.

Output goes to files, never to pipes: nobody has to drain them, and a child that writes a
lot cannot be held up by its parent. Every child is tethered (see `devstack.tether`): it
dies with this process, however that ends. The tether belongs to the *thread* that starts
the child (a rule of Linux), so start children on a thread that lives as long as they should.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from devstack.errors import ChildFailedError

T = TypeVar("T")
_POLL_S = 0.02
_TAIL_LINES = 12
_TETHER = Path(__file__).with_name("tether.py")


class Child:
    """One child process, its two output files and its end."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        logs: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stderr_here: bool = False,
        dies_by: int = signal.SIGKILL,
    ) -> None:
        """Describe a child; `start` starts it.

        `logs` is a directory that exists; `NAME.out` and `NAME.log` in it are appended to.
        `env` is the whole environment, this process's own when None. `stderr_here` lets its
        standard error go where this process's goes, instead of into `NAME.log`. `dies_by` is
        the signal that it gets when this process is gone.
        """
        self.name = name
        self.argv = list(argv)
        self.env = dict(os.environ if env is None else env)
        self.cwd = cwd
        self.out_path = logs / f"{name}.out"
        self.log_path = logs / f"{name}.log"
        self.stderr_here = stderr_here
        self.dies_by = dies_by
        self._process: subprocess.Popen[bytes] | None = None
        self._out_from = 0
        self.stopping = False

    @property
    def pid(self) -> int:
        """The process id (the command's own on Linux; elsewhere its watcher's)."""
        if self._process is None:
            raise ChildFailedError(f"{self.name} was not started yet.")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it, as `subprocess` has it."""
        return None if self._process is None else self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the process runs now."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; returns at once.

        Raises:
            ChildFailedError: the program cannot be started at all.
        """
        self.stopping = False
        with self.out_path.open("ab") as out, self.log_path.open("ab") as log:
            self._out_from = out.tell()
            self._process = self._spawn(out, log)

    def _spawn(self, out: IO[bytes], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        tether = [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid())]
        tethered = [*tether, str(int(self.dies_by)), *self.argv]
        try:
            return subprocess.Popen(  # noqa: S603  # our own commands, no shell
                tethered,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if self.stderr_here else log,
                env=self.env,
                cwd=self.cwd,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the parent only
            )
        except OSError as error:
            raise ChildFailedError(f"{self.name} cannot be started: {error}.") from error

    def out_lines(self) -> list[str]:
        """Whole lines this start has written to its standard output so far."""
        with self.out_path.open("rb") as out:
            out.seek(self._out_from)
            text = out.read().decode(errors="replace")
        return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]

    def ready_line(self) -> dict[str, Any] | None:
        """The JSON object this start has printed on a line of its own; None until then."""
        for line in self.out_lines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    found: dict[str, Any] = json.loads(line)
                    return found
        return None

    def tail(self) -> str:
        """The last lines of both files, for an error message."""
        lines: list[str] = []
        for path in (self.out_path, self.log_path):
            with contextlib.suppress(OSError):
                lines += path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  | {readable(line)}" for line in lines)

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that comes from outside: `kill`, or a lack of memory."""
        return self.exit_code in {-signal.SIGKILL, -signal.SIGTERM}

    def describe_end(self) -> str:
        """How it died, and the last it said where that may say why."""
        how = f"{self.name} died with {describe_exit(self.exit_code or 0)}"
        if self.killed:
            return f"{how}: something outside killed it, somebody or a lack of memory."
        return f"{how}:\n{self.tail()}"

    def _until(self, found: Callable[[], T | None], timeout_s: float) -> Iterator[T | None]:
        end = time.monotonic() + timeout_s
        while True:
            ended = self.exit_code
            result = found()
            if result is not None:
                yield result
                return
            if ended is not None:
                raise ChildFailedError(
                    f"{self.name} ended with {describe_exit(ended)} before it was ready:\n"
                    f"{self.tail()}"
                )
            if time.monotonic() > end:
                raise ChildFailedError(
                    f"{self.name} was not ready within {timeout_s:g} s:\n{self.tail()}"
                )
            yield None

    def wait_until(self, found: Callable[[], T | None], *, timeout_s: float) -> T:
        """Wait (blocking) until `found` returns something other than None.

        Raises:
            ChildFailedError: the child ended first, or `timeout_s` seconds passed.
        """
        for result in self._until(found, timeout_s):
            if result is not None:
                return result
            time.sleep(_POLL_S)
        raise AssertionError("unreachable: _until ends by a result or an error")

    async def until(self, found: Callable[[], T | None], *, timeout_s: float) -> T:
        """The same as `wait_until`, without blocking the loop."""
        for result in self._until(found, timeout_s):
            if result is not None:
                return result
            await asyncio.sleep(_POLL_S)
        raise AssertionError("unreachable: _until ends by a result or an error")

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.alive and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """`kill -9` and reap: what a crash looks like.

        The process is the leader of a group of its own; the group goes with it, which is
        needed where a watcher stands between (see `devstack.tether`).
        """
        self.stopping = True
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self, number: int = signal.SIGTERM, *, timeout_s: float = 5.0) -> int:
        """Ask it to end, wait (blocking), and kill it after `timeout_s` seconds.

        Returns the exit code; 0 when it was never started.
        """
        self.stopping = True
        if self._process is None:
            return 0
        self.send_signal(number)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    async def stop_async(self, number: int = signal.SIGTERM, *, timeout_s: float = 5.0) -> int:
        """The same as `stop`, without blocking the loop."""
        self.stopping = True
        if self._process is None:
            return 0
        self.send_signal(number)
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if not self.alive:
                return self._process.wait()
            await asyncio.sleep(_POLL_S)
        self.kill()
        return self._process.wait()


def readable(line: str) -> str:
    """A log line as people read it: one of JSON as its time, its level and its message."""
    try:
        told = json.loads(line)
        return f"{told['time'][11:19]} {told['level']} {told['message']}"
    except (ValueError, TypeError, LookupError):
        return line


def is_error(line: str) -> bool:
    """Whether a log line of JSON tells of an error."""
    try:
        told = json.loads(line)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("level") in {"ERROR", "CRITICAL"}


def describe_exit(code: int) -> str:
    """Say an exit code in words: `exit code 3` or `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
