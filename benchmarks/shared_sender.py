"""Many concurrent sends on one sender of azure-servicebus: what the broker gets.

    python -m benchmarks.shared_sender [--sends 256] [--at-once 32] [--lock]

The SDK does not allow this: its README says that a sender is not coroutine-safe. The script shows
why. Without ``--lock`` the broker stores more messages than were sent, and some sends never
return although the broker has answered every transfer; with ``--lock`` both numbers are right.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from devstack.servicebus import Broker
from devstack.tests.broker_runners import BrokerThread

PATIENCE_S = 30.0


def stored(broker: Broker) -> int:
    """The messages on the queue."""
    return broker.counts("q").active


async def send(sender: ServiceBusSender, count: int, at_once: int) -> int:
    """Send ``count`` messages; return how many sends came back in time."""
    gate = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with gate:
            await sender.send_messages(ServiceBusMessage("x"))

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    done, late = await asyncio.wait(tasks, timeout=PATIENCE_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return sum(task.exception() is None for task in done)


async def run(connection_string: str, count: int, at_once: int) -> int:
    """Send over one sender; return how many sends came back."""
    async with AsyncExitStack() as stack:
        client = ServiceBusClient.from_connection_string(connection_string)
        await stack.enter_async_context(client)
        sender = await stack.enter_async_context(client.get_queue_sender("q"))
        return await send(sender, count, at_once)


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sends", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--lock", action="store_true", help="one send at a time")
    options = parser.parse_args()
    with BrokerThread(["q"]) as broker:
        at_once = 1 if options.lock else options.at_once
        returned = asyncio.run(run(broker.connection_string, options.sends, at_once))
        print(f"sends: {options.sends}, returned: {returned}")
        print(f"messages that the broker stored and acknowledged: {broker.call(stored)}")


if __name__ == "__main__":
    main()
