"""The pictures in the docs are what the code says."""

from __future__ import annotations

from tools.diagrams import TARGET, page


def test_the_diagram_of_states_is_drawn_from_the_law_of_moves() -> None:
    assert TARGET.read_text(encoding="utf-8") == page()
