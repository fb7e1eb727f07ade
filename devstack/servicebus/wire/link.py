"""What every link has: a name, two handles, an attach to answer and a way to end."""

from typing import TYPE_CHECKING

from devstack.servicebus.amqp import encode, frames
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.wire.attach import Attach, write_attach

if TYPE_CHECKING:
    from devstack.servicebus.wire.session import AmqpSession

_WINDOW = encode.uint(0x7FFFFFFF)


class Link:
    """One end of a link. ``queue`` is the entity behind it, None for ``$cbs``."""

    def __init__(
        self, session: "AmqpSession", attach: Attach, handle: int, queue: QueueCore | None
    ) -> None:
        self.session_of_link = session
        self.wire = session.wire
        self.hub = session.wire.hub
        self.attach = attach
        self.name = attach.name
        self.handle = handle
        self.queue = queue
        self.answered = self.ended = False

    def opened(self, now: float) -> None:
        """Answer the attach; raises BrokerError where it is to be refused."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise BrokerError where the link may not be open, as its queue is now."""

    def on_flow(self, fields: list[object], now: float) -> None:
        """Take note of credit."""

    def gone(self, now: float) -> None:
        """The link has ended, by whomever."""

    def answer_attach(
        self,
        *,
        source: bytes | None = None,
        refused: bool = False,
        properties: bytes = encode.NULL,
    ) -> None:
        """Send the attach that answers the peer's."""
        self.answered = True
        limit = self.queue.properties.max_message_kilobytes * 1024 if self.queue else 1 << 20
        self.session_of_link.send(
            write_attach(
                self.attach,
                self.handle,
                source=source,
                refused=refused,
                max_message_bytes=limit,
                properties=properties,
            )
        )

    def detach(self, condition: str, description: str) -> None:
        """End the link with an error, or refuse it where its attach was not answered yet."""
        if self.ended:
            return
        if not self.answered:
            self.answer_attach(refused=True)
        self.ended = True
        self.gone(self.hub.clock())
        error = frames.error(condition, description)
        fields = [encode.uint(self.handle), encode.TRUE, error]
        self.session_of_link.send(encode.composite(frames.DETACH, fields))

    def send_flow(self, delivery_count: int, credit: int, *, drain: bool = False) -> None:
        """Send this link's flow state with the session's."""
        session = self.session_of_link
        fields = [
            encode.uint(session.next_incoming),
            _WINDOW,
            encode.uint(session.next_outgoing),
            _WINDOW,
            encode.uint(self.handle),
            encode.uint(delivery_count),
            encode.uint(credit),
            encode.uint(0),
            encode.boolean(drain),
        ]
        session.send(encode.composite(frames.FLOW, fields))
