"""A state store that must be there already: what an operator's tool opens.

It creates no table, and takes the number of shards from the table itself.
"""

from __future__ import annotations

from sas.adapters import keys
from sas.adapters.endpoints import Endpoint
from sas.adapters.tables import TableStore


class NoStoreError(LookupError):
    """There is no state store of this name; the message says where it was looked for."""


async def connect_existing(endpoint: Endpoint, table: str) -> TableStore:
    """Return the store, open.

    Raises:
        NoStoreError: there is no such table, or it is none of a state store.
        StoreUnavailableError: the account did not answer.
        ValueError: the endpoint cannot be one.
    """
    probe = TableStore.connect(endpoint, table)
    try:
        meta = await probe.table.get(keys.META_PARTITION, keys.META)
        where = probe.table.client.url.split("?")[0].rstrip("/")
    finally:
        await probe.close()
    if meta is None:
        raise NoStoreError(
            f"there is no table {table!r} with orders at {where}: check the storage account and "
            "the table's name (no order may have been submitted yet)"
        )
    return TableStore.connect(endpoint, table, int(meta["Shards"]))
