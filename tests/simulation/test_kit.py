"""The test kit: what it plays, and how it says that a saga does wrong."""

from __future__ import annotations

import inspect
import re
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import sas.testing
from samples.claim.claim import Approval, Claim, approve, claims, pay, scan
from sas import Call, Saga
from sas.testing import Kit, Late, Refusal, StandIn, StoryError
from tests import wrong_sagas as wrong
from tests.wrong_sagas import Charge, Ticket, saga_of

TICKET = Ticket(amount=3)
CLAIM = Claim(employee="ann", receipt="r-17", amount=Decimal(100))
ALLOWED = Approval(allowed=Decimal(80))
APPROVED = {"approve": ALLOWED}


def failure(kit: Kit, saga: Saga[Ticket], orders: int = 1) -> str:
    with pytest.raises(StoryError) as caught:
        kit.run_all(saga, [TICKET] * orders)
    return str(caught.value)


# --- what an order does ---


def test_an_order_gives_its_steps_results_and_notifications(saga: Kit) -> None:
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert order.steps == dict.fromkeys(("scan", "reserve", "approve", "pay"), "Processed")
    assert order.result(approve) == ALLOWED
    assert order.result(pay).number.startswith("number-")
    assert order.notifications == ["received", "completed"]
    assert (order.reason, order.message) == ("", "")
    assert "order O-1: step processed (pay)" in order.story


def test_days_take_milliseconds(saga: Kit) -> None:
    began = time.process_time()
    order = saga.run(claims, CLAIM)
    assert time.process_time() - began < 5
    assert (order.state, order.reason) == ("Compensated", "timed-out")
    assert re.search(r"^\dd \d\d:\d\d:\d\d", order.story.splitlines()[-1])


def test_the_same_seed_tells_the_same_story_and_another_one_another() -> None:
    stories = []
    for seed in (1, 1, 2):
        kit = Kit()
        kit.functions_die()
        kit.answers_lost()
        kit.run(claims, CLAIM, callbacks=APPROVED, seed=seed)
        stories.append(kit.story)
    assert stories[0] == stories[1] != stories[2]


def test_several_orders_are_played_together_and_services_remember_earlier_runs(saga: Kit) -> None:
    first, second = saga.run_all(claims, [CLAIM, CLAIM], callbacks=APPROVED)
    third = saga.run(claims, CLAIM, callbacks=APPROVED)
    payments = saga.service("BANK_URL").effects
    ids = [order.order_id for order in (first, second, third)]
    assert sorted(effect.order_id for effect in payments) == ids == ["O-1", "O-2", "O-3"]


def test_an_order_that_its_check_refuses_is_rejected(saga: Kit) -> None:
    def check(_order: Ticket) -> None:
        raise ValueError("sold out")

    checked = saga_of(wrong.careful)
    checked.check = check
    order = saga.run(checked, TICKET)
    assert order.state == "Rejected"
    assert "sold out" in order.message


def test_an_order_that_does_not_fit_its_type_is_rejected_as_in_production(saga: Kit) -> None:
    order = saga.run(claims, msgspec.structs.replace(CLAIM, employee=""), callbacks=APPROVED)
    assert (order.state, order.reason) == ("Rejected", "invalid-order")
    assert "Expected `str` of length >= 1 - at `$.employee`" in order.message
    assert order.notifications == ["rejected"]
    assert not saga.service("SCANNER_URL").calls


def test_an_order_of_another_class_is_refused_at_once(saga: Kit) -> None:
    other: Any = {"employee": ""}
    with pytest.raises(TypeError, match=r"the order is no Claim: .* length >= 1"):
        saga.run(claims, other)
    with pytest.raises(TypeError, match="the order cannot be sent as JSON"):
        saga.run(claims, msgspec.structs.replace(CLAIM, employee=object()))


def test_a_step_that_is_no_coroutine_runs_at_once(saga: Kit) -> None:
    tickets = Saga("ticket", Ticket)

    @tickets.step()
    def count(call: Call[Ticket]) -> int:
        return call.order.amount * 2

    assert saga.run(tickets, TICKET).result(count) == 6


# --- services ---


def test_a_service_answers_with_a_value_of_the_type_that_is_asked_for(saga: Kit) -> None:
    order = saga.run(claims, CLAIM)
    assert order.result(scan).total >= 1
    assert order.result(scan) == Kit().run(claims, CLAIM).result(scan)
    assert order.result(scan) != Kit().run(claims, CLAIM, seed=1).result(scan)


def test_an_answer_with_times_counts_only_so_often(saga: Kit) -> None:
    bank = saga.service("BANK_URL")
    bank.answer("POST", "/pay*", body={"number": "P-1"})
    bank.answer("POST", "/payments", 503, times=2)
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert order.result(pay).number == "P-1"
    assert [call.status for call in bank.calls] == [503, 503, 200]
    assert len(bank.effects) == 1


