"""Reads and answers the requests on ``$cbs`` and ``$management``.

Names and shapes of the bodies: Microsoft, "AMQP 1.0 in Azure Service Bus: request-response-based
operations", with the spellings that the SDKs send (``defered``, ``sessions-ids``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.amqp.errors import AmqpError
from devstack.servicebus.amqp.frames import values_by_name
from devstack.servicebus.amqp.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections
from devstack.servicebus.core import errors, operations
from devstack.servicebus.core.dispatch import Session, SessionDispatch
from devstack.servicebus.core.message import Message, encode_message, parse_message
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.tokens import path_of
from devstack.servicebus.wire.context import Output

_PEEK_MAX = 1000
_CHANGES = "properties-to-modify"
#: The end of the year 9999 in seconds since 1970. A client that wants the sessions with messages
#: sends it to get-message-sessions as the time of the last update.
_YEAR_9999_S = 253402300799


@dataclass(slots=True, kw_only=True)
class Request:
    """A request.

    ``message_id`` and the values of ``properties-to-modify`` stay encoded, to keep their types.
    """

    message_id: bytes = encode.NULL
    reply_to: Any = None
    properties: dict[str, Any] = field(default_factory=dict)
    body: Any = None

    @classmethod
    def read(cls, payload: bytes) -> "Request":
        """Read a request. Raises DecodeError if it is not a message."""
        request = cls()
        for section in sections(payload):
            if section.code == PROPERTIES:
                fields = decode.spans(payload, section.value_at, 5)
                request.message_id = fields[0]
                request.reply_to = decode.decode(fields[4])[0]
            elif section.code == APPLICATION_PROPERTIES:
                properties = decode.decode(payload, section.value_at)[0]
                request.properties = properties if isinstance(properties, dict) else {}
            elif section.code == VALUE:
                body = request.body = decode.decode(payload, section.value_at)[0]
                if isinstance(body, dict) and body.get(_CHANGES):
                    raw = values_by_name(payload[section.value_at : section.end])
                    body[_CHANGES] = values_by_name(raw[_CHANGES])
        return request

    def text(self, name: str) -> str:
        """Return an application property if it is text, else an empty text."""
        value = self.properties.get(name)
        return value if isinstance(value, str) else ""


class Reply(NamedTuple):
    """An answer: an HTTP-like status and the encoded body."""

    status: int
    body: bytes = encode.NULL
    description: str = "OK"
    condition: str | None = None


def refusal(error: errors.BrokerError) -> Reply:
    """Answer a request that is refused."""
    return Reply(error.status, encode.NULL, error.description, error.condition)


class Call(NamedTuple):
    """One request on one entity. ``holder`` is the request's connection."""

    queue: Queue
    body: Mapping[str, Any]
    now: float
    holder: object

    def take(self, name: str, kind: type[Any], default: Any = ...) -> Any:
        """Return an argument. Raises ArgumentError if it is missing or of another type."""
        value = self.body.get(name)
        if value is None and default is not ...:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise errors.ArgumentError(f"'{name}' must be {kind.__name__}, not {value!r:.100}")
        return value

    def tokens(self) -> list[bytes]:
        """Return the lock tokens in the byte order of the queues."""
        tokens = self.take("lock-tokens", list)
        if not all(isinstance(token, UUID) for token in tokens):
            raise errors.ArgumentError("'lock-tokens' must be an array of uuid")
        return [token.bytes_le for token in tokens]

    def sequences(self) -> list[int]:
        """Return the sequence numbers, each once."""
        numbers: list[Any] = self.take("sequence-numbers", list)
        if not all(isinstance(number, int) for number in numbers):
            raise errors.ArgumentError("'sequence-numbers' must be an array of long")
        return list(dict.fromkeys(numbers))


def answer_request(request: Request, queue: Queue | None, output: Output, now: float) -> bytes:
    """Answer a request."""
    try:
        if queue is None:
            reply = _put_token(request, output, now)
        else:
            output.context.faults.check_busy(queue.name, "manage")
            body = request.body if isinstance(request.body, dict) else {}
            reply = answer(request.text("operation"), Call(queue, body, now, output))
    except errors.BrokerError as error:
        reply = refusal(error)
    return encode_reply(request, reply)


def _put_token(request: Request, output: Output, now: float) -> Reply:
    if request.text("operation") != "put-token":
        raise errors.NotImplementedByBrokerError("$cbs serves the operation put-token only")
    token = request.body if isinstance(request.body, str) else ""
    claim = output.context.tokens.check(token, request.text("name"), now)
    path = path_of(request.text("name"))
    if path:  # an empty path is the whole namespace
        output.context.namespace.find(path)
    output.claims[:] = [
        other for other in output.claims if other.path != claim.path and other.expires_at > now
    ]
    output.claims.append(claim)
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


def answer(operation: str, call: Call) -> Reply:
    """Do one operation. Every refusal becomes a reply."""
    try:
        work = _OPERATIONS.get(operation)
        if work is None:
            raise errors.NotImplementedByBrokerError(
                f"the operation '{operation[:100]}' is not served: this broker serves queues only"
            )
        call.queue.check_browsable()
        is_for_senders = work in {_schedule, _cancel}
        # Azure refuses to peek at a queue that is SendDisabled: azure-sdk-for-net, issue 22454.
        call.queue.check_status(sends=is_for_senders or work is _peek, receives=not is_for_senders)
        return work(call)
    except errors.BrokerError as error:
        return refusal(error)
    except AmqpError as error:
        return Reply(400, encode.NULL, error.description, errors.ArgumentError.condition)


