"""Content kept apart from its order, as entities and back: one row a chunk, in binary columns."""

from __future__ import annotations

from collections.abc import Mapping

from sas.adapters import keys
from sas.adapters.rows import Entity, Row
from sas.domain.content import PayloadRef, chunks_of, matches
from sas.ports import LostContentError

BINARY_BYTES = 64 * 1024
"""Most bytes of a binary property."""


def payload_rows(order_id: str, ref: PayloadRef, data: bytes) -> list[Entity]:
    """Return content kept apart as entities, a chunk each."""
    return [
        {
            "RowKey": keys.payload_chunk(order_id, ref.sha256, number),
            "OrderID": order_id,
            "Sha256": ref.sha256,
            "Bytes": ref.size,
            **{
                f"Data{part:02d}": chunk[part * BINARY_BYTES : (part + 1) * BINARY_BYTES]
                for part in range(-(-len(chunk) // BINARY_BYTES))
            },
        }
        for number, chunk in enumerate(chunks_of(data))
    ]


def payload_from(order_id: str, ref: PayloadRef, by_key: Mapping[str, Row]) -> bytes:
    """Return the content that chunk rows, by row key, hold.

    Raises:
        LostContentError: a chunk is missing, or it is not what was written.
    """
    parts: list[bytes] = []
    for number in range(ref.chunks):
        row = by_key.get(keys.payload_chunk(order_id, ref.sha256, number))
        if row is None:
            raise _lost(order_id, ref, f"chunk {number} of {ref.chunks} is missing")
        columns = sorted(name for name in row if name.startswith("Data"))
        parts += [part for name in columns if isinstance(part := row[name], bytes)]
    data = b"".join(parts)
    if not matches(ref, data):
        raise _lost(order_id, ref, f"it is {len(data):,} bytes of another content")
    return data


def _lost(order_id: str, ref: PayloadRef, why: str) -> LostContentError:
    return LostContentError(
        f"order {order_id}: content of {ref.size:,} bytes (SHA-256 {ref.sha256}) that is kept "
        f"apart cannot be read: {why}. Restore its rows of the table (d|payload)"
    )
