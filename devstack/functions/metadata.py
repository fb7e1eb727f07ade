"""Convert Service Bus messages to what the Functions host gives the worker, and back.

A message becomes a datum and trigger metadata. Names and types are those of the 5.x extension
(ServiceBusTriggerBindingStrategy) and of the host's gRPC conversion. Nulls are left out, `*Utc`
times have no zone, and numbers and dictionaries travel as JSON. In a batch, sequence numbers are a
collection, and *empty strings are dropped from string arrays*. So an optional column such as
CorrelationIdArray can be shorter than the batch. The azure-functions converters turn all this into
what a function sees in Azure.
"""

import base64
import json
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from azure.functions.meta import Datum
from azure.functions.servicebus import ServiceBusMessage as FunctionMessage
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from devstack.functions.settings import InvocationError

Metadata = dict[str, Datum]
Input = tuple[Datum, Mapping[str, Datum]]

_FIELDS = (
    "dead_letter_source", "lock_token", "message_id", "content_type", "reply_to", "to", "subject",
    "label", "correlation_id", "session_id", "reply_to_session_id", "partition_key",
)  # fmt: skip
_GET = {name: attrgetter("subject" if name == "label" else name) for name in _FIELDS}
_STRINGS = {name.title().replace("_", ""): get for name, get in _GET.items()}
_TIMES = {
    "EnqueuedTime": attrgetter("enqueued_time_utc"),
    "ExpiresAt": attrgetter("expires_at_utc"),
}
_NEVER = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


class MessageMetadata(UserDict[str, Datum]):
    """The metadata of one message. It is made on first use, because most functions read none."""

    def __init__(self, message: ServiceBusReceivedMessage) -> None:  # `data` is made on first use
        self._message = message

    @cached_property
    def data(self) -> Metadata:  # type: ignore[override]  # UserDict sets it at once
        """Every datum by its name."""
        message = self._message
        metadata: Metadata = {
            name: Datum(value, "string")
            for name, get in _STRINGS.items()
            if (value := _text(get(message))) is not None
        }
        for name, get in _TIMES.items():
            utc, offset = _times(get(message))
            metadata[f"{name}Utc"], metadata[name] = _json(utc), _json(offset)
        metadata["DeliveryCount"] = _json(delivery_count(message))
        metadata["SequenceNumber"] = _json(message.sequence_number or 0)
        properties = _json(_application_properties(message))
        metadata["ApplicationProperties"] = metadata["UserProperties"] = properties
        return metadata

    def decoded(self, body: bytes) -> FunctionMessage:
        """The message that the azure-functions converter would make of this metadata and `body`.

        Here it is made directly, because the converter parses JSON and calls strptime 26 times.
        """
        message = self._message
        texts: Any = {name: _text(get(message)) for name, get in _GET.items()}
        return FunctionMessage(
            body=body,
            trigger_metadata=self,
            application_properties=_application_properties(message),
            user_properties=_application_properties(message),
            delivery_count=delivery_count(message),
            sequence_number=message.sequence_number or 0,
            enqueued_time_utc=_naive(message.enqueued_time_utc),
            expires_at_utc=_naive(message.expires_at_utc),
            **texts,
        )


def single(message: ServiceBusReceivedMessage, *, binary: bool) -> Input:
    """The datum and metadata of one message (cardinality one)."""
    body, metadata = body_bytes(message), MessageMetadata(message)
    if binary:
        return Datum(body, "bytes"), metadata
    text, overridden = decode_text(body), dict(metadata)
    override(overridden, text)
    return Datum(text, "string"), overridden


