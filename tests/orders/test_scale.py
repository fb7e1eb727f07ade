"""docs/scale.md says what was counted, and its arithmetic follows from that."""

from __future__ import annotations

from pathlib import Path

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


def test_documents_of_security_are_there_and_name_what_holds_each_threat() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = {word.strip("`") for word in text.split() if word.startswith("`tests/")}
    assert named
    for name in {path.split("::")[0].rstrip("`,.;)") for path in named}:
        assert list(ROOT.glob(name)) or Path(ROOT / name).exists(), name
