"""The message bus: sending. Receiving is the host's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol


class BusUnavailableError(Exception):
    """The bus did not take a message in time (busy, throttled, cut off). Send it again later."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. ``time_to_live`` None means the queue's own default."""

    queue: str
    message_id: str
    body: bytes
    content_type: str = "application/json"
    correlation_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_at: datetime | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class UndeliverableError(Exception):
    """The bus will never take this message: no such queue, no right to send, or too large.

    ``undelivered`` is the message; the text says why.
    """

    def __init__(self, reason: str, undelivered: Message) -> None:
        super().__init__(reason)
        self.undelivered = undelivered


class MessageBus(Protocol):
    """Sending. Receiving is the host's: functions are handed their messages."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages in their order; those to one queue may travel as one batch.

        On an error some may have been sent: sending all again is safe, their ids stay.

        Raises:
            BusUnavailableError: after the bus's own retries.
            UndeliverableError: naming the first message that can never be sent.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
