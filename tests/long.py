"""Cases that ``make test`` leaves to ``make test-all``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

SEEDS = int(os.environ.get("SAS_SEEDS", "0"))
FIRST_SEED = int(os.environ.get("SAS_FIRST_SEED", "0"))


def long(cases: Iterable[Any]) -> list[Any]:
    """Return the cases, marked as long, for ``pytest.mark.parametrize``."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


@dataclass(frozen=True)
class Seeds:
    """The seeds that a case plays. They print themselves: the last is the one that failed."""

    numbers: range

    def __iter__(self) -> Iterator[int]:
        for seed in self.numbers:
            print(f"seed {seed}")  # noqa: T201  pytest shows it when the case fails
            yield seed


def ranges(short: int, whole: int) -> list[Any]:
    """Return the seeds of two cases for ``parametrize``: few short ones, and many long ones.

    SAS_SEEDS asks for more long ones, and SAS_FIRST_SEED for other ones.
    """
    first = range(FIRST_SEED, FIRST_SEED + short)
    others = range(first.stop, first.start + max(whole, SEEDS))
    return [Seeds(first), *long([Seeds(others)])]
