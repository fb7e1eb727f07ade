"""A journal row always gives the same messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sas.domain.claim import claim
from sas.domain.messages import JournalEntry, JournalWord
from sas.domain.order import Details, Order
from sas.domain.queues import Queues
from sas.domain.submit import submit
from sas.engine.messages import Addresses, compose
from tests.business import workflows

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKFLOW = workflows().find("order")
TO = Addresses(Queues(), "/t")


def claimed() -> tuple[Order, JournalEntry]:
    """An order whose first step is out, and the journal row that sent it there."""
    details = Details(
        order_id="O-1",
        workflow="order",
        version=1,
        payload='{"a": 1}',
        content_hash="h",
        reply_queue="responses-x",
        correlation_id="c-1",
        submitted_at=NOW,
    )
    order = Order(details=details, steps=submit(details, WORKFLOW.rules).steps, seq=1)
    decision = claim(order, WORKFLOW.rules, now=NOW, instance="i")
    assert decision is not None
    entry = JournalEntry(
        seq=2,
        at=NOW,
        what=JournalWord.CLAIMED,
        by="i",
        commit_id="c",
        cause="scheduler:1",
        messages=decision.messages,
    )
    return replace(order, steps=decision.steps, seq=2), entry


def test_the_same_row_gives_the_same_messages_with_the_same_ids() -> None:
    order, entry = claimed()
    answered = replace(order, steps=(replace(order.steps[0], result='"ok"'), *order.steps[1:]))
    first, again = compose(order, entry, WORKFLOW, TO), compose(answered, entry, WORKFLOW, TO)
    assert first == again
    (request,), outside = first
    assert (request.queue, request.message_id, outside) == ("agent-inventory", "O-1/2/0", [])
    assert request.time_to_live is None  # it outlives its CompleteBy in a long queue


def test_a_request_of_an_older_epoch_is_not_sent_again() -> None:
    order, entry = claimed()
    later = replace(order.steps[0], epoch=2)
    moved = replace(order, steps=(later, *order.steps[1:]))
    assert compose(moved, entry, WORKFLOW, TO) == ([], [])


def test_without_workflows_requests_are_left_out() -> None:
    order, entry = claimed()
    assert compose(order, entry, None, TO) == ([], [])
