"""mypy and pyright, both strict, over good and bad sagas and a test; the same sagas imported."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sas.domain.workflow import WorkflowError
from sas.saga import business_of, sagas_of

ROOT = Path(__file__).parents[2]
BAD = ROOT / "tests" / "integration" / "bad_sagas.py"
GOOD = (
    ROOT / "tests" / "integration" / "good_sagas.py",
    ROOT / "samples" / "claim" / "claim.py",
    ROOT / "samples" / "claim" / "test_claim.py",
    ROOT / "orders" / "__init__.py",
    ROOT / "template" / "orders.py",
)
PYRIGHT = ROOT / "tools" / "pyright" / "node_modules" / ".bin" / "pyright"
Lines = set[tuple[str, int]]
CASES = dict(
    re.findall(r'^def (\w+)\(\) -> None:\n    # import: "(.*)"$', BAD.read_text(), re.MULTILINE)
)


def mypy(_folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yield each error: its file, its line and its text."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--output=json", *map(str, (BAD, *GOOD))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in {0, 1}, run.stdout + run.stderr
    for line in run.stdout.splitlines():
        error = json.loads(line)
        if error["severity"] == "error":
            yield str((ROOT / error["file"]).resolve()), error["line"], error["message"]


def pyright(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yield each error: its file, its line and its text."""
    config = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "include": [os.path.relpath(file, folder) for file in (BAD, *GOOD)],
        "extraPaths": [os.path.relpath(ROOT, folder)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    run = subprocess.run(
        [str(PYRIGHT), "--outputjson", "-p", str(folder), "--pythonpath", sys.executable],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in {0, 1}, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == 1 + len(GOOD)
    for error in report["generalDiagnostics"]:
        yield error["file"], error["range"]["start"]["line"] + 1, error["message"]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_reports_an_error_at_each_bad_line_and_at_no_other(
    tmp_path: Path, checker: Callable[[Path], Iterator[tuple[str, int, str]]]
) -> None:
    errors = {(file, line): text for file, line, text in checker(tmp_path)}
    bad_lines = {
        (str(BAD), number)
        for number, line in enumerate(BAD.read_text().splitlines(), start=1)
        if "  # error: " in line
    }
    assert bad_lines
    assert {place: text for place, text in errors.items() if place not in bad_lines} == {}
    assert bad_lines - errors.keys() == set()


@pytest.mark.parametrize("case", CASES)
def test_a_bad_saga_is_one_sentence_before_any_order(case: str) -> None:
    sys.modules.pop("tests.integration.bad_sagas", None)
    module = importlib.import_module("tests.integration.bad_sagas")

    def define() -> None:
        getattr(module, case)()
        business_of(sagas_of(module))

    if not CASES[case]:
        define()
        return
    with pytest.raises((WorkflowError, TypeError), match=re.escape(CASES[case])) as caught:
        define()
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, WorkflowError):
        assert re.search(r"[\w.<>]+ \(bad_sagas\.py:\d+\)", str(caught.value))


def test_good_sagas_make_a_business() -> None:
    module = importlib.import_module("tests.integration.good_sagas")
    business = business_of(sagas_of(module))
    assert [(w.name, w.version, len(w.steps)) for w in business.workflows] == [
        ("trip", 2, 9),
        ("trip", 1, 1),
    ]
    assert business.limits == {"air": 10, "rail": 5}
