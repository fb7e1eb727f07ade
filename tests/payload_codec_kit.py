"""A payload codec for tests: it hides a text as well as Fernet does, and costs nothing."""

from __future__ import annotations

import base64
from itertools import count

from sas.ports import DecodingError

MARK = "s3cr3t"
"""In the content of a test's orders and results, and in nothing else."""


class CheapCodec:
    """See ``sas.ports.PayloadCodec``. Like Fernet it returns another text each time."""

    def __init__(self, key: str = "k1") -> None:
        self._key, self._numbers = key, count(1)

    def encode(self, text: str) -> str:
        hidden = base64.b64encode(text[::-1].encode()).decode()
        return f"{self._key}.{next(self._numbers)}.{hidden}"

    def decode(self, text: str) -> str:
        key, _, hidden = text.split(".")
        if key != self._key:
            raise DecodingError(f"the key {key} is missing")
        return base64.b64decode(hidden).decode()[::-1]
