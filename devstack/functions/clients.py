"""One ServiceBusClient per namespace and process, and the senders of output bindings.

The SDK opens one AMQP connection for every receiver and sender whatever the client
(measured, azure-servicebus 7.15), so what saves connections is one receiver per queue.
"""

import asyncio
import json
import logging
from typing import Any

from azure.functions.meta import Datum
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from devstack.functions.bindings import ServiceBusOutput
from devstack.functions.errors import InvocationError
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Result
from devstack.functions.options import ServiceBusOptions
from devstack.functions.settings import ServiceBusConnection

_log = logging.getLogger("devstack.functions")


class Clients:
    """The Service Bus clients of this process, opened when first needed."""

    def __init__(self, options: ServiceBusOptions) -> None:
        self._options = options
        self._clients: dict[ServiceBusConnection, ServiceBusClient] = {}
        self._senders: dict[tuple[ServiceBusConnection, str], _Sender] = {}
        self._credentials: list[Any] = []

    def client(self, connection: ServiceBusConnection) -> ServiceBusClient:
        """The client of a namespace, one for all who use it."""
        if connection not in self._clients:
            self._clients[connection] = self._open(connection)
        return self._clients[connection]

    def _open(self, connection: ServiceBusConnection) -> ServiceBusClient:
        retry = self._options.retry
        transport = TransportType.Amqp
        if self._options.transport_type == "amqpWebSockets":
            transport = TransportType.AmqpOverWebsocket
        options: dict[str, Any] = {
            "retry_total": retry.max_retries,
            "retry_mode": retry.mode,
            "retry_backoff_factor": retry.delay_s,
            "retry_backoff_max": retry.max_delay_s,
            "try_timeout": retry.try_timeout_s,
            "transport_type": transport,
        }
        if connection.connection_string is not None:
            return ServiceBusClient.from_connection_string(connection.connection_string, **options)
        credential = _credential(connection)
        self._credentials.append(credential)
        namespace = connection.fully_qualified_namespace or ""
        return ServiceBusClient(namespace, credential, **options)

    async def send_outputs(self, function: IndexedFunction, result: Result) -> None:
        """Send what an invocation gave to its Service Bus outputs, before it counts as done.

        Raises:
            InvocationError: a value that is no message.
            azure.servicebus.exceptions.ServiceBusError: the queue did not take it.
        """
        for output in function.outputs:
            if not isinstance(output, ServiceBusOutput):
                continue
            datum = result.returned if output.param == "$return" else None
            datum = result.outputs.get(output.param, datum)
            if datum is not None:
                await self._sender(output).send(messages_of(datum))

    def _sender(self, output: ServiceBusOutput) -> "_Sender":
        key = (output.connection, output.queue)
        if key not in self._senders:
            self._senders[key] = _Sender(self.client(output.connection), output.queue)
        return self._senders[key]

    async def close(self) -> None:
        """Close every sender, client and credential."""
        closing = [sender.close() for sender in self._senders.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        for opened in (*self._clients.values(), *self._credentials):
            await opened.close()
        self._senders, self._clients, self._credentials = {}, {}, []


class _Sender:
    """A queue's sender, opened once; one send at a time, as the SDK's link wants it."""

    def __init__(self, client: ServiceBusClient, queue: str) -> None:
        self._client, self._queue = client, queue
        self._lock = asyncio.Lock()
        self._sender: ServiceBusSender | None = None

    async def send(self, messages: list[ServiceBusMessage]) -> None:
        async with self._lock:
            if self._sender is None:
                self._sender = self._client.get_queue_sender(self._queue)
            for message in messages:
                await self._sender.send_messages(message)

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()


def messages_of(datum: Datum) -> list[ServiceBusMessage]:
    """The messages that a datum stands for: a list gives one each, anything else one.

    Raises:
        InvocationError: the datum is of a kind that no message is made of.
    """
    if datum.type == "list":
        return [message for one in datum.value for message in messages_of(_element(one))]
    if datum.type == "dict":
        return [ServiceBusMessage(json.dumps(datum.value), content_type="application/json")]
    if datum.type in {"string", "bytes"}:
        return [ServiceBusMessage(datum.value)]
    raise InvocationError(f"No message can be made of {datum.type} data.")


def _element(value: Any) -> Datum:
    if isinstance(value, str | bytes):
        return Datum(value, "string" if isinstance(value, str) else "bytes")
    return Datum(json.dumps(value), "string")


def _credential(connection: ServiceBusConnection) -> Any:
    from azure.identity.aio import (  # noqa: PLC0415  # 255 ms that only Azure itself needs
        DefaultAzureCredential,
        ManagedIdentityCredential,
    )

    if connection.managed_identity:
        return ManagedIdentityCredential(client_id=connection.client_id)
    return DefaultAzureCredential()
