"""The code of the pages that no other test runs. Every public name is in code that a test runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sas
from sas.saga import business_of, sagas_of
from sas.testing import Kit

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "your-own-workflow.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def block(page: str, words: str) -> str:
    """Return the only code of a page with these words."""
    (code,) = [code for code in CODE.findall(page) if words in code]
    return str(code)


def module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with this code."""
    namespace = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, namespace)
    exec(compile(code, f"{name}.py", "exec", dont_inherit=True), namespace.__dict__)  # noqa: S102
    return namespace


def test_the_saga_of_the_readme_is_tested_as_it_says(
    saga: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = block(README, "claims = Saga") + "\nfrom sas.testing import Kit\n"
    page = module("claim_of_readme", code + block(README, "saga: Kit"), monkeypatch)
    page.test_a_refused_payment_leaves_nothing(saga)


def test_the_options_of_the_page_make_a_saga(monkeypatch: pytest.MonkeyPatch) -> None:
    code = block(PAGE, "patient = Saga")
    names = ", ".join(sorted(set(re.findall("|".join(sas.__all__), code))))
    begin = f"from datetime import timedelta\nfrom sas import {names}\n"
    trips = module("trips_of_page", block(PAGE, "trips = Saga"), monkeypatch)
    page = module(
        "options", begin + "from trips_of_page import Trip, Booking\n" + code, monkeypatch
    )
    business = business_of([page.patient, trips.trips])
    assert business.settings == ["HOTEL_URL", "TRIPS_URL"]
    assert business.workflows.find("patient-trip").steps[0].failures_max == 5


def test_every_public_name_is_in_an_example_that_a_test_runs() -> None:
    files = [*(ROOT / "samples" / "claim").glob("*.py"), ROOT / "orders" / "__init__.py"]
    examples = [path.read_text(encoding="utf-8") for path in [*files, ROOT / "function_app.py"]]
    examples += [*CODE.findall(README), *CODE.findall(PAGE)]
    words: set[Any] = set(re.findall(r"\w+", " ".join(examples)))
    assert set(sas.__all__) <= words
    assert sagas_of(sas) == []
