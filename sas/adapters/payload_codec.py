"""The payload codec of SAS_PAYLOAD_KEYS: Fernet (AES-128-CBC and HMAC-SHA256) by cryptography."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from sas.ports import DecodingError


class FernetCodec:
    """See ``sas.ports.PayloadCodec``. The first key encrypts, all of them decrypt."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Take keys as ``Fernet.generate_key`` makes them: 32 bytes in URL-safe base64.

        Raises:
            ValueError: there is no key, or one of them is not such a key.
        """
        self._keys = MultiFernet([Fernet(key) for key in keys])

    def encode(self, text: str) -> str:
        """See ``PayloadCodec.encode``."""
        return self._keys.encrypt(text.encode()).decode()

    def decode(self, text: str) -> str:
        """See ``PayloadCodec.decode``."""
        try:
            return self._keys.decrypt(text.encode()).decode()
        except InvalidToken:
            raise DecodingError(
                "no key of SAS_PAYLOAD_KEYS decrypts its content: add the key again, behind the "
                "others; or the content was changed"
            ) from None
