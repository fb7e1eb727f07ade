"""Run a command that ends when its parent process ends, even after `kill -9` of the parent.

    python -S die_with_parent.py PARENT_PID COMMAND [ARGUMENT...]

On Linux the kernel sends SIGKILL (PR_SET_PDEATHSIG). The request survives `exec`, so this process
becomes the command and keeps its pid. On other systems this process stays as a watcher: it
forwards SIGINT and SIGTERM, and kills the command when the parent has gone. A test sets
DEVSTACK_WATCH_PARENT to have the watcher on Linux too. This program uses only the standard
library, because it runs without the package's import path.
"""

import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.2
_USAGE_CODE = 64
_PARENT_GONE_CODE = 70


def main(argv: list[str]) -> int:
    """Become the command, or watch it and return its exit code."""
    if len(argv) < 2 or not argv[0].isdigit():
        sys.stderr.write("usage: die_with_parent.py PARENT_PID COMMAND [ARGUMENT...]\n")
        return _USAGE_CODE
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux" and not os.environ.get("DEVSTACK_WATCH_PARENT"):
        import ctypes  # noqa: PLC0415  # Linux only

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            sys.stderr.write("die_with_parent: the kernel refused prctl(PR_SET_PDEATHSIG)\n")
        if os.getppid() != parent:  # the parent died before we asked the kernel
            return _PARENT_GONE_CODE
        os.execvp(command[0], command)  # noqa: S606  # the caller's own command, no shell
    return _watch(parent, command)


def _watch(parent: int, command: list[str]) -> int:
    child = subprocess.Popen(command)  # noqa: S603  # the caller's own command, no shell
    for forwarded in (signal.SIGINT, signal.SIGTERM):
        signal.signal(forwarded, lambda received, _frame: child.send_signal(received))
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
        time.sleep(_POLL_S)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
