"""The messages between scheduler, agents, the callback endpoint and the operator.

Versions run side by side. A version that changes these messages raises the format number: older
instances put such a message back, and a newer one takes it.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sas.bounds import (
    EDITED_UNITS_MAX,
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    RESULT_INLINE_BYTES_MAX,
    utf16_units,
)
from sas.codec.strict import (
    CONTENT_DEPTH_MAX,
    PLAIN,
    MalformedError,
    Reason,
    check_depth,
    convert,
    parse,
)
from sas.domain.content import Content, PayloadRef
from sas.domain.ids import check_order_id, reply_id
from sas.domain.messages import Command, Outcome, Progress, Reply, Verb
from sas.domain.order import Direction, Fault
from sas.domain.workflow import TIME_ALLOWED_MAX
from sas.ports import FORMAT, check_format

INLINE_BYTES_MAX = 160 * 1024
"""Largest request body that carries the order. Above it, the agent reads the store."""

REASON_LENGTH_MAX: Final = 500
"""Most characters of an operator's reason."""
Part = msgspec.Raw | UnsetType
"""JSON that is passed on unchanged; UNSET if the member is absent."""


class Kind(StrEnum):
    """The kinds of internal messages, as their member ``kind`` has them."""

    WAKE = "wake"
    COMMAND = "command"
    REQUEST = "request"
    REPLY = "reply"
    PROGRESS = "progress"
    CALLBACK = "callback"


class Envelope(
    msgspec.Struct, frozen=True, tag_field="kind", kw_only=True, forbid_unknown_fields=True
):
    """The members of every internal message: format number, message id and order id.

    The number comes from a factory, so that ``omit_defaults`` never drops it.
    """

    format: int = msgspec.field(default_factory=lambda: FORMAT)
    id: str
    order_id: str


class FaultBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a remote service refused a call."""

    code: str
    message: str


class PayloadRefBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to a payload in the store: see ``StateStore.get_payload``."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=PAYLOAD_BYTES_MAX)]
    chunks: Annotated[int, msgspec.Meta(ge=1, le=99)]


class WakeMessage(Envelope, tag=Kind.WAKE.value, frozen=True, kw_only=True):
    """To the scheduler: process this order. ``seq`` is the journal seq that it was sent at."""

    seq: int


class CommandMessage(
    Envelope, tag=Kind.COMMAND.value, frozen=True, kw_only=True, omit_defaults=True
):
    """To the scheduler: an operator's command. ``id`` is unique to the command.

    ``seq`` is the journal seq that the operator saw. Only cancel may omit it. ``step`` limits
    resubmit and skip to one failed step, and names the step that a callback ends. ``input`` is
    JSON: a resubmitted step gets it instead of the order, and a step that is skipped or ended has
    it as its result. ``error`` is why a callback refuses its step. ``reason`` is the operator's
    own, for the journal.
    """

    verb: Literal["resubmit", "skip", "undo", "cancel", "acknowledge", "callback"]
    by: Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=PLAIN)]
    seq: int | None = None
    step: str | None = None
    input: Part = UNSET
    error: FaultBody | None = None
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)] = ""


class RequestMessage(
    Envelope, tag=Kind.REQUEST.value, frozen=True, kw_only=True, omit_defaults=True
):
    """To an agent: do or undo one step.

    ``generation`` counts the inputs that an operator edited; an undo covers all of them.
    ``urgent`` is the lane. Large content travels as a reference (``order_ref``, ``result_refs``,
    ``own_result_ref``). If ``order`` and ``order_ref`` are both absent, all of it together was too
    large: then the agent reads the order from the store, and the results of the steps that
    ``results`` names. ``submission`` differs from that of a later order with the same id, and
    callbacks are bound to it. ``time_allowed`` is the step's, in seconds. ``checks`` counts how
    often the agent was called again to check remote work. ``seq`` is the journal seq that it was
    sent at; the reply carries it too.
    """

    workflow: str
    step: int
    step_name: str
    direction: Literal["do", "undo"]
    epoch: int
    complete_by: Annotated[datetime, msgspec.Meta(tz=True)]
    idempotency_key: str
    submission: str
    time_allowed: Annotated[float, msgspec.Meta(gt=0, le=TIME_ALLOWED_MAX.total_seconds())]
    seq: int
    generation: int = 0
    order: Part = UNSET
    order_ref: PayloadRefBody | None = None
    results: dict[str, msgspec.Raw] = {}
    result_refs: dict[str, PayloadRefBody] = {}
    own_result: Part = UNSET
    own_result_ref: PayloadRefBody | None = None
    checks: Annotated[int, msgspec.Meta(ge=0)] = 0
    urgent: bool = False


class ReplyMessage(Envelope, tag=Kind.REPLY.value, frozen=True, kw_only=True, omit_defaults=True):
    """To the scheduler: an agent's reply. ``result_ref`` replaces a large ``result``. ``seq`` is
    that of the request.
    """

    step: int
    direction: Literal["do", "undo"]
    epoch: int
    outcome: Literal["done", "refused", "waited"]
    seq: int
    result: Part = UNSET
    result_ref: PayloadRefBody | None = None
    error: FaultBody | None = None


class ProgressMessage(
    Envelope, tag=Kind.PROGRESS.value, frozen=True, kw_only=True, omit_defaults=True
):
    """To the scheduler: the step goes on, and its agent asks for this CompleteBy."""

    step: int
    direction: Literal["do", "undo"]
    epoch: int
    complete_by: Annotated[datetime, msgspec.Meta(tz=True)]
    note: Annotated[str, msgspec.Meta(max_length=Progress.NOTE_LENGTH_MAX)] = ""
    awaits: bool = False


class CallbackMessage(
    Envelope, tag=Kind.CALLBACK.value, frozen=True, kw_only=True, omit_defaults=True
):
    """From the callback endpoint: how a step ended, as an event from outside says.

    The endpoint has checked the token; these are its claims. ``submission`` differs from that of a
    later order with the same id. ``generation`` names the key of the step, as in a request.
    ``expires_at`` is the end of the token. ``result_ref`` replaces a large ``result``.
    """

    submission: str
    step: int
    direction: Literal["do", "undo"]
    generation: int
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)]
    outcome: Literal["done", "refused"]
    result: Part = UNSET
    result_ref: PayloadRefBody | None = None
    error: FaultBody | None = None


ForScheduler = WakeMessage | CommandMessage | ReplyMessage | ProgressMessage | CallbackMessage
Internal = ForScheduler | RequestMessage
EnvelopeT = TypeVar("EnvelopeT", bound=Envelope)


def decode(body: bytes, kind: type[EnvelopeT]) -> EnvelopeT:
    """Return an internal message of this kind, or of one kind of a union.

    Raises:
        MalformedError: the body is not such a message, or its order id is invalid.
        OtherVersionError: its format is newer.
    """
    _check_format(parse(body))
    message = convert(body, kind)
    try:
        check_order_id(message.order_id)
    except ValueError as error:
        raise MalformedError(Reason.INVALID_ORDER_ID, str(error)) from None
    if not 0 < len(message.id) <= 200:
        raise MalformedError(Reason.INVALID, "the member 'id' is empty or has over 200 characters")
    return message


def decode_for_scheduler(body: bytes) -> ForScheduler:
    """Return a message of the queue ``scheduler``; raises as ``decode``."""
    kinds: Any = ForScheduler
    message: ForScheduler = decode(body, kinds)
    return message


def _check_format(value: object) -> None:
    """Check the format number first, because a newer message may differ in everything else."""
    if not isinstance(value, dict):
        return
    try:
        check_format(value.get("format"), "an internal message")
    except ValueError as error:
        raise MalformedError(Reason.INVALID, str(error)) from None


def encode(message: Internal) -> bytes:
    """Return the bytes of an internal message."""
    return msgspec.json.encode(message)


def to_reply(message: ReplyMessage) -> Reply:
    """Return an agent's reply as an object of the domain."""
    result = content_of(message.result, message.result_ref)
    check_result(result)
    fault = Fault(message.error.code, message.error.message) if message.error else None
    return Reply(
        order_id=message.order_id,
        step=message.step,
        direction=Direction(message.direction),
        epoch=message.epoch,
        outcome=Outcome(message.outcome),
        result=result,
        fault=fault,
    )


