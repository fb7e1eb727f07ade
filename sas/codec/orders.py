"""The order message of an application: the public contract of the ``orders`` queue.

No member may have the name of a Service Bus metadata field, in any case of letters, because the
Functions host lets a JSON body override these fields. A test checks it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from sas.bounds import PAYLOAD_BYTES_MAX
from sas.codec.strict import (
    PLAIN,
    SALVAGE_DEPTH_MAX,
    MalformedError,
    Reason,
    canonical,
    check_depth,
    convert,
    parse,
)
from sas.domain.ids import InvalidIdError, check_new_order_id

MESSAGE_BYTES_DEFAULT = 256 * 1024
"""Default of SAS_MESSAGE_BYTES_MAX: the largest message of Service Bus Standard, with its headers
and properties.
"""
PUT_BACK_BYTES = 4 * 1024
"""Room for headers and properties. A message that is put back carries more of them than its sender
gave it: its first MessageId, when it came, and its trace. A dead letter also carries its reason.
"""
ORDER_BYTES_MAX = MESSAGE_BYTES_DEFAULT - PUT_BACK_BYTES
"""The largest body of an order message, by default: a message that is put back must fit."""
ORDER_BYTES_LIMIT = PAYLOAD_BYTES_MAX
"""The largest body of an order message with Premium, because the store takes no larger content."""
ID_LENGTH_MAX = 128
# CloudEvents and AMQP carry these ids as attributes, which allow no control characters.
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX, pattern=PLAIN)]
_UNREADABLE = re.compile("[\ud800-\udfff\ufffd]")


class OrderMessage(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, kw_only=True
):
    """One order, as it is on the ``orders`` queue.

    ``order`` is the content for the business. ``submission_id`` is the same for repeats of one
    submission; without it the MessageId is used. Without ``workflow_version`` the newest version
    is used.
    """

    order_id: str
    workflow: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    reply_queue: Annotated[str, msgspec.Meta(min_length=1, max_length=260)]
    order: msgspec.Raw
    correlation_id: _Id | None = None
    submission_id: _Id | None = None
    workflow_version: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A valid order message. ``payload`` is the JSON of the order exactly as it was sent."""

    order_id: str
    workflow: str
    version: int | None
    reply_queue: str
    correlation_id: str | None
    submission_id: str
    payload: str
    content_hash: str


@dataclass(frozen=True, slots=True)
class Salvage:
    """The parts of a refused message that could be read, to notify its sender."""

    order_id: str | None = None
    reply_queue: str | None = None
    correlation_id: str | None = None


def parse_order(
    body: bytes, message_id: str | None, bytes_max: int = ORDER_BYTES_MAX
) -> Submission:
    """Return the submission of an order message.

    Raises:
        MalformedError: with a reason and a sentence that says what to change.
    """
    if len(body) > bytes_max:
        raise MalformedError(
            Reason.TOO_LARGE,
            f"the message has {len(body):,} bytes, at most {bytes_max:,} are accepted: "
            "store large parts elsewhere and send a reference to them in the order",
        )
    value = parse(body)
    if not isinstance(value, dict):
        raise MalformedError(Reason.INVALID, "the body is not a JSON object: send an order message")
    message = convert(body, OrderMessage)
    if not isinstance(value["order"], dict):
        raise MalformedError(Reason.INVALID, "Expected `object` - at `$.order`")
    try:
        check_new_order_id(message.order_id)
    except InvalidIdError as error:
        raise MalformedError(Reason.INVALID_ORDER_ID, str(error)) from None
    digest = content_hash(message.workflow, message.reply_queue, value["order"])
    return Submission(
        order_id=message.order_id,
        workflow=message.workflow,
        version=message.workflow_version,
        reply_queue=message.reply_queue,
        correlation_id=message.correlation_id,
        # A body cannot override the MessageId: no member has the name of a metadata field.
        submission_id=message.submission_id or message_id or digest,
        payload=bytes(message.order).decode("utf-8"),
        content_hash=digest,
    )


def with_submission_id(body: bytes, submission_id: str) -> bytes:
    """Return an order message as another submission; other content stays as it is."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    return msgspec.json.encode({**members, "submission_id": submission_id})


def content_hash(workflow: str, reply_queue: str, order: Any) -> str:
    """Return a hash that is equal for the same order, and differs for another with the same id.

    ``correlation_id`` and ``submission_id`` belong to the message, not to the order.
    """
    return hashlib.sha256(canonical([workflow, reply_queue, order]).encode()).hexdigest()


def salvage(body: bytes) -> Salvage:
    """Return the parts of a refused message that can be read; never raises.

    It accepts more than ``parse``, so that a sender whose order holds a NaN or a member twice can
    be notified.
    """
    text = body[: 2 * ORDER_BYTES_LIMIT].decode("utf-8", "replace")
    try:
        check_depth(text, SALVAGE_DEPTH_MAX)
        # Numbers are not needed, and len is cheap.
        value = json.loads(text, parse_int=len, parse_float=len)
    except ValueError:
        return Salvage()
    if not isinstance(value, dict):
        return Salvage()
    correlation_id = _readable(value.get("correlation_id"), ID_LENGTH_MAX)
    return Salvage(
        order_id=_readable(value.get("order_id"), 260),
        reply_queue=_readable(value.get("reply_queue"), 260),
        correlation_id=correlation_id if re.match(PLAIN, correlation_id or "") else None,
    )


def _readable(value: object, length_max: int) -> str | None:
    """Return a text that can be read and written again without loss; else None."""
    if not isinstance(value, str) or not 0 < len(value) <= length_max:
        return None
    return None if _UNREADABLE.search(value) else value


def encode_order(message: OrderMessage) -> bytes:
    """Return the bytes of an order message, for ``parse_order``."""
    return msgspec.json.encode(message)
