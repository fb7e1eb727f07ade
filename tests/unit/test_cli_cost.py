"""``sas cost``: the quantities follow from what was counted, the money from a file of prices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orders import AGENTS
from sas.cli import counts
from sas.cli.bill import (
    DAYS,
    ITEMS,
    LOG_ALERTS,
    Load,
    Price,
    bill,
    billed_seconds,
    metric_series,
    quantities,
    queue_functions,
)
from sas.cli.cost import read_prices
from sas.cli.main import main
from tests.indexed_functions import functions
from tests.unit.cli_kit import shown_in

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "samples" / "prices.json"
DAY = 86_400.0
PAGE = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")


def with_item(item: str, tiers: Any) -> str:
    price = {"tiers": tiers, "region": "r", "date": "2026-01-01", "source": "https://example.com"}
    return json.dumps({"currency": "EUR", "items": {item: price}})


def priced(tmp_path: Path, *, without: str = "") -> str:
    """Write a file of prices in which each item costs one."""
    one = json.loads(with_item("x", [[0, 1]]))["items"]["x"]
    file = tmp_path / "prices.json"
    items = {item: one for item in ITEMS if item != without}
    file.write_text(json.dumps({"currency": "EUR", "items": items}))
    return str(file)


def test_the_quantities_of_orders_are_those_that_were_counted() -> None:
    idle, busy = quantities(Load(0)), quantities(Load(1000))
    more = {item: busy[item] - idle[item] for item in busy}
    order = counts.ORDER_APART
    assert more["service-bus-operations"] * 1e6 == pytest.approx(
        DAYS * 1000 * 3 * order.usage.messages
    )
    purge = (counts.PURGE_ORDER, counts.PURGE_TOGETHER, counts.PURGE_BATCH)  # few: each alone
    purged = 1000 * sum(one.usage.requests for one in purge)
    assert more["storage-requests"] * 10_000 == pytest.approx(
        DAYS * (1000 * order.usage.requests + purged)
    )
    assert more["functions-executions"] * 1e6 == pytest.approx(
        DAYS * 1000 * sum(order.executions.values())
    )
    assert more["storage-capacity"] * 1e9 == pytest.approx(
        30 * 1000 * (counts.STORED_BYTES_ORDER + 2 * 1000)
    )


def test_idling_is_the_sweeps_the_health_checks_and_empty_purges() -> None:
    idle = quantities(Load(0))
    day = 24 * counts.IDLE_HOUR.usage.requests + 144 * counts.PURGE_RUN.usage.requests
    assert idle["storage-requests"] * 10_000 == pytest.approx(DAYS * day)
    assert idle["functions-executions"] * 1e6 == pytest.approx(DAYS * (24 * 360 + 144))
    assert idle["functions-time"] == pytest.approx(DAYS * 2 * (8640 + 144))  # a second each, 2 GB


def test_an_order_that_comes_alone_is_billed_a_second_for_each_execution() -> None:
    """Eight functions run for a tenth of a second, or half a second more: 16 GB seconds."""
    for orders in (1, 10, 100):
        alone = quantities(Load(orders))["functions-time"] - quantities(Load(0))["functions-time"]
        assert alone / (DAYS * orders) == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize("each_s", [0.1, 0.5, 3.0])
def test_executions_that_do_not_overlap_are_billed_at_least_a_second_each(each_s: float) -> None:
    assert billed_seconds(24, each_s, DAY) == pytest.approx(24 * max(1, each_s), rel=0.01)


def test_a_busy_instance_is_billed_all_the_time_and_never_twice() -> None:
    assert billed_seconds(0, 0.1, DAY) == 0
    assert billed_seconds(2_000_000, 0.1, DAY) == DAY
    assert billed_seconds(864_000, 1.0, DAY) == pytest.approx(DAY, rel=0.001)
    found = [billed_seconds(float(n), 0.1, DAY) for n in (10, 1e3, 1e5, 1e6, 1e7, 1e8)]
    assert found == sorted(found)


def test_more_executions_at_once_than_an_instance_takes_need_more_instances() -> None:
    rate, each_s = 40.0, 2.0  # 80 at once, 16 of them on an instance
    assert billed_seconds(rate * DAY, each_s, DAY) == pytest.approx(5 * DAY, rel=0.001)


def test_an_instance_with_less_memory_has_less_of_a_core_and_more_of_them_are_needed() -> None:
    assert billed_seconds(100 * DAY, 0.1, DAY) == pytest.approx(2 * DAY, rel=0.01)
    assert billed_seconds(100 * DAY, 0.1, DAY, 0.05) == pytest.approx(5 * DAY, rel=0.15)
    small, large = (quantities(Load(5e6, memory_gb=gb))["functions-time"] for gb in (0.5, 2.0))
    assert large / 4 < small < large


def test_orders_that_come_in_fewer_hours_overlap_more() -> None:
    spread, burst = (quantities(Load(200_000, hours))["functions-time"] for hours in (24, 2))
    assert burst < spread


def test_further_steps_cost_what_was_counted_for_each() -> None:
    three, five = (quantities(Load(1000, steps=steps)) for steps in (3, 5))
    more = {item: five[item] - three[item] for item in five}
    requests = 2 * 1000 * counts.STEP_APART.usage.requests
    assert more["storage-requests"] * 10_000 == pytest.approx(DAYS * requests)
    assert more["functions-executions"] * 1e6 == pytest.approx(DAYS * 1000 * 4)


def test_a_price_has_tiers_and_what_lies_below_the_first_is_free() -> None:
    price = Price(((13, 0.8), (100, 0.5), (2500, 0.2)), "r", "d", "s")
    assert price.cost(12.9) == 0
    assert price.cost(14) == pytest.approx(0.8)
    assert price.cost(200) == pytest.approx(87 * 0.8 + 100 * 0.5)
    assert price.cost(3000) == pytest.approx(87 * 0.8 + 2400 * 0.5 + 500 * 0.2)


def test_premium_is_billed_by_its_units_and_not_by_operations() -> None:
    prices = read_prices(str(EXAMPLE))
    standard = {line.item for line in bill(Load(1), prices)}
    premium = {line.item: line.cost for line in bill(Load(1, premium_units=2), prices)}
    assert standard - set(premium) == {"service-bus-base", "service-bus-operations"}
    assert premium["service-bus-premium"] == pytest.approx(2 * 677.08)


def test_an_item_without_a_price_is_named_and_left_out_of_the_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = priced(tmp_path)
    assert main(["cost", "--orders", "10", "--prices", whole, "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["a_month"]
    file = priced(tmp_path, without="alerts-logs")
    assert main(["cost", "--orders", "10", "--prices", file, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["without"] == ["alerts-logs"]
    assert found["a_month"] == pytest.approx(total - LOG_ALERTS)
    assert main(["cost", "--orders", "10", "--prices", file]) == 1
    said = capsys.readouterr().out
    assert "no price" in said
    assert "Without a price, and not in the total: alerts-logs." in said


def test_the_json_has_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["cost", "--orders", "1000", "--spread", "8", "--prices", str(EXAMPLE)]
    assert main([*typed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(typed) == 0
    said = capsys.readouterr().out
    assert found["a_month"] == pytest.approx(sum(one["a_month"] for one in found["items"]))
    assert found["a_day"] == pytest.approx(found["a_month"] / DAYS)
    assert found["idling_a_month"] < found["a_month"]
    for one in found["items"]:
        money = (
            f"{one['a_month']:,.2f}" if one["a_month"] >= 0.005 or not one["a_month"] else "<0.01"
        )
        assert re.search(rf"^{one['item']} .* {money}$", said, re.MULTILINE)
    assert re.search(rf"^total .* {found['a_month']:,.2f}$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "prices.json: Input data was truncated (samples/prices.json shows the form)"),
        ('{"currency": "EUR"}', "missing required field `items`"),
        ('{"currency": "EUR", "items": {}, "x": 1}', "unknown field `x`"),
        (with_item("disks", [[0, 1]]), "there is no item 'disks'; use functions-exec"),
        (with_item("key-vault", [[5, 1], [0, 2]]), "key-vault: give tiers as pairs [from, price]"),
        (with_item("key-vault", [[0, -1]]), "key-vault: give tiers as pairs [from, price]"),
        (with_item("key-vault", []), "key-vault: give tiers as pairs [from, price], from 0 on"),
        (with_item("key-vault", "0"), "Expected `array`, got `str` - at `$.items[...].tiers`"),
    ],
)
def test_a_file_of_prices_that_is_wrong_is_refused_with_the_place(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    assert main(["cost", "--orders", "1", "--prices", str(file)]) == 2
    assert why in capsys.readouterr().err


def test_without_a_file_or_a_number_of_orders_the_command_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", "--orders", "1"]) == 2
    assert "give --orders N and --prices FILE (or --counts)" in capsys.readouterr().err
    missing = str(tmp_path / "no.json")
    assert main(["cost", "--orders", "1", "--prices", missing]) == 2
    assert "it cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_file_of_prices_that_is_not_utf_8_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prices.json"
    file.write_bytes(b'{"currency": "\xff", "items": {}}')
    assert main(["cost", "--orders", "1", "--prices", str(file)]) == 2
    assert "prices.json: 'utf-8' codec can't decode" in capsys.readouterr().err


def test_the_counts_are_shown_with_each_recovery(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--counts"]) == 0
    said = capsys.readouterr().out
    for name, count in counts.RECOVERIES.items():
        assert re.search(rf"^{name} ", said, re.MULTILINE)
        assert count.what in said
    assert main(["cost", "--counts", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["of"], first["transactions"], first["messages"]) == ("order", 5, 10)
    assert first["executions"] == dict(counts.ORDER.executions)


def test_every_price_of_the_example_says_where_it_comes_from() -> None:
    prices = read_prices(str(EXAMPLE))
    assert list(prices.items) == list(ITEMS)
    for item, price in prices.items.items():
        assert price.source.startswith("https://"), item
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", price.date), item
        assert price.region, item


def test_the_alerts_and_the_functions_are_those_that_are_deployed() -> None:
    operations = ROOT / "infra" / "operations"
    rules = (operations / "query-alerts.bicep").read_text().split("var rules = [")[1]
    assert len(re.findall(r"^    name: '", rules, re.MULTILINE)) == LOG_ALERTS
    listed = json.loads((ROOT / "infra" / "queues.json").read_text())
    assert (
        metric_series(len(AGENTS))
        == len(listed["queues"]) + 2 + len(listed["access"]["appReceives"]) + 8
    )
    triggers = [
        one.get_trigger().get_dict_repr()["type"] for one in functions().values()
    ]  # fmt: skip
    assert queue_functions(len(AGENTS)) == triggers.count("serviceBusTrigger")


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = shown_in(PAGE)
    assert [command.split()[1] for command, _ in shown] == ["--orders", "--counts"]
    for command, output in shown:
        main(command.split())
        assert capsys.readouterr().out.splitlines() == output, command


def test_the_totals_on_the_page_are_those_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = re.findall(r"^\| `(--orders .+)` \| ([\d.]+) \| ([\d.]+|-) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for options, month, each in rows:
        main(["cost", *options.split(), "--prices", str(EXAMPLE)])
        printed = capsys.readouterr().out
        (total,) = re.findall(r"^total .* ([\d.]+)$", printed, re.MULTILINE)
        beside = re.findall(r"1,000 orders cost ([\d.]+) USD", printed)
        assert (total, beside or ["-"]) == (month, [each]), options
