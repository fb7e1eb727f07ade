"""The lag of a queue to the value of the store's cell that keeps it, and back."""

from __future__ import annotations

import msgspec

from sas.domain.lags import Lag
from sas.ports import Cell

CELLS = "lag|"
"""What the names of all these cells begin with."""


def cell_name(queue: str) -> str:
    """Return the name under which a queue's lag is kept."""
    return f"{CELLS}{queue}"


def from_cell(cell: Cell | None) -> Lag | None:
    """Return the lag that a cell holds; None where there is none."""
    return msgspec.json.decode(cell.value, type=Lag) if cell else None


def to_value(lag: Lag) -> str:
    """Return a lag as the value of its cell."""
    return msgspec.json.encode(lag).decode()
