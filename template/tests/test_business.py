"""What an order may hold, what the app registers, and the workflows under every fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import orders
from orders.content import check

PROJECT = Path(__file__).resolve().parents[1]
SETTINGS = json.loads((PROJECT / "local.settings.json").read_text(encoding="utf-8"))["Values"]


def test_an_order_without_a_quantity_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="missing required field `quantity`"):
        check(b'{"product": "tea", "card": "4000-1"}')


def test_every_agent_has_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    from function_app import app  # the settings are needed for its import

    functions = {function.get_function_name() for function in app.get_functions()}
    for agent in orders.AGENTS:
        assert f"agent_{agent.replace('-', '_')}" in functions


def test_settings_and_infra_follow_from_the_business() -> None:
    process = sas("infra", "--check")
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("agents", ["models", "own"])
def test_the_workflows_hold_under_every_fault(agents: str) -> None:
    words = ["sim", "--app", "orders", "--agents", agents, "--seeds", "50", "--jobs", "1"]
    process = sas(*words)
    assert process.returncode == 0, process.stdout + process.stderr


def sas(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sas.cli", *words]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
