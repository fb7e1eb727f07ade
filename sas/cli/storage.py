"""Which table a command reads, from its arguments and the environment."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sas.adapters.endpoints import Endpoint
from sas.cli.errors import NotThereError, TroubleError, UsageError
from sas.config import SettingError, read_table_name, read_tables
from sas.ports import StateStore, StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage account and the state store's table in it."""

    endpoint: Endpoint
    table: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every verb has which reads the state store."""
    parser.add_argument(
        "--storage",
        metavar="TEXT",
        help="Storage connection string, or the address of its tables (https://...) to sign in to "
        "with azure-identity (default: the environment's SAS_TABLES, SAS_TABLES__endpoint or "
        "AzureWebJobsStorage)",
    )
    parser.add_argument(
        "--table", metavar="NAME", help="its table (default: the environment's SAS_TABLE, orders)"
    )


def read(arguments: argparse.Namespace, env: Mapping[str, str]) -> Storage:
    """Return what the arguments and the environment say.

    Raises:
        UsageError: nothing is said, or what is said cannot be.
    """
    said = dict(env)
    given: str | None = arguments.storage
    if given:
        said.pop("SAS_TABLES__endpoint", None)
        is_address = given.startswith(("https://", "http://"))
        said["SAS_TABLES__endpoint" if is_address else "SAS_TABLES"] = given
    if arguments.table:
        said["SAS_TABLE"] = arguments.table
    try:
        return Storage(read_tables(said), read_table_name(said))
    except SettingError as wrong:
        raise UsageError(f"{wrong} (or give --storage and --table)") from None


@asynccontextmanager
async def opened(where: Storage) -> AsyncIterator[StateStore]:
    """Open the store for as long as this lasts.

    Raises:
        UsageError: the connection string cannot be read.
        NotThereError: there is no such table.
        TroubleError: the account did not answer, then or later.
    """
    # Slow to import (Azure's SDK), and not needed for --help.
    from sas.adapters.table_store import NoStoreError, connect_existing  # noqa: PLC0415

    try:
        store = await connect_existing(where.endpoint, where.table)
    except NoStoreError as missing:
        raise NotThereError(str(missing)) from None
    except StoreUnavailableError as silent:
        raise TroubleError(str(silent)) from None
    except ValueError as wrong:
        why = str(wrong).rstrip(".")
        raise UsageError(
            f"the storage connection string cannot be read: {why}. It looks like "
            "DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...;"
            "EndpointSuffix=core.windows.net"
        ) from None
    try:
        yield store
    except StoreUnavailableError as silent:
        raise TroubleError(str(silent)) from None
    finally:
        await store.close()
