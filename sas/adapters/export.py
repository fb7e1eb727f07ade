"""Orders as JSON Lines in files of a directory, one file a day and instance."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

_ODD = re.compile(r"[^A-Za-z0-9._-]")


class JsonLines:
    """See ``sas.ports.Exporter``. A line that a crash tore is followed by whole ones, its order
    among them: who reads a file skips a line that is no JSON.
    """

    def __init__(
        self,
        directory: Path,
        instance: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._directory = directory
        self._instance = _ODD.sub("-", instance)
        self._now = now

    async def export(self, lines: Sequence[str]) -> None:
        """See ``Exporter.export``."""
        await asyncio.to_thread(self._append, "".join(f"{line}\n" for line in lines).encode())

    def _append(self, data: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        day = self._now().date().isoformat()
        path = self._directory / f"orders-{day}-{self._instance}.jsonl"
        with path.open("ab+") as file:
            began = file.tell() == 0
            if not began:
                file.seek(-1, os.SEEK_END)
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if began:
            self._keep_name()

    def _keep_name(self) -> None:
        """Have the directory remember a new file: a power cut must not take it away whole."""
        with suppress(OSError):  # not every file share can
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
