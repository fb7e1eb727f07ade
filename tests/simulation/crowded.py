"""Workflows with every feature: alternatives, drain times, waits, deadlines, steps without undo."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow, Workflows
from tests.simulation.system import COURIED, COURIER, DRAIN_TIME

TIME = timedelta(seconds=12)
LIMITS = {"inventory": 1, "payment": 2, "invoice": 1}
"""Calls at a time."""


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
