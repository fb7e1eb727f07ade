"""How ``HttpService`` signs in to a remote service: an API key, a token of the app's identity, or a
client certificate. Keys and certificates come from secret settings (docs/security.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sas.ports import TransientError

if TYPE_CHECKING:
    import ssl

    from azure.identity.aio import ManagedIdentityCredential


EXPIRES_WITHIN_S = 300.0
"""A token that expires within this time is not used for a new call."""


class SignIn:
    """Signs in to one remote service. This one is for services that ask for nothing."""

    async def headers(self) -> Mapping[str, str]:
        """Return the headers that sign in; called for each attempt.

        Raises:
            TransientError: no token is available now.
        """
        return {}

    def context(self) -> ssl.SSLContext | None:
        """Return what signs in where the connection is made; None for the usual TLS."""
        return None

    async def close(self) -> None:
        """Let go of connections."""


class ApiKey(SignIn):
    """A key in a header. ``before`` stands before it: ``ApiKey(key, before="Bearer ")``."""

    def __init__(self, key: str, *, header: str = "Authorization", before: str = "") -> None:
        if not key or not key.isascii() or not key.isprintable():
            raise ValueError(
                f"the API key for the header {header} is empty or holds a line break: give the key "
                "as the service issued it"
            )
        self._headers = {header: before + key}

    async def headers(self) -> Mapping[str, str]:
        """Return the header with the key."""
        return self._headers


class ManagedIdentity(SignIn):
    """A token of the app's identity for ``scope``, such as ``api://stock/.default``.

    ``client_id`` names a user-assigned identity. The Bicep gives it as ``SAS_TABLES__clientId``.
    """

    def __init__(self, scope: str, *, client_id: str | None = None) -> None:
        self._scope = scope
        self._client_id = client_id
        self._credential: ManagedIdentityCredential | None = None
        self._token = ""
        self._until = 0.0

    async def headers(self) -> Mapping[str, str]:
        """Return the header with a token, which is kept until it is about to expire."""
        if time.time() < self._until:
            return {"Authorization": f"Bearer {self._token}"}
        from azure.core.exceptions import AzureError  # noqa: PLC0415  # slow to import
        from azure.identity.aio import ManagedIdentityCredential  # noqa: PLC0415

        if self._credential is None:
            self._credential = ManagedIdentityCredential(client_id=self._client_id)
        try:
            token = await self._credential.get_token(self._scope)
        except AzureError as refused:
            text = f"the app's identity got no token for {self._scope}: {type(refused).__name__}"
            raise TransientError(text, kind="sign-in") from None
        self._token, self._until = token.token, token.expires_on - EXPIRES_WITHIN_S
        return {"Authorization": f"Bearer {self._token}"}

    async def close(self) -> None:
        """Close the connection to the token endpoint."""
        if self._credential is not None:
            await self._credential.close()
            self._credential = None


class ClientCertificate(SignIn):
    """A client certificate (mTLS): the text of a PEM file with the certificate and its key.

    ``authority`` is the PEM text of the service's own authority, if it is not a public one.
    """

    def __init__(self, pem: str, *, authority: str | None = None) -> None:
        import ssl  # noqa: PLC0415  # a cold start need not wait for it
        import tempfile  # noqa: PLC0415

        self._context = ssl.create_default_context(cadata=authority)
        with tempfile.TemporaryDirectory() as made:  # the ssl module reads keys from files only
            path = Path(made) / "client.pem"
            path.touch(mode=0o600)
            path.write_text(pem)
            try:
                self._context.load_cert_chain(path)
            except ssl.SSLError:
                raise ValueError(
                    "the client certificate cannot be read: give the text of a PEM file with the "
                    "certificate and its key, without a password"
                ) from None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context with the certificate."""
        return self._context
