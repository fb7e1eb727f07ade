"""A store in memory in the place of the one that a verb would open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sas.cli import arguments as args
from sas.ports import StateStore
from sas.simulation.store import MemoryStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()

    @asynccontextmanager
    async def opened(where: args.Storage) -> AsyncIterator[StateStore]:
        yield made

    monkeypatch.setattr(args, "open_store", opened)
    monkeypatch.setenv("SAS_TABLES", "UseDevelopmentStorage=true")
    return made
