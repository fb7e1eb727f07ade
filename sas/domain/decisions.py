"""What a decision is: what to commit, and what to send once that is done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sas.domain.conditions import Condition
from sas.domain.messages import Outgoing
from sas.domain.model import StepRecord


@dataclass(frozen=True, slots=True)
class Decision:
    """What to commit: a word for the journal, the steps as they will be, what to send.

    ``deadline`` is a new order's; ``overdue`` says that a deadline has been acted upon;
    ``acknowledged_by`` is who has seen an order in Error. ``condition`` is what the order met that
    is wrong with the system rather than with it.
    """

    what: str
    steps: tuple[StepRecord, ...]
    messages: tuple[Outgoing, ...]
    deadline: datetime | None = None
    overdue: bool = False
    acknowledged_by: str | None = None
    condition: Condition | None = None
