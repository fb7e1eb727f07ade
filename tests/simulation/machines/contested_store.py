"""A store in memory whose writes of shared values meet trouble."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from sas.ports import ConflictError, SharedValue
from sas.testing.store import MemoryStore


class ContestedStore(MemoryStore):
    """``before_writes``: what happens before the next writes, one each. It may raise.

    If ``loses_answer``, the next write succeeds, and the adapter, which had no answer, repeats it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before_writes: deque[Callable[[], Awaitable[object]] | None] = deque()
        self.loses_answer = False

    async def write_shared(self, name: str, value: str, token: str | None) -> SharedValue[str]:
        before = self.before_writes.popleft() if self.before_writes else None
        if before is not None:
            await before()
        written = await super().write_shared(name, value, token)
        if self.loses_answer:
            self.loses_answer = False
            raise ConflictError("the adapter repeated the write")
        return written

    def calm(self) -> None:
        """Forget the trouble that no write met."""
        self.before_writes.clear()
        self.loses_answer = False
