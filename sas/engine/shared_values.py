"""Small values that all instances share through the store, decoded to one type.

Every value has a token, and a write checks it. So no instance overwrites the change of another one
unnoticed.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from sas.ports import SharedValue, StateStore, StoreMismatchError
from sas.telemetry.tracing import logger

log = logger(__name__)
T = TypeVar("T")


class SharedValues(Generic[T]):
    """The shared values of one type whose stored names begin with ``prefix``.

    Names are given and returned without the prefix. A value is stored as JSON.
    """

    def __init__(
        self, store: StateStore, prefix: str, type_: Any, *, unreadable: T | None = None
    ) -> None:
        """``type_`` is the type to decode to; it may be a union such as ``Incident | None``.

        ``unreadable`` replaces a value that cannot be decoded, because it was changed by hand.
        Without it, reading such a value raises StoreMismatchError.
        """
        self._store = store
        self._prefix = prefix
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)
        self._unreadable = unreadable

    async def read(self, name: str) -> SharedValue[T] | None:
        """Return a value and its token; None if it was never written.

        Raises:
            StoreUnavailableError: the store does not answer.
            OtherVersionError: a newer version wrote the value.
            StoreMismatchError: it was changed by hand and cannot be read.
        """
        stored = await self._store.read_shared(self._prefix + name)
        return None if stored is None else self._decoded(self._prefix + name, stored)

    async def all(self) -> dict[str, SharedValue[T]]:
        """Return every value that can be read, by its name and sorted by name.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        values: dict[str, SharedValue[T]] = {}
        for name, stored in (await self._store.shared_values(self._prefix)).items():
            try:
                values[name.removeprefix(self._prefix)] = self._decoded(name, stored)
            except StoreMismatchError as error:
                log.warning("%s", error)
        return values

    async def write(self, name: str, value: T, before: SharedValue[T] | None) -> SharedValue[T]:
        """Write a value and return it with its new token. ``before`` is what ``read`` returned.

        Raises:
            ConflictError: another instance wrote the value since it was read.
            StoreUnavailableError: the store does not answer.
        """
        text = msgspec.json.encode(value).decode()
        token = before.token if before else None
        written = await self._store.write_shared(self._prefix + name, text, token)
        return SharedValue(value, written.token)

    def _decoded(self, name: str, stored: SharedValue[str]) -> SharedValue[T]:
        try:
            value = self._decoder.decode(stored.value)
            _check_members(msgspec.json.decode(stored.value), msgspec.to_builtins(value))
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            if self._unreadable is None:
                text = f"shared value {name} cannot be read: {error}. Remove its row"
                raise StoreMismatchError(text, "shared values changed by hand") from None
            return SharedValue(self._unreadable, stored.token)
        return SharedValue(value, stored.token)


def _check_members(stored: object, decoded: object) -> None:
    """Raise ValueError for a stored object that has other members than this version writes."""
    if isinstance(stored, dict) and isinstance(decoded, dict) and stored.keys() != decoded.keys():
        others = ", ".join(sorted(stored.keys() ^ decoded.keys()))
        raise ValueError(f"members are unknown or missing: {others[:200]}")
