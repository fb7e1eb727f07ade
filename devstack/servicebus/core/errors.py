"""What a queue refuses, as the conditions that the Service Bus SDKs turn into exceptions.

The symbols and the status codes of management replies are those of the real service.
"""


class BrokerError(Exception):
    """A request that a queue refuses: ``condition`` for links, ``status`` for ``$management``."""

    condition = "amqp:internal-error"
    status = 500

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFoundError(BrokerError):
    """No such queue; the SDKs do not retry it."""

    condition, status = "amqp:not-found", 404


class MessageSizeExceededError(BrokerError):
    """A message above the queue's size limit: send less or raise MaxMessageSizeInKilobytes."""

    condition, status = "amqp:link:message-size-exceeded", 400


class QuotaExceededError(BrokerError):
    """The queue is full: receive from it or raise MaxSizeInMegabytes."""

    condition, status = "amqp:resource-limit-exceeded", 403


class UnauthorizedError(BrokerError):
    """The link's token is missing, wrong, expired, or for another entity."""

    condition, status = "amqp:unauthorized-access", 401


class TokenRefusedError(UnauthorizedError):
    """A token itself is wrong or has expired: what ``$cbs`` answers."""

    condition = "com.microsoft:auth-failed"


class NotAllowedError(BrokerError):
    """The wrong kind of receiver or message for this queue."""

    condition, status = "amqp:not-allowed", 400


class MessageLockLostError(BrokerError):
    """The lock expired or the message was settled already: it may be delivered again."""

    condition, status = "com.microsoft:message-lock-lost", 410


class SessionLockLostError(BrokerError):
    """The session's lock expired: accept the session again."""

    condition, status = "com.microsoft:session-lock-lost", 410


class MessageNotFoundError(BrokerError):
    """No such deferred or scheduled message."""

    condition, status = "com.microsoft:message-not-found", 404


class SessionCannotBeLockedError(BrokerError):
    """Another receiver holds the session: wait until it closes or its lock expires."""

    condition, status = "com.microsoft:session-cannot-be-locked", 410


class OperationTimeoutError(BrokerError):
    """No session with messages came free in time."""

    condition, status = "com.microsoft:timeout", 408


class ServerBusyError(BrokerError):
    """The broker is throttling, here on demand only: wait a moment and retry."""

    condition, status = "com.microsoft:server-busy", 503


class EntityDisabledError(BrokerError):
    """The queue's status forbids this; set it to Active with the management API."""

    condition, status = "com.microsoft:entity-disabled", 400


class ArgumentError(BrokerError):
    """A management request whose body is not what the operation takes."""

    condition, status = "com.microsoft:argument-error", 400


class NotImplementedByBrokerError(BrokerError):
    """An operation of topics or transactions, which this broker does not serve."""

    condition, status = "amqp:not-implemented", 501
