"""Cases that ``make test`` leaves to ``make test-all``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

SEEDS = int(os.environ.get("SAS_SEEDS", "0"))
FIRST_SEED = int(os.environ.get("SAS_FIRST_SEED", "0"))


def long(cases: Iterable[Any]) -> list[Any]:
    """Return the cases, marked as long, for ``pytest.mark.parametrize``."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


def ranges(short: int, whole: int) -> list[Any]:
    """Return two ranges of seeds for ``parametrize``: the short ones, and the long ones.

    A test plays all seeds of a range, and names the seed that fails. SAS_SEEDS asks for more long
    ones, and SAS_FIRST_SEED for other ones.
    """
    first = range(FIRST_SEED, FIRST_SEED + short)
    return [first, *long([range(first.stop, first.start + max(whole, SEEDS))])]


def seeds(short: int, whole: int) -> list[Any]:
    """Return seeds for ``parametrize``: ``short`` of them always, ``whole`` with the long ones.

    SAS_SEEDS asks for more long ones, and SAS_FIRST_SEED for other ones.
    """
    first = range(FIRST_SEED, FIRST_SEED + short)
    return [*first, *long(range(first.stop, first.start + max(whole, SEEDS)))]
