"""Draws docs/states.md from the law of moves: python -m tools.diagrams (a test holds it fresh)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from sas.domain.moves import ORDER_MOVES, STEP_MOVES, Move

TARGET = Path(__file__).parents[1] / "docs" / "states.md"
HEAD = """# States and moves

Drawn from `STEP_MOVES` and `ORDER_MOVES` in `sas/domain/moves.py` by `python -m tools.diagrams`;
a test keeps this page as those tables are. A commit that makes any other move is refused before
anything is written.

"""


def page() -> str:
    """Return the page: both machines, as a diagram and as a table."""
    return HEAD + "\n".join(
        [
            "## A step\n",
            *_machine(STEP_MOVES, ends=("Processed", "Compensated")),
            "\n## An order\n",
            "An order's state is a pure function of its steps' states.\n",
            *_machine(ORDER_MOVES, ends=("Processed", "Compensated")),
        ]
    )


def _machine(moves: Iterable[Move], ends: tuple[str, ...]) -> Iterable[str]:
    listed = list(moves)
    yield "```mermaid\nstateDiagram-v2"
    yield "    [*] --> Pending"
    for move in listed:
        yield f"    {move.before.value} --> {move.after.value}: {move.when}"
    for end in ends:
        yield f"    {end} --> [*]"
    yield "```\n\n| from | to | when |\n|---|---|---|"
    for move in listed:
        yield f"| {move.before.value} | {move.after.value} | {move.when} |"


def main() -> int:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")
    print(f"wrote {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
