"""The sagas of the sample in the stories of ``sas sim``."""

from __future__ import annotations

from pathlib import Path

import pytest

import orders
from sas.saga import sagas_of
from sas.testing.stories import Stories
from tests.long import long

STORIES = Stories(
    module=orders, sagas=sagas_of(orders), directory=Path(__file__).parents[2], examples=()
)


@pytest.mark.parametrize("seeds", [range(5, 9), *long([range(9, 150)])])
def test_nothing_is_wrong_with_the_sample(seeds: range) -> None:
    for seed in seeds:
        assert STORIES.play(STORIES.story(seed)).error == "", f"seed {seed}"
