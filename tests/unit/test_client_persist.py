"""What the client tries again, and what it gives up at once."""

from __future__ import annotations

from typing import Any, cast

import pytest
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from sas.client import links
from sas.client.links import LinkError, persist, release


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PAUSE_S", 0.01)


async def tried(wrong: type[ServiceBusError], times: int) -> int:
    """Return how often an operation is tried that fails so often."""
    count = 0

    async def operation() -> int:
        nonlocal count
        count += 1
        if count <= times:
            raise wrong(message="not now")
        return count

    return await persist(operation, 5.0)


async def test_a_queue_that_is_disabled_for_a_while_is_tried_again() -> None:
    assert await tried(MessagingEntityDisabledError, 2) == 3


async def test_a_missing_queue_is_reported_at_once() -> None:
    with pytest.raises(LinkError, match="there is no such queue"):
        await tried(MessagingEntityNotFoundError, 1)


async def test_without_the_private_method_of_the_sdk_a_message_is_not_given_back() -> None:
    """The client then keeps its lock. With the method: ``test_client_follows``."""
    assert not await release(cast("ServiceBusReceiver", object()), cast("Any", object()))
