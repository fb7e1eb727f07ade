"""Identifiers: which are allowed, and how each one is derived.

Order ids become part of Table Storage keys (which refuse ``/ \\ # ?`` and control
characters) and of Service Bus MessageIds (128 characters at most). The rules follow from that.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

ORDER_ID_LENGTH_MAX = 100
_FORBIDDEN = re.compile(r"[/\\#?|\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
NAME_LENGTH_MAX = 40
URGENT_SUFFIX = "-urgent"
"""The end of the name of every queue for urgent orders."""


class InvalidIdError(ValueError):
    """An identifier breaks the rules; the message says which and what is allowed."""


def check_order_id(value: str) -> str:
    """Return ``value`` when it can be an OrderID, else raise InvalidIdError saying why."""
    if not value:
        raise InvalidIdError("order_id is empty: give every order its own id")
    length = len(value.encode("utf-16-le", "surrogatepass")) // 2  # as Service Bus counts an id
    if length > ORDER_ID_LENGTH_MAX:
        raise InvalidIdError(
            f"order_id has {length} characters: at most {ORDER_ID_LENGTH_MAX} are allowed"
        )
    found = _FORBIDDEN.search(value)
    if found:
        raise InvalidIdError(
            f"order_id contains {found.group()!r} at position {found.start()}: "
            "/ \\ # ? | and control characters are not allowed"
        )
    if value != value.strip():
        raise InvalidIdError("order_id begins or ends with a space: remove it")
    return value


def check_name(value: str, what: str) -> str:
    """Return ``value`` when it can name a workflow, step or agent; else raise InvalidIdError."""
    if len(value) > NAME_LENGTH_MAX or not _NAME.fullmatch(value):
        raise InvalidIdError(
            f"{what} {value!r} is not a name: use lower-case letters, digits, - and _, "
            f"beginning with a letter, at most {NAME_LENGTH_MAX} characters"
        )
    return value


def check_agent(value: str) -> str:
    """Return ``value`` when it can name an agent; else raise InvalidIdError.

    An agent whose name ends with the suffix would share its queue with the urgent lane of another.
    """
    if value.endswith(URGENT_SUFFIX):
        raise InvalidIdError(
            f"agent {value!r} ends with {URGENT_SUFFIX!r}, which marks queues of urgent orders: "
            "name it otherwise"
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
    """Return the cause of a transition for the journal: the queue and the id of a message."""
    return f"{source_queue}:{envelope_id}"


def cause_hash(cause: str) -> str:
    """Return 32 hex digits for a text of any length and content, as part of a key or an id."""
    return hashlib.sha256(cause.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest_id(*parts: str | bytes) -> str:
    """Return 32 hex digits that identify these parts in this order.

    Keys and message ids use it for texts that are too long for them, or that hold characters
    that a key may not have.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(hashlib.sha256(data).digest())  # no two lists of parts look alike
    return digest.hexdigest()[:32]


def message_id(order_id: str, seq: int, index: int) -> str:
    """Return the MessageId of the index-th message of journal row ``seq``.

    Every commit has a new seq. So duplicate detection drops a repeated send, but never a message
    of a later commit.
    """
    return f"{order_id}/{seq}/{index}"


def reply_id(order_id: str, step: int, direction: str, epoch: int) -> str:
    """Return the MessageId of a reply: the same for every delivery of one dispatch."""
    return f"{order_id}/{step:02d}/{direction}/{epoch}"


def progress_id(order_id: str, step: int, direction: str, epoch: int, check: int) -> str:
    """Return the MessageId of the progress that an agent reports at its check-th look."""
    return f"{reply_id(order_id, step, direction, epoch)}/{check}"


def idempotency_key(
    order_id: str, step_name: str, generation: int, alternative: str | None = None
) -> str:
    """Return the key that a remote call carries through all retries and resubmissions.

    An ``alternative`` agent has its own keys. So an undo at one agent never undoes what another one
    did, even if both call the same remote service. An edited resubmission (a generation) makes a
    new key, but only after a refusal: see the invariants in ARCHITECTURE.md.
    """
    own = step_name if alternative is None else f"{step_name}@{alternative}"
    return f"{order_id}/{own}" + (f"/{generation}" if generation else "")


def key_time(moment: datetime) -> str:
    """Return a moment as an ISO string of fixed width in UTC: it sorts by time."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_key_time(text: str) -> datetime:
    """Return the moment that ``key_time`` wrote."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
