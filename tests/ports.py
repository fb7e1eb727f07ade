"""Ports for servers that a test starts in another process."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _COUNT = 10_000, 22_000
_numbers = itertools.count(os.getpid() * 101)


def free_port() -> int:
    """Return a free port that nothing else takes.

    It lies below the ports that a system gives to outgoing connections and to those who ask for
    any port, and each process of pytest begins somewhere else.
    """
    for number in itertools.islice(_numbers, _COUNT):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("every port is taken")
