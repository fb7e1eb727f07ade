"""Where a real service is and how to prove who asks: a connection string or an identity."""

from __future__ import annotations

from typing import Protocol

from azure.core.credentials_async import AsyncTokenCredential


class Endpoint(Protocol):
    """How to reach a service: by connection string, or by address and managed identity.

    ``client_id`` names a user-assigned identity; without it the system-assigned one is used.
    """

    @property
    def connection_string(self) -> str | None:
        """Connection string, which wins over an address."""
        ...

    @property
    def address(self) -> str | None:
        """URL of a storage account's tables, or fully qualified Service Bus namespace."""
        ...

    @property
    def client_id(self) -> str | None:
        """Client id of a user-assigned identity."""
        ...


def token_credential(client_id: str | None = None) -> AsyncTokenCredential:
    """Return the managed identity of this app, or on a developer's machine the one signed in.

    The caller closes it. azure-identity is imported here only: it costs most of a second.
    """
    from azure.identity.aio import (  # noqa: PLC0415  # slow to import, needed in Azure only
        DefaultAzureCredential,
        ManagedIdentityCredential,
    )

    if client_id:
        return ManagedIdentityCredential(client_id=client_id)
    return DefaultAzureCredential()
