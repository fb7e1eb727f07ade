"""The messages between scheduler, agents and operator: versioned, unknown members refused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

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

INLINE_BYTES_MAX = 160 * 1024
"""A request body up to here carries the order; beyond it, its agent reads it from the store."""

Part = msgspec.Raw | UnsetType
"""JSON carried as it is; UNSET where the member is absent."""


def _version() -> Literal[1]:
    return 1


class Envelope(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", kw_only=True
):
    """What every internal message has: its version, its own id and the order it is about.

    The version is always written (a factory, so that ``omit_defaults`` never drops it): a
    later version's reader must not take an old message for its own.
    """

    v: Literal[1] = msgspec.field(default_factory=_version)
    id: str
    order_id: str


class PayloadRefBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What stands for content kept apart from its order: see ``StateStore.get_payload``."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=PAYLOAD_BYTES_MAX)]
    chunks: Annotated[int, msgspec.Meta(ge=1, le=99)]


class WakeMessage(Envelope, tag="wake", frozen=True, kw_only=True):
    """To the scheduler: look at this order."""


class CommandMessage(Envelope, tag="command", frozen=True, kw_only=True, omit_defaults=True):
    """To the scheduler, from an operator. ``id`` is unique to the wish.

    ``seq`` is the journal seq the operator saw; absent only to cancel. ``step`` limits resubmit
    and skip to one failed step; ``input`` is the JSON that a resubmitted step gets instead of
    the order, or that stands in for a skipped step's result.
    """

    verb: Literal["resubmit", "skip", "undo", "cancel", "acknowledge"]
    by: Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=PLAIN)]
    seq: int | None = None
    step: str | None = None
    input: Part = UNSET


class RequestMessage(Envelope, tag="request", frozen=True, kw_only=True, omit_defaults=True):
    """To an agent: do or undo one step.

    ``generation`` counts the inputs an operator has edited: an undo covers every one.
    ``alternative`` is the agent's name where it is not the step's first. ``urgent`` names the lane.
    What is large is not carried: a reference stands for it (``order_ref``, ``result_refs``,
    ``own_result_ref``). ``order`` and ``order_ref`` both absent mean that all together did not
    fit: read the order from the state store, and the results of the steps that ``results`` names
    (its own among them, if it is to have that).
    ``submission`` tells its order from a later one under the same id: callbacks are bound to it.
    ``time_allowed`` is the step's, in seconds; ``checks`` counts how often the agent has put it
    back to look at the remote work again.
    """

    workflow: str
    step: int
    step_name: str
    direction: Literal["do", "undo"]
    epoch: int
    complete_by: Annotated[datetime, msgspec.Meta(tz=True)]
    idempotency_key: str
    generation: int = 0
    order: Part = UNSET
    order_ref: PayloadRefBody | None = None
    results: dict[str, msgspec.Raw] = {}
    result_refs: dict[str, PayloadRefBody] = {}
    own_result: Part = UNSET
    own_result_ref: PayloadRefBody | None = None
    time_allowed: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    checks: Annotated[int, msgspec.Meta(ge=0)] = 0
    alternative: str | None = None
    urgent: bool = False
    submission: str | None = None


class FaultBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Why an agent was refused."""

    code: str
    message: str


class ReplyMessage(Envelope, tag="reply", frozen=True, kw_only=True, omit_defaults=True):
    """From an agent to the scheduler, the channel back. ``result_ref``: of a large result."""

    step: int
    direction: Literal["do", "undo"]
    epoch: int
    outcome: Literal["done", "refused", "waited"]
    result: Part = UNSET
    result_ref: PayloadRefBody | None = None
    error: FaultBody | None = None


class ProgressMessage(Envelope, tag="progress", frozen=True, kw_only=True, omit_defaults=True):
    """From an agent to the scheduler: the step goes on, and asks for this CompleteBy."""

    step: int
    direction: Literal["do", "undo"]
    epoch: int
    complete_by: Annotated[datetime, msgspec.Meta(tz=True)]
    note: Annotated[str, msgspec.Meta(max_length=Progress.NOTE_LENGTH_MAX)] = ""
    awaits: bool = False


Internal = WakeMessage | CommandMessage | RequestMessage | ReplyMessage | ProgressMessage


M = TypeVar("M", bound=Envelope)


