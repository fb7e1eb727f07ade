"""How to reach a service of Azure: a connection string, or an address and an identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A connection string, which is used if there is one, or an address and a managed identity.

    ``address`` is the URL of a storage account's tables, or a fully qualified Service Bus
    namespace. ``client_id`` names a user-assigned identity; None means the system-assigned one.
    """

    connection_string: str | None = field(default=None, repr=False)
    address: str | None = None
    client_id: str | None = None


def token_credential(client_id: str | None = None) -> AsyncTokenCredential:
    """Return the managed identity of this app, or on a developer's machine the signed-in user.

    The caller closes it.
    """
    from azure.identity.aio import (  # noqa: PLC0415  # takes most of a second to import
        DefaultAzureCredential,
        ManagedIdentityCredential,
    )

    if client_id:
        return ManagedIdentityCredential(client_id=client_id)
    return DefaultAzureCredential()