def test_a_service_refuses_a_key_after_its_undo(saga: Kit) -> None:
    saga.cancel(at=timedelta(seconds=0.1))
    saga.answers_lost(0.9)
    for seed in range(10):
        saga.run(claims, CLAIM, seed=seed)
    scans = saga.service("SCANNER_URL")
    assert {call.method for call in scans.calls} >= {"DELETE"}
    assert not scans.effects


def test_an_undo_that_is_refused_leaves_the_order_to_an_operator(saga: Kit) -> None:
    saga.service("BANK_URL").answer("POST", "/payments", 422)
    saga.service("BUDGET_URL").answer("DELETE", "/reservations", 409, code="settled")
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert order.state == "Error"
    assert order.steps["reserve"] == "Error"
    assert order.needs == "the undo of step reserve failed (settled): budget refused: settled (409)"
    assert len(saga.service("BUDGET_URL").effects) == 1


def test_a_service_that_no_function_calls_is_a_slip_of_the_pen(saga: Kit) -> None:
    saga.service("BANK_ULR")
    with pytest.raises(LookupError, match="no service BANK_ULR: saga 'claim' has BANK_URL, BUDGET"):
        saga.run(claims, CLAIM)


# --- callbacks ---


def test_a_callback_refuses_or_comes_late(saga: Kit) -> None:
    refused = saga.run(claims, CLAIM, callbacks={approve: Refusal("no-budget", "too much")})
    assert (refused.reason, refused.message) == ("no-budget", "too much")
    late = Late(ALLOWED, timedelta(days=1, hours=23))
    assert saga.run(claims, CLAIM, callbacks={approve: late}).state == "Processed"
    too_late = saga.run(
        claims, CLAIM, callbacks={approve: Late(ALLOWED, timedelta(days=2, hours=1))}
    )
    assert (too_late.state, too_late.reason) == ("Compensated", "timed-out")
    assert len([call for call in saga.service("OFFICE_URL").calls if call.order_id == "O-3"]) == 1


def test_the_address_of_a_callback_goes_to_the_service(saga: Kit) -> None:
    saga.run(claims, CLAIM)
    office = saga.service("OFFICE_URL")
    assert office.calls[0].body["answer_to"].startswith("https://app.example/api/callbacks/")