def from_reply(reply: Reply, seq: int) -> ReplyMessage:
    """Return the message of an agent's reply. Every repeat has the same id.

    ``seq`` is the journal seq that the request was sent at.
    """
    return ReplyMessage(
        id=reply_id(reply.order_id, reply.step, reply.direction.value, reply.epoch),
        order_id=reply.order_id,
        step=reply.step,
        direction=reply.direction.value,
        epoch=reply.epoch,
        outcome=reply.outcome.value,
        result=inline(reply.result),
        result_ref=to_ref_body(reply.result),
        error=FaultBody(reply.fault.code, reply.fault.message) if reply.fault else None,
        seq=seq,
    )


def to_progress(message: ProgressMessage) -> Progress:
    """Return an agent's progress report as an object of the domain."""
    return msgspec.convert(message, Progress, from_attributes=True)


def from_progress(progress: Progress, message_id: str) -> ProgressMessage:
    """Return the message of an agent's progress report."""
    members = asdict(progress) | {"direction": progress.direction.value}
    return ProgressMessage(id=message_id, **members)


def to_command(message: CommandMessage) -> Command:
    """Return an operator's command as an object of the domain.

    Raises:
        MalformedError: its input is too large or nests too deep.
    """
    edited = text_of(message.input)
    if edited is not None and utf16_units(edited) > EDITED_UNITS_MAX:
        raise MalformedError(
            Reason.TOO_LARGE, f"the input of a command is at most {EDITED_UNITS_MAX:,} characters"
        )
    check_depth(edited or "", CONTENT_DEPTH_MAX)
    return Command(
        command_id=message.id,
        order_id=message.order_id,
        verb=Verb(message.verb),
        seq=message.seq,
        by=message.by,
        step=message.step,
        input=edited,
        fault=Fault(message.error.code, message.error.message) if message.error else None,
        reason=message.reason,
    )


def raw(text: str | None) -> Part:
    """Return JSON text as a part of a message; UNSET for None."""
    return msgspec.Raw(text.encode()) if text is not None else UNSET


def inline(content: Content | None) -> Part:
    """Return content as a part of a message; UNSET for None and for a reference."""
    return raw(content) if isinstance(content, str) else UNSET


def to_ref_body(content: Content | None) -> PayloadRefBody | None:
    """Return the body of a payload reference; None for content that is not a reference."""
    if not isinstance(content, PayloadRef):
        return None
    return PayloadRefBody(content.sha256, content.size, content.chunks)


def from_ref_body(ref: PayloadRefBody) -> PayloadRef:
    """Return a payload reference as an object of the domain."""
    return PayloadRef(ref.sha256, ref.size, ref.chunks)


def content_of(part: Part, ref: PayloadRefBody | None) -> Content | None:
    """Return the content of a member or of the reference beside it; None if both are absent."""
    return text_of(part) if ref is None else from_ref_body(ref)


def check_result(result: Content | None, inline_bytes_max: int = RESULT_INLINE_BYTES_MAX) -> None:
    """Raise MalformedError for a result that is too large for a reply or a callback."""
    if isinstance(result, PayloadRef):
        size, bytes_max = result.size, RESULT_BYTES_MAX
    else:
        size, bytes_max = len((result or "").encode()), inline_bytes_max
    if size > bytes_max:
        raise MalformedError(
            Reason.RESULT_TOO_LARGE, f"a step's result is at most {bytes_max:,} bytes of JSON here"
        )


def text_of(part: Part) -> str | None:
    """Return the JSON text of a part of a message; None if it is absent."""
    return None if isinstance(part, UnsetType) else bytes(part).decode()
