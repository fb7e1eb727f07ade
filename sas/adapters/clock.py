"""The system's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime


class SystemClock:
    """UTC now from the operating system, and sleeping on the running event loop."""

    def now(self) -> datetime:
        """Return the time in UTC, aware."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; at once if that is 0 or less."""
        await asyncio.sleep(max(0.0, seconds))

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """Cancel the block after ``seconds``, and raise TimeoutError."""
        return asyncio.timeout(seconds)
