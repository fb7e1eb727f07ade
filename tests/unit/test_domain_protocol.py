"""The decisions keep their promise whatever happens to messages: see domain_protocol_check.

SAS_MODEL_BUDGET=2 explores more faults (two minutes), 3 larger workflows as well (four).
"""

from __future__ import annotations

from itertools import product

import pytest

from sas.domain.workflow import OnFailure
from tests.unit.domain_model_check import BUDGET, find_cycle
from tests.unit.domain_protocol_check import Budget, Protocol, Remote

UNRELIABLE = Budget(twice=1, lost=1, early=1)
MEDDLED = Budget(early=1, refused=1, operator=1)
LATE_TWICE = Budget(twice=1, early=2, operator=1)
ALL = Budget(twice=1, lost=1, early=1, refused=1, operator=1)
PAIRS = ("two in a row", "two beside each other")

EVERY_DAY = [
    *product(PAIRS, OnFailure, (0, 1), (UNRELIABLE, MEDDLED)),
    ("two in a row", OnFailure.UNDO, 1, ALL),
    ("diamond", OnFailure.UNDO, 0, MEDDLED),
]
LONGER = [*product(PAIRS, OnFailure, (0,), (ALL,)), *product(PAIRS, OnFailure, (1,), (LATE_TWICE,))]
LONGEST = [
    *product(("three in a row", "diamond"), OnFailure, (0,), (ALL, LATE_TWICE)),
    *product(("three in a row",), OnFailure, (1,), (ALL, LATE_TWICE)),
]
CASES = EVERY_DAY + LONGER * (BUDGET > 1) + LONGEST * (BUDGET > 2)


def name(case: tuple[str, OnFailure, int, Budget]) -> str:
    shape, on_failure, failures_max, budget = case
    return f"{shape}, {on_failure.value}, {failures_max}, {''.join(map(str, budget))}"


@pytest.mark.timeout(120 * BUDGET**2)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_processed_means_every_effect_once_and_compensated_none_whatever_happens_to_messages(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    protocol = Protocol(*case)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"


@pytest.mark.parametrize("shape", PAIRS)
def test_a_remote_without_tombstones_is_caught_by_a_late_call_after_its_undo(shape: str) -> None:
    protocol = Protocol(shape, OnFailure.HOLD, 1, MEDDLED, Remote(tombstones=False))
    assert "S2" in str(protocol.explore())


@pytest.mark.parametrize("shape", PAIRS)
def test_a_remote_that_forgets_its_keys_is_caught_by_a_second_effect(shape: str) -> None:
    protocol = Protocol(shape, OnFailure.HOLD, 1, UNRELIABLE, Remote(idempotent=False))
    assert "came about twice" in str(protocol.explore())
