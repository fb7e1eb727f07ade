"""Draws docs/states.md from the tables of legal moves: python -m tools.diagrams."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from sas.domain.calls import CALL_MOVES, CARRIED, CallState
from sas.domain.moves import ORDER_MOVES, STEP_MOVES, Move

TARGET = Path(__file__).parents[1] / "docs" / "states.md"
HEAD = """# States and moves

`python -m tools.diagrams` draws this page from `sas/domain/moves.py` and `sas/domain/calls.py`.
A commit that makes any other move is refused.

"""
CALLS = f"""This machine answers two questions about one request: did a call go out, and what may
its agent say? If time is over and a call went out, the end is *cut-off*, and the agent is silent,
because nobody knows whether the call had its effect. If no call went out, the end is *not-begun*.

A message carries the state from one delivery to the next
({", ".join(sorted(state.value for state in CARRIED))}). One that carries none is *queued*.
"""


def page() -> str:
    """Return the page: the three state machines as diagrams."""
    return HEAD + "\n".join(
        [
            "## A step\n",
            *_machine(STEP_MOVES, ends=("Processed", "Compensated")),
            "\n## An order\n",
            "The state of an order is a pure function of the states of its steps.\n",
            *_machine(ORDER_MOVES, ends=("Processed", "Compensated")),
            "\n## A request at its agent\n",
            CALLS,
            *_calls(),
        ]
    )


def _calls() -> Iterable[str]:
    """Yield the diagram of a request: one arrow for all events between two states."""
    arrows: defaultdict[tuple[CallState, CallState], list[str]] = defaultdict(list)
    for move in CALL_MOVES:
        why = f" ({move.why})" if move.why else ""
        arrows[move.before, move.after].append(move.event.value + why)
    yield "```mermaid\nstateDiagram-v2"
    for state in CallState:
        yield f'    state "{state.value}" as {state.name}'
    yield f"    [*] --> {CallState.QUEUED.name}"
    for (before, after), events in arrows.items():
        yield f"    {before.name} --> {after.name}: {', '.join(events)}"
    leaving = {before for before, _ in arrows}
    for state in CallState:
        if state not in leaving:
            yield f"    {state.name} --> [*]"
    yield "```"


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
