"""The simulation sees what never comes: a callback, the effect of a deadline, an alert."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sas.actors import supervisor
from sas.domain import undo
from sas.domain.messages import Verb
from sas.engine.rejections import Rejections
from sas.features.callbacks.endpoint import Callbacks
from sas.features.incidents.board import IncidentBoard
from sas.testing.plan import NO_WORKFLOW, Apart, Away, Chance, Item, Outside, Plan, Press, Submit
from sas.testing.play import Project, play
from tests.simulation.crowded import DEFINED

PROJECT = Project.of(DEFINED, Path(__file__).parents[2])
NAMES = [workflow.name for workflow in DEFINED]
ORDERS = [
    Submit(at_s=1.0 + n, order_id=f"O-{n}", workflow=NAMES[n % len(NAMES)], urgent=False, times=1)
    for n in range(6)
]


def violation(*items: Item, first: int = 0, seeds: int = 12) -> str:
    """Return what is broken in the first of some seeds in which this happens to six orders."""
    numbers = range(first, first + seeds)
    plays = (play(PROJECT, Plan(seed, 2, (*ORDERS, *items))) for seed in numbers)
    return next((str(outcome.violations[0]) for outcome in plays if outcome.violations), "")


async def nothing(*_: Any, **__: Any) -> None:
    """Do nothing in place of something that is needed."""


def test_a_callback_that_is_dropped_while_its_step_waits_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = [Outside(agent) for agent in sorted(DEFINED.agents())]
    items: tuple[Item, ...] = *outside, Chance("lost_answer", 0.5), Chance("hangs", 0.5)
    assert violation(*items, seeds=1) == ""
    monkeypatch.setattr(Callbacks, "_put_back", nothing)
    assert "it neither ended step" in violation(*items)


def test_a_deadline_that_has_no_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    items = Away(5.0, 900.0, "service payment"), Away(5.0, 900.0, "service invoice")
    assert violation(*items, seeds=1) == ""
    monkeypatch.setattr(supervisor, "expire_deadline", lambda *_, **__: None)
    assert "past its deadline" in violation(*items)


def test_an_undo_that_may_come_before_its_last_call_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = Apart(0, 4.0), Apart(1, -4.0)
    undos = [
        Press(
            at_s=8.0 + n, order_id=f"O-{n}", verb=Verb.UNDO, stale=False, edited=False, twice=False
        )
        for n in range(6)
    ]
    items: tuple[Item, ...] = *clocks, *undos, Chance("hangs", 0.7), Chance("lost_answer", 0.5)
    assert violation(*items, seeds=1) == ""
    monkeypatch.setattr(undo, "CLOCK_SKEW", timedelta())
    assert "before its last call is cut off" in violation(*items, first=6)


def test_an_incident_without_an_alert_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncidentBoard, "_send", nothing)
    assert "no alert of the incident" in violation(Away(1.0, 900.0, "service payment"))


def test_a_message_that_is_put_aside_without_an_alert_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def keep(self: Rejections, rejection: Any, *_: object, **__: object) -> None:
        await self.keep(rejection)

    monkeypatch.setattr(Rejections, "put_aside", keep)
    assert "and no alert was sent" in violation(
        Submit(at_s=1.0, order_id="O-9", workflow=NO_WORKFLOW, urgent=False, times=1)
    )
