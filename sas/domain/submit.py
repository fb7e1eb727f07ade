"""Decisions: what follows from a message, as pure functions.

Each takes an order as it was loaded and returns a Decision, or None where nothing
follows (a duplicate, a late reply, a stray wake). None of them knows the clock, the
store or the queues; the shell in ``sas.actors`` commits and sends. What follows from
time is in ``recovery.py``, from an undo in ``undo.py``, from an operator in ``commands.py``;
all are named here, so that an actor needs this module only.
"""

from __future__ import annotations

from datetime import datetime

from sas.domain.change import Decision
from sas.domain.claim import open_steps
from sas.domain.messages import Notice, Notify, Wake
from sas.domain.order import StepRecord, StepState
from sas.domain.workflow import Rules


def submit(rules: Rules, *, now: datetime) -> Decision:
    """Decide the first rows of an order: every step Pending, the application told, a wake."""
    steps = [
        StepRecord(number, step.name, StepState.PENDING, now)
        for number, step in enumerate(rules.steps)
    ]
    return Decision(
        "submitted",
        open_steps(steps, rules, now),
        (Wake(), Notify(Notice.RECEIVED)),
        deadline=now + rules.deadline if rules.deadline else None,
    )
