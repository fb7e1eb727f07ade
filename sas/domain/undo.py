"""Compensation: which steps are undone, and in which order.

Undo every step except those never dispatched: "a compensating transaction" must assume
that a reset, timed out or failed step may have had its effect all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sas.domain.model import Direction, StepRecord, StepState
from sas.domain.workflow import Rules


def begin_undo(steps: Sequence[StepRecord], rules: Rules, *, now: datetime) -> list[StepRecord]:
    """Turn every step round. There is no way back from here."""
    return [_turn(step, rules, now) for step in steps]


def _turn(step: StepRecord, rules: Rules, now: datetime) -> StepRecord:
    needed = step.epoch > 0 and rules.steps[step.number].undo_time_allowed is not None
    return replace(
        step,
        process_state=StepState.COMPENSATING if needed else StepState.COMPENSATED,
        since=now,
        locked_by=None,
        complete_by=None,
        failure_count=0,
        direction=Direction.UNDO,
        hold=False,
    )