def _map(**entries: bytes) -> bytes:
    return encode.map_(
        (encode.string(name.replace("_", "-")), value) for name, value in entries.items()
    )


def _renew_lock(call: Call) -> Reply:
    ends = operations.renew(call.queue, call.tokens(), call.now)
    return Reply(200, _map(expirations=encode.array([encode.timestamp(at) for at in ends])))


def _peek(call: Call) -> Reply:
    first_sequence = call.take("from-sequence-number", int)
    count = min(call.take("message-count", int), _PEEK_MAX)
    session_id = call.take("session-id", str, None)
    messages = operations.peek(
        call.queue, first_sequence, count=max(count, 0), session_id=session_id, now=call.now
    )
    if not messages:
        return Reply(204, encode.NULL, "No Content")
    entries = [_map(message=_as_body(message)) for message in messages]
    return Reply(200, _map(messages=encode.list_(entries)))


def _as_body(message: Message) -> bytes:
    return encode.binary(encode_message(message))


def _schedule(call: Call) -> Reply:
    messages = []
    for entry in call.take("messages", list):
        raw = entry.get("message") if isinstance(entry, dict) else None
        if not isinstance(raw, bytes):
            raise errors.ArgumentError("every entry of 'messages' needs 'message' as bytes")
        messages.append(parse_message(raw))
    numbers = call.queue.enqueue(messages, call.now)
    return Reply(200, _map(sequence_numbers=encode.array([encode.int64(n) for n in numbers])))


def _cancel(call: Call) -> Reply:
    operations.cancel(call.queue, call.sequences())
    return Reply(200)


def _receive_by_number(call: Call) -> Reply:
    queue, now = call.queue, call.now
    session_id = call.take("session-id", str, None)
    session = _session(call) if queue.sessions is not None else None
    entries = []
    for message in operations.deferred_messages(queue, call.sequences(), session_id):
        token = queue.namespace.new_token()
        if call.take("receiver-settle-mode", int, 0) == 0:
            encoded = _as_body(message)
            queue.remove(message)
        else:
            queue.lock(message, token, session.owner if session else None, now)
            encoded = _as_body(message)
        lock_token = encode.uuid(UUID(bytes_le=token))
        entries.append(_map(lock_token=lock_token, message=encoded))
    return Reply(200, _map(messages=encode.list_(entries)))


def _update_disposition(call: Call) -> Reply:
    status = call.take("disposition-status", str)
    changes = call.take(_CHANGES, dict, None)
    reason = call.take("deadletter-reason", str, None)
    description = call.take("deadletter-description", str, None)
    tokens = dict.fromkeys(call.tokens())  # each once: a lock cannot be settled twice
    if status not in {"completed", "abandoned", "defered", "suspended"}:
        raise errors.ArgumentError(f"'{status[:50]}' is not a disposition-status")
    for token in tokens:
        operations.locked_message(call.queue, token, call.now)
    for token in tokens:
        match status:
            case "completed":
                operations.complete(call.queue, token, call.now)
            case "abandoned":
                operations.abandon(call.queue, token, call.now, changes)
            case "defered":
                operations.defer(call.queue, token, call.now, changes)
            case _:
                operations.dead_letter(
                    call.queue,
                    token,
                    now=call.now,
                    reason=reason,
                    description=description,
                    changes=changes,
                )
    return Reply(200)


def _sessions(call: Call) -> SessionDispatch:
    if call.queue.sessions is None:
        raise errors.NotAllowedError(f"queue '{call.queue.name}' does not require sessions")
    return call.queue.sessions


def _session(call: Call) -> Session:
    return _sessions(call).held_by(call.take("session-id", str), call.holder)


def _renew_session_lock(call: Call) -> Reply:
    until = _sessions(call).renew(_session(call), call.now)
    return Reply(200, _map(expiration=encode.timestamp(until)))


def _get_session_state(call: Call) -> Reply:
    state = _session(call).state
    return Reply(200, _map(session_state=encode.NULL if state is None else encode.binary(state)))


def _set_session_state(call: Call) -> Reply:
    session = _session(call)
    session.state = call.take("session-state", bytes, None)
    session.updated_at = call.now
    call.queue.namespace.journal.session_changed(call.queue, session)
    return Reply(200)


def _get_message_sessions(call: Call) -> Reply:
    updated_after = call.take("last-updated-time", int, None)
    skip, top = call.take("skip", int), call.take("top", int)
    with_messages = updated_after is None or updated_after / 1000 >= _YEAR_9999_S
    ids = [
        session.id
        for session in _sessions(call)
        if (
            session.count or session.state is not None
            if with_messages
            else session.updated_at * 1000 > (updated_after or 0)
        )
    ]
    page = ids[max(skip, 0) : max(skip, 0) + max(top, 0)]
    if not page:
        return Reply(204, encode.NULL, "No Content")
    names = encode.array([encode.long_string(name) for name in page])
    return Reply(200, _map(skip=encode.int32(skip + len(page)), sessions_ids=names))


_OPERATIONS: dict[str, Callable[[Call], Reply]] = {
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:peek-message": _peek,
    "com.microsoft:schedule-message": _schedule,
    "com.microsoft:cancel-scheduled-message": _cancel,
    "com.microsoft:receive-by-sequence-number": _receive_by_number,
    "com.microsoft:update-disposition": _update_disposition,
    "com.microsoft:renew-session-lock": _renew_session_lock,
    "com.microsoft:get-session-state": _get_session_state,
    "com.microsoft:set-session-state": _set_session_state,
    "com.microsoft:get-message-sessions": _get_message_sessions,
}
