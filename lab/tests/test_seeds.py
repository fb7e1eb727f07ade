"""``python -m lab.seeds``: what it prints, and that it finds a broken product."""

from __future__ import annotations

import pytest

from lab import seeds
from sas.ports import AgentCall
from sas.testing.remote import ModelService

ARGUMENTS = ["--app", "tests.business:workflows", "--jobs", "1"]


def test_seeds_that_hold_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert seeds.main([*ARGUMENTS, "--first", "1", "--seeds", "3"]) == 0
    text = capsys.readouterr().out
    assert "order Processed: " in text
    assert text.endswith(" 0 seeds broken\n")


def test_a_broken_seed_is_told_and_made_shorter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    do = ModelService._do

    async def twice(self: ModelService, call: AgentCall) -> object:
        self._ledger.of(call.key).in_force = False
        return await do(self, call)

    monkeypatch.setattr(ModelService, "_do", twice)
    assert seeds.main([*ARGUMENTS, "--first", "9", "--seeds", "1"]) == 1
    head, _, story = capsys.readouterr().out.partition("the shortest story of seed ")
    assert " is broken: invariant 7: " in head
    assert "BROKEN: invariant 7: " in story
