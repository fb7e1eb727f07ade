"""Patient workflows: with backoffs, extended waits, a drain time and a deadline."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.workflow import Backoff, ExtendedWait, OnFailure, Step, Undo, Workflow, Workflows
from tests.simulation.system import COURIED, COURIER, DRAIN_TIME

ALLOWED = timedelta(seconds=10)
UNDO = Undo(ALLOWED)


def patient(name: str, on_failure: OnFailure, deadline: timedelta) -> Workflow:
    backoff = Backoff(timedelta(seconds=4), most=timedelta(seconds=15))
    wait = ExtendedWait(timedelta(seconds=90))
    courier = Undo(ALLOWED, drain_time=DRAIN_TIME)
    return Workflow(
        name,
        version=1,
        steps=(
            Step(
                "reserve",
                agent="inventory",
                time_allowed=ALLOWED,
                after=(),
                undo=UNDO,
                failures_max=1,
                backoff=backoff,
                extended_wait=wait,
            ),
            Step(
                "charge",
                agent="payment",
                time_allowed=ALLOWED,
                after=(),
                undo=UNDO,
                failures_max=1,
                backoff=backoff,
            ),
            Step(
                COURIED,
                agent=COURIER,
                time_allowed=ALLOWED,
                after=("reserve",),
                undo=courier,
                failures_max=2,
                backoff=backoff,
                extended_wait=wait,
            ),
            Step(
                "thank",
                agent="shipping",
                time_allowed=ALLOWED,
                after=("charge", COURIED),
                undo=None,
                failures_max=1,
            ),
        ),
        on_failure=on_failure,
        deadline=deadline,
    )


def defined() -> Workflows:
    return Workflows(
        [
            patient("holding", OnFailure.HOLD, timedelta(minutes=3)),
            patient("undoing", OnFailure.UNDO, timedelta(seconds=50)),
        ]
    )
