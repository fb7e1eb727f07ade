"""Keeping named fields of an order from whoever can read the store or the queues."""

from __future__ import annotations

from typing import Protocol

from sas.ports.store import UnreadableError


class DecryptionError(UnreadableError):
    """A field cannot be decrypted: its key is not among SAS_ENCRYPTION_KEYS, or it was changed
    or moved. Give the key back; the step goes on by itself.
    """


class KeyMissingError(DecryptionError):
    """The key that encrypted it is not there: many orders may need it."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text)
        self.key = key


class KeyRing(Protocol):
    """Keys, each with an id. The first encrypts and signs; all of them open and compare."""

    def encrypt(self, text: str, about: str) -> str:
        """Return a text encrypted for one place (``about``), with the id of its key."""
        ...

    def decrypt(self, encrypted: str, about: str) -> str:
        """Return what was encrypted for this very place.

        Raises:
            DecryptionError: an unknown key, another place, or it was changed.
        """
        ...

    def sign(self, text: str) -> str:
        """Return what shows whoever has the key that a text is this one, and tells nobody else."""
        ...

    def is_signed(self, text: str, signature: str) -> bool:
        """Return whether a signature is that of ``text``.

        Raises:
            DecryptionError: by a key that is not there.
        """
        ...
