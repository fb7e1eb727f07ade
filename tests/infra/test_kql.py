"""Queries ask only for what telemetry-fields.json lists; alerts read columns that exist."""

# ruff: noqa: E501  # tables: a case a line

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sas.domain.order import OrderState
from tests.infra.kit import INFRA
from tools.infra_kql import check_query, read_fields, results

FIELDS = read_fields(INFRA / "telemetry-fields.json")
QUERIES = sorted((INFRA / "kql").glob("*.kql"))
ALERTS = (INFRA / "operations" / "query-alerts.bicep").read_text()
WORKBOOK = (INFRA / "operations" / "workbook.bicep").read_text()
PROMISED = {
    "sas.orders",
    "sas.step.duration",
    "sas.agent.attempts",
    "sas.sweep.age",
    "sas.replies.late",
    "sas.conflicts",
    "sas.storage.requests",
}

BREAKS = [
    ("a metric that is none", "failed.kql", "sas.orders", "sas.order", "no metric sas.order"),
    ("an attribute of another metric", "failed.kql", "sas.state", "sas.agent", "no attribute sas.agent"),
    ("a state that is none", "failed.kql", "'Error'", "'Failed'", "never 'Failed'"),
    ("a column that is none", "failed.kql", "sum(Sum)", "sum(Value)", "no column Value"),
    ("a table that is none", "failed.kql", "AppMetrics", "customMetrics", "none of the tables"),
    ("no metric at all", "failed.kql", "| where Name == 'sas.orders'\n", "", "names no metric"),
    ("a column of another table", "failing.kql", "Success", "Sum", "no column Sum"),
    ("a span that is none", "failing.kql", "'submission'", "'submit order'", "no span submit order"),
    ("an attribute no log line has", "order-log.kql", "sas.epoch", "sas.try", "no attribute sas.try"),
    ("a value outside a list", "fingerprint.kql", "'silent'", "'lost'", "never 'lost'"),
]  # fmt: skip


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.stem)
def test_a_query_asks_for_what_is_emitted(path: Path) -> None:
    assert check_query(path.read_text(), FIELDS) == []


@pytest.mark.parametrize("case", BREAKS, ids=[case[0] for case in BREAKS])
def test_a_query_broken_on_purpose_is_refused(case: tuple[str, str, str, str, str]) -> None:
    _, name, old, new, said = case
    path = next(path for path in QUERIES if path.name.endswith(name))
    text = path.read_text()
    assert old in text
    problems = check_query(text.replace(old, new), FIELDS)
    assert any(said in problem for problem in problems), problems


def test_the_alert_on_failures_counts_our_own_spans_and_all_of_them_that_handle_messages() -> None:
    """The host's own requests are left out: what it exports depends on the worker."""
    text = (INFRA / "kql" / "alert-functions-failing.kql").read_text()
    named = set(re.findall(r"'([a-z -]+[a-z])'", text.partition(" in (")[2].partition(")")[0]))
    spans = json.loads((INFRA / "telemetry-fields.json").read_text())["spans"]
    others = {"submit", "callback endpoint", "callback act", "purge"}
    expected = {name for name in spans if not name.startswith(("agent ", "supervisor "))} - others
    assert named == expected
    assert "or Name startswith 'agent '" in text


def test_no_query_counts_on_what_the_host_stops_exporting() -> None:
    """With PYTHON_ENABLE_OPENTELEMETRY: Function.*, Host.Results, Microsoft.Azure.WebJobs.*"""
    for path in QUERIES:
        text = path.read_text()
        assert not re.search(r"Function\.|Host\.Results|WebJobs|AppExceptions|host\.json", text), (
            path
        )
        if "AppRequests" in text:
            assert "Name in (" in text, f"{path}: name our own spans"


def test_every_query_is_used_and_every_used_query_is_there() -> None:
    used = set(re.findall(r"loadTextContent\('\.\./kql/([\w-]+\.kql)'\)", ALERTS + WORKBOOK))
    assert used == {path.name for path in QUERIES}


def test_every_alert_reads_a_column_of_its_query() -> None:
    pairs = re.findall(r"kql/([\w-]+\.kql)'\)\s+column: '(\w+)'", ALERTS)
    assert len(pairs) == ALERTS.count("loadTextContent")
    for name, column in pairs:
        assert column in results((INFRA / "kql" / name).read_text())


def test_an_alert_on_silence_has_a_row_even_when_there_is_nothing() -> None:
    """A summary by something has no row where there is no data, and would never alert."""
    last = (INFRA / "kql" / "alert-supervisor-silent.kql").read_text().strip().splitlines()[-1]
    assert last.startswith("| summarize")
    assert " by " not in last


def test_the_promised_metrics_and_log_attributes_are_listed() -> None:
    assert set(FIELDS.metrics) >= PROMISED
    assert {"sas.order_id", "sas.step", "sas.epoch"} == FIELDS.log_attributes


def test_no_metric_carries_an_order_id() -> None:
    """One series an order would cost more than the orders do."""
    assert [n for n, m in FIELDS.metrics.items() if "sas.order_id" in m["attributes"]] == []


def test_every_metric_is_looked_at_by_somebody() -> None:
    texts = "".join(path.read_text() for path in QUERIES)
    assert [name for name in FIELDS.metrics if f"'{name}'" not in texts] == []


def test_values_are_listed_for_attributes_that_exist() -> None:
    for metric in FIELDS.metrics.values():
        assert set(metric.get("values", {})) <= set(metric["attributes"])


def test_the_states_listed_are_the_states_of_the_code() -> None:
    listed = FIELDS.metrics["sas.orders"]["values"]["sas.state"]
    assert set(listed) == {state.value for state in OrderState}
