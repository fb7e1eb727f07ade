"""The operator's hand: resubmit, skip, undo, cancel and acknowledge, rule by rule."""

from __future__ import annotations

from dataclasses import replace

from sas.domain.command import WHEN, why_not
from sas.domain.command import decide as decide_command
from sas.domain.messages import Alert, Command, Notice, Notify, Outcome, Request, Verb, Wake
from sas.domain.order import Direction, Dispatched, Fault, UndoStatus
from sas.domain.workflow import OnFailure
from tests.each import each
from tests.unit.domain_cases import Story, story

SOLD_OUT = Fault("sold-out", "there is none left")
EDITED = '{"amount":1}'


def claimed(shape: str = "one", **policy: object) -> Story:
    order = story(shape, **policy)
    order.claim()
    return order


def undo_failed(shape: str = "two in a row") -> Story:
    """Return an order of which the undo of its last step was refused."""
    order = claimed(shape)
    for step in order.order.steps:
        order.done(step.name)
    order.undo()
    order.claim()
    return order.refused(order.order.steps[-1].name, Fault("gone", "the parcel has left"))


# Resubmit with an edited input


def test_an_edited_input_of_a_refused_step_has_a_key_of_its_own() -> None:
    order = claimed().refused("a", SOLD_OUT)
    assert order.resubmit(edited=EDITED)
    assert (order.step("a").call.edited, order.step("a").call.generation) == (EDITED, 1)
    order.claim()
    assert order.step("a").call.generation == 1
    assert [m.generation for m in order.messages if isinstance(m, Request)] == [1]


def test_an_edited_input_of_a_step_that_timed_out_has_a_key_of_its_own() -> None:
    order = claimed(failures_max=0).expired("a")
    assert order.resubmit(edited=EDITED)
    assert (order.step("a").call.edited, order.step("a").call.generation) == (EDITED, 1)
    order.claim()
    assert [m.generation for m in order.messages if isinstance(m, Request)] == [1]


def test_an_edited_input_of_a_step_refused_after_a_timeout_has_a_key_of_its_own() -> None:
    order = claimed(failures_max=1).expired("a")
    order.claim()
    order.refused("a", SOLD_OUT)
    order.resubmit(edited=EDITED)
    assert (order.step("a").call.edited, order.step("a").call.generation) == (EDITED, 1)


def test_each_of_two_edits_in_a_row_has_a_key_of_its_own() -> None:
    order = claimed(failures_max=0)
    for generation in (1, 2):
        order.expired("a")
        order.resubmit(edited=f'{{"amount":{generation}}}')
        order.claim()
        assert order.step("a").call.generation == generation
    order.undo()
    order.claim()
    assert [m.generation for m in order.messages if isinstance(m, Request)] == [2]


def test_a_step_that_never_began_takes_no_edited_input() -> None:
    order = claimed("two in a row").refused("a")
    assert order.step("b").epoch == 0
    assert not order.resubmit("b", edited=EDITED)
    assert order.step("b").call.generation == 0


def test_every_refused_edit_has_a_new_key_and_a_plain_resubmission_keeps_edit_and_key() -> None:
    order = claimed()
    for generation in (1, 2):
        order.refused("a")
        order.resubmit(edited=f'{{"amount":{generation}}}')
        order.claim()
        assert order.step("a").call.generation == generation
    order.refused("a")
    order.resubmit()
    assert (order.step("a").call.edited, order.step("a").call.generation) == ('{"amount":2}', 2)


def test_the_undo_of_an_edited_step_names_the_last_of_its_generations() -> None:
    order = claimed().refused("a")
    order.resubmit(edited=EDITED)
    order.claim()
    order.undo()
    order.claim()
    (request,) = (m for m in order.messages if isinstance(m, Request))
    assert (request.direction.value, request.generation) == ("undo", 1)


def test_undo_after_cancel_waits_no_longer_for_any_step_that_is_out() -> None:
    order = claimed("three beside each other").done("b")
    assert order.cancel()
    assert order.states == ["Processing", "Compensating", "Processing"]
    assert order.undo()
    assert order.states == ["Compensating"] * 3
    assert order.woken
    assert not order.undo()


