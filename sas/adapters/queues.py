"""The bus as an operator uses it: reads any queue, and moves messages elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from sas.adapters.servicebus import ServiceBus, peek_all, why
from sas.ports import BusUnavailableError, Message, Move, Peeked, UndeliverableError

LOOK_S = 30.0
TAKE_MAX = 50
"""Messages locked at once: they are sent within their lock of a minute."""
TAKE_S = 3.0


class OperatorServiceBus(ServiceBus):
    """See ``sas.ports.OperatorBus``."""

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        """See ``MessageBus.peek``. Each call has a connection of its own, and closes it."""
        async with self._reading(queue) as receiver, asyncio.timeout(LOOK_S):
            return await peek_all(receiver, limit, self.meter)

    async def move(self, path: str, moves: Sequence[Move]) -> AsyncGenerator[bool]:
        """See ``OperatorBus.move``."""
        left = list(moves)
        last = max((sequence for move in moves for sequence in move.sequences), default=0)
        held: dict[int, ServiceBusReceivedMessage] = {}
        async with self._reading(path) as receiver:
            # This opens the link with the SDK's own time limit; receive_messages waits TAKE_S only.
            await receiver.peek_messages(1)
            self.meter.peeks += 1
            try:
                while left:
                    got = await receiver.receive_messages(TAKE_MAX, max_wait_time=TAKE_S)
                    self.meter.receives += len(got)
                    numbers = [message.sequence_number or 0 for message in got]
                    again = not held.keys().isdisjoint(numbers)
                    held.update(zip(numbers, got, strict=True))
                    for move in [one for one in left if one.sequences <= held.keys()]:
                        if move.message is not None:
                            await self.send([move.message])
                        left.remove(move)
                        yield await _complete(receiver, [held.pop(n) for n in move.sequences])
                    if again or max(numbers, default=last) >= last:
                        break
            finally:
                for message in held.values():
                    with suppress(AzureError, OSError):
                        await receiver.abandon_message(message)

    async def check_sending(self, queue: str) -> None:
        """Open a link to send to a queue, and send nothing.

        Raises:
            UndeliverableError: there is no such queue, or you may not send to it.
            BusUnavailableError: no answer.
        """
        sender = self._client.get_queue_sender(queue)
        try:
            async with asyncio.timeout(LOOK_S):
                await sender.create_message_batch()  # opens the link, to learn its limit
        except (ServiceBusAuthorizationError, MessagingEntityNotFoundError) as error:
            raise UndeliverableError(why(queue, error), Message(queue, "", b"")) from error
        except ServiceBusError as error:
            raise BusUnavailableError(why(queue, error)) from error
        except AzureError as error:
            raise BusUnavailableError(f"{error} Sign in with az login.") from error
        except TimeoutError as error:
            raise BusUnavailableError(f"queue {queue} did not answer in time.") from error
        finally:
            self.senders.close_later(sender)

    @asynccontextmanager
    async def _reading(self, path: str) -> AsyncIterator[ServiceBusReceiver]:
        receiver = self._client.get_queue_receiver(path)
        try:
            yield receiver
        except ServiceBusAuthorizationError as error:
            raise BusUnavailableError(
                f"queue {path}: to read it you need the role Azure Service Bus Data Receiver on it "
                "(a key's policy: Listen)."
            ) from error
        except ServiceBusError as error:
            raise BusUnavailableError(why(path, error)) from error
        except AzureError as error:
            raise BusUnavailableError(f"{error} Sign in with az login.") from error
        except TimeoutError as error:
            raise BusUnavailableError(f"queue {path} could not be read in time.") from error
        finally:
            self.senders.close_later(receiver)


async def _complete(
    receiver: ServiceBusReceiver, messages: Iterable[ServiceBusReceivedMessage]
) -> bool:
    """Remove messages; False if one may still be there: its lock was lost, for instance."""
    removed = True
    for message in messages:
        try:
            await receiver.complete_message(message)
        except (AzureError, OSError):
            removed = False
    return removed
