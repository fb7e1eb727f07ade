"""From a Service Bus trigger to what receives for it: a pump, a batch pump or a session pump."""

import logging
from collections.abc import Callable, Sequence

from azure.functions.meta import Datum
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from devstack.functions import metadata
from devstack.functions.batches import BatchPump
from devstack.functions.bindings import ServiceBusTrigger
from devstack.functions.clients import Clients
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Invoker
from devstack.functions.options import ServiceBusOptions
from devstack.functions.pump import PumpOptions, QueuePump
from devstack.functions.sessions import SessionPump

_log = logging.getLogger("devstack.functions")
_ACCEPT_SESSION_S = 10.0

Pump = QueuePump | BatchPump | SessionPump


class Listener:
    """Invokes one function for what its queue delivers: invoke, send outputs, settle."""

    def __init__(
        self,
        function: IndexedFunction,
        invoker: Invoker,
        clients: Clients,
        options: ServiceBusOptions,
    ) -> None:
        assert isinstance(function.trigger, ServiceBusTrigger)  # noqa: S101  # for mypy
        self.trigger = function.trigger
        self.function = function
        self._invoker = invoker
        self._clients = clients
        self._options = options

    def pump(self) -> Pump:
        """What receives for this trigger; run it as a task."""
        name = f"{self.function.name} on {self.trigger.queue}"
        auto = self.trigger.auto_complete
        auto = self._options.auto_complete_messages if auto is None else auto
        if self.trigger.sessions:
            return SessionPump(
                name,
                self._next_session,
                self._receiver,
                self._many if self.trigger.batch else self._only,
                self._options,
                batch=self.trigger.batch,
                auto_complete=auto,
            )
        if self.trigger.batch:
            return BatchPump(name, self._receiver(), self._many, self._options, auto_complete=auto)
        options = PumpOptions(
            slots=self._options.max_concurrent_calls,
            renewal_s=self._options.max_auto_lock_renewal_s,
            auto_complete=auto,
        )
        return QueuePump(name, self._receiver(), self._one, options)

    def _receiver(self) -> ServiceBusReceiver:
        client = self._clients.client(self.trigger.connection)
        return client.get_queue_receiver(
            self.trigger.queue, prefetch_count=self._options.prefetch_count
        )

    def _next_session(self) -> ServiceBusReceiver:
        client = self._clients.client(self.trigger.connection)
        return client.get_queue_receiver(
            self.trigger.queue,
            session_id=NEXT_AVAILABLE_SESSION,
            prefetch_count=self._options.prefetch_count,
            max_wait_time=_ACCEPT_SESSION_S,
        )

    async def _one(self, message: ServiceBusReceivedMessage) -> bool:
        count = metadata.delivery_count(message)
        reason = f"Message {message.message_id} of {self.trigger.queue}, delivery {count}"
        return await self._invoke(
            lambda: metadata.single(message, binary=self.trigger.binary), reason
        )

    async def _only(self, messages: Sequence[ServiceBusReceivedMessage]) -> bool:
        return await self._one(messages[0])

    async def _many(self, messages: Sequence[ServiceBusReceivedMessage]) -> bool:
        reason = f"{len(messages)} messages of {self.trigger.queue}"
        return await self._invoke(
            lambda: metadata.batch(messages, binary=self.trigger.binary), reason
        )

    async def _invoke(
        self, convert: Callable[[], tuple[Datum, metadata.Metadata]], reason: str
    ) -> bool:
        try:
            datum, found = convert()
        except Exception:  # noqa: BLE001  # whatever a sender made of a message
            _log.exception("%s cannot be read; abandoning", reason)
            return False
        try:
            result = await self._invoker.invoke(self.function, datum, found, reason=reason)
        except Exception as error:  # noqa: BLE001  # any failure abandons; the invoker logged it
            _log.debug("%s: abandoning after %r", reason, error)
            return False
        try:
            await self._clients.send_outputs(self.function, result)
        except Exception:  # noqa: BLE001  # any failure abandons
            _log.exception("%s: its output could not be sent; abandoning", reason)
            return False
        return True
