"""Run a command that dies with the process that started it, even by `kill -9`.

    python -S tether.py PARENT_PID SIGNAL COMMAND [ARGUMENT...]

On Linux the kernel does it: PR_SET_PDEATHSIG survives `exec`, so this process becomes
the command and keeps its pid. Elsewhere a small watcher stays between: it forwards
signals, and ends the command when its parent is gone. SIGNAL is the number of the signal
that ends it: 9, or a kinder one for a command that has something to write. Standard
library only, and no import of this package: it runs before anything else.
"""

import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_WATCH_EVERY_S = 0.2
_USAGE_CODE = 64
_GONE_CODE = 70


def main(argv: list[str]) -> int:
    """Become the command, or watch it; returns its exit code."""
    if len(argv) < 3 or not argv[0].isdigit() or not argv[1].isdigit():
        sys.stderr.write("usage: tether.py PARENT_PID SIGNAL COMMAND [ARGUMENT...]\n")
        return _USAGE_CODE
    parent, number, command = int(argv[0]), int(argv[1]), argv[2:]
    if sys.platform == "linux" and not os.environ.get("DEVSTACK_TETHER_WATCH"):
        _die_with_parent(number)
        if os.getppid() != parent:  # it died before the kernel was told
            return _GONE_CODE
        os.execvp(command[0], command)  # noqa: S606  # the caller's own command, no shell
    return _watch(parent, number, command)


def _die_with_parent(number: int) -> None:
    import ctypes  # noqa: PLC0415  # Linux only

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        sys.stderr.write("tether: prctl(PR_SET_PDEATHSIG) was refused; watching is not possible\n")


def _watch(parent: int, number: int, command: list[str]) -> int:
    child = subprocess.Popen(command)  # noqa: S603  # the caller's own command, no shell
    for known in (signal.SIGINT, signal.SIGTERM):
        signal.signal(known, lambda got, _frame: child.send_signal(got))
    while child.poll() is None:
        if os.getppid() != parent:
            child.send_signal(number)
        time.sleep(_WATCH_EVERY_S)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
