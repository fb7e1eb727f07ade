"""Every required alert exists, for queues that exist."""

from __future__ import annotations

import re

from sas.domain.queues import Queues
from tests.infra.kit import INFRA

QUEUE_ALERTS = (INFRA / "operations" / "queue-alerts.bicep").read_text()
QUERY_ALERTS = (INFRA / "operations" / "query-alerts.bicep").read_text()
WANTED = {
    "orders-failed",
    "operator-alerts-waiting",
    "dead-letters",
    "due-row-old",
    "supervisor-silent",
    "breaker-open",
    "orders-rejected",
    "queue-depth",
}


def test_every_alert_that_is_wanted_is_there() -> None:
    assert set(re.findall(r"    name: '([\w-]+)'", QUEUE_ALERTS + QUERY_ALERTS)) >= WANTED


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
