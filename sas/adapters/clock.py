"""The system's clock, and the dates of others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


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


def http_date(text: str) -> datetime | None:
    """Return the moment of an HTTP date (RFC 9110, 5.6.7), aware; None if it is none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
