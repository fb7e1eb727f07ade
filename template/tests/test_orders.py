"""The saga under faults, in virtual time and without Azure."""

import subprocess
import sys
from datetime import timedelta

from orders import Order, orders
from sas.testing import Kit

TEA = Order("tea", 2, card="4000-1")


def test_an_order_reserves_and_pays(saga: Kit) -> None:
    assert saga.run(orders, TEA).state == "Processed"
    assert len(saga.service("PAYMENT_URL").effects) == 1


def test_a_declined_card_gives_the_stock_back(saga: Kit) -> None:
    saga.service("PAYMENT_URL").answer("POST", "/charges", 422, code="declined")
    order = saga.run(orders, TEA)
    assert (order.state, order.reason) == ("Compensated", "declined")
    assert not saga.service("STOCK_URL").effects


def test_a_payment_service_that_is_away_for_an_hour_fails_no_order(saga: Kit) -> None:
    saga.away("PAYMENT_URL", timedelta(hours=1))
    assert saga.run(orders, TEA).state == "Processed"


def test_what_follows_from_the_sagas_is_up_to_date() -> None:
    command = [sys.executable, "-m", "sas.cli", "infra", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run `sas infra`"