def test_of_two_failed_steps_only_the_one_named_is_resubmitted() -> None:
    order = claimed("two beside each other").refused("a").refused("b")
    assert order.resubmit("b", edited=EDITED)
    assert order.states == ["Error", "Pending"]
    assert [step.call.edited for step in order.order.steps] == [None, EDITED]
    assert not order.claim(), "no step starts while another is in Error"
    order.resubmit()
    order.claim()
    assert order.requests == [("a", "do", 2), ("b", "do", 2)]


@each(["a", "nowhere"])
def test_a_step_that_is_not_in_error_is_neither_resubmitted_nor_skipped(name: str) -> None:
    order = claimed("two in a row").done("a").refused("b")
    before = order.order
    assert not order.resubmit(name)
    assert not order.skip(name)
    assert order.order == before


# Skip


def test_a_skipped_step_counts_as_processed_with_the_result_that_the_operator_gave() -> None:
    order = claimed("two in a row").refused("a", SOLD_OUT)
    assert order.skip(result='{"reserved":7}')
    step = order.step("a")
    assert (order.states, step.result, step.error) == (
        ["Processed", "Pending"],
        '{"reserved":7}',
        None,
    )
    assert order.messages == (Wake(),)
    order.claim()
    assert order.requests == [("b", "do", 1)]


def test_a_step_skipped_without_a_result_has_none() -> None:
    order = claimed().refused("a")
    order.skip()
    assert order.step("a").result == "null"


def test_skipping_the_last_step_notifies_of_the_completed_order_and_not_of_the_step() -> None:
    order = claimed().refused("a")
    order.skip()
    assert order.messages == (Notify(Notice.COMPLETED),)
    assert (order.state, order.order.complete_by) == ("Processed", None)


def test_a_skipped_step_is_undone_with_the_rest_because_it_may_have_had_its_effect() -> None:
    order = claimed().refused("a")
    order.skip()
    order.undo()
    assert order.states == ["Compensating"]


def test_a_skipped_undo_is_undone_by_hand_and_what_came_before_it_is_undone_next() -> None:
    order = undo_failed()
    assert (order.state, order.ledger) == ("Error", ["undoing", "undo failed"])
    assert order.skip()
    assert (order.states, order.ledger) == (
        ["Compensating", "Compensated"],
        ["undoing", "undone by hand"],
    )
    assert order.messages == (Wake(),)
    order.claim()
    assert order.done("a").notices == ["undone"]
    assert order.ledger == ["undone", "undone by hand"]


def test_skipping_the_last_undo_ends_the_order_and_sends_a_notification() -> None:
    order = undo_failed("one")
    assert order.skip("a")
    assert (order.state, order.notices) == ("Compensated", ["undone"])
    assert order.step("a").error is None


# The ledger


def test_the_ledger_lists_what_is_and_what_is_not_undone() -> None:
    order = claimed("three in a row", without_undo=frozenset("b"))
    assert order.ledger == [None, None, None]
    order.done("a", "b").undo()
    assert order.ledger == ["undoing", "not needed", "undoing"]
    order.claim()
    order.done("c")
    assert order.ledger == ["undoing", "not needed", "undone"]
    order.refused("a", Fault("no", "the shop is closed"))
    (alert,) = (m.text for m in order.messages if isinstance(m, Alert))
    assert "a: undo failed, b: not needed, c: undone." in alert
    order.resubmit()
    assert order.ledger[0] == "undoing"


def test_each_state_of_an_undo_has_its_own_words() -> None:
    assert len({record.value for record in UndoStatus}) == len(UndoStatus) == 7


# Cancel


def test_a_cancelled_order_waits_for_what_is_out_and_undoes_the_rest_at_once() -> None:
    order = claimed("two beside each other").done("a")
    due = order.step("b").complete_by
    assert order.cancel()
    assert (order.states, order.undoing) == (["Compensating", "Processing"], True)
    assert (order.step("b").complete_by, order.step("b").locked_by) == (due, "scheduler-1")
    assert order.messages == (Wake(),)
    order.claim()
    assert order.requests == [("a", "undo", 2)]
    order.done("a")
    assert order.answer(order.reply("b", direction=Direction.DO))
    assert (order.states[1], order.step("b").result) == ("Compensating", '"ok"')
    assert order.requests == [("b", "undo", 2)]
    assert order.done("b").notices == ["undone"]


