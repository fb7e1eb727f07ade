"""The record of one service: effects by idempotency key, tombstones, and doubled orders.

It has no clock. It does no I/O, unless it has a file. Its rules:

* An effect binds its key to its content. If a call had no effect, because of a refusal or a fault,
  the same key may come again with other content.
* An undo leaves a tombstone even if there was no effect, so that a late do has no effect.
* An order is doubled if two of its effects are in force, under any keys. This finds a client that
  makes a new key for each retry.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import BinaryIO, TypedDict

import msgspec

RECORDS_MAX_DEFAULT = 100_000


class LedgerFullError(Exception):
    """The ledger has no room for a new key: restart the service."""


class EffectView(TypedDict):
    """One effect as ``GET /ledger`` shows it; times are ISO 8601 in UTC."""

    order_id: str
    key: str
    number: str
    at: str
    undone_at: str | None
    replays: int


class LedgerView(TypedDict):
    """The answer of ``GET /ledger``."""

    service: str
    effects: list[EffectView]
    doubled: list[str]
    calls: int
    faults: dict[str, int]


class KeyState(Enum):
    """The state of a key for a do with a given content."""

    NEW = "new"
    REPLAY = "replay"
    REUSED = "reused"
    UNDONE = "undone"


@dataclass(slots=True, kw_only=True)
class Effect:
    """One effect of a call, with the number that the client got."""

    order_id: str
    key: str
    number: str
    at: datetime
    fingerprint: str
    undone_at: datetime | None = None
    replays: int = 0

    def view(self) -> EffectView:
        """Return the effect as the ledger shows it."""
        return {
            "order_id": self.order_id,
            "key": self.key,
            "number": self.number,
            "at": _text(self.at),
            "undone_at": None if self.undone_at is None else _text(self.undone_at),
            "replays": self.replays,
        }


@dataclass(slots=True, kw_only=True)
class Record:
    """The record of one key. ``undone`` is the recorded answer to its undo."""

    effect: Effect | None = None
    undone: bool | None = None
    in_progress: bool = False
    attempts: Counter[str] = field(default_factory=Counter)


class Ledger:
    """The records of one service, for at most ``records_max`` keys.

    With a ``file``, effects and tombstones outlive the process: each is a line of the file.
    """

    def __init__(
        self, number_prefix: str, records_max: int = RECORDS_MAX_DEFAULT, file: Path | None = None
    ) -> None:
        self._prefix = number_prefix
        self._records_max = records_max
        self._records: dict[str, Record] = {}
        self._effects: list[Effect] = []
        self._file: BinaryIO | None = None
        if file is not None:
            self._read(file)
            self._file = file.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def record_of(self, key: str) -> Record:
        """Return the record of a key. Make it if needed, or raise LedgerFullError."""
        record = self._records.get(key)
        if record is None:
            if len(self._records) >= self._records_max:
                raise LedgerFullError(
                    f"the ledger is full ({self._records_max} keys): restart the services, "
                    "or start them with a larger --ledger-max"
                )
            record = self._records[key] = Record()
        return record

    def state_of(self, key: str, fingerprint: str) -> KeyState:
        """Return the state of a key for a do with this content."""
        record = self.record_of(key)
        if record.undone is not None:
            return KeyState.UNDONE
        if record.effect is None:
            return KeyState.NEW
        return KeyState.REPLAY if record.effect.fingerprint == fingerprint else KeyState.REUSED

    def execute(self, key: str, order_id: str, fingerprint: str, now: datetime) -> Effect:
        """Record a new effect; the state of the key must be NEW."""
        number = f"{self._prefix}-{len(self._effects) + 1:06d}"
        effect = Effect(order_id=order_id, key=key, number=number, at=now, fingerprint=fingerprint)
        self.record_of(key).effect = effect
        self._effects.append(effect)
        self._keep("do", key, now, order_id, fingerprint)
        return effect

    def replay(self, key: str) -> Effect:
        """Return the effect of a key whose state is REPLAY, and count the repeat."""
        effect = self.record_of(key).effect
        if effect is None:
            raise LookupError(f"key {key!r} has no effect to replay: check its state first")
        effect.replays += 1
        return effect

    def undo(self, key: str, now: datetime) -> tuple[bool, bool]:
        """Undo the effect of a key, if it has one, and leave a tombstone.

        Returns whether there was an effect (the same for every repeat), and whether this call
        is a repeat.
        """
        record = self.record_of(key)
        if record.undone is not None:
            return record.undone, True
        record.undone = record.effect is not None
        if record.effect is not None:
            record.effect.undone_at = now
        self._keep("undo", key, now)
        return record.undone, False

    def effects(self) -> list[EffectView]:
        """Return every effect, oldest first, including undone ones."""
        return [effect.view() for effect in self._effects]

    def doubled(self) -> list[str]:
        """Return the orders with more than one effect in force."""
        in_force = Counter(e.order_id for e in self._effects if e.undone_at is None)
        return [order_id for order_id, count in in_force.items() if count > 1]

    def _keep(self, *words: str | datetime) -> None:
        if self._file is not None:
            self._file.write(msgspec.json.encode(words) + b"\n")

    def _read(self, file: Path) -> None:
        content = file.read_bytes() if file.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # the process was killed while it wrote the last line
            file.write_bytes(whole)
        for line in whole.splitlines():
            match msgspec.json.decode(line, type=list[str]):
                case ["do", key, at, order_id, fingerprint]:
                    self.execute(key, order_id, fingerprint, datetime.fromisoformat(at))
                case ["undo", key, at]:
                    self.undo(key, datetime.fromisoformat(at))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
