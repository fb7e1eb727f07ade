"""Messages to the outside: notifications (CloudEvents 1.0), alerts and rejected messages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

import msgspec

from sas.codec.strict import PLAIN, convert
from sas.domain.ids import key_time
from sas.domain.messages import Notice

CLOUDEVENTS_TYPE = "application/cloudevents+json"
EVENT_TYPE_PREFIX = "sas.order."
EVENT_TYPE_SUFFIX = ".v1"
KEPT_BYTES_MAX = 64 * 1024
"""So much of the body of an application's message is kept, in bytes."""
WHOLE_BYTES_MAX = 176 * 1024
"""So much of a body is kept of a message inside the system, in bytes: all of it, because none is
longer. In base64 it still fits into one message.
"""


class Error(msgspec.Struct, frozen=True):
    """Why something failed: a code for programs, a sentence for people."""

    code: str
    message: str


class NotificationData(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The data of a notification. ``state`` is the order's ProcessState at that time.

    *completed* has ``results``, by step name, and *step-completed* has ``result``. Over 64 KB in
    all they are left out, and ``results_omitted`` is set. *failed* has ``awaits``: ``undo`` if the
    order is being undone (*undone* follows), ``operator`` if an operator must decide.
    """

    order_id: str
    state: str
    workflow: str | None = None
    version: int | None = None
    correlation_id: str | None = None
    seq: int | None = None
    step: str | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    results: dict[str, msgspec.Raw] | None = None
    results_omitted: bool = False
    error: Error | None = None
    awaits: Literal["undo", "operator"] | None = None
    duplicate: bool = False


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """A CloudEvent 1.0 in structured JSON. ``correlationid`` is the id that the application gave.

    ``subject`` is the order id. A rejection without a valid order id has no subject.
    """

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str | msgspec.UnsetType = msgspec.UNSET
    time: str
    datacontenttype: str = "application/json"
    correlationid: str | msgspec.UnsetType = msgspec.UNSET
    data: NotificationData


class AlertMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message for the operator, on ``operator-alerts``.

    The alert of an incident has a ``scope`` and a ``since`` and no order. When the incident ends,
    ``cleared`` is its kind. The alert of a step has its ``agent`` where that is known, its
    ``attempts`` (how often it was dispatched) and its ``error``; that of a circuit or of steps that
    wait has the ``agent`` at fault. Alerts with the same kind, workflow and ``fingerprint`` have
    one cause: ``step/code``, or ``queue/reason`` of a message that was put aside. ``command`` is
    what to run first (``sas.engine.messages``).
    """

    kind: str
    at: str
    text: str
    id: str
    order_id: str | None = None
    step: str | None = None
    workflow: str | None = None
    seq: int | None = None
    scope: str | None = None
    since: str | None = None
    cleared: str | None = None
    agent: str | None = None
    attempts: int | None = None
    error: Error | None = None
    fingerprint: str | None = None
    command: str | None = None


class RejectedMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message that could not be processed, on ``orders-rejected``.

    ``body`` is its text, or base64 as ``encoding`` says. If only its first bytes were kept,
    ``size`` (in bytes) and ``sha256`` are those of the whole. Versions before split a large message
    into ``parts`` messages; ``part`` counts from 1.
    """

    reason: str
    description: str
    source_queue: str
    at: str
    id: str
    body: str
    encoding: str = "utf-8"
    part: int = 1
    parts: int = 1
    order_id: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    size: int | None = None
    sha256: str | None = None


def event_type(notice: Notice) -> str:
    """Return the CloudEvents type of a kind of notification."""
    return EVENT_TYPE_PREFIX + notice.value + EVENT_TYPE_SUFFIX


def notice_of(event: str) -> str:
    """Return the kind of notification of a CloudEvents type."""
    return event.removeprefix(EVENT_TYPE_PREFIX).removesuffix(EVENT_TYPE_SUFFIX)


def encode(message: Notification | AlertMessage | RejectedMessage) -> bytes:
    """Return the bytes of a message to the outside."""
    # CloudEvents allows no attribute that is empty or has control characters.
    if isinstance(message, Notification) and not re.match(PLAIN, message.subject or "\0"):
        message = msgspec.structs.replace(message, subject=msgspec.UNSET)
    return msgspec.json.encode(message)


def decode_notification(body: bytes) -> Notification:
    """Return the notification in a message to an application.

    Raises:
        MalformedError: the body is not a notification.
    """
    return convert(body, Notification)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A message that cannot be processed, and what is known about it."""

    body: bytes
    reason: str
    description: str
    source_queue: str
    message_id: str
    order_id: str | None = None
    correlation_id: str | None = None


def rejected_body(parts: Sequence[RejectedMessage]) -> bytes:
    """Return the body that all parts of a rejected message hold together, as it was sent."""
    text = "".join(part.body for part in sorted(parts, key=lambda part: part.part))
    return base64.b64decode(text) if parts[0].encoding == "base64" else text.encode()


def rejected_message(
    rejection: Rejection, *, at: datetime, own_id: str, bytes_max: int = KEPT_BYTES_MAX
) -> RejectedMessage:
    """Return the message that keeps a rejected body, or its first ``bytes_max`` bytes."""
    start = rejection.body[:bytes_max]
    is_cut = len(start) < len(rejection.body)
    try:
        rejection.body.decode()
        text, encoding = start.decode(errors="ignore"), "utf-8"  # a cut may split a character
    except UnicodeDecodeError:
        text, encoding = "", "base64"
    # A character that JSON escapes may take six bytes.
    if encoding == "base64" or len(msgspec.json.encode(text)) > bytes_max * 4 // 3:
        text, encoding = base64.b64encode(start).decode(), "base64"
    members = asdict(rejection) | {"at": key_time(at), "body": text, "encoding": encoding}
    if is_cut:
        digest = hashlib.sha256(rejection.body).hexdigest()
        members |= {"size": len(rejection.body), "sha256": digest}
    return RejectedMessage(id=own_id, **members)
