"""Orders as JSON Lines in files of a directory, one file for each day and instance."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


class JsonLines:
    """See ``sas.ports.Exporter``.

    A crash may leave half a line. Its order is exported again on a line of its own, so a reader
    skips lines that are not JSON.
    """

    def __init__(
        self,
        directory: Path,
        instance: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._directory = directory
        self._instance = _NOT_IN_NAMES.sub("-", instance)
        self._now = now

    async def export(self, lines: Sequence[str]) -> None:
        """See ``Exporter.export``."""
        await asyncio.to_thread(self._append, "".join(f"{line}\n" for line in lines).encode())

    def _append(self, data: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        day = self._now().date().isoformat()
        path = self._directory / f"orders-{day}-{self._instance}.jsonl"
        with path.open("ab+") as file:
            is_new = file.tell() == 0
            if not is_new:
                file.seek(-1, os.SEEK_END)
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            self._keep_name()

    def _keep_name(self) -> None:
        """Flush the directory, so that a power cut does not lose the new file."""
        with suppress(OSError):  # not every file share supports it
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
