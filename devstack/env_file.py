"""`.devstack/env`: how other programs find the stack that runs for an app.

The file has one `export NAME='value'` line for each setting. The stack holds a lock (`flock`) on
the file as long as the stack runs, and the kernel frees the lock when the stack dies. So a file
whose lock is free belongs to a stack that was killed.
"""

import fcntl
import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from devstack.inputs import DevstackError

_READERS_S = 0.5
"""How long to try for the lock: a reader that tests the lock also holds it for a moment."""


def export_lines(settings: Mapping[str, str]) -> list[str]:
    """Return one line for each setting, quoted for a shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]


class EnvFile:
    """The `.devstack/env` of one stack: `write` makes it, `remove` removes it."""

    def __init__(self, app_dir: Path) -> None:
        self.path = app_dir / ".devstack" / "env"
        self._file: TextIO | None = None

    def write(self, settings: Mapping[str, str]) -> None:
        """Write the settings; raise DevstackError, for example if another stack has the file."""
        try:
            self.path.parent.mkdir(exist_ok=True)
            self._file = self._locked()
        except BlockingIOError:
            raise DevstackError(
                f"{self.path} belongs to another stack ({_first_line(self.path)}): paste the "
                "lines to use this one."
            ) from None
        except OSError as error:
            raise DevstackError(
                f"{self.path} cannot be written ({error.strerror}): paste the lines."
            ) from None
        self._file.truncate(0)
        lines = [f"# devstack up, pid {os.getpid()}", *export_lines(settings), ""]
        self._file.write("\n".join(lines))
        self._file.flush()

    def remove(self) -> None:
        """Remove the file, if this stack wrote it; a second call does nothing."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):  # the directory has other files
                self.path.parent.rmdir()
            self._file.close()
            self._file = None

    def _locked(self) -> TextIO:
        deadline = time.monotonic() + _READERS_S
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            file = os.fdopen(descriptor, "r+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                continue
            if self._is_in_place(file):
                return file
            file.close()  # an earlier stack has just removed this file from the path

    def _is_in_place(self, file: TextIO) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        return False


def _first_line(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return "its pid is not known"
