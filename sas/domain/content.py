"""Content that is kept apart from its order, and the reference that stands for it (a claim check).

A reference says what the content is (its hash) and never changes: the content is written before
anything refers to it, and what refers to it is what makes it count.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

CHUNK_BYTES = 11 * 64 * 1024
"""Most bytes of one chunk. Table Storage takes 64 KiB a binary property and 1 MiB a row; Azurite
counts a row as the JSON that is sent, which is a third longer.
"""


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """What stands for content kept apart: its SHA-256 in hex, its bytes, its chunks."""

    sha256: str
    size: int
    chunks: int


Content = str | PayloadRef
"""JSON text, or what stands for it."""


def ref_of(data: bytes) -> PayloadRef:
    """Return the reference that stands for these bytes."""
    return PayloadRef(hashlib.sha256(data).hexdigest(), len(data), len(chunks_of(data)))


def chunks_of(data: bytes) -> list[bytes]:
    """Return the bytes cut into chunks; nothing is one empty chunk."""
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data) or 1, CHUNK_BYTES)]


def matches(ref: PayloadRef, data: bytes) -> bool:
    """Return whether these are the very bytes that the reference was made of."""
    return len(data) == ref.size and hashlib.sha256(data).hexdigest() == ref.sha256


def size_of(content: Content) -> int:
    """Return the size of content in bytes of UTF-8."""
    return content.size if isinstance(content, PayloadRef) else len(content.encode())
