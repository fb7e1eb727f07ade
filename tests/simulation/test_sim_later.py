"""The simulation sees what never comes: a callback, the effect of a deadline, an alert."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sas.actors import supervisor
from sas.domain import undo
from sas.engine.rejections import Rejections
from sas.features.callbacks.endpoint import Callbacks
from sas.features.incidents.board import IncidentBoard
from sas.testing.plan import drawn
from sas.testing.play import Project, play
from tests.simulation.test_everything_at_once import DEFINED

PROJECT = Project.of(DEFINED, Path(__file__).parents[2])


def seen(*seeds: int) -> str:
    """Return what the first of these seeds that breaks an invariant sees."""
    plays = (play(PROJECT, drawn(seed, PROJECT.workflows)) for seed in seeds)
    return next((str(one.violations[0]) for one in plays if one.violations), "")


async def nothing(*_: Any, **__: Any) -> None:
    """Do nothing in place of something that is needed."""


def test_a_callback_that_is_dropped_while_its_step_waits_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert seen(CALLBACK) == ""
    monkeypatch.setattr(Callbacks, "_put_back", nothing)
    assert "it neither ended step" in seen(CALLBACK)


def test_a_deadline_that_has_no_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(DEADLINE) == ""
    monkeypatch.setattr(supervisor, "expire_deadline", lambda *_, **__: None)
    assert "past its deadline" in seen(DEADLINE)


def test_an_undo_that_may_come_before_its_last_call_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert seen(UNDO) == ""
    monkeypatch.setattr(undo, "CLOCK_SKEW", timedelta())
    assert "before its last call is cut off" in seen(UNDO)


def test_an_incident_without_an_alert_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncidentBoard, "_send", nothing)
    assert "no alert of the incident" in seen(INCIDENT)


def test_a_message_that_is_put_aside_without_an_alert_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def keep(self: Rejections, rejection: Any, _kind: object) -> None:
        await self.keep(rejection)

    monkeypatch.setattr(Rejections, "put_aside", keep)
    assert "and no alert was sent" in seen(ASIDE)


CALLBACK, DEADLINE, UNDO, INCIDENT, ASIDE = 11, 0, 543, 0, 1
"""Seeds that meet each of these."""