@pytest.mark.parametrize(
    ("callbacks", "error", "text"),
    [
        ({"aprove": ALLOWED}, LookupError, "has no step 'aprove': it has scan, reserve, approve"),
        ({"approve": 80}, TypeError, "the callback of approve"),
    ],
)
def test_a_callback_that_cannot_be_is_refused_at_once(
    saga: Kit, callbacks: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        saga.run(claims, CLAIM, callbacks=callbacks)


# --- faults ---


@pytest.mark.parametrize("seed", range(3))
def test_effects_happen_once_under_every_fault(saga: Kit, seed: int) -> None:
    saga.answers_lost(0.5)
    saga.calls_fail(0.3)
    saga.calls_hang(0.2)
    saga.functions_die(0.05)
    saga.every_message_twice()
    saga.restart(at=timedelta(seconds=2))
    saga.away("SCANNER_URL", timedelta(seconds=30), at=timedelta(seconds=1))
    order = saga.run(claims, CLAIM, callbacks=APPROVED, seed=seed)
    effects = saga.service("BANK_URL").effects
    assert len(effects) == (order.state == "Processed")
    assert "dies" in saga.story


def test_a_service_that_is_away_answers_again_afterwards(saga: Kit) -> None:
    saga.away("SCANNER_URL", timedelta(minutes=2))
    assert saga.run(claims, CLAIM, callbacks=APPROVED).state == "Processed"
    calls = saga.service("SCANNER_URL").calls
    assert {call.status for call in calls[:-1]} <= {None, 500, 502, 503, 429}
    assert calls[-1].status == 200


def test_a_cancelled_order_is_undone(saga: Kit) -> None:
    saga.cancel(at=timedelta(minutes=1))
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert order.state == "Compensated"
    assert not saga.service("SCANNER_URL").effects


# --- sagas that do wrong ---


@pytest.mark.parametrize(
    ("do", "does"),
    [
        (wrong.without_key, "step pay sends no Idempotency-Key with POST /charges"),
        (wrong.with_fresh_keys, "step pay sends a new key each time with POST /charges"),
    ],
)
def test_a_step_that_is_not_idempotent_fails_the_test(saga: Kit, do: wrong.Do, does: str) -> None:
    saga.answers_lost(0.7)
    assert does in failure(saga, saga_of(do), orders=8)


def test_a_key_that_two_orders_share_fails_the_test(saga: Kit) -> None:
    with pytest.raises(StoryError, match="gives with POST /charges the key of another call"):
        saga.run_all(saga_of(wrong.with_one_key), [TICKET, TICKET])


def test_an_undo_that_leaves_its_effect_fails_the_test(saga: Kit) -> None:
    saga.service("STOCK_URL").answer("POST", "/confirmations", 422)
    text = failure(saga, saga_of(wrong.careful, undoes=False))
    assert re.fullmatch(
        r"order O-1: the undo of step pay leaves its effect in force: POST /charges at BANK_URL "
        r"is not taken back by saga_of.<locals>.refund \(wrong_sagas.py:\d+\)",
        text,
    )


def test_a_mistake_is_told_once_for_all_orders(saga: Kit) -> None:
    saga.service("STOCK_URL").answer("POST", "/confirmations", 422)
    text = failure(saga, saga_of(wrong.careful, undoes=False), orders=3)
    assert text.count("leaves its effect") == 1
    assert "\n" not in text


def test_a_check_with_a_bug_ends_the_story_and_its_line_is_named(saga: Kit) -> None:
    def check(_order: Ticket) -> None:
        raise KeyError("b")

    checked = saga_of(wrong.careful)
    checked.check = check
    with pytest.raises(StoryError) as caught:
        saga.run(checked, TICKET)
    line = check.__code__.co_firstlineno + 1
    bug = f"the check of saga ticket raised KeyError: 'b' in check (test_kit.py:{line})"
    assert str(caught.value) == bug
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_step_that_swallows_an_outage_fails_the_test(saga: Kit) -> None:
    saga.away("BANK_URL", timedelta(hours=1))
    text = failure(saga, saga_of(wrong.swallows))
    assert "step pay is Processed, and its service did not do it" in text


def test_an_error_ends_the_story_at_once_and_names_the_line_of_the_adopter(saga: Kit) -> None:
    with pytest.raises(StoryError) as caught:
        saga.run(saga_of(wrong.raises), TICKET)
    assert re.fullmatch(
        r"order O-1: step pay raised KeyError: 'b' in raises \(wrong_sagas\.py:\d+\): "
        r'return \{"number": .*\}',
        str(caught.value),
    )
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_code.co_filename.endswith("wrong_sagas.py")
    assert len(saga.service("BANK_URL").calls) == 1


def test_a_result_or_an_answer_of_another_type_fails_the_test(saga: Kit) -> None:
    text = failure(saga, saga_of(wrong.returns_another_type))
    assert re.match(
        r"order O-1: step pay fails in saga_of\.<locals>\.pay \(wrong_sagas\.py:\d+\): "
        "what pay returned is no Charge: Expected `str`",
        text,
    )
    text = failure(saga, saga_of(wrong.returns_too_much))
    assert "): agent pay returned 1,048,589 bytes" in text
    saga.service("STOCK_URL").answer("POST", "/seats", body={"numbers": "S-1"})
    assert "the answer of stock to POST /seats does not fit Charge" in failure(
        saga, saga_of(wrong.careful)
    )


def test_a_socket_is_refused_with_what_to_do(saga: Kit) -> None:
    text = failure(saga, saga_of(wrong.opens_a_socket))
    assert "asks for the address of 127.0.0.1 by itself: a simulation has no network" in text


def test_a_step_that_never_ends_fails_the_test(saga: Kit) -> None:
    text = failure(saga, saga_of(wrong.never_ends))
    assert text == "order O-1: step pay asked 500 times to be called again later"


def test_a_type_that_cannot_be_drawn_is_named_with_what_to_do(saga: Kit) -> None:
    class Odd:
        pass

    tickets = Saga("ticket", Ticket)
    stock = tickets.service("STOCK_URL")

    @tickets.step()
    async def reserve(call: Call[Ticket]) -> int:
        await stock.post(call, "/seats", None, Odd)
        return 1

    assert "cannot be drawn" in failure(saga, tickets)
    assert "StandIn.answer" in saga.story


# --- the examples of the docstrings ---


def blocks(text: str) -> Iterator[str]:
    for block in re.findall(r"::\n\n((?:(?:    .*)?\n)+)", text + "\n"):
        yield textwrap.dedent(block)


@pytest.mark.parametrize("documented", [sas.testing, Kit, StandIn, StandIn.answer])
def test_the_examples_of_the_kit_run(documented: object) -> None:

    examples = list(blocks(inspect.getdoc(documented) or ""))
    assert examples
    for example in examples:
        kit = Kit()
        names: dict[str, Any] = {
            "saga": kit,
            "Kit": Kit,
            "Decimal": Decimal,
            "Approval": Approval,
            "claims": claims,
            "claim": CLAIM,
            "approved": APPROVED,
            "carrier": kit.service("OFFICE_URL"),
        }
        exec(example, names)  # noqa: S102  they are ours
        for name in [name for name in names if name.startswith("test_")]:
            names[name](Kit())


def test_every_public_name_has_a_docstring_and_is_named_in_the_kits_page() -> None:
    for name in sas.testing.__all__:
        assert getattr(sas.testing, name).__doc__
        assert f"``{name}``" in str(sas.testing.__doc__)


def test_results_are_structs_of_their_step() -> None:
    order = Kit().run(saga_of(wrong.careful), TICKET)
    assert msgspec.convert(order.results["pay"], Charge)
    with pytest.raises(LookupError, match="step approve of order O-1 has no result"):
        order.result(approve)