@each(OnFailure)
def test_a_step_out_at_the_cancel_that_expires_is_undone_and_not_tried_again(
    policy: OnFailure,
) -> None:
    order = claimed("two in a row", failures_max=3, on_failure=policy)
    order.cancel()
    assert order.states == ["Processing", "Compensated"]
    order.expired("a")
    assert (order.states[0], order.step("a").failure_count) == ("Compensating", 0)
    assert (order.woken, order.notices, order.alerts) == (True, [], [])


def test_a_step_out_at_the_cancel_that_is_refused_is_not_a_failure_and_is_undone() -> None:
    order = claimed()
    order.cancel()
    assert order.answer(
        order.reply("a", direction=Direction.DO, outcome=Outcome.REFUSED, result=None)
    )
    assert (order.states, order.notices, order.alerts) == (["Compensating"], [], [])


def test_an_order_in_error_is_cancelled_and_one_that_never_began_is_compensated_at_once() -> None:
    order = claimed("two in a row").done("a").refused("b")
    assert order.cancel()
    assert order.states == ["Compensating", "Compensating"]
    new_order = story("two in a row")
    assert new_order.cancel()
    assert (new_order.state, new_order.notices) == ("Compensated", ["undone"])


def test_an_order_is_cancelled_once_and_neither_when_processed_nor_when_undone() -> None:
    order = claimed()
    assert order.cancel()
    assert not order.cancel()
    done = claimed().done("a")
    assert not done.cancel()
    done.undo()
    assert not done.cancel()


# Acknowledge


def test_an_acknowledgement_names_who_saw_the_error_and_ends_when_the_order_leaves_it() -> None:
    order = claimed().refused("a")
    stop_time = order.order.stopped_at
    order.later(60)
    assert order.acknowledge("ann")
    assert (order.order.acknowledged_by, order.state, order.messages) == ("ann", "Error", ())
    assert order.order.stopped_at == stop_time
    order.resubmit()
    assert order.order.acknowledged_by is None


def test_an_acknowledgement_stays_while_another_step_of_the_order_in_error_moves() -> None:
    order = claimed("two beside each other").refused("a")
    order.acknowledge("ann")
    order.done("b")
    assert (order.state, order.order.acknowledged_by) == ("Error", "ann")
    order.acknowledge("ben")
    assert order.order.acknowledged_by == "ben"


@each(["pending", "processing", "processed"])
def test_only_an_order_in_error_needs_to_be_acknowledged(until: str) -> None:
    order = story("one")
    if until != "pending":
        order.claim()
    if until == "processed":
        order.done("a")
    assert not order.acknowledge()


# All of them


def test_every_verb_is_decided_and_has_a_sentence_for_its_refusal() -> None:
    assert set(WHEN) == set(Verb)
    words_in_error = {Verb.RESUBMIT: "resubmitted", Verb.SKIP: "skipped", Verb.UNDO: "undo decided"}
    words = words_in_error | {Verb.CANCEL: "cancelled", Verb.ACKNOWLEDGE: "acknowledged"}
    assert set(words) == set(Verb) - {Verb.CALLBACK}
    for verb, word in words.items():
        order = claimed().refused("a")
        command = Command(command_id="c", order_id="order-1", verb=verb, seq=3, by="ann")
        decision = decide_command(
            order.order, command, order.rules, now=order.now, instance="scheduler"
        )
        assert decision is not None
        assert decision.what == word
        assert decision.acknowledged_by == ("ann" if verb is Verb.ACKNOWLEDGE else None)


def test_a_second_failure_needs_attention_though_the_first_was_acknowledged() -> None:
    order = story("two beside each other")
    order.claim()
    order.refused("a")
    assert order.acknowledge("ann")
    order.refused("b")
    assert order.order.acknowledged_by is None


def test_of_several_callbacks_that_are_waited_for_a_command_names_one() -> None:
    order = claimed("two beside each other")
    turn = Dispatched(locked_by="s", complete_by=order.now, awaits=True)
    steps = tuple(replace(step, turn=turn) for step in order.order.steps)
    both = replace(order.order, steps=steps)
    assert why_not(both, Verb.CALLBACK) == "its steps a, b wait for callbacks: name one of them"
    assert why_not(both, Verb.SKIP) == f"{WHEN[Verb.SKIP]}, and this is Processing"
