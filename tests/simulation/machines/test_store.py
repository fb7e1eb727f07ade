"""The store in memory, played as a sequence: see tests/contract/store_machine.py."""

from __future__ import annotations

from hypothesis import settings

from sas.testing.store import MemoryStore, StoreFault
from tests.contract.store_machine import SHARDS, StoreMachine


class MemoryStoreMachine(StoreMachine):
    async def connect(self) -> MemoryStore:
        self.memory = MemoryStore(SHARDS)
        return self.memory

    def lose_answer(self) -> None:
        self.memory._faults["commit"].clear()  # the fault before may have met a conflict
        self.memory.fail_next("commit", StoreFault.LOST_ANSWER)


MemoryStoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestMemoryStore = MemoryStoreMachine.TestCase
