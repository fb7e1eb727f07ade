"""Every required alert exists, for queues that exist."""

from __future__ import annotations

import json
import re

import pytest

from sas.domain.queues import Queues
from tests.infra.kit import INFRA
from tests.integration.test_worker_core_logs import SPAN_BYTES_AN_ORDER_MAX

QUEUE_ALERTS = (INFRA / "operations" / "queue-alerts.bicep").read_text()
QUERY_ALERTS = (INFRA / "operations" / "query-alerts.bicep").read_text()
STATE_ALERTS = (INFRA / "operations" / "state-alerts.bicep").read_text()
MAIN = (INFRA / "main.bicep").read_text()
WANTED = {
    "orders-failed",
    "operator-alerts-waiting",
    "dead-letters",
    "due-row-old",
    "supervisor-silent",
    "breaker-open",
    "orders-rejected",
    "queue-depth",
    "logs-cut",
    "purge-late",
}
TWINS = {
    "orders-failed": "operator-alerts-waiting",  # each failed order is an alert on that queue
    "breaker-open": "operator-alerts-waiting",  # and each open breaker
    "due-row-old": "queue-depth",
    "supervisor-silent": "state-store-idle",
    "functions-failing": "dead-letters",
    "purge-late": None,  # it can wait until tomorrow
    "logs-cut": None,  # its table is not cut off
}
"""Each alert on logs with the metric alert that tells the same when logs are cut off."""


def test_every_alert_that_is_wanted_is_there() -> None:
    assert set(re.findall(r"    name: '([\w-]+)'", QUEUE_ALERTS + QUERY_ALERTS)) >= WANTED


def test_queries_read_what_the_code_emits_and_alerts_read_queries_that_are_there() -> None:
    fields = json.loads((INFRA / "telemetry-fields.json").read_text())
    emitted = set(re.findall(r"sas\.[\w.]+", json.dumps(fields)))
    queries = {path.name: path.read_text() for path in (INFRA / "kql").glob("*.kql")}
    for name, text in queries.items():
        assert set(re.findall(r"\bsas\.[\w.]+", text)) <= emitted, name
    for path in (INFRA / "operations").glob("*.bicep"):
        named = re.findall(r"/kql/([\w-]+\.kql)'", path.read_text())
        assert set(named) <= set(queries), path.name


def test_comments_on_how_often_things_run_agree_with_the_schedules() -> None:
    """With a window of a day, the alert of a late purge stayed on for a day after the repair."""
    assert "param purgeSchedule string = '0 5/10 * * * *'" in MAIN
    assert "window: 'PT3H' // the purge runs every ten minutes" in QUERY_ALERTS
    assert "param supervisorSchedule string = '*/10 * * * * *'" in MAIN
    assert "asks each shard every ten seconds" in STATE_ALERTS


def test_every_alert_on_logs_has_a_metric_alert_for_the_hours_without_logs() -> None:
    on_logs = set(re.findall(r"    name: '([\w-]+)'\n    description", QUERY_ALERTS))
    metric = set(re.findall(r"    name: '([\w-]+)'\n    description", QUEUE_ALERTS))
    metric |= set(re.findall(r"\$\{namePrefix\}([\w-]+)'", QUEUE_ALERTS + STATE_ALERTS))
    assert set(TWINS) == on_logs
    assert {twin for twin in TWINS.values() if twin} <= metric


@pytest.mark.parametrize(
    ("orders_a_second", "gigabytes"), [(0.1, 1), (1.9, 7), (38, 132), (100_000 / 86_400, 5)]
)
def test_the_daily_cap_follows_from_the_expected_orders(
    orders_a_second: float, gigabytes: int
) -> None:
    """A fixed cap of 5 GB was used up at 1.9 orders a second."""
    formula = re.search(r"dailyQuotaGb == 0 \? (\d+) \+ ordersPerDay / (\d+) : dailyQuotaGb", MAIN)
    assert formula is not None
    a_day = round(orders_a_second * 86_400)
    cap = int(formula[1]) + a_day // int(formula[2])
    assert cap == gigabytes
    assert cap * 1e9 > a_day * 2 * SPAN_BYTES_AN_ORDER_MAX


def test_recipients_of_alerts_are_those_of_the_setting() -> None:
    platform = (INFRA / "modules" / "platform.bicep").read_text()
    assert "mailAddresses: empty(operatorMail) ? [] : split(replace(operatorMail" in platform
    parameters = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]
    assert parameters["operatorMail"]["value"] == "${SAS_OPERATOR_MAIL=}"
    assert "webhookAddresses: operatorWebhooks\n" in platform
    assert parameters["operatorWebhooks"]["value"] == "${SAS_OPERATOR_WEBHOOKS=}"


def test_alerts_on_queues_name_queues_of_the_code() -> None:
    queues = Queues()
    named = re.findall(r"queues: \[\s+'([\w-]+)'", QUEUE_ALERTS)
    assert set(named) == {queues.alerts, queues.rejected}


def test_dead_letters_are_watched_in_every_queue() -> None:
    assert re.search(r"metric: 'DeadletteredMessages'\s+queues: \[\s+'\*'\s+\]", QUEUE_ALERTS)


def test_every_alert_says_what_it_means() -> None:
    for text in (QUEUE_ALERTS, QUERY_ALERTS):
        rules = re.findall(r"\n  \{\n    name: '[\w-]+'\n    (\w+): '(.{30,})'", text)
        assert len(rules) == len(re.findall(r"\n  \{\n    name: '", text))
        assert {member for member, _ in rules} == {"description"}


def test_every_alert_wakes_the_action_group() -> None:
    for path in (INFRA / "operations").glob("*-alerts.bicep"):
        text = path.read_text()
        alerts = len(re.findall(r"^resource ", text, re.MULTILINE))
        assert (
            len(re.findall(r"^ +(?:actionGroupId: )?actionGroupId$", text, re.MULTILINE)) == alerts
        )


def test_always_ready_instances_are_of_functions_that_exist() -> None:
    from tests.indexed_functions import functions  # noqa: PLC0415  # slow to import

    platform = (INFRA / "modules" / "platform.bicep").read_text()
    named = set(re.findall(r"'function:(\w+)'", platform))
    assert named == {"submission", "scheduler"}
    assert named <= set(functions())
