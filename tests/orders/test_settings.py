"""The settings of this business: read, refused by name, and on the page of settings."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

import orders
from samples.services.contract import SERVICES
from sas.config import SettingError
from tests.unit.test_docs_settings import PAGE, ROOT, Asked

URLS = {
    "ORDERS_STOCK_URL": "http://127.0.0.1:1",
    "ORDERS_PAYMENT_URL": "https://payment.example",
    "ORDERS_SHIPPING_URL": "http://127.0.0.1:3",
    "ORDERS_MAIL_URL": "http://127.0.0.1:3",
    "ORDERS_CARRIER_URL": "http://127.0.0.1:3",
}


def test_the_business_of_the_sample_has_an_agent_for_every_step() -> None:
    business = orders.business(URLS)
    assert business.workflows.agents() == set(business.agents) == set(orders.AGENTS)
    assert {workflow.name for workflow in business.workflows} == set(business.checks)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"ORDERS_STOCK_URL": ""}, "ORDERS_STOCK_URL"),
        ({"ORDERS_PAYMENT_URL": "ftp://x"}, "ORDERS_PAYMENT_URL"),
        ({"ORDERS_SHIPPING_URL": "127.0.0.1:3"}, "ORDERS_SHIPPING_URL"),
        ({"ORDERS_TIME_ALLOWED_SECONDS": "0"}, "ORDERS_TIME_ALLOWED_SECONDS"),
        ({"ORDERS_TIME_ALLOWED_SECONDS": "86401"}, "ORDERS_TIME_ALLOWED_SECONDS"),
        ({"ORDERS_TIME_ALLOWED_SECONDS": "nan"}, "ORDERS_TIME_ALLOWED_SECONDS"),
        ({"ORDERS_ATTEMPT_SECONDS": "x"}, "ORDERS_ATTEMPT_SECONDS"),
    ],
)
def test_a_wrong_setting_of_the_business_is_refused_by_name(
    environ: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        orders.business(URLS | environ)


def test_the_time_allowed_is_a_setting() -> None:
    business = orders.business(URLS | {"ORDERS_TIME_ALLOWED_SECONDS": "7.5"})
    for workflow in business.workflows:
        assert {step.time_allowed for step in workflow.steps} == {timedelta(seconds=7.5)}
        assert {step.undo.time_allowed for step in workflow.steps if step.undo} == {
            timedelta(seconds=7.5)
        }


def rows() -> dict[str, list[str]]:
    """Return the cells of each setting of this business on the page."""
    lines = (line.strip("|").split(" | ") for line in PAGE.splitlines() if "| `ORDERS_" in line)
    return {name.strip(" `"): [cell.strip(" `") for cell in cells] for name, *cells in lines}


def test_every_setting_has_a_row_with_its_default_and_every_row_is_read() -> None:
    settings = Asked(URLS)
    orders.business(settings)
    defaults = {name: default for name, default in settings.defaults.items() if name in rows()}
    source = "".join(path.read_text() for path in (ROOT / "orders").glob("*.py"))
    assert set(rows()) == set(re.findall(r"ORDERS_[A-Z_]+[A-Z]", source))
    assert set(rows()) - set(URLS) == set(defaults) - set(URLS)
    for name, (shown, unit, meaning) in rows().items():
        default = defaults.get(name)
        assert shown == ("none" if default in {None, ""} else str(default).removesuffix(".0"))
        assert unit
        assert len(meaning) > 5


def test_every_service_of_the_sample_has_an_address_in_the_local_settings() -> None:
    settings = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    assert {f"ORDERS_{name.upper()}_URL" for name in SERVICES} <= set(settings)
    assert set(orders.business(settings).agents) == set(orders.AGENTS)
