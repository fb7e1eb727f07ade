"""Log lines that carry the order, the step and the epoch they are about."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from sas.telemetry import scope

ATTRIBUTES = ("sas.order_id", "sas.step", "sas.epoch")


class ScopedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records have ``sas.order_id``, ``sas.step`` and ``sas.epoch``, where known."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the attributes to ``extra``; what a line gives itself wins."""
        known = scope.facts()
        ours = {name: known[name] for name in ATTRIBUTES if name in known}
        kwargs["extra"] = {**ours, **(kwargs.get("extra") or {})}
        return msg, kwargs


def logger(name: str) -> ScopedLogger:
    """Return the logger of a module."""
    return ScopedLogger(logging.getLogger(name))
