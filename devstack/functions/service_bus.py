"""Service Bus in a host process: its clients, and the listeners of its triggers.

The SDK opens one AMQP connection for every receiver and sender, even within one client (measured
with azure-servicebus 7.15). So each trigger has one receiver only, unless its queue has sessions.
"""

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import certifi
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from devstack.functions import metadata
from devstack.functions.bindings import ServiceBusOutput, ServiceBusTrigger
from devstack.functions.hostjson import ServiceBusOptions
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Invoker, Result
from devstack.functions.pumps import BatchPump, MessagePump, Pump, SessionPump

_log = logging.getLogger("devstack.functions")
_ACCEPT_SESSION_S = 10.0
"""How long a receiver waits for a free session before it asks again."""


class Clients:
    """The Service Bus clients and senders of this process, opened on first use."""

    def __init__(self, options: ServiceBusOptions) -> None:
        self._options = options
        self._clients: dict[str, ServiceBusClient] = {}
        self._senders: dict[ServiceBusOutput, tuple[ServiceBusSender, asyncio.Lock]] = {}

    def client(self, connection: str) -> ServiceBusClient:
        """Return the client for a connection string; make it on first use."""
        if connection not in self._clients:
            self._clients[connection] = self._open(connection)
        return self._clients[connection]

    def _open(self, connection: str) -> ServiceBusClient:
        retry = self._options.retry
        options: dict[str, Any] = {
            "retry_total": retry.max_retries,
            "retry_mode": retry.mode,
            "retry_backoff_factor": retry.delay_s,
            "retry_backoff_max": retry.max_delay_s,
            "try_timeout": retry.try_timeout_s,
            "ssl_context": _tls(),
        }
        return ServiceBusClient.from_connection_string(connection, **options)

    async def send_outputs(self, function: IndexedFunction, result: Result) -> None:
        """Send the outputs of an invocation, or raise InvocationError or ServiceBusError."""
        for output in function.outputs:
            if not isinstance(output, ServiceBusOutput):
                continue
            if output.param == "$return":
                datum = result.returned
            else:
                datum = result.outputs.get(output.param)
            if datum is None:
                continue
            messages = metadata.outgoing(datum)
            sender, lock = self._sender(output)
            async with lock:  # the SDK's link supports one send at a time
                for message in messages:
                    await sender.send_messages(message)

    def _sender(self, output: ServiceBusOutput) -> tuple[ServiceBusSender, asyncio.Lock]:
        if output not in self._senders:
            sender = self.client(output.connection).get_queue_sender(output.queue)
            self._senders[output] = (sender, asyncio.Lock())
        return self._senders[output]

    async def close(self) -> None:
        """Close every sender and client."""
        closes = [sender.close() for sender, _ in self._senders.values()]
        await asyncio.gather(*closes, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        self._senders, self._clients = {}, {}


@functools.cache
def _tls() -> ssl.SSLContext:
    """The TLS settings of all connections. The SDK would take 20 ms of CPU for each of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    return context


@dataclass(kw_only=True)
class Listener:
    """Runs one function for the messages of its queue: invokes it and sends its outputs.

    Its pump settles the messages.
    """

    function: IndexedFunction
    trigger: ServiceBusTrigger
    invoker: Invoker
    clients: Clients
    options: ServiceBusOptions

    def pump(self) -> Pump:
        """Make the pump of this trigger."""
        trigger = self.trigger
        new_pump: Callable[..., Pump]
        if trigger.sessions:
            accept = functools.partial(
                self._receiver, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=_ACCEPT_SESSION_S
            )
            new_pump = functools.partial(SessionPump, accept, self._receiver, trigger.batch)
        else:
            pump_class = BatchPump if trigger.batch else MessagePump
            new_pump = functools.partial(pump_class, self._receiver())
        auto_complete = trigger.auto_complete
        if auto_complete is None:
            auto_complete = self.options.auto_complete_messages
        return new_pump(
            name=f"{self.function.name} on {trigger.queue}",
            handler=self._handle,
            options=self.options,
            auto_complete=auto_complete,
        )

    def _receiver(self, **options: Any) -> ServiceBusReceiver:
        client = self.clients.client(self.trigger.connection)
        prefetch = self.options.prefetch_count
        return client.get_queue_receiver(self.trigger.queue, prefetch_count=prefetch, **options)

    async def _handle(self, messages: Sequence[ServiceBusReceivedMessage]) -> bool:
        """Call the function; return whether it succeeded and its outputs are sent."""
        trigger, first_message = self.trigger, messages[0]
        if trigger.batch:
            reason = f"{len(messages)} messages of {trigger.queue}"
        else:
            count = metadata.delivery_count(first_message)
            reason = f"Message {first_message.message_id} of {trigger.queue}, delivery {count}"
        try:
            if trigger.batch:
                datum, trigger_metadata = metadata.batch(messages, binary=trigger.binary)
            else:
                datum, trigger_metadata = metadata.single(first_message, binary=trigger.binary)
            result = await self.invoker.invoke(
                self.function, datum, trigger_metadata, reason=reason
            )
            await self.clients.send_outputs(self.function, result)
        except Exception as error:  # noqa: BLE001  # any failure abandons
            _log.warning("%s is abandoned: %r", reason, error)
            return False
        return True
