"""The announced effect of a command agrees with the decision of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sas.domain.change import Change
from sas.domain.claim import claim
from sas.domain.command import decide as decide_command
from sas.domain.messages import Command, Outcome, Progress, Reply, Verb
from sas.domain.order import Direction, Fault, Order, OrderState, StepState, UndoStatus
from sas.domain.reply import answer, progressed
from sas.operate.commands import Intent, outlook, refusal
from tests.contract import cases
from tests.contract.cases import NOW

RULES = cases.rules_of(2)
DAY = timedelta(days=1)


def _next(order: Order, change: Change) -> Order:
    return replace(change.after, token="t")


def every_order() -> dict[str, Order]:
    """An order in each state that two steps in a row can bring it to."""
    pending = replace(cases.submitted("o", RULES).after, token="t")
    out = _next(pending, cases.claimed(pending, RULES))
    half = _next(out, cases.answered(out, 0, RULES))
    failed = _next(half, cases.refused(half, 1, RULES))
    processed = _next(half, cases.answered(half, 1, RULES))
    undoing = _next(failed, cases.undone(failed, RULES))
    decided = claim(undoing, RULES, now=NOW, instance="s")
    claimed = _next(undoing, cases.upon(undoing, decided))
    last = claimed.steps[1]
    no = Reply(
        order_id="o",
        step=1,
        direction=Direction.UNDO,
        epoch=last.epoch,
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
        complete_by=NOW + DAY,
        note="the manager approves",
        awaits=True,
    )
    awaited = progressed(out, awaits, RULES, now=NOW, instance="s")
    return {
        "pending": pending,
        "processing": out,
        "awaiting a callback": _next(out, cases.upon(out, awaited)),
        "half done": half,
        "in error": failed,
        "processed": processed,
        "being undone": undoing,
        "undo failed": _next(claimed, cases.upon(claimed, refusal)),
        "compensated": replace(processed, steps=_all_undone(processed)),
        "rejected": replace(cases.rejected("o").after, token="t"),
    }


def _all_undone(order: Order) -> tuple[Any, ...]:
    return tuple(
        replace(
            step,
            process_state=StepState.COMPENSATED,
            undo=UndoStatus.NOT_NEEDED,
        )
        for step in order.steps
    )


ORDERS = every_order()


def test_the_orders_are_in_as_many_states_as_there_are() -> None:
    assert {order.process_state for order in ORDERS.values()} == set(OrderState)


@pytest.mark.parametrize("step", [None, "step-0", "step-1"])
@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("name", ORDERS)
def test_a_command_is_refused_here_exactly_where_it_would_be_there(
    name: str, verb: Verb, step: str | None
) -> None:
    order = ORDERS[name]
    command = Command(command_id="c", order_id="o", verb=verb, seq=order.seq, by="ann", step=step)
    decision = (
        None if order.rejected else decide_command(order, command, RULES, now=NOW, instance="s")
    )
    reason = refusal(order, Intent(verb=verb, by="ann", step=step))
    assert (reason == "") is (decision is not None), reason


def test_a_step_that_is_not_there_is_named_with_those_that_are() -> None:
    reason = refusal(ORDERS["in error"], Intent(verb=Verb.SKIP, by="ann", step="fly"))
    assert reason == "it has no step 'fly', only step-0, step-1"


def test_a_step_that_is_not_in_error_is_named_with_its_state() -> None:
    reason = refusal(ORDERS["in error"], Intent(verb=Verb.RESUBMIT, by="ann", step="step-0"))
    assert reason == "the step must be in Error, and step-0 is Processed"


@pytest.mark.parametrize(
    ("name", "intent", "sentence"),
    [
        (
            "in error",
            Intent(verb=Verb.RESUBMIT, by="ann"),
            "run again: step-1 (out-of-stock: none left of article 11)",
        ),
        (
            "in error",
            Intent(verb=Verb.RESUBMIT, by="ann", input="{}"),
            "run again with the given input: step-1 (out-of-stock: none left of article 11)",
        ),
        (
            "in error",
            Intent(verb=Verb.SKIP, by="ann"),
            "count as done; later steps will see null: step-1 (out-of-stock",
        ),
        (
            "in error",
            Intent(verb=Verb.SKIP, by="ann", input='{"a":1}'),
            'count as done, with the result {"a":1}: step-1 (out-of-stock',
        ),
        (
            "undo failed",
            Intent(verb=Verb.RESUBMIT, by="ann"),
            "run again: undo of step-1 (shut: no)",
        ),
        (
            "undo failed",
            Intent(verb=Verb.SKIP, by="ann"),
            "count as undone by hand: undo of step-1 (shut",
        ),
        (
            "pending",
            Intent(verb=Verb.UNDO, by="ann"),
            "undo the order (there is no way back); no step ever began",
        ),
        ("in error", Intent(verb=Verb.UNDO, by="ann"), "if they have an undo: step-1, step-0"),
        (
            "processing",
            Intent(verb=Verb.CANCEL, by="ann"),
            "start no new step, wait for step-0, then undo",
        ),
        ("in error", Intent(verb=Verb.ACKNOWLEDGE, by="ann"), "note that you have seen"),
        (
            "awaiting a callback",
            Intent(verb=Verb.CANCEL, by="ann"),
            "start no new step, then undo the order",
        ),
        (
            "awaiting a callback",
            Intent(verb=Verb.CALLBACK, by="ann", input='{"amount":80}'),
            'end step-0 as done, with the result {"amount":80}',
        ),
        (
            "awaiting a callback",
            Intent(verb=Verb.CALLBACK, by="ann", fault=Fault("too-dear", "50 is the most")),
            "end step-0 as refused (too-dear: 50 is the most); the order is then undone, or waits",
        ),
    ],
)
def test_the_effect_of_a_command_is_one_sentence(name: str, intent: Intent, sentence: str) -> None:
    assert sentence in outlook(ORDERS[name], intent)
