"""docs/scale.md says what was counted, and its arithmetic follows from that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sas.cli import counts
from tests.infra.kit import ROOT

SCALE = (ROOT / "docs" / "scale.md").read_text()
ORDER = counts.ORDER_APART.usage
ROWS = ORDER.entities_read + ORDER.entities_written
SWEEP = counts.SWEEP.usage.requests
CREDITS_PER_S = 1000
PARTITION_ROWS_PER_S = 2000
ACCOUNT_PER_S = 20_000
SHARDS = 16
PURGE = counts.PURGE_ORDER.usage + counts.PURGE_TOGETHER.usage  # one that goes alone
PURGED = PURGE.entities_read + PURGE.entities_written


@pytest.mark.parametrize(
    "figure",
    [
        f"{ORDER.requests} requests: {ORDER.transactions} transactions",
        f"{ORDER.messages} messages",
        f"{ROWS} rows: {ORDER.entities_written} written",
        f"{sum(counts.ORDER_APART.executions.values())} executions",
        f"a sweep that finds nothing: {SWEEP} requests",
        f"{CREDITS_PER_S // (2 * ORDER.messages)} orders a second",
        f"{SHARDS * PARTITION_ROWS_PER_S // ROWS} orders a second",
        f"{ACCOUNT_PER_S // ROWS} orders a second",
        f"{ACCOUNT_PER_S // ORDER.requests:,} orders a second",
        f"{PURGE.requests} requests: {PURGE.entities_read} rows read, {PURGE.entities_written}",
        f"{ACCOUNT_PER_S // (ROWS + PURGED)} orders a second** while the purge",
        f"{sum(counts.ORDER_APART.executions.values())} seconds of 2 GB".replace("8", "eight"),
        f"{6 * 60 * 24 * 30 * SWEEP / 1e6:.1f} million requests a month",
    ],
)
def test_the_page_s_arithmetic_follows_from_what_was_counted(figure: str) -> None:
    assert figure in SCALE


def test_the_list_of_queues_fits_one_namespace() -> None:
    """10,000 queues a namespace: the page says so, and applications are bounded by main.bicep."""
    assert "10,000" in SCALE
    main = (ROOT / "infra" / "main.bicep").read_text()
    assert "@maxLength(200)\nparam applications" in main


def test_every_queue_of_a_full_namespace_fits_one_messaging_unit() -> None:
    listed = json.loads((ROOT / "infra" / "queues.json").read_text())
    own = len(listed["queues"]) + 1
    assert f"{own} queues, and 1 to 3 for each application" in SCALE
    most = own + 3 * 200
    assert most <= 1000
    assert f"{most} queues at most fit one unit" in SCALE


def test_the_example_of_stamps_routes_as_on_the_page() -> None:
    """Equal customers meet, one more stamp moves few of them, and each order's id names it."""
    [code] = re.findall(r"```python\n(.*?)```", SCALE, re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile(code, "scale.md", "exec"), made)  # noqa: S102  the page's own example
    customers = [f"customer-{number}" for number in range(3000)]
    three, four = ["s01", "s02", "s03"], ["s01", "s02", "s03", "s04"]
    before = {one: made["stamp_of"](one, three) for one in customers}
    after = {one: made["stamp_of"](one, four) for one in customers}
    moved = [one for one in customers if before[one] != after[one]]
    assert {after[one] for one in moved} == {"s04"}
    assert 0.15 < len(moved) / len(customers) < 0.35
    assert 0.2 < list(before.values()).count("s01") / len(customers) < 0.5
    assert made["order_id"]("s02", "10248") == "s02-10248"


def test_documents_of_security_are_there_and_name_what_holds_each_threat() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = {word.strip("`") for word in text.split() if word.startswith("`tests/")}
    assert named
    for name in {path.split("::")[0].rstrip("`,.;)") for path in named}:
        assert list(ROOT.glob(name)) or Path(ROOT / name).exists(), name


def test_every_number_of_messaging_units_on_the_page_can_be_deployed() -> None:
    main = (ROOT / "infra" / "main.bicep").read_text()
    before = main.partition("param messagingUnits")[0]
    allowed = set(re.findall(r"\d+", before[before.rindex("@allowed(") :]))
    named = re.findall(r"Premium with (\d+) units?|--premium (\d+)", SCALE)
    listed = re.search(r"a namespace has ([\d, ]+) or (\d+) \|", SCALE)
    assert named
    assert {one or other for one, other in named} <= allowed
    assert listed is not None
    assert {*listed[1].split(", "), listed[2]} == allowed


def test_the_advice_at_the_limit_of_orders_follows_from_the_table() -> None:
    each = re.search(r"(\d+) orders a second for each unit", SCALE)
    assert each is not None
    advised = re.findall(r"up to (\d+): Premium with (\d+) units", SCALE)
    assert len(advised) == 2
    for orders, units in advised:
        assert int(orders) <= int(units) * int(each[1])
        assert int(orders) <= ACCOUNT_PER_S // (ROWS + PURGED)
