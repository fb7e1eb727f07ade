"""Shifts the clock of a Python process of a chaos run, and reports its memory.

Python imports this module at the start of every process that has this folder in PYTHONPATH.

- CHAOS_CLOCK names a file that holds the shift of the wall clock in seconds as one double. The
  shift may change at any time, so that the clocks of host processes differ. The monotonic clock
  and the timeouts of asyncio stay, because a wrong wall clock does not change them either.
- CHAOS_MEMORY names a file. At SIGUSR1 the process writes into it how many bytes of memory it uses.
"""

import ctypes
import gc
import mmap
import os
import re
import signal
import struct
import sys
import tempfile
import time
from datetime import datetime, timedelta, tzinfo


def _shift_clock(path: str) -> None:
    """Replace the clocks of `time` and `datetime` by shifted ones."""
    with open(path, "rb") as file:  # noqa: PTH123  (pathlib would slow every start)
        shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    read = struct.Struct("d").unpack_from
    real_time, real_time_ns, real_now = time.time, time.time_ns, datetime.now

    def shift_s() -> float:
        return float(read(shared)[0])

    def now(_: type[datetime], tz: tzinfo | None = None) -> datetime:
        return real_now(tz) + timedelta(seconds=shift_s())

    time.time = lambda: real_time() + shift_s()
    time.time_ns = lambda: real_time_ns() + int(shift_s() * 1e9)
    # The class stays the real one: msgspec and the SDKs compare types. Only its method changes.
    members = gc.get_referents(datetime.__dict__)[0]
    members["now"] = classmethod(now)
    members["utcnow"] = classmethod(now)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def _tell_memory(path: str) -> None:
    """At SIGUSR1, write the bytes in use into a file, by one rename."""

    def tell(*_: object) -> None:
        gc.collect()
        with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(str(_bytes_in_use()))
        os.replace(path + ".new", path)  # noqa: PTH105

    signal.signal(signal.SIGUSR1, tell)


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _bytes_in_use() -> int:
    """Return what is allocated and not freed: Python's small objects, and all of the C library.

    The resident memory also includes the free memory of both allocators. It grows with the highest
    load so far, and by fragmentation.
    """
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _MallInfo
    info = ask()
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)  # Python tells its own figures on standard error only
        os.dup2(file.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(stderr, 2)
        os.close(stderr)
        file.seek(0)
        match = re.search(rb"bytes in allocated blocks\s*=\s*([\d,]+)", file.read())
    python = int(match[1].replace(b",", b"")) if match else 0
    return int(python + info.uordblks + info.hblkhd)


if "CHAOS_CLOCK" in os.environ:
    _shift_clock(os.environ["CHAOS_CLOCK"])
if "CHAOS_MEMORY" in os.environ:
    _tell_memory(os.environ["CHAOS_MEMORY"])