def decode(body: bytes, kind: type[M]) -> M:
    """Return an internal message of this kind (a union of kinds will do).

    Raises:
        MalformedError: the body is none, or its order id cannot be one.
    """
    parse(body)
    message = convert(body, kind)
    try:
        check_order_id(message.order_id)
    except ValueError as wrong:
        raise MalformedError(Reason.INVALID_ORDER_ID, str(wrong)) from None
    if not 0 < len(message.id) <= 200:
        raise MalformedError(Reason.INVALID, "the member 'id' has no or over 200 characters")
    return message


def encode(message: Internal) -> bytes:
    """Return the bytes of an internal message."""
    return msgspec.json.encode(message)


def to_reply(message: ReplyMessage) -> Reply:
    """Return an agent's reply as the domain knows it."""
    result = content_of(message.result, message.result_ref)
    check_result(result)
    fault = Fault(message.error.code, message.error.message) if message.error else None
    return Reply(
        message.order_id,
        message.step,
        Direction(message.direction),
        message.epoch,
        Outcome(message.outcome),
        result,
        fault,
    )


def from_reply(reply: Reply) -> ReplyMessage:
    """Return an agent's reply as it travels; its id is the same for every repeat."""
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
    )


def to_progress(message: ProgressMessage) -> Progress:
    """Return what an agent says of a step's progress as the domain knows it."""
    return Progress(
        message.order_id,
        message.step,
        Direction(message.direction),
        message.epoch,
        message.complete_by,
        message.note,
        message.awaits,
    )


def from_progress(progress: Progress, own_id: str) -> ProgressMessage:
    """Return what an agent says of a step's progress as it travels."""
    return ProgressMessage(
        id=own_id,
        order_id=progress.order_id,
        step=progress.step,
        direction=progress.direction.value,
        epoch=progress.epoch,
        complete_by=progress.complete_by,
        note=progress.note,
        awaits=progress.awaits,
    )


def to_command(message: CommandMessage) -> Command:
    """Return an operator's command as the domain knows it."""
    edited = text_of(message.input)
    if edited is not None and utf16_units(edited) > EDITED_UNITS_MAX:
        raise MalformedError(
            Reason.TOO_LARGE, f"the input of a command is at most {EDITED_UNITS_MAX:,} characters"
        )
    check_depth(edited or "", CONTENT_DEPTH_MAX)
    return Command(
        message.id,
        message.order_id,
        Verb(message.verb),
        message.seq,
        message.by,
        message.step,
        edited,
    )


def raw(text: str | None) -> Part:
    """Return JSON text to be put into a message as it is; UNSET for none."""
    return msgspec.Raw(text.encode()) if text is not None else UNSET


def inline(content: Content | None) -> Part:
    """Return content that travels itself; UNSET for none and for what a reference stands for."""
    return raw(content) if isinstance(content, str) else UNSET


def to_ref_body(content: Content | None) -> PayloadRefBody | None:
    """Return the reference that travels in the place of content; None where that does itself."""
    if not isinstance(content, PayloadRef):
        return None
    return PayloadRefBody(content.sha256, content.size, content.chunks)


def from_ref_body(kept: PayloadRefBody) -> PayloadRef:
    """Return a reference as the domain knows it."""
    return PayloadRef(kept.sha256, kept.size, kept.chunks)


def content_of(part: Part, kept: PayloadRefBody | None) -> Content | None:
    """Return what a member and the reference beside it hold; None where both are absent."""
    return text_of(part) if kept is None else from_ref_body(kept)


def check_result(result: Content | None, inline_bytes_max: int = RESULT_INLINE_BYTES_MAX) -> None:
    """Raise MalformedError for a result that no reply, or callback, may bring."""
    if isinstance(result, PayloadRef):
        size, most = result.size, RESULT_BYTES_MAX
    else:
        size, most = len((result or "").encode()), inline_bytes_max
    if size > most:
        raise MalformedError(
            Reason.RESULT_TOO_LARGE, f"a step's result is at most {most:,} bytes of JSON here"
        )


def text_of(part: Part) -> str | None:
    """Return the JSON text of a raw part of a message; None where it is absent."""
    return None if isinstance(part, UnsetType) else bytes(part).decode()


def value_of(part: Part) -> Any:
    """Return what a raw part of a message says; None where it is absent."""
    return None if isinstance(part, UnsetType) else parse(bytes(part))
