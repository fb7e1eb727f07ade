"""Simulations run on their own event loop, which costs less and gives the same story."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sas.simulation.loop import LeanLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], LeanLoop]]:
    return {"lean": LeanLoop}
