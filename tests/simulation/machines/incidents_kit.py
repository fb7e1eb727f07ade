"""What machines need of incidents."""

from __future__ import annotations

from sas.features.incidents.board import IncidentBoard
from tests.unit.actors_kit import Kit


async def noted(instance: Kit) -> None:
    """Let an instance write what it saw of incidents, and end those that are over."""
    board = instance.context.incidents
    assert isinstance(board, IncidentBoard)
    await board.note()
