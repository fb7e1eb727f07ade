"""What leaves the system: notifications (CloudEvents 1.0), alerts, rejected messages."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from sas.codec.strict import convert
from sas.domain.ids import key_time

CLOUDEVENTS_TYPE = "application/cloudevents+json"
EVENT_TYPE_PREFIX = "sas.order."
EVENT_TYPE_SUFFIX = ".v1"
PART_BYTES_MAX = 120 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Error(msgspec.Struct, frozen=True):
    """Why something failed: a code for programs, a sentence for people."""

    code: str
    message: str


class NotificationData(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The data of a notification. ``state`` is the order's ProcessState at the time.

    ``results`` (by step name) comes with *completed*; left out, with ``results_omitted`` set,
    where all together are over 64 KB; so is the ``result`` of *step-completed*. ``awaits`` comes
    with *failed*: ``undo`` where the order is being undone by itself (*undone* follows),
    ``operator`` where somebody must decide.
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
    """A CloudEvent 1.0 in structured JSON. ``correlationid`` is the application's own id.

    ``subject`` is the order's id; left out of a rejection whose order has none that can be one.
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
    """What an operator reads from ``operator-alerts``.

    A condition of the system, not of one order, has a ``scope`` and a ``since``; once it is over,
    ``cleared`` is the kind it had.
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


class RejectedMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message that could not be processed, kept whole on ``orders-rejected``.

    ``body`` is its text, or base64 where ``encoding`` says so. A large one is kept in
    ``parts`` messages, this being number ``part`` (from 1).
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


def event_type(notice: str) -> str:
    """Return the CloudEvents type of a notice."""
    return EVENT_TYPE_PREFIX + notice + EVENT_TYPE_SUFFIX


def notice_of(event: str) -> str:
    """Return the notice that a CloudEvents type names."""
    return event.removeprefix(EVENT_TYPE_PREFIX).removesuffix(EVENT_TYPE_SUFFIX)


def encode(message: Notification | AlertMessage | RejectedMessage) -> bytes:
    """Return the bytes of an outward message."""
    if isinstance(message, Notification) and not _can_be_attribute(message.subject):
        message = msgspec.structs.replace(message, subject=msgspec.UNSET)
    return msgspec.json.encode(message)


def _can_be_attribute(text: str | msgspec.UnsetType) -> bool:
    """Return whether CloudEvents allows the text: not empty, no control characters."""
    return text is msgspec.UNSET or bool(text and not _CONTROL.search(text))


def decode_notification(body: bytes) -> Notification:
    """Return the notification an application was sent.

    Raises:
        MalformedError: the body is none.
    """
    return convert(body, Notification)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A message that cannot be processed, and what is known of it."""

    body: bytes
    reason: str
    description: str
    source_queue: str
    message_id: str
    order_id: str | None = None
    correlation_id: str | None = None


def rejected_parts(rejection: Rejection, *, at: datetime, id_base: str) -> list[RejectedMessage]:
    """Return the message or messages that keep a rejected body whole."""
    body = rejection.body
    try:
        text, encoding = body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    # One character may take six bytes once it is escaped inside JSON.
    size = PART_BYTES_MAX // 6 if len(body) > PART_BYTES_MAX // 6 else max(len(text), 1)
    pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    return [
        RejectedMessage(
            reason=rejection.reason,
            description=rejection.description,
            source_queue=rejection.source_queue,
            at=key_time(at),
            id=f"{id_base}/{number}",
            body=piece,
            encoding=encoding,
            part=number,
            parts=len(pieces),
            order_id=rejection.order_id,
            correlation_id=rejection.correlation_id,
            message_id=rejection.message_id,
        )
        for number, piece in enumerate(pieces, 1)
    ]
