"""What a queue takes and gives: its status, forwarding, sessions, size limit and quota."""

from collections.abc import Sequence
from typing import Protocol

from devstack.servicebus.core.errors import (
    EntityDisabledError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
)
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.properties import QueueProperties


class Books(Protocol):
    """What admission needs to know of a queue. That of dead letters has none of its own."""

    name: str
    properties: QueueProperties

    @property
    def dead_letters(self) -> object | None:
        """Where its dead letters are."""

    @property
    def used_bytes(self) -> int:
        """What counts against the quota: the queue and its dead letters."""


def check_admission(queue: Books, messages: Sequence[Message]) -> None:
    """Raise where ``messages`` may not all come in.

    Raises EntityDisabledError, MessageSizeExceededError, NotAllowedError (no session id on a
    queue that requires sessions), QuotaExceededError.
    """
    settings = queue.properties
    if not settings.status.sends:
        raise EntityDisabledError(
            f"queue '{queue.name}' is {settings.status.value} and takes no messages; "
            "set its status to Active"
        )
    limit = settings.max_message_kilobytes * 1024
    total = queue.used_bytes
    for message in messages:
        total += message.size
        if message.size > limit:
            raise MessageSizeExceededError(
                f"a message of {message.size} bytes is larger than the {limit} bytes that "
                f"queue '{queue.name}' takes; send less or raise MaxMessageSizeInKilobytes"
            )
        if settings.requires_session and message.session_id is None:
            raise NotAllowedError(
                f"queue '{queue.name}' requires sessions: give every message a session id"
            )
    if total > settings.max_size_megabytes << 20:
        raise QuotaExceededError(
            f"queue '{queue.name}' would hold {total} bytes and may hold "
            f"{settings.max_size_megabytes} MB; receive from it or raise MaxSizeInMegabytes"
        )


def check_sendable(queue: Books) -> None:
    """Raise NotAllowedError where nobody may send, whatever the message."""
    if queue.dead_letters is None:
        raise NotAllowedError(
            f"'{queue.name}' holds dead letters and takes nothing else; send to the queue itself"
        )


def check_browsable(queue: Books) -> None:
    """Raise NotAllowedError where the messages may not even be looked at or scheduled."""
    target = queue.properties.forward_to
    if target:
        raise NotAllowedError(
            "Cannot create a message browser on an entity with auto-forwarding enabled: ask "
            f"'{target}', where '{queue.name}' forwards to"
        )


def check_receivable(queue: Books) -> None:
    """Raise EntityDisabledError or NotAllowedError where nothing may be received."""
    settings = queue.properties
    if settings.forward_to:
        raise NotAllowedError(
            "Cannot create a message receiver on an entity with auto-forwarding enabled: receive "
            f"from '{settings.forward_to}', where '{queue.name}' forwards to"
        )
    if not settings.status.receives:
        raise EntityDisabledError(
            f"queue '{queue.name}' is {settings.status.value} and gives no messages; "
            "set its status to Active"
        )
