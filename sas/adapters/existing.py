"""A state store that must be there already: what an operator's tool opens.

It creates no table, and takes the number of shards from the table itself.
"""

from __future__ import annotations

from azure.core.exceptions import HttpResponseError

from sas.adapters import keys
from sas.adapters.endpoints import Endpoint
from sas.adapters.table_errors import first_line
from sas.adapters.tables import TableStore


class NoStoreError(LookupError):
    """There is no state store of this name; the message says where it was looked for."""


async def connect_existing(endpoint: Endpoint, table: str) -> TableStore:
    """Return the store, open.

    Raises:
        NoStoreError: there is no such table, or it is none of a state store, or the address is
            none of Table Storage.
        StoreUnavailableError: the account did not answer.
        ValueError: the endpoint cannot be one.
    """
    probe = TableStore.connect(endpoint, table)
    where = probe.table.client.url.split("?")[0].rstrip("/")
    try:
        meta = await probe.table.get(keys.META_PARTITION, keys.META)
    except HttpResponseError as other:
        raise NoStoreError(
            f"{where} does not answer as Table Storage does ({first_line(other)}): check the "
            "address of the storage account's tables"
        ) from other
    finally:
        await probe.close()
    if meta is None:
        raise NoStoreError(
            f"there is no table {table!r} with orders at {where}: check the storage account and "
            "the table's name (no order may have been submitted yet)"
        )
    return TableStore.connect(endpoint, table, int(meta["Shards"]))