def batch(messages: Sequence[ServiceBusReceivedMessage], *, binary: bool) -> Input:
    """The datum and metadata of a batch (cardinality many)."""
    metadata: Metadata = {
        f"{name}Array": _strings([_text(get(m)) for m in messages])
        for name, get in _STRINGS.items()
    }
    for name, get in _TIMES.items():
        pairs = [_times(get(m)) for m in messages]
        metadata[f"{name}UtcArray"] = _json([utc for utc, _ in pairs])
        metadata[f"{name}Array"] = _json([offset for _, offset in pairs])
    metadata["DeliveryCountArray"] = _json([delivery_count(m) for m in messages])
    numbers = SimpleNamespace(sint64=[m.sequence_number or 0 for m in messages])
    metadata["SequenceNumberArray"] = Datum(numbers, "collection_sint64")
    properties = _json([_application_properties(m) for m in messages])
    metadata["ApplicationPropertiesArray"] = metadata["UserPropertiesArray"] = properties
    bodies = [body_bytes(m) for m in messages]
    if binary:
        return Datum(SimpleNamespace(bytes=bodies), "collection_bytes"), metadata
    return _strings([decode_text(body) for body in bodies]), metadata


def override(metadata: Metadata, body: str) -> None:
    """Replace metadata by the members of `body`, if this is a JSON object.

    The Functions host does so too. Names are compared without case. Arrays and nulls are skipped,
    objects stay JSON, and other values become .NET strings (`True`, not `true`). So a function must
    not trust metadata, because a body can forge it.
    """
    text = body.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return
    try:
        members = json.loads(text, parse_float=str, parse_int=str)
        # Parse again if there are objects, because a number inside an object stays a number.
        objects = json.loads(text) if any(isinstance(v, dict) for v in members.values()) else {}
    except (ValueError, RecursionError):  # the Functions host ignores errors here too
        return
    names_by_lower = {name.lower(): name for name in metadata}
    for member, value in members.items():
        if value is None or isinstance(value, list):
            continue
        name = names_by_lower.setdefault(member.lower(), member)
        is_object = isinstance(value, dict)
        metadata[name] = _json(objects[member]) if is_object else Datum(str(value), "string")


def body_bytes(message: ServiceBusReceivedMessage) -> bytes:
    """The body as bytes: joined data sections, a string as UTF-8, or another value as JSON."""
    body = message.body
    if isinstance(body, bytes):
        return body
    if body is None or isinstance(body, str):
        return (body or "").encode()
    parts = list(body) if isinstance(body, Iterator) else body
    if isinstance(parts, list) and all(isinstance(part, bytes) for part in parts):
        return b"".join(parts)
    return json.dumps(_plain(parts)).encode()


def decode_text(body: bytes) -> str:
    """Bytes as text. Bytes that are not UTF-8 are replaced, as in the Functions host."""
    return body.decode("utf-8", errors="replace")


def delivery_count(message: ServiceBusReceivedMessage) -> int:
    """The delivery count from 1, as .NET counts; the Python SDK counts from 0."""
    return (message.delivery_count or 0) + 1


def outgoing(datum: Datum) -> list[ServiceBusMessage]:
    """The messages of a datum, or raise InvocationError. Each element of a list is one message."""
    if datum.type == "list":
        bodies = [v if isinstance(v, str | bytes) else json.dumps(v) for v in datum.value]
        return [_message(body) for body in bodies]
    if datum.type == "dict":
        return [ServiceBusMessage(json.dumps(datum.value), content_type="application/json")]
    if datum.type in {"string", "bytes"}:
        return [_message(datum.value)]
    raise InvocationError(f"{datum.type} data cannot become a message: use str or bytes.")


def _message(body: str | bytes) -> ServiceBusMessage:
    kind = "text/plain" if isinstance(body, str) else "application/octet-stream"
    return ServiceBusMessage(body, content_type=kind)


def _application_properties(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    properties: Mapping[Any, Any] = message.application_properties or {}
    return {_text(key) or "": _plain(value) for key, value in properties.items()}


def _plain(value: Any) -> Any:
    """A value in the form that it has in the JSON of the Functions host."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {_text(key) or "": _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()  # pyamqp gives strings and symbols as bytes
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _times(moment: datetime | None) -> tuple[str, str]:
    stamp = _naive(moment).isoformat()
    return stamp, f"{stamp}+00:00"


def _naive(moment: datetime | None) -> datetime:
    return (moment or _NEVER).astimezone(UTC).replace(tzinfo=None)


def _json(value: Any) -> Datum:
    return Datum(json.dumps(value), "json")


def _strings(values: Sequence[str | None]) -> Datum:
    return Datum(SimpleNamespace(string=[value for value in values if value]), "collection_string")
