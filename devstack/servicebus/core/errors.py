"""The refusals of a queue, as conditions that the Service Bus SDKs turn into exceptions.

The symbols and the status codes of management replies are those of the real service.
"""


class BrokerError(Exception):
    """A request that a queue refuses: ``condition`` for links, ``status`` for ``$management``."""

    condition: str
    status: int

    def __init_subclass__(cls, *, condition: str, status: int) -> None:
        cls.condition, cls.status = condition, status

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFoundError(BrokerError, condition="amqp:not-found", status=404):
    """No such queue; the SDKs do not retry it."""


class MessageSizeExceededError(
    BrokerError, condition="amqp:link:message-size-exceeded", status=400
):
    """A message above the queue's size limit: send less or raise MaxMessageSizeInKilobytes."""


class QuotaExceededError(BrokerError, condition="amqp:resource-limit-exceeded", status=403):
    """The queue is full: receive from it or raise MaxSizeInMegabytes."""


class UnauthorizedError(BrokerError, condition="amqp:unauthorized-access", status=401):
    """The link's token is missing, wrong, expired, or for another entity."""


class TokenRefusedError(UnauthorizedError, condition="com.microsoft:auth-failed", status=401):
    """A token itself is wrong or has expired: ``$cbs`` and the management port answer with it."""


class NotAllowedError(BrokerError, condition="amqp:not-allowed", status=400):
    """The wrong kind of receiver or message for this queue."""


class MessageLockLostError(BrokerError, condition="com.microsoft:message-lock-lost", status=410):
    """The lock expired or the message was settled already: it may be delivered again."""


class SessionLockLostError(BrokerError, condition="com.microsoft:session-lock-lost", status=410):
    """The session's lock expired: accept the session again."""


class MessageNotFoundError(BrokerError, condition="com.microsoft:message-not-found", status=404):
    """No such deferred or scheduled message."""


class SessionCannotBeLockedError(
    BrokerError, condition="com.microsoft:session-cannot-be-locked", status=410
):
    """Another receiver holds the session: wait until it closes or its lock expires."""


class OperationTimeoutError(BrokerError, condition="com.microsoft:timeout", status=408):
    """No session with messages came free in time."""


class ServerBusyError(BrokerError, condition="com.microsoft:server-busy", status=503):
    """The broker is throttling, which happens only as an armed fault: wait a moment and retry."""


class EntityDisabledError(BrokerError, condition="com.microsoft:entity-disabled", status=400):
    """The queue's status forbids this; set it to Active with the management API."""


class ArgumentError(BrokerError, condition="com.microsoft:argument-error", status=400):
    """A management request whose body is not what the operation takes."""


class NotImplementedByBrokerError(BrokerError, condition="amqp:not-implemented", status=501):
    """An operation of topics or transactions, which this broker does not serve."""
