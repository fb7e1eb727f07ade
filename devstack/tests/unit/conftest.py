"""What every unit test of the broker has: queues with a clock that only the test moves."""

import pytest

from devstack.tests.queue_kit import World


@pytest.fixture
def world() -> World:
    return World()
