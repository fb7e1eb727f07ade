"""Draws docs/states.md from the tables of legal moves: python -m tools.diagrams."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from sas.domain.moves import ORDER_MOVES, STEP_MOVES, Move

TARGET = Path(__file__).parents[1] / "docs" / "states.md"
HEAD = """# States and moves

`python -m tools.diagrams` draws this page from `sas/domain/moves.py`. A commit that makes any other
move is refused.

"""


def page() -> str:
    """Return the page: both state machines as diagrams."""
    return HEAD + "\n".join(
        [
            "## A step\n",
            *_machine(STEP_MOVES, ends=("Processed", "Compensated")),
            "\n## An order\n",
            "The state of an order is a pure function of the states of its steps.\n",
            *_machine(ORDER_MOVES, ends=("Processed", "Compensated")),
        ]
    )


def _machine(moves: Iterable[Move], ends: tuple[str, ...]) -> Iterable[str]:
    yield "```mermaid\nstateDiagram-v2"
    yield "    [*] --> Pending"
    for move in moves:
        yield f"    {move.before.value} --> {move.after.value}: {move.when}"
    for end in ends:
        yield f"    {end} --> [*]"
    yield "```"


def main() -> int:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")
    print(f"wrote {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
