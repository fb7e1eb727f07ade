"""Submit: the first record of an order.

"The Scheduler arranges for the steps that make up the task to be executed and orchestrates their
operation."
"""

from __future__ import annotations

from sas.domain.change import Decision
from sas.domain.claim import update_readiness
from sas.domain.messages import JournalWord, Notice, Notify, Wake
from sas.domain.order import Details, StepRecord, StepState
from sas.domain.reply import completed_notice
from sas.domain.workflow import Rules


def submit(details: Details, rules: Rules) -> Decision:
    """Decide a new order: every step is Pending; wake a scheduler and notify the application.

    An order without steps (``sas.domain.workflow.SMOKE``) is completed at once.
    The order begins at ``details.submitted_at``.
    """
    now = details.submitted_at
    steps = [
        StepRecord(number=number, name=step.name, process_state=StepState.PENDING, since=now)
        for number, step in enumerate(rules.steps)
    ]
    messages = (Wake(), Notify(Notice.RECEIVED))
    return Decision(
        what=JournalWord.SUBMITTED,
        steps=update_readiness(steps, rules, now),
        messages=messages if steps else (Notify(Notice.RECEIVED), *completed_notice(steps)),
        details=details,
        deadline=now + rules.deadline if rules.deadline else None,
    )
