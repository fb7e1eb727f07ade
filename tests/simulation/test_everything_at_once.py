"""Everything at once: agents to choose from, limits, breakers, long steps, callbacks, deadlines and
an operator, while hosts die and stall, the store goes away and services go down.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sas.testing.plan import drawn
from sas.testing.play import play
from sas.testing.system import Project
from tests.long import Seeds, ranges
from tests.simulation.crowded import DEFINED, LIMITS
from tests.simulation.system import PROJECT

WITH_LIMITS = replace(Project.of(DEFINED, PROJECT), limits=LIMITS)


@pytest.mark.parametrize("seeds", ranges(3, 60))
def test_every_order_ends_whole_whatever_goes_wrong_at_once(seeds: Seeds) -> None:
    for seed in seeds:
        assert play(WITH_LIMITS, drawn(seed, DEFINED)).violations == [], f"seed {seed}"


@pytest.mark.long
def test_everything_that_is_meant_to_go_wrong_at_once_does() -> None:
    words: Counter[str] = Counter()
    for seed in range(300):
        words += play(WITH_LIMITS, drawn(seed, DEFINED)).words
        if not EVERYTHING - set(words):
            break
    assert set(words) >= EVERYTHING, EVERYTHING - set(words)


EVERYTHING = {
    *("progress", "waiting: no call could begin", "extended wait"),
    *("step reset", "undo reset", "undo failed", "cancelled", "cancelled step ended", "overdue"),
    *("overdue, undo decided", "step failed, undo decided", "resubmitted", "released"),
}
