"""Shift the wall clock of a Python process, so that the clocks of host processes differ.

Python imports this module at the start of every process that has this folder in PYTHONPATH. The
file that CHAOS_CLOCK names holds the shift in seconds as one double; it may change at any time.
The monotonic clock stays as it is, and with it the timeouts of asyncio: a wrong wall clock does not
change them either.
"""

import ctypes
import gc
import mmap
import os
import struct
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


if "CHAOS_CLOCK" in os.environ:
    _shift_clock(os.environ["CHAOS_CLOCK"])
