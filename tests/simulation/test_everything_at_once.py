"""Everything at once: agents to choose from, limits, breakers, long steps, callbacks, deadlines and
an operator, while hosts die and stall, the store goes away and services go down.

``SAS_SEEDS=2000 make test-all`` runs more of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow, Workflows
from sas.testing.plan import drawn
from sas.testing.play import play
from sas.testing.system import Project
from tests.long import seeds
from tests.simulation.system import COURIED, COURIER, DRAIN_TIME, PROJECT

TIME = timedelta(seconds=12)
LIMITS = {"inventory": 1, "payment": 2, "invoice": 1}


def crowded(on_failure: OnFailure, deadline: timedelta | None) -> Workflow:
    """Return a workflow with a step of each kind."""
    undo = Undo(TIME)
    backoff = Backoff(timedelta(seconds=3), most=timedelta(seconds=10))
    courier = Undo(TIME, drain_time=DRAIN_TIME)
    return Workflow(
        f"{on_failure.value}-{'by' if deadline else 'ever'}",
        version=1,
        steps=(
            Step(
                "reserve",
                agent="inventory",
                time_allowed=TIME,
                after=(),
                undo=undo,
                failures_max=1,
                alternatives=("payment", "invoice"),
            ),
            Step(
                "charge",
                agent="payment",
                time_allowed=TIME,
                after=(),
                undo=undo,
                failures_max=2,
                backoff=backoff,
                extended_wait=ExtendedWait(TIME * 3),
            ),
            Step(
                COURIED,
                agent=COURIER,
                time_allowed=TIME,
                after=("reserve",),
                undo=courier,
                failures_max=2,
                backoff=backoff,
            ),
            Step(
                "invoice",
                agent="invoice",
                time_allowed=TIME,
                after=("charge",),
                undo=undo,
                failures_max=1,
            ),
            Step(
                "tell",
                agent="shipping",
                time_allowed=TIME,
                after=("charge",),
                undo=None,
                failures_max=1,
                alternatives=("payment",),
            ),
            Step(
                "deliver",
                agent="delivery",
                time_allowed=TIME,
                after=(COURIED, "invoice", "tell"),
                undo=undo,
                failures_max=2,
            ),
        ),
        on_failure=on_failure,
        deadline=deadline,
        pickup=timedelta(seconds=15),
    )


DEFINED = Workflows(
    crowded(on_failure, deadline)
    for on_failure in OnFailure
    for deadline in (None, timedelta(minutes=4))
)


WITH_LIMITS = replace(Project.of(DEFINED, PROJECT), limits=LIMITS)


@pytest.mark.parametrize("seed", seeds(3, 60))
def test_every_order_ends_whole_whatever_goes_wrong_at_once(seed: int) -> None:
    assert play(WITH_LIMITS, drawn(seed, DEFINED)).violations == []


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
