"""How every test here is run: in which order, and how Hypothesis makes its examples."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.ports import free_port

LAYERS = ("e2e", "orders", "integration", "contract", "simulation", "infra", "unit")
"""Tests that wait for processes come first, so that none of them is left over at the end."""
LONG_FILES = ("test_demo.py", "test_sim.py")
"""One file runs in one process. These would be left over at the end, so they begin first."""

# No deadline and no check for slow examples: both fail on a busy machine.
settings.register_profile(
    "short",
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long", settings.get_profile("short"), max_examples=500, derandomize=False
)
settings.load_profile("short")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts a background job so, and the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until all tests are collected: they are a million objects, and none is garbage


def pytest_collection_finish() -> None:
    """Keep the tests themselves from being looked through at each garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the layers in order; within a layer the order stays."""
    items.sort(key=layer_of)


def layer_of(item: pytest.Item) -> int:
    """Return the place of an item's layer, by its folder; long files go before all layers."""
    if item.path.name in LONG_FILES:
        return -1
    return next((n for n, name in enumerate(LAYERS) if name in item.path.parts), len(LAYERS))


@pytest.fixture
def unused_tcp_port() -> int:
    """A free port, in place of pytest-asyncio's, which an outgoing connection may take."""
    return free_port()
