"""What the client tries again, and what it gives up at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from sas.client import links
from sas.client.links import LinkError, persist, release


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RETRY_PAUSE_S", 0.01)


async def tried(error_type: type[ServiceBusError], times: int) -> int:
    """Return how often an operation is tried that fails so often."""
    count = 0

    async def operation() -> int:
        nonlocal count
        count += 1
        if count <= times:
            raise error_type(message="not now")
        return count

    return await persist(operation, 5.0)


async def test_a_queue_that_is_disabled_for_a_while_is_tried_again() -> None:
    assert await tried(MessagingEntityDisabledError, 2) == 3


async def test_a_missing_queue_is_reported_at_once() -> None:
    with pytest.raises(LinkError, match="there is no such queue"):
        await tried(MessagingEntityNotFoundError, 1)


async def test_a_message_that_is_settled_already_is_reported_at_once() -> None:
    """The SDK raises a ValueError for it, and no error of Service Bus."""

    async def settle() -> None:
        raise MessageAlreadySettled(action="complete")

    with pytest.raises(LinkError):
        await persist(settle, 5.0)


async def test_without_the_private_method_of_the_sdk_a_message_is_not_given_back() -> None:
    """The client then keeps its lock. With the method: ``test_client_follows``."""
    assert not await release(cast("ServiceBusReceiver", object()), cast("Any", object()))


@pytest.mark.parametrize(("version", "gives_back"), [("7.15.0", True), ("7.16.0", False)])
async def test_a_message_is_given_back_only_with_a_release_of_the_sdk_in_which_that_was_tried(
    monkeypatch: pytest.MonkeyPatch, version: str, gives_back: bool
) -> None:
    outcomes: list[tuple[object, ...]] = []

    async def settle(*outcome: object) -> None:
        outcomes.append(outcome)

    monkeypatch.setattr("azure.servicebus.__version__", version)
    receiver: Any = SimpleNamespace(_handler=SimpleNamespace(settle_messages_async=settle))
    message: Any = SimpleNamespace(_delivery_id=7, _delivery_tag=b"t")
    assert await release(receiver, message) is gives_back
    assert outcomes == [(7, b"t", "released")] * gives_back
