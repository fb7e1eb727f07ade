"""A standing condition to the value of the store's cell that keeps it, and back."""

from __future__ import annotations

import re

import msgspec

from sas.domain.conditions import Standing
from sas.domain.messages import AlertKind
from sas.ports import Cell

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9 ,._-]")
CELLS = "condition|"
"""What the names of all these cells begin with."""


def cell_name(kind: AlertKind, scope: str) -> str:
    """Return the name under which a condition is kept."""
    return f"{CELLS}{kind.value}|{_NOT_IN_KEYS.sub('_', scope)}"


def from_cell(cell: Cell | None) -> Standing | None:
    """Return the condition that a cell holds; None where it is over, or never was."""
    return msgspec.json.decode(cell.value, type=Standing | None) if cell else None


def to_value(standing: Standing | None) -> str:
    """Return a condition, or that it is over, as the value of its cell."""
    return msgspec.json.encode(standing).decode()
