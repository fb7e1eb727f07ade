"""Requests on ``$cbs`` and ``$management``: reading one, and encoding the answer to it."""

from dataclasses import dataclass, field
from typing import Any

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.sections import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    VALUE,
    sections,
)
from devstack.servicebus.core.errors import (
    BrokerError,
    NotImplementedByBrokerError,
    ServerBusyError,
)
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.wire.hub import Wire
from devstack.servicebus.wire.management import Call, Reply, answer


@dataclass(slots=True)
class Request:
    """A request; ``message_id`` stays encoded, so that the answer carries it in the same type."""

    message_id: bytes = encode.NULL
    reply_to: Any = None
    properties: dict[str, Any] = field(default_factory=dict)
    body: Any = None

    @classmethod
    def read(cls, payload: bytes) -> "Request":
        """Read a request. Raises DecodeError where it is no message."""
        request = cls()
        for section in sections(payload):
            if section.code == PROPERTIES:
                fields = decode.spans(payload, section.value_at)
                fields += [encode.NULL] * (5 - len(fields))
                request.message_id = fields[0]
                request.reply_to = decode.decode(fields[4])[0]
            elif section.code == APPLICATION_PROPERTIES:
                given = decode.decode(payload, section.value_at)[0]
                request.properties = given if isinstance(given, dict) else {}
            elif section.code == VALUE:
                request.body = decode.decode(payload, section.value_at)[0]
        return request

    def text(self, name: str) -> str:
        """Give an application property as text, empty where it is none."""
        value = self.properties.get(name)
        return value if isinstance(value, str) else ""


def answer_request(request: Request, queue: QueueCore | None, wire: Wire, now: float) -> bytes:
    """Do what a request asks and encode the answer."""
    if queue is None:
        return encode_reply(request, _put_token(request, wire, now))
    body = request.body if isinstance(request.body, dict) else {}
    if wire.hub.faults.armed and wire.hub.faults.take("server-busy", queue.name, "manage"):
        busy = ServerBusyError(f"queue '{queue.name}' is busy; wait a moment and ask again")
        return encode_reply(
            request, Reply(busy.status, encode.NULL, busy.description, busy.condition)
        )
    call = Call(queue, body, now, wire)
    return encode_reply(request, answer(request.text("operation"), call))


def _put_token(request: Request, wire: Wire, now: float) -> Reply:
    try:
        if request.text("operation") != "put-token":
            raise NotImplementedByBrokerError("$cbs knows the operation put-token only")
        token = request.body if isinstance(request.body, str) else ""
        claim = wire.hub.gate.check(token, request.text("name"), now)
    except BrokerError as error:
        return Reply(error.status, encode.NULL, error.description, error.condition)
    wire.claims[:] = [old for old in wire.claims if old.path != claim.path and old.expires_at > now]
    wire.claims.append(claim)
    return Reply(202, encode.NULL, "Accepted")


def encode_reply(request: Request, reply: Reply) -> bytes:
    """Encode an answer, with the status under the names of both protocols."""
    status, description = encode.int32(reply.status), encode.string(reply.description)
    entries = [
        (encode.string("statusCode"), status),
        (encode.string("statusDescription"), description),
        (encode.string("status-code"), status),
        (encode.string("status-description"), description),
    ]
    if reply.condition is not None:
        entries.append((encode.string("errorCondition"), encode.symbol(reply.condition)))
    correlation = [encode.NULL] * 5 + [request.message_id]
    return (
        encode.composite(PROPERTIES, correlation)
        + b"\x00\x53\x74"
        + encode.map_(entries)
        + b"\x00\x53\x77"
        + reply.body
    )
