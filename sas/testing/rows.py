"""How many rows of the table the data of the store in memory would be, for its meter."""

from __future__ import annotations

from sas.bounds import has_own_row
from sas.domain.change import Change
from sas.domain.order import Order, OrderState, StepRecord


def aggregate_rows(order: Order, errors: int) -> int:
    """Return the rows that a load reads: details, state, steps, large results, last errors."""
    return 2 + len(order.steps) + sum(has_own_row(step.result) for step in order.steps) + errors


def changed_rows(change: Change) -> int:
    """Return the rows that a change writes and deletes, each once."""
    before, after = change.before, change.after
    old = {step.number: step for step in before.steps} if before else {}
    steps = [step for step in after.steps if step != old.get(step.number)]
    results = [_result_changed(old.get(step.number), step) for step in steps]
    rows = 2 + len(steps) + sum(results)  # the state, the journal
    rows += before is None or before.details != after.details
    rows += change.entry.cause is not None
    rows += len(change.due_removed()) + len(change.due_added()) + (change.out_at is not None)
    listed = {_listed(before), _listed(after)} - {None}
    unchanged = before is not None and _listed(before) == _listed(after)
    return rows + (0 if unchanged else len(listed))


def _result_changed(old: StepRecord | None, step: StepRecord) -> bool:
    """Return whether a change writes or deletes the result's own row."""
    before = old.result if old else None
    if has_own_row(step.result):
        return step.result != before
    return has_own_row(before)


def _listed(order: Order | None) -> tuple[bool, object] | None:
    if order is None or order.settled_at is None:
        return None
    return order.process_state is OrderState.ERROR, order.settled_at
