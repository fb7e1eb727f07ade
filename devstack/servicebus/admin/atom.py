"""The Atom/XML of the management API: writes queues as entries, reads entries as properties.

Namespaces and names are those of the service. The element QueueDescription declares its namespace
itself, because the SDK's deserializer expects that.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Queue
from devstack.servicebus.tokens import path_of
from devstack.servicebus.wire.server import QueueCounts

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"
_READ_ONLY = {
    "AccessedAt",
    "AuthorizationRules",
    "CountDetails",
    "CreatedAt",
    "EntityAvailabilityStatus",
    "MessageCount",
    "SizeInBytes",
    "UpdatedAt",
}


def read_description(body: bytes) -> QueueProperties:
    """Read the QueueDescription of an entry. Raises ValueError with a sentence."""
    if b"<!DOCTYPE" in body:
        raise ValueError("a queue's description has no document type; leave it out")
    try:
        root = ET.fromstring(body)  # noqa: S314 (bounded, and no document type to expand)
    except ET.ParseError as error:
        raise ValueError(f"the body is not XML ({error}); send an Atom entry") from None
    description = root.find(f".//{{{CONNECT}}}QueueDescription")
    if description is None:
        raise ValueError("the body has no QueueDescription; this broker serves queues only")
    properties: dict[str, Any] = {}
    for element in description:
        name = element.tag.rpartition("}")[2]
        if name not in _READ_ONLY and element.text is not None:
            properties[name] = _value(name, element.text)
    return QueueProperties.from_official(properties)


def _value(name: str, text: str) -> Any:
    if name in {"ForwardTo", "ForwardDeadLetteredMessagesTo"}:
        return path_of(text)
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return text


def queue_entry(queue: Queue, counts: QueueCounts, address: str) -> str:
    """Write one queue as an Atom entry; ``address`` is the base of its id."""
    return (
        f'<entry xmlns="{ATOM}"><id>{escape(address)}/{escape(queue.name)}</id>'
        f'<title type="text">{escape(queue.name)}</title>'
        f"<published>{moment(queue.created_at)}</published>"
        f"<updated>{moment(queue.updated_at)}</updated>"
        "<author><name>devstack</name></author>"
        f'<content type="application/xml">{_description(queue, counts)}</content></entry>'
    )


def _description(queue: Queue, counts: QueueCounts) -> str:
    fields = {name: value for name, value in queue.properties.to_official().items() if value != ""}
    fields |= {
        "SizeInBytes": counts.size_bytes,
        "MessageCount": counts.total,
        "CreatedAt": moment(queue.created_at),
        "UpdatedAt": moment(queue.updated_at),
        "AccessedAt": moment(queue.accessed_at),
        "EntityAvailabilityStatus": "Available",
        "AutoDeleteOnIdle": "P10675199DT2H48M5.4775807S",
        "EnableBatchedOperations": True,
        "EnablePartitioning": False,
        "EnableExpress": False,
    }
    details = {
        "ActiveMessageCount": counts.active,
        "DeadLetterMessageCount": counts.dead_letter,
        "ScheduledMessageCount": counts.scheduled,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": counts.transfer_dead_letter,
    }
    counts_xml = "".join(f"<c:{name}>{value}</c:{name}>" for name, value in details.items())
    fields_xml = "".join(f"<{name}>{_text(value)}</{name}>" for name, value in fields.items())
    return (
        f'<QueueDescription xmlns="{CONNECT}">{fields_xml}'
        f'<CountDetails xmlns:c="{COUNTS}">{counts_xml}</CountDetails></QueueDescription>'
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(str(value))


def feed(title: str, address: str, entries: Iterable[str]) -> bytes:
    """Write a feed of entries. The service answers with an empty feed if a queue is missing."""
    return (
        f'<feed xmlns="{ATOM}"><id>{escape(address)}</id><title type="text">{title}</title>'
        f"<updated>{moment(datetime.now(UTC).timestamp())}</updated>"
        f"{''.join(entries)}</feed>"
    ).encode()


def error(status: int, detail: str) -> bytes:
    """Write an error in the form that the SDK reads."""
    return f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>".encode()


def moment(seconds: float) -> str:
    """Write seconds since 1970 in the form of the API."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
