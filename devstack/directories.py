"""Directories that something is kept in: made where they are missing, refused in a sentence."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from devstack.errors import DevstackError


def make_directory(path: Path) -> Path:
    """Make `path` a directory that can be written, with its parents; give it back.

    Raises:
        DevstackError: it is a file, or may not be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DevstackError(
            f"{path} cannot be a directory for data ({error.strerror}): name another one."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise DevstackError(f"{path} cannot be written: name another directory.")
    return path


_HELD = ".held"
_YOUNG_S = 60.0


class Scratch:
    """A temporary directory that goes with its process, even after `kill -9`.

    A lock in it lasts as long as the process does; the next one of the same prefix removes
    every directory whose lock nobody holds any more. Without the lock's file a directory stays.
    """

    def __init__(self, prefix: str) -> None:
        """Make one, `prefix` and more in its name, and remove what was left of others."""
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_HELD}"):
            _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = (self.path / _HELD).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def keep(self) -> None:
        """Let it stay when this process is gone: somebody will want to read what is in it."""
        (self.path / _HELD).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove it, unless it is kept."""
        if (self.path / _HELD).exists():
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_left(held: Path) -> None:
    try:
        with held.open() as lock:
            if time.time() - os.fstat(lock.fileno()).st_mtime < _YOUNG_S:
                return  # it may be about to be locked
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(held.parent, ignore_errors=True)
    except OSError:
        return  # it is in use, or somebody else's
