"""What the tests of several rooms begin with: the command over all actors in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.actors_kit import CARE, CHAIN, kit
from tests.unit.cli_kit import NAMES_APP, SAGAS, Night, connect


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Night:
    """Return the actors with the command connected to them."""
    operator = Night(system=kit(CARE, CHAIN), capsys=capsys)
    connect(monkeypatch, operator.system, operator)
    return operator


@pytest.fixture
def sagas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the module of sagas of the project here. No other test has a module of its name."""
    module = tmp_path / f"app_{tmp_path.name}.py".replace("-", "_")
    module.write_text(SAGAS)
    (tmp_path / "pyproject.toml").write_text(NAMES_APP.format(module.stem))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return module
