"""An order in each state that two steps in a row can bring it to, and commands for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sas.domain.change import Change
from sas.domain.claim import claim
from sas.domain.command import decide
from sas.domain.messages import Command, Outcome, Progress, Reply, Verb
from sas.domain.order import Direction, Fault, Order, StepState, UndoStatus
from sas.domain.reply import answer, progressed
from sas.operate.commands import Intent
from tests.contract import cases
from tests.contract.cases import NOW

RULES = cases.rules_of(2)


def wish(verb: Verb, **members: Any) -> Intent:
    """Return what the operator ann wants."""
    return Intent(verb=verb, by="ann", **members)


def _next(order: Order, change: Change) -> Order:
    return replace(change.after, token="t")


def _every_order() -> dict[str, Order]:
    pending = replace(cases.submitted("o", RULES).after, token="t")
    out = _next(pending, cases.claimed(pending, RULES))
    half = _next(out, cases.answered(out, 0, RULES))
    failed = _next(half, cases.refused(half, 1, RULES))
    processed = _next(half, cases.answered(half, 1, RULES))
    undoing = _next(failed, cases.undone(failed, RULES))
    decided = claim(undoing, RULES, now=NOW, instance="s")
    claimed = _next(undoing, cases.upon(undoing, decided))
    no = Reply(
        order_id="o",
        step=1,
        direction=Direction.UNDO,
        epoch=claimed.steps[1].epoch,
        outcome=Outcome.REFUSED,
        result=None,
        fault=Fault("shut", "no"),
    )
    refusal = answer(claimed, no, RULES, now=NOW, instance="s")
    awaits = Progress(
        order_id="o",
        step=0,
        direction=Direction.DO,
        epoch=out.steps[0].epoch,
        complete_by=NOW + timedelta(days=1),
        note="the manager approves",
        awaits=True,
    )
    awaited = progressed(out, awaits, RULES, now=NOW, instance="s")
    cancel = Command(command_id="c", order_id="o", verb=Verb.CANCEL, seq=None, by="ann")
    cancelled = decide(out, cancel, RULES, now=NOW, instance="s")
    undone = (
        replace(step, process_state=StepState.COMPENSATED, undo=UndoStatus.NOT_NEEDED)
        for step in processed.steps
    )
    return {
        "pending": pending,
        "processing": out,
        "awaiting a callback": _next(out, cases.upon(out, awaited)),
        "half done": half,
        "in error": failed,
        "processed": processed,
        "being undone": undoing,
        "undo failed": _next(claimed, cases.upon(claimed, refusal)),
        "compensated": replace(processed, steps=tuple(undone)),
        "cancelled": _next(out, cases.upon(out, cancelled)),
        "rejected": replace(cases.rejected("o").after, token="t"),
    }


ORDERS = _every_order()
