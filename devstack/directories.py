"""Directories that something is kept in: made where they are missing, refused in a sentence."""

import os
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
