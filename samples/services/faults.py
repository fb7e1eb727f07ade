"""Decide which call fails, and how: a pure function of seed, service, verb, key and attempt.

So a run can be repeated, and each retry of a call may end in another way. Permanent refusals do not
depend on the attempt. They stay the same until the rates change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum


class FaultsError(ValueError):
    """A fault rate is wrong; the message says which one and what is allowed."""


class Verb(StrEnum):
    """The two calls of a service."""

    DO = "do"
    UNDO = "undo"


class FaultKind(StrEnum):
    """The faults of a call, as the ledger counts them."""

    RESET = "reset"
    RESET_AFTER_EFFECT = "reset-after-effect"
    ERROR = "error"
    ERROR_AFTER_EFFECT = "error-after-effect"
    UNAVAILABLE = "unavailable"
    TOO_MANY = "too-many"
    SLOW_BEFORE_EFFECT = "slow-before-effect"
    SLOW_AFTER_EFFECT = "slow-after-effect"
    REFUSED = "refused"
    UNDO_REFUSED = "undo-refused"


TRANSIENT_KINDS = (
    FaultKind.RESET,
    FaultKind.RESET_AFTER_EFFECT,
    FaultKind.ERROR,
    FaultKind.ERROR_AFTER_EFFECT,
    FaultKind.UNAVAILABLE,
    FaultKind.TOO_MANY,
)
SLOW_KINDS = (FaultKind.SLOW_BEFORE_EFFECT, FaultKind.SLOW_AFTER_EFFECT)
SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often a service fails. Rates are shares of calls from 0 to 1; the default is 0.

    - ``transient``: split evenly over TRANSIENT_KINDS; applies to do and undo.
    - ``slow``: split evenly over SLOW_KINDS; applies to do and undo.
    - ``permanent``: the share of keys whose do is always refused.
    - ``undo_permanent``: the share of keys whose undo is always refused.
    - ``max_transient_attempts``: later attempts of a key are neither transient nor slow, so a
      client that retries more often always succeeds; None means no limit.
    - ``latency``: seconds that every call takes.
    - ``delivery``: seconds from the first call to the carrier until it has delivered.
    - ``check_after``: the longest pause in seconds that the carrier asks for before the next call.
    """

    seed: int = 42
    transient: float = 0.0
    permanent: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 8.0
    undo_permanent: float = 0.0
    retry_after_seconds: int = 1
    max_transient_attempts: int | None = None
    latency: float = 0.0
    delivery: float = 0.0
    check_after: float = SECONDS_MAX

    def __post_init__(self) -> None:
        for name in ("transient", "permanent", "slow", "undo_permanent"):
            _check_between(name, getattr(self, name), 1)
        if self.transient + self.slow > 1:
            raise FaultsError(
                f"transient {self.transient} and slow {self.slow} exceed 1 together: "
                "lower one of them, because a call is at most one of the two"
            )
        _check_between("slow_seconds", self.slow_seconds, SECONDS_MAX)
        _check_between("latency", self.latency, SECONDS_MAX)
        _check_between("delivery", self.delivery, SECONDS_MAX)
        _check_between("check_after", self.check_after, SECONDS_MAX)
        _check_between("retry_after_seconds", self.retry_after_seconds, SECONDS_MAX)
        _check_whole("retry_after_seconds", self.retry_after_seconds)
        _check_whole("seed", self.seed)
        if self.max_transient_attempts is not None:
            _check_whole("max_transient_attempts", self.max_transient_attempts)
            _check_between("max_transient_attempts", self.max_transient_attempts, 1_000_000)

    def changed(self, changes: Mapping[str, object]) -> Faults:
        """Return these faults with the named fields changed, or raise FaultsError."""
        names = [field.name for field in fields(self)]
        for name in changes:
            if name not in names:
                raise FaultsError(f"unknown fault {name!r}: known are {', '.join(names)}")
        return replace(self, **changes)  # type: ignore[arg-type]  # __post_init__ checks them

    def of_attempt(self, service: str, verb: Verb, key: str, attempt: int) -> FaultKind | None:
        """Return the fault of this attempt (from 1) of a call, or None."""
        if self.max_transient_attempts is not None and attempt > self.max_transient_attempts:
            return None
        share, choice = _draw(self.seed, service, verb, key, attempt)
        if share < self.transient:
            return TRANSIENT_KINDS[int(choice * len(TRANSIENT_KINDS))]
        if share < self.transient + self.slow:
            return SLOW_KINDS[int(choice * len(SLOW_KINDS))]
        return None

    def refuses(self, service: str, verb: Verb, key: str) -> bool:
        """Return whether every attempt of this call is refused."""
        rate = self.permanent if verb is Verb.DO else self.undo_permanent
        share, _ = _draw(self.seed, service, verb, key, "permanent")
        return share < rate


def _draw(*of: object) -> tuple[float, float]:
    """Return two independent numbers in [0, 1) that depend on the arguments only."""
    digest = hashlib.blake2b(json.dumps(of).encode(), digest_size=14).digest()
    # A float holds 53 bits; more bits could round up to 1.0.
    return (
        (int.from_bytes(digest[:7]) >> 3) / 2**53,
        (int.from_bytes(digest[7:]) >> 3) / 2**53,
    )


def _check_between(name: str, value: object, largest: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= largest:  # type: ignore[operator]  # refuses NaN too
        raise FaultsError(f"{name} is {value!r}: give a number from 0 to {largest}")


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise FaultsError(f"{name} is {value!r}: give a whole number")
