"""An agent's circuit breaker to the value of the store's cell that keeps it, and back."""

from __future__ import annotations

import msgspec

from sas.domain.breaker import Breaker
from sas.ports import Cell

CELLS = "breaker|"
"""What the names of all these cells begin with."""


def cell_name(agent: str) -> str:
    """Return the name under which an agent's breaker is kept."""
    return f"{CELLS}{agent}"


def from_cell(cell: Cell | None) -> Breaker:
    """Return the breaker that a cell holds; a closed one where there is none."""
    return msgspec.json.decode(cell.value, type=Breaker) if cell else Breaker()


def to_value(breaker: Breaker) -> str:
    """Return a breaker as the value of its cell."""
    return msgspec.json.encode(breaker).decode()
