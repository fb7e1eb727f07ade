"""Shared access signatures: which client may open a link.

Rules: Microsoft, "Service Bus access control with Shared Access Signatures". A token is
``SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<key name>``; the signature
is the base64 of HMAC-SHA256(key, "<resource, still encoded>\\n<expiry>").
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from devstack.inputs import whole_number
from devstack.servicebus.core.errors import TokenRefusedError

#: The key in the emulator's documentation; a broker without a required key accepts any.
EMULATOR_KEY = "SAS_KEY_VALUE"
KEY_NAME = "RootManageSharedAccessKey"
_PREFIX = "SharedAccessSignature "


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to use ``path`` and all below it until ``expires_at`` (seconds since 1970)."""

    path: str
    expires_at: float

    def covers(self, entity: str, now: float) -> bool:
        """Whether this claim allows opening a link to ``entity``."""
        path, target = self.path.lower(), entity.lower()
        is_inside = not path or target == path or target.startswith(path + "/")
        return is_inside and now < self.expires_at


def path_of(address: str) -> str:
    """Give the entity path of an address, with or without scheme and host."""
    if "://" in address:
        address = address.partition("://")[2].partition("/")[2]
    return address.strip("/")


def signature(key: str, resource: str, expiry: str) -> str:
    """Return the base64 of HMAC-SHA256 over the resource, a line feed and the expiry."""
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


class TokenValidator:
    """Checks tokens against one key; without a key it accepts every token."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    @property
    def enabled(self) -> bool:
        """Whether tokens are checked."""
        return self._key is not None

    @property
    def key(self) -> str:
        """The key for the connection string."""
        return self._key or EMULATOR_KEY

    def check(self, token: str, audience: str, now: float) -> Claim:
        """Read a token. Raises TokenRefusedError with a sentence if it is not valid."""
        if self._key is None:
            return Claim("", float("inf"))
        if not token.startswith(_PREFIX):
            raise TokenRefusedError(
                "this broker requires a key and takes shared access signatures only: use its "
                "connection string"
            )
        pairs = (part.partition("=") for part in token[len(_PREFIX) :].split("&"))
        parts = {name: value for name, _, value in pairs}
        resource, expiry = parts.get("sr", ""), parts.get("se", "")
        expected_signature = signature(self._key, resource, expiry).encode()
        if not hmac.compare_digest(expected_signature, unquote(parts.get("sig", "")).encode()):
            raise TokenRefusedError(
                f"the signature for '{audience[:200]}' does not match: the SharedAccessKey of the "
                "connection string is not the one that this broker requires"
            )
        if unquote_plus(parts.get("skn", "")) != KEY_NAME:
            raise TokenRefusedError(
                f"'{parts.get('skn', '')[:100]}' is not a policy of this broker: write "
                f"SharedAccessKeyName={KEY_NAME} into the connection string"
            )
        if (whole_number(expiry) or 0) <= now:
            raise TokenRefusedError(
                f"ExpiredToken: the token for '{audience[:200]}' has expired; make a new one"
            )
        return Claim(path_of(unquote_plus(resource)), float(expiry))
