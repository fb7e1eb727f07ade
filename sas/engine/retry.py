"""The pauses between the calls of a service."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, within CompleteBy. In seconds.

    The loop is our own, because retries end at CompleteBy: a moment on the clock port, which the
    simulation moves. Retry libraries use the process's clock.
    """

    first_delay: float = 0.2
    delay_max: float = 10.0

    def delay(self, attempt: int, retry_after: timedelta | None) -> float:
        """Return the pause after a failed attempt (from 0): at least what the service asked for."""
        ceiling = min(self.first_delay * 2.0 ** min(attempt, 60), self.delay_max)
        requested = retry_after.total_seconds() if retry_after else 0.0
        return requested + random.uniform(0, ceiling)  # noqa: S311  jitter, no secret
