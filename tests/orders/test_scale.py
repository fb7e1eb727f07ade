"""docs/scale.md says what is counted here; and one whole order leaves no secret in the logs."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from devstack.azurite import Azurite
from sas.adapters.clock import SystemClock
from tests.infra.kit import ROOT
from tools.infra_count import ORDERS, run

SCALE = (ROOT / "docs" / "scale.md").read_text()
COUNTED_REQUESTS = 9.5
COUNTED_MESSAGES = 10
COUNTED_ROWS = 54
SWEEP_REQUESTS = 18
CREDITS_PER_S = 1000
PARTITION_ROWS_PER_S = 2000
ACCOUNT_PER_S = 20_000
SHARDS = 16


class StillClock(SystemClock):
    """A clock that stands: how often something is looked up does not depend on the machine."""

    def __init__(self) -> None:
        self._now = super().now()

    def now(self) -> datetime:
        return self._now


@pytest.fixture(scope="module")
def azurite() -> Any:
    with Azurite() as running:
        yield running


async def test_an_order_costs_what_the_page_says_and_leaves_no_secret_in_the_logs(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="sas")
    lines = ORDERS.read_text().splitlines()[:6]
    counted = await run(azurite.connection_string, lines, StillClock())
    # Agents look things up once in a while: six orders bear more of that than fifty.
    assert 9 <= counted["storage requests per order, all"] <= COUNTED_REQUESTS + 2
    assert counted["messages per order, all"] == COUNTED_MESSAGES
    rows = counted["rows written per order"] + counted["rows read per order"]
    assert rows <= COUNTED_ROWS + 2
    # The lease takes two more: this clock stands still, so it is not renewed.
    assert counted["storage requests of a sweep that finds nothing"] == SWEEP_REQUESTS - 2
    secrets = [part.partition("=")[2] for part in azurite.connection_string.split(";")]
    key = max(secrets, key=len)
    content = "rue de l'Abbaye"  # of the first order's address
    assert content in lines[0]
    assert caplog.records
    for record in caplog.records:
        assert key not in record.getMessage()
        assert content not in record.getMessage()


@pytest.mark.parametrize(
    "figure",
    [
        f"{COUNTED_REQUESTS} requests",
        f"{COUNTED_MESSAGES} messages",
        f"{COUNTED_ROWS} rows",
        f"{CREDITS_PER_S // (2 * COUNTED_MESSAGES)} orders a second",
        f"{SHARDS * PARTITION_ROWS_PER_S // COUNTED_ROWS} orders a second",
        f"{ACCOUNT_PER_S // COUNTED_ROWS} orders a second",
        f"{round(ACCOUNT_PER_S / COUNTED_REQUESTS, -1):,.0f} orders a second",
        f"{3 * COUNTED_MESSAGES} million operations",
        f"{6 * 60 * 24 * 30 * SWEEP_REQUESTS / 1e6:.1f} million requests a month",
    ],
)
def test_the_page_s_arithmetic_follows_from_what_was_counted(figure: str) -> None:
    assert figure in SCALE


def test_the_list_of_queues_fits_one_namespace() -> None:
    """10,000 queues a namespace: the page says so, and applications are bounded by main.bicep."""
    assert "10,000" in SCALE
    main = (ROOT / "infra" / "main.bicep").read_text()
    assert "@maxLength(200)\nparam applications" in main


def test_documents_of_security_are_there_and_name_what_holds_each_threat() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = {word.strip("`") for word in text.split() if word.startswith("`tests/")}
    assert named
    for name in {path.split("::")[0].rstrip("`,.;)") for path in named}:
        assert list(ROOT.glob(name)) or Path(ROOT / name).exists(), name
