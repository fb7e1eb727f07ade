"""The pauses between the calls of a service."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

REQUESTED_MAX = timedelta(days=1)
"""Longest pause that a service may ask for."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, within CompleteBy. In seconds.

    The loop is our own, because retries end at CompleteBy: a moment on the clock port, which the
    simulation moves. Retry libraries use the process's clock.
    """

    first_delay: float = 0.2
    delay_max: float = 10.0

    def delay(self, attempt: int, retry_after: timedelta | None) -> float:
        """Return the pause after a failed attempt (from 0): at least what the service asked for.

        An agent may have parsed that time itself, so it may be anything.
        """
        ceiling = min(self.first_delay * 2.0 ** min(attempt, 60), self.delay_max)
        requested = max(min(retry_after or timedelta(), REQUESTED_MAX), timedelta())
        return requested.total_seconds() + random.uniform(0, ceiling)  # noqa: S311  jitter, no secret
