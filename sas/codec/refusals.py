"""Why the last commands were refused, as cells of the store hold it: for whoever waits to hear.

The alert is what lasts. Here the last few of each cell are kept, so that there is never more of it
than there are cells.
"""

from __future__ import annotations

import msgspec

from sas.domain.ids import cause_hash
from sas.ports import SharedValue

CELLS = "refused|"
"""How the names of these cells begin; two hex digits follow."""


KEPT_MAX = 8


WHY_LENGTH_MAX = 1000


class Refused(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One command (its id's hash) and why it changed nothing."""

    command: str
    why: str


def cell_name(command_id: str) -> str:
    """Return the name of the cell that a command's refusal is kept in: one of 256."""
    return CELLS + cause_hash(command_id)[:2]


def why(cell: SharedValue | None, command_id: str) -> str:
    """Return why a command was refused, as far as a cell still knows; else nothing."""
    own = cause_hash(command_id)
    return next((one.why for one in _read(cell) if one.command == own), "")


def added(cell: SharedValue | None, command_id: str, text: str) -> str:
    """Return a cell's value with one refusal more; the oldest goes where there are many."""
    own = cause_hash(command_id)
    others = [one for one in _read(cell) if one.command != own]
    kept = [*others, Refused(own, text[:WHY_LENGTH_MAX])][-KEPT_MAX:]
    return msgspec.json.encode(kept).decode()


def _read(cell: SharedValue | None) -> list[Refused]:
    try:
        return msgspec.json.decode(cell.value, type=list[Refused]) if cell else []
    except msgspec.MsgspecError:  # a later version's
        return []
