"""The promise of test_domain_protocol in its largest models, apart: they take minutes."""

from __future__ import annotations

from itertools import product

import pytest

from sas.domain.workflow import OnFailure
from tests.simulation.domain_model_check import find_cycle
from tests.simulation.domain_protocol_check import Budget, Protocol
from tests.simulation.test_domain_protocol import ALL, LATE_TWICE, name

pytestmark = pytest.mark.long
CASES = [
    *product(("three in a row", "diamond"), OnFailure, (0,), (ALL, LATE_TWICE)),
    *product(("three in a row",), OnFailure, (1,), (ALL, LATE_TWICE)),
]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_processed_means_every_effect_once_and_compensated_none_in_larger_models(
    case: tuple[str, OnFailure, int, Budget],
) -> None:
    protocol = Protocol(*case)
    assert protocol.explore() is None
    assert find_cycle(protocol.next) is None, "an order goes round in circles without faults"
