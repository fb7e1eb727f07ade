"""The saga under faults, in virtual time and without Azure."""

from datetime import timedelta

from orders import Order, orders
from sas.testing import Kit

TEA = Order("tea", 2, card="4000-1")


def test_an_order_reserves_and_pays(saga: Kit) -> None:
    order = saga.run(orders, TEA)
    assert order.state == "Processed"


def test_a_declined_card_gives_the_stock_back(saga: Kit) -> None:
    stock, payment = saga.service("STOCK_URL"), saga.service("PAYMENT_URL")
    payment.answer("POST", "/charges", 422, code="declined")
    order = saga.run(orders, TEA)
    assert order.state == "Compensated"
    assert not stock.effects


def test_a_payment_service_that_is_away_for_an_hour_fails_no_order(saga: Kit) -> None:
    saga.away("PAYMENT_URL", timedelta(hours=1))
    assert saga.run(orders, TEA).state == "Processed"
