"""Every test, in two halves side by side: ``python -m tools.run_tests [PYTEST_ARGUMENT ...]``.

Most layers wait for processes, leases and timers more than they compute, so that two halves on
two cores take little more than half the time. Lines come as they are printed, each with its half.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

HALVES: Mapping[str, Sequence[str]] = {
    "a": ("tests/e2e", "tests/unit", "tests/simulation", "tests/infra"),
    "b": ("tests/contract", "tests/integration"),
}
"""Each layer once, about as long in each half."""


def main(arguments: Sequence[str]) -> int:
    """Run both halves; return 0 if every test passed, else the first half's code that is not."""
    running = {name: _start(layers, arguments) for name, layers in HALVES.items()}
    readers = [threading.Thread(target=_tell, args=(name, half)) for name, half in running.items()]
    for reader in readers:
        reader.start()
    try:
        codes = [half.wait() for half in running.values()]
    except KeyboardInterrupt:  # the halves were sent it too: let them clean up
        codes = [half.wait() for half in running.values()]
    for reader in readers:
        reader.join()
    for name, code in zip(running, codes, strict=True):
        print(
            f"[{name}] {' '.join(HALVES[name])}: {'passed' if code == 0 else f'exit code {code}'}"
        )
    return next((code for code in codes if code), 0)


def _start(layers: Sequence[str], arguments: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", *layers, *arguments]
    return subprocess.Popen(  # noqa: S603  our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def _tell(name: str, half: subprocess.Popen[str]) -> None:
    if half.stdout is None:
        return
    with half.stdout as printed:
        for line in printed:
            print(f"[{name}] {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
