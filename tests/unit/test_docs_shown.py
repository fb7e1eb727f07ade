"""What pages show is what our tools print: the outputs of long runs by their form.

tests/orders/test_docs_operating.py runs the commands of docs/operating.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sas.config import read_config
from sas.testing import __path__ as sim_folders
from tools import queues

ROOT = Path(__file__).parents[2]
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CODEC = (ROOT / "docs" / "payload-codec.md").read_text()


def table_under(head: str, page: str) -> list[str]:
    """Return the rows of a page's table, without its head."""
    assert page.count(f"{head}\n") == 1, head
    return page.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_number_that_the_simulation_prints_is_a_row_of_the_invariants() -> None:
    (folder,) = sim_folders
    code = "".join(file.read_text(encoding="utf-8") for file in Path(folder).glob("*.py"))
    printed = {int(number) for number in re.findall(r"(?:Violation|_say)\(\s*(\d+),", code)} - {0}
    rows = table_under("| number | rule |\n|---|---|", RELIABILITY)
    numbers = [int(cells(row)[0]) for row in rows]
    assert numbers == list(range(1, len(numbers) + 1))
    assert printed < set(numbers)
    others = sorted(set(numbers) - printed)
    assert f"Other tests check {', '.join(map(str, others[:-1]))} and {others[-1]}." in RELIABILITY


def test_a_bound_application_is_shown_as_the_tool_writes_it() -> None:
    parameters: dict[str, Any] = {"parameters": {"applications": {"value": []}}}
    queues.set_applications(parameters, ["web", "desk"], ["web"])
    bound, _ = parameters["parameters"]["applications"]["value"]
    assert f"\n    {json.dumps(bound)}\n" in SECURITY


def test_the_command_that_makes_a_key_makes_one_that_is_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [code] = re.findall(r'^    python -c "(.*)"$', CODEC, re.MULTILINE)
    exec(compile(code, "payload-codec.md", "exec"), {})  # noqa: S102  the page's own command
    values = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    config = read_config({**values, "SAS_PAYLOAD_KEYS": capsys.readouterr().out.strip()})
    assert config.payload_codec is not None
