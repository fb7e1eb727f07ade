"""The settings of an instance whose ports are in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sas.config import Config, read_config
from sas.engine.retry import RetryPolicy

ENVIRONMENT = {
    "ServiceBus": "Endpoint=sb://memory;SharedAccessKeyName=k;SharedAccessKey=k",
    "SAS_TABLES": "UseDevelopmentStorage=true",
}
"""What a start needs. Nothing connects to it."""


def settings(instance: str, **changes: Any) -> Config:
    """Return the settings of an instance: the defaults, short pauses of agents, and ``changes``.

    ``instance`` is its name in LockedBy and the journal. ``changes`` are fields of ``Config``.
    """
    config = read_config(ENVIRONMENT)
    return replace(
        config,
        instance=instance,
        **{
            "source": "/test",
            "retry": RetryPolicy(0.2, 2.0),
            "function_time": timedelta(minutes=9),
            **changes,
        },
    )
