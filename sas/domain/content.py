"""Claim check: large content is stored outside its order, and a reference takes its place.

The content is written before anything refers to it. A reference holds the hash of the content, so
it never changes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

CHUNK_BYTES = 11 * 64 * 1024
"""Most bytes of one chunk. Table Storage takes 64 KiB in a binary property and 1 MiB in a row.
Azurite counts the row as the JSON that is sent, which is a third longer.
"""


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """The reference to large content: its SHA-256 in hex, its size in bytes, its chunks."""

    sha256: str
    size: int
    chunks: int


Content = str | PayloadRef
"""JSON text, or the reference to it."""


def ref_of(data: bytes) -> PayloadRef:
    """Return the reference to these bytes."""
    return PayloadRef(hashlib.sha256(data).hexdigest(), len(data), len(chunks_of(data)))


def chunks_of(data: bytes) -> list[bytes]:
    """Return the bytes in chunks. Empty content has one empty chunk."""
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data) or 1, CHUNK_BYTES)]


def matches(ref: PayloadRef, data: bytes) -> bool:
    """Return whether the reference was made of these bytes."""
    return len(data) == ref.size and hashlib.sha256(data).hexdigest() == ref.sha256


def size_of(content: Content) -> int:
    """Return the size of content in bytes of UTF-8."""
    return content.size if isinstance(content, PayloadRef) else len(content.encode())
