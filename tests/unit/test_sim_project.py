"""``sas sim`` refuses files of a project that cannot be used, in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from sas.testing.platform import PlatformFileError, host_rules, queue_rules


@pytest.mark.parametrize(
    "text",
    [
        '{"kinds": {"kept": {"properties": 0}}}',
        '{"kinds": {"kept": {"properties": {"maxDeliveryCount": "many"}}}}',
        '{"kinds": {"kept": {"properties": {"lockDuration": "P99999999999D"}}}}',
        "[" * 100_000,
    ],
)
def test_a_list_of_queues_with_wrong_properties_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra/queues.json").write_text(text)
    with pytest.raises(PlatformFileError, match=r"queues\.json"):
        queue_rules(tmp_path, ["payment"])


def test_a_project_without_a_list_gets_the_rules_that_it_would_be_deployed_with(
    tmp_path: Path,
) -> None:
    rules = queue_rules(tmp_path, ["payment"])
    assert rules == queue_rules(Path(__file__).parents[2], ["payment"])
    assert rules["agent-payment"].duplicate_window is not None


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"functionTimeout": "9999999999999:00:00"}', '{"extensions": 1}']
)
def test_a_host_json_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "host.json").write_text(text)
    with pytest.raises(PlatformFileError, match=r"host\.json cannot be read"):
        host_rules(tmp_path)
