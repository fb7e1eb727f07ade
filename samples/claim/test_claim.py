"""The tests of the claim."""

from datetime import timedelta
from decimal import Decimal

from samples.claim.claim import Approval, Claim, approve, claims, pay
from sas.testing import Kit, Late, Refusal

CLAIM = Claim(employee="ann", receipt="r-17", amount=Decimal(100))
APPROVED = {"approve": Approval(allowed=Decimal(80))}


def test_a_claim_is_paid(saga: Kit) -> None:
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert order.state == "Processed"
    assert order.result(approve).allowed == 80
    (payment,) = saga.service("BANK_URL").effects
    assert payment.body["amount"] == "80"


def test_a_refused_payment_leaves_nothing(saga: Kit) -> None:
    bank = saga.service("BANK_URL")
    bank.answer("POST", "/payments", 422, code="no-account")
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert (order.state, order.reason) == ("Compensated", "no-account")
    assert not bank.effects
    assert not saga.service("BUDGET_URL").effects


def test_a_manager_refuses(saga: Kit) -> None:
    order = saga.run(claims, CLAIM, callbacks={approve: Refusal("no-budget", "too much")})
    assert (order.state, order.reason) == ("Compensated", "no-budget")
    assert not saga.service("BANK_URL").calls


def test_a_manager_never_answers(saga: Kit) -> None:
    assert saga.run(claims, CLAIM).state == "Compensated"


def test_a_bank_that_is_away_for_an_hour_pays_afterwards(saga: Kit) -> None:
    saga.away("BANK_URL", timedelta(hours=1))
    approval = Late(Approval(allowed=Decimal(80)), timedelta(minutes=1))
    assert saga.run(claims, CLAIM, callbacks={approve: approval}).state == "Processed"


def test_effects_happen_once_whatever_is_lost_and_whoever_dies(saga: Kit) -> None:
    saga.answers_lost()
    saga.functions_die()
    order = saga.run(claims, CLAIM, callbacks=APPROVED)
    assert len(saga.service("BANK_URL").effects) == (order.state == "Processed")
    assert order.result(pay).number
