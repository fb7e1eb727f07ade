"""docs/scale.md names limits that infra keeps to, and its example of stamps works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.infra.kit import ROOT

SCALE = (ROOT / "docs" / "scale.md").read_text()


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
