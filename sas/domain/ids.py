"""The identifiers of the pattern: which are allowed, and how each is derived.

Order ids become part of Table Storage keys (which refuse ``/ \\ # ?`` and control
characters) and of Service Bus MessageIds (128 characters at most).
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

from sas.domain.texts import is_visible

ORDER_ID_LENGTH_MAX = 100
MESSAGE_ID_LENGTH_MAX = 128
"""Longest MessageId that Service Bus takes."""
_FORBIDDEN = re.compile(r"[/\\#?|\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MESSAGE_ID = re.compile(f"[^\ud800-\udfff]{{1,{MESSAGE_ID_LENGTH_MAX}}}")
_ORDER_NAME = re.compile(r"[^\W_](?: ?[\w.:@+=,~-])*")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
NAME_LENGTH_MAX = 40
URGENT_SUFFIX = "-urgent"
"""Suffix of the queues for urgent orders."""


class InvalidIdError(ValueError):
    """An identifier is not allowed. The message says why, and what is allowed."""


def check_order_id(value: str) -> str:
    """Return ``value`` if it can be an OrderID, else raise InvalidIdError."""
    if not value:
        raise InvalidIdError("order_id is empty: give every order an id of its own")
    length = len(value.encode("utf-16-le", "surrogatepass")) // 2  # as Service Bus counts an id
    if length > ORDER_ID_LENGTH_MAX:
        raise InvalidIdError(
            f"order_id has {length} characters: at most {ORDER_ID_LENGTH_MAX} are allowed"
        )
    match = _FORBIDDEN.search(value)
    if match:
        raise InvalidIdError(
            f"order_id contains {match.group()!r} at position {match.start()}: "
            "/ \\ # ? | and control characters are not allowed"
        )
    if value != value.strip():
        raise InvalidIdError("order_id begins or ends with a space: remove it")
    return value


def check_new_order_id(value: str) -> str:
    """Return ``value`` if a new order can have this id, else raise InvalidIdError.

    It is a name that people read, type and paste. Versions before took any id that can be part of a
    key (``check_order_id``): orders that have such an id keep it.
    """
    check_order_id(value)
    if not _ORDER_NAME.fullmatch(value) or not is_visible(value):
        raise InvalidIdError(
            f"order_id {value!r} is not a name: begin it with a letter or digit, and use only "
            "letters, digits, single spaces between them, and - _ . : @ + = , ~"
        )
    return value


def check_name(value: str, kind: str) -> str:
    """Return ``value`` if it can name a workflow, step or agent, else raise InvalidIdError."""
    if len(value) > NAME_LENGTH_MAX or not _NAME.fullmatch(value):
        raise InvalidIdError(
            f"{kind} {value!r} is not a name: use lower-case letters, digits, - and _, "
            f"beginning with a letter, at most {NAME_LENGTH_MAX} characters"
        )
    return value


def check_agent(value: str) -> str:
    """Return ``value`` if it can name an agent, else raise InvalidIdError.

    An agent named ``x-urgent`` would share the queue for urgent requests to agent ``x``.
    """
    if value.endswith(URGENT_SUFFIX):
        raise InvalidIdError(
            f"agent {value!r} ends with {URGENT_SUFFIX!r}, as queues for urgent orders do: "
            "choose another name"
        )
    return check_name(value, "agent")


def shard_of(order_id: str, shards: int) -> str:
    """Return the PartitionKey of an order: two hex digits of a hash of its id."""
    digest = hashlib.sha256(order_id.encode("utf-8")).digest()
    return f"{int.from_bytes(digest[:4]) % shards:02x}"


def all_shards(shards: int) -> list[str]:
    """Return every PartitionKey for this number of shards (1 to 256)."""
    if not 1 <= shards <= 256:
        raise InvalidIdError(f"{shards} shards: between 1 and 256 are possible")
    return [f"{number:02x}" for number in range(shards)]


def cause_of(source_queue: str, envelope_id: str) -> str:
    """Return the cause that a journal row records for a message: its queue and its own id."""
    return f"{source_queue}:{envelope_id}"


def digest_id(*parts: str | bytes) -> str:
    """Return 32 hex digits that identify these parts in this order.

    Keys and message ids use it for texts that are too long for them or hold forbidden characters.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(hashlib.sha256(data).digest())  # ("ab", "c") and ("a", "bc") differ
    return digest.hexdigest()[:32]


def own_or_digest(value: object, body: bytes) -> str:
    """Return the MessageId of a message, or a digest of its body if it has none that can be one."""
    if isinstance(value, str) and _MESSAGE_ID.fullmatch(value):
        return value
    return f"body/{digest_id(body)}"


def message_id(order_id: str, seq: int, index: int) -> str:
    """Return the MessageId of the index-th message of journal row ``seq``.

    Every commit has a new seq. So duplicate detection drops a repeated send, and never a message
    of a later commit.
    """
    return f"{order_id}/{seq}/{index}"


def reply_id(order_id: str, step: int, direction: str, epoch: int) -> str:
    """Return the MessageId of an agent's reply: the same for every repeat of one dispatch."""
    return f"{order_id}/{step:02d}/{direction}/{epoch}"


def progress_id(order_id: str, step: int, direction: str, epoch: int, check: int) -> str:
    """Return the MessageId of the progress that an agent reports at its check of this number."""
    return f"{reply_id(order_id, step, direction, epoch)}/{check}"


def idempotency_key(order_id: str, step_name: str, generation: int) -> str:
    """Return the key that a remote call carries through all retries and resubmissions.

    An input that an operator edited makes a new generation and so a new key; see ``resubmit`` in
    `sas/domain/command.py`.
    """
    return f"{order_id}/{step_name}" + (f"/{generation}" if generation else "")


def key_time(moment: datetime) -> str:
    """Return a UTC moment as a fixed-width ISO string, so that keys sort by time."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_key_time(text: str) -> datetime:
    """Return the moment that ``key_time`` wrote; raises ValueError for any other text."""
    moment = datetime.fromisoformat(text)  # ten times faster than strptime, and too lenient
    if moment.tzinfo is not UTC or key_time(moment) != text:
        raise ValueError(f"{text[:40]!r} is not a time as it is stored")
    return moment
