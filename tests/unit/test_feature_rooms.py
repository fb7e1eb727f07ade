"""At most three lines of the running system outside a room import its feature."""

from __future__ import annotations

import pytest

from tools.order_path import FEATURES, feature_names, lines_naming

IMPORTS_MAX = 3


def test_there_are_features() -> None:
    assert FEATURES.is_dir()
    assert len(feature_names()) >= 5


@pytest.mark.parametrize("feature", feature_names())
def test_a_feature_is_named_in_few_lines_outside_its_room(feature: str) -> None:
    assert 1 <= lines_naming(feature) <= IMPORTS_MAX
