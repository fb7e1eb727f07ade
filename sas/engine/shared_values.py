"""Small values that all instances share through the store, decoded to one type.

Every value has a token, and a write checks it. So no instance overwrites the change of another one
unnoticed. Members that a newer version wrote are kept when this one writes the value.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from sas.ports import OtherVersionError, SharedValue, StateStore
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

        ``unreadable`` replaces a value that this version cannot decode. Without it, reading such
        a value raises OtherVersionError.
        """
        self._store = store
        self._prefix = prefix
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)
        self._unreadable = unreadable

    async def read(self, name: str) -> SharedValue[T] | None:
        """Return a value and its token; None if it was never written.

        Raises:
            StoreUnavailableError: the store does not answer.
            OtherVersionError: only a newer version can read the value.
        """
        found = await self._store.read_shared(self._prefix + name)
        return None if found is None else self._decoded(found)

    async def all(self) -> dict[str, SharedValue[T]]:
        """Return every value by its name, sorted by name, but those of a newer version.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        found = await self._store.shared_values(self._prefix)
        known: dict[str, SharedValue[T]] = {}
        for name, one in found.items():
            try:
                known[name.removeprefix(self._prefix)] = self._decoded(one)
            except OtherVersionError as newer:
                log.warning("shared value %s is left alone: %s", name, newer)
        return known

    async def write(self, name: str, value: T, before: SharedValue[T] | None) -> SharedValue[T]:
        """Write a value and return it with its new token. ``before`` is what ``read`` returned.

        Raises:
            ConflictError: another instance wrote the value since it was read.
            StoreUnavailableError: the store does not answer.
        """
        body, unknown = msgspec.to_builtins(value), before.unknown if before else {}
        if isinstance(body, dict):
            body = {**unknown, **body}
        text = msgspec.json.encode(body).decode()
        token = before.token if before else None
        written = await self._store.write_shared(self._prefix + name, text, token)
        return SharedValue(value, written.token, unknown)

    def _decoded(self, found: SharedValue[str]) -> SharedValue[T]:
        try:
            value = self._decoder.decode(found.value)
        except (msgspec.DecodeError, RecursionError) as wrong:
            if self._unreadable is None:
                raise OtherVersionError(f"only a newer version can read it ({wrong})") from None
            return SharedValue(self._unreadable, found.token)
        whole, known = msgspec.json.decode(found.value), msgspec.to_builtins(value)
        unknown = set(whole) - set(known) if isinstance(whole, dict) else ()
        return SharedValue(value, found.token, {name: whole[name] for name in unknown})
