"""Where features join the core: around a call, at a claim, at an expiry, at a sweep."""

from __future__ import annotations

from datetime import datetime


class SilentError(Exception):
    """Time is up: say nothing."""


class MustWaitError(Exception):
    """No call may go out before ``until``: the breaker is open, no slot is free, or what the
    request refers to cannot be read.

    ``called`` says whether one may have gone out before, so that its outcome is unknown.
    """

    def __init__(self, until: datetime, *, called: bool) -> None:
        super().__init__(until)
        self.until = until
        self.called = called
