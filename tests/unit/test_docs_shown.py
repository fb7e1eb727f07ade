"""What pages show is what our tools print: the outputs of long runs by their form.

tests/orders/test_docs_operating.py and test_cli_cost.py run the commands of docs/operating.md and
docs/cost.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sas.config import read_config
from sas.domain.workflow import OnFailure
from sas.testing import __path__ as sim_folders
from tests.simulation.domain_model_check import explored_line
from tests.simulation.domain_protocol_check import Budget, Protocol
from tests.simulation.outages import DURATIONS, Cost
from tools import edge_mutants, mutants, outages, queues

ROOT = Path(__file__).parents[2]
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CODEC = (ROOT / "docs" / "payload-codec.md").read_text()
FAILURE_MODES = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")


def table_under(head: str, page: str) -> list[str]:
    """Return the rows of a page's table, without its head."""
    assert page.count(f"{head}\n") == 1, head
    return page.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_table_of_mutants_is_one_that_the_tool_prints() -> None:
    known = {mutant.name: mutant for mutant in mutants.MUTANTS}
    hunts = [
        mutants.Hunt(known[name], int(seed), f"invariant {broken}: order O-0")
        for name, seed, broken in map(cells, table_under(mutants.HEAD, RELIABILITY))
    ]
    assert [hunt.mutant.name for hunt in hunts] == list(known)
    assert table_under(mutants.HEAD, RELIABILITY) == [mutants.row(hunt) for hunt in hunts]
    early = sum(hunt.seed is not None and hunt.seed <= 75 for hunt in hunts)
    said = f"**{len(hunts)} of {len(known)} were found** within 2,000 seeds: {early} within 75"
    assert said in " ".join(RELIABILITY.split())


def test_a_mutant_that_breaks_no_invariant_has_a_row_too() -> None:
    mutant = mutants.MUTANTS[0]
    assert mutants.row(mutants.Hunt(mutant, None, "not found")) == "| no ETag | **none** | - |"
    never = mutants.Hunt(mutant, 7, "it never ends")
    assert mutants.row(never) == "| no ETag | 7 | it never ends |"


def test_the_table_of_mutants_of_the_edge_is_one_that_the_tool_prints() -> None:
    rows = table_under(edge_mutants.HEAD, RELIABILITY)
    found = dict(map(cells, rows))
    assert rows == [edge_mutants.row(mutant, found[mutant.name]) for mutant in edge_mutants.EDGE]
    for mutant in edge_mutants.EDGE:
        file, _, test = found[mutant.name].partition("::")
        files = [name.partition("::")[0] for name in mutant.tests]
        (path,) = [path for path in files if Path(path).stem == file]
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
    said = f"**{len(rows)} of {len(rows)} were found** by a test"
    assert said in " ".join(RELIABILITY.split())


def test_the_table_of_outages_is_one_that_the_tool_prints() -> None:
    durations = list(DURATIONS)
    head = f"| Away | {' | '.join(durations)} |\n|---|{'---|' * len(durations)}"
    rows = table_under(head, FAILURE_MODES)
    found = {
        (1, dependency, duration, "light"): Cost(back_s=float(took.removesuffix(" s")))
        for dependency, *costs in map(cells, rows)
        for duration, took in zip(durations, costs, strict=True)
    }
    assert outages.table(found, durations).splitlines() == [*head.splitlines(), *rows]


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


def test_the_scope_of_a_model_is_shown_as_a_run_of_the_tests_prints_it() -> None:
    case = ("two beside each other", OnFailure.HOLD, 0, Budget(early=1, twice=1, behind=1))
    protocol = Protocol(*case)
    assert protocol.explore() is None
    assert f"\n    {explored_line(protocol.scope, len(protocol.states))}\n" in RELIABILITY


@pytest.mark.parametrize(
    "head",
    [
        "| seed, on the code of that hour | defect | test |\n|---|---|---|",
        "| found by | defect | test |\n|---|---|---|",
    ],
)
def test_a_defect_names_a_test_that_there_is(head: str) -> None:
    named = {cells(row)[-1] for row in table_under(head, RELIABILITY)}
    assert named
    there = {
        path.stem for house in (ROOT, ROOT / "devstack") for path in house.glob("tests/*/*.py")
    }
    assert named - there == set()


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
