"""A golden screen of each verb at 80 columns, and of tables at 160. ``make screens`` draws them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from sas.cli.main import verbs
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from sas.ports import RefusedError
from tests.unit.actors_kit import keep_breaker, order
from tests.unit.cli_kit import Night, SubmitsAtOnce
from tests.unit.screens_kit import check_screen

Scene = Callable[[Night], None]


def nothing(night: Night) -> None:
    """Nothing happened."""


def refusal(night: Night) -> None:
    """One step of an order is refused."""
    night.fail("order-1", RefusedError("card-declined", "the card was declined"))
    night.later(90)


def callback(night: Night) -> None:
    """A step waits for a person."""
    night.awaits("order-1")
    night.later(90)


def storm(night: Night) -> None:
    """Thirty orders fail for two reasons, one waits for a callback, one is done."""
    for number in range(30):
        code = "card-declined" if number % 3 else "no-account"
        text = f"customer {number}: the bank answered {code}"
        night.fail(f"order-{number:02}", RefusedError(code, text))
    night.awaits("order-30")
    night.submit("order-31")
    night.later(3600)


def outage(night: Night) -> None:
    """A service is away: its circuit is open, and its orders wait."""
    now = night.system.clock.now()
    why = "payment could not be reached: connection refused"
    breaker = opened(Breaker(), BreakerPolicy(open_for=timedelta(minutes=5)), now, why)
    asyncio.run(keep_breaker(night.system.store, breaker, "payment"))
    night.later(20)
    for number in range(3):
        night.play(night.system.submit(order(f"order-{number}"), f"m-{number}"))


def rejection(night: Night) -> None:
    """An application sent an order of a workflow that does not exist, and a step was refused."""
    refusal(night)
    night.play(night.system.submit(order("order-2", workflow="nosuch"), "m-2"))
    night.play(night.system.drain())


SCENES: dict[str, tuple[Scene, str]] = {
    "help": (nothing, "--help"),
    "submit": (
        nothing,
        "submit --id A-1 --content {} --workflow care --reply-queue responses-shop --follow",
    ),
    "list": (storm, "list"),
    "list-all": (rejection, "list --all"),
    "show": (refusal, "show order-1"),
    "show-journal": (refusal, "show order-1 --journal"),
    "resubmit": (refusal, "resubmit order-1 --yes"),
    "skip": (refusal, "skip order-1 --dry-run"),
    "undo": (storm, "undo --state error --dry-run"),
    "callback": (callback, "callback order-1"),
    "callback-answer": (callback, "callback order-1 --answer {} --yes"),
    "status": (outage, "status"),
    "status-check": (outage, "status --check"),
    "messages": (rejection, "messages"),
    "messages-show": (rejection, "messages show order-2"),
    "messages-resend": (rejection, "messages resend order-2 --dry-run"),
    "messages-remove": (rejection, "messages remove order-2 --dry-run"),
    "desk": (nothing, "desk --help"),
    "workflows": (refusal, "workflows check --app tests.business:workflows"),
    "sim": (nothing, "sim --app samples.claim.claim --seeds 2 --jobs 1"),
    "new": (nothing, "new my-orders"),
    "infra": (nothing, "infra --help"),
    "docs": (nothing, "docs --help"),
}
"""For each screen what happened before, and the command."""
WIDE = ("list", "list-all", "messages", "show")
"""The screens that differ in more than their folds where there is room."""


def test_every_verb_has_a_screen() -> None:
    assert {name.partition("-")[0] for name in SCENES} == {"help", *verbs()}


@pytest.mark.parametrize(
    ("name", "columns"), [*((name, 80) for name in SCENES), *((name, 160) for name in WIDE)]
)
def test_the_screen_of_a_verb_is_the_golden_one(
    night: Night, name: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, command = SCENES[name]
    scene(night)
    monkeypatch.setattr("sas.cli.submission.OrdersClient", SubmitsAtOnce)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    check_screen(name, columns, *command.split())
