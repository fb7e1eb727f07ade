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

from sas.adapters.servicebus import ServiceBus, explain, peek_all
from sas.ports import BusUnavailableError, Message, MessageMove, Peeked, UndeliverableError

PEEK_S = 30.0
"""Longest time to read a queue, or to open a link to it, in seconds."""
RECEIVE_MAX = 50
"""Most messages that one receive locks. Few enough to be sent before their locks end."""
RECEIVE_S = 3.0
"""How long one receive waits for messages, in seconds."""


class OperatorServiceBus(ServiceBus):
    """See ``sas.ports.OperatorBus``."""

    async def peek(self, queue: str, limit: int, after: int = 0) -> list[Peeked]:
        """See ``MessageBus.peek``. Each call has a connection of its own, and closes it."""
        async with self._reading(queue) as receiver, asyncio.timeout(PEEK_S):
            return await peek_all(receiver, limit, self.meter, after=after)

    async def move(self, path: str, moves: Sequence[MessageMove]) -> AsyncGenerator[bool]:
        """See ``OperatorBus.move``.

        A message can only be removed while this receiver holds its lock. So messages are received
        until all those of a move are locked. Then the new message is sent, and they are completed.
        It ends when no move is left, when no message comes, when the last sequence number of any
        move has passed, or when a message comes again, because then the queue was read once around.
        """
        pending = list(moves)
        last_sequence = max((sequence for move in moves for sequence in move.sequences), default=0)
        locked: dict[int, ServiceBusReceivedMessage] = {}
        async with self._reading(path) as receiver:
            # Opens the link with the SDK's own time limit; receive_messages waits RECEIVE_S only.
            await receiver.peek_messages(1)
            self.meter.peeks += 1
            try:
                while pending:
                    page = await receiver.receive_messages(RECEIVE_MAX, max_wait_time=RECEIVE_S)
                    self.meter.receives += len(page)
                    numbers = [message.sequence_number or 0 for message in page]
                    repeated = not locked.keys().isdisjoint(numbers)
                    locked.update(zip(numbers, page, strict=True))
                    for move in [move for move in pending if move.sequences <= locked.keys()]:
                        if move.message is not None:
                            await self.send([move.message])
                        pending.remove(move)
                        yield await _complete(receiver, [locked.pop(n) for n in move.sequences])
                    if repeated or max(numbers, default=last_sequence) >= last_sequence:
                        break
            finally:
                for message in locked.values():
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
            async with asyncio.timeout(PEEK_S):
                await sender.create_message_batch()  # opens the link, to learn its limit
        except (ServiceBusAuthorizationError, MessagingEntityNotFoundError) as error:
            raise UndeliverableError(explain(queue, error), Message(queue, "", b"")) from error
        except ServiceBusError as error:
            raise BusUnavailableError(explain(queue, error)) from error
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
            raise BusUnavailableError(explain(path, error)) from error
        except AzureError as error:
            raise BusUnavailableError(f"{error} Sign in with az login.") from error
        except TimeoutError as error:
            raise BusUnavailableError(f"queue {path} could not be read in time.") from error
        finally:
            self.senders.close_later(receiver)


async def _complete(
    receiver: ServiceBusReceiver, messages: Iterable[ServiceBusReceivedMessage]
) -> bool:
    """Remove messages; False if a message may still be there: its lock was lost, for instance."""
    removed = True
    for message in messages:
        try:
            await receiver.complete_message(message)
        except (AzureError, OSError):
            removed = False
    return removed
