"""Every required alert exists, for queues that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sas.domain.queues import Queues
from tests.infra.kit import INFRA, MAIN, SPAN_BYTES_AN_ORDER_MAX, declared

ALERTS = (INFRA / "operations" / "alerts.bicep").read_text()
ON_METRICS, ON_LOGS = ALERTS.split("\nvar logRules = ")
WANTED = {
    *("orders-failed", "operator-alerts-waiting", "dead-letters", "due-row-old", "breaker-open"),
    *("supervisor-silent", "orders-rejected", "operators-reminded", "orders-waiting", "logs-cut"),
    *("queue-depth", "purge-late", "queue-size"),
}
TWINS = {
    "orders-failed": "operator-alerts-waiting",  # each failed order is an alert on that queue
    "breaker-open": "operator-alerts-waiting",  # and each open breaker
    "orders-waiting": "queue-depth",
    "due-row-old": "queue-depth",
    "supervisor-silent": "state-store-idle",
    "functions-failing": "dead-letters",
    "purge-late": None,  # it can wait until tomorrow
    "logs-cut": None,  # its table is not cut off
}
"""Each alert on logs with the metric alert that tells the same when logs are cut off."""


def test_every_alert_that_is_wanted_is_there() -> None:
    assert set(re.findall(r"    name: '([\w-]+)'", ALERTS)) >= WANTED


def test_queries_read_what_the_code_emits_and_alerts_read_queries_that_are_there() -> None:
    fields = json.loads((INFRA / "telemetry-fields.json").read_text())
    emitted = set(re.findall(r"sas\.[\w.]+", json.dumps(fields)))
    queries = {path.name: path.read_text() for path in (INFRA / "kql").glob("*.kql")}
    for name, text in queries.items():
        assert set(re.findall(r"\bsas\.[\w.]+", text)) <= emitted, name
    for path in (INFRA / "operations").glob("*.bicep"):
        named = re.findall(r"/kql/([\w-]+\.kql)'", path.read_text())
        assert set(named) <= set(queries), path.name


def test_what_an_application_named_is_marked_in_the_workbook() -> None:
    for path in (INFRA / "kql").glob("*.kql"):
        if "sas.order_id" in (text := path.read_text()):
            assert "strcat('“', Order, '”')" in text, path.name


def test_every_alert_on_logs_has_a_metric_alert_for_the_hours_without_logs() -> None:
    on_logs = set(re.findall(r"    name: '([\w-]+)'\n    description", ON_LOGS))
    metric = set(re.findall(r"    name: '([\w-]+)'\n    description", ON_METRICS))
    assert set(TWINS) == on_logs
    assert {twin for twin in TWINS.values() if twin} <= metric


def test_the_daily_cap_follows_from_the_expected_orders() -> None:
    """A fixed cap of 5 GB was used up at 1.9 orders a second."""
    formula = re.search(r"dailyQuotaGb == 0 \? (\d+) \+ ordersPerDay / (\d+) : dailyQuotaGb", MAIN)
    assert formula is not None
    for orders_a_day in (1, 8_640, 100_000, 164_160, 3_283_200):
        cap = int(formula[1]) + orders_a_day // int(formula[2])
        assert cap * 1e9 > orders_a_day * 2 * SPAN_BYTES_AN_ORDER_MAX, orders_a_day


def test_alerts_on_queues_name_queues_of_the_code() -> None:
    queues = Queues()
    named = re.findall(r"values: \[('\w+-[\w', -]+)\]", ON_METRICS)
    assert set(re.findall(r"'([\w-]+)'", " ".join(named))) == {queues.alerts, queues.rejected}


def test_the_size_of_every_queue_is_watched_against_the_one_bound_that_all_have() -> None:
    kinds = json.loads((INFRA / "queues.json").read_text())["kinds"].values()
    assert len({kind["properties"]["maxSizeInMegabytes"] for kind in kinds}) == 1
    assert "list.kinds.kept.properties.maxSizeInMegabytes * 1024 * 1024 / 100 * 80" in ALERTS
    assert re.search(r"metric: \{ name: 'Size'.*threshold: queueBytesMax \}\n.*'\*'", ON_METRICS)


def test_what_comes_in_for_operators_fires_each_time_and_what_lies_there_reminds() -> None:
    """A rule on what lies there fires once, and is then silent until the queue is empty."""
    comes_in = ("IncomingMessages", "Total", "{ every: 'PT1M', window: 'PT5M' }")
    lies_there = ("ActiveMessages", "Minimum", "{ every: 'PT1H', window: 'P1D' }")
    for name, (metric, aggregation, times) in {
        "operator-alerts-waiting": comes_in,
        "orders-rejected": comes_in,
        "operators-reminded": lies_there,
    }.items():
        rule = ON_METRICS.partition(f"    name: '{name}'")[2].partition("\n    name: '")[0]
        figures = f"name: '{metric}', aggregation: '{aggregation}', operator: 'GreaterThan'"
        assert f"metric: {{ {figures}, threshold: 0 }}\n" in rule, name
        assert f"    times: {times}\n" in rule, name


def test_every_alert_wakes_the_action_group() -> None:
    resources = declared(Path("operations/alerts.bicep"), "resource")
    alerts = [each for each in resources if "Alerts" in each.symbol or each.symbol == "budget"]
    assert [each.symbol for each in alerts] == ["metricAlerts", "logAlerts", "budget"]
    assert all("actionGroup.id" in each.text for each in alerts)


def test_always_ready_instances_are_of_functions_that_exist() -> None:
    from tests.indexed_functions import functions  # noqa: PLC0415  # slow to import

    named = re.findall(r"function:([a-z_]+)", MAIN)
    assert sorted(named) == ["scheduler", "submission"]
    assert set(named) <= set(functions())
