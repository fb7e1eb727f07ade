"""The time, as the actors need it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """UTC now, and sleeping."""

    def now(self) -> datetime:
        """Return the time in UTC, aware."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...
