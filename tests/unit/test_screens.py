"""A golden screen of each verb. ``make screens`` draws them again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sas.ports import RefusedError
from tests.unit import cli_kit
from tests.unit.cli_kit import Night
from tests.unit.screens_kit import WIDTHS, check_screen

night = cli_kit.night

Scene = Callable[[Night], None]


def nothing(night: Night) -> None:
    pass


def storm(night: Night) -> None:
    """Thirty orders fail for two reasons, and one more waits for a callback."""
    for number in range(30):
        code = "card_declined" if number % 3 else "no_account"
        night.fail(f"order-{number:02}", RefusedError(code, f"customer {number}: {code}"))
    night.awaits("order-30")


SCENES: dict[str, tuple[Scene, list[str]]] = {
    "help": (nothing, ["--help"]),
}
"""For each screen what happens before, and the command."""


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCENES)
def test_the_screen_of_a_verb_is_the_golden_one(night: Night, name: str, columns: int) -> None:
    scene, arguments = SCENES[name]
    scene(night)
    check_screen(name, columns, *arguments)
