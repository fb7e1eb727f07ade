"""AES-256-GCM and HMAC-SHA256 with the keys of SAS_ENCRYPTION_KEYS, by the package cryptography.

Two keys are derived from each key (HKDF): one encrypts, one signs. Every value gets a new nonce
of 96 bits. Its place and its key's id are authenticated with it, so it cannot be decrypted in
another order, at another place, or under another key's id.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sas.ports import DecryptionError, KeyMissingError

NONCE_BYTES = 12
_SIGNED = "hmac-sha256"


class AesKeyRing:
    """See ``sas.ports.KeyRing``."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        """Take keys of 32 bytes by their ids. The first one encrypts.

        Raises:
            ValueError: ``keys`` is empty.
        """
        if not keys:
            raise ValueError("a key ring needs at least one key")
        self._first = keys[0][0]
        self._ciphers = {name: AESGCM(_derived(key, b"sas encrypt 1")) for name, key in keys}
        self._signing = {name: _derived(key, b"sas sign 1") for name, key in keys}

    def encrypt(self, text: str, about: str) -> str:
        """See ``KeyRing.encrypt``: ``<key id>:<base64 of nonce, ciphertext and tag>``."""
        nonce = os.urandom(NONCE_BYTES)
        data = self._ciphers[self._first].encrypt(nonce, text.encode(), _about(about, self._first))
        return f"{self._first}:{base64.b64encode(nonce + data).decode()}"

    def decrypt(self, encrypted: str, about: str) -> str:
        """See ``KeyRing.decrypt``."""
        name, _, text = encrypted.partition(":")
        key = self._ciphers.get(name)
        if key is None:
            raise _missing(name)
        try:
            data = base64.b64decode(text, validate=True)
            plain = key.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _about(about, name))
        except (binascii.Error, InvalidTag, ValueError):
            raise DecryptionError(
                f"a field encrypted with key {name!r} was changed or moved, or its key is now "
                "another one with the same id: give each key its own id"
            ) from None
        return plain.decode()

    def sign(self, text: str) -> str:
        """See ``KeyRing.sign``."""
        signature = self._mac(self._first, text).finalize().hex()
        return f"{_SIGNED}:{self._first}:{signature}"

    def is_signed(self, text: str, signature: str) -> bool:
        """See ``KeyRing.is_signed``."""
        kind, _, rest = signature.partition(":")
        name, _, digest = rest.partition(":")
        if kind != _SIGNED:
            return False
        if name not in self._signing:
            raise _missing(name)
        try:
            self._mac(name, text).verify(bytes.fromhex(digest))
        except (InvalidSignature, ValueError):
            return False
        return True

    def _mac(self, name: str, text: str) -> hmac.HMAC:
        made = hmac.HMAC(self._signing[name], hashes.SHA256())
        made.update(text.encode())
        return made


def _derived(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose).derive(key)


def _about(place: str, name: str) -> bytes:
    return f"{name}\n{place}".encode()


def _missing(name: str) -> KeyMissingError:
    text = (
        f"it needs the key {name[:40]!r}, which is not in SAS_ENCRYPTION_KEYS: add it again, "
        "behind the others"
    )
    return KeyMissingError(text, name[:40])
