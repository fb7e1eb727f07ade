"""What every test of devstack has: Hypothesis' profiles, a free port, a clean environment."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from devstack.children import free_port
from devstack.tests.sdk_kit import hurried

# No deadline and no check for slow examples: both fail on a busy machine.
settings.register_profile(
    "short",
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(  # a push fails by what it changed; a first seed draws new examples
    "long",
    settings.get_profile("short"),
    max_examples=250,
    derandomize="SAS_FIRST_SEED" not in os.environ,
)
settings.load_profile("short")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts a background job so, and the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_is_left_as_it_was() -> Iterator[None]:
    """Fail the test that leaves a variable behind, and not a later one that reads it."""
    before = dict(os.environ)
    yield
    changed = {name for name, _ in before.items() ^ os.environ.items()} - {"PYTEST_CURRENT_TEST"}
    os.environ.clear()
    os.environ.update(before)
    assert not changed, f"the test left in the environment: {', '.join(sorted(changed))}"


@pytest.fixture
def unused_tcp_port() -> int:
    """A free port, in place of pytest-asyncio's, which an outgoing connection may take."""
    return free_port()


@pytest.fixture(scope="module")
def short_pauses() -> Iterator[None]:
    """Shorten the pauses of the SDK in this module (see sdk_kit.py)."""
    with hurried():
        yield


@pytest.fixture(scope="module")
def collect_leftovers() -> Iterator[None]:
    """Collect what clients of the SDK left open, before the next module begins."""
    yield
    gc.collect()
