"""What tests of the host share: messages on a broker's queue, and waiting for a condition."""

import asyncio
from collections.abc import Callable

from devstack.servicebus import Broker
from devstack.servicebus.core.message import parse_message
from devstack.tests.queue_kit import raw


def put(broker: Broker, queue: str, *bodies: str, session_id: str | None = None) -> None:
    """Put messages into a queue of a broker in this loop."""
    messages = [parse_message(raw(body.encode(), session_id=session_id)) for body in bodies]
    broker.namespace.queue(queue).enqueue(messages, broker.clock())
    broker.context.touch()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most two minutes."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 (brokers and processes are asked, nothing signals)
            await asyncio.sleep(0.01)
