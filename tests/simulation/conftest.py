"""Simulations run on an event loop of their own: less CPU, and the same events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sas.testing.loop import LeanLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], LeanLoop]]:
    return {"lean": LeanLoop}
